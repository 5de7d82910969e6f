"""Where Numba finds NVVM, the compiler of its kernels, for the processes of the GPU check.

cuda-pathfinder looks for libnvvm in site-packages, then asks the loader (LD_LIBRARY_PATH), then takes nvvm/lib64 of
CUDA_PATH or CUDA_HOME. numba-cuda looks for libdevice in the wheels that importlib.metadata knows, then in
nvvm/libdevice of CUDA_HOME. Neither looks into a toolkit of the machine where torch's wheels bring NVRTC, nor into the
folders of PYTHONPATH. So both are told here.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

SYSTEM = Path("/usr/local/cuda")
REMEDY = (
    "install what Numba compiles with (`pip install 'numba-cuda[cu13]'`), name a folder that has the nvidia-nvvm wheel"
    " with --wheels, or set CUDA_HOME to a CUDA toolkit that has nvvm/lib64 and nvvm/libdevice"
)
"""What helps where torch sees a GPU and Numba cannot compile."""


def toolkits(system: Path = SYSTEM) -> Iterator[Path]:
    """CUDA toolkits of this machine that have NVVM: the usual one, that of the nvcc on the path, others beside it by
    name, the last first."""
    found = [system]
    if compiler := shutil.which("nvcc"):
        found.append(Path(compiler).resolve().parents[1])
    found += sorted(system.parent.glob(f"{system.name}-*"), reverse=True)
    yield from (folder for folder in found if libraries(folder))


def libraries(root: Path) -> list[Path]:
    """The folder of libnvvm in a toolkit, or in what wheels for CUDA 13 or CUDA 12 unpack; none, or the first."""
    places = (root / place for place in ("nvvm/lib64", "lib64", "lib"))
    return [place for place in places if any(place.glob("libnvvm.so*"))][:1]


def compilers(
    seen: Mapping[str, str], links: Path, wheels: Path | None = None, system: Path = SYSTEM
) -> dict[str, str]:
    """What to add to the environment ``seen``. ``wheels`` is a folder into which wheels were unpacked: their libraries
    are found first. CUDA_HOME is set only where neither it nor CUDA_PATH is.

    A toolkit's libnvvm is named to the loader as well, which may know one of another toolkit than libdevice's. One that
    is not in nvvm/lib64 gets links in the new folder ``links``: with the whole of lib64 on LD_LIBRARY_PATH torch could
    load other libraries than it came with."""
    unpacked = [path for path in sorted(wheels.glob("nvidia/*")) if path.is_dir()] if wheels else []
    paths = [folder for path in unpacked for folder in [*libraries(path), path / "lib"] if folder.is_dir()]
    added = {}
    if not seen.get("CUDA_HOME") and not seen.get("CUDA_PATH"):
        own = [path for path in unpacked if libraries(path)]
        for root in [*own, *toolkits(system)][:1]:
            added["CUDA_HOME"] = str(root)
            if not own:
                paths.append(_alone(libraries(root)[0], links))
    if paths:
        before = [seen["LD_LIBRARY_PATH"]] if seen.get("LD_LIBRARY_PATH") else []
        added["LD_LIBRARY_PATH"] = os.pathsep.join(dict.fromkeys([*map(str, paths), *before]))
    return added


def _alone(folder: Path, links: Path) -> Path:
    """A folder that has nothing but the libnvvm of ``folder``."""
    if folder.parts[-2:] == ("nvvm", "lib64"):
        return folder
    links.mkdir(parents=True, exist_ok=True)
    for library in folder.glob("libnvvm.so*"):
        (links / library.name).symlink_to(library.resolve())
    return links
