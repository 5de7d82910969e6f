"""The trace language: grammar, typed records, writer, readers, linting, first differences."""

from . import records
from .diff import TraceDiff, diff_traces
from .fast import read_line
from .lint import LintReport, lint_grammar
from .parser import LineError, parse_line
from .problems import Problem
from .reader import Line, TickBlock, TraceError, TraceFile, TraceScan, read_trace
from .values import Readback, SeqId, Slice
from .writer import format_record, format_trace

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
