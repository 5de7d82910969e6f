"""Invariants: rules that every legal trace keeps, checked on the parsed trace alone (one module per rule).

``INVARIANTS`` lists them; :func:`check_lines`, :func:`check_records` and :func:`check_text` run all in one pass.
With the scenario at hand, the rules that need it run as well.
"""

from .base import Invariant, Violation
from .check import TraceCheck, check_lines, check_records, check_text
from .registry import INVARIANTS

__all__ = ["INVARIANTS", "Invariant", "TraceCheck", "Violation", "check_lines", "check_records", "check_text"]
