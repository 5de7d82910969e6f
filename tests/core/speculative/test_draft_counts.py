"""How many drafts: ladder, rung controller, depth pruning, chunks, slot capacity (S4 sections 7 and 9)."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from spec_lines import PROPOSER, capacities, commit, head
from testkit import E, between, count, req, run, run_failing, scenario, toks

from metrale.core.speculative.batched import batch_and_serial, chunks_of, prune
from metrale.core.speculative.rung import RungController, ladder


def row(drafts: int, confidences: list[float] | None = None, grammar: bool = False) -> Any:
    """What pruning and batching look at."""
    held = [0.0] * drafts if confidences is None else confidences
    return SimpleNamespace(drafts=list(range(drafts)), draft_confidences=held, request=SimpleNamespace(grammar=grammar))


# -- the ladder (7.1) -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("active", "drafts"), [(1, 3), (4, 3), (5, 3), (8, 3), (9, 1), (16, 1), (17, 1), (32, 1), (33, 1), (500, 1)]
)
def test_ladder(active: int, drafts: int) -> None:
    assert ladder(active, 31) == drafts
    assert ladder(active, 3) == drafts
    assert ladder(active, 2) == min(2, drafts)
    assert ladder(active, 1) == 1
    assert ladder(active, 0) == 1


def test_mtp_never_drafts_more_than_three() -> None:
    result = run(req(1, 5, toks(10, 24, E)), device=PROPOSER, use_speculative=True, num_drafts=5)
    assert count(result, "run_mtp_propose_multi(") == count(result, "run_mtp_propose_multi(token=") > 1
    assert all(", n=3, " in line for line in result.calls if line.startswith("run_mtp_propose_multi("))


# -- the rung controller (7.2) ----------------------------------------------------------------------------------------


@dataclass
class FloatRung:
    """Section 7.2 once more, word for word, in floats."""

    p1: float = 0.0
    p1_seeded: bool = False
    p1_slow: float = 0.0
    p2: float = 0.0
    p2_seeded: bool = False
    at_depth: bool = False
    tick: int = 0
    last_probe: int = 0
    p1_at_decision: float = 0.0
    buckets: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)

    def rung(self, n: int, num_drafts: int) -> int:
        base = max(1, min(3 if n <= 8 else 1, num_drafts))
        if not (9 <= n <= 16 and num_drafts >= 2):
            return base
        if (
            self.at_depth
            or not self.p2_seeded
            or self.p1_slow - self.p1_at_decision >= 0.08
            or self.tick - self.last_probe >= 2048
        ):
            return max(base, min(2, num_drafts))
        return base

    def record(self, size: int, depth: int, accepted: int, now: int) -> None:
        bucket = self.buckets.setdefault(min(size, 32), [])
        bucket.append((depth, accepted, now))
        if len(bucket) < 128:
            return
        self.buckets[min(size, 32)] = []
        if now - bucket[0][2] > 5_000_000_000 or not 9 <= size <= 16:
            return
        p1 = sum(a > 0 for _, a, _ in bucket) / 128
        mean = sum(a for _, a, _ in bucket) / 128
        if self.p1_seeded:
            self.p1 = 0.5 * p1 + 0.5 * self.p1
            self.p1_slow = 0.15 * p1 + 0.85 * self.p1_slow
        else:
            self.p1 = self.p1_slow = p1
            self.p1_seeded = True
        self.tick += 1
        if max(d for d, _, _ in bucket) < 2:
            return
        self.last_probe = self.tick
        self.p1_at_decision = self.p1_slow
        if p1 <= 0:
            return
        sample = min(1.0, max(0.0, (mean - p1) / p1))
        self.p2 = 0.5 * sample + 0.5 * self.p2 if self.p2_seeded else sample
        self.p2_seeded = True
        ratio = 1 + self.p1 * self.p2 / (1 + self.p1)
        self.at_depth = ratio >= (1.30 if self.at_depth else 1.32)


def test_rung_follows_the_rules_of_the_text_on_random_streams() -> None:
    source = random.Random(7)
    for _ in range(12):
        exact, told = RungController(), FloatRung()
        now = 0
        first, second = source.random(), source.random()
        for step in range(40 * 128):
            if step % 640 == 0:
                first, second = source.random(), source.random()
            depth = exact.width(12, 3)
            assert depth == told.rung(12, 3)
            accepted = int(source.random() < first)
            if accepted and depth == 2:
                accepted += source.random() < second
            size = source.choice((9, 12, 12, 12, 16, 8, 17))
            now += source.choice((0, 1, 20_000_000))
            exact.record(size, depth, accepted, now)
            told.record(size, depth, accepted, now)
        assert exact.flushes == told.tick > 10


def feed(rung: RungController, flushes: int, depth: int, accepted: int, size: int = 12, now: int = 0) -> None:
    """Whole buckets of one outcome."""
    for _ in range(128 * flushes):
        rung.record(size, depth, accepted, now)


def test_two_drafts_until_the_first_observation() -> None:
    rung = RungController()
    assert [rung.width(n, 3) for n in (8, 9, 16, 17, 32)] == [3, 2, 2, 1, 1]
    assert rung.width(12, 1) == 1
    feed(rung, 1, depth=2, accepted=0)
    assert rung.width(12, 3) == 2, "no first draft matched, so p2 is still unknown"
    feed(rung, 1, depth=2, accepted=1)
    assert rung.width(12, 3) == 1, "the second draft never matched"


def test_enter_and_leave() -> None:
    """ratio = 1 + p1 p2 / (1 + p1): 1.5 for a perfect drafter; entered from 1.32 on, left below 1.30."""
    rung = RungController()
    feed(rung, 1, depth=2, accepted=2)
    assert rung.at_depth
    assert rung.width(9, 2) == 2
    feed(rung, 1, depth=2, accepted=1)
    assert not rung.at_depth, "p2 halves to 0.5, ratio 1.25"
    assert rung.width(9, 2) == 1


def test_between_leave_and_enter_the_state_holds() -> None:
    def mixed(rung: RungController, both: int) -> None:
        """One bucket in which the first draft always and the second ``both`` times matches: p1 = 1, p2 = both/128."""
        for index in range(128):
            rung.record(12, 2, 2 if index < both else 1, 0)

    low, high = RungController(), RungController()
    mixed(low, 80)
    assert not low.at_depth, "ratio 1.3125 does not enter"
    mixed(high, 82)
    assert high.at_depth, "ratio 1.3203 enters"
    mixed(high, 72)
    assert high.at_depth, "p2 averages to 77/128, ratio 1.3008 does not leave"
    mixed(high, 76)
    assert not high.at_depth, "p2 averages to 76.5/128, ratio 1.2988 leaves"


def test_a_rise_of_the_slow_average_triggers_two_drafts() -> None:
    rung = RungController()
    for index in range(128):
        rung.record(12, 2, int(index < 16), 0)
    assert rung.width(12, 3) == 1
    feed(rung, 1, depth=1, accepted=1)
    assert rung.width(12, 3) == 2, "p1_slow rose by 0.15 * (1 - 0.125) = 0.13 since the decision"


def test_a_probe_is_due_after_2048_flushes() -> None:
    rung = RungController()
    feed(rung, 1, depth=2, accepted=1)
    feed(rung, 2047, depth=1, accepted=1)
    assert rung.width(12, 3) == 1
    feed(rung, 1, depth=1, accepted=1)
    assert rung.width(12, 3) == 2


def test_a_bucket_that_took_longer_than_five_seconds_teaches_nothing() -> None:
    for late, flushes in ((5_000_000_000, 1), (5_000_000_001, 0)):
        rung = RungController()
        for index in range(128):
            rung.record(12, 2, 2, late if index == 127 else 0)
        assert rung.flushes == flushes
        assert rung.buckets == {}


def test_buckets_are_per_size_and_other_sizes_teach_nothing() -> None:
    rung = RungController()
    feed(rung, 1, depth=2, accepted=2, size=1)
    feed(rung, 1, depth=2, accepted=2, size=8)
    feed(rung, 1, depth=2, accepted=2, size=17)
    for index in range(128):
        rung.record(32 + index % 3, 2, 2, 0)
    assert rung.flushes == 0
    assert rung.buckets == {}
    for index in range(254):
        rung.record(9 + index % 2, 2, 2, 0)
    assert rung.flushes == 0
    assert {size: bucket.count for size, bucket in rung.buckets.items()} == {9: 127, 10: 127}


def test_a_served_batch_learns_that_the_second_draft_never_matches() -> None:
    """Nine sequences, every second draft wrong: after 128 records of the batched verify the width falls to 1."""
    requests = [req(i, 5, [10] * 80, draft_wrong_every=1) for i in range(1, 10)]
    never = run(*requests, device=PROPOSER, use_speculative=True, num_drafts=3, max_batch_size=9)
    assert all("can_batch_verify([3," in line for line in never.calls if line.startswith("can_batch_verify"))

    requests = [req(i, 6, [10] * 80, draft_wrong_every=2) for i in range(1, 10)]
    result = run(*requests, device=PROPOSER, use_speculative=True, num_drafts=3, max_batch_size=9)
    widths = [line for line in result.calls if line.startswith("can_batch_verify")]
    assert widths[:15] == [f"can_batch_verify({[3] * 9}) -> true"] * 15, "15 steps of 9 records make the first flush"
    assert set(widths[16:]) == {f"can_batch_verify({[2] * 9}) -> true"}


# -- depth pruning (9.2) ----------------------------------------------------------------------------------------------

TABLE = {
    1: ([4], [3]),
    2: ([4, 3], [3, 3]),
    3: ([4, 4, 3], [3, 3, 2]),
    4: ([4, 4, 4, 2], [3, 3, 3, 2]),
    5: ([4, 4, 4, 4, 2], [3, 3, 3, 3, 2]),
    6: ([4, 4, 4, 4, 3, 2], [3, 3, 3, 3, 3, 2]),
    7: ([4, 4, 4, 4, 4, 3, 2], [3, 3, 3, 3, 3, 2, 2]),
    8: ([4] * 6 + [2, 2], [3] * 6 + [2, 2]),
}


@pytest.mark.parametrize("count_", TABLE)
def test_rows_of_the_table(count_: int) -> None:
    for width, wanted in zip((3, 2), TABLE[count_], strict=True):
        batch = [row(width) for _ in range(count_)]
        ordered = prune(batch, width)
        assert [len(one.drafts) + 1 for one in ordered] == wanted
        assert ordered == batch, "all confidences tie, so the dispatch order is the active order"
        assert all(len(one.draft_confidences) == len(one.drafts) for one in batch)


def test_no_pruning_at_width_one_or_beyond_eight() -> None:
    assert prune([], 3) == []
    single = [row(1) for _ in range(5)]
    assert [len(one.drafts) for one in prune(single, 1)] == [1] * 5
    wide = [row(3) for _ in range(9)]
    assert [len(one.drafts) for one in prune(wide, 3)] == [3] * 9


def test_confident_sequences_keep_their_depth_and_go_first() -> None:
    unsure, sure = row(3, [-0.1, -2.0, -2.0]), row(3, [-0.1, -0.1, -0.1])
    ordered = prune([unsure, sure], 3)
    assert ordered == [sure, unsure]
    assert [len(one.drafts) for one in ordered] == [3, 2], "three of four deeper positions are kept"
    assert unsure.draft_confidences == [-0.1, -2.0]


def test_a_deep_position_drags_the_ones_before_it_along() -> None:
    """Scores are sums, so position 3 never outranks position 2 of the same sequence; depth is the deepest kept."""
    batch = [row(3, [-5.0, -5.0, -5.0]), row(3, [0.0, 0.0, -9.0]), row(3, [-1.0, -1.0, -1.0])]
    ordered = prune(batch, 3)
    assert [len(one.drafts) for one in batch] == [2, 3, 3]
    assert ordered == [batch[1], batch[2], batch[0]]


def test_a_confidence_list_of_the_wrong_length_scores_zero() -> None:
    stale = row(3, [-9.0])
    assert [len(one.drafts) for one in prune([row(3, [-1.0] * 3), stale], 3)] == [3, 2]
    assert len(stale.drafts) == 3


def test_eight_sequences_hand_the_counts_out_in_list_order() -> None:
    """Canonical from 8 on: who is pruned no longer depends on confidence, only how many are."""
    batch = [row(3, [-9.0] * 3), *[row(3) for _ in range(7)]]
    ordered = prune(batch, 3)
    assert ordered == batch
    assert [len(one.drafts) for one in ordered] == [3, 3, 3, 3, 3, 3, 1, 1]


# -- who is batched, chunks (9.2, 9.3) --------------------------------------------------------------------------------


def test_grammar_rows_and_short_ones_are_verified_alone() -> None:
    full, guided, short, long = row(3), row(3, grammar=True), row(2), row(5)
    batch, serial = batch_and_serial([full, guided, short, long], 3)
    assert batch == [full, long]
    assert serial == [guided, short]
    assert len(long.drafts) == len(long.draft_confidences) == 3


def test_chunks_hold_160_rows_and_160_over_the_first_ones_rows_sequences() -> None:
    assert chunks_of([]) == []
    assert [len(chunk) for chunk in chunks_of([row(3) for _ in range(32)])] == [32]
    assert [len(chunk) for chunk in chunks_of([row(1) for _ in range(40)])] == [32, 8], "32 sequences at most"
    assert [len(chunk) for chunk in chunks_of([row(7) for _ in range(41)])] == [20, 20, 1], "160 // 8"
    mixed = [row(1), *[row(15) for _ in range(12)]]
    assert [len(chunk) for chunk in chunks_of(mixed)] == [10, 3], "2 + 9 * 16 = 146 rows, then no room for 16"
    assert [len(chunk) for chunk in chunks_of([row(0), row(200)])] == [1, 1]


# -- slot capacity (7.4) ----------------------------------------------------------------------------------------------


def test_the_smallest_slot_bounds_the_step() -> None:
    device = PROPOSER | {"slot_draft_capacity": 2}
    requests = [req(i, 5, toks(10 * i, 10 * i + 9, E)) for i in (1, 2, 3)]
    result = run(*requests, device=device, use_speculative=True, num_drafts=3)
    assert between(result, 2)[:4] == [*capacities(0, 1, 2), "can_batch_verify([3, 3, 2]) -> true"]
    assert all(", n=2, " in line for line in result.calls if line.startswith("run_mtp_propose"))


def test_capacity_is_asked_per_slot_and_the_smallest_counts() -> None:
    """A device whose slot 1 can roll back one draft only, while slot 0 has room for eight."""
    sc = scenario(
        req(1, 5, toks(10, 19, E)), req(2, 5, toks(30, 33, E)), device=PROPOSER, use_speculative=True, num_drafts=3
    )
    result = run_failing(sc, {}, mtp_slot_draft_capacity=lambda slot: 1 if slot == 1 else 8)
    assert between(result, 2)[2] == "can_batch_verify([2, 2]) -> true"
    assert ", n=1, " in between(result, 2)[-2]


def test_drafts_beyond_a_fallen_width_are_dropped_and_a_risen_width_waits_for_the_next_propose() -> None:
    """Slot capacity 3 at first, 1 from the second step on, 3 again from the fourth."""
    seen: list[int] = []

    def capacity(slot: int) -> int:
        seen.append(slot)
        return 1 if len(seen) in (2, 3) else 3

    sc = scenario(req(1, 5, toks(10, 24, E)), device=PROPOSER, use_speculative=True, num_drafts=3)
    result = run_failing(sc, {}, mtp_slot_draft_capacity=capacity)
    assert between(result, 2)[1:8] == [
        *head("s1@0", 6, [11, 12], [12, 13]),
        commit("s1@0", 8, na=2, k=2),
    ]
    assert between(result, 4)[1:8] == [
        *head("s1@0", 10, [15, 16], [16, 17]),
        commit("s1@0", 12, na=2, k=2),
    ]
    assert ", n=3, " in between(result, 4)[-3]
    assert between(result, 5)[1:9] == head("s1@0", 12, [17, 18, 19, 20], [18, 19, 20, 21])


def test_a_width_of_zero_drops_the_drafts_and_decodes_nothing_in_that_tick() -> None:
    seen: list[int] = []

    def capacity(slot: int) -> int:
        seen.append(slot)
        return 0 if len(seen) == 2 else 3

    sc = scenario(req(1, 5, toks(10, 24, E)), device=PROPOSER, use_speculative=True, num_drafts=3)
    result = run_failing(sc, {}, mtp_slot_draft_capacity=capacity)
    assert between(result, 2) == [*capacities(0), "num_free_blocks() -> 999"]
    assert "decode(token=11, s1@0:len=7, stream=0)" in between(result, 3)
