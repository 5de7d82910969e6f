"""Cause or consequence: the rules by which a difference follows from an earlier one.

Both traces are walked together with the state that each has built up. A difference is a consequence if what the line
depends on already differs between the two states, or if both lines are what their own trace's state predicts;
otherwise it is a cause. The tables say what depends on what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, NamedTuple

from .. import records as rec
from ..records import Record
from ..values import SeqId, Slice
from .state import State
from .work import Work

ASPECTS_OF_ACT: dict[str, tuple[str, ...]] = {
    "gate": ("rows", "queue", "clock", "memory"),
    "admit": ("rows", "queue", "clock", "memory"),
    "resume": ("rows", "memory"),
    "memory": ("rows", "memory", "queue"),
    "tick": ("rows", "clock", "queue"),
    "prefill": ("rows", "queue"),
    "decode": ("rows", "faults"),
    "step": ("rows", "faults"),
    "token": ("rows",),
    "release": ("rows", "clock", "memory", "faults"),
    "compaction": ("rows",),
    "adapter": ("rows", "queue", "clock"),
    "frame": ("clock",),
    "client": (),
    "text": (),
}
"""What a decision depends on: an act that only one trace has here follows from an earlier difference in these."""


class Leaf(NamedTuple):
    """One value that differs inside two records; ``field`` is the record's field, ``path`` the place in it."""

    field: str
    path: str
    a: Any
    b: Any


def leaves(a: Record, b: Record, most: int = 64) -> list[Leaf]:
    """The innermost values that differ between two records of one class, the first ``most``."""
    found: list[Leaf] = []
    for spec in fields(a):  # type: ignore[arg-type]
        name = spec.name
        for path, x, y in _descend(name, getattr(a, name), getattr(b, name)):
            found.append(Leaf(name, path, x, y))
            if len(found) == most:
                return found
    return found


_NOTHING = "nothing"


def _descend(path: str, a: Any, b: Any) -> Iterator[tuple[str, Any, Any]]:
    if a == b:
        return
    if type(a) is type(b) and hasattr(a, "_fields"):
        for name in a._fields:
            yield from _descend(f"{path}.{name}", getattr(a, name), getattr(b, name))
    elif type(a) is type(b) and isinstance(a, tuple):
        for i in range(max(len(a), len(b))):
            yield from _descend(f"{path}[{i}]", a[i] if i < len(a) else _NOTHING, b[i] if i < len(b) else _NOTHING)
    else:
        yield path, a, b


class Scene(NamedTuple):
    """The two states in front of a difference, and what is known to differ since.

    ``tainted`` are requests with other tokens (and the cause), ``sampled`` those sampled in another place, ``offsets``
    the last numbers of each counter, ``owner`` the request of the line.
    """

    a: State
    b: State
    tainted: dict[int, int]
    offsets: dict[tuple[str, str], Any]
    sampled: set[int]
    owner: int | None = None

    def differs(self, aspect: str) -> bool:
        """Whether the states differ in one aspect."""
        return _ASPECTS[aspect](self.a, self.b)


def _rows_differ(a: State, b: State) -> bool:
    return a is not b and (a.slots != b.slots or _standing(a) != _standing(b))


def _standing(state: State) -> dict[int, tuple[str, int]]:
    return {id: (row.phase.value, row.progress) for id, row in state.rows.items()}


_ASPECTS: dict[str, Callable[[State, State], bool]] = {
    "rows": _rows_differ,
    "queue": lambda a, b: a.gates != b.gates,
    "clock": lambda a, b: a.tick != b.tick,
    "memory": lambda a, b: a.free != b.free or a.used != b.used,
    "faults": lambda a, b: a.launches != b.launches,
}


# ---------------------------------------------------------------- rules for the fields of two lines of the same work

Rule = Callable[[Scene, Record, Record, Leaf], bool]


