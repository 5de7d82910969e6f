"""Files as the commands meet them: inputs that may be anything, outputs that appear whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from metrale.cli.errors import BadInput


def read_input(path: Path, what: str) -> bytes:
    """The bytes of a text file that the user named; ``what`` says in the error what the file should be.

    Raises BadInput if it is missing, a folder, unreadable, empty or binary.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInput(unreadable(path, what, error)) from error
    if not data.strip():
        raise BadInput(f"{path}: the file is empty; expected {what}")
    if b"\0" in data:
        raise BadInput(f"{path}: not a text file (NUL byte at offset {data.index(0)}); expected {what}")
    return data


def unreadable(path: Path, what: str, error: OSError) -> str:
    """One line on why ``path`` cannot be read."""
    if isinstance(error, FileNotFoundError):
        return f"{path}: no such file; expected {what}"
    if isinstance(error, IsADirectoryError):
        return f"{path}: is a folder; expected {what}"
    return f"{path}: cannot be read: {error.strerror or error}"


def write_whole(path: Path, data: bytes) -> None:
    """Write ``data`` beside ``path`` and move it there, so that no reader ever sees a part. Raises BadInput."""
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise BadInput(f"{path}: cannot be written: {error.strerror or error}") from error


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
