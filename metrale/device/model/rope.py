"""Rotary frequencies of the supported scaling kinds, and the table of cosines and sines."""

from __future__ import annotations

import math

import torch

from ..checkpoint.config import RopeConfig

PAGE = 64
"""Positions are tabulated in pages, so that a position's value never depends on how far the table reaches."""


def inverse_frequencies(rope: RopeConfig) -> torch.Tensor:
    """[ceil(dim / 2)] radians per position."""
    plain = 1.0 / (rope.theta ** (torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim))
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "llama3":
        return _llama3(plain, rope)
    if rope.kind == "yarn":
        return _yarn(rope)
    if rope.kind == "longrope":
        factors = torch.tensor(rope.short_factors, dtype=torch.float32)
        return 1.0 / (factors * rope.theta ** (torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim))
    return plain


def _llama3(plain: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    """Long waves are slowed by the factor, short ones kept, those between blended."""
    wavelength = 2 * math.pi / plain
    longest = rope.original_positions / rope.low_freq_factor
    shortest = rope.original_positions / rope.high_freq_factor
    slowed = torch.where(wavelength > longest, plain / rope.factor, plain)
    blend = (rope.original_positions / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    smooth = (1 - blend) * slowed / rope.factor + blend * slowed
    between = ~(wavelength < shortest) & ~(wavelength > longest)
    return torch.where(between, smooth, slowed)


def _yarn(rope: RopeConfig) -> torch.Tensor:
    """NTK by parts: interpolate dimensions that turn rarely, keep those that turn often."""

    def dimension(rotations: float) -> float:
        turns = rope.original_positions / (rotations * 2 * math.pi)
        return (rope.dim * math.log(turns)) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(rope.dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    keep = 1 - ramp
    waves = rope.theta ** (torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim)
    return 1.0 / (rope.factor * waves) * (1 - keep) + 1.0 / waves * keep


def attention_factor(rope: RopeConfig) -> float:
    """The factor on cosines and sines; 1 except for yarn and longrope."""
    if rope.kind not in ("yarn", "longrope"):
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.kind == "longrope":
        return math.sqrt(1 + math.log(max(rope.factor, 1.0)) / math.log(rope.original_positions))

    def mscale(share: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * share * math.log(rope.factor) + 1.0

    if rope.mscale and rope.mscale_all_dim:
        return mscale(rope.mscale) / mscale(rope.mscale_all_dim)
    return mscale(1.0)


class RopeTable:
    """Cosines and sines by position, [positions, ceil(dim / 2)] each, grown page by page."""

    def __init__(self, rope: RopeConfig, device: torch.device) -> None:
        self._frequencies = inverse_frequencies(rope)
        self._factor = attention_factor(rope)
        self._device = device
        half = self._frequencies.numel()
        self.cos = torch.empty((0, half), device=device)
        self.sin = torch.empty((0, half), device=device)

    def reach(self, positions: int) -> None:
        """Make sure positions below ``positions`` are tabulated, for every stream of a GPU."""
        have = self.cos.shape[0]
        if positions <= have:
            return
        pages = range(have, max(positions, 2 * have), PAGE)
        angles = [torch.arange(at, at + PAGE, dtype=torch.float32)[:, None] * self._frequencies for at in pages]
        cos = torch.cat([angle.cos() for angle in angles]) * self._factor
        sin = torch.cat([angle.sin() for angle in angles]) * self._factor
        self.cos = torch.cat((self.cos, cos.to(self._device)))
        self.sin = torch.cat((self.sin, sin.to(self._device)))
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
