"""The trace language: grammar, typed records, writer, readers, linting, first differences.

Names load their modules when they are first used, so that the call log (:mod:`.recording`) needs no parser.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import records
    from .diff import TraceDiff, diff_traces
    from .fast import read_line
    from .lint import LintReport, lint_grammar
    from .parser import LineError, parse_line
    from .problems import Problem
    from .reader import Line, TickBlock, TraceError, TraceFile, TraceScan, read_trace
    from .values import Readback, SeqId, Slice
    from .writer import format_record, format_trace

_HOMES = {
    "Line": "reader",
    "LineError": "parser",
    "LintReport": "lint",
    "Problem": "problems",
    "Readback": "values",
    "SeqId": "values",
    "Slice": "values",
    "TickBlock": "reader",
    "TraceDiff": "diff",
    "TraceError": "reader",
    "TraceFile": "reader",
    "TraceScan": "reader",
    "diff_traces": "diff",
    "format_record": "writer",
    "format_trace": "writer",
    "lint_grammar": "lint",
    "parse_line": "parser",
    "read_line": "fast",
    "read_trace": "reader",
}
"""Where each name is defined."""


def __getattr__(name: str) -> object:
    if name == "records":
        return import_module(f"{__name__}.records")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


__all__ = [
    "Line",
    "LineError",
    "LintReport",
    "Problem",
    "Readback",
    "SeqId",
    "Slice",
    "TickBlock",
    "TraceDiff",
    "TraceError",
    "TraceFile",
    "TraceScan",
    "diff_traces",
    "format_record",
    "format_trace",
    "lint_grammar",
    "parse_line",
    "read_line",
    "read_trace",
    "records",
]
