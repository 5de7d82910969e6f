"""Reports on a comparison or on one trace: terminal, plain text, Markdown, JSON, one HTML page, Chrome trace format."""

from .document import SCHEMA, comparison_document
from .markdown import markdown_report
from .outline import headline, verdict
from .text import plain_report, print_report, short_report

__all__ = [
    "SCHEMA",
    "comparison_document",
    "headline",
    "markdown_report",
    "plain_report",
    "print_report",
    "short_report",
    "verdict",
]
