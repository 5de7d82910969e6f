"""The n-gram proposer and what its lane does with several drafts (S4 section 12)."""

from __future__ import annotations

import random

from spec_lines import head, last_tick
from testkit import Bench, req, scenario, toks

from metrale.core.speculative.ngram import ngram_draft


def reference_draft(tokens: list[int]) -> int | None:
    """Section 12 word for word."""
    if len(tokens) < 3:
        return None
    for n in range(min(16, len(tokens) - 1), 1, -1):
        for start in range(len(tokens) - n):
            if tokens[start : start + n] == tokens[len(tokens) - n :]:
                return tokens[start + n]
    return None


def test_ngram_examples() -> None:
    assert ngram_draft([]) is None
    assert ngram_draft([9, 9]) is None
    assert ngram_draft([9, 9, 9]) == 9, "the match may overlap the end"
    assert ngram_draft([1, 2, 3, 1, 2]) == 3
    assert ngram_draft([1, 2, 3, 1, 2, 4, 1, 2]) == 3, "the smallest start wins"
    assert ngram_draft([5, 1, 2, 7, 1, 2, 8, 5, 1, 2]) == 7, "a longer match wins over an earlier one"
    assert ngram_draft([2, 7, 1, 2]) is None, "one token is not enough"


def test_ngram_draft_agrees_with_the_text_on_many_lists() -> None:
    source = random.Random(3)
    for _ in range(1500):
        tokens = [source.randrange(3) for _ in range(source.randrange(40))]
        assert ngram_draft(tokens) == reference_draft(tokens), tokens
    period = [source.randrange(2) for _ in range(60)] * 2
    assert ngram_draft(period) == reference_draft(period), "matches are capped at 16 tokens"


def test_ngram_verify_uses_the_first_of_several_drafts() -> None:
    bench = Bench(scenario(req(1, 5, toks(10, 29)), ngram_speculative=True))
    bench.tick()
    bench.state.active[0].drafts = [12, 13, 14]
    assert last_tick(bench)[:6] == head("s1@0", 6, [11, 12], [12, 13])
    assert bench.state.active[0].drafts == []