def _ticks_count_on(scene: Scene, a: Any, b: Any, leaf: Leaf) -> bool:
    return bool(a.tick - scene.a.tick == b.tick - scene.b.tick)


def _memory_follows(scene: Scene, a: Any, b: Any, leaf: Leaf) -> bool:
    constant = scene.a.free is not None and scene.b.free is not None and leaf.b - leaf.a == scene.b.free - scene.a.free
    if constant and leaf.b != leaf.a:
        return True
    known = scene.differs("rows") or scene.differs("memory")
    return known and scene.a.predicts_free(leaf.a) and scene.b.predicts_free(leaf.b)


def _blocks_follow(scene: Scene, a: Any, b: Any, leaf: Leaf) -> bool:
    if not hasattr(a, "seq"):
        return scene.differs("memory") or scene.differs("rows")
    held = [s.rows[o].blocks if (o := s.owner(r.seq)) in s.rows else None for s, r in ((scene.a, a), (scene.b, b))]
    return held == [leaf.a, leaf.b] or scene.a.block_size != scene.b.block_size


def _slots_follow(scene: Scene, a: Any, b: Any, leaf: Leaf) -> bool:
    return scene.a.slots != scene.b.slots


def _word_slot_follows(scene: Scene, a: Any, b: Any, leaf: Leaf) -> bool:
    holder = scene.a.at_slot(leaf.a)
    return scene.a.slots != scene.b.slots or (holder is not None and holder == scene.b.at_slot(leaf.b))


def _sequence_follows(scene: Scene, x: SeqId, y: SeqId) -> bool:
    """Both sides print the request where and as long as their own state has it."""
    owner = scene.a.owner(x)
    if owner != scene.b.owner(y):
        return scene.differs("rows")
    row_a, row_b = scene.a.rows.get(owner), scene.b.rows.get(owner)
    if row_a is None or row_b is None:
        return scene.differs("rows")
    slot = x.slot == y.slot or (row_a.slot == x.slot and row_b.slot == y.slot)
    length = owner in scene.tainted or x.length - y.length == row_a.length - row_b.length
    return slot and length


def _seq_follows(scene: Scene, a: Any, b: Any, leaf: Leaf) -> bool:
    return _sequence_follows(scene, getattr(a, leaf.field), getattr(b, leaf.field))


def _seqs_follow(scene: Scene, a: Any, b: Any, leaf: Leaf) -> bool:
    left, right = _by_owner(scene.a, getattr(a, leaf.field)), _by_owner(scene.b, getattr(b, leaf.field))
    same_batch = list(left) == list(right)
    common = all(_sequence_follows(scene, left[o], right[o]) for o in left if o in right)
    return common and (same_batch or scene.differs("rows") or scene.a.batch != scene.b.batch)


def _by_owner(state: State, seqs: Any) -> dict[int, SeqId]:
    plain = [part.seq if isinstance(part, Slice) else part for part in seqs]
    return {state.owner(seq): seq for seq in plain}


def _tokens_follow(scene: Scene, a: Any, b: Any, leaf: Leaf) -> bool:
    """Rows that are equally far on both sides have equal tokens, unless their request's tokens differ already."""
    left, right = (_tokens_by_row(s, r, leaf.field) for s, r in ((scene.a, a), (scene.b, b)))
    if left is None or right is None:
        return bool(scene.tainted) or scene.differs("rows")
    if scene.a.batch == scene.b.batch and not scene.differs("rows") and list(left) == list(right):
        return all(left[key] == right[key] or key[0] in scene.tainted for key in left)
    return all(left[key] == right[key] or key[0] in scene.tainted for key in left if key in right)


