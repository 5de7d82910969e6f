"""The device of :mod:`metrale.core.io.device` on real kernels."""

from .device import EngineDevice
from .options import EngineOptions
from .picks import Picks
from .streams import Streams

__all__ = ["EngineDevice", "EngineOptions", "Picks", "Streams"]
