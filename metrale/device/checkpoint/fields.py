"""Typed, bounded look-ups in an untrusted JSON object."""

from __future__ import annotations

from typing import Any

from ..errors import ModelError
from .files import shorten


class Fields:
    """One JSON object and where it stands; every getter raises ModelError with the key and what is allowed."""

    def __init__(self, values: dict[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def fail(self, key: str, allowed: str) -> ModelError:
        """The error for ``key``."""
        return ModelError(f"{self.where}: {key[:60]} = {shorten(self.values.get(key))}; allowed: {allowed}")

    def has(self, key: str) -> bool:
        """Whether ``key`` is there and not null."""
        return self.values.get(key) is not None

    def whole(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number from ``low`` to ``high``."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.fail(key, f"a whole number from {low} to {high}")
        return value

    def real(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """A number from ``low`` to ``high``."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.fail(key, f"a number from {low} to {high}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """true or false."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fail(key, "true or false")
        return value

    def word(self, key: str, choices: tuple[str, ...], default: str | None = None) -> str:
        """One of ``choices``."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if value not in choices or not isinstance(value, str):
            raise self.fail(key, ", ".join(choices))
        return value

    def wholes(self, key: str, low: int, high: int) -> tuple[int, ...]:
        """A list of whole numbers, one bare number, or nothing."""
        value = self.values.get(key)
        items = [] if value is None else value if isinstance(value, list) else [value]
        if any(isinstance(v, bool) or not isinstance(v, int) or not low <= v <= high for v in items):
            raise self.fail(key, f"whole numbers from {low} to {high}")
        return tuple(items)

    def inner(self, key: str) -> Fields | None:
        """The object under ``key``, or None."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.fail(key, "an object")
        return Fields(value, f"{self.where}: {key}")
