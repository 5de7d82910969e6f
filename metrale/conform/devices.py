"""What can be compared on which backend. No import of torch: the command line reads this table."""

from __future__ import annotations

from dataclasses import dataclass

MODES = ("forced", "free", "late")
SHORT = 2300
"""Bytes of the longest golden that a slow backend runs unasked."""


@dataclass(frozen=True, slots=True)
class Facility:
    """What one backend is good for.

    ``modes`` it offers, and ``why`` not the others; those in ``named`` run only where they are asked for. ``short``: of
    a whole suite only the short scenarios. ``rounding``: the share of the logit range below which two best logits count
    as a tie (0: texts must be equal). ``races``: it looks for races of the kernels, which can be left out.
    """

    modes: tuple[str, ...]
    short: bool = False
    rounding: float = 0.0
    why: str = ""
    named: tuple[str, ...] = ()
    races: bool = False

    @property
    def unasked(self) -> tuple[str, ...]:
        """The modes of a run that names none."""
        return tuple(mode for mode in self.modes if mode not in self.named)


DEVICES = {
    "torch": Facility(MODES),
    "cuda-sim": Facility(("forced",), short=True, why="a step takes seconds"),
    "cuda-ptx": Facility(
        ("forced", "free"), short=True, why="it repeats free mode three times", named=("free",), races=True
    ),
    "cuda": Facility(("forced", "free"), rounding=1e-4, why="work can be held back on the CPU alone"),
}
"""By the names of :data:`metrale.device.loading.BACKENDS`."""
