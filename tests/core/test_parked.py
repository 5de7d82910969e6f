"""Parked work in idle ticks, and what becomes of work that nothing can bring back (S1 section 13, D2, D15, D28)."""

from __future__ import annotations

from testkit import (
    E,
    between,
    done,
    finish,
    gate,
    marker,
    outs,
    req,
    run,
    spill,
    step,
    stream,
    swap_in,
    tick_of,
    toks,
    whole,
)

SMALL_POOL = {"total_blocks": 10, "held_blocks": 4}


STUCK = (req(1, 5, toks(10, 15, E)), req(2, 5, toks(20, 25, E)))


STUCK_POOL = {"total_blocks": 10, "held_blocks": 9, "kv_exhaust_at": [1]}


CANNOT = "Error(cannot resume: needs 2 KV blocks, 1 free and nothing left to wait for)"


def test_case_4b_d2_parked_work_returns_in_an_idle_tick() -> None:
    """The newcomer ends at birth, so nothing is active afterwards; R1 is restored in that same tick and decodes."""
    result = run(req(1, 32, toks(10, 16, E)), req(2, 96, [20], 2, max_tokens=1), device=SMALL_POOL, swap_space_gb=1)
    assert between(result, 3) == [
        "num_free_blocks() -> 3",
        "reclaim_prefix_blocks(4) -> 0",
        "num_free_blocks() -> 3",
        *spill("s1@0:34", 3),
        "num_free_blocks() -> 6",
        *whole(2, 0, 96, 20),
        *finish("s2@0:96", 7),
        "num_free_blocks() -> 6",
        *swap_in(0, 3),
        *step("s0@0:34 12>13"),
        "num_free_blocks() -> 3",
    ]
    assert outs(result) == [stream(toks(10, 16), done("stop", 8)), stream([20], done("length", 1))]


def test_case_4c_parked_work_returns_when_the_other_one_has_ended() -> None:
    """held 8 of 10: too few blocks until R2 has gone."""
    result = run(
        req(1, 5, toks(10, 15, E)),
        req(2, 5, toks(20, 25, E)),
        device={"total_blocks": 10, "held_blocks": 8, "kv_exhaust_at": [1]},
    )
    assert outs(result) == [stream(toks(10, 15), done("stop", 7)), stream(toks(20, 25), done("stop", 7))]
    assert tick_of(result, "prefill(n=6") == 6


def test_d2_d13_parked_work_that_nothing_can_bring_back_ends_with_an_error() -> None:
    """R1 wants 2 blocks, one is free for ever: the first idle tick tells it, the next ends the run."""
    result = run(*STUCK, device=STUCK_POOL)
    assert between(result, 6, 7) == [
        *step("s2@0:10 25>63"),
        *finish("s2@0:11", 1),
        "num_free_blocks() -> 1",
        "reclaim_prefix_blocks(1) -> 0",
        *marker(1, 7),
        "num_free_blocks() -> 1",
        "reclaim_prefix_blocks(1) -> 0",
        "num_free_blocks() -> 1",
    ]
    assert outs(result) == [f"T10 T11 {CANNOT}", stream(toks(20, 25), done("stop", 7))]
    assert result.ticks == 8


def test_d15_parked_work_waits_for_an_arrival_ahead() -> None:
    """While an arrival lies ahead nothing is dead; once it is the only thing that arrived and was not admitted the
    error comes (D28)."""
    result = run(*STUCK, req(3, 5, [30, E], 10), device=STUCK_POOL)
    assert tick_of(result, "prefill(n=5", 2) == 11
    idle = ["num_free_blocks() -> 1", "reclaim_prefix_blocks(1) -> 0"]
    assert between(result, 7, 9) == [*idle, *marker(1, 8), *idle, *marker(1, 9), *idle, "num_free_blocks() -> 1"]
    assert outs(result)[0] == f"T10 T11 {CANNOT}"
    assert outs(result)[2] == stream([30], done("stop", 2))


def test_d28_parked_work_and_the_queue_do_not_wait_for_each_other() -> None:
    """R3 is held back by the reservation for the parked R1, which waits for blocks: R1 ends, R3 is served."""
    result = run(*STUCK, req(3, 150, [30, E], 2), device=STUCK_POOL)
    assert between(result, 7, 8) == [
        "num_free_blocks() -> 1",
        "reclaim_prefix_blocks(1) -> 0",
        *gate(1),
        *marker(1, 8),
        *whole(3, 0, 150, 30),
        *step("s3@0:150 30>63"),
        *finish("s3@0:151", 10),
        "num_free_blocks() -> 1",
    ]
    assert outs(result) == [f"T10 T11 {CANNOT}", stream(toks(20, 25), done("stop", 7)), stream([30], done("stop", 2))]


def test_d28_an_admitted_request_keeps_parked_work_alive() -> None:
    """The tick that admits a request gives nothing up: R1 waits on beside R3."""
    result = run(*STUCK, req(3, 5, [30, 31, 32, E], 6), device=STUCK_POOL)
    assert tick_of(result, "prefill(n=5", 2) == 7
    assert outs(result)[0] == f"T10 T11 {CANNOT}"
    assert result.ticks == 11


def test_d28_a_tick_that_admitted_somebody_gives_nothing_up() -> None:
    """R3 is admitted in tick 7 and ends at birth: the parked R1 is told in tick 8, after one more attempt."""
    result = run(*STUCK, req(3, 5, [30], 6), device=STUCK_POOL)
    attempt = ["num_free_blocks() -> 1", "reclaim_prefix_blocks(1) -> 0"]
    assert between(result, 7, 8) == [
        *whole(3, 0, 5, 30),
        *finish("s3@0:5", 1),
        *attempt,
        *marker(1, 8),
        *attempt,
        "num_free_blocks() -> 1",
    ]
    assert outs(result)[0] == f"T10 T11 {CANNOT}"
    assert result.ticks == 9
