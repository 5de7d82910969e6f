"""Knobs of one scheduler and what follows from them and the device's facts at start-up (S1 section 4, S3 section 2)."""

from __future__ import annotations

from dataclasses import dataclass

from .io import DeviceFacts


@dataclass(slots=True, frozen=True)
class WatchdogConstants:
    """Constants of the loop detectors and of rollback (S3 section 2)."""

    content_min_tokens: int = 48
    content_stride: int = 16
    content_periods: tuple[int, int] = (2, 64)
    repeats: int = 3
    content_min_drop: int = 64
    thinking_min_tokens: int = 48
    thinking_stride: int = 8
    thinking_periods: tuple[int, int] = (4, 20)
    fuzzy_min_tokens: int = 90
    fuzzy_periods: tuple[int, int] = (15, 40)
    fuzzy_divisor: int = 12
    max_rollbacks: int = 2
    stray_think_ends: int = 50


WATCHDOG = WatchdogConstants()

SPONTANEOUS_THINK_BUDGET = 512
MIN_REASONING_FLOOR = 16
PREEMPT_IMMUNITY = 64
MTP_MAX_SEQS = 32
SSM_SPEC_SLOTS = 32
BEAM_BATCH_WIDTH = 320


@dataclass(slots=True, frozen=True)
class SchedulerConfig:
    """The scheduler's knobs. Token ids are None when the model has no such token; sizes are in tokens."""

    max_batch_size: int = 8
    max_prefill_tokens: int = 0
    max_batch_tokens: int = 8192
    max_seq_len: int = 4096
    use_speculative: bool = False
    num_drafts: int = 1
    dflash: bool = False
    self_speculative: bool = False
    ngram_speculative: bool = False
    dflash_unified_ctx: bool = True
    dflash_serial_append: bool = False
    policy: str = "fifo"
    slai_deadline_ns: int = 1_000_000 * 1_000_000
    loop_watchdog: bool = False
    boundary_tokens: frozenset[int] = frozenset()
    think_start_token: int | None = None
    think_end_token: int | None = None
    deadline_scope_all: bool = False
    eos_tokens: tuple[int, ...] = (63,)

    @property
    def chunked(self) -> bool:
        """Whether prompts are prefilled in chunks (S2 section 3.1)."""
        return self.max_prefill_tokens > 0


@dataclass(slots=True, frozen=True)
class Modes:
    """What is switched on for this run, after the device's facts are known (S4 section 1)."""

    mtp: bool
    dflash: bool
    self_spec: bool
    ngram: bool
    num_drafts: int
    spec_slot_cap: int
    ring_slots: int
    plain_tokens: bool

    @property
    def speculative(self) -> bool:
        """Whether any speculative lane may run."""
        return self.mtp or self.self_spec or self.ngram


def modes_for(config: SchedulerConfig, facts: DeviceFacts) -> Modes:
    """Start-up derivations. ``plain_tokens``: no think token, watchdog or boundary ring can touch a decoded token."""
    mtp = config.use_speculative and facts.has_proposer
    self_spec = config.self_speculative and facts.has_self_speculative
    ngram = config.ngram_speculative
    cap = config.max_batch_size
    if facts.has_ssm_layers and cap > SSM_SPEC_SLOTS:
        cap = min(cap, max(SSM_SPEC_SLOTS, MTP_MAX_SEQS))
    ring = facts.ring_slots if facts.has_ssm_layers else 0
    thinks = config.think_start_token is not None or config.think_end_token is not None
    return Modes(
        mtp=mtp,
        dflash=mtp and config.dflash,
        self_spec=self_spec,
        ngram=ngram,
        num_drafts=max(1, config.num_drafts) if mtp or self_spec or ngram else 0,
        spec_slot_cap=cap,
        ring_slots=ring,
        plain_tokens=not (thinks or config.loop_watchdog or (ring and config.boundary_tokens)),
    )
