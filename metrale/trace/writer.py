"""Records to text: ``format_record(read_line(text)) == text`` for every line of the language (S1 section 1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import cache
from operator import call
from typing import Any, NamedTuple

from .codecs import CODECS, write_token
from .language import Shape, shapes
from .records import RULES, Event, Fallible, Out, Record


class _Template(NamedTuple):
    text: str
    names: tuple[str, ...]
    writes: tuple[Callable[[Any], str], ...]


def _template(shape: Shape) -> _Template:
    names = [field.name for field in fields(RULES[shape.rule]) if field.name != "error"]  # type: ignore[arg-type]
    if shape.failed:
        names = [*names[: len(shape.values) - 1], "error"]
    return _Template(shape.template, tuple(names), tuple(CODECS[value].write for value in shape.values))


@cache
def _templates() -> dict[tuple[str, bool], _Template]:
    return {(rule, shape.failed): _template(shape) for rule, of_rule in shapes().items() for shape in of_rule}


def _format(node: Record | Event) -> str:
    if node.rule not in shapes():
        return write_token(node)
    failed = isinstance(node, Fallible) and node.error is not None
    text, names, writes = _templates()[node.rule, failed]
    return text % tuple(map(call, writes, (getattr(node, name) for name in names)))


def spell_fields(record: Record) -> dict[str, str]:
    """The printed text of every field that the record's line shows; empty for an ``out`` line."""
    template = _templates().get((record.rule, isinstance(record, Fallible) and record.error is not None))
    if template is None:
        return {}
    return {name: write(getattr(record, name)) for name, write in zip(template.names, template.writes, strict=True)}


def format_record(record: Record) -> str:
    """The one spelling of a record, without a line end."""
    if isinstance(record, Out):
        return f"out s{record.id}: {' '.join(map(_format, record.events))}"
    return _format(record)


def format_trace(records: Iterable[Record]) -> str:
    """A whole trace file: every record on its line, the last one ended too."""
    return "".join(f"{format_record(record)}\n" for record in records)
