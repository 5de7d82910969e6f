"""Traces as the report commands take them: any log of which at least one line is of the trace language."""

from __future__ import annotations

from pathlib import Path

from metrale.cli.errors import BadInput
from metrale.cli.files import read_input
from metrale.trace.align import Comparison, compare
from metrale.trace.align.side import Reading, load_side


def read_log(path: Path) -> bytes:
    """The bytes of a trace or of a damaged one. Raises BadInput for what is no trace at all."""
    data = read_input(path, "a trace")
    side = load_side(str(path), data, Reading())
    if all(record is None for record in side.records(0, len(side.texts))):
        raise BadInput(f"{path}: no line of the file belongs to a trace; `metrale lint {path}` says more")
    return data


def compare_files(a: Path, b: Path) -> Comparison:
    """The comparison of two trace files. Raises BadInput."""
    return compare(read_log(a), read_log(b), (str(a), str(b)))
