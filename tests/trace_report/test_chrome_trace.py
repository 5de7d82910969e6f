"""The Chrome trace format, checked against its rules: the public trace processor loads what keeps them."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from typing import Any

import pytest

from metrale.trace.report.perfetto import CALLS, REQUESTS, SLOTS, TICK, chrome_trace

from .planting import NAMES, golden

PHASES = {"X", "M", "C", "i"}


def assert_valid(document: dict[str, Any]) -> None:
    """JSON object format: an event list; times are whole microseconds; slices of one thread never overlap."""
    assert json.loads(json.dumps(document)) == document
    assert document["displayTimeUnit"] in ("ms", "ns")
    threads: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    named = set()
    for event in document["traceEvents"]:
        assert event["ph"] in PHASES
        assert isinstance(event["name"], str)
        assert event["name"]
        for key in ("pid", "tid", "ts"):
            assert type(event[key]) is int
            assert event[key] >= 0
        if event["ph"] == "X":
            assert type(event["dur"]) is int
            assert event["dur"] > 0
            threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "i":
            assert event["s"] in ("g", "p", "t")
        elif event["ph"] == "C":
            assert all(type(value) is int for value in event["args"].values())
        elif event["name"].endswith("_name"):
            named.add((event["name"], event["pid"], event["tid"] if event["name"] == "thread_name" else 0))
            assert event["args"]["name"]
    for (pid, tid), slices in threads.items():
        assert ("thread_name", pid, tid) in named
        assert ("process_name", pid, 0) in named
        slices.sort()
        assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(slices))


@pytest.mark.parametrize("name", NAMES)
def test_goldens_are_valid(name: str) -> None:
    document = chrome_trace(name, golden(name).encode())
    assert_valid(document)
    calls = [event for event in document["traceEvents"] if event["pid"] == CALLS and event["ph"] == "X"]
    assert len(calls) == sum(not line.startswith(("out", "rotation")) for line in golden(name).splitlines())


def test_what_it_shows() -> None:
    events = chrome_trace("x", golden("spill_swap_out_in").encode())["traceEvents"]
    parked = [event["ts"] // TICK for event in events if event["name"] == "parked" and event["ph"] == "X"]
    assert parked == [4]
    free = [event["args"]["value"] for event in events if event["name"] == "free blocks"]
    assert free == [6, 3, 3, 0, 0, 3, 3, 3, 3, 6, 6]
    ended = [(event["tid"], event["ts"] // TICK) for event in events if event["ph"] == "i" and event["name"] == "ended"]
    assert ended == [(2, 5), (1, 9)]
    assert {event["name"] for event in events if event["pid"] == SLOTS and event["ph"] == "X"} == {"s1", "s2"}
    assert {event["pid"] for event in events} == {SLOTS, REQUESTS, CALLS}
