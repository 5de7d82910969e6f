"""Scenarios out of a seed: every lane, policy and router, every knob and fault, sizes that make them meet.

The draw has two phases in mind: faults counted by call strike early, and some requests arrive after the last of them
and must be served as if nothing had happened (see :mod:`.judge`).
"""

from __future__ import annotations

from typing import Any

from .prng import Stream

EOS = 63
Tables = dict[str, Any]

LANES = (
    *["plain"] * 3, *["chunked"] * 3, *["mtp"] * 3, *["mtp_chunked"] * 2, *["dflash"] * 2, *["ngram"] * 2,
    *["self_spec"] * 2, *["async"] * 3, *["async_chunked"] * 2, "think", "watchdog",
    *["parking"] * 2, *["spill"] * 2,
)  # fmt: skip
"""Lane profiles, weighed by repetition."""

CROWDED = ("parking", "spill")
SPECULATIVE = ("mtp", "mtp_chunked", "dflash", "ngram", "self_spec")


def draw_scenario(seed: int) -> Tables:
    """The scenario of a seed, as the tables of a scenario file."""
    root = Stream(seed, "scenario")
    lane = root.sub("lane").pick(LANES)
    device, scheduler = _device(root.sub("device"), lane), _scheduler(root.sub("scheduler"), lane)
    count = root.sub("count").pick((3, 4, 5, 6) if lane in CROWDED else (1, 2, 2, 3, 3, 3, 4, 4, 5, 6, 8))
    requests = [_request(root.sub(f"request/{index}"), index, lane, device) for index in range(count)]
    _pool(root.sub("pool"), device, scheduler, requests, lane)
    tables: Tables = {"name": f"fuzz_{seed}", "about": f"lane {lane}", "device": device, "scheduler": scheduler}
    tables["request"] = requests
    _faults(root.sub("faults"), device, scheduler, lane)
    _disturbances(root.sub("disturbances"), requests, scheduler)
    return tables


def _device(draw: Stream, lane: str) -> Tables:
    device: Tables = {"block_size": draw.pick((2, 4, 4, 8, 16, 16))}
    if draw.one_in(6):
        device["vocab"] = draw.pick((64, 128, 256))
    if lane in ("mtp", "mtp_chunked", "dflash"):
        device["has_proposer"] = True
        if draw.one_in(5):
            device["can_batch_verify"] = False
        if draw.one_in(6):
            device["slot_draft_capacity"] = draw.below(4)
    if lane == "self_spec":
        device["has_self_speculative"] = True
        if draw.one_in(6):
            device["slot_draft_capacity"] = draw.below(4)
    if lane.startswith("async"):
        if draw.one_in(8):
            device["device_token_feed"] = False
        if draw.one_in(3):
            device["event_lag"] = 2500 if draw.one_in(20) else draw.pick((1, 3))
        if draw.one_in(25):
            device["reversed_completion"] = True
    if lane == "watchdog" and draw.one_in(2):
        device["has_ssm_layers"], device["ring_slots"] = True, draw.pick((1, 2, 8))
    if draw.one_in(12):
        device["supports_beam"] = True
    return device


def _scheduler(draw: Stream, lane: str) -> Tables:
    scheduler: Tables = {"max_batch_size": draw.pick((1, 2, 3, 4, 8, 8, 8, 16))}
    if lane in ("chunked", "mtp_chunked", "async_chunked") or draw.one_in(8):
        scheduler["max_prefill_tokens"] = draw.pick((1, 3, 4, 8, 8, 10))
        scheduler["max_batch_tokens"] = draw.pick((8, 16, 8192, 0))
    if lane in ("mtp", "mtp_chunked", "dflash"):
        scheduler["use_speculative"] = True
        scheduler["num_drafts"] = draw.pick((1, 1, 2, 3, 3, 5) if lane != "dflash" else (1, 2, 3, 5, 7))
        if lane == "dflash":
            scheduler["dflash"] = True
    if lane == "ngram":
        scheduler["ngram_speculative"] = True
    if lane == "self_spec":
        scheduler["self_speculative"], scheduler["num_drafts"] = True, draw.pick((1, 2, 3))
    if lane.startswith("async") or draw.one_in(10):
        scheduler["router"] = "async"
    if lane == "think" or (lane in SPECULATIVE and draw.one_in(8)):
        scheduler["think_start_token"], scheduler["think_end_token"] = 60, 61
    if lane == "watchdog":
        scheduler["loop_watchdog"], scheduler["boundary_tokens"] = True, [12]
    if draw.one_in(3):
        scheduler["policy"] = "slai"
    if lane == "spill" or draw.one_in(4):
        scheduler["swap_space_gb"] = 1
    if draw.one_in(3):
        scheduler["deadline_scope"] = "all"
    if draw.one_in(10):
        scheduler["max_seq_len"] = draw.pick((0, 24, 48, 64))
    if draw.one_in(4 if lane in CROWDED else 10):
        scheduler["lora_rotation"] = "adapter-b"
    if draw.one_in(16):
        scheduler["dflash_unified_ctx"] = False
        scheduler["dflash_serial_append"] = draw.one_in(2)
    return scheduler


