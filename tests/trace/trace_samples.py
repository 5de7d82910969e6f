"""Hand-written lines of every kind, and one small whole trace."""

from __future__ import annotations

_SUCCEEDED = """\
# scenario plain_decode
-- tick 1
-- tick 18446744073709551615
fx launch Decode{n=3, ctx=Unified, readback=Argmax}
fx launch Decode{n=1, ctx=None, readback=HostLogits}
fx launch Decode{n=1, ctx=SerialAppend, readback=ArgmaxMasked{n=1}}
fx launch DecodeFed{n=4, fed=4, ctx=Unified}
fx apply ReleaseSeq{cache=true, finish_sequence}
fx apply ReleaseSeq{cache=true, preempt_requeue}
fx apply ReleaseSeq{cache=false, spill_out_sequence}
fx apply ReleaseSeq{cache=false, send_error}
fx apply CompactSlot{target=0}
fx apply DetachSlot
fx apply SaveSequenceState
fx apply ReadLogits{rows=3}
fx apply MarconiCheckpoint
fx apply SsmSnapshotSave{slot=2}
fx apply SsmSnapshotRestore{slot=0}
fx apply SaveHiddenCatchup{row=0, pos=17}
fx apply SyncSecondary
fx apply EpShutdown
fx apply Quiesce{stream=1}
fx apply ReserveKv
fx apply Rollback
fx lora Rotate(adapter-x)
fx lora LoadIntoSlot(adapter-x, 2)
fx lora Promote(adapter-x)
fx lora PromoteDisk(adapter x)
fx teardown
bind_gpu_to_thread()
alloc_sequence() -> slot 0
alloc_sequence_for(budget=25) -> slot 1
cache_sequence(s1@0:len=10)
free_sequence(s1@18446744073709551615:len=42, blocks=3)
compact_sequence(s3@2:len=7, new_slot=0)
detach_slot_for_reuse(s1@0:len=42)
save_sequence_state(s1@18446744073709551615:len=42, blocks=3)
restore_sequence_state(s0@0:len=0, blocks=3)
num_free_blocks() -> 1000
reclaim_prefix_blocks(4) -> 0
poll_innerq()
teardown()
prefill(n=5, s1@0:len=5, stream=0)
prefill_chunk(start=8, len=8, last=false, s2@1:len=16, stream=1)
prefill_batch_chunk(streams=["s2@1:len=20 start=16 len=4 last=true", "s3@2:len=18 start=16 len=2 last=true"], stream=1)
prefill_batch_chunk(streams=[], stream=1)
prefill_twophase(n=20, chunk=8, s2@1:len=20, stream=1)
normalize_ssm_states(s2@1:len=16, stream=1)
decode(token=10, s1@0:len=6, stream=0)
decode_batch(tokens=[10, 20], seqs=["s1@0:len=5", "s2@1:len=5"], stream=0)
decode_batch(tokens=[], seqs=[], stream=0)
mixed_forward(decode=[10], prefill=s2@1:len=16 start=8 len=8 last=false, stream=1)
mixed_forward_batch(decode=[12], prefills=["s2@1:len=16 start=8 len=8 last=false"], stream=1)
generate_beam_batch(n=2) -> [[10, 11, 63], []]
argmax_on_device(row=0, stream=0) -> 10
argmax_batch(row=0, n=2, stream=0) -> [11, 21]
copy_logits_to_host(row=1, off=22, bytes=2)
checkpoint_ssm_states(s1@0:len=6)
rollback_ssm_states(s1@0:len=8, n=2)
start_checkpoint_async(s1@0:len=6)
start_rollback_and_checkpoint_async(s1@0:len=9, na=1)
commit_accepted_prefix(s1@0:len=9, na=3, k=4)
sync_secondary()
save_decode_ssm_snapshot(s1@0:len=40, ring=1)
restore_decode_ssm_snapshot(s1@0:len=123, ring=0)
decode_marconi_checkpoint(s1@0:len=6)
decode_verify(tokens=[11, 12, 13], s1@0:len=9) -> [12, 13, 14]
decode_verify_graphed(tokens=[11, 12], s1@0:len=8) -> [12, 1]
decode_verify_graphed_k3(tokens=[11, 12, 14], s1@0:len=9) -> [12, 13, 1]
decode_verify_graphed_k4(tokens=[11, 12, 13, 14], s1@0:len=10) -> [12, 13, 14, 15]
decode_verify_dflash(tokens=[11, 12], s1@0:len=8) -> [12, 13]
decode_and_verify_fused(tokens=[10, 11, 12, 13], s1@0:len=9) -> [11, 12, 13, 14]
can_batch_verify([4, 4, 3]) -> true
can_batch_verify([6, 6]) -> false
decode_verify_batched(tokens=[1, 2, 3], ks=[2, 1], seqs=["s1@0:len=8", "s2@1:len=8"], stream=0, woa=true) -> [2, 3, 4]
gdn_fold_accepted(slots=[0, 1], accepted=[2, 1], k=2) -> true
mtp_slot_draft_capacity(1)
save_hidden_for_mtp(0, stream=0)
stash_verify_hidden_rows([1, 2], stream=0)
save_hidden_for_mtp_from_stash(0, stream=0)
stash_verify_catchup_rows([(0, 0), (4, 2)])
run_mtp_catchup_batched(tokens=[[12], []], slots=[0, 4], pos=[7, 8]) -> 0
save_hidden_for_catchup(0, pos=17)
run_mtp_propose_multi(token=13, pos=8, n=2, s1@0:len=8, stream=0, mask=false) -> [14, 15]
run_mtp_propose_multi(token=13, pos=8, n=0, s1@0:len=8, stream=0, mask=true) -> []
run_mtp_propose_batched(tokens=[13, 22], positions=[8, 7], stash=[0, 1], n=1, stream=0) -> [[14], [23]]
run_mtp_propose_batched(tokens=[13, 22], positions=[8, 7], stash=[0, 1], n=1, stream=0) -> declined
trim_proposer_state(s1@0:len=8, na=1, stream=0)
decode_draft(token=11, s1@0:len=7, stream=0)
commit_ctx(s1@0:len=6, n=1, base=5, row=0)
dflash_eagle_accept_append(s1@0:len=8)
dflash_eagle_kgamma_append(s1@0:len=9, na=3, base=5)
dflash_serial_ctx_append(s1@0:len=6)
adapter_id_for(-1)
acquire_adapter_slot(2)
set_active_lora(adapter-x)
swap_lora_from_disk(/adapters/x, adapter-x, 2)
promote_lora_from_disk(/adapters/x, adapter-x)
promote_lora_from_peer(peer-1, 77, adapter-x)
create_stream() -> 1
create_event() -> 2
record_event(event=2, stream=1)
stream_wait_event(stream=0, event=2)
synchronize(stream=0)
event_query(event=2) -> ERR scripted device fault
event_synchronize(event=3)
destroy_event(event=4)
decode_batch_fed(inputs=[11, 21], seqs=["s1@0:len=6", "s2@1:len=6"], stream=0)
argmax_batch_to_feed(row=0, n=1, masks=[[4294967295, 60]], event=2, stream=0) -> [11]
reserve_decode_block(s1@0:len=6) -> 0
release_decode_blocks(s2@1:len=7, n=1)
fed_step_settled()
ep_broadcast_cmd(0x0)
ep_broadcast_cmd_for_seq(seq=4294967295, cmd=0xfffffff1)
ep_broadcast_tokens(n=20)
ep_sync_vision_embeds(n=20)
rotation ack: Done
rotation ack: Promoted { slot: 1, evicted: None }
rotation ack: Promoted { slot: 1, evicted: Some("adapter-y") }
rotation ack: Err(adapter is in use (1 reference))
rotation ack: dropped
out s0: T0
out s1: T10 T11 TL12:2 Done(stop, n=4, think=0, cached=0, acc=0, guard=None)
out s2: PL5 T10 Done(timeout, n=2, think=1, cached=16, acc=3, guard=Some("request_timeout"))
out s3: T10 Error(KV cache exhausted (scripted at decode_batch #1))
out s4: Error(refused: prompt is empty)
out s5: Error()
out s6: Done(cancelled, n=0, think=0, cached=0, acc=0, guard=None)
out s7: Response(tokens=[10, 63], stop, think=0, cached=0, acc=0, logprobs=1)
out s8: Response(tokens=[], length, think=0, cached=0, acc=0, logprobs=0)
out s9: Err(server shut down during prefill)
out s10: dropped
out s9223372036854775807: """.splitlines()

