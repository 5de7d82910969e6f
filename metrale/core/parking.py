"""Parked work: requeue and resume, spill and swap-in, and what becomes of work that nothing can bring back
(S1 sections 12, 13, 18, 19; S5 section 2.9)."""

from __future__ import annotations

from .clients import answer, answer_error, completion_of
from .config import PREEMPT_IMMUNITY
from .io import DeviceError, EffectFailed, reason
from .request import Completion, Request
from .retire import expired, free_directly, send_error
from .row import Prefill, Requeued, Row, Spilled
from .sequence import Sequence, blocks_for
from .snapshot_ring import SnapshotRing
from .state import State

EP_PREFILL = 0xFFFFFFF0


def announce_prefill(s: State, seq: Sequence, prompt: list[int], length: int, start: int) -> None:
    """The six calls that let an expert-parallel worker mirror a prefill (S2 section 3.5). Raises DeviceError."""
    device = s.device
    device.ep_broadcast_cmd_for_seq(seq.ep_slot, EP_PREFILL)
    device.ep_broadcast_cmd(length)
    device.ep_broadcast_cmd(start)
    device.ep_broadcast_cmd(len(prompt))
    device.ep_broadcast_tokens(prompt)
    device.ep_sync_vision_embeds(prompt)


# -- requeue and resume -----------------------------------------------------------------------------------------------


def requeue(s: State, row: Row) -> None:
    """Park a preempted row on the host; the pending input stays outside the history."""
    history = list(row.seq.tokens)
    s.router.release_seq(row.seq, True, "preempt_requeue")
    row.drop_drafts()
    s.requeued.append(Requeued(row, history))


def resume_requeued(s: State) -> bool:
    """Bring requeued rows back, fewest blocks first, while seats and blocks last; whether any came back."""
    resumed = False
    block_size, total = s.device.facts.block_size, s.device.facts.total_blocks
    while s.requeued and len(s.active) < s.config.max_batch_size:
        entry = min(s.requeued, key=lambda parked: blocks_for(len(parked.history), block_size))
        want = resume_blocks(s, entry)
        if 0 < total < want:
            s.requeued.remove(entry)
            text = f"preempted sequence needs {want} KV blocks but the pool has {total}; cannot resume"
            answer_error(s, entry.row.request, text)
            continue
        if free_after_reclaim(s, want) < want:
            return resumed
        s.requeued.remove(entry)
        if _resume(s, entry):
            s.active.append(entry.row)
            resumed = True
    return resumed


def resume_blocks(s: State, entry: Requeued) -> int:
    """Blocks a resume asks for: the history's and one of growth, else it would be evicted at once."""
    return blocks_for(len(entry.history), s.device.facts.block_size) + 1


def free_after_reclaim(s: State, want: int) -> int:
    """Free blocks, after asking the prefix cache for what is missing until it has nothing more to give."""
    free = s.device.num_free_blocks()
    while free < want:
        if s.device.reclaim_prefix_blocks(want - free) == 0:
            break
        free = s.device.num_free_blocks()
    s.last_free = free
    return free


def _resume(s: State, entry: Requeued) -> bool:
    """One unchunked prefill of the history on stream 0; nothing is read back, the last token stays the next input."""
    row, history = entry.row, entry.history
    request = row.request
    try:
        seq = s.device.alloc_sequence(request)
    except DeviceError as error:
        answer_error(s, request, f"preempt-resume alloc failed: {error.text}")
        return False
    _bind(s, seq, row)
    seq.session_hash = request.id
    row.seq = seq
    try:
        announce_prefill(s, seq, history, len(history), 0)
        s.device.prefill(history, seq, 0)
    except DeviceError as error:
        send_error(s, row, f"preempt-resume re-prefill failed: {error.text}")
        return False
    _returned(s, row)
    return True


def _bind(s: State, seq: Sequence, row: Row) -> None:
    """Give a new sequence the row's stored adapter identity and a reference to its slot."""
    seq.adapter_slot = row.request.adapter_slot
    seq.adapter_id = row.seq.adapter_id
    seq.acquired_adapter = s.device.acquire_adapter_slot(seq.adapter_slot)


def _returned(s: State, row: Row) -> None:
    """What every row gets when it comes back: a spell of immunity and an empty snapshot ring."""
    row.immune_until = len(row.outputs) + PREEMPT_IMMUNITY
    row.ring = SnapshotRing(s.modes.ring_slots)
    row.in_flight = False


# -- spill and swap-in ------------------------------------------------------------------------------------------------


def spill_out(s: State, row: Row) -> str | None:
    """Write a row (already out of the batch) to the spill store; the error text when that failed."""
    store = s.io.spill
    if store is None:
        return "no spill store"
    try:
        file_id, writer = store.create()
    except OSError as error:
        return reason(error)
    try:
        s.router.save_sequence_state(row.seq, writer)
        writer.close()
        store.record_usage(file_id)
    except (EffectFailed, OSError) as error:
        discard(s, file_id)
        return reason(error)
    finally:
        writer.close()
    seq = row.seq
    image = Spilled(row, file_id, list(seq.tokens), seq.seq_len, seq.num_blocks)
    s.router.release_seq(seq, False, "spill_out_sequence")
    row.drop_drafts()
    row.content_tokens = 0
    s.spilled.append(image)
    return None


def discard(s: State, file_id: int) -> None:
    """Remove a spill file, whatever the store says."""
    if s.io.spill is not None:
        try:
            s.io.spill.remove(file_id)
        except OSError:
            return


