"""Thinking: entering, leaving, budgets, forced ends, masks, EOS inside a thought (S3 sections 4.3, 5.2, 6)."""

from __future__ import annotations

import pytest
from testkit import Bench, E, assert_block, count, done, finish, outs, req, run, scenario, step, stream, toks

from metrale.core.config import SchedulerConfig
from metrale.core.decode.commit import commit_token
from metrale.core.decode.readback import row_mask
from metrale.core.sequence import NO_ID

THINK = {"think_start_token": 1, "think_end_token": 2}


def words(count: int) -> list[int]:
    """Ids 3..59 without a loop that a detector sees."""
    return [3 + (i * i + i // 7) % 57 for i in range(count)]


def test_a_spontaneous_thought_is_counted_hidden_and_closed() -> None:
    """The opening id is neither output nor streamed; thinking tokens count in n but are not sent; the closing id is."""
    result = run(req(1, 5, [1, 20, 21, 2, 30, 31, E]), **THINK)
    assert outs(result) == [stream([2, 30, 31], done("stop", 6, think=2))]
    kinds = [line.split("readback=")[1] for line in result.calls if line.startswith("fx launch")]
    # Inside a thought the pick is on the host; past it the device may pick again.
    assert kinds == ["HostLogits}"] * 3 + ["Argmax}"] * 3
    assert [line for line in result.calls if line.startswith("decode_marconi")] == [
        f"decode_marconi_checkpoint(s1@0:len={n})" for n in (8, 9, 10)
    ]


def test_a_thought_opened_in_the_middle_costs_no_budget_and_is_fed_next() -> None:
    """Only with a start id and no end id can a row that is not past thinking open one (S3 6 step 3)."""
    result = run(req(1, 5, [10, 1, 20, 21, E], max_tokens=6), think_start_token=1)
    assert outs(result) == [stream([10], done("stop", 4, think=5))]
    inputs = [line.split("tokens=")[1].split(",")[0] for line in result.calls if line.startswith("decode_batch")]
    assert inputs == ["[10]", "[1]", "[20]", "[21]", "[63]", "[63]"]


def test_an_eos_inside_a_thought_is_dropped_until_the_budget_is_gone() -> None:
    """Held back twice, accepted at left = 0 (hard ceiling); dropped ones count in think, not in n."""
    result = run(req(1, 5, [1, 20, E, E, E], max_tokens=4), **THINK)
    # left: 3 at birth; 20 -> 2, E -> 1 dropped, E -> 0 accepted.
    assert outs(result) == [done("stop", 2, think=3)]


def test_an_eos_inside_a_thought_ends_at_the_context_ceiling() -> None:
    """len + 1 >= max_seq_len is a hard ceiling too."""
    result = run(req(1, 5, [1, 20, E, E, E, E], max_tokens=50), max_seq_len=9, **THINK)
    # Lengths after the decodes: 6 (20), 7 (E, dropped), 8 (E: 8 + 1 >= 9, accepted).
    assert outs(result) == [done("stop", 2, think=3)]


def test_a_dropped_eos_spends_budget_without_a_length_test() -> None:
    """S1 24.8: with left = 0 already the next kept token finishes the row."""
    bench = Bench(scenario(req(1, 5, [1, 20, 21], max_tokens=3), **THINK))
    bench.tick()
    row = bench.state.active[0]
    row.remaining = 0
    commit_token(bench.state, row, 30, None, 0)
    assert (row.finished, row.remaining, row.outputs[-1]) == (True, 0, 30)


def test_a_floor_drops_an_eos_that_reaches_the_commit() -> None:
    """It stays the next input, spends a unit, is not counted; no length test is made."""
    bench = Bench(scenario(req(1, 5, [10, 11, 12], max_tokens=9, min_tokens=5)))
    bench.tick()
    row = bench.state.active[0]
    before, remaining = list(row.outputs), row.remaining
    commit_token(bench.state, row, E, None, 7)
    assert (row.outputs, row.remaining, row.last_token, row.finished) == (before, remaining - 1, E, False)
    assert row.last_token_time == 7


def test_masked_fallback_reads_the_block_and_picks_every_row_on_the_host() -> None:
    """S3 4.3: the device answered a think id for a row past thinking: id 63 wins, which is the EOS."""
    result = run(req(1, 5, [10, 2, 12, E]), req(2, 5, [20, 21, 22, E]), **THINK)
    assert_block(
        result,
        "\n".join(
            [
                "commit_ctx(s2@1:len=6, n=1, base=5, row=1)",
                "argmax_batch(row=0, n=2, stream=0) -> [2, 21]",
                "fx apply ReadLogits{rows=2}",
                "copy_logits_to_host(row=0, off=0, bytes=256)",
                "fx apply MarconiCheckpoint",
                "decode_marconi_checkpoint(s2@1:len=6)",
                *finish("s1@0:6", 1),
            ]
        ),
    )
    assert outs(result) == [stream([10], done("stop", 2)), stream([20, 21, 22], done("stop", 4))]


def test_masked_fallback_for_the_start_id_and_wider_vocabularies() -> None:
    """vocab 100: the highest unmasked id is 99 and nobody's EOS."""
    result = run(req(1, 5, [10, 1, 12, E]), device={"vocab": 100}, **THINK)
    assert outs(result) == [stream([10, 99, 12], done("stop", 4))]
    assert count(result, "fx apply ReadLogits{rows=1}") == 1


def test_a_floor_moves_the_pick_to_the_host_where_both_masks_hold() -> None:
    """No fallback line: the plan is HostLogits already; 62 is the highest that neither mask takes."""
    result = run(req(1, 5, [10, 2, 12, E], min_tokens=3), **THINK)
    assert outs(result) == [stream([10, 62, 12], done("stop", 4))]
    assert count(result, "fx apply ReadLogits") == 0


def test_a_failed_fallback_read_fails_every_row() -> None:
    """S5 5.1: every row gets the error; the batch is empty."""
    from testkit import run_failing

    from metrale.core.io import DeviceFault

    sc = scenario(req(1, 5, [10, 2, 12, E]), req(2, 5, [20, 21, E]), **THINK)
    result = run_failing(sc, {"copy_logits_to_host": {0: DeviceFault("no read", "no read")}})
    assert outs(result) == ["T10 Error(no read)", "T20 Error(no read)"]
    assert count(result, "fx apply ReleaseSeq{cache=false, send_error}") == 2


def test_penalties_of_a_row_past_thinking_forbid_the_device_pick() -> None:
    """S3 4.1 condition 6; without think ids the penalties are not looked at."""
    for knobs, readback in ((THINK, "HostLogits"), ({}, "Argmax")):
        bench = Bench(scenario(req(1, 5, toks(10, 20)), **knobs))
        bench.harness.clients[0].request.sampling.presence_penalty = 0.5
        bench.tick()
        assert [line for line in bench.calls if line.startswith("fx launch")] == [
            f"fx launch Decode{{n=1, ctx=Unified, readback={readback}}}"
        ]


def test_a_stray_end_id_is_dropped_and_fifty_of_them_end_the_row() -> None:
    """S3 6 step 4: not recorded, not paid for; the count restarts with a token past thinking."""
    bench = Bench(scenario(req(1, 5, toks(10, 20)), **THINK))
    bench.tick()
    row = bench.state.active[0]
    row.think.over = False
    outputs, remaining = list(row.outputs), row.remaining
    for _ in range(49):
        commit_token(bench.state, row, 2, None, 0)
    assert (row.finished, row.outputs, row.remaining, row.think.stray_ends) == (False, outputs, remaining, 49)
    commit_token(bench.state, row, 2, None, 0)
    assert (row.finished, row.guard) == (True, "think_skip_watchdog")
    row.finished, row.guard, row.think.over = False, None, True
    commit_token(bench.state, row, 30, None, 0)
    assert row.think.stray_ends == 0


@pytest.mark.parametrize(("fires", "budget"), [(0, 512), (1, 256), (3, 64), (4, 32), (9, 32)])
def test_thinking_loops_shorten_the_budget_of_the_next_thought(fires: int, budget: int) -> None:
    """max(512 >> min(fires, 4), 8)."""
    bench = Bench(scenario(req(1, 5, toks(10, 20)), think_start_token=1))
    bench.tick()
    row = bench.state.active[0]
    row.think.loop_fires = fires
    row.think.stray_ends = 3
    commit_token(bench.state, row, 1, None, 0)
    assert (row.think.inside, row.think.over, row.think.budget, row.think.stray_ends) == (True, False, budget, 0)


# -- forced ends ------------------------------------------------------------------------------------------------------


def _thinking_bench(script: list[int], budget: int | None, **knobs: object) -> Bench:
    """A request that asked for thinking, with its own budget."""
    bench = Bench(scenario(req(1, 5, script, max_tokens=2000), **{**THINK, **knobs}))
    request = bench.harness.clients[0].request
    request.thinking, request.thinking_budget = True, budget
    return bench


def _run_out(bench: Bench) -> str:
    while bench.tick():
        assert bench.state.tick < 3000
    return bench.outs()[0]


def test_a_requested_thought_is_streamed_from_the_first_token_on() -> None:
    """Born inside; the first token is output and not counted as thinking."""
    text = _run_out(_thinking_bench([10, 11, 12, 2, 30, E], None))
    assert text == stream([10, 11, 12, 2, 30], done("stop", 6, think=2))


def test_a_spent_budget_ends_a_thought_at_the_next_boundary() -> None:
    """Budget 3: armed by the third thinking token; the next pick after a boundary id (13) is forced."""
    bench = _thinking_bench([10, 11, 12, 14, 13, 15, 16, 30, 31, E], 3, boundary_tokens=[13])
    # Picks: 11 12 14 (armed) 13 (deferral: last id 14 is no boundary), then the end id is injected for 15.
    assert _run_out(bench) == stream([10, 11, 12, 14, 13, 2, 16, 30, 31], done("stop", 10, think=4))


def test_the_override_of_three_budgets_needs_no_boundary() -> None:
    """think_n >= 3 * budget."""
    text = _run_out(_thinking_bench([10, *words(40), E], 4))
    # Armed at 4; deferred until 12 thinking tokens are there; the 13th pick is the end id.
    assert text.startswith(stream([10, *words(12), 2], ""))
    assert "think=12" in text


def test_sixty_four_deferrals_override_too() -> None:
    """A budget of 100 is armed at 100 and injected after 64 deferrals, before 300."""
    text = _run_out(_thinking_bench([10, *words(390), E], 100))
    assert "think=164" in text


def test_without_a_budget_only_2048_tokens_override() -> None:
    """Armed by hand: no budget, no boundary, so deferrals decide first (64)."""
    bench = _thinking_bench([10, *words(300), E], None)
    bench.tick()
    bench.state.active[0].think.force_end = True
    assert "think=65" in _run_out(bench)
    far = _thinking_bench([10, *words(300), E], None)
    far.tick()
    far.state.active[0].think.force_end = True
    far.state.active[0].think.tokens = 2048
    assert "think=2048" in _run_out(far)


def test_an_end_id_outside_the_vocabulary_changes_nothing() -> None:
    """S3 5.2.1: if the id is >= vocab nothing changes; the thought lasts to the budget's end."""
    bench = Bench(scenario(req(1, 5, [10, *words(30)], max_tokens=30), think_start_token=1, think_end_token=100))
    request = bench.harness.clients[0].request
    request.thinking, request.thinking_budget = True, 4
    assert _run_out(bench).endswith(done("length", 30, think=29))


def test_sixty_confident_tokens_from_400_on_arm_the_end() -> None:
    """The one-hot logits are always confident: armed at the pick with 459 thinking tokens; that pick is the first
    deferral, the 65th is forced: 523 thinking tokens, although the spontaneous budget of 512 came meanwhile."""
    result = run(req(1, 5, [1, *words(600), E], max_tokens=700), **THINK)
    assert "think=523" in outs(result)[0]


def test_an_unsure_pick_resets_the_confident_run() -> None:
    """A row of equal logits (script id outside the vocabulary) in the middle starts the count again."""
    script = [1, *words(430), 99, *words(300), E]
    result = run(req(1, 5, script, max_tokens=800), **THINK)
    # The pick of index 431 has 430 thinking tokens before it and resets; run 60 is reached at 431 + 59 = 490.
    assert "think=554" in outs(result)[0]


def test_a_thinking_loop_arms_the_end_without_the_loop_watchdog() -> None:
    """48 tokens, stride 8, the outputs without this token: period 4 is seen at 56; 64 deferrals follow."""
    loop = [10 + i % 4 for i in range(300)]
    result = run(req(1, 5, [1, *loop, E], max_tokens=400), **THINK)
    assert "think=120" in outs(result)[0]
    with_boundary = run(req(1, 5, [1, *loop, E], max_tokens=400), boundary_tokens=[11], **THINK)
    # After 56 tokens the last id is loop[55] = 13; the first boundary is loop[57] = 11, after 58 tokens.
    assert "think=58" in outs(with_boundary)[0]


def test_early_closing_is_pushed_against_but_a_peak_wins() -> None:
    """The -8 bias of the first 16 thinking tokens never changes a one-hot pick; it does change a tie."""
    assert outs(run(req(1, 5, [1, 20, 2, 30, E]), **THINK)) == [stream([2, 30], done("stop", 4, think=1))]
    # A zero row inside a thought: the end id 63 is pushed below the others, 62 wins the tie.
    knobs = {"think_start_token": 1, "think_end_token": 63}
    tied = run(req(1, 5, [1, 99, 20, 40], stop_tokens=[40], max_tokens=3), device={"vocab": 64}, **knobs)
    assert count(tied, "decode_batch(tokens=[62]") == 1


def test_a_thinking_row_is_not_streamed_while_prefill_mixes() -> None:
    """The mixed commit is the normal one."""
    result = run(req(1, 4, [1, 20, 21, 22, 2, 30, E]), req(2, 20, [40, 41, E], 1), max_prefill_tokens=8, **THINK)
    assert outs(result)[0] == stream([2, 30], done("stop", 6, think=3))


def test_thinking_survives_parking() -> None:
    """Requeue and spill keep the thinking state (S1 section 22)."""
    requests = (req(1, 5, [1, 20, 21, 22, 2, 30, E]), req(2, 5, toks(40, 50), grammar_active=True))
    expected = stream([2, 30], done("stop", 6, think=3))
    for index in range(5):
        for swap in (0, 1):
            result = run(*requests, device={"kv_exhaust_at": [index]}, swap_space_gb=swap, **THINK)
            assert outs(result)[0] == expected


def test_max_tokens_1_and_a_think_start_id() -> None:
    """S2 5.2: at_once is false for a spontaneous thought; it joins with nothing left and ends at the next token."""
    result = run(req(1, 5, [1, 20, 21], max_tokens=1), **THINK)
    assert outs(result) == [done("length", 1, think=1)]


def test_masks_of_rows() -> None:
    """S5 9.2: both ids past thinking, none before."""
    config = SchedulerConfig(**THINK)
    bench = Bench(scenario(req(1, 5, toks(10, 20)), **THINK))
    bench.tick()
    row = bench.state.active[0]
    assert row_mask(row, config) == (2, 1)
    assert row_mask(row, SchedulerConfig(think_start_token=1)) == (NO_ID, 1)
    assert row_mask(row, SchedulerConfig(think_end_token=2)) == (2, NO_ID)
    row.think.over = False
    assert row_mask(row, config) == (NO_ID, NO_ID)
    assert step("s1@0:5 10>11")[0] in bench.calls
