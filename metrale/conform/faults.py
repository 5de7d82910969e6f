"""Kernels that do what no kernel may do, found while they run: a failed check, not the end of all checks."""

from __future__ import annotations

from metrale.device.ptx.faults import KernelFault, PtxError

FAULTS = (KernelFault, PtxError)
"""What the PTX machine raises in the middle of a run. Either is a bug of ours: of a kernel, or of the machine."""


def told(error: Exception) -> str:
    """The fault in one line."""
    return f"kernel fault: {' '.join(str(error).split())}"
