"""Why a line is malformed: the column, what the grammar wants there, and the nearest valid call."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from .codecs import CODECS
from .language import literals, patterns, shapes
from .parser import LineError
from .records import RULES, Record

SILENT_CALLS = frozenset(
    {
        "alloc_host_pinned",
        "default_stream",
        "free_host_pinned",
        "high_speed_swap_dims",
        "num_total_blocks",
        "release_adapter_slot",
        "ssm_snapshot_occupancy",
        "supports_device_token_feed",
        "tokens_contain_vision_pad",
        "vocab_size",
    }
)
"""Calls of the device contract that write no line (S6 section 3)."""

_CLIP = 60  # characters of a line that may be its call's name
_FAR = 8  # edits that make a name another one
_MANY = 3  # alternatives that a message names one by one


class Diagnosis(NamedTuple):
    """``column`` counts from 1 and lies in the line or right behind it."""

    column: int
    expected: str
    found: str

    def __str__(self) -> str:
        return f"expected {self.expected}, found {self.found}"


def diagnose(error: LineError) -> Diagnosis:
    """Explain a refused line. Linear in its length."""
    line, start = error.line, error.position
    reaches = {name: _reach(name, line, start) for name in error.expected}
    end = max(reaches.values(), default=start)
    names = sorted(name for name, reach in reaches.items() if reach == end)
    expected = "a trace line" if start == end == 0 else _describe(names)
    found = f"`{line[end : end + 20]}`" if end < len(line) else "the end of the line"
    return Diagnosis(end + 1, expected, found)


def _describe(names: list[str]) -> str:
    """The terminals in words; many literals by what they have in common."""
    if len(names) > _MANY and all(name in literals() for name in names):
        first, last = min(map(literals().__getitem__, names)), max(map(literals().__getitem__, names))
        return f"`{first[: _literal(first)(last, 0)[1]]}...`"
    return " or ".join(sorted({_word(name) for name in names}))


def _word(name: str) -> str:
    if name in CODECS:
        return CODECS[name].text
    return f"`{literals()[name]}`" if name in literals() else "the end of the line"


# ---------------------------------------------------------------- how far a broken value goes

_Reader = Callable[[str, int], tuple[bool, int]]
"""Reads a value at an index; answers whether it is complete, and the index up to which it is right."""


def _literal(word: str) -> _Reader:
    def read(line: str, at: int) -> tuple[bool, int]:
        length = 0
        while length < len(word) and line[at + length : at + length + 1] == word[length]:
            length += 1
        return length == len(word), at + length

    return read


def _terminal(name: str) -> _Reader:
    def read(line: str, at: int) -> tuple[bool, int]:
        match = re.compile(patterns()[name]).match(line, at)
        return bool(match), match.end() if match else at

    return read


def _row(*parts: _Reader) -> _Reader:
    def read(line: str, at: int) -> tuple[bool, int]:
        for part in parts:
            done, at = part(line, at)
            if not done:
                return False, at
        return True, at

    return read


def _list(name: str, item: _Reader) -> _Reader:
    """For a list that Lark refused, so it breaks off somewhere."""

    def read(line: str, at: int) -> tuple[bool, int]:
        match = re.compile(patterns()[name].removesuffix(r"\]")).match(line, at)  # the items that are whole
        if match is None:
            return False, at
        end = match.end()
        done, end = _literal(", " if end > at + 1 else "")(line, end)
        return False, item(line, end)[1] if done else end

    return read


_NAT, _QUOTE = _terminal("NAT"), _literal('"')
_SEQ = _row(_literal("s"), _NAT, _literal("@"), _NAT, _literal(":len="), _NAT)
_SLICE = _row(_SEQ, _literal(" start="), _NAT, _literal(" len="), _NAT, _literal(" last="), _terminal("BOOL"))
_PARTS: dict[str, _Reader] = {
    "INTS": _list("INTS", _NAT),
    "LISTS": _list("LISTS", _list("INTS", _NAT)),
    "PAIRS": _list("PAIRS", _row(_literal("("), _NAT, _literal(", "), _NAT, _literal(")"))),
    "MASKS": _list("MASKS", _row(_literal("["), _NAT, _literal(", "), _NAT, _literal("]"))),
    "SEQ": _SEQ,
    "SEQS": _list("SEQS", _row(_QUOTE, _SEQ, _QUOTE)),
    "SLICE": _SLICE,
    "SLICES": _list("SLICES", _row(_QUOTE, _SLICE, _QUOTE)),
}


def _reach(name: str, line: str, start: int) -> int:
    """The index up to which the line at ``start`` agrees with terminal ``name``."""
    reader = _PARTS.get(name) or (_literal(literals()[name]) if name in literals() else None)
    return reader(line, start)[1] if reader else start


# ---------------------------------------------------------------- the nearest call


@cache
def _titles() -> dict[str, str]:
    """What a line can start with, and the signature that goes with it."""
    lines = [of_rule[0] for rule, of_rule in shapes().items() if issubclass(RULES[rule], Record)]
    signatures = {shape.texts[0]: shape.signature for shape in lines}
    signatures["out s"] = "out s<id>: <events>"
    return {re.split(r"[({]", text)[0]: signature for text, signature in signatures.items()}


def suggest(line: str) -> str | None:
    """The signature of the line's call, or the call whose name is nearest by edit distance."""
    title = re.split(r"[({]", line[:_CLIP], maxsplit=1)[0]
    if title in SILENT_CALLS:
        return f"{title} writes no trace line"
    for known, signature in _titles().items():
        if title == known or (known[-1:] in " s" and line.startswith(known)):
            return f"the line is {signature}"
    near = [(edit_distance(title, known), known) for known in _titles() if abs(len(known) - len(title)) <= _FAR]
    distance, nearest = min(near, default=(_FAR, ""))
    return f"did you mean {nearest.strip()}?" if distance <= min(_FAR, max(2, len(nearest) // 3)) else None


def edit_distance(a: str, b: str) -> int:
    """Levenshtein distance: single characters inserted, deleted or replaced."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]
