"""What all records share: the base classes and the two registries."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar, TypeVar, dataclass_transform


class Stage(IntEnum):
    """The blocks of a trace file, in file order (S1 section 1)."""

    HEADER = 0
    CALLS = 1
    ROTATION = 2
    OUT = 3


class Node:
    """Anything that one grammar rule spells: a whole line or an event inside an ``out`` line.

    ``rule`` is the name of the grammar rule; the fields are the values of the text in printed order.
    """

    __slots__ = ()
    rule: ClassVar[str]


class Record(Node):
    """One line of a trace. ``stage`` is the block of the file in which the line may stand."""

    __slots__ = ()
    stage: ClassVar[Stage] = Stage.CALLS


class Event(Node):
    """One item of an ``out`` line: what a client saw (S1 section 1, S5 section 2.8)."""

    __slots__ = ()
    terminal: ClassVar[bool] = True


class Call(Record):
    """A device call (S6 section 3). ``call`` is its name, as printed."""

    __slots__ = ()
    call: ClassVar[str]


@dataclass(frozen=True, slots=True)
class Fallible(Call):
    """A call that may end in `` -> ERR <text>``; ``error`` is that text, or None if the call succeeded.

    A failed call prints no answer, so its ``result`` (or ``slot``) is None as well.
    """

    error: str | None = field(default=None, kw_only=True)


class Fx(Record):
    """A router line: it stands before the device calls that it causes (S1 section 1, S5 section 7)."""

    __slots__ = ()


RULES: dict[str, type[Node]] = {}
"""Every record and event class by the name of its grammar rule."""

CALLS: dict[str, type[Call]] = {}
"""Every device-call class by call name."""

_N = TypeVar("_N", bound=Node)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[_N]) -> type[_N]:
    """Make ``cls`` a frozen, slotted dataclass and register it: ``DecodeBatch`` belongs to rule ``decode_batch``."""
    made = dataclass(frozen=True, slots=True)(cls)
    made.rule = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
    RULES[made.rule] = made
    if issubclass(made, Call):
        made.call = made.rule
        CALLS[made.call] = made
    return made
