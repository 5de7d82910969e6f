"""The scripted router: chosen tokens and failing launches on any router (S5 section 8). Part of the public test kit.

It wraps a device router, replaces the decode lane's tokens by a script per sequence and fails launches on cue, while
the inner router still does all device bookkeeping::

    scripted: list[ScriptedRouter] = []

    def wrap(inner):
        scripted.append(ScriptedRouter(inner, scripts={1: [70, 71, 63]}, faults=[Fault.KV_EXHAUSTED]))
        return scripted[0]

    result = run_scenario(scenario, wrap=wrap)
    assert scripted[0].effects[0] == "MarconiCheckpoint"
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from metrale.core.io import (
    Decode,
    DeviceFault,
    EffectFailed,
    ForwardFailed,
    HostLogits,
    KvExhausted,
    Plan,
    Readback,
    Router,
    Ticket,
)
from metrale.core.sequence import Sequence
from metrale.trace.tracing_router import EffectLabels

from .mock.device import HOT_BF16

LOGIT_BYTES = 2


class Fault(Enum):
    """A launch that fails without reaching the inner router."""

    KV_EXHAUSTED = "KV cache exhausted (scripted)"
    FATAL = "scripted device fault"


def session_key(seq: Sequence) -> int:
    """The session hash, or the first prompt token of a sequence that came back from a spill without one."""
    return seq.session_hash or seq.tokens[0]


@dataclass(slots=True)
class _Step:
    """A step in flight on the inner router: keys and plan inputs of its rows."""

    keys: list[int]
    inputs: list[int]


class ScriptedRouter(EffectLabels):
    """Tokens from ``scripts`` (key -> tokens, used up in order), failures from ``faults`` (one per launch, in order).

    ``depth`` caps the inner router's. ``effects`` logs the labels of all effects, ``launches`` counts launches, failed
    ones included. A row whose script is used up, or that has none, keeps the inner router's token.
    """

    def __init__(
        self,
        inner: Router,
        scripts: Mapping[int, Iterable[int]] | None = None,
        faults: Iterable[Fault] = (),
        depth: int | None = None,
        key: Callable[[Sequence], int] = session_key,
    ) -> None:
        super().__init__(inner)
        self.max_depth = inner.max_depth if depth is None else min(depth, inner.max_depth)
        self.scripts = {name: list(tokens) for name, tokens in (scripts or {}).items()}
        self.faults = list(faults)
        self.effects: list[str] = []
        self.launches = 0
        self._key = key
        self._last: list[int] = []
        self._settled: dict[Ticket, HostLogits] = {}
        self._in_flight: dict[Ticket, _Step] = {}

    def label(self, text: str) -> None:
        """Log an effect."""
        self.effects.append(text)

    def launch(self, plan: Plan, seqs: list[Sequence]) -> Ticket:
        """Fail on cue; else forward. A host readback is settled at once, its rows overwritten by the script."""
        self.launches += 1
        if self.faults:
            fault = self.faults.pop(0)
            kind = KvExhausted if fault is Fault.KV_EXHAUSTED else DeviceFault
            raise ForwardFailed(fault.value, kind(fault.value))
        keys = [self._key(seq) for seq in seqs]
        inputs = list(plan.tokens) if isinstance(plan, Decode) else list(plan.sources)
        ticket = self.inner.launch(plan, seqs)
        if isinstance(plan, Decode) and plan.readback is Readback.HOST_LOGITS:
            result = self.inner.await_result(ticket)
            assert isinstance(result, HostLogits)
            self._settled[ticket] = self._overwrite(result, keys, inputs)
        else:
            self._in_flight[ticket] = _Step(keys, inputs)
        return ticket

    def await_result(self, ticket: Ticket) -> list[int] | HostLogits:
        """A settled logits block, or the step's tokens with the script's in their place."""
        if ticket in self._settled:
            return self._settled.pop(ticket)
        step = self._in_flight.pop(ticket, None)
        if step is None:
            raise EffectFailed(f"ticket {ticket} is not in flight")
        result = self.inner.await_result(ticket)
        inner = step.inputs if isinstance(result, HostLogits) else result
        self._last = [self._next(key, token) for key, token in zip(step.keys, inner, strict=True)]
        return list(self._last)

    def read_logits(self, rows: int) -> HostLogits:
        """One-hot rows at the tokens of the last settled step; the inner router is not asked."""
        self.label(f"ReadLogits{{rows={rows}}}")
        vocab = self.device.facts.vocab_size
        return HostLogits(b"".join(one_hot(token, vocab) for token in self._last[:rows]), rows)

    def rotate_lora(self, name: str) -> None:
        """Logged as ``lora Rotate(<name>)``."""
        self.label(f"lora Rotate({name})")
        self.inner.rotate_lora(name)

    def _next(self, key: int, token: int) -> int:
        script = self.scripts.get(key)
        return script.pop(0) if script else token

    def _overwrite(self, logits: HostLogits, keys: list[int], inputs: list[int]) -> HostLogits:
        vocab = self.device.facts.vocab_size
        width = vocab * LOGIT_BYTES
        rows, self._last = [], []
        for index, key in enumerate(keys):
            if self.scripts.get(key):
                self._last.append(self.scripts[key].pop(0))
                rows.append(one_hot(self._last[-1], vocab))
            else:
                self._last.append(inputs[index])
                rows.append(logits.data[index * width : (index + 1) * width])
        return HostLogits(b"".join(rows), logits.rows)


def one_hot(token: int, vocab: int) -> bytes:
    """A bf16 row with 30.0 at ``token``; all zeros when it lies outside the vocabulary."""
    row = bytearray(LOGIT_BYTES * vocab)
    if 0 <= token < vocab:
        row[LOGIT_BYTES * token : LOGIT_BYTES * token + LOGIT_BYTES] = HOT_BF16
    return bytes(row)
