"""Semantic comparison of two traces: alignment by content, tick and sequence; causes and what follows from them."""

from .compare import compare
from .model import Both, Cause, Change, ClientView, Comparison, Divergence, Place, Role
from .side import Side
from .state import PARKED, Phase, Row, State

__all__ = [
    "PARKED",
    "Both",
    "Cause",
    "Change",
    "ClientView",
    "Comparison",
    "Divergence",
    "Phase",
    "Place",
    "Role",
    "Row",
    "Side",
    "State",
    "compare",
]
