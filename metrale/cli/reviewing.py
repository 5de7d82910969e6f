"""Pending traces grouped by cause, and what can be decided about a group.

The reason for an accepted change is kept in CHANGES.md beside the goldens: one section per decision, newest last.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metrale.cli.errors import BadInput
from metrale.cli.files import in_ci, read_input, write_whole
from metrale.cli.goldens import Pair, accept_pending, find_pairs
from metrale.cli.text import plain, quoted
from metrale.trace.align import Comparison, compare, explain
from metrale.trace.report import headline

CHANGES = "CHANGES.md"
_HEAD = """# Accepted changes

Why goldens changed, one section per decision; `metrale review` and `metrale accept --why` add to it.
"""


@dataclass(frozen=True, slots=True)
class Member:
    """One pending trace and its comparison with the golden."""

    pair: Pair
    found: Comparison


@dataclass(frozen=True, slots=True)
class Group:
    """Pending traces that part from their goldens in the same way; ``id`` is the same on every machine."""

    id: str
    headline: str
    members: tuple[Member, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "cause": self.id,
            "headline": self.headline,
            "pending": [
                {
                    "golden": str(member.pair.golden),
                    "pending": str(member.pair.pending),
                    "explanation": str(explain(member.found)),
                    "unexplained": member.found.unexplained,
                }
                for member in self.members
            ],
        }


def group_pending(paths: Sequence[Path]) -> list[Group]:
    """All pending traces below ``paths`` by cause, in the order of their names. Raises BadInput."""
    groups: dict[str, list[Member]] = {}
    titles: dict[str, str] = {}
    for pair in find_pairs(paths):
        if pair.pending.exists():
            found = _compare(pair)
            reason, title = _reason(found)
            titles.setdefault(reason, title)
            groups.setdefault(reason, []).append(Member(pair, found))
    return [
        Group(hashlib.sha256(reason.encode()).hexdigest()[:8], titles[reason], tuple(members))
        for reason, members in groups.items()
    ]


def _compare(pair: Pair) -> Comparison:
    golden = read_input(pair.golden, "a golden trace", regular=True) if pair.golden.exists() else b""
    pending = read_input(pair.pending, "a pending trace", regular=True)
    return compare(golden, pending, (plain(str(pair.golden)), plain(str(pair.pending))))


def _reason(found: Comparison) -> tuple[str, str]:
    """What two goldens have in common that changed for the same reason, and a line that says it."""
    if found.equal:
        return "equal", "the pending trace equals the golden"
    if not found.sides[0].texts:
        return "new", "there is no golden yet"
    if found.bytes_only:
        return "bytes", "the golden holds the same lines in other bytes"
    cause = found.causes[0]
    argument = re.sub(r"\[[0-9]+\]", "[]", cause.argument or "")
    values = ["number" if value is None or value.isdigit() else value for value in cause.values]
    return "\n".join([cause.change.value, cause.call, argument, *values]), headline(cause, placed=False)


def find_group(paths: Sequence[Path], id: str) -> Group:
    """The group with this id, or with the only id that starts so. Raises BadInput."""
    groups = group_pending(paths)
    fitting = [group for group in groups if group.id.startswith(id)]
    if id and len(fitting) == 1:
        return fitting[0]
    known = ", ".join(group.id for group in groups) or "none: nothing is pending"
    raise BadInput(
        f"{id!r}: {'more than one cause starts so' if fitting else 'no such cause'}; pending causes are {known}"
    )


# -- decisions --------------------------------------------------------------------------------------------------------


def refuse_in_ci(what: str) -> None:
    """Raise BadInput if this is a CI run."""
    if in_ci():
        raise BadInput(f"{what}: CI is set, and in CI nothing writes a golden; decide on your machine and commit")


def accept_group(group: Group, why: str) -> None:
    """Every pending trace of the group becomes the golden, and the reason is noted. Raises BadInput."""
    refuse_in_ci("accept")
    reason = " ".join(why.split())
    if not reason:
        raise BadInput("a reason is needed: --why TEXT says why the new behaviour is right")
    for member in group.members:
        if not member.pair.scenario.exists():
            raise BadInput(f"{member.pair.pending}: belongs to no scenario; {member.pair.scenario} is missing")
    for member in group.members:
        accept_pending(member.pair)
    for folder in dict.fromkeys(member.pair.golden.parent for member in group.members):
        _note(folder, group, reason)


def _note(folder: Path, group: Group, why: str) -> None:
    path = folder / CHANGES
    text = path.read_text(encoding="utf-8") if path.exists() else _HEAD
    names = [member.pair.golden.name for member in group.members if member.pair.golden.parent == folder]
    entry = f"\n## {group.headline}\n\n{why}\n\n" + "".join(f"* {name}\n" for name in names)
    write_whole(path, (text + entry).encode())


def reject_group(group: Group) -> None:
    """Every pending trace of the group goes; the goldens stay. Raises BadInput."""
    refuse_in_ci("reject")
    for member in group.members:
        try:
            member.pair.pending.unlink(missing_ok=True)
        except OSError as error:
            raise BadInput(f"{member.pair.pending}: cannot be removed: {error.strerror or error}") from error


def loose_ends(paths: Sequence[Path]) -> list[str]:
    """Goldens without a scenario and scenarios without a golden, one line each; nothing is ever deleted."""
    return [line for pair in find_pairs(paths) if (line := _loose(pair))]


def _loose(pair: Pair) -> str:
    if not pair.scenario.exists():
        return f"{pair.golden}: golden without a scenario"
    if not pair.golden.exists() and not pair.pending.exists():
        return f"{pair.scenario}: scenario without a golden; `metrale accept {quoted(pair.scenario)}` records it"
    return ""


def names(members: Iterable[Member], most: int = 6) -> str:
    """The goldens of some members, the first few by name."""
    stems = [member.pair.name for member in members]
    return ", ".join(stems[:most]) + (f" and {len(stems) - most} more" if len(stems) > most else "")
