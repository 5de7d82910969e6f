"""The reference reader: one line through Lark (S1 section 1)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

from lark import Token, Tree
from lark.exceptions import UnexpectedInput

from .codecs import CODECS
from .language import grammar
from .records import RULES, Node, Out, Record


class LineError(ValueError):
    """A line that the grammar refuses.

    ``line`` is the text, ``position`` the 0-based index at which Lark stopped, ``expected`` the names of the
    terminals that may stand there (``$END`` for the end of the line). What to tell a reader: :mod:`.diagnose`.
    """

    def __init__(self, line: str, position: int, expected: frozenset[str]) -> None:
        super().__init__(f"not a trace line (column {position + 1})")
        self.line = line
        self.position = position
        self.expected = expected


def parse_line(line: str) -> Record:
    """Parse one line without its line end. Raises :class:`LineError`."""
    try:
        tree = grammar().parse(line)
    except UnexpectedInput as error:
        token = getattr(error, "token", None)
        at_end = token is not None and token.type == "$END"
        position = len(line) if at_end or error.pos_in_stream is None else error.pos_in_stream
        expected = getattr(error, "expected", None) or getattr(error, "allowed", None) or ()
        raise LineError(line, position, frozenset(str(name) for name in expected)) from None
    record = _build(tree.children[0])
    assert isinstance(record, Record)
    return record


def _build(tree: Tree[Token] | Token) -> Node:
    assert isinstance(tree, Tree)
    rule, parts = str(tree.data), tree.children
    values: list[Any] = [CODECS[part.type].read(part) if isinstance(part, Token) else (_build(part),) for part in parts]
    if rule == "out":
        return Out(values[0], tuple(chain.from_iterable(values[1:])))
    node: Callable[..., Node] = RULES[rule]
    failed = bool(parts) and isinstance(parts[-1], Token) and parts[-1].type == "ERROR"
    return node(*values[:-1], error=values[-1]) if failed else node(*values)
