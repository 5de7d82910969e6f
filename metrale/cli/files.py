"""Files as the commands meet them: inputs that may be anything, outputs that appear whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from metrale.cli.errors import BadInput

MAX_BYTES = 1 << 30
"""The largest trace that is read into memory."""

_BLOCK = 1 << 20


class NotAFile(OSError):
    """A FIFO, a device or a socket, where only a regular file will do."""


def read_input(path: Path, what: str, *, regular: bool = False) -> bytes:
    """The bytes of a text file that the user named; ``what`` says in the error what the file should be.

    A stream (a FIFO, a device) is read as well, unless ``regular``. Raises BadInput if it is missing, a folder,
    unreadable, empty, binary or without end.
    """
    try:
        data = read_regular(path) if regular else _read_any(path)
    except OSError as error:
        raise BadInput(unreadable(path, what, error)) from error
    if not data.strip():
        raise BadInput(f"{path}: the file is empty; expected {what}")
    if b"\0" in data:
        raise BadInput(f"{path}: not a text file (NUL byte at offset {data.index(0)}); expected {what}")
    return data


def read_regular(path: Path) -> bytes:
    """The bytes of a regular file; never waits. Raises OSError, NotAFile for anything else."""
    with open(path, "rb", opener=_open_at_once) as stream:
        mode = os.fstat(stream.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise NotAFile(0, f"is {_kind(mode)}")
        data = stream.read(MAX_BYTES + 1)
    return _bounded(data)


def _read_any(path: Path) -> bytes:
    """The bytes of a file or a stream, up to the block with the first NUL byte."""
    blocks: list[bytes] = []
    size = 0
    with open(path, "rb") as stream:
        while size <= MAX_BYTES and (block := stream.read(_BLOCK)):
            blocks.append(block)
            size += len(block)
            if b"\0" in block:
                break
    return _bounded(b"".join(blocks))


def _bounded(data: bytes) -> bytes:
    if len(data) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"larger than {MAX_BYTES >> 20} MiB")
    return data


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISFIFO, "a FIFO"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"))
    return next((name for test, name in kinds if test(mode)), "no regular file")


def unreadable(path: Path, what: str, error: OSError) -> str:
    """One line on why ``path`` cannot be read."""
    if isinstance(error, NotAFile):
        return f"{path}: {error.strerror}; expected {what}"
    if broken := broken_link(path):
        return f"{path}: {broken}; expected {what}"
    if isinstance(error, FileNotFoundError):
        return f"{path}: no such file; expected {what}"
    if isinstance(error, IsADirectoryError):
        return f"{path}: is a folder; expected {what}"
    return f"{path}: cannot be read: {error.strerror or error}"


def broken_link(path: Path) -> str:
    """What is wrong with a symlink that leads nowhere; empty for anything else."""
    if not path.is_symlink():
        return ""
    try:
        path.stat()
    except FileNotFoundError:
        return f"is a symlink to {os.readlink(path)}, which does not exist"
    except OSError as error:
        return "is a symlink in a loop of symlinks" if error.errno == errno.ELOOP else ""
    return ""


# -- outputs ----------------------------------------------------------------------------------------------------------


class Outputs:
    """The files that one command writes: none of its inputs, no golden, no scenario that somebody wrote.

    A command claims each output before it starts to work, so that a refusal costs nothing.
    """

    def __init__(self, *inputs: Path) -> None:
        self._inputs = list(inputs)
        self._claimed: list[Path] = []

    def claim(self, path: Path, *, golden_of: Path | None = None, own: bool = False) -> Path:
        """``path``, if this command may write it. Raises BadInput.

        ``golden_of`` is the scenario whose trace it writes, and whose golden it may therefore replace (not in CI);
        ``own`` says that the name is one that the command gives its files, so a scenario there may be replaced.
        """
        for others, what in ((self._inputs, "an input"), (self._claimed, "an output")):
            if any(_same(path, other) for other in others):
                raise BadInput(f"{path}: is {what} of this command as well; name another file to write")
        place = _place(path)
        if place.name.endswith(".trace") and os.path.lexists(place.with_suffix(".toml")):
            _refuse_golden(path, place.with_suffix(".toml"), golden_of)
        if place.name.endswith(".trace.pending"):
            raise BadInput(f"{path}: is a pending trace, which `metrale check` writes; name another file to write")
        if place.suffix == ".toml" and os.path.lexists(place) and not own:
            raise BadInput(f"{path}: is there already, and a scenario is never overwritten; name another file to write")
        self._claimed.append(path)
        return path


def _refuse_golden(path: Path, scenario: Path, golden_of: Path | None) -> None:
    if golden_of is None or not _same(golden_of, scenario):
        raise BadInput(
            f"{path}: is the golden of {scenario.name}, which only `metrale accept` and `metrale run` of that scenario "
            "write; name another file to write"
        )
    if in_ci():
        raise BadInput(f"{path}: is the golden of {golden_of}, and in CI (CI is set) nothing writes a golden")


def _place(path: Path) -> Path:
    """Where a file of this name lies: links in its folder resolved, the file itself not, for it would be replaced."""
    return Path(os.path.realpath(path.parent), path.name)


def _same(one: Path, other: Path) -> bool:
    if os.path.realpath(one) == os.path.realpath(other):
        return True
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def write_whole(path: Path, data: bytes) -> None:
    """Write ``data`` beside ``path`` and move it there, so that no reader ever sees a part. Raises BadInput.

    A symlink is replaced, not followed. A device or a FIFO is written to and stays what it is.
    """
    temporary = None
    try:
        if _is_stream(path):
            path.write_bytes(data)
            return
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise BadInput(f"{path}: cannot be written: {error.strerror or error}") from error


def _is_stream(path: Path) -> bool:
    """A device, a FIFO, or a name of an open stream (/dev/stdout), whatever lies behind it."""
    if Path(os.path.abspath(path)).parts[:2] in (("/", "dev"), ("/", "proc")):
        return path.exists() and not path.is_dir()
    return path.exists() and not (path.is_file() or path.is_dir())


def make_folder(path: Path) -> None:
    """The folder for outputs, with those above it. Raises BadInput."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{path}: cannot be made: {error.strerror or error}") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def in_ci(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this is a CI run, in which nothing writes a golden: CI is set and not to 0, false, no or off."""
    return environment.get("CI", "").strip().lower() not in ("", "0", "false", "no", "off")


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    click.echo(json.dumps(value, indent=2))
