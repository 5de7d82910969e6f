"""``SchedIo``: everything through which the core reaches the world. The core imports no implementation of it."""

from __future__ import annotations

from dataclasses import dataclass

from .device import Device, DeviceFacts
from .errors import (
    DeviceError,
    DeviceFault,
    DeviceLost,
    EffectFailed,
    ForwardFailed,
    KvExhausted,
    ReadbackFailed,
    SlotsExhausted,
    StepError,
    Unsupported,
    reason,
)
from .ports import Batch, Clock, Inbox, Rotation, RotationAck, SpillStore, Telemetry, Wait
from .router import Ctx, Decode, DecodeFed, HostLogits, Plan, Readback, Router, Ticket

__all__ = [
    "Batch", "Clock", "Ctx", "Decode", "DecodeFed", "Device", "DeviceError", "DeviceFacts", "DeviceFault",
    "DeviceLost", "EffectFailed", "ForwardFailed", "HostLogits", "Inbox", "KvExhausted", "Plan", "Readback",
    "ReadbackFailed", "Rotation", "RotationAck", "Router", "SchedIo", "SlotsExhausted", "SpillStore", "StepError",
    "Telemetry", "Ticket", "Unsupported", "Wait", "reason",
]  # fmt: skip


@dataclass(slots=True)
class SchedIo:
    """The five surfaces of the scheduler. ``spill`` is None when no swap space is configured."""

    router: Router
    inbox: Inbox
    clock: Clock
    telemetry: Telemetry
    spill: SpillStore | None = None
