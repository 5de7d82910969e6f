"""What config.json says about rotary embedding: ``rope_parameters`` of newer files, ``rope_scaling`` of older ones."""

from __future__ import annotations

from dataclasses import dataclass

from .fields import Fields

ROPE_TYPES = ("default", "linear", "llama3", "yarn", "dynamic", "longrope")
MAX_POSITIONS = 1 << 24
MIN_REAL = 1e-6
MAX_REAL = 1e6


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding: ``dim`` rotated dimensions of each head, base ``theta``, and how frequencies are scaled.

    An odd ``dim`` rotates one dimension more. ``longest`` is the most tokens a sequence may have, 0 for no bound:
    ``dynamic`` and ``longrope`` take other frequencies for longer sequences, so that K already cached would change. Up
    to the bound, ``dynamic`` is the default kind, and ``longrope`` divides by ``short_factors``.
    """

    kind: str
    theta: float
    dim: int
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 0
    attention_factor: float | None = None
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    short_factors: tuple[float, ...] = ()
    longest: int = 0


def parse_rope(f: Fields, head_dim: int, positions: int, default_share: float | None) -> RopeConfig:
    """The rotary part of config.json ``f``. ``positions`` is the model's ``max_position_embeddings``.

    ``default_share`` is the share of a head that is rotated unless the file says another one; None where the family
    always rotates whole heads. Raises ModelError.
    """
    scaling = _scaling(f)
    kind = scaling.word("rope_type" if scaling.has("rope_type") else "type", ROPE_TYPES, "default")
    base = scaling if scaling.has("rope_theta") else f
    theta = base.real("rope_theta", 1.0, 1e15, 10000.0)
    if kind == "yarn" and theta == 1.0:
        raise base.fail("rope_theta", "more than 1 where yarn takes its logarithm")
    dim = _rotated(f, scaling, head_dim, kind, default_share)
    if kind == "default":
        return RopeConfig(kind, theta, dim)
    if kind == "dynamic":
        factor = scaling.real("factor", MIN_REAL, MAX_REAL)
        return RopeConfig(kind, theta, dim, factor, original_positions=positions, longest=positions)
    outer = f if f.has("original_max_position_embeddings") else scaling
    original = outer.whole("original_max_position_embeddings", 1, MAX_POSITIONS, positions)
    implied = positions / original if kind in ("yarn", "longrope") else None
    factor = scaling.real("factor", MIN_REAL, MAX_REAL, implied)
    attention = scaling.real("attention_factor", 0.0, MAX_REAL) if scaling.has("attention_factor") else None
    if kind == "linear":
        return RopeConfig(kind, theta, dim, factor)
    if kind == "llama3":
        return _llama3(scaling, RopeConfig(kind, theta, dim, factor, original_positions=original))
    if kind == "longrope":
        if original < 2:
            raise outer.fail("original_max_position_embeddings", f"a whole number from 2 to {MAX_POSITIONS}")
        short = _factors(scaling, "short_factor", (dim + 1) // 2)
        return RopeConfig(
            kind, theta, dim, factor, original_positions=original, attention_factor=attention, short_factors=short,
            longest=original,
        )  # fmt: skip
    return RopeConfig(
        kind=kind,
        theta=theta,
        dim=dim,
        factor=factor,
        original_positions=original,
        attention_factor=attention,
        mscale=scaling.real("mscale", 0.0, MAX_REAL, 0.0),
        mscale_all_dim=scaling.real("mscale_all_dim", 0.0, MAX_REAL, 0.0),
        beta_fast=_beta(scaling, "beta_fast", 32.0),
        beta_slow=_beta(scaling, "beta_slow", 1.0),
        truncate=scaling.flag("truncate", True),
    )


def _scaling(f: Fields) -> Fields:
    """The object with the kind; ``rope_scaling`` counts where both are there."""
    for key in ("rope_scaling", "rope_parameters"):
        found = f.inner(key)
        if found is not None and found.values:
            nested = [name for name in found.values if name.endswith("_attention")]
            if nested:
                raise found.fail(nested[0], "nothing; one set of values serves all layers")
            return found
    return Fields({}, f"{f.where}: rope_scaling")


def _rotated(f: Fields, scaling: Fields, head_dim: int, kind: str, default: float | None) -> int:
    """How many dimensions of a head the frequencies span. A family without a default share ignores the key, as long as
    its frequencies are not scaled."""
    place = scaling if scaling.has("partial_rotary_factor") else f
    share = place.real("partial_rotary_factor", 0.0, 1.0, default or 1.0)
    if default is None and kind == "default":
        share = 1.0
    dim = int(head_dim * share)
    if default is None and dim != head_dim:
        raise place.fail("partial_rotary_factor", "1; this family rotates whole heads")
    if dim + dim % 2 > head_dim:
        raise f.fail("head_dim", f"an even number where a whole head ({head_dim}) is rotated")
    if kind == "yarn" and dim % 2:
        raise place.fail("partial_rotary_factor", f"a share that rotates an even number of {head_dim} dimensions")
    least = 3 if kind == "dynamic" else 1
    if dim < least:
        raise place.fail("partial_rotary_factor", f"a share that rotates at least {least} of {head_dim} dimensions")
    return dim


def _llama3(scaling: Fields, rope: RopeConfig) -> RopeConfig:
    low = scaling.real("low_freq_factor", MIN_REAL, MAX_REAL)
    high = scaling.real("high_freq_factor", MIN_REAL, MAX_REAL)
    if low >= high:
        raise scaling.fail("high_freq_factor", f"more than low_freq_factor ({low})")
    return RopeConfig(
        rope.kind, rope.theta, rope.dim, rope.factor, low, high, original_positions=rope.original_positions
    )


def _beta(scaling: Fields, key: str, default: float) -> float:
    """A bound of yarn's ramp in rotations; 0 stands for the default."""
    value = scaling.real(key, 0.0, MAX_REAL, 0.0) or default
    if value < MIN_REAL:
        raise scaling.fail(key, f"0 or a number from {MIN_REAL} to {MAX_REAL}")
    return value


def _factors(scaling: Fields, key: str, count: int) -> tuple[float, ...]:
    """One divisor for each frequency."""
    values = scaling.values.get(key)
    if not isinstance(values, list) or len(values) != count:
        raise scaling.fail(key, f"a list of {count} numbers, one for each frequency")
    return tuple(Fields({key: value}, scaling.where).real(key, MIN_REAL, MAX_REAL) for value in values)
