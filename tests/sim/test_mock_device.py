"""The mock device's books, scripts and faults (S1 section 2)."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrale.core.io import DeviceFacts, DeviceFault, DeviceLost, KvExhausted, Unsupported
from metrale.core.request import CancelFlag, Request
from metrale.core.sequence import NO_SLOT, PrefillSlice, Sequence
from metrale.core.slots import SlotBook
from metrale.sim.mock import Faults, MockConfig, MockDevice, Script
from metrale.sim.mock.books import BlockBook


def device(**keys: object) -> MockDevice:
    facts = DeviceFacts(**{k: v for k, v in keys.items() if k in DeviceFacts.__dataclass_fields__})  # type: ignore[arg-type]
    rest = {k: v for k, v in keys.items() if k not in DeviceFacts.__dataclass_fields__}
    return MockDevice(MockConfig(facts=facts, **rest))  # type: ignore[arg-type]


def request(tokens: list[int], prompt_len: int = 5, **keys: object) -> Request:
    script = Script(tokens=tokens, prompt_len=prompt_len, **keys)  # type: ignore[arg-type]
    return Request(id=1, prompt=[1] * prompt_len, max_tokens=9, sink=None, cancel=CancelFlag(), handle=script)  # type: ignore[arg-type]


# -- slots ------------------------------------------------------------------------------------------------------------


def test_the_smallest_free_slot_else_the_next_number() -> None:
    mock = device()
    made = [mock.alloc_sequence(request([1])) for _ in range(4)]
    assert [seq.slot for seq in made] == [0, 1, 2, 3]
    mock.free_sequence(made[2])
    mock.free_sequence(made[0])
    assert [mock.alloc_sequence(request([1])).slot for _ in range(3)] == [0, 2, 4]


def test_a_double_free_and_a_detached_free_return_no_slot() -> None:
    """D25: the slot goes back at the detach, or not at all when another sequence has taken it."""
    mock = device()
    one, two, three = (mock.alloc_sequence(request([1])) for _ in range(3))
    mock.detach_slot_for_reuse(one)
    assert one.slot == NO_SLOT
    assert one.ep_slot == 0xFFFFFFFF
    mock.free_sequence(one)
    assert mock.alloc_sequence(request([1])).slot == 0
    mock.compact_sequence(three, 1)
    assert (two.slot, three.slot) == (1, 1)
    mock.detach_slot_for_reuse(two)
    assert [mock.alloc_sequence(request([1])).slot for _ in range(2)] == [2, 3]
    mock.free_sequence(three)
    mock.free_sequence(three)
    assert [mock.alloc_sequence(request([1])).slot for _ in range(2)] == [1, 4]


@given(st.lists(st.tuples(st.sampled_from(["alloc", "free", "move", "detach"]), st.integers(0, 9)), max_size=60))
def test_slot_book_never_gives_one_slot_to_two_owners(steps: list[tuple[str, int]]) -> None:
    """Moves go to free or own slots only, as the core does."""
    book, live = SlotBook(), []
    for kind, pick in steps:
        if kind == "alloc":
            seq = Sequence(book.take())
            book.assign(seq.slot, seq)
            taken = {other.slot for other in live}
            assert seq.slot == min(slot for slot in range(len(taken) + 1) if slot not in taken)
            live.append(seq)
        elif live:
            seq = live[pick % len(live)]
            if kind == "move":
                taken = {other.slot for other in live}
                book.move(seq, min(slot for slot in range(len(taken) + 1) if slot not in taken | {seq.slot}))
            else:
                book.release(seq)
                seq.slot = NO_SLOT if kind == "detach" else seq.slot
                live.remove(seq)
        assert len({seq.slot for seq in live}) == len(live)


# -- blocks -----------------------------------------------------------------------------------------------------------


def test_blocks_grow_with_the_next_token_and_the_pool_may_be_overdrawn() -> None:
    """blocks_for(n) = n // 16 + 1; the free count never shows less than 0."""
    mock = device(total_blocks=3)
    seq = mock.alloc_sequence(request([10], prompt_len=15))
    mock.prefill([1] * 15, seq, 0)
    assert (seq.num_blocks, mock.num_free_blocks()) == (1, 2)
    mock.decode_batch([9], [seq], 0)
    assert (seq.seq_len, seq.num_blocks, mock.num_free_blocks()) == (16, 2, 1)
    other = mock.alloc_sequence(request([10], prompt_len=40))
    mock.prefill([1] * 40, other, 0)
    assert (other.num_blocks, mock.num_free_blocks()) == (3, 0)
    mock.free_sequence(other)
    assert (other.num_blocks, other.seq_len, mock.num_free_blocks()) == (0, 40, 1)