def _tokens_by_row(state: State, record: Any, field: str) -> dict[tuple[int, int], Any] | None:
    values = getattr(record, field)
    if not isinstance(values, tuple):
        owner = _single_owner(state, record)
        return None if owner is None else {(owner, state.progress_of(owner) or 0): values}
    if hasattr(record, "seqs"):
        owners = [state.owner(seq) for seq in record.seqs]
        keys = [
            (o, seq.length - (state.rows[o].prompt if o in state.rows else 0))
            for o, seq in zip(owners, record.seqs, strict=True)
        ]
    else:
        keys = [(o, state.progress_of(o) or 0) for o in state.batch[getattr(record, "row", 0) :]]
    if hasattr(record, "ks") or hasattr(record, "seq") or len(keys) < len(values):
        return None
    return dict(zip(keys, values, strict=False))


def _single_owner(state: State, record: Any) -> int | None:
    if hasattr(record, "seq"):
        return state.owner(record.seq)
    row = getattr(record, "row", 0)
    return state.batch[row] if row < len(state.batch) else None


def _batch_follows(scene: Scene, a: Any, b: Any, leaf: Leaf) -> bool:
    return scene.differs("rows") or scene.a.batch != scene.b.batch


def _readback_follows(scene: Scene, a: Any, b: Any, leaf: Leaf) -> bool:
    return _batch_follows(scene, a, b, leaf) or not scene.sampled.isdisjoint(scene.a.rows)


def _length_follows(scene: Scene, a: Any, b: Any, leaf: Leaf) -> bool:
    """The request of the line is that much longer already, or stands elsewhere."""
    owners = list(scene.a.rows) if scene.owner is None or "[" in leaf.path else [scene.owner]
    for owner in owners:
        row_a, row_b = scene.a.rows.get(owner), scene.b.rows.get(owner)
        if owner in scene.tainted or (row_a is None) != (row_b is None):
            return True
        if row_a and row_b and (row_a.phase != row_b.phase or leaf.b - leaf.a == row_b.length - row_a.length):
            return True
    return False


def _word_follows(scene: Scene, a: Any, b: Any, leaf: Leaf) -> bool:
    return bool(scene.tainted) or scene.differs("rows")


def _fault_follows(scene: Scene, a: Any, b: Any, leaf: Leaf) -> bool:
    return scene.differs("faults")


def _counter_follows(scene: Scene, a: Any, b: Any, leaf: Leaf) -> bool:
    """Event and ring numbers: as far apart as the last time, or more steps were launched on one side."""
    return scene.offsets.get((a.rule, leaf.field)) == (leaf.a, leaf.b) or scene.differs("faults")


_RULES: dict[str, tuple[str, Rule]] = {
    "Tick.tick": ("ticks renumbered", _ticks_count_on),
    "NumFreeBlocks.result": ("free blocks shifted", _memory_follows),
    "ReclaimPrefixBlocks.n": ("free blocks shifted", _blocks_follow),
    "ReclaimPrefixBlocks.result": ("free blocks shifted", _blocks_follow),
    "ReserveDecodeBlock.result": ("free blocks shifted", _batch_follows),
    "blocks": ("free blocks shifted", _blocks_follow),
    "slot": ("other slot", _slots_follow),
    "slots": ("other slot", _slots_follow),
    "new_slot": ("other slot", _slots_follow),
    "target": ("other slot", _slots_follow),
    "EpBroadcastCmdForSeq.seq": ("other slot", _word_slot_follows),
    "seq": ("slot or length shifted", _seq_follows),
    "prefill": ("slot or length shifted", _word_follows),
    "seqs": ("other batch", _seqs_follow),
    "streams": ("other batch", _seqs_follow),
    "prefills": ("other batch", _seqs_follow),
    "tokens": ("tokens follow", _tokens_follow),
    "inputs": ("tokens follow", _tokens_follow),
    "decode": ("tokens follow", _tokens_follow),
    "result": ("tokens follow", _tokens_follow),
    "token": ("tokens follow", _word_follows),
    "cmd": ("tokens follow", _word_follows),
    "na": ("tokens follow", _word_follows),
    "accepted": ("tokens follow", _word_follows),
    "index": ("tokens follow", _word_follows),
    "rows": ("other batch", _batch_follows),
    "ks": ("other batch", _batch_follows),
    "row": ("other batch", _batch_follows),
    "stash": ("other batch", _batch_follows),
    "bytes": ("other batch", _batch_follows),
    "off": ("other batch", _batch_follows),
    "masks": ("other batch", _batch_follows),
    "fed": ("other batch", _batch_follows),
    "readback": ("other readback", _readback_follows),
    "FxLaunchDecode.n": ("other batch", _batch_follows),
    "FxLaunchDecodeFed.n": ("other batch", _batch_follows),
    "ArgmaxBatch.n": ("other batch", _batch_follows),
    "ArgmaxBatchToFeed.n": ("other batch", _batch_follows),
    "n": ("slot or length shifted", _length_follows),
    "len": ("slot or length shifted", _length_follows),
    "base": ("slot or length shifted", _length_follows),
    "pos": ("slot or length shifted", _length_follows),
    "positions": ("slot or length shifted", _length_follows),
    "start": ("slot or length shifted", _length_follows),
    "budget": ("slot or length shifted", _length_follows),
    "PrefillChunk.len": ("other batch", _batch_follows),
    "last": ("slot or length shifted", _word_follows),
    "event": ("events renumbered", _counter_follows),
    "ring": ("events renumbered", _counter_follows),
    "stream": ("events renumbered", _counter_follows),
    "error": ("faults hit elsewhere", _fault_follows),
}
"""By class and field, else by field: the name of the consequence and its test. A field not named here is a cause."""