def _request(draw: Stream, index: int, lane: str, device: Tables) -> Tables:
    length = draw.pick((1, 2, 3, 5, 5, 8, 13, 17, 24, 40, 60))
    request: Tables = {"id": index + 1, "prompt_len": length, "tokens": _script(draw.sub("script"), index, lane)}
    if draw.one_in(4):
        request["max_tokens"] = draw.between(1, len(request["tokens"]) + 3)
    if draw.one_in(2 if lane == "watchdog" else 5):
        request["streaming"] = False
    if draw.one_in(6):
        request["min_tokens"] = draw.between(1, len(request["tokens"]))
    if draw.one_in(8):
        request["temperature"] = draw.pick((0.5, 0.7, 1.0))
    if draw.one_in(8):
        request["top_logprobs"] = draw.between(0, 4)
    if draw.one_in(8):
        request["stop_tokens"] = [draw.between(10, 60)]
    if draw.one_in(10):
        request["grammar_active"] = True
    if draw.one_in(12):
        request["vision_pads"] = True
    if lane in ("mtp", "mtp_chunked", "dflash") and draw.one_in(2):
        request["draft_wrong_every"] = draw.between(1, 5)
    if device.get("supports_beam") and draw.one_in(2):
        request["num_beams"] = draw.between(2, 4)
        request["beam_hyp"] = [10 + index, 11 + index, EOS][: draw.between(1, 3)]
    if draw.one_in(2):
        late = (1, 2, 3, 4, 6, 9, 60) if lane in CROWDED else (1, 1, 2, 3, 4, 6, 9, 15, 30, 60, 90, 120)
        request["arrive_at_tick"] = draw.pick(late)
    return request


def _script(draw: Stream, index: int, lane: str) -> list[int]:
    length = draw.pick((6, 12, 16, 24, 40) if lane in CROWDED else (1, 2, 3, 4, 6, 8, 12, 16, 24, 40, 70, 110, 160))
    if lane == "ngram":
        period = draw.pick((1, 1, 2, 3, 5, 100))
        tokens = [2 + (at % period) % 50 for at in range(length)]
    elif lane == "watchdog":
        period, lead = draw.pick((4, 10, 20, 20, 30)), draw.between(20, 60)
        tokens = [12 if at % 11 == 9 else 20 + (7 * at) % 40 for at in range(lead)]
        tokens += [12 if at % period == 0 else 20 + at % period for at in range(draw.between(90, 160))]
    else:
        base = 10 + 10 * (index % 4)
        tokens = [base + (at * draw.pick((1, 1, 1, 3))) % 20 for at in range(length)]
    if lane == "think" or draw.one_in(20):
        for _ in range(draw.between(1, 3)):
            tokens[draw.below(len(tokens))] = draw.pick((60, 61))
    if draw.one_in(10):
        tokens[draw.below(len(tokens))] = EOS
    if not draw.one_in(4):
        tokens.append(EOS)
    return tokens


