"""The asynchronous router alone: ring, events, ledger, counters (S5 section 10)."""

from __future__ import annotations

from typing import Any

import pytest

from metrale.core.io import (
    Ctx,
    Decode,
    DecodeFed,
    DeviceFacts,
    DeviceFault,
    EffectFailed,
    ForwardFailed,
    KvExhausted,
    Readback,
    ReadbackFailed,
)
from metrale.core.request import Request
from metrale.core.routers.asynchronous import POLLS, AsyncRouter
from metrale.core.sequence import UNMASKED, Sequence
from metrale.sim import Faults, MockConfig, MockDevice, Script
from metrale.sim.harness import StreamingSink
from metrale.trace.recording import RecordingDevice


class Bench:
    """A mock device behind the router, with ``rows`` prefilled sequences of five tokens."""

    def __init__(self, rows: int = 1, faults: Faults | None = None, **config: Any) -> None:
        self.mock = MockDevice(MockConfig(faults=faults or Faults(), **config))
        self.calls: list[str] = []
        self.router = AsyncRouter(RecordingDevice(self.mock, self.calls.append), 8)
        self.seqs = [self.prefilled(index + 1) for index in range(rows)]
        self.calls.clear()

    def prefilled(self, id: int) -> Sequence:
        script = Script(tokens=[10 * id + step for step in range(20)], prompt_len=5)
        request = Request(id=id, prompt=[id] * 5, max_tokens=20, sink=StreamingSink(), handle=script)
        seq = self.mock.alloc_sequence(request)
        seq.session_hash = id
        self.mock.prefill(request.prompt, seq, 0)
        return seq

    def masked(self) -> int:
        tokens = [10 * seq.session_hash for seq in self.seqs]
        plan = Decode(tokens, Ctx.UNIFIED, Readback.ARGMAX_MASKED, [UNMASKED] * len(tokens))
        return self.router.launch(plan, self.seqs)

    def fed(self) -> int:
        rows = len(self.seqs)
        return self.router.launch(DecodeFed(list(range(rows)), [UNMASKED] * rows, Ctx.UNIFIED), self.seqs)


def test_construction_creates_three_events_before_anything_else() -> None:
    calls: list[str] = []
    AsyncRouter(RecordingDevice(MockDevice(MockConfig()), calls.append), 8)
    assert calls == ["create_event() -> 2", "create_event() -> 3", "create_event() -> 4"]


def test_construction_without_a_token_feed_is_refused() -> None:
    device = MockDevice(MockConfig(facts=DeviceFacts(supports_token_feed=False)))
    with pytest.raises(ValueError, match="the model has no device token feed"):
        AsyncRouter(device, 8)


def test_a_masked_step_and_the_fed_one_after_it() -> None:
    bench = Bench(rows=2)
    first = bench.masked()
    second = bench.fed()
    assert bench.router.await_result(first) == [11, 21]
    assert bench.router.await_result(second) == [12, 22]
    none = "[4294967295, 4294967295]"
    assert bench.calls == [
        'decode_batch(tokens=[10, 20], seqs=["s1@0:len=5", "s2@1:len=5"], stream=0)',
        "commit_ctx(s1@0:len=6, n=1, base=5, row=0)",
        "commit_ctx(s2@1:len=6, n=1, base=5, row=1)",
        f"argmax_batch_to_feed(row=0, n=2, masks=[{none}, {none}], event=2, stream=0) -> [11, 21]",
        'decode_batch_fed(inputs=[11, 21], seqs=["s1@0:len=6", "s2@1:len=6"], stream=0)',
        "commit_ctx(s1@0:len=6, n=1, base=6, row=0)",
        "commit_ctx(s2@1:len=6, n=1, base=6, row=1)",
        f"argmax_batch_to_feed(row=0, n=2, masks=[{none}, {none}], event=3, stream=0) -> [12, 22]",
        "fed_step_settled()",
    ]
    assert bench.router.counters.fed_launches == 1


def test_masked_picks_take_the_highest_id_that_is_not_masked() -> None:
    bench = Bench()
    plan = Decode([10], Ctx.NONE, Readback.ARGMAX_MASKED, [(11, 63)])
    assert bench.router.await_result(bench.router.launch(plan, bench.seqs)) == [62]


def test_a_plain_step_is_settled_by_its_launch_and_its_ticket_is_fresh() -> None:
    bench = Bench()
    in_flight = bench.masked()
    plain = bench.router.launch(Decode([11], Ctx.NONE, Readback.ARGMAX), bench.seqs)
    assert plain != in_flight
    assert bench.router.await_result(plain) == [12]
    assert bench.router.await_result(in_flight) == [11]


