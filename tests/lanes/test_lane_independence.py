"""For one and the same script every lane gives the client the same tokens, n and reason (decision D19).

The exceptions are listed in :data:`EXCEPTIONS`, each with a test that shows it.
"""

from __future__ import annotations

from typing import Any

import pytest
from lane_table import LANES, PROPOSER, Seen, on_lane
from testkit import E, outs, run

PERIODS = range(6)
"""0: no wrong draft; else every draft of a script index that it divides."""

ENDS = range(1, 9)
LIMITS = range(1, 9)

SCRIPTS = {
    "rising": [10, 11, 12, 13, 14, 15, 16, 17],
    "one token": [9] * 8,
    "periodic": [2, 3, 4, 2, 3, 4, 2, 3],
}

EXCEPTIONS = {
    "the context ceiling": "a full accept still counts every verified row when the length stop looks (S4 4 step 12)",
    "think ids": "the plain lane masks them once thinking is over, raw picks do not (S3 4.3, S4 5.1)",
    "EOS inside thinking": "dropped on the plain lane, kept in the output on the others (S3 11)",
    "the loop watchdog": "rollback and the fuzzy detector on the plain lane alone (S3 11)",
    "the cancel flag": "reason stop in a speculative emission, cancelled elsewhere (D4), and ticks differ",
    "a deadline": "ticks differ, and with them how much was delivered",
    "tokens outside the vocabulary": "a host pick cannot see them, a device pick can (D17)",
}


def request(tokens: list[int], **keys: Any) -> dict[str, Any]:
    return {"id": 1, "prompt_len": 5, "tokens": tokens, **keys}


def expected(tokens: list[int], limit: int) -> Seen:
    """The rule itself, for scripts without a floor: tokens up to the stop id or the limit."""
    kept = tokens[:limit]
    stop = kept.index(E) if E in kept else None
    if stop is None:
        return Seen(tuple(kept), len(kept), "length")
    return Seen(tuple(kept[:stop]), stop + 1, "stop")


@pytest.mark.parametrize("lane", LANES)
def test_every_end_in_a_run_and_every_limit(lane: str) -> None:
    for script, tokens in SCRIPTS.items():
        for period in PERIODS if script == "rising" else (0, 2):
            for end in ENDS:
                ended = [*tokens[: end - 1], E]
                for limit in LIMITS:
                    got, _ = on_lane(LANES[lane], request(ended, max_tokens=limit, draft_wrong_every=period))
                    assert got == expected(ended, limit), (lane, script, period, end, limit)


@pytest.mark.parametrize("lane", LANES)
def test_scripts_without_an_end(lane: str) -> None:
    """The script goes on past its last token; the limit alone ends the request, at every position of a run."""
    for script, tokens in SCRIPTS.items():
        for period in PERIODS:
            for limit in LIMITS:
                got, _ = on_lane(LANES[lane], request(tokens, max_tokens=limit, draft_wrong_every=period))
                assert got == expected(tokens, limit), (lane, script, period, limit)


@pytest.mark.parametrize("lane", LANES)
def test_min_tokens(lane: str) -> None:
    """The EOS comes too early by 0 to 7 tokens. The plain lane says what the client must see."""
    for period in (0, 1, 3):
        for end in (1, 2, 4, 7):
            ended = [*SCRIPTS["rising"][: end - 1], E, 20, 21, 22, 23, E]
            for floor in range(9):
                for limit in (4, 8, 12):
                    asked = request(ended, max_tokens=limit, min_tokens=floor, draft_wrong_every=period)
                    got, _ = on_lane(LANES[lane], asked)
                    assert got == baseline(asked), (lane, period, end, floor, limit)
                    assert got.n >= min(floor, limit)


BASELINE: dict[str, Seen] = {}


def baseline(asked: dict[str, Any]) -> Seen:
    """What the plain lane gives the request when it is alone."""
    key = repr({name: value for name, value in asked.items() if name not in ("id", "draft_wrong_every")})
    if key not in BASELINE:
        BASELINE[key] = on_lane(LANES["plain"], asked | {"id": 1})[0]
    return BASELINE[key]


