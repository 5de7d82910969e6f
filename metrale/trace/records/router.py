"""Router lines, the header and the tick marker (S1 sections 1 and 9, S5 section 7)."""

from __future__ import annotations

from ..values import Readback
from .base import Fx, Record, Stage, record


@record
class Header(Record):
    """First line of a trace: the scenario's name."""

    stage = Stage.HEADER

    name: str


@record
class Tick(Record):
    """Marker that each plan writes after the free-block line; ``tick`` counts from 1 (S1 section 9)."""

    tick: int


@record
class FxLaunchDecode(Fx):
    """A plain decode of ``n`` rows is launched; ``ctx`` names the drafter-context commit (S5 section 2.2)."""

    n: int
    ctx: str
    readback: Readback


@record
class FxLaunchDecodeFed(Fx):
    """A decode is launched while the one before is in flight; ``fed`` rows read their input on the device."""

    n: int
    fed: int
    ctx: str


@record
class FxReleaseSeq(Fx):
    """A sequence gives its device memory back; ``what`` says why, ``cache`` whether its prefix is offered."""

    cache: bool
    what: str


@record
class FxCompactSlot(Fx):
    """A sequence moves to slot ``target``."""

    target: int


@record
class FxDetachSlot(Fx):
    """A spill victim gives up its slot."""


@record
class FxSaveSequenceState(Fx):
    """A spill victim's state is written out."""


@record
class FxReadLogits(Fx):
    """Logits of ``rows`` rows are read back after all, for sampling on the host."""

    rows: int


@record
class FxMarconiCheckpoint(Fx):
    """A kept token may be worth a prefix-cache checkpoint."""


@record
class FxSsmSnapshotSave(Fx):
    """Recurrent state goes into ring slot ``slot``."""

    slot: int


@record
class FxSsmSnapshotRestore(Fx):
    """Recurrent state comes back from ring slot ``slot``."""

    slot: int


@record
class FxSaveHiddenCatchup(Fx):
    """The hidden row of a serially decoded token is kept for the drafter."""

    row: int
    pos: int


@record
class FxSyncSecondary(Fx):
    """Speculation is configured, but this tick decodes plainly."""


@record
class FxEpShutdown(Fx):
    """Expert-parallel workers are told to stop."""


@record
class FxQuiesce(Fx):
    """The host waits for stream ``stream``."""

    stream: int


@record
class FxReserveKv(Fx):
    """A row asks for the block of its next position (depth 2, S5 section 11.3)."""


@record
class FxRollback(Fx):
    """An over-run row hands its reserved blocks back (depth 2, S5 section 11.5)."""


@record
class FxRotate(Fx):
    """Adapter ``name`` is to become the active one (S1 section 10)."""

    name: str


@record
class FxLoadIntoSlot(Fx):
    """Adapter ``name`` is to be loaded into adapter slot ``slot``."""

    name: str
    slot: int


@record
class FxPromote(Fx):
    """Adapter ``name`` is to be promoted from a peer."""

    name: str


@record
class FxPromoteDisk(Fx):
    """Adapter ``name`` is to be promoted from disk."""

    name: str


@record
class FxTeardown(Fx):
    """The router is given up; device memory is freed next."""
