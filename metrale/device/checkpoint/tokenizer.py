"""tokenizer.json: text to ids and back, also piece by piece for a stream."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer as RawTokenizer

from ..errors import ModelError
from .files import MAX_JSON, regular

REPLACEMENT = "\ufffd"


class Tokenizer:
    """A tokenizer whose ids stay below the model's vocabulary."""

    def __init__(self, raw: RawTokenizer, vocab_size: int) -> None:
        self.raw = raw
        self.vocab_size = vocab_size

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``, with the special tokens the tokenizer adds. Raises ModelError for an id without a row."""
        ids = self.raw.encode(text).ids
        bad = [i for i in ids if i >= self.vocab_size]
        if bad:
            raise ModelError(f"tokenizer.json gives id {bad[0]}, but the model's vocabulary has {self.vocab_size}")
        return list(ids)

    def decode(self, ids: list[int]) -> str:
        """Text of ``ids`` without special tokens."""
        return self.raw.decode(ids)


class TextStream:
    """Turns tokens into text as they come: characters whose bytes are not all there yet wait."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.ids: list[int] = []
        self._from = 0
        self._shown = ""

    def push(self, token: int) -> str:
        """The text that ``token`` completes."""
        self.ids.append(token)
        text = self.tokenizer.decode(self.ids[self._from :])
        if text.endswith(REPLACEMENT) and len(self.ids) - self._from < 32:
            return ""
        new = text[len(self._shown) :]
        self._from, self._shown = len(self.ids) - 1, self.tokenizer.decode(self.ids[-1:])
        return new

    def flush(self) -> str:
        """What still waits."""
        return self.tokenizer.decode(self.ids[self._from :])[len(self._shown) :]


def load_tokenizer(path: Path, vocab_size: int) -> Tokenizer:
    """The tokenizer of a model folder. Raises ModelError."""
    file = regular(path / "tokenizer.json")
    if file.stat().st_size > MAX_JSON:
        raise ModelError(f"{file}: larger than {MAX_JSON} bytes")
    try:
        raw = RawTokenizer.from_str(file.read_text(encoding="utf-8"))
    except BaseException as error:
        # The library reports bad files by its own panics, which do not derive from Exception.
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise ModelError(f"{file}: not a readable tokenizer ({str(error)[:120]})") from error
    return Tokenizer(raw, vocab_size)