_FALLIBLE = """\
bind_gpu_to_thread() alloc_sequence() alloc_sequence_for(budget=25) free_sequence(s1@0:len=9, blocks=1)
compact_sequence(s3@2:len=7, new_slot=0) save_sequence_state(s1@0:len=42, blocks=3) teardown()
restore_sequence_state(s0@0:len=0, blocks=3) prefill(n=5, s1@0:len=5, stream=0)
prefill_chunk(start=8, len=8, last=false, s2@1:len=16, stream=1) normalize_ssm_states(s2@1:len=16, stream=1)
prefill_batch_chunk(streams=["s2@1:len=20 start=16 len=4 last=true"], stream=1)
prefill_twophase(n=20, chunk=8, s2@1:len=0, stream=1) decode(token=10, s1@0:len=6, stream=0)
decode_batch(tokens=[10, 20], seqs=["s1@0:len=5", "s2@1:len=5"], stream=0)
mixed_forward(decode=[10], prefill=s2@1:len=16 start=8 len=8 last=false, stream=1)
mixed_forward_batch(decode=[12], prefills=["s2@1:len=16 start=8 len=8 last=false"], stream=1)
generate_beam_batch(n=2) argmax_on_device(row=0, stream=0) argmax_batch(row=0, n=2, stream=0)
copy_logits_to_host(row=1, off=22, bytes=2) checkpoint_ssm_states(s1@0:len=6) rollback_ssm_states(s1@0:len=8, n=2)
start_checkpoint_async(s1@0:len=6) start_rollback_and_checkpoint_async(s1@0:len=9, na=1)
commit_accepted_prefix(s1@0:len=9, na=3, k=4) sync_secondary() save_decode_ssm_snapshot(s1@0:len=40, ring=1)
restore_decode_ssm_snapshot(s1@0:len=123, ring=0) decode_verify(tokens=[11, 12, 13], s1@0:len=9)
decode_verify_graphed(tokens=[11, 12], s1@0:len=8) decode_verify_graphed_k3(tokens=[11, 12, 14], s1@0:len=9)
decode_verify_graphed_k4(tokens=[11, 12, 13, 14], s1@0:len=10) decode_verify_dflash(tokens=[11, 12], s1@0:len=8)
decode_and_verify_fused(tokens=[10, 11, 12, 13], s1@0:len=9) gdn_fold_accepted(slots=[0, 1], accepted=[2, 1], k=2)
decode_verify_batched(tokens=[11, 12], ks=[2], seqs=["s1@0:len=8"], stream=0, woa=false)
save_hidden_for_mtp(0, stream=0) stash_verify_hidden_rows([1, 2], stream=0)
save_hidden_for_mtp_from_stash(0, stream=0) stash_verify_catchup_rows([]) save_hidden_for_catchup(0, pos=17)
run_mtp_catchup_batched(tokens=[[12], []], slots=[0, 4], pos=[7, 8])
run_mtp_propose_multi(token=13, pos=8, n=2, s1@0:len=8, stream=0, mask=false)
run_mtp_propose_batched(tokens=[13, 22], positions=[8, 7], stash=[0, 1], n=1, stream=0)
trim_proposer_state(s1@0:len=8, na=1, stream=0) decode_draft(token=11, s1@0:len=7, stream=0)
commit_ctx(s1@0:len=6, n=1, base=5, row=0) dflash_eagle_accept_append(s1@0:len=8)
dflash_eagle_kgamma_append(s1@0:len=9, na=3, base=5) dflash_serial_ctx_append(s1@0:len=6)
set_active_lora(adapter-x) swap_lora_from_disk(/adapters/x, adapter-x, 2)
promote_lora_from_disk(/adapters/x, adapter-x) promote_lora_from_peer(peer-1, 77, adapter-x)
create_stream() create_event() record_event(event=2, stream=1) stream_wait_event(stream=0, event=2)
synchronize(stream=0) event_synchronize(event=3) destroy_event(event=4)
decode_batch_fed(inputs=[11, 21], seqs=["s1@0:len=6", "s2@1:len=6"], stream=0)
argmax_batch_to_feed(row=0, n=1, masks=[], event=2, stream=0) reserve_decode_block(s1@0:len=6)
release_decode_blocks(s2@1:len=7, n=1) ep_broadcast_cmd(0xa) ep_broadcast_cmd_for_seq(seq=0, cmd=0xfffffff0)
ep_broadcast_tokens(n=20) ep_sync_vision_embeds(n=20)"""

