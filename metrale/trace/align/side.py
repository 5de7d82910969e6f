"""One of the two traces: its lines as text, their numbers in the file, their records on demand."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..diff import MARKS, mark_differences, trace_lines
from ..fast import fast_reader
from ..records import Record

_ODD = (b" \n", b"\t\n", b"\r\n", b"\n\n")
"""Line ends that need a closer look."""

_ECHOES = ("decode_marconi_checkpoint(", "commit_ctx(", "fx apply MarconiCheckpoint")


class Reading(dict[str, Record | None]):
    """Records by text, read once; None for a line that is not of the language."""

    def __missing__(self, text: str) -> Record | None:
        read = fast_reader().read
        record = self[text] = read(text) or read(f"{text} ")
        return record


@dataclass(slots=True)
class Side:
    """A trace without what only its bytes show: no blanks at line ends, no empty lines, LF."""

    name: str
    texts: list[str]
    numbers: list[int]
    marks: dict[str, int] = field(default_factory=dict)
    reading: Reading = field(default_factory=Reading)

    def record(self, index: int) -> Record | None:
        """The record of one line."""
        return self.reading[self.texts[index]]

    def records(self, start: int, stop: int) -> Iterator[Record | None]:
        """The records of some lines."""
        return map(self.reading.__getitem__, self.texts[start:stop])

    def moving(self, start: int, stop: int) -> Iterator[Record | None]:
        """The records of some lines without those that only repeat how long a sequence is after its forward."""
        return map(self.reading.__getitem__, [text for text in self.texts[start:stop] if not text.startswith(_ECHOES)])

    def number(self, index: int) -> int | None:
        """The 1-based line number in the file; None behind the end."""
        return self.numbers[index] if index < len(self.numbers) else None


def load_side(name: str, data: bytes, reading: Reading) -> Side:
    """Cut a file into lines; any bytes will do."""
    plain = data.endswith(b"\n") and not data.startswith((BOM_UTF8, b"\n"))
    if plain and not any(end in data for end in _ODD):
        texts = data.decode("utf-8", "backslashreplace").split("\n")[:-1]
        return Side(name, texts, list(range(1, len(texts) + 1)), dict.fromkeys(MARKS, 0), reading)
    lines = trace_lines(data)
    return Side(name, lines.texts, lines.numbers, lines.marks, reading)


def byte_marks(a: Side, b: Side) -> tuple[str, ...]:
    """How the bytes of two traces differ beyond their lines."""
    return tuple(mark_differences((a.name, b.name), a.marks, b.marks))
