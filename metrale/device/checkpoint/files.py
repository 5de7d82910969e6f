"""Files of a model folder that somebody else wrote: bounded, regular, inside the folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import ModelError

MAX_JSON = 64 << 20


def folder(path: Path, what: str) -> Path:
    """``path`` if it is a directory."""
    if not path.is_dir():
        raise ModelError(f"{path}: no such directory; {what} is a folder with config and safetensors files")
    return path


def regular(path: Path) -> Path:
    """``path`` if it is a regular file (never a pipe or a device, which could block for ever)."""
    if not path.exists():
        raise ModelError(f"{path}: no such file")
    if not path.is_file():
        raise ModelError(f"{path}: not a regular file")
    return path


def plain_name(name: object, where: Path) -> str:
    """A file name that stays in its folder: no separator, no parent, not hidden."""
    if not isinstance(name, str) or not name or name.startswith(".") or any(c in name for c in "/\\:\0"):
        raise ModelError(f"{where}: {name!r} is not the name of a file in this folder; use plain file names")
    return name


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of at most 64 MiB."""
    size = regular(path).stat().st_size
    if size > MAX_JSON:
        raise ModelError(f"{path}: {size} bytes of JSON; at most {MAX_JSON} are read")
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: a JSON object is expected, not {type(value).__name__}")
    return value
