"""A scenario's tables as the text of a scenario file, in the order of the specification."""

from __future__ import annotations

import json
from typing import Any

ORDER = ("id", "prompt_len", "prompt", "tokens")


def scenario_toml(tables: dict[str, Any]) -> str:
    """TOML for ``name``, ``about``, ``[device]``, ``[scheduler]`` and each ``[[request]]``; empty tables left out."""
    lines = [f"name = {_value(tables['name'])}"]
    if tables.get("about"):
        lines.append(f"about = {_value(tables['about'])}")
    for name in ("device", "scheduler"):
        if tables.get(name):
            lines += ["", f"[{name}]", *_pairs(tables[name])]
    for request in tables.get("request", ()):
        lines += ["", "[[request]]", *_pairs(request)]
    return "\n".join(lines) + "\n"


def _pairs(table: dict[str, Any]) -> list[str]:
    keys = [key for key in ORDER if key in table] + [key for key in table if key not in ORDER]
    return [f"{key} = {_value(table[key])}" for key in keys]


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)
