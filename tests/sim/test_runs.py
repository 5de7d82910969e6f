"""Whole runs: the same bytes every time, and what every run promises whatever the scenario (cases 15 and 17)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from testkit import E, outs, req, scenario

from metrale.sim.runner import RunResult, run_scenario
from metrale.sim.scenario import Scenario, scenario_from

# -- random scenarios of the plain lanes ------------------------------------------------------------------------------


@st.composite
def requests(draw: st.DrawFn, id: int) -> dict[str, Any]:
    """One request; the script is id-tagged so that a mix-up shows."""
    length = draw(st.integers(1, 12))
    script = [(id * 7 + i) % 60 for i in range(length)] + ([E] if draw(st.booleans()) else [])
    table = req(id, draw(st.sampled_from([1, 2, 5, 15, 16, 17, 33, 60])), script)
    streaming = draw(st.booleans())
    table["streaming"] = streaming
    options: dict[str, st.SearchStrategy[Any]] = {
        "arrive_at_tick": st.integers(1, 9),
        "max_tokens": st.integers(1, 14),
        "min_tokens": st.integers(1, 5),
        "temperature": st.sampled_from([0.3, 1.5]),
        "top_logprobs": st.integers(0, 3),
        "stop_tokens": st.just([script[-1]]),
        "grammar_active": st.booleans(),
        "vision_pads": st.booleans(),
        "expired_deadline": st.booleans(),
        "deadline_at_tick": st.integers(1, 12),
    }
    if streaming:
        options |= {
            "cancel_at": st.integers(0, 8),
            "cancel_at_tick": st.integers(1, 12),
            "drop_reader_after": st.integers(0, 6),
        }
    for key in draw(st.lists(st.sampled_from(sorted(options)), max_size=3, unique=True)):
        table[key] = draw(options[key])
    return table


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Small pools, small batches, faults: everything that parks, waits or ends early."""
    count = draw(st.integers(1, 5))
    total = draw(st.sampled_from([0, 4, 6, 9, 15, 1000]))
    device: dict[str, Any] = {
        "total_blocks": total,
        "held_blocks": draw(st.integers(0, min(total, 8))),
        "block_size": draw(st.sampled_from([1, 4, 16])),
        "kv_exhaust_at": draw(st.lists(st.integers(0, 8), max_size=3)),
        "fatal_at": draw(st.lists(st.integers(0, 12), max_size=1)),
        "device_lost_at": draw(st.sampled_from([[], [], [], [5]])),
        "spill_fail_at": draw(st.lists(st.integers(0, 2), max_size=1)),
        "restore_fail_at": draw(st.lists(st.integers(0, 2), max_size=1)),
        "exhaust_at": draw(st.sampled_from([{}, {"prefill_chunk": [2]}, {"mixed_forward": [1]}, {"prefill": [3]}])),
    }
    knobs: dict[str, Any] = {
        "max_batch_size": draw(st.integers(1, 4)),
        "max_prefill_tokens": draw(st.sampled_from([0, 0, 3, 8])),
        "max_batch_tokens": draw(st.sampled_from([0, 8, 8192])),
        "max_seq_len": draw(st.sampled_from([0, 20, 4096])),
        "swap_space_gb": draw(st.integers(0, 1)),
        "policy": draw(st.sampled_from(["fifo", "slai"])),
        "deadline_scope": draw(st.sampled_from(["active", "all"])),
        "loop_watchdog": draw(st.booleans()),
    }
    if draw(st.integers(0, 4)) == 0:
        knobs["close_inbox_at_tick"] = draw(st.integers(1, 8))
    ids = draw(st.lists(st.integers(1, 4), min_size=count, max_size=count))
    tables = [draw(requests(id)) for id in ids]
    return scenario_from({"name": "random", "device": device, "scheduler": knobs, "request": tables})


def _events(out: str) -> list[str]:
    return re.findall(r"(?:Error|Err|Done|Response)\(.*\)|TL?\d+(?::\d+)?", out)


def _live(result: RunResult) -> dict[str, int]:
    """Allocated and freed sequences, saved and restored images."""
    kinds = ("alloc_sequence", "free_sequence", "save_sequence_state", "restore_sequence_state")
    return {kind: sum(line.startswith(kind) and " ERR " not in line for line in result.calls) for kind in kinds}


@given(scenarios())
def test_what_every_run_promises(sc: Scenario) -> None:
    """One terminal event per client, last; streams are prefixes of the script; every slot and block comes back."""
    result = run_scenario(sc, max_ticks=2000, router="sync")
    assert run_scenario(sc, max_ticks=2000, router="sync").text == result.text
    for table, out in zip(sc.request, outs(result), strict=True):
        events = _events(out)
        assert sum(not event.startswith("T") for event in events) == 1, out
        assert not events[-1].startswith("T")
        tokens = [int(event.lstrip("TL").split(":")[0]) for event in events[:-1]]
        masked = table.min_tokens > 0 or any(token >= 64 for token in table.tokens)
        if not masked:
            script = table.tokens + [table.tokens[-1]] * len(tokens)
            assert tokens == script[: len(tokens)], out
        n = re.search(r"Done\((\w+), n=(\d+)", events[-1])
        if n and not sc.scheduler.think_start_token:
            lost = table.drop_reader_after is not None
            assert lost or int(n[2]) - len(tokens) == (1 if n[1] == "stop" else 0) or n[1] in ("timeout", "length"), out
    calls = _live(result)
    assert calls["alloc_sequence"] == calls["free_sequence"]
    frees = [int(line.rsplit(" ", 1)[1]) for line in result.calls if line.startswith("num_free_blocks")]
    assert frees[-1] == max(0, sc.device.total_blocks - sc.device.held_blocks)
    assert not re.search(r"\d\.\d", result.text), "a decimal number reached the trace"
    assert result.calls[-1] == "teardown()"


