"""The call log: a device decorator that writes one line per call, in front of any device, simulated or real
(S1 sections 1 and 2).

Lines are written after the call has done its work, with the lengths of that moment; calls that print a state which
they change themselves are formatted before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

from metrale.core.io import Device, DeviceError, DeviceFacts
from metrale.core.request import Request
from metrale.core.sequence import PrefillSlice, RowMask, Sequence

Write = Callable[[str], None]


def sid(seq: Sequence) -> str:
    """A sequence as it prints: hash, slot, length."""
    return f"s{seq.session_hash}@{seq.slot}:len={seq.seq_len}"


def _sids(seqs: list[Sequence]) -> str:
    return "[" + ", ".join([f'"s{q.session_hash}@{q.slot}:len={q.seq_len}"' for q in seqs]) + "]"


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _piece(piece: PrefillSlice) -> str:
    return f"{sid(piece.seq)} start={piece.start} len={piece.length} last={_bool(piece.last)}"


def _pieces(pieces: list[PrefillSlice]) -> str:
    return "[" + ", ".join([f'"{_piece(piece)}"' for piece in pieces]) + "]"


class RecordingDevice:
    """Logs every call of ``inner`` through ``write``; a forward that fails is logged with its reason."""

    def __init__(self, inner: Device, write: Write) -> None:
        self.inner = inner
        self.write = write
        self.facts: DeviceFacts = inner.facts
        self._commit_ctx = inner.commit_ctx
        self._marconi = inner.decode_marconi_checkpoint

    def _run(self, line: str, call: Callable[..., None], *args: object) -> None:
        """Run and log a call whose line does not depend on what it does; a failure is logged and passed on."""
        try:
            call(*args)
        except DeviceError as error:
            self.write(f"{line} -> ERR {error.short}")
            raise
        self.write(line)

    # -- life cycle and memory

    def bind_gpu_to_thread(self) -> None:
        self.inner.bind_gpu_to_thread()
        self.write("bind_gpu_to_thread()")

    def alloc_sequence(self, request: Request) -> Sequence:
        seq = self.inner.alloc_sequence(request)
        self.write(f"alloc_sequence() -> slot {seq.slot}")
        return seq

    def alloc_sequence_for(self, request: Request, budget: int) -> Sequence:
        seq = self.inner.alloc_sequence_for(request, budget)
        self.write(f"alloc_sequence_for(budget={budget}) -> slot {seq.slot}")
        return seq

    def cache_sequence(self, seq: Sequence) -> None:
        self.inner.cache_sequence(seq)
        self.write(f"cache_sequence({sid(seq)})")

    def free_sequence(self, seq: Sequence) -> None:
        self._run(f"free_sequence({sid(seq)}, blocks={seq.num_blocks})", self.inner.free_sequence, seq)

    def compact_sequence(self, seq: Sequence, new_slot: int) -> None:
        self._run(f"compact_sequence({sid(seq)}, new_slot={new_slot})", self.inner.compact_sequence, seq, new_slot)

    def detach_slot_for_reuse(self, seq: Sequence) -> None:
        self._run(f"detach_slot_for_reuse({sid(seq)})", self.inner.detach_slot_for_reuse, seq)

    def save_sequence_state(self, seq: Sequence, writer: BinaryIO) -> None:
        line = f"save_sequence_state({sid(seq)}, blocks={seq.num_blocks})"
        try:
            self._run(line, self.inner.save_sequence_state, seq, writer)
        except OSError as error:
            self.write(f"{line} -> ERR {error.strerror or error}")
            raise

    def restore_sequence_state(self, seq: Sequence, num_blocks: int, reader: BinaryIO) -> None:
        line = f"restore_sequence_state({sid(seq)}, blocks={num_blocks})"
        self._run(line, self.inner.restore_sequence_state, seq, num_blocks, reader)

    def num_free_blocks(self) -> int:
        free = self.inner.num_free_blocks()
        self.write(f"num_free_blocks() -> {free}")
        return free

    def reclaim_prefix_blocks(self, count: int) -> int:
        got = self.inner.reclaim_prefix_blocks(count)
        self.write(f"reclaim_prefix_blocks({count}) -> {got}")
        return got

    def poll_innerq(self) -> None:
        self.inner.poll_innerq()
        self.write("poll_innerq()")

    def teardown(self) -> None:
        self.inner.teardown()
        self.write("teardown()")

    # -- forwards

    def _forward(self, line: Callable[[], str], call: Callable[..., None], *args: object) -> None:
        """Run a forward and log it with the lengths after it; on failure with those before, which still hold."""
        try:
            call(*args)
        except DeviceError as error:
            self.write(f"{line()} -> ERR {error.short}")
            raise
        self.write(line())

    def prefill(self, prompt: list[int], seq: Sequence, stream: int) -> None:
        self._forward(
            lambda: f"prefill(n={len(prompt)}, {sid(seq)}, stream={stream})", self.inner.prefill, prompt, seq, stream
        )

    def prefill_chunk(self, piece: PrefillSlice, stream: int) -> None:
        def line() -> str:
            span = f"start={piece.start}, len={piece.length}, last={_bool(piece.last)}"
            return f"prefill_chunk({span}, {sid(piece.seq)}, stream={stream})"

        self._forward(line, self.inner.prefill_chunk, piece, stream)

    def prefill_batch_chunk(self, pieces: list[PrefillSlice], stream: int) -> None:
        self._forward(
            lambda: f"prefill_batch_chunk(streams={_pieces(pieces)}, stream={stream})",
            self.inner.prefill_batch_chunk,
            pieces,
            stream,
        )

    def prefill_twophase(self, prompt: list[int], seq: Sequence, chunk: int, stream: int) -> None:
        self._forward(
            lambda: f"prefill_twophase(n={len(prompt)}, chunk={chunk}, {sid(seq)}, stream={stream})",
            self.inner.prefill_twophase,
            prompt,
            seq,
            chunk,
            stream,
        )

    def normalize_ssm_states(self, seq: Sequence, stream: int) -> None:
        self._run(f"normalize_ssm_states({sid(seq)}, stream={stream})", self.inner.normalize_ssm_states, seq, stream)

    def decode(self, token: int, seq: Sequence, stream: int) -> None:
        self._forward(
            lambda: f"decode(token={token}, {sid(seq)}, stream={stream})", self.inner.decode, token, seq, stream
        )

    def decode_batch(self, tokens: list[int], seqs: list[Sequence], stream: int) -> None:
        line = f"decode_batch(tokens={tokens}, seqs={_sids(seqs)}, stream={stream})"
        self._run(line, self.inner.decode_batch, tokens, seqs, stream)

    def mixed_forward(self, tokens: list[int], seqs: list[Sequence], piece: PrefillSlice, stream: int) -> None:
        self._forward(
            lambda: f"mixed_forward(decode={tokens}, prefill={_piece(piece)}, stream={stream})",
            self.inner.mixed_forward,
            tokens,
            seqs,
            piece,
            stream,
        )

    def mixed_forward_batch(
        self, tokens: list[int], seqs: list[Sequence], pieces: list[PrefillSlice], stream: int
    ) -> None:
        self._forward(
            lambda: f"mixed_forward_batch(decode={tokens}, prefills={_pieces(pieces)}, stream={stream})",
            self.inner.mixed_forward_batch,
            tokens,
            seqs,
            pieces,
            stream,
        )

    def generate_beam_batch(self, requests: list[Request]) -> list[list[int]]:
        answers = self.inner.generate_beam_batch(requests)
        self.write(f"generate_beam_batch(n={len(requests)}) -> {answers}")
        return answers

    # -- logits

    def argmax_on_device(self, row: int, stream: int) -> int:
        token = self.inner.argmax_on_device(row, stream)
        self.write(f"argmax_on_device(row={row}, stream={stream}) -> {token}")
        return token

    def argmax_batch(self, row: int, count: int, stream: int) -> list[int]:
        tokens = self.inner.argmax_batch(row, count, stream)
        self.write(f"argmax_batch(row={row}, n={count}, stream={stream}) -> {tokens}")
        return tokens

    def copy_logits_to_host(self, row: int, offset: int, nbytes: int) -> bytes:
        data = self.inner.copy_logits_to_host(row, offset, nbytes)
        self.write(f"copy_logits_to_host(row={row}, off={offset}, bytes={nbytes})")
        return data

    # -- recurrent state

    def checkpoint_ssm_states(self, seq: Sequence) -> None:
        self._run(f"checkpoint_ssm_states({sid(seq)})", self.inner.checkpoint_ssm_states, seq)

    def rollback_ssm_states(self, seq: Sequence, count: int) -> None:
        self._run(f"rollback_ssm_states({sid(seq)}, n={count})", self.inner.rollback_ssm_states, seq, count)

    def start_checkpoint_async(self, seq: Sequence) -> None:
        self._run(f"start_checkpoint_async({sid(seq)})", self.inner.start_checkpoint_async, seq)

    def start_rollback_and_checkpoint_async(self, seq: Sequence, accepted: int) -> None:
        line = f"start_rollback_and_checkpoint_async({sid(seq)}, na={accepted})"
        self._run(line, self.inner.start_rollback_and_checkpoint_async, seq, accepted)

    def commit_accepted_prefix(self, seq: Sequence, accepted: int, rows: int) -> None:
        line = f"commit_accepted_prefix({sid(seq)}, na={accepted}, k={rows})"
        self._run(line, self.inner.commit_accepted_prefix, seq, accepted, rows)

    def sync_secondary(self) -> None:
        self._run("sync_secondary()", self.inner.sync_secondary)

    def save_decode_ssm_snapshot(self, seq: Sequence, ring: int) -> None:
        self._run(f"save_decode_ssm_snapshot({sid(seq)}, ring={ring})", self.inner.save_decode_ssm_snapshot, seq, ring)

    def restore_decode_ssm_snapshot(self, seq: Sequence, ring: int) -> None:
        line = f"restore_decode_ssm_snapshot({sid(seq)}, ring={ring})"
        self._run(line, self.inner.restore_decode_ssm_snapshot, seq, ring)

    def decode_marconi_checkpoint(self, seq: Sequence) -> None:
        self._marconi(seq)
        self.write(f"decode_marconi_checkpoint(s{seq.session_hash}@{seq.slot}:len={seq.seq_len})")

    # -- verify

    def _verify(self, name: str, call: Callable[..., list[int]], tokens: list[int], seq: Sequence) -> list[int]:
        try:
            answers = call(tokens, seq)
        except DeviceError as error:
            self.write(f"{name}(tokens={tokens}, {sid(seq)}) -> ERR {error.short}")
            raise
        self.write(f"{name}(tokens={tokens}, {sid(seq)}) -> {answers}")
        return answers

    def decode_verify(self, tokens: list[int], seq: Sequence) -> list[int]:
        return self._verify("decode_verify", self.inner.decode_verify, tokens, seq)

    def decode_verify_graphed(self, tokens: list[int], seq: Sequence) -> list[int]:
        return self._verify("decode_verify_graphed", self.inner.decode_verify_graphed, tokens, seq)

    def decode_verify_graphed_k3(self, tokens: list[int], seq: Sequence) -> list[int]:
        return self._verify("decode_verify_graphed_k3", self.inner.decode_verify_graphed_k3, tokens, seq)

    def decode_verify_graphed_k4(self, tokens: list[int], seq: Sequence) -> list[int]:
        return self._verify("decode_verify_graphed_k4", self.inner.decode_verify_graphed_k4, tokens, seq)

    def decode_verify_dflash(self, tokens: list[int], seq: Sequence) -> list[int]:
        return self._verify("decode_verify_dflash", self.inner.decode_verify_dflash, tokens, seq)

    def decode_and_verify_fused(self, tokens: list[int], seq: Sequence) -> list[int]:
        return self._verify("decode_and_verify_fused", self.inner.decode_and_verify_fused, tokens, seq)

    def can_batch_verify(self, rows: list[int]) -> bool:
        answer = self.inner.can_batch_verify(rows)
        self.write(f"can_batch_verify({rows}) -> {_bool(answer)}")
        return answer

    def decode_verify_batched(
        self, tokens: list[int], rows: list[int], seqs: list[Sequence], stream: int, write_on_accept: bool
    ) -> list[int]:
        def line() -> str:
            tail = f"stream={stream}, woa={_bool(write_on_accept)}"
            return f"decode_verify_batched(tokens={tokens}, ks={rows}, seqs={_sids(seqs)}, {tail})"

        try:
            answers = self.inner.decode_verify_batched(tokens, rows, seqs, stream, write_on_accept)
        except DeviceError as error:
            self.write(f"{line()} -> ERR {error.short}")
            raise
        self.write(f"{line()} -> {answers}")
        return answers

    def gdn_fold_accepted(self, seqs: list[Sequence], accepted: list[int], rows: int) -> bool:
        done = self.inner.gdn_fold_accepted(seqs, accepted, rows)
        slots = [seq.slot for seq in seqs]
        self.write(f"gdn_fold_accepted(slots={slots}, accepted={accepted}, k={rows}) -> {_bool(done)}")
        return done

    def mtp_slot_draft_capacity(self, slot: int) -> int:
        capacity = self.inner.mtp_slot_draft_capacity(slot)
        self.write(f"mtp_slot_draft_capacity({slot})")
        return capacity

    # -- drafter

    def decode_draft(self, token: int, seq: Sequence, stream: int) -> None:
        self._forward(
            lambda: f"decode_draft(token={token}, {sid(seq)}, stream={stream})",
            self.inner.decode_draft,
            token,
            seq,
            stream,
        )

    def save_hidden_for_mtp(self, row: int, stream: int) -> None:
        self._run(f"save_hidden_for_mtp({row}, stream={stream})", self.inner.save_hidden_for_mtp, row, stream)

    def stash_verify_hidden_rows(self, rows: list[int], stream: int) -> None:
        self._run(
            f"stash_verify_hidden_rows({rows}, stream={stream})", self.inner.stash_verify_hidden_rows, rows, stream
        )

    def save_hidden_for_mtp_from_stash(self, index: int, stream: int) -> None:
        line = f"save_hidden_for_mtp_from_stash({index}, stream={stream})"
        self._run(line, self.inner.save_hidden_for_mtp_from_stash, index, stream)

    def stash_verify_catchup_rows(self, pairs: list[tuple[int, int]]) -> None:
        self._run(f"stash_verify_catchup_rows({pairs})", self.inner.stash_verify_catchup_rows, pairs)

    def run_mtp_catchup_batched(self, tokens: list[list[int]], slots: list[int], positions: list[int]) -> int:
        rows = self.inner.run_mtp_catchup_batched(tokens, slots, positions)
        self.write(f"run_mtp_catchup_batched(tokens={tokens}, slots={slots}, pos={positions}) -> {rows}")
        return rows

    def run_mtp_propose_multi(
        self, token: int, pos: int, count: int, seq: Sequence, stream: int, mask: bool
    ) -> list[int]:
        drafts = self.inner.run_mtp_propose_multi(token, pos, count, seq, stream, mask)
        args = f"token={token}, pos={pos}, n={count}, {sid(seq)}, stream={stream}, mask={_bool(mask)}"
        self.write(f"run_mtp_propose_multi({args}) -> {drafts}")
        return drafts

    def run_mtp_propose_batched(
        self, tokens: list[int], positions: list[int], stash: list[int], count: int, seqs: list[Sequence], stream: int
    ) -> tuple[list[list[int]], list[list[float]]] | None:
        answer = self.inner.run_mtp_propose_batched(tokens, positions, stash, count, seqs, stream)
        shown = "declined" if answer is None else answer[0]
        args = f"tokens={tokens}, positions={positions}, stash={stash}, n={count}, stream={stream}"
        self.write(f"run_mtp_propose_batched({args}) -> {shown}")
        return answer

    def trim_proposer_state(self, seq: Sequence, accepted: int, stream: int) -> None:
        line = f"trim_proposer_state({sid(seq)}, na={accepted}, stream={stream})"
        self._run(line, self.inner.trim_proposer_state, seq, accepted, stream)

    def save_hidden_for_catchup(self, row: int, pos: int) -> None:
        self._run(f"save_hidden_for_catchup({row}, pos={pos})", self.inner.save_hidden_for_catchup, row, pos)

    def commit_ctx(self, seq: Sequence, count: int, base: int, row: int) -> None:
        self._commit_ctx(seq, count, base, row)
        who = f"s{seq.session_hash}@{seq.slot}:len={seq.seq_len}"
        self.write(f"commit_ctx({who}, n={count}, base={base}, row={row})")

    def dflash_eagle_accept_append(self, seq: Sequence) -> None:
        self._run(f"dflash_eagle_accept_append({sid(seq)})", self.inner.dflash_eagle_accept_append, seq)

    def dflash_eagle_kgamma_append(self, seq: Sequence, accepted: int, base: int) -> None:
        line = f"dflash_eagle_kgamma_append({sid(seq)}, na={accepted}, base={base})"
        self._run(line, self.inner.dflash_eagle_kgamma_append, seq, accepted, base)

    def dflash_serial_ctx_append(self, seq: Sequence) -> None:
        self._run(f"dflash_serial_ctx_append({sid(seq)})", self.inner.dflash_serial_ctx_append, seq)

    # -- adapters, expert parallelism

    def adapter_id_for(self, adapter_slot: int) -> int:
        identity = self.inner.adapter_id_for(adapter_slot)
        self.write(f"adapter_id_for({adapter_slot})")
        return identity

    def acquire_adapter_slot(self, adapter_slot: int) -> int:
        acquired = self.inner.acquire_adapter_slot(adapter_slot)
        self.write(f"acquire_adapter_slot({adapter_slot})")
        return acquired

    def set_active_lora(self, name: str) -> None:
        self._run(f"set_active_lora({name})", self.inner.set_active_lora, name)

    def ep_broadcast_cmd_for_seq(self, seq: int, cmd: int) -> None:
        self._run(f"ep_broadcast_cmd_for_seq(seq={seq}, cmd={cmd:#x})", self.inner.ep_broadcast_cmd_for_seq, seq, cmd)

    def ep_broadcast_cmd(self, cmd: int) -> None:
        self._run(f"ep_broadcast_cmd({cmd:#x})", self.inner.ep_broadcast_cmd, cmd)

    def ep_broadcast_tokens(self, tokens: list[int]) -> None:
        self._run(f"ep_broadcast_tokens(n={len(tokens)})", self.inner.ep_broadcast_tokens, tokens)

    def ep_sync_vision_embeds(self, tokens: list[int]) -> None:
        self._run(f"ep_sync_vision_embeds(n={len(tokens)})", self.inner.ep_sync_vision_embeds, tokens)

    # -- streams and events

    def create_stream(self) -> int:
        stream = self.inner.create_stream()
        self.write(f"create_stream() -> {stream}")
        return stream

    def create_event(self) -> int:
        event = self.inner.create_event()
        self.write(f"create_event() -> {event}")
        return event

    def record_event(self, event: int, stream: int) -> None:
        self._run(f"record_event(event={event}, stream={stream})", self.inner.record_event, event, stream)

    def stream_wait_event(self, stream: int, event: int) -> None:
        self._run(f"stream_wait_event(stream={stream}, event={event})", self.inner.stream_wait_event, stream, event)

    def synchronize(self, stream: int) -> None:
        self._run(f"synchronize(stream={stream})", self.inner.synchronize, stream)

    # -- device token feed

    def decode_batch_fed(self, sources: list[int], seqs: list[Sequence], stream: int) -> None:
        cells = self.inner.feed_cells(max(sources) + 1)
        inputs = [cells[source] for source in sources]
        line = f"decode_batch_fed(inputs={inputs}, seqs={_sids(seqs)}, stream={stream})"
        self._run(line, self.inner.decode_batch_fed, sources, seqs, stream)

    def argmax_batch_to_feed(self, row: int, masks: list[RowMask], buffer: int, event: int, stream: int) -> None:
        self.inner.argmax_batch_to_feed(row, masks, buffer, event, stream)
        shown = [list(mask) for mask in masks]
        args = f"row={row}, n={len(masks)}, masks={shown}, event={event}, stream={stream}"
        self.write(f"argmax_batch_to_feed({args}) -> {self.inner.feed_cells(len(masks))}")

    def feed_cells(self, count: int) -> list[int]:
        return self.inner.feed_cells(count)

    def read_feed(self, buffer: int, count: int) -> list[int]:
        return self.inner.read_feed(buffer, count)

    def reserve_decode_block(self, seq: Sequence) -> int:
        try:
            added = self.inner.reserve_decode_block(seq)
        except DeviceError:
            self.write(f"reserve_decode_block({sid(seq)}) -> ERR exhausted")
            raise
        self.write(f"reserve_decode_block({sid(seq)}) -> {added}")
        return added

    def release_decode_blocks(self, seq: Sequence, count: int) -> None:
        self._run(f"release_decode_blocks({sid(seq)}, n={count})", self.inner.release_decode_blocks, seq, count)

    def fed_step_settled(self) -> None:
        self._run("fed_step_settled()", self.inner.fed_step_settled)

    def event_query(self, event: int) -> bool:
        try:
            return self.inner.event_query(event)
        except DeviceError as error:
            self.write(f"event_query(event={event}) -> ERR {error.short}")
            raise

    def event_synchronize(self, event: int) -> None:
        self._run(f"event_synchronize(event={event})", self.inner.event_synchronize, event)

    def destroy_event(self, event: int) -> None:
        self._run(f"destroy_event(event={event})", self.inner.destroy_event, event)
