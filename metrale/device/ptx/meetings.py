"""Where threads wait for each other: barriers of a block, barriers of a warp, shuffles."""

from __future__ import annotations

from typing import Any

import numpy as np

from .faults import LaneError
from .program import Barrier, Program, Shuffle
from .threads import Lanes, Threads

Array = np.ndarray[Any, Any]
Meeting = Barrier | Shuffle


def of_a_block(meeting: Meeting) -> bool:
    """Whether all threads of a block meet, not those of a warp."""
    return isinstance(meeting, Barrier) and meeting.mask is None


def ready(lanes: Lanes, meeting: Meeting) -> Array:
    """Lanes for whom everybody is here. Raises LaneError."""
    threads = lanes.threads
    if of_a_block(meeting):
        here = np.bincount(lanes.block, minlength=threads.blocks)
        return (here == threads.geometry.threads)[lanes.block]
    # The last warp of a block may have fewer than 32 threads; nobody waits for those that do not exist.
    here = np.bincount(lanes.warp, np.exp2(lanes.lane), len(threads.warp_sizes)).astype(np.int64)
    exist = (1 << threads.warp_sizes.astype(np.int64)) - 1
    needed = _mask(lanes, meeting) & exist[lanes.warp]
    return here[lanes.warp] & needed == needed


def meet(lanes: Lanes, meeting: Meeting) -> None:
    """Everybody is here: time goes on, or values go round. Raises LaneError."""
    threads = lanes.threads
    if isinstance(meeting, Shuffle):
        _shuffle(lanes, meeting)
    elif meeting.mask is None:
        blocks = np.unique(lanes.block)
        threads.block_time[blocks] += 1
        threads.warp_time.reshape(threads.blocks, threads.warps)[blocks] = 0
    else:
        _mask(lanes, meeting)
        threads.warp_time[np.unique(lanes.warp)] += 1


def _mask(lanes: Lanes, meeting: Meeting) -> Array:
    mask = lanes.spread(lanes.registers[meeting.mask or ""]).astype(np.int64)
    outside = (mask >> lanes.lane) & 1 == 0
    if outside.any():
        raise LaneError("is not in the mask that it gives", outside)
    return mask


def _shuffle(lanes: Lanes, one: Shuffle) -> None:
    """The source lane is computed as the ISA says for ``shfl.sync``; one that is out of its segment means oneself."""
    registers, lane = lanes.registers, lanes.lane
    mask = _mask(lanes, one)
    value = lanes.spread(registers[one.value])
    value = one.cast(value) if one.cast else value
    by, clamp = registers[one.lane].astype(np.int64) & 31, registers[one.clamp].astype(np.int64)
    segment, clamp = (clamp >> 8) & 31, clamp & 31
    most, least = (lane & segment) | (clamp & ~segment), lane & segment
    if one.mode == "up":
        source = lane - by
        inside = source >= most
    else:
        source = {"down": lane + by, "bfly": lane ^ by, "idx": least | (by & ~segment)}[one.mode]
        inside = source <= most
    source = np.where(inside, source, lane)
    place = lanes.index - lane + source
    # Right where warps are here with all of their threads; else looked up.
    found = np.clip(np.arange(lanes.count) - lane + source, 0, lanes.count - 1)
    if (lanes.index[found] != place).any():
        found = np.minimum(np.searchsorted(lanes.index, place), lanes.count - 1)
    missing = (lanes.index[found] != place) | (lanes.warp[found] != lanes.warp) | ((mask >> source) & 1 == 0)
    if missing.any():
        at = int(source[missing.argmax()])
        raise LaneError(f"reads from lane {at}, which does not take part", missing)
    result = value[found]
    registers[one.target] = one.back(result) if one.back else result
    if one.predicate is not None:
        registers[one.predicate] = lanes.spread(inside)


def stuck(threads: Threads, program: Program, waiting: dict[int, Array]) -> tuple[Lanes, Meeting, LaneError]:
    """Threads wait and nobody comes any more: who, where, and for whom."""
    number, index = min(waiting.items())
    meeting = program.blocks[number].meeting
    assert meeting is not None
    group, same = ("block", threads.block) if of_a_block(meeting) else ("warp", threads.warp)
    lanes = Lanes(threads, index[same[index] == same[index[0]]])
    others = np.nonzero(same == same[index[0]])[0]
    missing = int(np.setdiff1d(others, lanes.index)[0])
    where = "has left the kernel"
    for other, at in waiting.items():
        there = program.blocks[other].meeting
        if missing in at and there is not None:
            where = f"waits at PTX line {there.instruction.line}"
    text = f"{lanes.count} of {len(others)} threads of the {group} come here"
    name = threads.geometry.thread_name(missing)
    return lanes, meeting, LaneError(f"{text}; thread {name} {where}", np.ones(1, bool))
