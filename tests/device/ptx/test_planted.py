"""Each fault that the machine looks for, planted in a small kernel, and its text. Where a kernel has a sound twin, that
runs."""

from __future__ import annotations

import re

import numpy as np
import pytest
from numba import cuda, float32, int32

from metrale.device.cuda.intrinsics import load4_f32, store4_f32
from metrale.device.ptx.faults import KernelFault
from metrale.device.ptx.runner import Machine

EVERYONE = 0xFFFFFFFF


def run(kernel, block, *arguments, grid=(1,), races=True):
    Machine(races=races).run(kernel, grid, block, list(arguments))


def fault(kernel, block, *arguments, grid=(1,)):
    """The text, without the line of the PTX and the registers."""
    with pytest.raises(KernelFault) as caught:
        run(kernel, block, *arguments, grid=grid)
    return re.sub(r"PTX line \d+ `(\S+)[^`]*`", r"\1", str(caught.value))


def numbers(count, dtype=np.float32):
    return np.arange(count, dtype=dtype)


# -- memory


@cuda.jit
def one_too_far(x, out):
    at = cuda.grid(1)
    if at < 5:
        out[at] = x[at]


def test_an_element_after_the_last():
    x, out = numbers(4), numbers(5)
    assert fault(one_too_far, 32, x, out) == (
        "one_too_far: block (0, 0, 0), thread 4, ld.global.f32: reads 4 bytes at byte 16 of argument x, which has 16"
    )
    out = np.zeros(4, np.float32)
    assert fault(one_too_far, 32, numbers(5), out) == (
        "one_too_far: block (0, 0, 0), thread 4, st.global.f32: writes 4 bytes at byte 16 of argument out, which has 16"
    )
    run(one_too_far, 32, numbers(5), out := np.zeros(5, np.float32))
    assert out.tolist() == [0, 1, 2, 3, 4]


def test_an_array_does_not_reach_into_the_next():
    """Both are parts of one allocation."""
    room = np.zeros(9, np.float32)
    text = fault(one_too_far, 32, room[:4], room[4:])
    assert text.endswith("ld.global.f32: reads 4 bytes at byte 16 of argument x, which has 16")


@cuda.jit
def before_the_first(x, back, out):
    at = cuda.grid(1)
    store4_f32(out, 4 * at, load4_f32(x, 4 * (at - back)))


def test_an_element_before_the_first():
    assert fault(before_the_first, 2, numbers(8), 1, numbers(8)) == (
        "before_the_first: block (0, 0, 0), thread 0, ld.global.v4.u32: reads 16 bytes at byte -16 of argument x, which"
        " has 32"
    )
    run(before_the_first, 2, numbers(8), 0, out := np.zeros(8, np.float32))
    assert out.tolist() == list(range(8))


def test_far_away_is_no_array():
    text = fault(before_the_first, 1, numbers(8), 1 << 40, numbers(8))
    assert re.sub(r"0x[0-9a-f]+", "0xN", text) == (
        "before_the_first: block (0, 0, 0), thread 0, ld.global.v4.u32: reads 16 bytes at 0xN, which is in no array"
        " that was passed"
    )


@cuda.jit
def shifted(x, out):
    store4_f32(out, 0, load4_f32(x, 1))