VARIANTS: dict[str, dict[str, Any]] = {
    "temperature 0.7": {"temperature": 0.7},
    "temperature 0.7 with a floor": {"temperature": 0.7, "min_tokens": 5},
    "logprobs": {"top_logprobs": 2},
    "logprobs with a floor": {"top_logprobs": 0, "min_tokens": 3},
    "both": {"temperature": 1.3, "top_logprobs": 3},
    "a stop token": {"stop_tokens": [13]},
    "a stop token below the floor": {"stop_tokens": [12], "min_tokens": 4},
    "grammar": {"grammar_active": True},
    "blocking": {"streaming": False},
    "blocking, everything": {
        "streaming": False, "temperature": 0.7, "top_logprobs": 1, "min_tokens": 3, "stop_tokens": [16]
    },
}  # fmt: skip


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_request_variants(lane: str, variant: str) -> None:
    """With the request first or last in the batch."""
    for ident in (1, 2):
        for period in (0, 1, 3):
            for end in (2, 5, 9):
                ended = [*SCRIPTS["rising"][: end - 1], E]
                for limit in (3, 12):
                    keys = VARIANTS[variant] | {"max_tokens": limit, "draft_wrong_every": period, "id": ident}
                    asked = request(ended, **keys)
                    got, _ = on_lane(LANES[lane], asked)
                    assert got == baseline(asked), (lane, variant, ident, period, end, limit)


@pytest.mark.parametrize("lane", LANES)
def test_the_lanes_of_the_table_really_run(lane: str) -> None:
    _, calls = on_lane(LANES[lane], request([*range(10, 24), E]), log=True)
    assert any(line.startswith(LANES[lane].proof) for line in calls)
    speculative = [line for line in calls if line.startswith(("decode_verify", "decode_and_verify"))]
    assert bool(speculative) == (lane not in ("plain", "plain, batched", "no draft fits", "n-gram"))


def test_the_ngram_lane_accepts_drafts_in_this_table() -> None:
    _, calls = on_lane(LANES["n-gram"], request([*SCRIPTS["one token"], E]), log=True)
    assert any(line.startswith("decode_verify_graphed(tokens=[9, 9]") for line in calls)


@pytest.mark.parametrize("lane", LANES)
def test_a_thought_that_opens_the_answer_is_told_the_same_way(lane: str) -> None:
    """Opened by the first token and closed once, no EOS inside: here the lanes do agree."""
    knobs = {"think_start_token": 60, "think_end_token": 61}
    for period in PERIODS:
        for length in (1, 3, 6):
            tokens = [60, *range(10, 10 + length), 61, 30, 31, 32, E]
            got, _ = on_lane(LANES[lane], request(tokens, max_tokens=30, draft_wrong_every=period), **knobs)
            assert got == Seen((61, 30, 31, 32), length + 5, "stop"), (lane, period, length)


# -- the exceptions ---------------------------------------------------------------------------------------------------


def on_every_lane(asked: dict[str, Any], **knobs: Any) -> dict[str, Seen]:
    return {name: on_lane(lane, asked, **knobs)[0] for name, lane in LANES.items()}


def test_exception_the_context_ceiling() -> None:
    """Ceiling 10, prompt 5: the plain lane gives five tokens. A window of K rows ends the request at its first token
    when the rows reach the ceiling, so lanes that verify more rows give fewer; a rewound window counts what it kept."""
    got = on_every_lane(request([*range(10, 30)]), max_seq_len=10)
    assert {name: view.n for name, view in got.items()} == {
        "plain": 5,
        "plain, batched": 5,
        "K = 2": 5,
        "K = 3": 3,
        "K = 4": 3,
        "batched": 3,
        "batched, pruned": 3,
        "batched bootstrap": 3,
        "batch vetoed": 3,
        "no draft fits": 5,
        "DFlash": 2,
        "DFlash, two drafts": 5,
        "DFlash batched": 2,
        "n-gram": 5,
        "self-speculation": 2,
    }
    assert {view.reason for view in got.values()} == {"length"}
    for view in got.values():
        assert view.tokens == tuple(range(10, 10 + view.n)), "what is given is always a beginning of the plain answer"


def test_exception_think_ids() -> None:
    """A closing id outside thinking: masked on the plain lane (the last of equal maxima, the EOS, is picked instead),
    passed over without a word by a raw pick. A host pick of a window masks it too."""
    asked = request([10, 11, 61, 12, 13, E], max_tokens=20)
    got = on_every_lane(asked, think_end_token=61, think_start_token=60)
    assert got["plain"] == got["plain, batched"] == Seen((10, 11), 3, "stop")
    assert (
        got["K = 4"] == got["DFlash"] == got["n-gram"] == got["self-speculation"] == Seen((10, 11, 12, 13), 5, "stop")
    )
    warm = on_lane(LANES["K = 4"], asked | {"temperature": 0.7}, think_end_token=61, think_start_token=60)[0]
    plain = on_lane(LANES["plain"], asked | {"temperature": 0.7}, think_end_token=61, think_start_token=60)[0]
    assert warm == plain, "temperature: both pick on the host, from the same seeds"


