"""Every single-line change of a good log: how many are noticed, and that no nonsense makes a checker fall over."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from metrale.sim.fuzz.prng import Stream
from metrale.sim.invariants import check_records
from metrale.trace import read_trace
from metrale.trace.fast import fast_reader
from metrale.trace.records import Record

GOLDEN = Path(__file__).resolve().parents[3] / "golden"
NAMES = ("preempt_requeue", "batched_mixed", "spill_swap_out_in", "verify_k2", "batched_verify_k4", "async_early_stops")
NUMBER = re.compile(r"(?<![A-Za-z0-9])\d+|(?<=[s@TL=:])\d+|0x[0-9a-f]+|true|false")


def changed(text: str) -> str:
    """Another value of the same kind."""
    if text in ("true", "false"):
        return "false" if text == "true" else "true"
    return hex(int(text, 16) + 1) if text.startswith("0x") else str(int(text) + 1)


def single_changes(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Each line but the header dropped, doubled, exchanged with the next, and each of its numbers changed."""
    for index in range(1, len(lines)):
        before, line, after = lines[:index], lines[index], lines[index + 1 :]
        yield "drop", before + after
        yield "double", [*before, line, line, *after]
        if after and after[0] != line and not line.startswith("out "):
            yield "exchange", [*before, after[0], line, *after[1:]]
        for match in NUMBER.finditer(line):
            other = line[: match.start()] + changed(match[0]) + line[match.end() :]
            yield "number", [*before, other, *after]


def records_of(lines: list[str]) -> list[tuple[int, Record]] | None:
    """The records, or None if a line is none of the language."""
    read = fast_reader().read
    records = [(number, read(line)) for number, line in enumerate(lines, 1)]
    return None if any(record is None for _, record in records) else records  # type: ignore[return-value]


def test_nearly_every_single_change_is_noticed() -> None:
    """What is not: docs/invariants.md lists it."""
    seen: Counter[str] = Counter()
    noticed: Counter[str] = Counter()
    for name in NAMES:
        lines = [line.text for line in read_trace(GOLDEN / f"{name}.trace").lines]
        draw = Stream(1, name)
        for kind, bad in single_changes(lines):
            records = records_of(bad) if draw.one_in(8) else None
            if records is not None:
                seen[kind] += 1
                noticed[kind] += bool(check_records(records))
    assert sum(seen.values()) > 600
    for kind, least in (("drop", 0.98), ("double", 0.98), ("exchange", 0.97), ("number", 0.95)):
        assert noticed[kind] >= least * seen[kind], (kind, noticed[kind], seen[kind])


@pytest.mark.parametrize("name", NAMES)
def test_nonsense_is_reported_and_never_crashes(name: str) -> None:
    lines = [line.text for line in read_trace(GOLDEN / f"{name}.trace").lines]
    for round_ in range(25):
        draw = Stream(round_, f"nonsense/{name}")
        bad = list(lines)
        for _ in range(draw.between(2, 40)):
            index = draw.below(len(bad))
            match draw.below(4):
                case 0:
                    bad.pop(index)
                case 1:
                    bad.insert(index, draw.pick(lines))
                case 2:
                    other = draw.below(len(bad))
                    bad[index], bad[other] = bad[other], bad[index]
                case _:
                    bad[index] = NUMBER.sub(lambda found: changed(found[0]), bad[index], count=1)
        records = records_of(bad)
        if records is not None:
            assert check_records(records)


def test_an_empty_log_is_reported() -> None:
    assert {found.invariant for found in check_records([])} == {"ticks"}
