"""The 128-bit moves that a GPU runs, compiled for the CPU: they do what their twins do. And what they become in PTX."""

from __future__ import annotations

import re

import numba.extending
import numpy as np
import pytest
from numba import cuda, float32, njit, uint16

from metrale.device.cuda import intrinsics, twins
from metrale.device.cuda.attention import SHARED, attention_shape
from metrale.device.cuda.backend import tiles_of
from metrale.device.cuda.linear_attention import delta_lanes
from metrale.device.cuda.picking import pick_parts
from metrale.device.cuda.rows import row_shape


def on_the_cpu(name):
    return numba.extending.intrinsic(getattr(intrinsics, name)._defn)


def numbers(dtype):
    if dtype is np.uint16:
        return np.random.default_rng(4).integers(0, 0x7F00, 64).astype(np.uint16)
    return np.random.default_rng(4).normal(size=64).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "dtype", "step"),
    [("load8_bf16", np.uint16, 8), ("load8_f32", np.float32, 4), ("load4_f32", np.float32, 4)],
)
def test_loads(name, dtype, step):
    load, memory = on_the_cpu(name), numbers(dtype)

    @njit
    def run(array, index):
        return load(array, index)

    for index in range(0, 56, step):
        assert run(memory, index) == getattr(twins, name)(memory, index)


@pytest.mark.parametrize(("name", "count"), [("store8_f32", 8), ("store4_f32", 4)])
def test_stores(name, count):
    store, values = on_the_cpu(name), tuple(np.float32(i) / 3 for i in range(count))

    @njit
    def run(array, index, values):
        store(array, index, values)

    for index in (0, 4, 56):
        got, want = numbers(np.float32), numbers(np.float32)
        run(got, index, values)
        getattr(twins, name)(want, index, values)
        assert np.array_equal(got, want)


def test_bf16_widens_by_its_bits():
    widen = on_the_cpu("float_of_bf16")

    @njit
    def run(bits):
        return widen(bits)

    for bits in (0, 0x8000, 0x3F80, 0x7F7F, 0xC2A5, 1):
        assert run(np.uint16(bits)) == twins.float_of_bf16(np.uint16(bits))


def test_a_move_is_one_instruction_each_way():
    load, store = intrinsics.load8_bf16, intrinsics.store8_bf16

    def move(source, target):
        at = cuda.grid(1) * 8
        store(target, at, load(source, at))

    ptx, _ = cuda.compile(move, (uint16[::1], uint16[::1]), device=False, cc=(9, 0), abi="numba", output="ptx")
    assert re.findall(r"\b(?:ld|st)\.global\S*", ptx) == ["ld.global.v4.u32", "st.global.v4.u32"]
    packed = re.findall(r"cvt\.rn\.bf16x2\.f32 (\S+), (\S+), (\S+);", ptx)
    assert len(packed) == 4


def test_one_number_is_rounded_by_one_instruction():
    narrow = intrinsics.bf16_of_float

    def kernel(source, target):
        target[0] = narrow(source[0])

    ptx, _ = cuda.compile(kernel, (float32[::1], uint16[::1]), device=False, cc=(8, 0), abi="numba", output="ptx")
    assert len(re.findall(r"cvt\.rn\.bf16\.f32", ptx)) == 1


# -- geometry


def test_heads_of_a_group_share_a_block():
    shapes = [attention_shape(heads, 2, 128, 16) for heads in (2, 8, 16, 24, 22)]
    assert [(shape.heads, shape.parts) for shape in shapes] == [(1, 1), (4, 1), (8, 1), (6, 2), (1, 11)]
    shapes = [attention_shape(heads, 2, 128, 16, prefill=True) for heads in (2, 8, 16, 24)]
    assert [shape.rows for shape in shapes] == [8, 2, 1, 1]


def test_every_head_and_group_fits_a_block():
    """And decode and prefill agree on what the order of a query's sums depends on."""
    for head in range(8, 257, 8):
        for group in range(1, 26):
            shapes = [attention_shape(group, 1, head, 16, prefill=prefill) for prefill in (False, True)]
            assert len({(shape.threads, shape.split, shape.stride, shape.lanes) for shape in shapes}) == 1
            assert max(shape.shared_bytes for shape in shapes) <= SHARED
            assert all(shape.room % shape.stride == 0 and shape.room >= shape.split for shape in shapes)


@pytest.mark.parametrize("head", [0, 4, 20, 264])
def test_a_head_size_that_no_vector_fits_is_refused(head):
    with pytest.raises(ValueError, match=f"head size {head} is not supported: use a multiple of 8 up to 256"):
        attention_shape(8, 2, head, 16)


def test_what_no_block_has_room_for_is_refused():
    with pytest.raises(ValueError, match="split 2048 with 256 threads needs 114948 bytes of shared memory"):
        attention_shape(16, 2, 128, 16, split=2048)


def test_threads_of_a_wide_row_hold_two_vectors():
    shapes = [row_shape(width) for width in (1, 8, 100, 128, 1024, 4096, 5120, 16384, 32768)]
    assert [(s.vector, s.sharing, s.rows, s.held) for s in shapes] == [
        (1, 1, 128, 1),
        (8, 1, 128, 1),
        (1, 128, 1, 1),
        (8, 16, 8, 1),
        (8, 128, 1, 1),
        (8, 256, 1, 2),
        (8, 320, 1, 2),
        (8, 1024, 1, 2),
        (8, 1024, 1, 4),
    ]


def test_tiles_keep_sequences_apart():
    assert tiles_of([5, 1, 2], 2) == [(0, 2, 0), (2, 2, 0), (4, 1, 0), (5, 1, 1), (6, 2, 2)]


def test_the_delta_rule_needs_columns_in_fours():
    assert [delta_lanes(key, value) for key, value in ((128, 128), (6, 12), (64, 96))] == [(16, 8), (2, 3), (16, 8)]
    with pytest.raises(ValueError, match="value head size 6 is not supported: use a multiple of 4"):
        delta_lanes(8, 6)


def test_a_vocabulary_is_cut_so_that_all_rows_fill_a_gpu():
    assert [pick_parts(1, size) for size in (7, 2048, 2056, 32000, 151936, 262144)] == [1, 1, 2, 16, 75, 128]
    assert [pick_parts(rows, 151936) for rows in (0, 16, 64, 396, 512, 8192)] == [75, 49, 12, 2, 1, 1]