def _pool(draw: Stream, device: Tables, scheduler: Tables, requests: list[Tables], lane: str) -> None:
    """Mostly ample, often tight: the blocks of one to all requests, so that reservations, spills and resumes meet."""
    size = device["block_size"]
    needs = [(one["prompt_len"] + len(one["tokens"])) // size + 1 for one in requests]
    kind = draw.pick(("ample", "ample", "fits", "tight", "tight", "one", "prompt"))
    if lane in CROWDED:
        _crowd(draw, device, needs, lane)
        return
    if kind == "ample":
        return
    totals = {
        "fits": sum(needs) + len(needs),
        "tight": (sum(needs) + max(needs)) // 2 + 1,
        "one": max(needs) + 1,
        "prompt": max(one["prompt_len"] for one in requests) // size + 1,
    }
    total = totals[kind]
    device["total_blocks"] = total
    if draw.one_in(2):
        device["held_blocks"] = draw.below(max(1, total // 2))
    if draw.one_in(3):
        device["reclaimable"] = draw.below(max(1, total // 2))
    if scheduler.get("swap_space_gb") and draw.one_in(12):
        device["spill_capacity"] = draw.pick((1, 200, 400))


def _crowd(draw: Stream, device: Tables, needs: list[int], lane: str) -> None:
    """Little room for parked work to come back, or for newcomers without a spill: held blocks take it."""
    device["total_blocks"] = sum(needs) + len(needs)
    room = (
        draw.between(1, max(needs) + 1) if lane == "parking" else draw.between(max(needs), sum(needs) // 2 + max(needs))
    )
    device["held_blocks"] = max(0, device["total_blocks"] - room)
    if lane == "parking":
        first = draw.below(5)
        device["kv_exhaust_at"] = [first + step for step in range(draw.between(1, 3))]
    if draw.one_in(4):
        device["reclaimable"] = draw.below(device["total_blocks"] // 2 + 1)


def _faults(draw: Stream, device: Tables, scheduler: Tables, lane: str) -> None:
    """Faults counted by call, in the first calls of the run."""
    if draw.one_in(3):
        return
    if "kv_exhaust_at" not in device and not draw.one_in(3):
        device["kv_exhaust_at"] = sorted({draw.below(12) for _ in range(draw.between(1, 3))})
    if draw.one_in(4):
        calls = ["prefill", "prefill_chunk", "mixed_forward", "mixed_forward_batch", "prefill_batch_chunk"]
        if lane in SPECULATIVE:
            calls += ["decode", "decode_verify_batched", "decode_verify_graphed", "decode_verify_graphed_k3"]
            calls += ["decode_verify_graphed_k4", "decode_verify", "decode_verify_dflash", "decode_and_verify_fused"]
        chosen = draw.some(calls, draw.between(1, 2))
        device["exhaust_at"] = {call: sorted({draw.below(6) for _ in range(draw.between(1, 2))}) for call in chosen}
    if draw.one_in(8):
        device["fatal_at"] = [draw.below(10)]
    if draw.one_in(24):
        device["device_lost_at"] = [draw.below(10)]
    if scheduler.get("swap_space_gb"):
        if draw.one_in(4):
            device["spill_fail_at"] = [draw.below(2)]
        if draw.one_in(4):
            device["restore_fail_at"] = [draw.below(2)]
    if scheduler.get("router") == "async" and draw.one_in(6):
        device["event_query_fault_at"] = draw.between(1, 12)


def _disturbances(draw: Stream, requests: list[Tables], scheduler: Tables) -> None:
    """What clients do: cancel, expire, go away, ask for the impossible, share an id."""
    for index, request in enumerate(requests):
        own = draw.sub(str(index))
        streaming = request.get("streaming", True)
        if streaming and own.one_in(10):
            request["cancel_at"] = own.below(8)
        if streaming and own.one_in(10):
            request["cancel_at_tick"] = own.pick((own.between(1, 12), own.between(1, 40)))
        if own.one_in(12):
            request["deadline_at_tick"] = own.pick((own.between(1, 12), own.between(1, 40)))
        if own.one_in(20):
            request["expired_deadline"] = True
        if streaming and own.one_in(16):
            request[own.pick(("drop_reader_after", "stall_reader"))] = own.below(6)
        if own.one_in(40):
            request.update(own.pick(({"prompt_len": 0}, {"max_tokens": 0}, {"prompt_len": 5000})))
        if index and own.one_in(24):
            request["id"] = requests[own.below(index)]["id"]
    if draw.one_in(40):
        scheduler["close_inbox_at_tick"] = draw.between(1, 20)