_FAILED = [f"{call}) -> ERR KV cache exhausted" for call in _FALLIBLE.replace("\n", " ").removesuffix(")").split(") ")]

SAMPLES = _SUCCEEDED + _FAILED
"""At least one line of every kind and form."""

TRACE = (
    b"""\
# scenario two_streams
bind_gpu_to_thread()
create_stream() -> 1
create_event() -> 2
num_free_blocks() -> 1000
-- tick 1
alloc_sequence() -> slot 0
adapter_id_for(-1)
prefill(n=5, s1@0:len=5, stream=0)
argmax_on_device(row=0, stream=0) -> 10
fx launch Decode{n=1, ctx=Unified, readback=Argmax}
decode_batch(tokens=[10], seqs=["s1@0:len=5"], stream=0)
argmax_batch(row=0, n=1, stream=0) -> [63]
num_free_blocks() -> 999
-- tick 2
fx apply ReleaseSeq{cache=true, finish_sequence}
cache_sequence(s1@0:len=6)
free_sequence(s1@0:len=6, blocks=1)
ep_broadcast_cmd_for_seq(seq=0, cmd=0xfffffff1)
fx teardown
teardown()
rotation ack: Done
out s1: T10 Done(stop, n=2, think=0, cached=0, acc=0, guard=None)
out s2: Err(refused: prompt is empty)
"""
    + b"out s3: \n"
)
"""A whole trace, shortened to what a reader looks at."""
