"""The two sentences on traces that were made by changed scenarios."""

from __future__ import annotations

import tomllib

import pytest

from metrale.sim.runner import run_scenario
from metrale.sim.scenario import scenario_from
from metrale.trace.align import compare, explain

from .planting import GOLDEN, SCENARIOS, golden


def rerun(name: str, kind: str) -> str:
    table = tomllib.loads((GOLDEN / f"{name}.toml").read_text())
    SCENARIOS[kind](table)
    return run_scenario(scenario_from(table, "changed.toml")).text


SENTENCES = [
    (
        "preempt_requeue",
        "a later decode is refused",
        "At tick 2 the decode launch was refused for lack of blocks in A and went through in B. "
        "From there s1 resumes two ticks later in B.",
    ),
    (
        "spill_swap_out_in",
        "the last request comes one tick later",
        "At tick 2 A admitted s2 where B did not. From there s1 resumes one tick later in B, s2 starts one tick later "
        "in B and s2 ends one tick later in B.",
    ),
    (
        "preempt_requeue",
        "one block more",
        "At start-up A has 1000 free KV blocks where B has 1001. From there 16 lines follow (free blocks shifted: 16).",
    ),
    (
        "preempt_requeue",
        "another token",
        "At tick 2 the device answers token 32 for s3 in A and 55 in B. "
        "From there the client of s3 sees another answer.",
    ),
    (
        "preempt_requeue",
        "a deadline",
        "At tick 3 B finished s1 where A did not. From there the client of s1 sees another answer, s1 ends four ticks "
        "earlier in B and the run takes two ticks less in B.",
    ),
    (
        "preempt_requeue",
        "batch of two",
        "At start-up A admitted s3 where B did not. From there s3 starts four ticks later in B, s3 ends four ticks "
        "later in B and the run takes two ticks more in B, but two lines are not explained by it.",
    ),
    (
        "preempt_requeue",
        "small chunks",
        "At tick 1 A calls `alloc_sequence` for s1 where B calls `alloc_sequence_for` for s1. From there s1 is parked "
        "and resumed in A only, s2 is parked and resumed in B only and s1 ends one tick earlier in B.",
    ),
    (
        "spill_swap_out_in",
        "no last request",
        "At tick 2 A admitted s2 where B did not. From there the client of s2 is answered in A only, s1 is parked and "
        "resumed in A only and s2 is served in A only.",
    ),
]


@pytest.mark.parametrize(("name", "kind", "sentences"), SENTENCES, ids=[f"{n}: {k}" for n, k, _ in SENTENCES])
def test_two_sentences(name: str, kind: str, sentences: str) -> None:
    assert str(explain(compare(golden(name).encode(), rerun(name, kind).encode()))) == sentences


EDITS = [
    ("-- tick 3", "-- tick 5", "At tick 2 A's marker counts 3 where B's counts 5."),
    (
        "-> ERR KV cache exhausted",
        "-> ERR device lost",
        "At tick 2 the decode launch failed with `KV cache exhausted` in A and with `device lost` in B.",
    ),
    (
        "prefill(n=5, s2@1:len=5, stream=0)",
        "prefill(n=5, s2@1:len=5, stream=0) -> ERR out of memory",
        "At tick 1 `prefill` was refused (out of memory) in B and went through in A.",
    ),
    ("out s3:", "out s4:", "A answers s3 where B answers s4."),
    (
        "fx apply CompactSlot{target=0}\ncompact_sequence(s3@2:len=7, new_slot=0)\n",
        "",
        "At tick 2 A moved s3 to slot 0 where B did not.",
    ),
    ("-- tick 5\n", "-- tick 5\nnum_free_blocks() -> 998\n-- tick 6\n", "At tick 5 B begins another tick"),
    (
        "fx apply Quiesce{stream=0}\nsynchronize(stream=0)",
        "synchronize(stream=0)\nfx apply Quiesce{stream=0}",
        "At tick 8 A goes on with `fx apply Quiesce` and B with `synchronize`, which come in another order.",
    ),
    (
        "fx apply SaveSequenceState\nsave_sequence_state(s1@0:len=34, blocks=3)\n",
        "",
        "At tick 3 A spilled s1 where B did not.",
    ),
    (
        "save_sequence_state(s1@0:len=34, blocks=3)",
        "save_sequence_state(s2@0:len=34, blocks=3)",
        "At tick 3 A spilled s1 where B spilled s2.",
    ),
    ("acquire_adapter_slot(-1)\n", "", "At tick 1 A calls `acquire_adapter_slot` for s1 where B goes on with"),
]


@pytest.mark.parametrize(("old", "new", "start"), EDITS, ids=[start for _, _, start in EDITS])
def test_the_first_sentence(old: str, new: str, start: str) -> None:
    name = "spill_swap_out_in" if "save_sequence" in old else "preempt_requeue"
    text = golden(name)
    assert old in text
    told = explain(compare(text.encode(), text.replace(old, new, 1).encode()))
    assert told.what.startswith(start)


def test_equal_traces() -> None:
    data = golden("beam").encode()
    assert str(explain(compare(data, data))) == "A and B are equal. Nothing follows."
