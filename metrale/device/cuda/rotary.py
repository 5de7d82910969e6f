"""Rotary embedding, alone and fused with the write into paged K/V.

The first ``2 half`` dimensions of a head are rotated, pair (i, i + half) by the angle of position and i. Cosines and
sines are fp32 tables [positions, half].
"""

from __future__ import annotations

from functools import cache

from numba import cuda, float32, int64

from .lanes import device, kernel
from .storage import FP32, VECTOR, Storage, movers


def rotary_vector(head: int, half: int) -> int:
    """Elements at once."""
    return 1 if head % VECTOR or half % VECTOR else VECTOR


@cache
def _turn(storage: Storage, vector: int, half: int):
    load, store = movers(storage, vector)
    load_angle, _ = movers(FP32, vector)

    @device
    def turn(x, source, out, target, unit, cos, sin, angle_at, first, second, cosines, sines):
        """Unit ``unit`` of a head: a pair of vectors, or one vector of the dimensions that stay."""
        if unit * vector < half:
            at = unit * vector
            load(x, source + at, first, 0)
            load(x, source + half + at, second, 0)
            load_angle(cos, angle_at + at, cosines, 0)
            load_angle(sin, angle_at + at, sines, 0)
            for i in range(vector):
                c, s = cosines[i], sines[i]
                a, b = first[i], second[i]
                first[i] = a * c - b * s
                second[i] = b * c + a * s
            store(out, target + at, first, 0)
            store(out, target + half + at, second, 0)
        else:
            at = half + unit * vector
            load(x, source + at, first, 0)
            store(out, target + at, first, 0)

    return turn


@cache
def rotary_kernel(storage: Storage, head: int, half: int, vector: int):
    """x and out [R, heads, D], cos and sin [R, half]: grid ceil(R heads units / block), units (D - half) / vector.

    Moves 2 R heads D e + 8 R half bytes, 3 R heads 2 half operations.
    """
    turn = _turn(storage, vector, half)
    units = (head - half) // vector

    @kernel
    def rotary(x, cos, sin, heads, out, count):
        at = int64(cuda.grid(1))
        first = cuda.local.array(vector, float32)
        second = cuda.local.array(vector, float32)
        cosines = cuda.local.array(vector, float32)
        sines = cuda.local.array(vector, float32)
        if at < count * units:
            line, unit = at // units, at % units
            turn(x, line * head, out, line * head, unit, cos, sin, line // heads * half, first, second, cosines, sines)

    return rotary


@cache
def rotary_write_kernel(storage: Storage, head: int, half: int, vector: int):
    """Rotate q and k, put k and v into their pages: grid ceil(R (H + 2 KV) units / block), units (D - half) / vector.

    q and out [R, H, D], k and v [R, KV, D], positions [R] into the tables cos and sin, where [R] the flat position in
    the pools keys and values [blocks, block_size, KV, D]. Moves 2 R (H + 2 KV) D e bytes, 6 R (H + KV) half operations.
    A thread of v moves the same two vectors as a rotating one.
    """
    turn = _turn(storage, vector, half)
    load, store = movers(storage, vector)
    units = (head - half) // vector

    @kernel
    def rotary_write(q, k, v, positions, cos, sin, where, heads, kv_heads, out, keys, values, rows):
        first = cuda.local.array(vector, float32)
        second = cuda.local.array(vector, float32)
        cosines = cuda.local.array(vector, float32)
        sines = cuda.local.array(vector, float32)
        at = int64(cuda.grid(1))
        lines = heads + 2 * kv_heads
        if at >= rows * lines * units:
            return
        row, line, unit = at // (lines * units), at // units % lines, at % units
        angle_at = positions[row] * half
        if line < heads:
            place = (row * heads + line) * head
            turn(q, place, out, place, unit, cos, sin, angle_at, first, second, cosines, sines)
        elif line < heads + kv_heads:
            h = line - heads
            source, target = (row * kv_heads + h) * head, (where[row] * kv_heads + h) * head
            turn(k, source, keys, target, unit, cos, sin, angle_at, first, second, cosines, sines)
        else:
            h = line - heads - kv_heads
            source, target = (row * kv_heads + h) * head, (where[row] * kv_heads + h) * head
            low = unit * vector
            load(v, source + low, first, 0)
            store(values, target + low, first, 0)
            if low < half:
                high = head - half + low
                load(v, source + high, second, 0)
                store(values, target + high, second, 0)

    return rotary_write
