"""What :mod:`.intrinsics` and the warp operations of :mod:`.lanes` do, for Numba's simulator.

Plain Python on numpy arrays: the simulator swaps the module ``cuda`` only inside kernels, so nothing here names it.
"""

from __future__ import annotations

import threading

import numpy as np


def _memory(array):
    """The numpy array behind an argument of a simulated kernel (local and shared arrays are numpy already)."""
    return array if isinstance(array, np.ndarray) else array._item._ary


def _widen(bits):
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _narrow(values):
    bits = np.asarray(values, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(np.asarray(values, np.float32)), np.uint16(0x7FFF), rounded.astype(np.uint16))


def _piece(array, index, count):
    memory = _memory(array)
    size = memory.itemsize * count
    if index < 0 or index + count > memory.shape[0]:
        raise IndexError(f"{count} elements at {index} of {memory.shape[0]}")
    if (memory.ctypes.data + index * memory.itemsize) % min(size, 16):
        raise ValueError(f"element {index} is not 16-byte aligned")
    return memory[index : index + count]


def load8_bf16(array, index):
    """Eight bf16 elements as float32."""
    return tuple(_widen(_piece(array, index, 8)))


def load8_f32(array, index):
    """Eight float32 elements."""
    return tuple(_piece(array, index, 8))


def load4_f32(array, index):
    """Four float32 elements."""
    return tuple(_piece(array, index, 4))


def store8_bf16(array, index, values):
    """Eight float32 values, rounded to nearest even."""
    _piece(array, index, 8)[:] = _narrow(values)


def store8_f32(array, index, values):
    """Eight float32 values."""
    _piece(array, index, 8)[:] = values


def store4_f32(array, index, values):
    """Four float32 values."""
    _piece(array, index, 4)[:] = values


def float_of_bf16(bits):
    """The float32 whose upper half the 16 bits are."""
    return _widen(np.asarray([bits], np.uint16))[0]


def bf16_of_float(value):
    """Sixteen bits, rounded to nearest even."""
    return _narrow([value])[0]


def meet():
    """All threads of the block."""
    threading.current_thread().syncthreads()


def _gathered(value, width, thread, scratch):
    """The values of the ``width`` threads around ``thread``."""
    meet()
    scratch[thread] = value
    meet()
    first = thread - thread % width
    return scratch[first : first + width].copy()


def sum_lanes(value, width, thread, scratch):
    """Butterfly sum over aligned groups of ``width`` threads; every thread gets it."""
    values = _gathered(value, width, thread, scratch)
    while len(values) > 1:
        values = values[: len(values) // 2] + values[len(values) // 2 :]
    return values[0]


def max_lanes(value, width, thread, scratch):
    """The greatest over aligned groups of ``width`` threads."""
    return _gathered(value, width, thread, scratch).max()


def sum_lanes_each(values, count, width, thread, scratch):
    """``sum_lanes`` of the first ``count`` entries of a local array, in place."""
    meet()
    scratch[thread * count : (thread + 1) * count] = values[:count]
    meet()
    first = thread - thread % width
    block = scratch[first * count : (first + width) * count].reshape(width, count).copy()
    while len(block) > 1:
        block = block[: len(block) // 2] + block[len(block) // 2 :]
    values[:count] = block[0]


def scatterer(count, width, stride=1):
    """A function for ``sum_lanes`` of ``count`` entries over ``width`` threads, ``stride`` apart; each keeps some."""
    kept, sharing = count, width
    while sharing > 1 and kept % 2 == 0:
        kept, sharing = kept // 2, sharing // 2

    def scatter(values, thread, scratch):
        meet()
        scratch[thread * count : (thread + 1) * count] = values[:count]
        meet()
        lane = thread // stride % width
        first = thread - lane * stride
        block = np.array(
            [scratch[at * count : (at + 1) * count] for at in range(first, first + width * stride, stride)]
        )
        while len(block) > 1:
            block = block[: len(block) // 2] + block[len(block) // 2 :]
        values[:kept] = block[0, lane // sharing * kept :][:kept]

    return scatter


def issue_loads():
    """Nothing: loads are done where they stand."""


def pair_from_lane(value, index, step, thread, values, indices):
    """The value and index of the thread whose number differs in the bits of ``step``."""
    meet()
    values[thread], indices[thread] = value, index
    meet()
    return values[thread ^ step], indices[thread ^ step]
