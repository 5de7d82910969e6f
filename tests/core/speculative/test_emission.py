"""One emitted token on the speculative lanes, step by step (S4 section 4), and ends inside a run (section 15)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from spec_lines import PROPOSER, capacities, commit, head, trim
from testkit import Bench, E, between, count, finish, outs, req, run, scenario, toks

from metrale.core.row import Row
from metrale.core.sampling.record import LogprobRecord
from metrale.core.speculative.emit import emit, emit_run
from metrale.core.state import State

START, CLOSE = 60, 61
RECORD = LogprobRecord(12, -0.5, ((12, -0.5), (13, -1.5)))
THINKS = {"think_start_token": START, "think_end_token": CLOSE}


def live(keys: dict[str, Any] | None = None, **knobs: Any) -> tuple[State, Row]:
    """A row with outputs [10, 11] and room for 18 more, under MTP."""
    request = req(1, 5, toks(10, 29), max_tokens=20, **(keys or {}))
    bench = Bench(scenario(request, device=PROPOSER, use_speculative=True, **knobs))
    bench.tick()
    row = bench.state.active[0]
    assert (row.outputs, row.remaining) == ([10, 11], 18)
    return bench.state, row


def sent(row: Row) -> list[int | str]:
    """What the client has so far, beyond T10 T11."""
    return row.request.sink.events[2:]  # type: ignore[attr-defined]


def test_a_cancelled_row_ends_before_anything_is_recorded() -> None:
    s, row = live()
    assert row.request.cancel is not None
    row.request.cancel.raised = True
    emit(s, row, 12, RECORD)
    assert row.finished
    assert (row.outputs, row.remaining, row.logprobs, row.guard, sent(row)) == ([10, 11], 18, [], None, [])


def test_an_ordinary_token() -> None:
    s, row = live()
    before = row.last_token
    emit(s, row, 12)
    assert not row.finished
    assert (row.outputs, row.remaining, row.content_tokens) == ([10, 11, 12], 17, 2)
    assert sent(row) == [12]
    assert row.last_token == before, "the caller sets it"


def test_think_start_opens_thinking_and_costs_nothing() -> None:
    s, row = live(**THINKS)
    row.think.emitted_after, row.think.stray_ends, row.think.loop_fires = 4, 7, 3
    emit(s, row, START, RECORD)
    think = row.think
    assert (think.inside, think.over, think.emitted_after, think.stray_ends, think.budget) == (True, False, 0, 0, 512)
    assert (row.outputs, row.remaining, row.logprobs, sent(row)) == ([10, 11], 18, [], [])
    emit(s, row, START)
    assert row.outputs == [10, 11, START], "inside thinking it is a thinking token like any other"
    assert think.tokens == 1


def test_thinking_tokens_are_recorded_and_not_sent_until_thinking_closes() -> None:
    s, row = live(**THINKS)
    emit_run(s, row, [START, 12, 13, CLOSE, 14])
    assert row.outputs == [10, 11, 12, 13, CLOSE, 14]
    assert sent(row) == [CLOSE, 14]
    assert (row.think.tokens, row.think.over, row.think.inside) == (2, True, False)
    assert row.think.emitted_after == 1, "the closing token itself is not after thinking"
    assert row.content_tokens == 2, "token 11 and 14"
    assert row.remaining == 14


def test_thinking_is_streamed_to_a_request_that_asked_for_it() -> None:
    s, row = live(**THINKS)
    row.request.thinking = True
    emit_run(s, row, [START, 12])
    assert sent(row) == [12]


def test_the_thinking_budget_arms_the_forced_end_once() -> None:
    s, row = live(**THINKS)
    emit(s, row, START)
    row.think.budget = 2
    row.think.deferrals = 5
    emit(s, row, 12)
    assert not row.think.force_end
    emit(s, row, 13)
    assert (row.think.force_end, row.think.deferrals) == (True, 0)
    row.think.deferrals = 5
    emit(s, row, 14)
    assert row.think.deferrals == 5
    emit(s, row, CLOSE)
    assert (row.think.force_end, row.think.deferrals, row.think.just_ended) == (False, 0, True)
    emit(s, row, 15)
    assert not row.think.just_ended


def test_fifty_stray_closing_ids_end_the_row() -> None:
    s, row = live(**THINKS)
    emit_run(s, row, [CLOSE] * 49)
    assert (row.finished, row.think.stray_ends) == (False, 49)
    emit(s, row, 12)
    assert row.think.stray_ends == 0, "a counted token after thinking starts the count anew"
    assert not emit_run(s, row, [CLOSE] * 60)
    assert (row.think.stray_ends, row.guard) == (50, "think_skip_watchdog")
    assert row.outputs == [10, 11, 12]


def test_stray_closing_ids_on_the_lane_itself() -> None:
    """Raw picks reach the emission at temperature 0, so a script of closing ids ends by the watchdog."""
    tokens = [10, *[CLOSE] * 60]
    result = run(req(1, 5, tokens), device=PROPOSER, use_speculative=True, num_drafts=3, **THINKS)
    assert outs(result) == ['T10 Done(length, n=1, think=0, cached=0, acc=39, guard=Some("think_skip_watchdog"))']


def test_eos_is_counted_and_never_sent() -> None:
    s, row = live()
    assert not emit_run(s, row, [12, E, 13])
    assert row.outputs == [10, 11, 12, E]
    assert (row.remaining, sent(row)) == (16, [12])


def test_eos_inside_thinking_is_held_back_but_stays_in_the_output() -> None:
    s, row = live(**THINKS)
    assert emit_run(s, row, [START, 12, E, 13])
    assert row.outputs == [10, 11, 12, E, 13]
    assert (row.remaining, sent(row)) == (15, [])


def test_eos_inside_thinking_on_the_last_unit_ends_the_row() -> None:
    s, row = live(**THINKS)
    row.remaining = 1
    assert not emit_run(s, row, [START, E])
    assert row.outputs == [10, 11, E]


def test_eos_inside_thinking_at_the_context_ceiling_ends_the_row() -> None:
    s, row = live(**THINKS)
    s.config = replace(s.config, max_seq_len=row.seq.seq_len + 2)
    assert emit_run(s, row, [START, E])
    s.config = replace(s.config, max_seq_len=row.seq.seq_len + 1)
    assert not emit_run(s, row, [E])


def test_a_spent_budget_ends_the_row_at_the_next_token() -> None:
    s, row = live()
    row.remaining = 0
    emit(s, row, E)
    assert row.finished
    assert row.remaining == 0, "never negative"


def test_the_last_unit_is_a_length_stop() -> None:
    s, row = live()
    row.remaining = 2
    assert not emit_run(s, row, [12, 13, 14])
    assert (row.outputs, row.remaining, sent(row)) == ([10, 11, 12, 13], 0, [12, 13])


def test_records_follow_their_tokens_and_the_last_one_is_shown_again() -> None:
    s, row = live({"top_logprobs": 2})
    row.logprobs.clear()
    emit(s, row, 12, RECORD)
    emit(s, row, 13)
    assert sent(row)[-2:] == ["TL12:2", "TL13:2"], "a token without a record of its own shows the last of the list"
    assert row.logprobs == [RECORD]


def test_a_reader_that_is_gone_ends_the_row_before_the_length_test() -> None:
    s, row = live({"drop_reader_after": 3})
    assert not emit_run(s, row, [12, 13, 14])
    assert row.outputs == [10, 11, 12, 13]
    assert sent(row) == [12]


def test_the_content_loop_watchdog_ends_the_row_and_the_token_is_still_sent() -> None:
    """48 content tokens of period 2. The detector sees the token of the moment; there is no rollback here."""
    loop = [20, 21] * 30
    knobs = {"use_speculative": True, "num_drafts": 3, "loop_watchdog": True, "boundary_tokens": [10]}
    result = run(req(1, 5, [10, *loop]), device=PROPOSER, **knobs)
    sent_tokens = " ".join(f"T{token}" for token in [10, *loop[:48]])
    assert outs(result) == [
        f'{sent_tokens} Done(length, n=49, think=0, cached=0, acc=36, guard=Some("content_loop_watchdog"))'
    ]
    blocking = run(req(1, 5, [10, *loop], streaming=False), device=PROPOSER, **knobs)
    assert outs(blocking) == [f"Response(tokens={[10, *loop[:48]]}, length, think=0, cached=0, acc=36, logprobs=0)"]
    assert count(blocking, "fx apply Ssm") == 0
    off = run(req(1, 5, [10, *loop]), device=PROPOSER, use_speculative=True, num_drafts=3)
    assert "n=61" in outs(off)[0]


def test_an_eos_outranks_the_watchdog_that_trips_on_it() -> None:
    s, row = live(loop_watchdog=True)
    row.outputs[:] = [10, *[20, E] * 23, 20]
    row.content_tokens = 47
    emit(s, row, E)
    assert (row.guard, row.finished, row.outputs[-1]) == ("content_loop_watchdog", True, E)


@pytest.mark.parametrize("remaining", range(6))
@pytest.mark.parametrize("reads", [None, 2, 4])
@pytest.mark.parametrize("ceiling", [0, 7, 40])
@pytest.mark.parametrize("tokens", [[12, 13, 14, 15], [12, E, 14], [E], []], ids=str)
@pytest.mark.parametrize("cancelled", [False, True])
def test_a_run_without_think_ids_and_watchdog_is_its_tokens_one_by_one(
    remaining: int, reads: int | None, ceiling: int, tokens: list[int], cancelled: bool
) -> None:
    """The short cut for plain tokens leaves the row exactly as the full rules do."""
    views = []
    for shortcut in (False, True):
        s, row = live({} if reads is None else {"drop_reader_after": reads})
        assert s.modes.plain_tokens
        s.config = replace(s.config, max_seq_len=ceiling)
        row.remaining = remaining
        assert row.request.cancel is not None
        row.request.cancel.raised = cancelled
        if shortcut:
            alive = emit_run(s, row, tokens)
        else:
            alive = True
            for token in tokens:
                emit(s, row, token)
                alive = not row.finished
                if not alive:
                    break
        views.append((alive, row.finished, row.outputs, row.remaining, row.content_tokens, row.guard, sent(row)))
    assert views[0] == views[1]


# -- ends inside a run ------------------------------------------------------------------------------------------------


def test_cancel_at_a_tick_acts_in_the_emission_with_reason_stop() -> None:
    """The verify of tick 3 still runs with all its words; its first emit ends the row."""
    result = run(req(1, 5, toks(10, 29), cancel_at_tick=3), device=PROPOSER, use_speculative=True, num_drafts=2)
    assert between(result, 3) == [
        *capacities(0),
        *head("s1@0", 9, [14, 15, 16], [15, 16, 17]),
        *finish("s1@0:12", 1),
        "num_free_blocks() -> 1000",
    ]
    assert outs(result) == ["T10 T11 T12 T13 T14 Done(stop, n=5, think=0, cached=0, acc=4, guard=None)"]


def test_a_partial_accept_is_rewound_trimmed_and_committed_before_it_ends() -> None:
    """Script index 4 is the EOS and the draft for index 5 is wrong: accepted 2 of 3, the EOS among them."""
    result = run(
        req(1, 5, [10, 11, 12, 13, E], draft_wrong_every=5, max_tokens=9),
        device=PROPOSER, use_speculative=True, num_drafts=3,
    )  # fmt: skip
    assert between(result, 2) == [
        *capacities(0),
        *head("s1@0", 6, [11, 12, 13, E], [12, 13, E, E]),
        *finish("s1@0:10", 1),
        "num_free_blocks() -> 1000",
    ]
    wrong = run(
        req(1, 5, [10, 11, 12, E, 20], draft_wrong_every=4, max_tokens=9),
        device=PROPOSER, use_speculative=True, num_drafts=3,
    )  # fmt: skip
    assert between(wrong, 2) == [
        *capacities(0),
        *head("s1@0", 6, [11, 12, E, 21], [12, E, 20, 1]),
        trim("s1@0", 9, 2),
        commit("s1@0", 9, na=3, k=4),
        *finish("s1@0:9", 1),
        "num_free_blocks() -> 1000",
    ]
    assert outs(wrong) == ["T10 T11 T12 Done(stop, n=4, think=0, cached=0, acc=2, guard=None)"]


def test_deadline_of_a_speculating_row() -> None:
    """The tick's run is delivered, then the sweep ends the row (S1 section 17)."""
    result = run(req(1, 5, toks(10, 29), deadline_at_tick=2), device=PROPOSER, use_speculative=True, num_drafts=3)
    assert outs(result) == [
        'T10 T11 T12 T13 T14 T15 Done(timeout, n=6, think=0, cached=0, acc=3, guard=Some("request_timeout"))'
    ]


@pytest.mark.parametrize(
    ("knobs", "length"),
    [({"use_speculative": True, "num_drafts": 3}, 14), ({"self_speculative": True, "num_drafts": 3}, 15)],
    ids=["mtp", "self_spec"],
)
def test_length_at_release_counts_every_row_of_a_full_accept(knobs: dict[str, Any], length: int) -> None:
    device = PROPOSER | {"has_self_speculative": True}
    result = run(req(1, 5, toks(10, 17)), device=device, **knobs)
    assert f"cache_sequence(s1@0:len={length})" in result.calls
