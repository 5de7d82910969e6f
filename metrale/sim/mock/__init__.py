"""The mock device: block and slot books, scripted answers, scripted faults (S1 section 2, S5 section 12)."""

from .device import MockDevice
from .script import Faults, MockConfig, Script

__all__ = ["Faults", "MockConfig", "MockDevice", "Script"]
