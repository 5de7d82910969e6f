"""What a mock device answers and where it fails."""

from __future__ import annotations

from dataclasses import dataclass, field

from metrale.core.io import DeviceFacts, DeviceFault, DeviceLost, KvExhausted


@dataclass(slots=True)
class Script:
    """The answers of one request: the token at script index i is picked at position ``prompt_len + i - 1``.

    ``wrong_every`` > 0 spoils every draft whose script index is a multiple of it; ``cancel_at`` raises the request's
    cancel flag when exactly so many tokens are generated at a forward that looks.
    """

    tokens: list[int]
    prompt_len: int
    wrong_every: int = 0
    cancel_at: int | None = None
    beam_hyp: list[int] | None = None

    def at(self, index: int) -> int:
        """The script token of an index: not below 0, past the end the last one."""
        tokens = self.tokens
        return tokens[min(max(index, 0), len(tokens) - 1)]

    def window(self, first: int, count: int) -> list[int]:
        """The script tokens of ``count`` indices from ``first`` on."""
        tokens = self.tokens
        if first >= 0 and first + count <= len(tokens):
            return tokens[first : first + count]
        return [self.at(index) for index in range(first, first + count)]

    def after(self, position: int) -> int:
        """The pick of a forward whose last input sits at ``position``."""
        return self.at(position + 1 - self.prompt_len)

    def draft(self, position: int, vocab: int) -> int:
        """The draft for ``position``, spoilt on schedule."""
        index = position - self.prompt_len
        token = self.at(index)
        if self.wrong_every > 0 and index % self.wrong_every == 0:
            return 1 + token % (vocab - 1)
        return token

    def drafts(self, position: int, count: int, vocab: int) -> list[int]:
        """The drafts for ``count`` positions from ``position`` on."""
        if self.wrong_every == 0:
            return self.window(position - self.prompt_len, count)
        return [self.draft(position + step, vocab) for step in range(count)]


@dataclass(slots=True)
class Faults:
    """Scripted failures. Indices count the calls of one name from 0, failed ones included; ``decode_batch`` and
    ``decode_batch_fed`` share a counter. ``event_query_at`` counts queries from 1."""

    exhaust_at: dict[str, frozenset[int]] = field(default_factory=dict)
    fatal_at: frozenset[int] = frozenset()
    lost_at: frozenset[int] = frozenset()
    save_at: frozenset[int] = frozenset()
    restore_at: frozenset[int] = frozenset()
    event_query_at: int | None = None
    counts: dict[str, int] = field(default_factory=dict)

    def meet(self, call: str) -> None:
        """Count one call and raise what is scripted for it."""
        index = self.counts.get(call, 0)
        self.counts[call] = index + 1
        if index in self.exhaust_at.get(call, ()):
            raise KvExhausted(f"KV cache exhausted (scripted at {call} #{index})")
        if call == "decode_batch":
            if index in self.lost_at:
                raise DeviceLost("scripted device fault", "scripted device fault")
            if index in self.fatal_at:
                raise DeviceFault("scripted device fault", "scripted device fault")
        elif call == "save_sequence_state" and index in self.save_at:
            raise DeviceFault("scripted save failure", "scripted save failure")
        elif call == "restore_sequence_state" and index in self.restore_at:
            raise DeviceFault("scripted restore failure", "scripted restore failure")


@dataclass(slots=True)
class MockConfig:
    """Facts and books of one mock device; blocks are counted, not placed."""

    facts: DeviceFacts = field(default_factory=DeviceFacts)
    held_blocks: int = 0
    reclaimable: int = 0
    twophase_ok: bool = False
    can_batch_verify: bool = True
    slot_draft_capacity: int = 8
    event_lag: int = 0
    reversed_completion: bool = False
    faults: Faults = field(default_factory=Faults)
