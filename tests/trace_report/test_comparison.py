"""What a comparison says about traces that differ in known ways."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrale.trace.align import Change, Comparison, Phase, Role, compare, explain
from metrale.trace.report import comparison_document

from .planting import EDITS, NAMES, golden
from .test_planted_causes import assert_accounted

TRACE = golden("preempt_requeue")
LINES = TRACE.splitlines()


def against(*changes: tuple[str, str], name: str = "preempt_requeue") -> Comparison:
    """The golden against itself with texts replaced once."""
    text = golden(name)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return compare(golden(name).encode(), text.encode())


@pytest.mark.parametrize("name", NAMES)
def test_a_trace_equals_itself(name: str) -> None:
    data = golden(name).encode()
    found = compare(data, data)
    assert found.equal
    assert not found.bytes_only
    assert found.divergence is None
    assert found.causes == []
    assert found.differing == found.unexplained == 0
    assert all(view.same for view in found.clients)
    assert_accounted(found)


@pytest.mark.parametrize(
    ("data", "mark"),
    [
        (TRACE.replace("\n", "\r\n"), "b has CRLF line ends (162 against 0)"),
        (TRACE[:-1], "b has no final newline"),
        (TRACE.replace("-- tick 2\n", "-- tick 2  \n"), "b has blanks at line ends (1 against 0)"),
        (TRACE + "\n", "b has empty lines (1 against 0)"),
        ("\ufeff" + TRACE, "b has a UTF-8 byte order mark"),
    ],
)
def test_other_bytes_in_the_same_lines_are_named(data: str, mark: str) -> None:
    found = compare(TRACE.encode(), data.encode())
    assert not found.equal
    assert found.bytes_only
    assert found.marks == (mark,)
    assert found.divergence is not None
    assert found.divergence.change is Change.BYTES
    assert found.differing == 0
    assert explain(found).what == "A and B hold the same lines in other bytes."
    assert comparison_document(found)["first_divergence"]["argument"] == "bytes"


def test_other_bytes_and_other_lines() -> None:
    found = compare(TRACE.encode(), TRACE.replace("-> [11, 21, 31]", "-> [11, 21, 32]").replace("\n", "\r\n").encode())
    assert found.marks == ("b has CRLF line ends (162 against 0)",)
    assert found.divergence is not None
    assert (found.divergence.call, found.divergence.argument) == ("argmax_batch", "result[2]")


def test_a_token_that_only_the_answer_shows() -> None:
    found = against(("-> [33, 23, 12]", "-> [33, 24, 12]"))
    d = found.divergence
    assert d is not None
    assert (d.lines, d.tick, d.call, d.argument, d.change) == ((92, 92), 3, "argmax_batch", "result[1]", Change.RESULT)
    assert d.values == ("23", "24")
    assert str(explain(found)) == (
        "At tick 3 the device answers token 23 for s2 in A and 24 in B. Nothing follows from it."
    )


def test_the_state_before_is_rebuilt() -> None:
    found = against(("-> [33, 23, 12]", "-> [33, 24, 12]"))
    state = found.before[0]
    assert state is not None
    assert (state.tick, state.free, state.used) == (3, 997, 3)
    active = [(row.id, row.slot, row.length, row.blocks) for row in state.in_phase(Phase.ACTIVE)]
    assert active == [(3, 0, 8, 1), (2, 1, 8, 1), (1, 2, 7, 1)]
    assert [row.last for row in state.in_phase(Phase.ACTIVE)] == [32, 22, 11]


def test_parked_work_is_in_the_state() -> None:
    found = against(("fx launch Decode{n=2", "fx launch Decode{n=1"))
    state = found.before[0]
    assert state is not None
    assert [(row.id, row.phase, row.length) for row in state.in_phase(Phase.REQUEUED)] == [(1, Phase.REQUEUED, 6)]
    spilled = against(("decode_batch(tokens=[20]", "decode_batch(tokens=[19]"), name="spill_swap_out_in").before[0]
    assert spilled is not None
    assert [(row.id, row.length) for row in spilled.in_phase(Phase.SPILLED)] == [(1, 34)]


def test_another_victim() -> None:
    found = against(
        ("cache_sequence(s1@0:len=6)", "cache_sequence(s2@1:len=6)"),
        ("free_sequence(s1@0:len=6, blocks=1)", "free_sequence(s2@1:len=6, blocks=1)"),
    )
    d = found.divergence
    assert d is not None
    assert (d.lines, d.tick, d.call, d.argument) == ((61, 61), 2, "cache_sequence", "seq.hash")
    assert explain(found).what == (
        "At tick 2 the decode launch was refused for lack of blocks and A parked s1 where B parked s2."
    )


def test_two_independent_changes_are_two_causes() -> None:
    found = against(("-> [11, 21, 31]", "-> [11, 22, 31]"), ("cache_sequence(s3@0:len=10)\n", ""))
    assert [cause.change for cause in found.causes] == [Change.RESULT, Change.MISSING]
    assert [cause.call for cause in found.causes] == ["argmax_batch", "cache_sequence"]
    assert found.unexplained == 1
    assert explain(found).then == "Nothing follows from it, but one line is not explained by it."


def test_the_same_change_in_many_places_is_one_cause() -> None:
    text = TRACE.replace("readback=Argmax", "readback=HostLogits")
    found = compare(TRACE.encode(), text.encode())
    assert len(found.causes) == 1
    assert found.causes[0].places == TRACE.count("readback=Argmax")
    assert found.unexplained == 0
    assert explain(found).then == "From there 14 lines follow (same change again: 14)."


def test_kinds_are_counted_once_for_both_sides() -> None:
    moved = against(
        ("fx apply Quiesce{stream=0}\nsynchronize(stream=0)\n", ""),
        ("synchronize(stream=1)\n", "synchronize(stream=1)\nfx apply Quiesce{stream=0}\nsynchronize(stream=0)\n"),
    )
    assert moved.tally == {Change.MOVED: 2}
    extra = against(("-- tick 3\n", "-- tick 3\npoll_innerq()\n"))
    assert extra.tally == {Change.EXTRA: 1}
    assert extra.divergence is not None
    assert (extra.divergence.call, extra.divergence.change) == ("poll_innerq", Change.EXTRA)


def test_what_a_client_saw() -> None:
    found = against(("out s2: T20 T21 T22 T23 Done(stop, n=5", "out s2: T20 T21 T22 T24 Done(stop, n=5"))
    assert [view.id for view in found.clients if not view.same] == [2]
    d = found.divergence
    assert d is not None
    assert (d.tick, d.call) == (None, "out")
    assert explain(found).what.startswith("The client of s2 sees ")


def test_a_line_that_is_none() -> None:
    found = against(("-- tick 4", "-- tack 4"))
    assert [cause.change for cause in found.causes] == [Change.TEXT]
    assert explain(found).what == "At tick 3 B holds text that is no trace line: `-- tack 4`."
    both = compare(b"# scenario x\none\n", b"# scenario x\ntwo\n")
    assert explain(both).what == "At start-up A and B hold text that is no trace line: `one`."


def test_a_trace_that_ends_early() -> None:
    cut = "\n".join(LINES[:100]) + "\n"
    found = compare(TRACE.encode(), cut.encode())
    d = found.divergence
    assert d is not None
    assert (d.lines, d.change, d.call) == ((101, None), Change.MISSING, "fx launch Decode")
    assert "B ends where A goes on with `fx launch Decode" in explain(found).what
    assert found.unexplained == 0


def test_two_requests_with_one_id_are_two_clients() -> None:
    a = b"# scenario x\nout s7: T1 Done(stop, n=2, think=0, cached=0, acc=0, guard=None)\nout s7: dropped\n"
    b = a.replace(b"T1 ", b"T1 T2 ")
    found = compare(a, b)
    assert [(view.id, view.occurrence, view.same) for view in found.clients] == [(7, 1, False), (7, 2, True)]


def test_a_missing_client() -> None:
    shorter = "".join(line for line in TRACE.splitlines(keepends=True) if not line.startswith("out s3"))
    found = compare(TRACE.encode(), shorter.encode())
    view = next(view for view in found.clients if view.id == 3)
    assert view.seen[1] is None
    assert explain(found).then.startswith("From there the client of s3 is answered in A only")


# ---------------------------------------------------------------- properties


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, str]:
    """A golden, and the same with a few edits of any kind."""
    name = draw(st.sampled_from([name for name in NAMES if name != "watchdog_rollback"]))
    rng = random.Random(draw(st.integers(0, 1 << 32)))
    lines = golden(name).splitlines()
    for kind in draw(st.lists(st.sampled_from(list(EDITS)), max_size=4)):
        done = EDITS[kind](lines, rng)
        lines = done[0] if done else lines
    if draw(st.booleans()):
        start = rng.randrange(len(lines))
        block = lines[start : start + 20]
        rng.shuffle(block)
        lines[start : start + 20] = block
    return golden(name), "\n".join(lines) + "\n"


@given(damaged())
def test_every_line_has_one_place_and_partners_agree(pair: tuple[str, str]) -> None:
    found = compare(pair[0].encode(), pair[1].encode())
    assert_accounted(found)
    for which in (0, 1):
        for index, place in found.places[which].items():
            assert place.role in (Role.CAUSE, Role.FOLDED)
            assert 1 <= place.cause <= len(found.causes)
            if place.partner >= 0:
                assert found.places[1 - which][place.partner].partner == index
    booked = [
        sorted(i for cause in found.causes for book in (cause.lines, cause.folded) for i in book[w]) for w in (0, 1)
    ]
    assert booked == [sorted(places) for places in found.places]


@given(damaged())
def test_swapping_the_sides_swaps_the_report(pair: tuple[str, str]) -> None:
    a, b = (text.encode() for text in pair)
    there, back = compare(a, b, ("x", "y")), compare(b, a, ("y", "x")).mirrored()
    assert comparison_document(there) == comparison_document(back)
    assert there.places == back.places
    assert there.runs == back.runs


@given(damaged())
def test_equal_texts_are_the_only_same_lines(pair: tuple[str, str]) -> None:
    found = compare(pair[0].encode(), pair[1].encode())
    left, right = (side.texts for side in found.sides)
    for x, y, count in found.runs:
        assert left[x : x + count] == right[y : y + count]


@given(st.lists(st.text(max_size=30), max_size=20), st.lists(st.text(max_size=30), max_size=20))
def test_any_text_can_be_compared(a: list[str], b: list[str]) -> None:
    found = compare("\n".join(a).encode(), "\n".join(b).encode())
    assert_accounted(found)
    comparison_document(found)
