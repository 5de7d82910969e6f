"""The synchronous router alone, over a device that only takes notes (S5 sections 4 and 14.5)."""

from __future__ import annotations

import io
from typing import Any

import pytest

from metrale.core.io import (
    Ctx,
    Decode,
    DecodeFed,
    DeviceError,
    DeviceFacts,
    DeviceFault,
    EffectFailed,
    ForwardFailed,
    HostLogits,
    KvExhausted,
    Readback,
    ReadbackFailed,
)
from metrale.core.routers.sync import SyncRouter
from metrale.core.sequence import NO_SLOT, UNMASKED, Sequence


class NotingDevice:
    """Every call is noted with its arguments; ``fail`` names calls that raise, ``answers`` what others return."""

    def __init__(self, fail: dict[str, DeviceError] | None = None, **answers: Any) -> None:
        self.facts = DeviceFacts(vocab_size=8)
        self.log: list[tuple[Any, ...]] = []
        self.fail = fail or {}
        self.answers = answers

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> Any:
            self.log.append((name, *args))
            if name in self.fail:
                raise self.fail[name]
            return self.answers.get(name)

        return call

    @property
    def names(self) -> list[str]:
        return [entry[0] for entry in self.log]


def router(fail: dict[str, DeviceError] | None = None, **answers: Any) -> tuple[SyncRouter, NotingDevice]:
    device = NotingDevice(fail, **answers)
    made = SyncRouter(device)  # type: ignore[arg-type]
    device.log.clear()
    return made, device


def seq(slot: int = 3, length: int = 6) -> Sequence:
    return Sequence(slot=slot, seq_len=length)


def plan(readback: Readback = Readback.ARGMAX, ctx: Ctx = Ctx.UNIFIED, n: int = 2) -> Decode:
    masks = [UNMASKED] * n if readback is Readback.ARGMAX_MASKED else None
    return Decode(tokens=list(range(10, 10 + n)), ctx=ctx, readback=readback, masks=masks)


FAULT = DeviceFault("boom", "boom")


def test_depth_is_one() -> None:
    assert router()[0].max_depth == 1


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize(
    "failing", [[], ["free_sequence"], ["ep_broadcast_cmd_for_seq"], ["cache_sequence", "free_sequence"]]
)
def test_release_makes_every_call_whatever_fails(cache: bool, failing: list[str]) -> None:
    """Cache offer, free, word to the mirror, in this order; the slot is read before the free."""
    made, device = router(dict.fromkeys(failing, FAULT))
    one = seq()
    made.release_seq(one, cache, "test")
    wanted: list[tuple[Any, ...]] = [("cache_sequence", one)] if cache else []
    assert device.log == [*wanted, ("free_sequence", one), ("ep_broadcast_cmd_for_seq", 3, 0xFFFFFFF1)]


def test_release_of_a_detached_sequence_sends_the_truncated_word() -> None:
    """2^64-1 as u32."""
    made, device = router()
    made.release_seq(seq(NO_SLOT), False, "test")
    assert device.log[-1] == ("ep_broadcast_cmd_for_seq", 0xFFFFFFFF, 0xFFFFFFF1)


def test_launch_order_and_context_commit() -> None:
    """Forward, one commit per row with its advanced length, readback."""
    made, device = router(argmax_batch=[1, 2])
    a, b = seq(0, 6), seq(1, 1)
    ticket = made.launch(plan(), [a, b])
    assert device.log == [
        ("decode_batch", [10, 11], [a, b], 0),
        ("commit_ctx", a, 1, 5, 0),
        ("commit_ctx", b, 1, 0, 1),
        ("argmax_batch", 0, 2, 0),
    ]
    assert made.await_result(ticket) == [1, 2]


@pytest.mark.parametrize(("ctx", "calls"), [(Ctx.NONE, []), (Ctx.SERIAL_APPEND, ["dflash_serial_ctx_append"])])
def test_other_context_flavours(ctx: Ctx, calls: list[str]) -> None:
    """A failing append is only logged."""
    for fail in ({}, {"dflash_serial_ctx_append": FAULT}):
        made, device = router(fail, argmax_batch=[1])
        made.launch(plan(ctx=ctx, n=1), [seq()])
        assert device.names == ["decode_batch", *calls, "argmax_batch"]


def test_a_commit_error_on_row_0_does_not_stop_row_1() -> None:
    made, device = router({"commit_ctx": FAULT}, argmax_batch=[1, 2])
    made.launch(plan(), [seq(0), seq(1)])
    assert device.names == ["decode_batch", "commit_ctx", "commit_ctx", "argmax_batch"]


def test_host_logits_come_in_one_block() -> None:
    """rows x vocab x 2 bytes."""
    made, device = router(copy_logits_to_host=b"x" * 32)
    ticket = made.launch(plan(Readback.HOST_LOGITS), [seq(0), seq(1)])
    assert device.log[-1] == ("copy_logits_to_host", 0, 0, 32)
    assert made.await_result(ticket) == HostLogits(b"x" * 32, 2)


def test_a_forward_failure_calls_nothing_else_and_keeps_its_cause() -> None:
    error = KvExhausted("KV cache exhausted (test)")
    made, device = router({"decode_batch": error})
    with pytest.raises(ForwardFailed) as caught:
        made.launch(plan(), [seq(0), seq(1)])
    assert device.names == ["decode_batch"]
    assert (caught.value.cause, caught.value.text) == (error, "KV cache exhausted (test)")


