"""Host picks: bf16, masks, penalties, ties, seeded draws, logprob records (S3 sections 5 and 5b, S2 5.1)."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from testkit import E, done, outs, req, run, stream

from metrale.core.config import SchedulerConfig
from metrale.core.request import CancelFlag, Request, SamplingParams
from metrale.core.row import Row, born
from metrale.core.sampling.chacha import chacha12_block, draw24, key_from_seed
from metrale.core.sampling.draw import expand_bf16, first_maximum, last_maximum, penalize, sample
from metrale.core.sampling.pick import pick_decode, pick_first, pick_window, window_records
from metrale.core.sampling.record import logprob_record
from metrale.core.sampling.stages import Pick, run_stages
from metrale.core.sequence import Sequence

TABLE = {
    42: 2238244, 43: 15501864, 44: 7707283, 45: 11327503, 46: 13799222,
    47: 15662846, 48: 7341327, 49: 156946, 50: 9746634, 51: 16390533,
}  # fmt: skip


def bf16(values: list[float]) -> bytes:
    """The upper halves of the floats, little-endian."""
    return b"".join(struct.pack("<f", value)[2:] for value in values)


def one_hot(token: int | None, vocab: int = 64) -> bytes:
    return bf16([30.0 if i == token else 0.0 for i in range(vocab)])


def row(outputs: list[int] | None = None, config: SchedulerConfig | None = None, **keys: object) -> Row:
    """A row outside any run."""
    params = keys.pop("sampling", SamplingParams())
    request = Request(
        id=1,
        prompt=[1, 2],
        max_tokens=100,
        sink=None,
        sampling=params,
        cancel=CancelFlag(),
        **keys,  # type: ignore[arg-type]
    )
    made = born(request, Sequence(0, request), 10, config or SchedulerConfig(), 0, 0)
    if outputs is not None:
        made.outputs = outputs
    return made


# -- generator --------------------------------------------------------------------------------------------------------


def test_generator_table_of_s3_5_5() -> None:
    """Ten seeds, 24-bit draws and the printed fractions."""
    assert {seed: draw24(seed) for seed in TABLE} == TABLE
    assert f"{draw24(42) / 2**24:.8f}" == "0.13340974"
    assert f"{draw24(51) / 2**24:.8f}" == "0.97695190"


def test_cipher_vector_of_s3_5_5() -> None:
    """Key words 1, 23, 456, 7890 give the first u64 10719222850664546238."""
    block = chacha12_block([1, 23, 456, 7890, 0, 0, 0, 0])
    assert block[0] | block[1] << 32 == 10719222850664546238


def test_seed_is_64_bits_wide() -> None:
    """Seed + len(out) wraps around."""
    assert key_from_seed(2**64 + 5) == key_from_seed(5)
    params = SamplingParams(temperature=1.0, seed=2**64 - 1)
    logits = np.zeros(64, np.float32)
    assert sample(logits, params, 2**64) == sample(logits, params, 0)


def test_no_draw_of_a_harness_sized_run_is_zero() -> None:
    """S3 5.4: r is non-zero for every seed from 42 to 4241."""
    assert all(draw24(seed) for seed in range(42, 4242))


# -- ties and draws ---------------------------------------------------------------------------------------------------


def test_ties_last_for_decode_first_for_first_tokens_and_verify_picks() -> None:
    """S3 5.4 and S2 5.1."""
    logits = np.array([1.0, 3.0, 2.0, 3.0, 0.0], np.float32)
    assert (first_maximum(logits), last_maximum(logits)) == (1, 3)
    zeros = one_hot(None)
    assert pick_first(zeros, frozenset(), SamplingParams()) == 0
    assert pick_first(zeros, frozenset({0, 1, 3, 999}), SamplingParams()) == 2
    assert pick_decode(zeros, row(), SchedulerConfig())[0] == 63
    assert pick_window(zeros * 2, 2, row(), SchedulerConfig()) == [0, 0]


def test_worked_draw_of_s3_5_4() -> None:
    """Peak masked under the floor, temp 0.7: seed 43, the 59th of 63 candidates, id 58; a script of E at index 1."""
    result = run(req(1, 5, [30, E, 31, 32, E], temperature=0.7, min_tokens=3))
    assert outs(result) == [stream([30, 58, 31, 32], done("stop", 5))]


@given(st.integers(0, 5000), st.integers(0, 63))
def test_a_masked_peak_is_drawn_by_the_written_formula(seed: int, masked: int) -> None:
    """m candidates of weight 1: number max(ceil(f32(r * m)), 1) of those in id order."""
    logits = np.zeros(64, np.float32)
    logits[masked] = -np.inf
    share = np.float32(draw24(seed) / 2**24) * np.float32(63)
    number = max(math.ceil(float(share)), 1)
    candidates = [i for i in range(64) if i != masked]
    assert sample(logits, SamplingParams(temperature=0.7), seed) == candidates[number - 1]


@given(st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=40), st.floats(0.05, 3.0), st.integers(0, 2**64 - 1))
def test_a_draw_walks_the_candidates_in_id_order(values: list[float], temperature: float, seed: int) -> None:
    """Against a plain f32 loop over the specification's words."""
    logits = np.array(values, np.float32)
    scaled = [np.float32(v) / np.float32(temperature) for v in logits]
    weights = [np.exp(np.float32(v - max(scaled))) for v in scaled]
    total = np.float32(0)
    for weight in weights:
        total = np.float32(total + weight)
    share = np.float32(np.float32(draw24(seed) / 2**24) * total)
    running, wanted = np.float32(0), len(values) - 1
    for index, weight in enumerate(weights):
        running = np.float32(running + weight)
        if running >= share:
            wanted = index
            break
    assert sample(logits, SamplingParams(temperature=temperature), seed) == wanted