def spill_for(s: State, requests: list[Request]) -> None:
    """Admission-time spill (S1 section 12): per admitted request, free blocks by reclaiming, then by spilling rows."""
    if s.io.spill is None:
        return
    for request in requests:
        need = blocks_for(len(request.prompt), s.device.facts.block_size)
        free_after_reclaim(s, need)
        while s.device.num_free_blocks() < need and s.active:
            index = _largest_row(s)
            if index is None or not _swap_out(s, index):
                break


def _largest_row(s: State) -> int | None:
    """The row without grammar that holds the most blocks; a tie takes the last."""
    best: int | None = None
    for index, row in enumerate(s.active):
        if not row.request.grammar and (best is None or row.seq.num_blocks >= s.active[best].seq.num_blocks):
            best = index
    return best


def _swap_out(s: State, index: int) -> bool:
    """Spill row ``index``; the last row takes its place and, if it can be had, slot ``index`` (S1 section 19)."""
    victim = s.active[index]
    last = s.active.pop()
    if index < len(s.active):
        s.active[index] = last
        if last.seq.slot != index and not _slot_held(s, index, victim):
            try:
                s.router.compact_slot(last.seq, index)
            except EffectFailed as error:
                send_error(s, victim, f"swap-out failed: {error.text}")
                return False
            s.router.detach_slot(victim.seq)
    failure = spill_out(s, victim)
    if failure is not None:
        send_error(s, victim, f"swap-out failed: {failure}")
        return False
    return True


def _slot_held(s: State, slot: int, victim: Row) -> bool:
    """Whether an active row other than the victim, or a prefilling sequence, holds ``slot`` (D1)."""
    return any(row.seq.slot == slot for row in s.active if row is not victim) or any(
        entry.seq.slot == slot for entry in s.prefilling
    )


def swap_in(s: State) -> bool:
    """Restore spilled rows, the first that fits in spill order, while seats and blocks last; whether any came back."""
    restored = False
    again = True
    while again and s.spilled and len(s.active) < s.config.max_batch_size:
        again = False
        free = free_after_reclaim(s, min(image.num_blocks for image in s.spilled))
        image = next((entry for entry in s.spilled if entry.num_blocks <= free), None)
        if image is None:
            continue
        s.spilled.remove(image)
        if _restore(s, image):
            s.active.append(image.row)
            restored = again = True
    return restored


def _restore(s: State, image: Spilled) -> bool:
    """Alloc, read the image back, remove the file. A failure costs the request (S5 section 2.9)."""
    row, store = image.row, s.io.spill
    assert store is not None
    try:
        seq = s.device.alloc_sequence(row.request)
    except DeviceError as error:
        answer_error(s, row.request, f"swap-in failed: {error.text}")
        return False
    try:
        with store.open(image.file_id) as reader:
            s.device.restore_sequence_state(seq, image.num_blocks, reader)
    except (DeviceError, OSError) as error:
        s.device.free_sequence(seq)
        discard(s, image.file_id)
        answer_error(s, row.request, f"swap-in failed: {reason(error)}")
        return False
    try:
        store.remove(image.file_id)
    except OSError as error:
        s.device.free_sequence(seq)
        answer_error(s, row.request, f"swap-in failed: {reason(error)}")
        return False
    seq.tokens, seq.seq_len = image.tokens, image.seq_len
    _bind(s, seq, row)
    row.seq = seq
    row.last_token_time = s.io.clock.now()
    _returned(s, row)
    return True


# -- parked work that ends --------------------------------------------------------------------------------------------


def bring_back(s: State) -> bool:
    """Swap-in, then resume; whether any row came back."""
    restored = swap_in(s) if s.spilled else False
    return (resume_requeued(s) if s.requeued else False) or restored


def give_up_parked(s: State) -> None:
    """No later tick can differ: every parked request ends with an error (D2, D13, D28)."""
    for image in s.spilled:
        discard(s, image.file_id)
        _cannot_resume(s, image.row, image.num_blocks)
    for entry in s.requeued:
        _cannot_resume(s, entry.row, resume_blocks(s, entry))
    s.spilled, s.requeued = [], []


def _cannot_resume(s: State, row: Row, needs: int) -> None:
    text = f"cannot resume: needs {needs} KV blocks, {s.last_free} free and nothing left to wait for"
    answer_error(s, row.request, text)


def end_waiting(s: State) -> None:
    """End cancelled and, with deadline scope "all", expired work that prefills or is parked (S1 section 17)."""
    now = s.io.clock.now()
    s.prefilling = [entry for entry in s.prefilling if not _ended_prefill(s, entry, now)]
    s.spilled = [image for image in s.spilled if not _ended_parked(s, image.row, now, image.file_id)]
    s.requeued = [entry for entry in s.requeued if not _ended_parked(s, entry.row, now, None)]


def _verdict(s: State, request: Request, now: int) -> tuple[str, str | None] | None:
    """(reason, guard) of a wish to end that acts outside the batch, or None."""
    if request.cancelled:
        return "cancelled", None
    if s.config.deadline_scope_all and expired(request, now):
        return "timeout", "request_timeout"
    return None


def _ended_prefill(s: State, entry: Prefill, now: int) -> bool:
    verdict = _verdict(s, entry.request, now)
    if verdict is None:
        return False
    answer(s, entry.request, Completion(verdict[0], [], guard=verdict[1]))
    free_directly(s, entry.seq)
    return True


def _ended_parked(s: State, row: Row, now: int, file_id: int | None) -> bool:
    verdict = _verdict(s, row.request, now)
    if verdict is None:
        return False
    answer(s, row.request, completion_of(row, *verdict))
    if file_id is not None:
        discard(s, file_id)
    return True