def test_exception_eos_inside_thinking() -> None:
    """The think-start id opens thinking, which never closes; the EOS inside counts on the lane for one, not on the
    plain one. MTP leaves thinking rows to the plain lane."""
    asked = request([60, 11, E, 12, 13], max_tokens=6)
    got = on_every_lane(asked, think_start_token=60)
    assert got["plain"] == got["K = 4"] == Seen((), 4, "length")
    assert got["n-gram"] == got["self-speculation"] == Seen((), 5, "length")


def test_exception_the_loop_watchdog() -> None:
    """Index 48 completes the third window. The lanes see it at once, plain decode at its next look, 16 tokens on."""
    loop = [*range(10, 29), *list(range(30, 40)) * 6]
    plain = on_lane(LANES["plain"], request(loop, max_tokens=79), loop_watchdog=True)[0]
    fast = on_lane(LANES["K = 4"], request(loop, max_tokens=79), loop_watchdog=True)[0]
    assert (plain.n, plain.reason) == (65, "length")
    assert (fast.n, fast.reason) == (49, "length")


def test_exception_the_cancel_flag() -> None:
    asked = request([*range(10, 30)], cancel_at_tick=2)
    assert on_lane(LANES["plain"], asked)[0] == Seen((10, 11, 12), 3, "cancelled")
    assert on_lane(LANES["K = 4"], asked)[0] == Seen((10, 11), 2, "stop")


def test_exception_a_deadline() -> None:
    asked = request([*range(10, 30)], deadline_at_tick=2)
    assert on_lane(LANES["plain"], asked)[0] == Seen((10, 11, 12), 3, "timeout")
    assert on_lane(LANES["K = 4"], asked)[0] == Seen((10, 11, 12, 13, 14, 15), 6, "timeout")


def test_exception_tokens_outside_the_vocabulary() -> None:
    """With logprobs the plain lane picks on the host, where the row is all zeros and the last id, the EOS, wins."""
    asked = request([10, 11, 70, 12, E], top_logprobs=1)
    assert on_lane(LANES["plain"], asked)[0] == Seen((10, 11), 3, "stop")
    assert on_lane(LANES["K = 4"], asked)[0] == Seen((10, 11, 70, 12), 5, "stop")
    bootstrapped = request([10, 70, 12, E], top_logprobs=1)
    assert on_lane(LANES["K = 4"], bootstrapped)[0] == Seen((10, 70, 12), 4, "stop")


def test_every_exception_has_its_test() -> None:
    names = {name for name in globals() if name.startswith("test_exception_")}
    assert names == {f"test_exception_{name.replace(' ', '_')}".lower() for name in EXCEPTIONS}


# -- one batch, many lanes --------------------------------------------------------------------------------------------


def test_a_request_that_changes_lanes_on_its_way() -> None:
    """Neighbours with floors, thoughts and grammars come and go; the answers stay those of the plain lane."""
    asked = [
        request([*range(10, 30), E], draft_wrong_every=3),
        {"id": 2, "prompt_len": 6, "tokens": [*range(30, 40), E], "arrive_at_tick": 3, "min_tokens": 4},
        {"id": 3, "prompt_len": 7, "tokens": [*range(40, 50), E], "arrive_at_tick": 4, "grammar_active": True},
        {"id": 4, "prompt_len": 20, "tokens": [*range(50, 60), E], "arrive_at_tick": 6, "draft_wrong_every": 2},
    ]
    plain = run(*asked, max_prefill_tokens=8)
    for knobs in (
        {"use_speculative": True, "num_drafts": 3},
        {"use_speculative": True, "num_drafts": 5, "dflash": True},
        {"use_speculative": True, "num_drafts": 2, "dflash_unified_ctx": False},
        {"ngram_speculative": True},
        {"self_speculative": True, "num_drafts": 2},
        {"use_speculative": True, "num_drafts": 2, "ngram_speculative": True, "self_speculative": True},
    ):
        device = PROPOSER | {"has_self_speculative": True}
        other = run(*asked, device=device, max_prefill_tokens=8, **knobs)
        assert [out.split(", acc=")[0] for out in outs(other)] == [out.split(", acc=")[0] for out in outs(plain)], knobs