def test_held_and_reclaimable_blocks() -> None:
    """D16: the reclaim takes from used, a later release is clamped."""
    book = BlockBook(10, 4, 3)
    seq = Sequence(0)
    assert (book.free, book.grow(seq, 2), book.free) == (6, 2, 4)
    assert (book.reclaim(2), book.used, book.reclaimable) == (2, 0, 1)
    assert (book.reclaim(5), book.used, book.free) == (1, 0, 6)
    book.give_back(seq, 99)
    assert (seq.num_blocks, book.used, book.free) == (0, 0, 6)
    assert book.grow(seq, 0) == 0
    assert BlockBook(4, 4, 0).free == 0


def test_block_size_1() -> None:
    """Every token has its own block, and one for the next."""
    mock = device(block_size=1, total_blocks=100)
    seq = mock.alloc_sequence(request([10], prompt_len=5))
    mock.prefill([1] * 5, seq, 0)
    assert seq.num_blocks == 6
    mock.decode_batch([9], [seq], 0)
    assert seq.num_blocks == 7


# -- scripts ----------------------------------------------------------------------------------------------------------


def test_answers_come_from_the_position_alone() -> None:
    """script[p + 1 - prompt_len], not below 0, past the end the last."""
    script = Script(tokens=[10, 11, 12], prompt_len=5)
    assert [script.after(p) for p in (0, 3, 4, 5, 6, 7, 99)] == [10, 10, 10, 11, 12, 12, 12]


def test_a_resumed_history_continues_at_its_position() -> None:
    """The original prompt length counts, whatever was prefilled."""
    mock = device()
    seq = mock.alloc_sequence(request([10, 11, 12, 13], prompt_len=5))
    mock.prefill([1] * 5 + [10, 11], seq, 0)
    assert (mock.argmax_on_device(0, 0), seq.prompt_len) == (12, 7)


def test_drafts_are_spoilt_on_schedule() -> None:
    """1 + t mod (vocab - 1) at indices that are multiples of the period."""
    script = Script(tokens=[10, 11, 12, 63], prompt_len=5, wrong_every=3)
    assert [script.draft(5 + i, 64) for i in range(5)] == [11, 11, 12, 1, 63]


def test_forwards_of_several_rows() -> None:
    """Chunk rows follow decode rows; a chunk that starts at 0 sets prompt_len."""
    mock = device()
    one = mock.alloc_sequence(request([10, 11, 12], prompt_len=2))
    two = mock.alloc_sequence(request([20, 21], prompt_len=6))
    three = mock.alloc_sequence(request([30, 31], prompt_len=3))
    mock.prefill([1, 1], one, 0)
    mock.mixed_forward([10], [one], PrefillSlice(two, [1] * 6, 0, 4, False), 1)
    assert (mock.rows[0], one.seq_len, two.seq_len, two.prompt_len) == (11, 3, 4, 6)
    pieces = [PrefillSlice(two, [1] * 6, 4, 2, True), PrefillSlice(three, [1] * 3, 0, 3, True)]
    mock.mixed_forward_batch([11], [one], pieces, 1)
    assert mock.rows == [12, 20, 30]
    assert mock.argmax_batch(1, 2, 0) == [20, 30]