@given(scenarios())
def test_live_slots_differ_and_lengths_agree(sc: Scenario) -> None:
    """In every forward the rows stand on different slots, in slot order when there are several."""
    for line in run_scenario(sc, max_ticks=2000, router="sync").calls:
        if line.startswith("decode_batch("):
            slots = [int(slot) for slot in re.findall(r"@(\d+):", line)]
            assert slots == sorted(set(slots)), line


@given(scenarios())
def test_a_fault_free_run_gives_the_same_streams_as_one_with_preemptions(sc: Scenario) -> None:
    """Case 1 for all: exhaustion with company parks, and parking is invisible to the clients, where nobody is cut by
    a tick, a pool or a fault."""
    tables = [
        t.model_copy(
            update={"deadline_at_tick": None, "cancel_at_tick": None, "expired_deadline": False, "cancel_at": None}
        )
        for t in sc.request
    ]
    device = sc.device.model_copy(
        update={
            "total_blocks": 1000, "held_blocks": 0, "fatal_at": [], "device_lost_at": [], "exhaust_at": {},
            "restore_fail_at": [], "kv_exhaust_at": [],
        }
    )  # fmt: skip
    knobs = sc.scheduler.model_copy(update={"close_inbox_at_tick": None, "loop_watchdog": False})
    base = sc.model_copy(update={"device": device, "scheduler": knobs, "request": tables})
    calm = run_scenario(base, max_ticks=2000, router="sync")
    faulty = base.model_copy(update={"device": device.model_copy(update={"kv_exhaust_at": sc.device.kv_exhaust_at})})
    rough = run_scenario(faulty, max_ticks=2000, router="sync")
    for before, after in zip(outs(calm), outs(rough), strict=True):
        if "KV cache exhausted" not in after and "refused" not in before + after:
            assert after == before


# -- the same bytes ---------------------------------------------------------------------------------------------------

MANY = scenario(
    *[req(8 * i, 5 + i, [10 + i, 20 + i, 30 + i, E], temperature=[0.5, 0.0, 0.0][i % 3], stop_tokens=[31, 62, 40 + i])
      for i in range(1, 9)],
    device={"kv_exhaust_at": [1, 2], "total_blocks": 30},
    swap_space_gb=1,
)  # fmt: skip


def test_case_15_same_bytes_in_other_processes_and_hash_seeds() -> None:
    """PYTHONHASHSEED 1 and 2, and python -O."""
    program = (
        "import sys\n"
        "from metrale.sim import run_scenario\n"
        "from metrale.sim.scenario import Scenario\n"
        "sys.stdout.write(run_scenario(Scenario.model_validate_json(sys.stdin.read())).text)\n"
    )
    wanted = run_scenario(MANY).text
    for flags, seed in (([], "1"), ([], "2"), (["-O"], "3")):
        child = subprocess.run(
            [sys.executable, *flags, "-c", program],
            input=MANY.model_dump_json(),
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        assert child.stdout == wanted


def test_case_15_same_bytes_after_a_thousand_other_runs() -> None:
    """No state outlives a run."""
    wanted = run_scenario(MANY).text
    small = scenario(req(3, 5, [10, 11, E]), req(4, 5, [20, E], 2))
    for _ in range(1000):
        run_scenario(small, log=False)
    assert run_scenario(MANY).text == wanted


def test_case_15_a_scenario_is_not_changed_by_its_run() -> None:
    """Prompt and script lists are copied."""
    before = MANY.model_dump_json()
    run_scenario(MANY)
    assert MANY.model_dump_json() == before


def test_case_17_no_decimal_number_in_a_trace_with_temperatures() -> None:
    """Temperatures and logprobs stay out of it."""
    sc = scenario(req(1, 5, [10, 11, E], temperature=0.1 + 0.2), req(2, 5, [20, E], temperature=1e-7, top_logprobs=3))
    assert not re.search(r"\d\.\d", run_scenario(sc).text)


def test_case_18_a_long_run_stays_linear() -> None:
    """200,000 call lines in a few seconds: one request of 28,000 tokens."""
    sc = scenario(
        req(1, 5, [10 + i % 50 for i in range(1000)], max_tokens=28_000), max_seq_len=0, device={"total_blocks": 0}
    )
    result = run_scenario(sc)
    assert len(result.calls) > 195_000
    assert result.ticks == 28_000