def test_a_vector_that_is_not_aligned():
    x = np.zeros(16, np.float32)
    x = x[(-x.ctypes.data // 4) % 4 :][:12]
    text = fault(shifted, 1, x, x.copy())
    assert text == (
        "shifted: block (0, 0, 0), thread 0, ld.global.v4.u32: reads 16 bytes at byte 4 of argument x, address"
        f" 0x{x.ctypes.data + 4:x}, which is not aligned to 16"
    )


# -- what nothing was written to


@cuda.jit
def half_of_shared(out, count):
    held = cuda.shared.array(64, float32)
    at = cuda.threadIdx.x
    if at < count:
        held[at] = at
    cuda.syncthreads()
    out[at] = held[63 - at]


def test_shared_memory_that_was_not_set():
    text = fault(half_of_shared, 64, numbers(64), 32)
    text = re.sub(r"_cudapy_smem_\d+", "HELD", text)
    assert text == (
        "half_of_shared: block (0, 0, 0), thread 0, ld.shared.f32: reads 4 bytes at byte 252 of shared array HELD,"
        " where nothing was written"
    )
    run(half_of_shared, 64, out := numbers(64), 64)
    assert out.tolist() == list(range(63, -1, -1))


# -- races


@cuda.jit
def no_barrier(out):
    held = cuda.shared.array(64, float32)
    at = cuda.threadIdx.x
    held[at] = at
    out[at] = held[at ^ 1]


@cuda.jit
def warp_barrier(out, step):
    held = cuda.shared.array(64, float32)
    at = cuda.threadIdx.x
    held[at] = at
    cuda.syncwarp()
    out[at] = held[at ^ step]


def test_a_missing_barrier():
    text = re.sub(r"_cudapy_smem_\d+", "HELD", fault(no_barrier, 64, numbers(64)))
    assert text == (
        "no_barrier: block (0, 0, 0), thread 0, ld.shared.f32: reads byte 4 of shared array HELD, which thread 1 of"
        " block (0, 0, 0) wrote; no barrier lies between"
    )
    run(no_barrier, 64, out := numbers(64), races=False)
    assert out[:4].tolist() == [1, 0, 3, 2]


def test_a_warp_barrier_orders_a_warp():
    run(warp_barrier, 64, out := numbers(64), 1)
    assert out[:4].tolist() == [1, 0, 3, 2]
    text = re.sub(r"_cudapy_smem_\d+", "HELD", fault(warp_barrier, 64, numbers(64), 32))
    assert text == (
        "warp_barrier: block (0, 0, 0), thread 0, ld.shared.f32: reads byte 128 of shared array HELD, which thread 32"
        " of block (0, 0, 0) wrote; no barrier lies between"
    )


@cuda.jit
def read_then_write(out):
    held = cuda.shared.array(64, float32)
    at = cuda.threadIdx.x
    held[at] = at
    cuda.syncthreads()
    total = held[0] + held[1]
    if at == 40:
        held[0] = total
    out[at] = total


def test_a_write_after_reads_of_others():
    text = re.sub(r"_cudapy_smem_\d+", "HELD", fault(read_then_write, 64, numbers(64)))
    assert text == (
        "read_then_write: block (0, 0, 0), thread 40, st.shared.f32: writes byte 0 of shared array HELD, which several"
        " threads read; no barrier lies between"
    )


@cuda.jit
def same_place(out, spread):
    at = cuda.grid(1)
    out[at // spread] = at


def test_two_threads_write_one_place():
    """In one block, and in two blocks."""
    assert fault(same_place, 32, numbers(32, np.int64), 2) == (
        "same_place: block (0, 0, 0), thread 0, st.global.u64: writes byte 0 of argument out, which thread 1 of"
        " block (0, 0, 0) writes too; no barrier lies between"
    )
    text = fault(same_place, 1, numbers(4, np.int64), 2, grid=(4,))
    assert text == (
        "same_place: block (0, 0, 0), thread 0, st.global.u64: writes byte 0 of argument out, which thread 0 of"
        " block (1, 0, 0) writes too; no barrier lies between"
    )
    run(same_place, 32, numbers(32, np.int64), 1)


@cuda.jit
def neighbour(x):
    at = cuda.grid(1)
    x[at] = x[at + 1]


def test_a_write_of_what_another_thread_reads():
    assert fault(neighbour, 64, numbers(65)) == (
        "neighbour: block (0, 0, 0), thread 1, st.global.f32: writes byte 4 of argument x, which thread 0 of block"
        " (0, 0, 0) read; no barrier lies between"
    )


@cuda.jit
def halfway(x):
    block = cuda.blockIdx.x
    if cuda.threadIdx.x == 0:
        x[block] = x[(block + 16) % 32]


def test_a_block_that_runs_much_later():
    """Block 16 is in the second portion of the grid; on a GPU nothing makes it wait for block 0."""
    assert fault(halfway, 1024, numbers(32), grid=(32,)) == (
        "halfway: block (16, 0, 0), thread 0, ld.global.f32: reads byte 0 of argument x, which thread 0 of block"
        " (0, 0, 0) wrote; no barrier lies between"
    )


# -- barriers and shuffles


@cuda.jit
def some_at_the_barrier(out):
    at = cuda.threadIdx.x
    if at < 40:
        cuda.syncthreads()
    out[at] = at


def test_a_barrier_for_some():
    assert fault(some_at_the_barrier, 64, numbers(64)) == (
        "some_at_the_barrier: block (0, 0, 0), thread 0, bar.sync: 40 of 64 threads of the block come here; thread 40"
        " has left the kernel"
    )


@cuda.jit
def two_barriers(out):
    at = cuda.threadIdx.x
    if at < 40:
        cuda.syncthreads()
        out[at] = at
    else:
        cuda.syncthreads()
        out[at] = -at


def test_two_barriers_are_not_one():
    text = fault(two_barriers, 64, numbers(64))
    assert re.sub(r"PTX line \d+$", "PTX line N", text) == (
        "two_barriers: block (0, 0, 0), thread 0, bar.sync: 40 of 64 threads of the block come here; thread 40 waits at"
        " PTX line N"
    )


@cuda.jit
def some_shuffle(out, mask, count):
    at = cuda.threadIdx.x
    if at < count:
        out[at] = cuda.shfl_xor_sync(mask, at, 1)


def test_a_shuffle_in_divergent_code():
    assert fault(some_shuffle, 64, numbers(64, np.int32), EVERYONE, 20) == (
        "some_shuffle: block (0, 0, 0), thread 0, shfl.sync.bfly.b32: 20 of 32 threads of the warp come here; thread 20"
        " has left the kernel"
    )
    run(some_shuffle, 64, out := np.zeros(64, np.int32), 0xFFFFF, 20)
    assert out[:6].tolist() == [1, 0, 3, 2, 5, 4]


def test_a_shuffle_from_outside_of_the_mask():
    assert fault(some_shuffle, 64, numbers(64, np.int32), 0x7FFFF, 19) == (
        "some_shuffle: block (0, 0, 0), thread 18, shfl.sync.bfly.b32: reads from lane 19, which does not take part"
    )
    assert fault(some_shuffle, 64, numbers(64, np.int32), 0xF, 5) == (
        "some_shuffle: block (0, 0, 0), thread 4, shfl.sync.bfly.b32: is not in the mask that it gives"
    )


@cuda.jit
def shuffle_of_few(out):
    at = cuda.threadIdx.x
    out[at] = cuda.shfl_xor_sync(EVERYONE, int32(at), 4)


def test_lanes_that_do_not_exist():
    """A block of 8 threads has 8 lanes, whatever a mask names; none of them may be read beyond."""
    run(shuffle_of_few, 8, out := np.zeros(8, np.int32))
    assert out.tolist() == [4, 5, 6, 7, 0, 1, 2, 3]
    assert fault(shuffle_of_few, 6, numbers(6, np.int32)) == (
        "shuffle_of_few: block (0, 0, 0), thread 2, shfl.sync.bfly.b32: reads from lane 6, which does not take part"
    )


@cuda.jit
def in_a_grid(x, count):
    at = (cuda.blockIdx.y * cuda.gridDim.x + cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    value = x[at]
    if value < 0:
        x[at] = count


@pytest.mark.parametrize(
    ("grid", "block", "problem"),
    [
        ((1, 65536), 32, "a grid has 1 to 65535 blocks in y, not 65536"),
        ((1, 1, 70000), 32, "a grid has 1 to 65535 blocks in z, not 70000"),
        ((1,), 1025, "a block has 1 to 1024 threads, not 1025"),
    ],
)
def test_a_grid_that_a_gpu_refuses(grid, block, problem):
    assert fault(same_place, block, numbers(32, np.int64), 1, grid=grid) == f"same_place: {problem}"


@cuda.jit
def much_shared(out):
    held = cuda.shared.array(12289, float32)
    held[cuda.threadIdx.x] = 1
    cuda.syncthreads()
    out[cuda.threadIdx.x] = held[cuda.threadIdx.x ^ 1]


def test_too_much_shared_memory():
    text = fault(much_shared, 32, numbers(32))
    assert text == "much_shared: shared arrays of 49156 bytes; a block may declare 49152"


def test_the_fault_names_its_block_and_thread():
    x = numbers(96)
    text = fault(in_a_grid, 32, x, 96, grid=(2, 2, 1))
    assert text == (
        "in_a_grid: block (1, 1, 0), thread 0, ld.global.f32: reads 4 bytes at byte 384 of argument x, which has 384"
    )