def test_a_row_without_a_finite_logit_gives_the_last_maximum() -> None:
    """S3 5.4, last words."""
    assert sample(np.full(8, -np.inf, np.float32), SamplingParams(temperature=1.0), 1) == 7


def test_candidate_cuts() -> None:
    """top-k (ties to the lower id), min-p, top-p, top-n-sigma: only survivors can be drawn, whatever the seed."""
    logits = np.array([5.0, 1.0, 5.0, 4.0, 5.0, -50.0], np.float32)
    draws = lambda **keys: {sample(logits, SamplingParams(temperature=1.0, **keys), seed) for seed in range(300)}  # noqa: E731
    assert draws() == {0, 1, 2, 3, 4}
    assert draws(top_k=2) == {0, 2}
    assert draws(top_k=3) == {0, 2, 4}
    assert draws(min_p=0.5) == {0, 2, 4}
    assert draws(min_p=0.3) == {0, 2, 3, 4}
    assert draws(top_p=0.29) == {0}
    assert draws(top_p=0.88) == {0, 2, 4}
    assert draws(top_n_sigma=0.001) == {0, 2, 4}


def test_a_draw_at_temperature_takes_the_peak_and_the_seed_moves_with_the_outputs() -> None:
    """T20 T21 ... as at temperature 0; the n-th decode pick uses seed 42 + n."""
    result = run(req(1, 5, [10, 11, 12, 13, E], temperature=0.7))
    assert outs(result) == [stream([10, 11, 12, 13], done("stop", 5))]
    params = SamplingParams(temperature=0.7, seed=42)
    for count in (1, 2, 5):
        token, _ = pick_decode(one_hot(None), row(list(range(count)), sampling=params), SchedulerConfig())
        assert token == sample(np.zeros(64, np.float32), params, 42 + count)
    assert len({sample(np.zeros(64, np.float32), params, 42 + n) for n in range(10)}) > 5


def test_first_tokens_at_a_temperature_are_drawn_from_the_requests_seed() -> None:
    """A choice of ours: the same scenario gives the same trace (docs/decisions.md)."""
    params = SamplingParams(temperature=0.7, seed=42)
    assert pick_first(one_hot(None), frozenset({63}), params) == 8
    result = run(req(1, 5, [E, 11, E], temperature=0.7, min_tokens=1))
    # 63 candidates, r = 0.13340974: t = 8.4 -> the 9th, id 8.
    assert outs(result) == [stream([8, 11], done("stop", 3))]


# -- bf16 -------------------------------------------------------------------------------------------------------------


