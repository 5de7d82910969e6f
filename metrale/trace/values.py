"""Values inside a trace line that are more than a number or a word (S1 section 1, "Value formatting")."""

from __future__ import annotations

from typing import NamedTuple

DETACHED_SLOT = 2**64 - 1
"""The slot that a detached sequence prints (S1 section 2)."""

Ints = tuple[int, ...]
"""Token ids, row numbers, slots or counts, in the printed order."""


class SeqId(NamedTuple):
    """A sequence as a line prints it: ``s<hash>@<slot>:len=<length>``.

    ``hash`` is the session hash (0 after a swap-in), ``slot`` the device slot (:data:`DETACHED_SLOT` after a
    detach), ``length`` the number of tokens on the device at the moment the line was written.
    """

    hash: int
    slot: int
    length: int

    def __str__(self) -> str:
        return f"s{self.hash}@{self.slot}:len={self.length}"


class Slice(NamedTuple):
    """One prompt chunk of a mixed or batched prefill: ``<seq> start=<n> len=<n> last=<bool>`` (S2 sections 8-10)."""

    seq: SeqId
    start: int
    len: int
    last: bool

    def __str__(self) -> str:
        return f"{self.seq} start={self.start} len={self.len} last={'true' if self.last else 'false'}"


class Readback(NamedTuple):
    """How a launched decode answers (S5 section 2.2): ``Argmax``, ``HostLogits`` or ``ArgmaxMasked{n=<masks>}``."""

    kind: str
    masks: int | None = None

    def __str__(self) -> str:
        return self.kind if self.masks is None else f"{self.kind}{{n={self.masks}}}"


Seqs = tuple[SeqId, ...]
Slices = tuple[Slice, ...]
Lists = tuple[Ints, ...]
Pairs = tuple[tuple[int, int], ...]