def test_host_copies_are_one_hot_blocks() -> None:
    """30.0 at the scripted id; zeros when it lies outside; any byte range of any rows."""
    mock = device(vocab_size=8)
    mock.rows = [3, 9, 0]
    block = mock.copy_logits_to_host(0, 0, 48)
    assert [block[i : i + 2] for i in range(0, 48, 2) if block[i : i + 2] != b"\0\0"] == [b"\xf0\x41"] * 2
    assert (block[6:8], block[32:34]) == (b"\xf0\x41", b"\xf0\x41")
    assert mock.copy_logits_to_host(0, 6, 2) == b"\xf0\x41"
    assert mock.copy_logits_to_host(2, 0, 2) == b"\xf0\x41"
    assert mock.copy_logits_to_host(1, 0, 16) == bytes(16)


# -- faults -----------------------------------------------------------------------------------------------------------


def test_fault_indices_count_every_call_failed_ones_included() -> None:
    """kv_exhaust_at and fatal_at by decode_batch call; nothing changes on a failure."""
    faults = Faults(exhaust_at={"decode_batch": frozenset({1})}, fatal_at=frozenset({2}), lost_at=frozenset({3}))
    mock = device(faults=faults)
    seq = mock.alloc_sequence(request([10, 11], prompt_len=5))
    mock.prefill([1] * 5, seq, 0)
    mock.decode_batch([10], [seq], 0)
    for kind, text in (
        (KvExhausted, "KV cache exhausted (scripted at decode_batch #1)"),
        (DeviceFault, "scripted device fault"),
        (DeviceLost, "scripted device fault"),
    ):
        with pytest.raises(kind) as caught:
            mock.decode_batch([11], [seq], 0)
        assert (caught.value.text, seq.seq_len, mock.rows) == (text, 6, [11])
        assert type(caught.value) is kind
    mock.decode_batch([11], [seq], 0)
    assert seq.seq_len == 7


def test_images_are_checked_on_the_way_back() -> None:
    """A restore takes exactly the image's blocks; a foreign or wrong image is a fault and takes none."""
    mock = device()
    seq = mock.alloc_sequence(request([10], prompt_len=40))
    mock.prefill([1] * 40, seq, 0)
    writer = io.BytesIO()
    mock.save_sequence_state(seq, writer)
    fresh = mock.alloc_sequence(request([10]))
    for data, blocks in ((b"garbage", 3), (writer.getvalue(), 4)):
        with pytest.raises(DeviceFault, match="does not hold this sequence"):
            mock.restore_sequence_state(fresh, blocks, io.BytesIO(data))
    assert fresh.num_blocks == 0
    mock.restore_sequence_state(fresh, 3, io.BytesIO(writer.getvalue()))
    assert (fresh.num_blocks, fresh.seq_len, fresh.tokens) == (3, 0, [])


def test_twophase_prefill_is_a_fact_of_the_device() -> None:
    """Unsupported leaves the sequence untouched; with the fact it is a whole prefill."""
    seq = device().alloc_sequence(request([10]))
    with pytest.raises(Unsupported):
        device().prefill_twophase([1] * 5, seq, 8, 1)
    assert seq.seq_len == 0
    mock = device(twophase_ok=True)
    mock.prefill_twophase([1] * 5, seq, 8, 1)
    assert (seq.seq_len, mock.rows) == (5, [10])


def test_the_cancel_hook_looks_before_the_push_at_generated_tokens() -> None:
    """decode and decode_batch look; mixed forwards do not; equality alone."""
    mock = device()
    made = request([10, 11, 12, 13], prompt_len=2, cancel_at=1)
    seq = mock.alloc_sequence(made)
    mock.prefill([1, 1], seq, 0)
    mock.decode_batch([10], [seq], 0)
    assert made.cancel is not None
    assert not made.cancel.raised
    other = mock.alloc_sequence(request([1], prompt_len=4))
    mock.mixed_forward([11], [seq], PrefillSlice(other, [1] * 4, 0, 4, True), 1)
    mock.decode_batch([12], [seq], 0)
    assert not made.cancel.raised
    twin = request([10, 11, 12, 13], prompt_len=2, cancel_at=1)
    seq = mock.alloc_sequence(twin)
    mock.prefill([1, 1, 10], seq, 0)
    mock.decode(11, seq, 0)
    assert twin.cancel is not None
    assert twin.cancel.raised
