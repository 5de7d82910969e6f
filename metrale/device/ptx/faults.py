"""What goes wrong in a kernel, in one line."""

from __future__ import annotations


class PtxError(Exception):
    """PTX text that this interpreter cannot read or has no meaning for."""


class KernelFault(Exception):
    """A kernel did what no kernel may do. The text names kernel, instruction, block, thread, address and argument."""


class LaneError(Exception):
    """No result in the lanes where ``lanes`` is set: bool, one an active lane, or one for all of them."""

    def __init__(self, text: str, lanes: object) -> None:
        super().__init__(text)
        self.lanes = lanes
