"""Words for lines and their differences: call names, kinds of change, values cut to a bounded length."""

from __future__ import annotations

import re
from collections.abc import Hashable

from .. import records as rec
from ..records import Fx, Record, RotationAck
from ..writer import format_record, spell_fields
from .judge import Leaf
from .model import Change

WIDTH = 200
"""Longer values are cut."""

_HEAD = re.compile(r"[a-z_0-9]+(?=\()|fx [a-z]+(?: [A-Za-z]+)?|-- tick|out s|# scenario|rotation ack")
_RESULTS = frozenset({"result", "error", "slot"})


def call_of(record: Record | None) -> str:
    """The name of a line's call; a router line is called by what it asks for, text by that word."""
    if record is None:
        return "text"
    if isinstance(record, Fx):
        return re.split(r"[{(]", format_record(record), maxsplit=1)[0]
    return "rotation ack" if isinstance(record, RotationAck) else record.rule


def head_of(text: str) -> str:
    """The call that a line starts with, without reading it."""
    found = _HEAD.match(text)
    return found[0] if found else "text"


def kind_of(record: Record | None) -> str:
    """The kind of act of a line that was not filed (see :data:`.work.ACT_OF`)."""
    if isinstance(record, rec.Tick):
        return "tick"
    return "memory" if isinstance(record, rec.NumFreeBlocks) else "text"


def change_in(differing: list[Leaf]) -> Change:
    """What a pair of lines of the same work differs in."""
    if not differing:
        return Change.TEXT
    return Change.RESULT if differing[0].field in _RESULTS else Change.ARGUMENT


def same_change(leaf: Leaf) -> tuple[Hashable, ...]:
    """Equal for the same change elsewhere: numbers count by their distance, other values as they are."""
    plain = isinstance(leaf.a, int) and isinstance(leaf.b, int) and not isinstance(leaf.a, bool)
    return (leaf.field, "by", leaf.b - leaf.a) if plain else (leaf.field, "from", str(leaf.a), str(leaf.b))


def brief(value: object) -> str:
    """The value as text, cut to :data:`WIDTH`."""
    text = "nothing" if value is None else str(value)
    return text if len(text) <= WIDTH else f"{text[:WIDTH]}…"


def spelled(record: Record | None, leaf: Leaf, value: object) -> str | None:
    """A differing value as its line prints it, ``nothing`` where the line prints none."""
    if record is None:
        return None
    return brief(spell_fields(record).get(leaf.field, "nothing") if leaf.path == leaf.field else value)
