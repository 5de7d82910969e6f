"""One trace in the Chrome trace format, which Perfetto and chrome://tracing open.

Time is the scheduler's own: a tick lasts :data:`TICK` microseconds, the calls of a tick share it in equal parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..align import PARKED, Chronicle, Frame, Side, chronicle
from ..align.side import Reading, load_side

TICK = 1_000_000
SLOTS, REQUESTS, CALLS = 1, 2, 3
MOST_CALLS = 200_000
"""So many calls become events; slots, requests and counters are complete in any case."""

Event = dict[str, Any]


def chrome_trace(name: str, data: bytes) -> dict[str, Any]:
    """The trace as a JSON object: slots and requests as tracks, calls as slices, free blocks as a counter."""
    side = load_side(name, data, Reading())
    told = chronicle(side)
    events = [*_names(told), *_seats(told), *_lives(told), *_counters(told), *_calls(side, told.frames)]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"trace": name, "tick_us": str(TICK)}}


def _names(told: Chronicle) -> Iterator[Event]:
    for pid, text in ((SLOTS, "slots"), (REQUESTS, "requests"), (CALLS, "calls")):
        yield _meta("process_name", pid, 0, text)
        yield {**_meta("process_sort_index", pid, 0, ""), "args": {"sort_index": pid}}
    for slot in sorted({seat.slot for frame in told.frames for seat in frame.seats if seat.slot < 1 << 32}):
        yield _meta("thread_name", SLOTS, slot + 1, f"slot {slot}")
    for number, id in enumerate(told.lives, 1):
        yield _meta("thread_name", REQUESTS, number, f"s{id}")
    yield _meta("thread_name", CALLS, 1, "calls")


def _meta(name: str, pid: int, tid: int, text: str) -> Event:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": {"name": text}}


def _slice(name: str, pid: int, tid: int, start: int, duration: int, **args: Any) -> Event:
    return {
        "ph": "X",
        "name": name,
        "cat": "metrale",
        "pid": pid,
        "tid": tid,
        "ts": start,
        "dur": duration,
        "args": args,
    }


def _seats(told: Chronicle) -> Iterator[Event]:
    """Who sits in a slot; of several in one tick the last one."""
    for frame in told.frames:
        seats = {seat.slot: seat for seat in frame.seats if seat.slot < 1 << 32}
        for slot, seat in seats.items():
            yield _slice(
                f"s{seat.id}", SLOTS, slot + 1, frame.tick * TICK, TICK, phase=seat.phase.value, length=seat.length
            )


def _lives(told: Chronicle) -> Iterator[Event]:
    tracks = {id: number for number, id in enumerate(told.lives, 1)}
    for frame in told.frames:
        seats = {seat.id: seat for seat in frame.seats}
        for id, seat in seats.items():
            if id in tracks:
                yield _slice(seat.phase.value, REQUESTS, tracks[id], frame.tick * TICK, TICK, length=seat.length)
        for id in frame.parked:
            if id in tracks and id not in seats:
                yield _slice("parked", REQUESTS, tracks[id], frame.tick * TICK, TICK)
        for id, event in frame.events:
            yield {
                "ph": "i", "s": "t", "name": event.value, "cat": "metrale", "pid": REQUESTS, "tid": tracks[id],
                "ts": frame.tick * TICK, "args": {},
            }  # fmt: skip


def _counters(told: Chronicle) -> Iterator[Event]:
    for frame in told.frames:
        active = sum(seat.phase not in PARKED for seat in frame.seats)
        for name, value in (("free blocks", frame.free), ("sequences in slots", active)):
            if value is not None:
                yield {
                    "ph": "C", "name": name, "cat": "metrale", "pid": SLOTS, "tid": 0, "ts": frame.tick * TICK,
                    "args": {"value": value},
                }  # fmt: skip


def _calls(side: Side, frames: list[Frame]) -> Iterator[Event]:
    left = MOST_CALLS
    for frame in frames:
        count = frame.stop - frame.start
        if count > left:
            return
        left -= count
        step = max(1, TICK // max(1, count))
        for number in range(count):
            text = side.texts[frame.start + number]
            line = side.numbers[frame.start + number]
            name = text.split("(")[0].split("{")[0][:60]
            yield _slice(name, CALLS, 1, frame.tick * TICK + number * step, step, line=line, text=text[:400])