def test_three_unread_steps_exhaust_the_ring() -> None:
    bench = Bench()
    tickets = [bench.masked(), bench.fed(), bench.fed()]
    with pytest.raises(ForwardFailed, match="readback ring exhausted: 3 steps unread"):
        bench.fed()
    bench.router.await_result(tickets[0])
    assert bench.router.ring.busy == [False, True, True]
    bench.fed()
    assert bench.router.ring.busy == [True, True, True]


def test_h4_a_failed_pick_frees_its_ring_slot() -> None:
    bench = Bench()

    def fail(*_args: object) -> None:
        raise DeviceFault("no feed today")

    bench.router.device.argmax_batch_to_feed = fail  # type: ignore[method-assign]
    with pytest.raises(ReadbackFailed, match="no feed today"):
        bench.masked()
    assert bench.router.ring.busy == [False, False, False]


def test_forward_failures_change_nothing() -> None:
    bench = Bench(faults=Faults(exhaust_at={"decode_batch": frozenset({0, 2})}))
    with pytest.raises(ForwardFailed, match=r"KV cache exhausted \(scripted at decode_batch #0\)") as plain:
        bench.masked()
    assert isinstance(plain.value.cause, KvExhausted)
    ticket = bench.masked()
    with pytest.raises(ForwardFailed, match="#2"):
        bench.fed()
    assert bench.calls[-1] == ('decode_batch_fed(inputs=[11], seqs=["s1@0:len=6"], stream=0) -> ERR KV cache exhausted')
    assert bench.router.ring.busy == [True, False, False]
    assert bench.router.await_result(ticket) == [11]
    assert bench.seqs[0].seq_len == 6


def test_an_event_that_never_polls_ready_is_waited_for() -> None:
    bench = Bench(event_lag=POLLS)
    assert bench.router.await_result(bench.masked()) == [11]
    assert bench.calls[-1] == "event_synchronize(event=2)"


def test_a_query_fault_frees_the_slot_and_settles_the_ledger() -> None:
    bench = Bench(faults=Faults(event_query_at=2))
    first, second = bench.masked(), bench.fed()
    bench.router.await_result(first)
    with pytest.raises(ReadbackFailed, match="scripted device fault"):
        bench.router.await_result(second)
    assert bench.calls[-2:] == ["event_query(event=3) -> ERR scripted device fault", "fed_step_settled()"]
    assert bench.router.ring.busy == [False, False, False]
    with pytest.raises(EffectFailed):
        bench.router.await_result(second)


def test_a_rollback_hands_back_what_the_newest_step_reserved() -> None:
    bench = Bench(facts=DeviceFacts(block_size=4))
    seq = bench.seqs[0]
    first = bench.masked()  # length 6, two blocks
    assert bench.router.reserve_kv(seq) == 0
    second = bench.fed()
    bench.router.await_result(first)
    seq.tokens.append(11)
    seq.seq_len = 7
    assert bench.router.reserve_kv(seq) == 1
    third = bench.fed()
    bench.router.await_result(second)
    bench.router.await_result(third)
    bench.router.rollback(seq)
    bench.router.rollback(seq)
    assert [line for line in bench.calls if line.startswith("release")] == [
        "release_decode_blocks(s1@0:len=7, n=1)",
        "release_decode_blocks(s1@0:len=7, n=0)",
    ]
    assert seq.num_blocks == 2
    counters = bench.router.counters
    assert (counters.blocks_reserved, counters.rollbacks, counters.blocks_handed_back) == (1, 2, 1)


def test_an_exhausted_reserve_is_an_answer() -> None:
    bench = Bench(facts=DeviceFacts(block_size=1, total_blocks=7))
    assert bench.router.reserve_kv(bench.seqs[0]) == 1
    assert bench.router.reserve_kv(bench.seqs[0]) == 0
    bench.seqs[0].seq_len += 1
    assert bench.router.reserve_kv(bench.seqs[0]) is None
    assert bench.calls[-1] == "reserve_decode_block(s1@0:len=6) -> ERR exhausted"


def test_teardown_destroys_the_events_in_order() -> None:
    bench = Bench()
    bench.router.teardown()
    assert bench.calls == [
        "destroy_event(event=2)",
        "destroy_event(event=3)",
        "destroy_event(event=4)",
        "teardown()",
    ]


def test_a_failed_release_is_an_effect_error() -> None:
    bench = Bench()

    def fail(*_args: object) -> None:
        raise DeviceFault("books are closed")

    bench.router.device.release_decode_blocks = fail  # type: ignore[method-assign]
    with pytest.raises(EffectFailed, match="books are closed"):
        bench.router.rollback(bench.seqs[0])


def test_the_context_commit_follows_the_flavour() -> None:
    bench = Bench(rows=2)
    plan = Decode([10, 20], Ctx.SERIAL_APPEND, Readback.ARGMAX_MASKED, [UNMASKED] * 2)
    bench.router.launch(plan, bench.seqs)
    assert bench.calls[1] == "dflash_serial_ctx_append(s1@0:len=6)"
