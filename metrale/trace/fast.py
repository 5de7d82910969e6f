"""The fast reader: the verdict and the records of Lark at the price of one regex match a line.

Every line but ``out`` has one of a finite number of shapes, which :mod:`.language` takes from the grammar itself. A
shape's regex is the grammar's literals and terminal regexes in a row, and no terminal can run on into the literal
behind it: so the regex matches a whole line exactly if Lark reads that line as that shape. A line is tried against
the few shapes that share its head (the call name). An ``out`` line is read event by event, with the same shapes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache, partial
from operator import call
from typing import Any, NamedTuple

from .codecs import CODECS
from .language import Shape, patterns, shapes
from .parser import parse_line
from .records import RULES, Event, Node, Out, Record

_HEAD = re.compile(r"[a-z0-9_]+(?=\()|fx [a-z]+ [A-Za-z]+|[^ ]+ ?")


class _Form(NamedTuple):
    """A shape made ready: ``build`` takes the groups of its match."""

    node: type[Node]
    pattern: re.Pattern[str]
    build: Callable[[Iterable[str]], Any]


def _form(shape: Shape) -> _Form:
    node = RULES[shape.rule]
    reads = [CODECS[value].read for value in shape.values]
    if not reads:
        build: Callable[[Iterable[str]], Node] = partial(_constant, node())
    elif shape.failed:
        build = partial(_build_failed, node, reads)
    else:
        build = partial(_build, node, reads)
    return _Form(node, shape.pattern, build)


def _constant(node: Node, _groups: Iterable[str]) -> Node:
    return node


def _build(node: Callable[..., Node], reads: list[Callable[[str], Any]], groups: Iterable[str]) -> Node:
    return node(*map(call, reads, groups))


def _build_failed(node: Callable[..., Node], reads: list[Callable[[str], Any]], groups: Iterable[str]) -> Node:
    *values, error = map(call, reads, groups)
    return node(*values, error=error)


class FastReader:
    """Reads lines without Lark; :meth:`read` and :meth:`kind` answer None for a line that is not of the language."""

    def __init__(self) -> None:
        self._forms: dict[str, list[_Form]] = {}
        self._events: list[_Form] = []
        self._answers: list[_Form] = []
        for rule, of_rule in shapes().items():
            forms = [_form(shape) for shape in of_rule]
            if rule in ("done", "error"):
                self._events += forms
            elif issubclass(RULES[rule], Event):
                self._answers += forms
            else:
                head = _HEAD.match(of_rule[0].texts[0])
                assert head is not None
                self._forms.setdefault(head[0], []).extend(forms)
        self._out = re.compile(f"out s({patterns()['NAT']}): ")
        self._tokens = re.compile(patterns()["TOKENS"])

    def read(self, line: str) -> Record | None:
        """The record of one line without its line end."""
        head = _HEAD.match(line)
        if head is None:
            return None
        for _, pattern, build in self._forms.get(head[0], ()):
            match = pattern.fullmatch(line)
            if match:
                record: Record = build(match.groups())
                return record
        return self._read_out(line) if head[0] == "out " else None

    def kind(self, line: str) -> type[Record] | None:
        """The class of the line's record, which is not built: the cheaper question."""
        head = _HEAD.match(line)
        if head is None:
            return None
        for node, pattern, _ in self._forms.get(head[0], ()):
            if pattern.fullmatch(line):
                assert issubclass(node, Record)
                return node
        return Out if head[0] == "out " and self._read_out(line) else None

    def _read_out(self, line: str) -> Out | None:
        start = self._out.match(line)
        if start is None:
            return None
        request, at = int(start[1]), start.end()
        if at == len(line):
            return Out(request, ())
        for _, pattern, build in self._answers:
            match = pattern.fullmatch(line, at)
            if match:
                return Out(request, (build(match.groups()),))
        events = self._read_events(line, at)
        return None if events is None else Out(request, events)

    def _read_events(self, line: str, at: int) -> tuple[Event, ...] | None:
        events: list[Event] = []
        while True:
            match = self._tokens.match(line, at)
            if match:
                events += CODECS["TOKENS"].read(match[0])
            else:
                for _, pattern, build in self._events:
                    match = pattern.match(line, at)
                    if match:
                        events.append(build(match.groups()))
                        break
                else:
                    return None
            at = match.end()
            if at == len(line):
                return tuple(events)
            if line[at] != " ":
                return None
            at += 1


@cache
def fast_reader() -> FastReader:
    """The one reader of this process; it holds no state of the lines that it read."""
    return FastReader()


def read_line(line: str) -> Record:
    """Read one line without its line end, fast if it is well formed. Raises :class:`.parser.LineError`."""
    return fast_reader().read(line) or parse_line(line)
