"""The machine on PTX written by hand: shuffles lane by lane, what is read before it is set, opcodes nobody knows."""

from __future__ import annotations

import numpy as np
import pytest

from metrale.device.ptx.faults import KernelFault, PtxError
from metrale.device.ptx.machine import Launch
from metrale.device.ptx.memory import Argument
from metrale.device.ptx.parser import parse
from metrale.device.ptx.profile import Profile
from metrale.device.ptx.program import prepare
from metrale.device.ptx.threads import Geometry

HEAD = """\
.version 9.0
.target sm_90
.address_size 64
.shared .align 8 .b8 pool[64];
.shared .align 8 .b8 wide[256];
.visible .entry k(
    .param .u64 k_param_0
)
{
    .reg .pred %p<9>;
    .reg .b16 %rs<9>;
    .reg .f32 %f<9>;
    .reg .b32 %r<30>;
    .reg .b64 %rd<30>;
    .local .align 4 .b8 depot[16];
    ld.param.u64 %rd1, [k_param_0];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd4, %rd2, %rd3;
"""
TAIL = """
    st.global.u32 [%rd4], %r9;
    ret;
}
"""
FIRST = HEAD.count("\n") + 1
"""The line of the first instruction of a body."""


def program(body):
    return prepare(parse(HEAD + body + TAIL))


def run(body, threads=32, profile=None):
    """What the threads leave in ``%r9``."""
    room = np.zeros(threads + 8, np.uint32)
    out = room[-room.ctypes.data // 4 % 8 :][:threads]
    arguments = {0: Argument("out", out.ctypes.data, out.nbytes)}
    Launch("k", program(body), Geometry((1, 1, 1), (threads, 1, 1)), {}, arguments, profile is None, profile).run()
    return out.tolist()


# -- shuffles; clamp and segments as CUDA's intrinsics pass them


def shuffled(mode, by, clamp, threads=32):
    return run(f"shfl.sync.{mode}.b32 %r9|%p1, %r1, {by}, {clamp}, -1;", threads)


def test_down_stops_at_the_end_of_the_warp():
    assert shuffled("down", 4, 31) == [*range(4, 32), 28, 29, 30, 31]


def test_up_stops_at_its_beginning():
    assert shuffled("up", 4, 0) == [0, 1, 2, 3, *range(28)]


def test_across():
    assert shuffled("bfly", 5, 31) == [lane ^ 5 for lane in range(32)]


def test_segments_of_eight():
    segments = (32 - 8) << 8
    assert shuffled("down", 3, segments | 31)[:9] == [3, 4, 5, 6, 7, 5, 6, 7, 11]
    assert shuffled("up", 3, segments)[6:14] == [3, 4, 8, 9, 10, 8, 9, 10]
    assert shuffled("idx", 2, segments | 31) == [lane // 8 * 8 + 2 for lane in range(32)]


def test_the_lane_may_differ_by_thread_and_whether_it_was_inside_is_told():
    body = """
    and.b32 %r2, %r1, 3;
    shfl.sync.down.b32 %r3|%p1, %r1, %r2, 31, -1;
    selp.b32 %r9, %r3, 99, %p1;
    """
    assert run(body)[:6] == [0, 2, 4, 6, 4, 6]
    assert run(body)[28:] == [28, 30, 99, 99]


def test_two_halves_of_a_warp_each_with_its_mask():
    body = """
    setp.lt.u32 %p1, %r1, 16;
    @%p1 bra LOW;
    shfl.sync.idx.b32 %r9, %r1, 20, 31, 0xFFFF0000;
    bra END;
LOW:
    shfl.sync.idx.b32 %r9, %r1, 3, 31, 0x0000FFFF;
END:
    """
    assert run(body) == [3] * 16 + [20] * 16


# -- order


def test_lanes_meet_again_after_loops_of_different_lengths():
    """Thread t counts to t; the shuffle behind the loop needs them all."""
    body = """
    mov.u32 %r9, 0;
LOOP:
    setp.ge.u32 %p1, %r9, %r1;
    @%p1 bra DONE;
    add.s32 %r9, %r9, 1;
    bra LOOP;
DONE:
    shfl.sync.bfly.b32 %r9, %r9, 1, 31, -1;
    """
    assert run(body) == [lane ^ 1 for lane in range(32)]


def test_a_guard_and_packed_halves():
    body = """
    setp.eq.u32 %p1, %r1, 1;
    mov.u32 %r2, 7;
    @%p1 mov.u32 %r2, 8;
    mov.b64 %rd5, {%r2, %r1};
    shr.u64 %rd5, %rd5, 32;
    mov.b64 {%r3, %r4}, %rd5;
    add.s32 %r9, %r2, %r3;
    @!%p1 st.global.u32 [%rd4], %r9;
    @%p1 ld.global.u32 %r9, [%rd4];
    """
    assert run(body, threads=3) == [7, 0, 9]


def test_local_memory_is_each_threads_own():
    body = """
    mov.u64 %rd5, depot;
    st.local.u32 [%rd5+4], %r1;
    ld.local.u32 %r9, [%rd5+4];
    """
    assert run(body, threads=4) == [0, 1, 2, 3]
    with pytest.raises(KernelFault, match="reads 4 bytes at byte 8 of local array depot, where nothing was written"):
        run(body.replace("ld.local.u32 %r9, [%rd5+4]", "ld.local.u32 %r9, [%rd5+8]"))
    with pytest.raises(KernelFault, match="writes 4 bytes at byte 16 of local array depot, which has 16"):
        run(body.replace("st.local.u32 [%rd5+4]", "st.local.u32 [%rd5+16]"))


def test_16_bit_numbers_widen_by_their_type():
    body = """
    mov.u16 %rs1, 0xFFFE;
    cvt.s32.s16 %r2, %rs1;
    cvt.u32.u16 %r3, %rs1;
    add.s32 %r9, %r2, %r3;
    """
    assert run(body, threads=1) == [0xFFFC]


# -- faults


def test_a_register_that_is_read_before_it_is_set():
    with pytest.raises(KernelFault) as caught:
        run("add.s32 %r9, %r1, %r8;")
    assert str(caught.value) == (
        f"k: block (0, 0, 0), thread 0, PTX line {FIRST} `add.s32 %r9, %r1, %r8`: reads %r8, which no thread has set"
    )


def test_a_register_that_some_threads_have_not_set():
    body = """setp.lt.u32 %p1, %r1, 3;
    @!%p1 bra OVER;
    mov.u32 %r8, 5;
OVER:
    add.s32 %r9, %r1, %r8;"""
    with pytest.raises(KernelFault) as caught:
        run(body)
    assert str(caught.value) == (
        f"k: block (0, 0, 0), thread 3, PTX line {FIRST + 4} `add.s32 %r9, %r1, %r8`: reads %r8, which this thread has"
        " not set"
    )


def test_division_by_zero():
    with pytest.raises(KernelFault, match=r"thread 0, .* `div.u32 %r9, %r1, %r1`: divides by zero"):
        run("div.u32 %r9, %r1, %r1;")


def test_shared_memory_beyond_its_array():
    body = "mul.lo.s32 %r2, %r1, 8;\nmov.u32 %r3, pool;\nadd.s32 %r3, %r3, %r2;\n"
    with pytest.raises(
        KernelFault, match=r"thread 8, .*: writes 8 bytes at byte 64 of shared array pool, which has 64"
    ):
        run(body + "st.shared.u64 [%r3], %rd3;")
    with pytest.raises(KernelFault, match=r"thread 1, .*: writes 8 .* 12 .* pool, which is not aligned to 8"):
        run(body.replace("8;", "4;") + "st.shared.u64 [%r3+8], %rd3;", threads=2)


# -- text


def test_an_unknown_opcode_is_named():
    with pytest.raises(PtxError) as caught:
        program("popc.b32 %r9, %r1;")
    assert str(caught.value) == f"k, PTX line {FIRST} `popc.b32 %r9, %r1`: opcode popc.b32 is unknown"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("add.s32 %r9, %r1;", "add.s32 wants one register and 2 operands"),
        ("add.s32 %r9, %r1, %q1;", "register %q1 is not declared"),
        ("bra NOWHERE;", "branches to no label of the kernel"),
        ("bar.sync 1;", "barriers other than 0, and barriers of some threads, are not supported"),
        ("ld.generic.u32 %r9, [%rd4];", "opcode ld.generic.u32 is unknown"),
        ("mov.u64 %rd5, elsewhere;", "the operand Symbol(name='elsewhere') is not supported here"),
        ("ld.param.u64 %rd5, [k_param_7];", "there is no parameter k_param_7 of type u64"),
    ],
)
def test_what_cannot_be_read(line, problem):
    with pytest.raises(PtxError) as caught:
        program(line)
    assert str(caught.value) == f"k, PTX line {FIRST} `{line.rstrip(';')}`: {problem}"