def test_bf16_is_the_upper_half_of_a_float_little_endian() -> None:
    """30.0 is F0 41."""
    assert expand_bf16(b"\xf0\x41\x00\x00\x80\xbf").tolist() == [30.0, 0.0, -1.0]


# -- stages -----------------------------------------------------------------------------------------------------------


def test_a_floor_masks_every_eos_inside_the_vocabulary() -> None:
    """Ids at or above vocab are ignored; at the floor nothing is masked."""
    held = row([10], stop_tokens=(5, 200), min_tokens=2)
    assert pick_decode(one_hot(5), held, SchedulerConfig())[0] == 62
    held.outputs = [10, 11]
    assert pick_decode(one_hot(5), held, SchedulerConfig())[0] == 5


def test_stages_leave_the_callers_bytes_alone() -> None:
    """Logits are copied before they are edited."""
    data = one_hot(63)
    held = row([10], min_tokens=5)
    assert pick_decode(data, held, SchedulerConfig())[0] == pick_decode(data, held, SchedulerConfig())[0] == 62
    assert data == one_hot(63)


def test_think_ids_are_masked_once_thinking_is_over() -> None:
    """Stage 4: each only if configured and inside the vocabulary; last maximum of the rest."""
    config = SchedulerConfig(think_start_token=63, think_end_token=62)
    over = row([10], config)
    assert over.think.over
    assert pick_decode(one_hot(62), over, config)[0] == 61
    assert pick_decode(one_hot(63), over, config)[0] == 61
    wide = SchedulerConfig(think_start_token=1000, think_end_token=1001)
    assert pick_decode(one_hot(20), row([10], wide), wide)[0] == 20


# -- penalties --------------------------------------------------------------------------------------------------------


def _penalized(history: list[int], values: list[float], **keys: object) -> list[float]:
    logits = np.array(values, np.float32)
    penalize(logits, SamplingParams(**keys), history)  # type: ignore[arg-type]
    return [round(float(x), 5) for x in logits]


def test_repetition_divides_or_multiplies_for_every_occurrence() -> None:
    """Positive logits are divided, others multiplied; once per occurrence in the window."""
    assert _penalized([0, 1, 1], [8.0, 8.0, 8.0], repetition_penalty=2.0) == [4.0, 2.0, 8.0]
    assert _penalized([0, 1], [-1.0, 0.0, 3.0], repetition_penalty=2.0) == [-2.0, 0.0, 3.0]
    assert _penalized([0], [4.0], repetition_penalty=1.0) == [4.0]
    assert _penalized([0], [4.0], repetition_penalty=0.0) == [4.0]
    assert _penalized([0], [4.0], repetition_penalty=-2.0) == [4.0]


def test_frequency_counts_and_presence_once() -> None:
    """frequency * count + presence per distinct id."""
    assert _penalized([0, 1, 1, 1], [5.0] * 3, frequency_penalty=0.5, presence_penalty=1.0) == [3.5, 2.5, 5.0]


def test_the_penalty_window_is_the_last_256_ids() -> None:
    """An older id is free again."""
    assert _penalized([1] + [0] * 256, [5.0, 5.0], presence_penalty=1.0) == [4.0, 5.0]
    assert _penalized([1] + [0] * 255, [5.0, 5.0], presence_penalty=1.0) == [4.0, 4.0]


def test_ids_outside_the_vocabulary_are_passed_over() -> None:
    """A history or bias may name ids that the row does not have."""
    assert _penalized([9, 0], [5.0], presence_penalty=1.0, repetition_penalty=2.0) == [1.5]
    assert _penalized([], [5.0, 5.0], logit_bias=((1, 2.5), (7, 1.0), (-1, 3.0))) == [5.0, 7.5]


def test_lz_and_dry_need_a_history_and_penalize_the_continuation_of_a_repeat() -> None:
    """1 2 3 1 2 -> 3 would continue a repeat of length 2."""
    history = [1, 2, 3, 1, 2]
    assert _penalized(history, [5.0] * 5, lz_penalty=0.5) == [5.0, 5.0, 5.0, 4.0, 5.0]
    assert _penalized([1, 2, 1], [5.0] * 3, lz_penalty=0.5) == [5.0] * 3
    assert _penalized(history, [5.0] * 5, dry_multiplier=1.0, dry_allowed_length=2) == [5.0, 5.0, 5.0, 4.0, 5.0]
    assert _penalized(history, [5.0] * 5, dry_multiplier=1.0) == [5.0] * 5
    assert (
        _penalized([1, 2, 3, 4, 1, 2, 3], [5.0] * 6, dry_multiplier=1.0, dry_base=2.0, dry_allowed_length=2)[4] == 3.0
    )
    assert _penalized([7, 7], [5.0] * 8, dry_multiplier=1.0, dry_allowed_length=1) == [5.0] * 8


