"""The loaded grammar: the Lark parser, and each rule as the plain shapes that its lines can have."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from pathlib import Path

from lark import Lark
from lark.grammar import Symbol
from lark.lexer import PatternRE, PatternStr, TerminalDef

from .codecs import CODECS

OPEN_RULES = frozenset({"line", "out"})
"""Rules that are no finite choice of shapes: the start rule, and a stream of any number of events."""


@dataclass(frozen=True)
class Shape:
    """One form of a rule's text: literals with value terminals between them, ``len(texts) == len(values) + 1``."""

    rule: str
    texts: tuple[str, ...]
    values: tuple[str, ...]

    @property
    def failed(self) -> bool:
        """Whether this is the form of a call that ended in an error."""
        return self.values[-1:] == ("ERROR",)

    @cached_property
    def template(self) -> str:
        """The text with ``%s`` for each value."""
        return "%s".join(text.replace("%", "%%") for text in self.texts)

    @property
    def signature(self) -> str:
        """The text with a placeholder for each value, for messages."""
        return self.template % tuple(CODECS[value].sign for value in self.values)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """A regex with one group per value; it fully matches exactly the texts of this shape."""
        terminals = patterns()
        groups = [f"({terminals[value]})" for value in self.values]
        pieces = [re.escape(text) + group for text, group in zip(self.texts, [*groups, ""], strict=True)]
        return re.compile("".join(pieces))


@cache
def grammar() -> Lark:
    """The parser for one line (LALR; start rule ``line``)."""
    text = Path(__file__).with_name("grammar.lark").read_text(encoding="utf-8")
    return Lark(text, parser="lalr", lexer="contextual", start="line", edit_terminals=_never_back)


def _never_back(terminal: TerminalDef) -> None:
    """Make a terminal's list repetition possessive: same language, but a list of a million needs no stack."""
    pattern = terminal.pattern
    if isinstance(pattern, PatternRE):
        terminal.pattern = PatternRE(pattern.value.replace(")*", ")*+"), pattern.flags)


@cache
def patterns() -> dict[str, str]:
    """The regex of every value terminal."""
    return {terminal.name: terminal.pattern.to_regexp() for terminal in grammar().terminals if terminal.name in CODECS}


@cache
def literals() -> dict[str, str]:
    """The text of every literal, by the name that Lark gave it."""
    terminals = grammar().terminals
    return {terminal.name: terminal.pattern.value for terminal in terminals if isinstance(terminal.pattern, PatternStr)}


@cache
def shapes() -> dict[str, tuple[Shape, ...]]:
    """All shapes of every rule but :data:`OPEN_RULES`; a form that succeeds comes before one that failed."""
    choices: dict[str, list[Sequence[Symbol]]] = {}
    for rule in grammar().rules:
        choices.setdefault(str(rule.origin.name), []).append(rule.expansion)

    def spell(symbols: Sequence[Symbol]) -> Iterator[tuple[str, ...]]:
        """Every sequence of terminal names that ``symbols`` stand for."""
        options = [[(s.name,)] if s.is_term else [t for c in choices[s.name] for t in spell(c)] for s in symbols]
        for combination in product(*options):
            yield tuple(name for names in combination for name in names)

    def shape(rule: str, names: Sequence[str]) -> Shape:
        texts, values = [""], []
        for name in names:
            if name in CODECS:
                values.append(name)
                texts.append("")
            else:
                texts[-1] += literals()[name]
        return Shape(rule, tuple(texts), tuple(values))

    named = [name for name in choices if not name.startswith("_") and name not in OPEN_RULES]
    forms = {name: [shape(name, names) for c in choices[name] for names in spell(c)] for name in named}
    return {name: tuple(sorted(of_rule, key=lambda s: s.failed)) for name, of_rule in forms.items()}
