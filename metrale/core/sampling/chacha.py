"""The seeded generator of a draw: ChaCha12 keyed from a 64-bit seed through PCG32 (S3 section 5.5)."""

from __future__ import annotations

from functools import lru_cache

_MASK32 = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF
_PCG_MULTIPLIER = 6364136223846793005
_PCG_INCREMENT = 11634580027462260723
_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
_COLUMNS_AND_DIAGONALS = (
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
)  # fmt: skip


def key_from_seed(seed: int) -> list[int]:
    """Eight 32-bit key words from a 64-bit seed."""
    state = seed & _MASK64
    words = []
    for _ in range(8):
        state = (state * _PCG_MULTIPLIER + _PCG_INCREMENT) & _MASK64
        x = (((state >> 18) ^ state) >> 27) & _MASK32
        turn = state >> 59
        words.append(((x >> turn) | (x << (32 - turn))) & _MASK32)
    return words


def chacha12_block(key: list[int]) -> list[int]:
    """The first block (counter 0, nonce 0) of ChaCha with 12 rounds: sixteen 32-bit words."""
    start = [*_CONSTANTS, *key, 0, 0, 0, 0]
    w = list(start)
    for _ in range(6):
        for a, b, c, d in _COLUMNS_AND_DIAGONALS:
            w[a] = (w[a] + w[b]) & _MASK32
            w[d] = _rotl(w[d] ^ w[a], 16)
            w[c] = (w[c] + w[d]) & _MASK32
            w[b] = _rotl(w[b] ^ w[c], 12)
            w[a] = (w[a] + w[b]) & _MASK32
            w[d] = _rotl(w[d] ^ w[a], 8)
            w[c] = (w[c] + w[d]) & _MASK32
            w[b] = _rotl(w[b] ^ w[c], 7)
    return [(x + y) & _MASK32 for x, y in zip(w, start, strict=True)]


@lru_cache(maxsize=4096)
def draw24(seed: int) -> int:
    """The 24-bit draw of a fresh generator; the uniform number is this over 2**24."""
    return chacha12_block(key_from_seed(seed))[0] >> 8


def _rotl(x: int, count: int) -> int:
    return ((x << count) | (x >> (32 - count))) & _MASK32
