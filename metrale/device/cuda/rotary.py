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


@device
def _turn(first, second, cosines, sines, count):
    """Rotate ``count`` pairs in place."""
    for i in range(count):
        c, s = cosines[i], sines[i]
        a, b = first[i], second[i]
        first[i] = a * c - b * s
        second[i] = b * c + a * s


@cache
def rotary_kernel(storage: Storage, head: int, half: int, vector: int):
    """x and out [R, heads, D], cos and sin [R, half]: grid (ceil(heads units / block), R), units (D - half) / vector.

    Rows of x begin every ``stride`` elements. Moves 2 R heads D e + 8 R half bytes, 3 R heads 2 half operations.
    """
    load, store = movers(storage, vector)
    load_angle, _ = movers(FP32, vector)
    units = (head - half) // vector

    @kernel
    def rotary(x, stride, cos, sin, heads, out):
        first = cuda.local.array(vector, float32)
        second = cuda.local.array(vector, float32)
        cosines = cuda.local.array(vector, float32)
        sines = cuda.local.array(vector, float32)
        at, row = int64(cuda.grid(1)), int64(cuda.blockIdx.y)
        if at >= heads * units:
            return
        line, low = at // units, at % units * vector
        source, target = row * stride + line * head, (row * heads + line) * head
        if low < half:
            load(x, source + low, first, 0)
            load(x, source + half + low, second, 0)
            load_angle(cos, row * half + low, cosines, 0)
            load_angle(sin, row * half + low, sines, 0)
            _turn(first, second, cosines, sines, vector)
            store(out, target + low, first, 0)
            store(out, target + half + low, second, 0)
        else:
            load(x, source + half + low, first, 0)
            store(out, target + half + low, first, 0)

    return rotary


@cache
def rotary_write_kernel(storage: Storage, head: int, half: int, vector: int):
    """Rotate q and k, put k and v into pages: grid (ceil((H + 2 KV) units / block), R), units (D - half) / vector.

    q and out [R, H, D], k and v [R, KV, D], whose rows begin every ``q_stride``, ``k_stride``, ``v_stride`` elements;
    positions [R] into the tables cos and sin, where [R] the flat position in the pools keys and values [blocks,
    block_size, KV, D]. Moves 2 R (H + 2 KV) D e bytes, 6 R (H + KV) half operations.

    A unit is a pair of vectors that turn, or one vector of the dimensions that stay; v is cut in the same way. A thread
    asks for its position and its vectors together, and for the angles when it has the position.
    """
    load, store = movers(storage, vector)
    load_angle, _ = movers(FP32, vector)
    units = (head - half) // vector

    @kernel
    def rotary_write(
        q, q_stride, k, k_stride, v, v_stride, positions, cos, sin, where, heads, kv_heads, out, keys, values
    ):
        first = cuda.local.array(vector, float32)
        second = cuda.local.array(vector, float32)
        cosines = cuda.local.array(vector, float32)
        sines = cuda.local.array(vector, float32)
        at, row = int64(cuda.grid(1)), int64(cuda.blockIdx.y)
        if at >= (heads + 2 * kv_heads) * units:
            return
        position, place = positions[row], where[row]
        line, low = at // units, at % units * vector
        pair = low < half
        other = low + half
        begin = low if pair else other
        if line < heads:
            source = row * q_stride + line * head
            load(q, source + begin, first, 0)
            if pair:
                load(q, source + other, second, 0)
        elif line < heads + kv_heads:
            source = row * k_stride + (line - heads) * head
            load(k, source + begin, first, 0)
            if pair:
                load(k, source + other, second, 0)
        else:
            source = row * v_stride + (line - heads - kv_heads) * head
            load(v, source + begin, first, 0)
            if pair:
                load(v, source + other, second, 0)
        if pair and line < heads + kv_heads:
            load_angle(cos, position * half + low, cosines, 0)
            load_angle(sin, position * half + low, sines, 0)
            _turn(first, second, cosines, sines, vector)
        if line < heads:
            target = (row * heads + line) * head
            store(out, target + begin, first, 0)
            if pair:
                store(out, target + other, second, 0)
        elif line < heads + kv_heads:
            target = (place * kv_heads + line - heads) * head
            store(keys, target + begin, first, 0)
            if pair:
                store(keys, target + other, second, 0)
        else:
            target = (place * kv_heads + line - heads - kv_heads) * head
            store(values, target + begin, first, 0)
            if pair:
                store(values, target + other, second, 0)

    return rotary_write
