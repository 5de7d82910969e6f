"""How numbers lie in memory: fp32 as it is, bf16 as 16-bit integers that are shifted to fp32 and rounded back.

Kernels are made by factories that take a :class:`Storage` and compute in fp32 throughout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .lanes import bf16_of_float, device, float_of_bf16, load8_bf16, load8_f32, store8_bf16, store8_f32

VECTOR = 8
"""Elements that one thread moves at once."""


@device
def _load_f32(array, index):
    return array[index]


@device
def _store_f32(array, index, value):
    array[index] = value


@device
def _load_bf16(array, index):
    return float_of_bf16(array[index])


@device
def _store_bf16(array, index, value):
    array[index] = bf16_of_float(value)


@dataclass(frozen=True, slots=True)
class Storage:
    """One element type: its bytes, and the device functions that move one element or eight aligned ones."""

    name: str
    itemsize: int
    load: Callable[..., Any]
    store: Callable[..., Any]
    load8: Callable[..., Any]
    store8: Callable[..., Any]


FP32 = Storage("fp32", 4, _load_f32, _store_f32, load8_f32, store8_f32)
BF16 = Storage("bf16", 2, _load_bf16, _store_bf16, load8_bf16, store8_bf16)


def movers(storage: Storage, vector: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Device functions between memory and a local float32 array, ``vector`` elements (8 aligned ones, or 1) at a time.

    ``load(array, index, into, at)`` and ``store(array, index, values, at)``.
    """
    if vector == 1:
        return _one_by_one(storage)
    load8, store8 = storage.load8, storage.store8

    @device
    def load(array, index, into, at):
        part = load8(array, index)
        for i in range(VECTOR):
            into[at + i] = part[i]

    @device
    def store(array, index, values, at):
        store8(
            array,
            index,
            (
                values[at],
                values[at + 1],
                values[at + 2],
                values[at + 3],
                values[at + 4],
                values[at + 5],
                values[at + 6],
                values[at + 7],
            ),
        )

    return load, store


def _one_by_one(storage: Storage) -> tuple[Callable[..., Any], Callable[..., Any]]:
    load_one, store_one = storage.load, storage.store

    @device
    def load(array, index, into, at):
        into[at] = load_one(array, index)

    @device
    def store(array, index, values, at):
        store_one(array, index, values[at])

    return load, store


def vector_of(width: int) -> int:
    """Elements a thread moves at once in rows of ``width``."""
    return 1 if width % VECTOR else VECTOR
