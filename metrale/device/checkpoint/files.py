"""Files of a model folder that somebody else wrote: bounded, regular, inside the folder."""

from __future__ import annotations

import json
import os
import reprlib
from pathlib import Path
from typing import Any

from ..errors import ModelError

MAX_JSON = 64 << 20

_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = 60


def folder(path: Path, what: str) -> Path:
    """``path`` if it is a directory."""
    try:
        found = path.is_dir()
    except OSError as error:
        raise ModelError(f"{str(path)[:200]}: {error.strerror}") from error
    if not found:
        raise ModelError(f"{path}: no such directory; {what} is a folder with config and safetensors files")
    return path


def regular(path: Path) -> Path:
    """``path`` if it is a regular file that may be read (never a pipe or a device, which could block for ever)."""
    try:
        if not path.exists():
            raise ModelError(f"{path}: no such file")
        if not path.is_file():
            raise ModelError(f"{path}: not a regular file")
        if not os.access(path, os.R_OK):
            raise ModelError(f"{path}: cannot be read (permission denied)")
    except OSError as error:
        raise ModelError(f"{str(path)[:200]}: {error.strerror}") from error
    return path


def plain_name(name: object, where: Path) -> str:
    """A file name that stays in its folder: no separator, no parent, not hidden."""
    if not isinstance(name, str) or not name or name.startswith(".") or any(c in name for c in "/\\:\0"):
        shown = shorten(name)
        raise ModelError(f"{where}: {shown} is not the name of a file in this folder; use plain file names")
    return name


def shorten(value: object) -> str:
    """A value out of a stranger's file as a message shows it: however deep or long, at most 60 characters."""
    return _SHOWN.repr(value)[:60]


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of at most 64 MiB."""
    size = regular(path).stat().st_size
    if size > MAX_JSON:
        raise ModelError(f"{path}: {size} bytes of JSON; at most {MAX_JSON} are read")
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not valid JSON ({str(error)[:120]})") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: a JSON object is expected, not {type(value).__name__}")
    return value