def follow(scene: Scene, a: Record, b: Record) -> tuple[str, Leaf | None]:
    """The rule that explains every difference of two lines, or the first difference that none explains."""
    why = ""
    for leaf in leaves(a, b):
        rule = _RULES.get(f"{type(a).__name__}.{leaf.field}") or _RULES.get(leaf.field)
        if rule is None or not rule[1](scene, a, b, leaf):
            return "", leaf
        why = why or rule[0]
    return why, None


def decision_follows(scene: Scene, work: Work, moved: bool, reached: dict[int, int]) -> bool:
    """Whether an act that only one trace has here follows from what differs already.

    ``reached`` is how far each request comes in the other trace: a token's lines may be missing there if the token
    never comes, and ``moved`` if it comes at another place.
    """
    if work.owner in scene.tainted:
        return True
    if work.kind in ("step", "decode", "prefill") and not scene.tainted.keys().isdisjoint(scene.a.rows):
        return True
    if not moved and work.kind == "token" and work.owner is not None and work.progress <= reached.get(work.owner, -1):
        return False
    return any(scene.differs(aspect) for aspect in ASPECTS_OF_ACT[work.kind])


READBACKS = (rec.ArgmaxOnDevice, rec.ArgmaxBatch, rec.CopyLogitsToHost)
"""Calls by which tokens are read back: on the device, or from logits on the host (S3 section 4)."""


def readback_follows(scene: Scene, record: Record) -> bool:
    """Whether a readback that only one trace makes belongs to requests that are sampled in another place."""
    return isinstance(record, READBACKS) and not scene.sampled.isdisjoint(scene.a.rows)


TOKEN_FIELDS = frozenset({"tokens", "inputs", "result", "token", "decode"})
"""Fields that hold token ids: a request in whose line one differs has other tokens from then on."""


def owners_of_tokens(state: State, record: Record, differing: list[Leaf]) -> list[int]:
    """The requests whose tokens these differences touch."""
    touched = [leaf for leaf in differing if leaf.field in TOKEN_FIELDS and not isinstance(record, rec.NumFreeBlocks)]
    owners = []
    for leaf in touched:
        rows = _tokens_by_row(state, record, leaf.field)
        if rows is None or "[" not in leaf.path:
            owners += list(state.batch)
        else:
            position = int(leaf.path.split("[")[1].split("]")[0])
            owners += [owner for owner, _ in list(rows)[position : position + 1]]
    return owners
