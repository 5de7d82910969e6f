"""Semantic comparison of two traces: alignment by content, tick and sequence; causes and what follows from them."""

from .chronicle import Chronicle, Frame, Life, Seat, chronicle
from .compare import compare
from .explain import Explanation, explain
from .model import Both, Cause, Change, ClientView, Comparison, Divergence, Place, Role
from .side import Side
from .state import PARKED, Phase, Row, State

__all__ = [
    "PARKED",
    "Both",
    "Cause",
    "Change",
    "Chronicle",
    "ClientView",
    "Comparison",
    "Divergence",
    "Explanation",
    "Frame",
    "Life",
    "Phase",
    "Place",
    "Role",
    "Row",
    "Seat",
    "Side",
    "State",
    "chronicle",
    "compare",
    "explain",
]
