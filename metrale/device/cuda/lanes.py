"""The few operations that differ between a GPU and Numba's simulator, behind one set of names.

On a GPU: warp shuffles, 128-bit loads, instructions on bits. In the simulator (``NUMBA_ENABLE_CUDASIM=1`` before numba
is imported): the twins, which exchange through shared memory. Two rules follow from the twins. Every thread of a block
calls a lane operation, and all of them equally often. ``scratch`` is a shared array of :func:`scratch_size` elements;
on a GPU it is not touched.

Lane groups are aligned runs of ``width`` threads, a power of two up to 32. Sums are butterflies from the widest step
to the narrowest, so their order, and with it every bit of a result, does not depend on the backend's mood.
"""

from __future__ import annotations

from numba import config, cuda

SIMULATED = bool(config.ENABLE_CUDASIM)
WARP = 32
EVERYONE = 0xFFFFFFFF

if SIMULATED:
    from .simulator import repair
    from .twins import (
        bf16_of_float,
        float_of_bf16,
        issue_loads,
        load4_f32,
        load8_bf16,
        load8_f32,
        max_lanes,
        pair_from_lane,
        scatterer,
        store4_f32,
        store8_bf16,
        store8_f32,
        sum_lanes,
        sum_lanes_each,
    )

    repair()

    def device(function):
        """A function that kernels call."""
        return function

else:
    from numba.cuda.core import config as cuda_config

    from .intrinsics import (
        bf16_of_float,
        float_of_bf16,
        load4_f32,
        load8_bf16,
        load8_f32,
        store4_f32,
        store8_bf16,
        store8_f32,
    )

    # Decode steps have small grids; a warning at each launch tells nothing new.
    cuda_config.CUDA_LOW_OCCUPANCY_WARNINGS = 0

    def device(function):
        """A function that kernels call; always inlined, so that its local arrays can live in registers."""
        return cuda.jit(function, device=True, forceinline=True, lto=False)

    @device
    def sum_lanes(value, width, thread, scratch):
        """Butterfly sum over aligned groups of ``width`` threads; every thread gets it."""
        step = width // 2
        while step > 0:
            value += cuda.shfl_xor_sync(EVERYONE, value, step)
            step //= 2
        return value

    @device
    def max_lanes(value, width, thread, scratch):
        """The greatest over aligned groups of ``width`` threads."""
        step = width // 2
        while step > 0:
            value = max(value, cuda.shfl_xor_sync(EVERYONE, value, step))
            step //= 2
        return value

    @device
    def sum_lanes_each(values, count, width, thread, scratch):
        """``sum_lanes`` of the first ``count`` entries of a local array, in place."""
        for i in range(count):
            values[i] = sum_lanes(values[i], width, thread, scratch)

    def scatterer(count, width, stride=1):
        """A function that sums the first ``count`` entries of a local array over ``width`` threads, ``stride`` apart in
        aligned groups, in the order of ``sum_lanes``. It leaves a thread with those of :func:`scattered`, in front: at
        every step of the butterfly a thread gives away the half that it does not keep, while there are halves.

        Each step is a function of its own: the compiler would not unroll a loop over all of them."""
        step, half = width // 2 * stride, count // 2
        if step == 0:

            @device
            def scatter(values, thread, scratch):
                pass

        elif count % 2 == 0:
            rest = scatterer(half, width // 2, stride)

            @device
            def scatter(values, thread, scratch):
                upper = thread & step != 0
                for i in range(half):
                    low, high = values[i], values[i + half]
                    given = cuda.shfl_xor_sync(EVERYONE, low if upper else high, step)
                    values[i] = (high if upper else low) + given
                rest(values, thread, scratch)

        else:
            rest = scatterer(count, width // 2, stride)

            @device
            def scatter(values, thread, scratch):
                for i in range(count):
                    values[i] += cuda.shfl_xor_sync(EVERYONE, values[i], step)
                rest(values, thread, scratch)

        return scatter

    @device
    def issue_loads():
        """Loads above stay above the arithmetic below, so that all are in flight at once: without this the assembler
        spares registers and waits for one after the other. All threads of a warp call it; it costs no turn."""
        cuda.syncwarp()

    @device
    def pair_from_lane(value, index, step, thread, values, indices):
        """The value and index of the thread whose number differs in the bits of ``step``."""
        return cuda.shfl_xor_sync(EVERYONE, value, step), cuda.shfl_xor_sync(EVERYONE, index, step)


def kernel(function=None, *, launch_bounds=None):
    """A kernel, linked from the PTX that the PTX machine runs and the budget is read from: with nvJitLink at hand Numba
    would take LTO-IR, and a GPU would get code that no test has seen.

    ``launch_bounds``: the most threads of a block, or that and the fewest blocks that a multiprocessor must have room
    for. The assembler then keeps registers few enough."""

    def made(function):
        # Numba forgets lto unless it gets the function in the same call.
        return cuda.jit(function) if SIMULATED else cuda.jit(function, lto=False, launch_bounds=launch_bounds)

    return made(function) if function else made


def scattered(count: int, width: int) -> tuple[int, int]:
    """What a :func:`scatterer` leaves: (kept, sharing). Thread l of a group keeps ``kept`` sums from number
    ``l // sharing * kept``; ``sharing`` threads have the same."""
    halvings = min(width.bit_length() - 1, (count & -count).bit_length() - 1)
    return count >> halvings, width >> halvings


def scratch_size(threads: int, values: int = 1) -> int:
    """Elements of shared memory that the twins need to exchange ``values`` numbers a thread."""
    return threads * values if SIMULATED else 1


__all__ = [
    "EVERYONE",
    "SIMULATED",
    "WARP",
    "bf16_of_float",
    "device",
    "float_of_bf16",
    "issue_loads",
    "kernel",
    "load4_f32",
    "load8_bf16",
    "load8_f32",
    "max_lanes",
    "pair_from_lane",
    "scattered",
    "scatterer",
    "scratch_size",
    "store4_f32",
    "store8_bf16",
    "store8_f32",
    "sum_lanes",
    "sum_lanes_each",
]
