"""Memory of a launch: the arguments' own bytes, and what blocks and threads have for themselves.

Addresses are made up, so that no access can stray from one array into the next: argument i begins at
``(i + 1) << 40`` plus the lowest twelve bits of its true address, so alignment is what it is; shared or local variable
v at ``(v + 1) << 20``. Every access must lie within one array and be aligned to its size.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .faults import LaneError
from .parser import Variable

Array = np.ndarray[Any, Any]
GLOBAL_BITS, LOCAL_BITS, KEPT_BITS = 40, 20, 12
WIDEST = 16
"""Bytes of the widest access."""


@dataclass(frozen=True, slots=True)
class Access:
    """One element type and how many of them a lane moves: ``v4.u32`` is four of uint32."""

    dtype: np.dtype[Any]
    count: int
    writes: bool

    @property
    def size(self) -> int:
        """Bytes of a lane."""
        return self.dtype.itemsize * self.count

    def word(self) -> str:
        """For a fault's text."""
        return f"{'writes' if self.writes else 'reads'} {self.size} bytes"


def _view(start: int, size: int, dtype: np.dtype[Any], count: int) -> Array:
    """Host memory from ``start``, which is aligned to 16 bytes, as [n, count] or [n]."""
    room = -(-size // WIDEST) * WIDEST
    raw = np.frombuffer((ctypes.c_char * room).from_address(start), dtype)
    return raw.reshape(-1, count) if count > 1 else raw


@dataclass(slots=True)
class Argument:
    """An array that was passed: its name, true address and bytes."""

    name: str
    place: int
    size: int
    base: int = 0
    owner: Any = None
    views: dict[tuple[np.dtype[Any], int], Array] = field(default_factory=dict)

    def view(self, access: Access) -> tuple[Array, int]:
        """The memory in elements of an access, and the bytes between the view's start and the array."""
        start = self.place & ~(WIDEST - 1)
        key = (access.dtype, access.count)
        if key not in self.views:
            self.views[key] = _view(start, self.place - start + self.size, access.dtype, access.count)
        return self.views[key], self.place - start


class GlobalMemory:
    """The arrays of one launch. Offsets are bytes from the beginning of an array."""

    def __init__(self, arguments: Sequence[Argument]) -> None:
        self.arguments = list(arguments)
        for number, one in enumerate(self.arguments):
            one.base = (number + 1 << GLOBAL_BITS) + (one.place & (1 << KEPT_BITS) - 1)

    def places(self, address: Array, access: Access) -> list[tuple[Argument, Array | None, Array]]:
        """Which argument, which lanes (None: all), and their offsets. Raises LaneError."""
        numbers = ((address + np.uint64(1 << GLOBAL_BITS - 1)) >> np.uint64(GLOBAL_BITS)).astype(np.int64) - 1
        first = int(numbers[0])
        if not 0 <= first < len(self.arguments) or (numbers != first).any():
            return self._several(address, numbers, access)
        return [(self.arguments[first], None, self._offsets(self.arguments[first], address, access))]

    def _several(self, address: Array, numbers: Array, access: Access) -> list[tuple[Argument, Array | None, Array]]:
        nowhere = (numbers < 0) | (numbers >= len(self.arguments))
        if nowhere.any():
            at = int(address[nowhere.argmax()])
            raise LaneError(f"{access.word()} at 0x{at:x}, which is in no array that was passed", nowhere)
        found: list[tuple[Argument, Array | None, Array]] = []
        for number in np.unique(numbers):
            lanes = np.nonzero(numbers == number)[0]
            one = self.arguments[number]
            try:
                found.append((one, lanes, self._offsets(one, address[lanes], access)))
            except LaneError as error:
                bad = np.zeros(len(address), bool)
                bad[lanes] = error.lanes
                raise LaneError(str(error), bad) from None
        return found

    def _offsets(self, one: Argument, address: Array, access: Access) -> Array:
        offset = address - np.uint64(one.base)
        bad = offset > np.uint64(max(0, one.size - access.size))
        if one.size < access.size:
            bad[:] = True
        if bad.any():
            at = int(offset[bad.argmax()].astype(np.int64))
            raise LaneError(f"{access.word()} at byte {at} of argument {one.name}, which has {one.size}", bad)
        bent = (address & np.uint64(access.size - 1)) != 0
        if bent.any():
            at, true = int(offset[bent.argmax()]), one.place + int(offset[bent.argmax()])
            text = f"at byte {at} of argument {one.name}, address 0x{true:x}, which is not aligned to {access.size}"
            raise LaneError(f"{access.word()} {text}", bent)
        return offset.astype(np.int64)

    def load(self, one: Argument, offset: Array, access: Access) -> Array:
        """[n] or [n, count]."""
        view, pad = one.view(access)
        return view.take((offset + pad) // access.size, axis=0)

    def store(self, one: Argument, offset: Array, access: Access, values: Array) -> None:
        """The same, the other way; of two lanes at one place one wins."""
        view, pad = one.view(access)
        view[(offset + pad) // access.size] = values


class OwnMemory:
    """Variables that every owner (a block, or a thread) has for itself, undefined until written.

    A byte's index is ``owner * stride`` plus its place among the variables, which lie one after the other.
    """

    def __init__(self, kind: str, variables: Sequence[Variable], owners: int, unit: int) -> None:
        self.kind, self.variables, self.unit = kind, list(variables), unit
        self.starts = np.zeros(len(self.variables), np.int64)
        end = 0
        for number, variable in enumerate(self.variables):
            self.starts[number] = -(-end // variable.align) * variable.align
            end = int(self.starts[number]) + variable.size
        self.stride = -(-end // WIDEST) * WIDEST
        self.sizes = np.array([variable.size for variable in self.variables], np.int64)
        words = np.zeros(owners * self.stride // 8, np.uint64)
        self.bytes = words.view(np.uint8)
        self.defined = np.zeros(owners * self.stride // unit, bool)

    @staticmethod
    def address_of(number: int) -> int:
        """Of variable ``number``."""
        return number + 1 << LOCAL_BITS

    def indices(self, address: Array, owner: Array, access: Access) -> Array:
        """Byte indices of accesses. Raises LaneError."""
        address = address.astype(np.int64)
        number = (address >> LOCAL_BITS) - 1
        offset = address & (1 << LOCAL_BITS) - 1
        nowhere = (number < 0) | (number >= len(self.variables))
        if nowhere.any():
            at = int(address[nowhere.argmax()])
            raise LaneError(f"{access.word()} at 0x{at:x}, which is in no {self.kind} array", nowhere)
        beyond = offset > self.sizes[number] - access.size
        if beyond.any():
            lane = int(beyond.argmax())
            one, at = self.variables[number[lane]], int(offset[lane])
            text = f"{access.word()} at byte {at} of {self.kind} array {one.name}, which has {one.size}"
            raise LaneError(text, beyond)
        bent = (offset & (access.size - 1)) != 0
        if bent.any():
            lane = int(bent.argmax())
            one, at = self.variables[number[lane]], int(offset[lane])
            text = f"{access.word()} at byte {at} of {self.kind} array {one.name}, which is not aligned to"
            raise LaneError(f"{text} {access.size}", bent)
        return owner * self.stride + self.starts[number] + offset

    def units(self, index: Array, access: Access) -> Array:
        """The units that accesses cover, [n, k]."""
        return (index // self.unit)[:, None] + np.arange(access.size // self.unit)

    def name_at(self, index: int) -> str:
        """The variable and byte of an index."""
        place = index % self.stride
        number = int(np.searchsorted(self.starts, place, "right")) - 1
        return f"byte {place - int(self.starts[number])} of {self.kind} array {self.variables[number].name}"

    def load(self, index: Array, units: Array, access: Access) -> Array:
        """[n] or [n, count]. Raises LaneError where nothing was written."""
        unset = ~self.defined[units].all(1)
        if unset.any():
            at = self.name_at(int(index[unset.argmax()]))
            raise LaneError(f"{access.word()} at {at}, where nothing was written", unset)
        return self._view(access).take(index // access.size, axis=0)

    def store(self, index: Array, units: Array, access: Access, values: Array) -> None:
        """The same, the other way."""
        self._view(access)[index // access.size] = values
        self.defined[units] = True

    def _view(self, access: Access) -> Array:
        view = self.bytes.view(access.dtype)
        return view.reshape(-1, access.count) if access.count > 1 else view
