"""tokenizer.json: text to ids and back, also piece by piece for a stream."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as RawTokenizer

from ..errors import ModelError
from .files import MAX_JSON, regular

REPLACEMENT = "\ufffd"
BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
MAX_GROWTH = 1 << 10
"""How many times longer a tokenizer's replacements may make a text before it is cut into tokens."""


@contextmanager
def _panics(what: str) -> Iterator[None]:
    """The library meets bad files with panics: they are no Exception, and print to standard error by themselves."""
    with _muted():
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            raise ModelError(f"{what} ({' '.join(str(error).split())[:120]})") from error


@contextmanager
def _muted() -> Iterator[None]:
    """Nothing reaches standard error, whoever writes."""
    try:
        kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    except OSError:
        yield
        return
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


class Tokenizer:
    """A tokenizer whose ids stay below the model's vocabulary. ``where`` is its file."""

    def __init__(self, raw: RawTokenizer, vocab_size: int, where: Path) -> None:
        self.raw = raw
        self.vocab_size = vocab_size
        self.where = where

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``, with the special tokens the tokenizer adds. Raises ModelError, also for an id without a
        row."""
        with _panics(f"{self.where}: fails on this text"):
            ids = self.raw.encode(text).ids
        bad = [i for i in ids if i >= self.vocab_size]
        if bad:
            raise ModelError(f"{self.where}: gives id {bad[0]}, but the model's vocabulary has {self.vocab_size}")
        return list(ids)

    def decode(self, ids: list[int]) -> str:
        """Text of ``ids`` without special tokens. Raises ModelError."""
        with _panics(f"{self.where}: fails on these ids"):
            return self.raw.decode(ids)


class TextStream:
    """Turns tokens into text as they come, such that the pieces add up to the text of all tokens at once.

    Text depends on the tokens before it, so a window of ids is decoded anew with each token. It begins at an id that
    has a text of its own: a space that a decoder drops at the start of a text is then never one of the new text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.ids: list[int] = []
        self._from = 0
        self._shown = ""

    def push(self, token: int) -> str:
        """The text that ``token`` completes. A character whose bytes are not all there waits; so do single-byte tokens,
        whose text is known at the end of their run, and a token that has no text alone."""
        self.ids.append(token)
        alone = self.tokenizer.decode([token])
        if not alone or BYTE.fullmatch(self.tokenizer.raw.id_to_token(token) or ""):
            return ""
        text = self.tokenizer.decode(self.ids[self._from :])
        sure = text.removesuffix(REPLACEMENT)
        new = sure[len(self._shown) :]
        if sure == text:
            self._from, self._shown = len(self.ids) - 1, alone
        else:
            self._shown = max(self._shown, sure, key=len)
        return new

    def flush(self) -> str:
        """What still waits."""
        return self.tokenizer.decode(self.ids[self._from :])[len(self._shown) :]


def load_tokenizer(path: Path, vocab_size: int) -> Tokenizer:
    """The tokenizer of a model folder. It neither pads nor cuts, whatever its file says. Raises ModelError."""
    file = regular(path / "tokenizer.json")
    if file.stat().st_size > MAX_JSON:
        raise ModelError(f"{file}: larger than {MAX_JSON} bytes")
    with _panics(f"{file}: not a readable tokenizer"):
        text = file.read_text(encoding="utf-8")
        raw = RawTokenizer.from_str(text)
        raw.no_padding()
        raw.no_truncation()
        growth = _growth(json.loads(text).get("normalizer"))
    if growth > MAX_GROWTH:
        raise ModelError(f"{file}: its normalizer makes a text {growth} times longer; at most {MAX_GROWTH} times")
    return Tokenizer(raw, vocab_size, file)


def _growth(normalizer: Any) -> int:
    """How many times longer replacements, one after the other, can make a text."""
    if not isinstance(normalizer, dict):
        return 1
    if normalizer.get("type") == "Sequence":
        total = 1
        for part in normalizer.get("normalizers") or []:
            total *= _growth(part)
        return total
    if normalizer.get("type") != "Replace":
        return 1
    length = len(normalizer.get("content") or "")
    return max(1, length) if normalizer.get("pattern", {}).get("String") else 1 + length
