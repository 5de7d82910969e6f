"""The client's stream is the request's own script (invariant 2; decisions D8, D17, D18, D19).

Needs the scenario: it says what each request's script is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metrale.trace import records as r

from .base import Invariant, on
from .ghost import Ghost
from .replay_drafts import VERIFIES

if TYPE_CHECKING:
    from metrale.sim.scenario import RequestTable, Scenario

EOS = 63
UNSERVABLE = ("refused: ", "cannot resume: ", "preempted sequence needs ", "server shut")


def own_answer(request: RequestTable, scenario: Scenario) -> tuple[list[int], int, str] | None:
    """The tokens, the count and the reason of the request when nothing disturbs it; None if that is not fixed.

    It is not where a think token, a watchdog or a draw among equal logits has a say.
    """
    device, knobs = scenario.device, scenario.scheduler
    if knobs.think_start_token is not None or knobs.think_end_token is not None or knobs.loop_watchdog:
        return None
    if device.supports_beam and request.num_beams > 1:
        hypothesis = list(request.beam_hyp or [])
        stops = {EOS, *request.stop_tokens}
        reason = "stop" if hypothesis and hypothesis[-1] in stops else "length"
        return ([] if request.streaming else hypothesis), len(hypothesis), reason
    speculative = knobs.use_speculative or knobs.ngram_speculative or knobs.self_speculative
    if speculative and 0 < knobs.max_seq_len < 4096:
        return None
    stops = {EOS, *request.stop_tokens}
    wanted = len(request.tokens) if request.max_tokens is None else request.max_tokens
    ceiling, prompt = knobs.max_seq_len, len(request.prompt_tokens)
    sent: list[int] = []
    script = request.tokens
    for index in range(wanted):
        token = script[min(index, len(script) - 1)]
        if not 0 <= token < device.vocab:
            return None
        floor = index < request.min_tokens if index else request.min_tokens > 0
        if token in stops and floor:
            masked = [id_ for id_ in range(device.vocab) if id_ not in stops]
            if request.temperature or not masked:
                return None
            token = masked[0] if index == 0 else masked[-1]
        if token in stops:
            return sent, len(sent) + 1, "stop"
        sent.append(token)
        if index and 0 < ceiling <= prompt + index + 1:
            return sent, len(sent), "length"
    return sent, len(sent), "length"


class OwnScript(Invariant):
    """See ``sentence``."""

    name = "own-script"
    sentence = (
        "A client's stream is its request's own script, whatever happens to the others; only its end may come early."
    )
    needs_scenario = True

    def __init__(self, ghost: Ghost) -> None:
        super().__init__(ghost)
        self.failed: set[int] = set()
        self.launched = False

    @on(r.DecodeBatch)
    def batch(self, rec: r.DecodeBatch) -> None:
        """A batched bootstrap is no launch; it fails in the same way."""
        if rec.error is not None and not self.launched:
            self.failed.update(sid.hash for sid in rec.seqs)
        self.launched = False

    @on(r.FxLaunchDecode)
    def launch(self, rec: r.FxLaunchDecode) -> None:
        self.launched = True

    @on(r.Decode, r.DecodeVerifyBatched, *VERIFIES)
    def step(self, rec: r.Decode | r.DecodeVerifyBatched) -> None:
        """A speculative step that fails ends its rows in the ordinary way (S4 section 19)."""
        if rec.error is not None:
            sids = rec.seqs if isinstance(rec, r.DecodeVerifyBatched) else (rec.seq,)
            lives = (self.g.live[sid.slot].life for sid in sids if sid.slot in self.g.live)
            self.failed.update(life.id for life in lives if life is not None)

    def finish(self) -> None:
        scenario = self.g.scenario
        assert scenario is not None
        outs = self.g.outs
        if len(outs) != len(scenario.request):
            self.fail(f"the scenario has {len(scenario.request)} requests, the log {len(outs)} answers")
            return
        for request, (line, out) in zip(scenario.request, outs, strict=True):
            self.g.line = line
            if out.id != request.id:
                self.fail(f"the answer of s{request.id} must stand here, in the scenario's order")
                continue
            own = own_answer(request, scenario)
            if own is not None:
                self._compare(request, out, *own)

    def _compare(self, request: RequestTable, out: r.Out, script: list[int], n: int, reason: str) -> None:
        end = out.events[-1] if out.events else None
        if isinstance(end, r.Response):
            sent, count = (
                list(end.tokens[:-1] if end.reason == "stop" and reason == "stop" else end.tokens),
                len(end.tokens),
            )
        else:
            sent = [event.id for event in out.events if isinstance(event, r.Token | r.TokenLogprobs)]
            count = end.n if isinstance(end, r.Done) else 0
        if isinstance(end, r.Response) and self._is_beam(request):
            sent = list(end.tokens)
        if sent != script[: len(sent)]:
            index = next((i for i, (a, b) in enumerate(zip(sent, script, strict=False)) if a != b), len(script))
            right = script[index] if index < len(script) else "the end"
            wrong = sent[index] if index < len(sent) else "the end"
            self.fail(f"s{request.id}: token {index} is {wrong}, its script has {right}")
            return
        self._unscripted(request, end)
        if not isinstance(end, r.Done | r.Response) or end.reason in ("cancelled", "timeout"):
            return
        if request.cancel_at is not None and isinstance(end, r.Done):
            self._cancel_at(request, end)
        lossy = request.drop_reader_after is not None or request.stall_reader is not None
        if lossy or request.id in self.failed or request.cancel_at is not None or request.cancel_at_tick is not None:
            return
        if (count, end.reason) != (n, reason):
            self.fail(
                f"s{request.id}: by its script it ends with {reason} after {n} tokens, not {end.reason} after {count}"
            )

    def _cancel_at(self, request: RequestTable, end: r.Done) -> None:
        """On the plain lane no decode steps over the flag: one more token and the sweep (case 6)."""
        assert self.g.scenario is not None
        assert request.cancel_at is not None
        knobs = self.g.scenario.scheduler
        speculative = knobs.use_speculative or knobs.ngram_speculative or knobs.self_speculative
        if speculative or knobs.max_prefill_tokens or request.cancel_at < 1:
            return
        if end.n > request.cancel_at + 3:
            self.fail(f"s{request.id} is cancelled at {request.cancel_at} tokens and still gets {end.n}")

    def _unscripted(self, request: RequestTable, end: r.Event | None) -> None:
        """A failure needs a fault that the scenario scripts, unless the request cannot be served at all."""
        assert self.g.scenario is not None
        device = self.g.scenario.device
        faults = (
            device.kv_exhaust_at, device.exhaust_at, device.fatal_at, device.device_lost_at, device.spill_fail_at,
            device.restore_fail_at, device.spill_capacity, device.event_query_fault_at,
        )  # fmt: skip
        if isinstance(end, r.Error | r.Err) and not any(faults) and not end.message.startswith(UNSERVABLE):
            self.fail(f"s{request.id} ends with {end.message!r}, but the scenario has no fault")

    def _is_beam(self, request: RequestTable) -> bool:
        assert self.g.scenario is not None
        return self.g.scenario.device.supports_beam and request.num_beams > 1
