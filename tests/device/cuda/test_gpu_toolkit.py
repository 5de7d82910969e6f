"""Numba's compiler on the machine of the GPU check: where it is looked for, and what is said if it is not found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from numba import cuda

TOOLS = Path(__file__).parents[3] / "tools"


@pytest.fixture(autouse=True)
def tools(monkeypatch):
    monkeypatch.syspath_prepend(TOOLS)
    monkeypatch.setattr(shutil, "which", lambda name: None)


def toolkit(root, library="nvvm/lib64"):
    """A folder with the files of a CUDA toolkit that matter here."""
    for place, name in ((library, "libnvvm.so.4"), ("nvvm/libdevice", "libdevice.10.bc"), ("bin", "nvcc")):
        (root / place).mkdir(parents=True, exist_ok=True)
        (root / place / name).write_text("")
    return root


def taken(home):
    """The environment with a toolkit of the usual layout."""
    return {"CUDA_HOME": str(home), "LD_LIBRARY_PATH": str(home / "nvvm" / "lib64")}


def added(tmp_path, seen=(), wheels=None):
    import gpu_toolkit

    return gpu_toolkit.compilers(dict(seen), tmp_path / "links", wheels, system=tmp_path / "local" / "cuda")


def test_the_toolkit_of_the_machine_is_taken(tmp_path):
    home = toolkit(tmp_path / "local" / "cuda")
    toolkit(tmp_path / "local" / "cuda-13.1")
    assert added(tmp_path) == taken(home)
    assert not (tmp_path / "links").exists()


@pytest.mark.parametrize("name", ["CUDA_HOME", "CUDA_PATH"])
def test_what_is_set_stays(tmp_path, name):
    home = toolkit(tmp_path / "local" / "cuda")
    assert added(tmp_path, {name: "/opt/cuda"}) == {}
    assert added(tmp_path, {name: ""}) == taken(home)


def test_without_a_toolkit_nothing_is_set(tmp_path):
    (tmp_path / "local" / "cuda" / "nvvm" / "bin").mkdir(parents=True)
    assert added(tmp_path) == {}


def test_the_toolkit_of_nvcc_comes_before_others(tmp_path, monkeypatch):
    other = toolkit(tmp_path / "local" / "cuda-13.0")
    assert added(tmp_path) == taken(other)
    elsewhere = toolkit(tmp_path / "opt" / "cuda")
    (tmp_path / "nvcc").symlink_to(elsewhere / "bin" / "nvcc")
    monkeypatch.setattr(shutil, "which", lambda name: str(tmp_path / name))
    assert added(tmp_path) == taken(elsewhere)


def test_a_library_in_another_folder_is_linked(tmp_path):
    home = toolkit(tmp_path / "local" / "cuda", "lib64")
    (home / "lib64" / "libcublas.so.13").write_text("")
    found = added(tmp_path, {"LD_LIBRARY_PATH": "/own"})
    assert found == {"CUDA_HOME": str(home), "LD_LIBRARY_PATH": f"{tmp_path / 'links'}{os.pathsep}/own"}
    assert [path.name for path in (tmp_path / "links").iterdir()] == ["libnvvm.so.4"]
    assert (tmp_path / "links" / "libnvvm.so.4").resolve() == home / "lib64" / "libnvvm.so.4"


@pytest.mark.parametrize(("name", "library"), [("cu13", "lib"), ("cuda_nvcc", "nvvm/lib64")])
def test_wheels_come_first(tmp_path, name, library):
    toolkit(tmp_path / "local" / "cuda")
    root = toolkit(tmp_path / "wheels" / "nvidia" / name, library)
    wanted = {"CUDA_HOME": str(root), "LD_LIBRARY_PATH": str(root / library)}
    assert added(tmp_path, wheels=tmp_path / "wheels") == wanted
    kept = added(tmp_path, {"CUDA_HOME": "/opt/cuda"}, tmp_path / "wheels")
    assert kept == {"LD_LIBRARY_PATH": str(root / library)}


def test_wheels_without_a_compiler_leave_the_toolkit(tmp_path):
    home = toolkit(tmp_path / "local" / "cuda")
    (tmp_path / "wheels" / "pydantic").mkdir(parents=True)
    assert added(tmp_path, wheels=tmp_path / "wheels") == taken(home)


FIND = """
from unittest import mock
from cuda.pathfinder._dynamic_libs import load_nvidia_dynamic_lib as loader
with mock.patch.object(loader, "EARLY_FIND_STEPS", ()):
    print(loader.load_nvidia_dynamic_lib("nvvm").abs_path)
"""


@pytest.mark.parametrize("library", ["nvvm/lib64", "lib64"])
def test_pathfinder_finds_it_where_no_wheel_has_it(tmp_path, library):
    from cuda import pathfinder

    home = toolkit(tmp_path / "local" / "cuda", library)
    real = Path(pathfinder.load_nvidia_dynamic_lib("nvvm").abs_path)
    shutil.copy(real, home / library / "libnvvm.so.4")
    seen = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "LD_"))}
    seen |= added(tmp_path, seen)
    done = subprocess.run([sys.executable, "-c", FIND], capture_output=True, text=True, env=seen, check=False)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).resolve() == home / library / "libnvvm.so.4"


@pytest.fixture
def card(monkeypatch):
    """A GPU that torch sees."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))


def test_nothing_keeps_a_gpu_and_a_compiler_from_running(card, monkeypatch):
    import gpu_sections

    monkeypatch.setattr(cuda, "is_available", lambda: True)
    assert gpu_sections.why_not() == ("", "")


def test_a_gpu_that_numba_cannot_compile_for_is_a_failure(card, monkeypatch):
    import gpu_sections
    from gpu_toolkit import REMEDY

    def compile(*_, **__):
        raise RuntimeError('Failure finding "libnvvm.so":\n  No such file')

    monkeypatch.setattr(cuda, "compile", compile)
    found = 'RuntimeError: Failure finding "libnvvm.so": No such file'
    told = f"torch sees a GPU, but Numba cannot compile: {found}; {REMEDY}"
    task = gpu_sections.Task((0, 1), False, False, lambda: None)
    assert list(gpu_sections.probe(task)) == [("machine", "problem", told, [told])]


def test_a_gpu_that_numba_does_not_see_is_a_failure(card, monkeypatch):
    import gpu_sections

    monkeypatch.setattr(cuda, "is_available", lambda: False)
    monkeypatch.setattr(cuda, "cuda_error", lambda: "the driver\nis too old\n")
    told = "torch sees a GPU, numba-cuda sees none: the driver is too old"
    assert gpu_sections.why_not() == ("problem", told)


def test_without_a_gpu_there_is_a_reason(monkeypatch):
    import gpu_sections

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    task = gpu_sections.Task((0, 1), False, False, lambda: None)
    assert list(gpu_sections.probe(task)) == [("machine", "reason", "torch sees no CUDA GPU here", [])]
