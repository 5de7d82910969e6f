"""Packed launches: the layout is the one kernels are compiled for, and the driver finds the values there."""

from __future__ import annotations

import ctypes
import re
import struct
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from numba import cuda, types

from metrale.device.cuda import budget, packed
from metrale.device.cuda.packed import PackedLauncher, Parameters, type_of

KERNELS = ("rotary and write 128, fp32", "rms norm 100, bf16", "feed ids", "choose masked", "delta rule 128x128, bf16")
WIDTHS = {"u64": 8, "f32": 4}
TENSORS = {kind: dtype for dtype, kind in packed.ELEMENTS.items() if dtype is not torch.bool}


def arguments_of(signature) -> tuple:
    """An argument of each type of a signature."""
    found = []
    for kind in signature:
        if isinstance(kind, types.Array):
            found.append(torch.zeros(3, dtype=TENSORS[kind.dtype]))
        else:
            found.append(1.0 if kind == types.float32 else 1)
    return tuple(found)


@pytest.mark.parametrize("name", KERNELS)
def test_the_layout_is_that_of_the_compiled_kernel(name):
    (kernel,) = [one for one in budget.kernels() if one.name == name]
    arguments = arguments_of(kernel.signature)
    here = SimpleNamespace(compute_capability=(9, 0))
    with mock.patch("numba.cuda.dispatcher.get_current_device", return_value=here):
        ptx, _ = cuda.compile(
            kernel.make().py_func, tuple(map(type_of, arguments)), device=False, cc=(9, 0), abi="numba", output="ptx"
        )
    declared = re.findall(r"\.param \.(\w+) ", ptx[ptx.index(".entry") : ptx.index("{", ptx.index(".entry"))])
    assert [WIDTHS[kind] for kind in declared] == Parameters(arguments).sizes


def read(address: int, sizes: list[int]) -> list[bytes]:
    """What a driver reads: as many bytes as each parameter has, where its pointer says."""
    pointers = (ctypes.c_void_p * len(sizes)).from_address(address)
    return [ctypes.string_at(pointer, size) for pointer, size in zip(pointers, sizes, strict=True)]


def words(*values: int) -> list[bytes]:
    return [struct.pack("<q", value) for value in values]


def test_a_driver_finds_the_values():
    half, flags, nothing = torch.zeros(2, 3, dtype=torch.bfloat16), torch.ones(5, dtype=torch.bool), torch.empty(0)
    arguments = (half, -7, 0.5, flags, nothing)
    parameters = Parameters(arguments)
    for _ in range(2):
        parameters.fill(arguments)
        assert read(parameters.address, parameters.sizes) == [
            *words(0, 0, 6, 2, half.data_ptr(), 6, 2),
            *words(-7),
            struct.pack("<f", 0.5),
            *words(0, 0, 5, 1, flags.data_ptr(), 5, 1),
            *words(0, 0, 0, 4, 0, 0, 4),
        ]


def test_strided_memory_is_refused():
    column = torch.zeros(4, 4)[:, 1]
    with pytest.raises(ValueError, match=r"contiguous memory, not \(4,\) with strides \(4,\)"):
        Parameters((column,)).fill((column,))


def test_other_elements_are_refused():
    with pytest.raises(TypeError, match=r"no tensor of torch\.float64"):
        type_of(torch.zeros(1, dtype=torch.float64))


@pytest.fixture
def driver(monkeypatch):
    """A driver that keeps what it is told, and a compiler that counts."""
    from cuda.bindings import driver as real

    told = SimpleNamespace(calls=[], compiled=[], answer=real.CUresult.CUDA_SUCCESS)
    monkeypatch.setattr(real, "cuLaunchKernel", lambda *call: (told.calls.append(call), (told.answer,))[1])
    monkeypatch.setattr(packed, "function_of", lambda kernel, _: (told.compiled.append(kernel), 1000)[1])
    return told


def kernel() -> SimpleNamespace:
    class Kernel(SimpleNamespace):
        __hash__ = object.__hash__

    return Kernel(py_func=SimpleNamespace(__name__="copy"))


def test_a_kernel_is_made_once_for_each_kind_of_argument(driver):
    launcher, one = PackedLauncher(), kernel()
    launcher.launch(one, (7,), 128, 42, (torch.zeros(8), 3))
    launcher.launch(one, (1, 2, 3), 64, 0, (torch.ones(2), 4))
    launcher.launch(one, (1, 2), 64, 0, (torch.ones(2, dtype=torch.bfloat16), 4))
    assert [call[:9] for call in driver.calls] == [
        (1000, 7, 1, 1, 128, 1, 1, 0, 42),
        (1000, 1, 2, 3, 64, 1, 1, 0, 0),
        (1000, 1, 2, 1, 64, 1, 1, 0, 0),
    ]
    assert len(driver.compiled) == 2
    assert driver.calls[0][9] == driver.calls[1][9] != driver.calls[2][9]


def test_a_refused_launch_says_which(driver):
    from cuda.bindings import driver as real

    driver.answer = real.CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(RuntimeError, match=r"launch of copy with grid \(0,\), block 8: CUDA_ERROR_INVALID_VALUE"):
        PackedLauncher().launch(kernel(), (0,), 8, 0, (1,))


class OnGpu(torch.Tensor):
    """A CPU tensor that says it is on a GPU."""

    is_cuda = True


def test_launches_on_a_gpu_are_packed_on_the_current_stream(driver, monkeypatch):
    from metrale.device.cuda import launch

    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=77))
    x = torch.zeros(2, 8).as_subclass(OnGpu)
    launch.launch(kernel(), (3, 2), 32, x, launch.memory(x[1]), 5)
    launch.launch(kernel(), (0, 2), 32, x, 5)
    (call,) = driver.calls
    assert call[:9] == (1000, 3, 2, 1, 32, 1, 1, 0, 77)
    assert read(call[9], [8] * 15) == [
        *words(0, 0, 16, 4, x.data_ptr(), 16, 4),
        *words(0, 0, 8, 4, x.data_ptr() + 32, 8, 4),
        *words(5),
    ]


def test_numba_launches_on_demand(monkeypatch):
    from metrale.device.cuda import launch

    told = []

    class Kernel:
        def __getitem__(self, configuration):
            return lambda *arguments: told.append((configuration, arguments))

    monkeypatch.setattr(launch, "PACKED", False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=77))
    monkeypatch.setattr(launch, "_external", lambda pointer: f"stream {pointer}")
    launch.launch(Kernel(), (3,), 32, 5, 0.5)
    assert told == [(((3,), 32, "stream 77"), (5, 0.5))]


def test_numba_compiles_and_loads_the_kernel():
    """Numba's own way from Python to a loaded function, with a context that keeps what it is to load."""
    from metrale.device.cuda import rows

    loaded = []

    class Module:
        initialized = True

        def get_function(self, name):
            loaded.append(name)
            return SimpleNamespace(handle=123, module=self)

    def load(image, *_):
        loaded.append(image.code_type)
        return Module()

    here = SimpleNamespace(compute_capability=(9, 0), id=0)
    context = SimpleNamespace(device=here, create_module_image=load)
    whole = torch.zeros(3, dtype=torch.int64)
    with (
        mock.patch("numba.cuda.dispatcher.get_current_device", return_value=here),
        mock.patch("numba.cuda.codegen.devices.get_context", return_value=context),
    ):
        feed = cuda.jit(rows.feed_kernel().py_func)
        assert packed.function_of(feed, (whole, whole.bool(), whole, whole, 3)) == 123
    assert loaded[0] == "cubin"
    assert "feed" in loaded[1]
