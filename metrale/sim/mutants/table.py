"""The table of planted faults: life cycle and memory here, lanes in :mod:`.table_lanes`."""

from __future__ import annotations

from .plant import Mutant
from .table_lanes import LANES

ADMISSION = "metrale.core.admission"
RETIRE = "metrale.core.retire"
LAUNCH = "metrale.core.decode.launch"
PARKING = "metrale.core.parking"
SCHEDULER = "metrale.core.scheduler"
SYNC = "metrale.core.routers.sync"
MOCK = "metrale.sim.mock"

LIFE_CYCLE = (
    # -- admission
    Mutant("held-back-forgotten", "candidates that do not fit yet are dropped instead of queued again",
           f"{ADMISSION}:gate", "cohort[len(admitted) :] + others", "others"),
    Mutant("prefills-take-no-seat", "sequences being prefilled are not counted as seats",
           f"{ADMISSION}:drain", "(len(s.active) + len(s.prefilling))", "len(s.active)"),
    Mutant("cancel-swallowed-in-queue", "a cancelled request in the queue is started all the same",
           f"{ADMISSION}:_ended_in_queue", "if cancel is not None and cancel.raised:", "if False:"),
    Mutant("deadline-swallowed-in-queue", "an expired request in the queue is started all the same",
           f"{ADMISSION}:_ended_in_queue", "if s.config.deadline_scope_all and expired(request, now):", "if False:"),
    Mutant("admission-live-lock", "with nothing owed, a request whose promise exceeds the pool waits for ever",
           f"{ADMISSION}:_reserved", "1 if count == 0 and nothing_owed else count", "count"),
    Mutant("id-used-twice", "a second request of an id that is in use is served beside the first",
           "metrale.core.clients:own", "is request", "is not None"),
    # -- retirement and compaction
    Mutant("one-retires-a-tick", "only the first finished row of a tick is retired",
           f"{RETIRE}:retire", "leaving = [row for row in s.active if row.finished]",
           "leaving = [row for row in s.active if row.finished][:1]"),
    Mutant("never-compacted", "survivors stay on high slots",
           f"{RETIRE}:rows_to_compact", "if not strays:", "if strays:"),
    Mutant("compaction-onto-live-slot", "compaction takes the slot of a sequence that is being prefilled",
           f"{RETIRE}:rows_to_compact", "held.update(entry.seq.slot for entry in s.prefilling)", "held.update(())"),
    Mutant("compaction-to-smallest", "compaction fills the smallest hole instead of the largest",
           f"{RETIRE}:rows_to_compact", "reversed(targets)", "targets"),
    Mutant("cancel-swallowed-in-batch", "the sweep does not look at cancel flags",
           f"{RETIRE}:sweep", "if cancel is not None and cancel.raised and not s.speculated:", "if False:"),
    Mutant("deadline-swallowed", "the sweep does not look at deadlines",
           f"{RETIRE}:sweep", "elif deadline is not None and now >= deadline and not row.finished:", "elif False:"),
    Mutant("double-release", "a finished sequence is released twice",
           f"{RETIRE}:finish", 's.router.release_seq(row.seq, True, "finish_sequence")',
           's.router.release_seq(row.seq, True, "finish_sequence"); '
           's.router.release_seq(row.seq, True, "finish_sequence")'),
    Mutant("failed-row-leaks", "a row that ends with an error keeps its slot and blocks",
           f"{RETIRE}:send_error", 's.router.release_seq(row.seq, False, "send_error")', "pass"),
    Mutant("failed-row-cached", "the tokens of a failed row are offered to the prefix cache",
           f"{RETIRE}:send_error", "row.seq, False", "row.seq, True"),
    Mutant("no-word-after-direct-free", "workers are not told when a half-prefilled sequence is freed",
           f"{RETIRE}:free_directly", "s.device.ep_broadcast_cmd_for_seq(seq.ep_slot, EP_FREE)", "pass"),
    # -- preemption
    Mutant("victim-off-by-one", "the row with the most tokens is preempted",
           f"{LAUNCH}:choose_victim", "return min(exposed", "return max(exposed" ),
    Mutant("victim-highest-slot", "a tie among victims takes the highest slot",
           f"{LAUNCH}:choose_victim", "row.seq.slot)", "-row.seq.slot)"),
    Mutant("no-immunity", "a row that just came back is preempted again",
           f"{LAUNCH}:choose_victim", "min(exposed or eligible", "min(eligible"),
    Mutant("grammar-row-preempted", "a row with a grammar is preempted",
           f"{LAUNCH}:choose_victim", "not row.request.grammar and", ""),
    Mutant("pair-dies-of-exhaustion", "a dry pool fails two rows where one could be parked",
           f"{LAUNCH}:launch_decode", "len(rows) > 1", "len(rows) > 2"),
    Mutant("parked-row-lost", "a preempted row is parked nowhere",
           f"{LAUNCH}:_park", "requeue(s, victim)", "pass"),
    Mutant("stale-input", "a step feeds the first output instead of the last",
           f"{LAUNCH}:launch_decode", "row.last_token for row in rows", "row.outputs[0] for row in rows"),
    # -- parked work
    Mutant("history-holds-pending", "the pending token is prefilled at the resume and fed once more",
           f"{PARKING}:requeue", "list(row.seq.tokens)", "[*row.seq.tokens, row.last_token]"),
    Mutant("history-loses-a-token", "the last fed token is missing from the history of a resumed row",
           f"{PARKING}:requeue", "list(row.seq.tokens)", "row.seq.tokens[:-1]"),
    Mutant("resume-loses-pending", "a resumed row goes on from its first output",
           f"{PARKING}:_returned", "row.in_flight = False", "row.in_flight = False; row.last_token = row.outputs[0]"),
    Mutant("resume-samples-again", "a token is picked from the prefill of a resumed row",
           f"{PARKING}:_resume", "_returned(s, row)",
           "_returned(s, row); row.last_token = s.device.argmax_on_device(0, 0)"),
    Mutant("resume-largest-first", "the requeued row with the most blocks comes back first",
           f"{PARKING}:resume_requeued", "entry = min(s.requeued", "entry = max(s.requeued"),
    Mutant("resume-without-growth", "a row is resumed without a block to grow into",
           f"{PARKING}:resume_blocks", "s.device.facts.block_size) + 1", "s.device.facts.block_size)"),
    Mutant("restore-too-short", "a restored row is one token shorter than it was",
           f"{PARKING}:_restore", "= image.tokens, image.seq_len", "= image.tokens[:-1], image.seq_len - 1"),
    Mutant("restore-wrong-size", "a restore asks for one block more than was saved",
           f"{PARKING}:_restore", "image.num_blocks, reader", "image.num_blocks + 1, reader"),
    Mutant("restored-adapter-missing", "a row that comes back takes no adapter reference",
           f"{PARKING}:_bind", "s.device.acquire_adapter_slot(seq.adapter_slot)", "-1"),
    Mutant("spill-smallest-row", "the row with the fewest blocks is spilled for a newcomer",
           f"{PARKING}:_largest_row", "row.seq.num_blocks >= s.active[best]", "row.seq.num_blocks < s.active[best]"),
    Mutant("parked-in-idle-ticks", "parked work does not come back once nothing is active",
           f"{SCHEDULER}:Scheduler._try_parked", "if s.parked:", "if False:"),
    Mutant("cancel-swallowed-while-parked", "a cancelled request that is parked comes back and runs on",
           f"{PARKING}:_verdict", "if request.cancelled:", "if False:"),
    Mutant("no-reclaim", "the prefix cache is never asked for blocks",
           f"{PARKING}:free_after_reclaim", "while free < want:", "while False:"),
    # -- the tick
    Mutant("rotation-under-parked-work", "an adapter is rotated while parked work waits",
           f"{SCHEDULER}:_rotate_if_quiescent", " or s.parked", ""),
    Mutant("compaction-before-retirement", "slots are compacted before finished rows have left",
           f"{SCHEDULER}:Scheduler.end_tick", "retire(s)\n    compact(s)", "compact(s)\n    retire(s)"),
    Mutant("dropped-at-shutdown", "requests that never got in are not told when the run ends",
           f"{SCHEDULER}:Scheduler.finish", "s.pending + s.io.inbox.close()", "()"),
    Mutant("quiesce-one-stream", "the end of the run does not wait for the prefill stream",
           f"{SCHEDULER}:Scheduler.finish", "for stream in (0, s.prefill_stream):", "for stream in (0,):"),
    # -- the synchronous router
    Mutant("release-frees-nothing", "a release announces the free but does not make it",
           f"{SYNC}:SyncRouter.release_seq", "_attempt(device.free_sequence, seq)", "pass"),
    Mutant("release-word-wrong-slot", "workers free another slot than the head",
           f"{SYNC}:SyncRouter.release_seq", "slot = seq.ep_slot", "slot = seq.ep_slot + 1"),
    Mutant("cached-after-free", "a sequence is offered to the prefix cache after its blocks are gone",
           f"{SYNC}:SyncRouter.release_seq",
           "    if cache:\n        _attempt(device.cache_sequence, seq)\n    slot = seq.ep_slot\n"
           "    _attempt(device.free_sequence, seq)",
           "    slot = seq.ep_slot\n    _attempt(device.free_sequence, seq)\n    if cache:\n"
           "        _attempt(device.cache_sequence, seq)"),
    Mutant("context-row-zero", "every row commits the context of row 0",
           f"{SYNC}:commit_context", "if bases is None else bases[index], index)",
           "if bases is None else bases[index], 0)"),
    Mutant("context-base-low", "a fed step commits its context one position too low",
           f"{SYNC}:commit_context", "else bases[index]", "else bases[index] - 1"),
    # -- the mock device
    Mutant("leaked-block", "each free loses a block", f"{MOCK}.books:BlockBook.give_back",
           "self.used = max(0, self.used - count)", "self.used = max(0, self.used - max(0, count - 1))"),
    Mutant("slot-shared", "a move leaves its target on the free list", "metrale.core.slots:SlotBook.move",
           "self._free.remove(target)", "pass"),
    Mutant("largest-slot-first", "a new sequence takes the largest free slot", "metrale.core.slots:SlotBook.take",
           "self._free.pop(0)", "self._free.pop()"),
    Mutant("growth-one-late", "a block is taken one token too late", f"{MOCK}.device:MockDevice.decode_batch",
           "length // block_size >= seq.num_blocks", "length // block_size > seq.num_blocks"),
    Mutant("script-of-another", "every row of a batch answers from the first row's script",
           f"{MOCK}.device:MockDevice.decode_batch",
           "rows.append(answers[index] if index < len(answers) else answers[-1])",
           "rows.append(rows[0] if rows else answers[index] if index < len(answers) else answers[-1])"),
    Mutant("cancel-hook-dead", "the device never raises a cancel flag", f"{MOCK}.device:MockDevice._cancel_hook",
           "request.cancel.raised = True", "pass"),
    Mutant("restored-block-table", "a restored sequence holds one block too few",
           f"{MOCK}.device:MockDevice.restore_sequence_state",
           "self.blocks.grow(seq, num_blocks)", "self.blocks.grow(seq, num_blocks - 1)"),
)  # fmt: skip

MUTANTS: tuple[Mutant, ...] = LIFE_CYCLE + LANES
"""All planted faults."""