def test_penalties_act_after_the_masks_and_never_on_the_first_token() -> None:
    """Bias cannot lift a masked id; pick_first knows neither penalties nor bias."""
    biased = SamplingParams(logit_bias=((63, 100.0), (5, 40.0)))
    held = row([10], sampling=biased, min_tokens=5)
    assert pick_decode(one_hot(20), held, SchedulerConfig())[0] == 5
    assert pick_first(one_hot(20), frozenset(), biased) == 20


@pytest.mark.parametrize(
    ("keys", "neutral", "penalties"),
    [
        ({}, True, True),
        ({"temperature": 0.7, "top_k": 3, "top_p": 0.5, "min_p": 0.1}, True, True),
        ({"logit_bias": ((1, 1.0),)}, False, True),
        ({"repetition_penalty": 1.1}, False, False),
        ({"presence_penalty": -0.1}, False, False),
        ({"frequency_penalty": 0.1}, False, False),
        ({"lz_penalty": 0.1}, False, False),
        ({"dry_multiplier": 0.1}, False, False),
    ],
)
def test_what_counts_as_neutral(keys: dict, neutral: bool, penalties: bool) -> None:
    """S3 4.1 condition 6 and 5b."""
    params = SamplingParams(**keys)
    assert (params.neutral, params.penalties_neutral) == (neutral, penalties)


# -- logprob records --------------------------------------------------------------------------------------------------


def test_a_record_is_a_log_softmax_over_the_edited_logits() -> None:
    """min(count, vocab) entries, best first, equal ones by id; masked ids keep minus infinity."""
    logits = np.array([0.0, 1.0, -np.inf, 1.0], np.float32)
    record = logprob_record(logits, 3, 255)
    total = math.log(1 + 2 * math.e)
    assert [token for token, _ in record.top] == [1, 3, 0, 2]
    assert record.top[0][1] == pytest.approx(1 - total)
    assert record.logprob == pytest.approx(1 - total)
    assert record.top[3][1] == -math.inf
    assert logprob_record(logits, 0, 0).top == ()
    assert logprob_record(np.full(3, -np.inf, np.float32), 1, 2).logprob == -math.inf


def test_records_of_picks_see_the_masks_and_those_of_windows_do_not() -> None:
    """5.1 step 6 against S4 5.2."""
    held = row([10], min_tokens=5, top_logprobs=2)
    token, record = pick_decode(one_hot(63), held, SchedulerConfig())
    assert (token, record.top[0][0], len(record.top)) == (62, 0, 2)  # type: ignore[union-attr]
    raw = window_records(one_hot(63) + one_hot(5), [62, 5], 3)
    assert [r.token for r in raw] == [62, 5]
    assert [r.top[0][0] for r in raw] == [63, 5]


def test_stage_order_and_names() -> None:
    """The stages that act at all, in the order of the table of S3 5.2."""
    from metrale.core.sampling.stages import STAGES

    assert [name for name, _, _ in STAGES] == [
        "min_tokens_eos_mask",
        "f2_confidence_early_stop",
        "post_close_think_mask",
        "forced_think_end_injector",
    ]
    logits = np.zeros(64, np.float32)
    run_stages(logits, Pick(row([10]), SchedulerConfig()))
    assert not logits.any()


@pytest.mark.parametrize("temperature", [5e-324, 1e-100, 1e-40, 1e-38, 1e-10])
def test_a_tiny_temperature_takes_the_peak(temperature: float) -> None:
    logits = np.zeros(64, dtype=np.float32)
    logits[10] = 30.0
    params = SamplingParams(temperature=temperature)
    assert {sample(logits, params, seed) for seed in range(42, 62)} == {10}
