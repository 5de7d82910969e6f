"""The simulator's twins and the measure of the checks, on plain arrays."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch
from numba import float32
from numba.cuda.simulator.kernelapi import FakeCUDAShared

from metrale.device.cuda import simulator, twins
from metrale.device.cuda.checks import Pair, error_share
from metrale.device.cuda.lanes import scattered

EDGES = [0.0, -0.0, 1.0, 1.00390625, 1.01171875, -3.0078125, 3.3e38, 3.4e38, 1e-40, float("inf"), float("-inf")]


def test_bf16_rounds_as_torch_does():
    values = np.concatenate([np.array(EDGES, np.float32), np.random.default_rng(5).normal(size=997).astype(np.float32)])
    wanted = torch.from_numpy(values).to(torch.bfloat16).view(torch.uint16).numpy()
    assert [int(twins.bf16_of_float(value)) for value in values] == wanted.tolist()
    room = np.zeros(len(values), np.uint16)
    for at in range(0, len(values), 8):
        twins.store8_bf16(room, at, tuple(values[at : at + 8]))
    assert room.tolist() == wanted.tolist()
    assert np.isnan(twins.float_of_bf16(twins.bf16_of_float(np.float32("nan"))))


def test_eight_at_once_are_eight_alone():
    bits = np.arange(0x3F80, 0x3F90, dtype=np.uint16)
    assert list(twins.load8_bf16(bits, 8)) == [twins.float_of_bf16(one) for one in bits[8:]]


@pytest.mark.parametrize(
    ("load", "dtype", "index"), [(twins.load8_bf16, np.uint16, 4), (twins.load8_f32, np.float32, 2)]
)
def test_a_misaligned_address_is_refused(load, dtype, index):
    memory = np.zeros(64, dtype)
    start = -(memory.ctypes.data // memory.itemsize) % 8
    with pytest.raises(ValueError, match="not 16-byte aligned"):
        load(memory[start : start + 32], index)


def test_an_address_outside_is_refused():
    memory = np.zeros(24, np.float32)
    for index in (-1, 20, 24):
        with pytest.raises(IndexError):
            twins.load8_f32(memory, index)


class Block:
    """Threads that meet as a simulated block's do."""

    def __init__(self, size, function):
        barrier, self.results = threading.Barrier(size), [None] * size

        class Member(threading.Thread):
            def __init__(self, number, results):
                super().__init__()
                self.number, self.results = number, results

            def syncthreads(self):
                barrier.wait(timeout=10)

            def run(self):
                self.results[self.number] = function(self.number)

        members = [Member(number, self.results) for number in range(size)]
        for member in members:
            member.start()
        for member in members:
            member.join()


def test_sums_are_butterflies_over_aligned_groups():
    values = np.random.default_rng(1).normal(size=16).astype(np.float32)
    scratch = np.zeros(16, np.float32)
    got = Block(16, lambda t: twins.sum_lanes(values[t], 4, t, scratch)).results
    wanted = [(v[0] + v[2]) + (v[1] + v[3]) for v in values.reshape(4, 4)]
    assert got == [total for total in wanted for _ in range(4)]
    assert Block(16, lambda t: twins.max_lanes(values[t], 8, t, scratch)).results == [
        half.max() for half in values.reshape(2, 8) for _ in range(8)
    ]


def test_several_sums_at_once_are_the_single_sums():
    values = np.random.default_rng(2).normal(size=(8, 3)).astype(np.float32)
    scratch = np.zeros(24, np.float32)

    def each(thread):
        mine = values[thread].copy()
        twins.sum_lanes_each(mine, 3, 8, thread, scratch)
        return mine.tolist()

    single = [Block(8, lambda t, i=i: twins.sum_lanes(values[t, i], 8, t, scratch)).results[0] for i in range(3)]
    assert Block(8, each).results == [[float(total) for total in single]] * 8


@pytest.mark.parametrize(
    ("count", "width", "stride"), [(4, 8, 1), (16, 4, 1), (6, 4, 2), (3, 2, 4), (8, 1, 8), (1, 8, 1)]
)
def test_scattered_sums_are_the_sums_of_all(count, width, stride):
    """Each by as many threads as :func:`scattered` says."""
    values = np.random.default_rng(3).normal(size=(16, count)).astype(np.float32)
    scratch = np.zeros(16 * count, np.float32)
    kept, sharing = scattered(count, width)

    def mine(thread):
        own = values[thread].copy()
        twins.scatterer(count, width, stride)(own, thread, scratch)
        return own[:kept].tolist()

    # Threads of a group one after the other, so that sums over aligned groups are its sums.
    order = [
        block + at * stride + lane
        for block in range(0, 16, width * stride)
        for lane in range(stride)
        for at in range(width)
    ]
    each = np.zeros((16, count), np.float32)
    for number in range(count):
        own = [values[thread, number] for thread in order]
        each[order, number] = Block(16, lambda t, own=own: twins.sum_lanes(own[t], width, t, scratch)).results
    for thread, got in enumerate(Block(16, mine).results):
        first = thread // stride % width // sharing * kept
        assert got == each[thread, first : first + kept].tolist()


def test_a_neighbour_is_the_thread_one_bit_away():
    floats, numbers = np.zeros(4, np.float32), np.zeros(4, np.int64)
    got = Block(4, lambda t: twins.pair_from_lane(np.float32(t), 10 * t, 2, t, floats, numbers)).results
    assert [(float(value), int(index)) for value, index in got] == [(2, 20), (3, 30), (0, 0), (1, 10)]


def test_threads_of_a_block_share_their_arrays(monkeypatch):
    """However long the first of them takes to make one."""

    def slow(*arguments):
        time.sleep(0.02)
        return np.zeros(*arguments)

    monkeypatch.setattr(simulator.np, "empty", slow)
    block = FakeCUDAShared(0)
    arrays = Block(6, lambda _: simulator._shared_array(block, 4, float32)).results
    assert all(array is arrays[0] for array in arrays)
    another = Block(1, lambda _: simulator._shared_array(block, 4, float32)).results[0]
    assert another is not arrays[0]


def test_fp32_is_measured_against_the_greatest_of_the_row():
    want = torch.tensor([[100.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    assert error_share((want + torch.tensor([[0.0, 0.9e-3], [0.0, 0.0]])).float(), want) == pytest.approx(0.9, rel=1e-3)
    assert error_share((want + torch.tensor([[0.0, 0.0], [0.0, 2e-5]])).float(), want) == pytest.approx(2, rel=1e-3)
    assert error_share(torch.tensor([[float("nan"), 0.0]]), want[:1]) == float("inf")


def test_bf16_may_be_one_unit_off_and_no_more():
    want = torch.tensor([[1.0, 64.0]], dtype=torch.float64)
    one, two = torch.tensor([[1 + 2**-7, 64.0]]), torch.tensor([[1 + 2**-6, 64.0]])
    assert error_share(one.bfloat16(), want) == 1
    assert error_share(two.bfloat16(), want) == 2


def test_a_fault_says_where():
    got, want = torch.tensor([[1, 2], [3, 4]]), torch.tensor([[1, 2], [3, 5]])
    assert Pair("ids", got, want, exact=True).fault() == "ids: 1 of 4 differ, first at (1, 1): 4 for 5"
    assert Pair("ids", got, got, exact=True).fault() is None
    assert Pair("ids", got, want[0], exact=True).fault() == "ids: shape (2, 2), wanted (2,)"
    assert Pair("sums", got.float(), want.double()).fault() == "sums: error is 2e+04 times what is allowed"
