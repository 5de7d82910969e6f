"""Spill files on disk (S5 section 2.9)."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import BinaryIO


class SpillWriter:
    """A file being written; ``room`` bounds its bytes (None: no bound)."""

    def __init__(self, path: Path, room: int | None) -> None:
        self._file = path.open("wb")
        self._room = room

    def write(self, data: bytes) -> int:
        """Append; a full store raises OSError and writes nothing of ``data``."""
        if self._room is not None:
            if len(data) > self._room:
                raise OSError(errno.ENOSPC, "the spill store is full")
            self._room -= len(data)
        return self._file.write(data)

    def close(self) -> None:
        """Flush and close; closing twice is harmless."""
        self._file.close()


class FileSpillStore:
    """``swap_<id>.bin`` files in a directory of its own. Ids count up from 0 and are never reused.

    ``capacity`` in bytes is what :meth:`fits` answers for and, with ``enforce``, what writers keep to. Leftovers of an
    earlier run are deleted at the start, our own files and the directory (if empty) at the end.
    """

    def __init__(self, directory: Path, capacity: int, enforce: bool = False) -> None:
        self.directory = directory
        self.capacity = capacity
        self.enforce = enforce
        self.used = 0
        self._sizes: dict[int, int] = {}
        self._next = 0
        directory.mkdir(parents=True, exist_ok=True)
        for stale in sorted(directory.glob("swap_*")):
            stale.unlink()

    def path(self, file_id: int) -> Path:
        """Where a file lies."""
        return self.directory / f"swap_{file_id}.bin"

    def fits(self, nbytes: int) -> bool:
        """Whether so many more bytes stay within the capacity."""
        return self.used + nbytes <= self.capacity

    def create(self) -> tuple[int, BinaryIO]:
        """A new file."""
        file_id = self._next
        self._next += 1
        room = max(0, self.capacity - self.used) if self.enforce else None
        writer = SpillWriter(self.path(file_id), room)
        self._sizes[file_id] = 0
        return file_id, writer  # type: ignore[return-value]

    def record_usage(self, file_id: int) -> None:
        """Enter a closed file's size."""
        size = self.path(file_id).stat().st_size
        self.used += size - self._sizes[file_id]
        self._sizes[file_id] = size

    def open(self, file_id: int) -> BinaryIO:
        """A reader."""
        return self.path(file_id).open("rb")

    def remove(self, file_id: int) -> None:
        """Delete a file; unknown ids raise OSError."""
        self.path(file_id).unlink()
        self.used -= self._sizes.pop(file_id, 0)

    def close(self) -> None:
        """Delete our own files, and the directory unless somebody else's file lies in it."""
        for file_id in list(self._sizes):
            self.path(file_id).unlink(missing_ok=True)
        self._sizes.clear()
        self.used = 0
        if self.directory.is_dir() and not any(self.directory.iterdir()):
            self.directory.rmdir()