def test_a_module_has_one_kernel():
    with pytest.raises(PtxError, match="PTX with 0 kernels; one is wanted"):
        parse(".version 9.0\n")


# -- counts


def test_sectors_and_turns():
    """Every eighth word of global memory: eight times the sectors that the words need. Every second word of shared
    memory: two words a bank, two turns."""
    profile = Profile()
    body = """
    mov.u32 %r3, wide;
    shl.b32 %r4, %r1, 3;
    add.s32 %r3, %r3, %r4;
    st.shared.u32 [%r3], %r1;
    and.b32 %r4, %r1, 3;
    mul.wide.u32 %rd5, %r4, 32;
    add.s64 %rd5, %rd2, %rd5;
    ld.global.u32 %r5, [%rd5];
    mov.u32 %r9, %r1;
    """
    run(body, profile=profile)
    shared, loaded, stored = profile.traffic.values()
    assert (shared.space, shared.requests, shared.useful, shared.turns, shared.fewest) == ("shared", 1, 128, 2, 1)
    assert (loaded.space, loaded.requests, loaded.useful, loaded.sectors, loaded.fewest) == ("global", 1, 16, 4, 1)
    assert (stored.space, stored.requests, stored.useful, stored.sectors, stored.fewest) == ("global", 1, 128, 4, 4)
    assert (profile.instructions, profile.warp_instructions) == (16 * 32, 16)