@pytest.mark.parametrize(
    ("readback", "call"), [(Readback.ARGMAX, "argmax_batch"), (Readback.HOST_LOGITS, "copy_logits_to_host")]
)
def test_readback_failures_come_after_the_forward(readback: Readback, call: str) -> None:
    made, device = router({call: FAULT})
    with pytest.raises(ReadbackFailed, match="boom"):
        made.launch(plan(readback), [seq(0), seq(1)])
    assert device.names[-1] == call


def test_masked_readback_and_fed_plans_are_refused() -> None:
    """Masked: after the forward, as a readback error. Fed: without any call, as a forward error."""
    made, device = router()
    with pytest.raises(ReadbackFailed, match="the synchronous router has no masked feed argmax"):
        made.launch(plan(Readback.ARGMAX_MASKED), [seq(0), seq(1)])
    assert device.names == ["decode_batch", "commit_ctx", "commit_ctx"]
    device.log.clear()
    with pytest.raises(ForwardFailed, match="the synchronous router cannot launch a fed decode step"):
        made.launch(DecodeFed([0], [UNMASKED], Ctx.NONE), [seq()])
    assert device.log == []


def test_tickets() -> None:
    """None stored, a wrong one (which costs the result), a new launch that replaces the old result."""
    made, _ = router(argmax_batch=[1])
    with pytest.raises(EffectFailed, match="no step in flight"):
        made.await_result(1)
    ticket = made.launch(plan(n=1), [seq()])
    with pytest.raises(EffectFailed, match="ticket"):
        made.await_result(ticket + 1)
    with pytest.raises(EffectFailed, match="no step in flight"):
        made.await_result(ticket)
    old = made.launch(plan(n=1), [seq()])
    new = made.launch(plan(n=1), [seq()])
    assert new != old
    assert made.await_result(new) == [1]


def test_reserve_and_rollback() -> None:
    """A dry pool is an answer; any failure means exhausted; there is no ledger."""
    assert router(reserve_decode_block=1)[0].reserve_kv(seq()) == 1
    assert router({"reserve_decode_block": KvExhausted("dry")})[0].reserve_kv(seq()) is None
    assert router({"reserve_decode_block": FAULT})[0].reserve_kv(seq()) is None
    made, device = router()
    with pytest.raises(EffectFailed, match="keeps no reservation ledger"):
        made.rollback(seq())
    assert device.log == []


def test_read_logits() -> None:
    """Its failure is a readback error, not an effect error."""
    made, device = router(copy_logits_to_host=b"y" * 48)
    assert made.read_logits(3) == HostLogits(b"y" * 48, 3)
    assert device.log == [("copy_logits_to_host", 0, 0, 48)]
    with pytest.raises(ReadbackFailed, match="boom"):
        router({"copy_logits_to_host": FAULT})[0].read_logits(1)


EFFECTS: list[tuple[str, tuple[Any, ...], str]] = [
    ("compact_slot", (seq(), 1), "compact_sequence"),
    ("save_sequence_state", (seq(), io.BytesIO()), "save_sequence_state"),
    ("ssm_snapshot_save", (seq(), 2), "save_decode_ssm_snapshot"),
    ("ssm_snapshot_restore", (seq(), 2), "restore_decode_ssm_snapshot"),
    ("save_hidden_catchup", (0, 7), "save_hidden_for_catchup"),
    ("sync_secondary", (), "sync_secondary"),
    ("quiesce", (1,), "synchronize"),
    ("rotate_lora", ("name",), "set_active_lora"),
    ("teardown", (), "teardown"),
]


@pytest.mark.parametrize(("effect", "args", "call"), EFFECTS, ids=[entry[0] for entry in EFFECTS])
def test_effects_are_one_call_and_fail_as_effects(effect: str, args: tuple[Any, ...], call: str) -> None:
    """S5 4.1 and 4.2."""
    made, device = router()
    getattr(made, effect)(*args)
    assert device.log == [(call, *args)]
    failing, _ = router({call: FAULT})
    with pytest.raises(EffectFailed, match="boom") as caught:
        getattr(failing, effect)(*args)
    assert caught.value.cause is FAULT


def test_a_full_disk_is_an_effect_error_too() -> None:
    made, _ = router()
    made.device.save_sequence_state = _full  # type: ignore[method-assign]
    with pytest.raises(EffectFailed, match="no space"):
        made.save_sequence_state(seq(), io.BytesIO())


def _full(*_: Any) -> None:
    raise OSError("no space")


def test_infallible_effects() -> None:
    """Checkpoint and detach are the device's own; the shutdown word is ignored when it fails."""
    made, device = router()
    one = seq()
    made.marconi_checkpoint(one)
    made.detach_slot(one)
    made.ep_shutdown()
    assert device.log == [
        ("decode_marconi_checkpoint", one), ("detach_slot_for_reuse", one), ("ep_broadcast_cmd_for_seq", 0, 0xFFFFFFFF),
    ]  # fmt: skip
    router({"ep_broadcast_cmd_for_seq": FAULT})[0].ep_shutdown()
