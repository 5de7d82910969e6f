"""Loads and stores of a group of threads: checked, noted for races, done."""

from __future__ import annotations

from typing import Any

import numpy as np

from .faults import LaneError
from .memory import Argument, GlobalMemory, OwnMemory
from .parser import Kernel
from .profile import Profile
from .program import Move, Program
from .races import SEVERAL, Shadow
from .threads import Lanes, Threads

Array = np.ndarray[Any, Any]
Race = tuple[Array, Array, str]


class Regions:
    """Memory that a kernel may write, in pieces that arguments may share, each with its shadow."""

    def __init__(self, arguments: dict[int, Argument], program: Program, threads: int) -> None:
        self.unit = program.unit["global"]
        pieces: list[list[int]] = []
        for begin, end in sorted((one.place, one.place + one.size) for one in arguments.values()):
            if pieces and begin < pieces[-1][1]:
                pieces[-1][1] = max(pieces[-1][1], end)
            else:
                pieces.append([begin, end])
        written = [arguments[at] for at in program.stored if at in arguments]
        self._shadows: dict[int, tuple[Shadow, int]] = {}
        for begin, end in pieces:
            first = begin // self.unit
            if any(begin <= one.place < end for one in written):
                shadow = Shadow(-(-end // self.unit) - first, threads)
                inside = (one for one in arguments.values() if begin <= one.place < end)
                self._shadows.update({id(one): (shadow, first) for one in inside})

    def units(self, one: Argument, offset: Array, size: int) -> tuple[Shadow, Array] | None:
        """The shadow of an argument and the units [n, k] of accesses; None where nobody writes."""
        if id(one) not in self._shadows:
            return None
        shadow, first = self._shadows[id(one)]
        start = (offset + one.place) // self.unit - first
        return shadow, start[:, None] + np.arange(size // self.unit)


class Accesses:
    """Memory as the threads of a portion see it."""

    def __init__(
        self,
        threads: Threads,
        kernel: Kernel,
        unit: dict[str, int],
        memory: GlobalMemory,
        regions: Regions | None,
        profile: Profile | None,
    ) -> None:
        self.threads, self.memory, self.regions, self.profile = threads, memory, regions, profile
        self.shared = OwnMemory("shared", list(kernel.shared.values()), threads.blocks, unit["shared"])
        self.local = OwnMemory("local", list(kernel.local.values()), threads.count, unit["local"])
        size = len(self.shared.defined)
        self.shadow = Shadow(size, threads.geometry.threads) if regions is not None else None

    def move(self, lanes: Lanes, one: Move) -> None:
        """A load or store. Raises LaneError."""
        guard = one.instruction.guard
        if guard is None:
            return self._access(lanes, one)
        held = lanes.spread(lanes.registers[guard.name])
        held = ~held if one.instruction.negated else held
        if not held.any():
            return None
        some = lanes.part(held, {one.base, *(one.values if one.access.writes else ())})
        try:
            self._access(some, one)
        except LaneError as error:
            raise LaneError(str(error), _among(held, error.lanes)) from None
        if not one.access.writes:
            for name in one.values:
                value = lanes.spread(lanes.registers[name]).copy()
                value[held] = some.registers[name]
                lanes.registers[name] = value
        return None

    def _access(self, lanes: Lanes, one: Move) -> None:
        address = lanes.registers[one.base].astype(np.uint64) + np.uint64(one.offset & (1 << 64) - 1)
        values: Array | None = None
        if one.access.writes or one.space != "global":
            address = lanes.spread(address)
        if one.access.writes:
            found = zip(one.casts, (lanes.registers[name] for name in one.values), strict=True)
            parts = [lanes.spread(cast(part) if cast else part) for cast, part in found]
            values = parts[0] if len(parts) == 1 else np.stack(parts, axis=1)
        if self.profile is not None:
            self.profile.access(one, lanes.spread(address), lanes, self.shared)
        if one.space == "global":
            result = self._global(lanes, one, address, values)
        elif one.space == "shared":
            result = self._shared(lanes, one, address, values)
        else:
            index = self.local.indices(address, lanes.index, one.access)
            result = _done(self.local, index, self.local.units(index, one.access), one, values)
        if result is not None:
            parts = [result] if result.ndim == 1 else list(np.ascontiguousarray(result.T))
            for name, cast, part in zip(one.values, one.casts, parts, strict=True):
                lanes.registers[name] = cast(part) if cast else part

    # -- global memory

    def _global(self, lanes: Lanes, one: Move, address: Array, values: Array | None) -> Array | None:
        result: Array | None = None
        for argument, some, offset in self.memory.places(address, one.access):
            try:
                if values is not None:
                    self._write(lanes, one, argument, some, offset, values if some is None else values[some])
                    continue
                part = self._read(lanes, one, argument, some, offset)
            except LaneError as error:
                if some is None:
                    raise
                raise LaneError(str(error), _among(some, error.lanes, lanes.count)) from None
            if some is None:
                return part
            if result is None:
                result = np.zeros((lanes.count, *part.shape[1:]), part.dtype)
            result[some] = part
        return result

    def _who(self, lanes: Lanes, some: Array | None) -> tuple[Array, Array]:
        who, when = lanes.identity(), lanes.time()
        return (who, when) if some is None else (who[some], when[some])

    def _read(self, lanes: Lanes, one: Move, argument: Argument, some: Array | None, offset: Array) -> Array:
        traced = self.regions.units(argument, offset, one.access.size) if self.regions else None
        if traced is not None:
            shadow, units = traced
            who, when = self._who(lanes, some)
            units = units if len(units) == len(who) else np.repeat(units, len(who), axis=0)
            self._race(shadow.read(units, who, when), "reads", lambda lane: _byte(argument, offset, lane))
        return self.memory.load(argument, offset, one.access)

    def _write(
        self, lanes: Lanes, one: Move, argument: Argument, some: Array | None, offset: Array, values: Array
    ) -> None:
        traced = self.regions.units(argument, offset, one.access.size) if self.regions else None
        if traced is None:
            return self.memory.store(argument, offset, one.access, values)
        shadow, units = traced
        before = self.memory.load(argument, offset, one.access)
        self.memory.store(argument, offset, one.access, values)
        changed = _differ(before, values, units.shape[1])
        found = shadow.write(units, *self._who(lanes, some), changed)
        lost = _differ(self.memory.load(argument, offset, one.access), values, units.shape[1])
        if found is None and lost.any():
            found = lost.any(1), shadow.writer[units].ravel()[lost.argmax()][None], "writes too"
        return self._race(found, "writes", lambda lane: _byte(argument, offset, lane))

    # -- shared memory

    def _shared(self, lanes: Lanes, one: Move, address: Array, values: Array | None) -> Array | None:
        memory, shadow = self.shared, self.shadow
        index = memory.indices(address, lanes.block, one.access)
        units = memory.units(index, one.access)
        if shadow is not None and values is not None:
            who = lanes.identity()
            found = shadow.write(units, who, lanes.time(), None)
            lost = shadow.writer[units] != who[:, None]
            if found is None and lost.any():
                found = lost.any(1), shadow.writer[units].ravel()[lost.argmax()][None], "writes too"
            self._race(found, "writes", lambda lane: memory.name_at(int(index[lane])))
        result = _done(memory, index, units, one, values)
        if shadow is not None and values is None:
            found = shadow.read(units, lanes.identity(), lanes.time())
            self._race(found, "reads", lambda lane: memory.name_at(int(index[lane])))
        return result

    def _race(self, found: Race | None, does: str, place: Any) -> None:
        if found is None:
            return
        bad, other, did = found
        lane = int(bad.argmax())
        only = np.zeros(len(bad), bool)
        only[lane] = True
        who = "several threads" if int(other[0]) == SEVERAL else self.threads.geometry.name(int(other[0]) - 1)
        raise LaneError(f"{does} {place(lane)}, which {who} {did}; no barrier lies between", only)


def _done(memory: OwnMemory, index: Array, units: Array, one: Move, values: Array | None) -> Array | None:
    if values is None:
        return memory.load(index, units, one.access)
    memory.store(index, units, one.access, values)
    return None


def _byte(argument: Argument, offset: Array, lane: int) -> str:
    return f"byte {int(offset[lane if len(offset) > 1 else 0])} of argument {argument.name}"


def _among(held: Array, bad: Any, count: int | None = None) -> Array:
    """Lanes of a part as lanes of the whole; ``held`` is bool, or indices into ``count``."""
    everyone = np.zeros(len(held) if count is None else count, bool)
    everyone[held] = bad
    return everyone


def _differ(before: Array, after: Array, columns: int) -> Array:
    """Whether bytes differ, [n, columns]."""
    words = [np.ascontiguousarray(one).view(np.uint8).reshape(len(one), columns, -1) for one in (before, after)]
    return (words[0] != words[1]).any(2)
