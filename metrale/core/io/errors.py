"""Errors that cross the boundary, named after what went wrong. The core looks at the class, never at the text.

Two families (S5 section 2.5). A *device error* says what happened inside one device call. A *step error* wraps one and
says when a router met it: before or at the forward pass, at the readback, or while applying an effect.
"""

from __future__ import annotations


class DeviceError(Exception):
    """A device call failed. ``text`` is what a client may be shown; ``short`` is what a call log shows."""

    short = "device error"

    def __init__(self, text: str, short: str | None = None) -> None:
        super().__init__(text)
        self.text = text
        if short is not None:
            self.short = short


class KvExhausted(DeviceError):
    """The paged KV pool is dry. Raised before anything changed: every row of the call is as it was."""

    short = "KV cache exhausted"


class SlotsExhausted(DeviceError):
    """No sequence slot is left (the text contains ``pool exhausted``)."""

    short = "pool exhausted"


class DeviceFault(DeviceError):
    """Any other failure of the device."""


class DeviceLost(DeviceFault):
    """The device is gone for good: the core stops admitting and launching (decision D32)."""


class Unsupported(DeviceError):
    """The device does not have this operation; nothing changed."""

    short = "unsupported"


class StepError(Exception):
    """Base of the errors that a router raises; ``cause`` is the device error, or None for a contract violation."""

    def __init__(self, text: str, cause: DeviceError | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.cause = cause


class ForwardFailed(StepError):
    """The launch failed before or at the forward pass; no row changed."""


class ReadbackFailed(StepError):
    """The forward ran, its result could not be read; the rows have advanced and are about to be failed."""


class EffectFailed(StepError):
    """An effect between steps failed, or a ticket was not the router's."""


def reason(error: Exception) -> str:
    """What a client may read: of an OSError its words alone, never a path of this machine or an error number."""
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
