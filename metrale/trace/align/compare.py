"""Comparing two traces: match the lines, then walk both and tell causes from consequences."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ..records import Stage
from .judge import leaves
from .matching import Matching, match_sides
from .model import Both, Change, ClientView, Comparison, Divergence
from .naming import call_of, change_in, spelled
from .side import Reading, Side, byte_marks, load_side
from .state import block_size_of
from .walk import Walk


def compare(a: bytes, b: bytes, names: Both[str] = ("a", "b")) -> Comparison:
    """Align two trace files and explain how they differ. Any bytes will do; what is no trace line is plain text.

    ``compare(b, a)`` is the mirror image of ``compare(a, b)``. Time is linear in practice; beyond
    :data:`.matching.MAX_DETAIL` lines without an equal in order, lines are only counted.
    """
    if a > b:
        return _compare(b, a, (names[1], names[0])).mirrored()
    return _compare(a, b, names)


def _compare(a: bytes, b: bytes, names: Both[str]) -> Comparison:
    reading = Reading()
    side_a, side_b = load_side(names[0], a, reading), load_side(names[1], b, reading)
    found = Comparison((side_a, side_b), bytes_equal=a == b)
    found.clients = list(_clients(side_a, side_b))
    if side_a.texts == side_b.texts:
        found.runs = [(0, 0, len(side_a.texts))]
        if not found.bytes_equal:
            at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
            found.marks = byte_marks(side_a, side_b) or (f"the first byte that differs is {at}",)
            found.divergence = _byte_divergence(a.count(b"\n", 0, at) + 1, found.marks[0])
        return found
    found.marks = byte_marks(side_a, side_b)
    sizes = (_block_size(side_a), _block_size(side_b))
    matching = match_sides(side_a, side_b, sizes)
    Walk(found, matching, sizes).run()
    found.divergence = _first_divergence(found, matching)
    return found


def _block_size(side: Side) -> int:
    releases = (text for text in side.texts if text.startswith("free_sequence("))
    return block_size_of(side.reading[text] for text in releases)


def _byte_divergence(line: int, mark: str) -> Divergence:
    return Divergence(
        lines=(line, line),
        tick=None,
        calls=(None, None),
        argument="bytes",
        values=(mark, mark),
        texts=(None, None),
        change=Change.BYTES,
    )


def _clients(a: Side, b: Side) -> Iterator[ClientView]:
    """What each client saw, in the order of the out lines; equal ids are told apart by occurrence."""
    left, right = (_outs(side) for side in (a, b))
    for id, occurrence in [*left, *(key for key in right if key not in left)]:
        key = (id, occurrence)
        yield ClientView(id, (left.get(key), right.get(key)), occurrence)


def _outs(side: Side) -> dict[tuple[int, int], str]:
    seen: dict[tuple[int, int], str] = {}
    count: defaultdict[int, int] = defaultdict(int)
    for text in (text for text in side.texts if text.startswith("out s")):
        head, colon, rest = text.partition(":")
        if colon and head[5:].isdecimal():
            id = int(head[5:])
            count[id] += 1
            seen[id, count[id]] = rest.strip()
    return seen


def _first_divergence(found: Comparison, matching: Matching) -> Divergence:
    at, sides = matching.prefix, found.sides
    texts = tuple(side.texts[at] if at < len(side.texts) else None for side in sides)
    a, b = (side.record(at) if text is not None else None for side, text in zip(sides, texts, strict=True))
    works = matching.works[0].get(at), matching.works[1].get(at)
    leaf = leaves(a, b)[0] if a is not None and type(a) is type(b) and b is not None else None
    in_calls = any(record is None or record.stage is Stage.CALLS for record in (a, b))
    before = found.before[0]
    return Divergence(
        lines=(sides[0].number(at), sides[1].number(at)),
        tick=before.tick if before is not None and in_calls else None,
        calls=(call_of(a) if texts[0] is not None else None, call_of(b) if texts[1] is not None else None),
        argument=leaf.path if leaf else None,
        values=(spelled(a, leaf, leaf.a), spelled(b, leaf, leaf.b)) if leaf else (None, None),
        texts=(texts[0], texts[1]),
        change=change_in([leaf]) if leaf else _fate(found, at),
        acts=(works[0].kind if works[0] else None, works[1].kind if works[1] else None),
        owners=(works[0].owner if works[0] else None, works[1].owner if works[1] else None),
    )


def _fate(found: Comparison, at: int) -> Change:
    """What became of the first differing lines, which are two different calls."""
    here = found.places[0].get(at), found.places[1].get(at)
    if here[0] and here[1] and here[0].partner < 0 and here[1].partner < 0:
        return Change.REPLACED
    place = here[0] or here[1]
    return place.change if place else Change.MOVED
