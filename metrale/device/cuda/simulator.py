"""Two repairs to Numba's simulator, made when :mod:`.lanes` is imported under it.

Its shared arrays are looked up by source line and made on the first miss, without a lock: two threads of a block may
each get an array of their own, and then see nothing of each other. And it polls its threads in a loop that keeps the
interpreter for a whole switch interval.
"""

from __future__ import annotations

import sys
import threading

import numpy as np
from numba.cuda.np import numpy_support
from numba.cuda.simulator.kernelapi import FakeCUDAShared

_lock = threading.Lock()


def _shared_array(self, shape, dtype, alignment=None):
    """The block's array of the calling source line."""
    caller = sys._getframe(1)
    line = (caller.f_code.co_filename, caller.f_lineno)
    with _lock:
        if line not in self._allocations:
            self._allocations[line] = np.empty(shape, numpy_support.as_dtype(dtype))
        return self._allocations[line]


def repair() -> None:
    """Apply both."""
    FakeCUDAShared.array = _shared_array
    sys.setswitchinterval(1e-5)
