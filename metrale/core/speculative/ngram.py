"""Stub."""

from __future__ import annotations

from ..state import State


def ngram_step(s: State) -> None:
    raise NotImplementedError
