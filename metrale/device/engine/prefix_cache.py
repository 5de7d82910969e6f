"""Prefix cache: a tree of whole blocks per adapter, and recurrent snapshots beside it (S6 section 4)."""

from __future__ import annotations

from dataclasses import dataclass, field

from .books import BlockPool
from .state import Saved
from .streams import Mark

CHECKPOINT_BLOCKS = 4
"""A decode checkpoint is due when the number of whole blocks is a new multiple of this."""


@dataclass(slots=True, eq=False)
class Node:
    """One whole block of tokens. ``mark`` is when its K/V is written; ``holders`` counts the sequences that use it: a
    held node is not evicted."""

    chunk: tuple[int, ...]
    parent: Node | None
    block: int
    children: dict[tuple[int, ...], Node] = field(default_factory=dict)
    mark: Mark | None = None
    holders: int = 0
    used: int = 0


@dataclass(slots=True)
class Snapshot:
    """A recurrent state under the tokens it has absorbed; ``mark`` is when it is complete."""

    saved: Saved
    mark: Mark | None
    used: int = 0


@dataclass(slots=True)
class Match:
    """What a lookup gave: held nodes, matched tokens, tokens to skip, the snapshot to start from."""

    nodes: list[Node]
    matched: int
    skip: int
    snapshot: Snapshot | None


class PrefixCache:
    """Block tree and snapshot index over one pool."""

    def __init__(self, pool: BlockPool, block_size: int, snapshots: int, recurrent: bool) -> None:
        self.pool, self.block_size, self.capacity, self.recurrent = pool, block_size, snapshots, recurrent
        self.roots: dict[int, Node] = {}
        self.snapshots: dict[tuple[int, tuple[int, ...]], Snapshot] = {}
        self._clock = 0

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def lookup(self, adapter: int, prompt: list[int]) -> Match:
        """The longest known prefix in whole blocks; its nodes are held and their blocks shared. The last prompt token
        is never skipped. A hybrid starts from its deepest snapshot or from nothing."""
        nodes: list[Node] = []
        node = self.roots.get(adapter)
        size = self.block_size
        while node is not None:
            at = len(nodes) * size
            node = node.children.get(tuple(prompt[at : at + size])) if at + size <= len(prompt) else None
            if node is not None:
                nodes.append(node)
        for held in nodes:
            held.holders += 1
            held.used = self._tick()
            self.pool.share(held.block)
        matched = len(nodes) * size
        if not self.recurrent:
            return Match(nodes, matched, min(matched, len(prompt) - 1), None)
        snapshot = self._deepest(adapter, prompt, min(matched, len(prompt) - 1))
        return Match(nodes, matched, snapshot.saved.position if snapshot else 0, snapshot)

    def _deepest(self, adapter: int, prompt: list[int], limit: int) -> Snapshot | None:
        found = [
            entry
            for (owner, tokens), entry in self.snapshots.items()
            if owner == adapter and len(tokens) <= limit and tuple(prompt[: len(tokens)]) == tokens
        ]
        best = max(found, key=lambda entry: entry.saved.position, default=None)
        if best is not None:
            best.used = self._tick()
        return best

    def let_go(self, match: Match) -> None:
        """The sequence ends: its nodes may be evicted again (its blocks it releases itself)."""
        for node in match.nodes:
            node.holders -= 1
        match.nodes = []

    def insert(self, adapter: int, tokens: list[int], blocks: list[int], mark: Mark) -> None:
        """Whole blocks of ``tokens`` enter the tree; a chunk that has a node keeps that node's block."""
        size = self.block_size
        node = self.roots.setdefault(adapter, Node((), None, -1))
        for index in range(min(len(tokens) // size, len(blocks))):
            chunk = tuple(tokens[index * size : (index + 1) * size])
            child = node.children.get(chunk)
            if child is None:
                child = Node(chunk, node, blocks[index], mark=mark)
                node.children[chunk] = child
                self.pool.share(child.block)
            child.used = self._tick()
            node = child

    def remember(self, adapter: int, tokens: list[int], saved: Saved, mark: Mark | None) -> None:
        """Keep a snapshot; the least recently used one makes room."""
        key = (adapter, tuple(tokens))
        self.snapshots.pop(key, None)
        if self.capacity < 1:
            return
        while len(self.snapshots) >= self.capacity:
            oldest = min(self.snapshots, key=lambda k: self.snapshots[k].used)
            del self.snapshots[oldest]
        self.snapshots[key] = Snapshot(saved, mark, self._tick())

    def evict_one(self) -> bool:
        """Drop least recently used leaves nobody holds until one block is really free. False: nothing left."""
        while True:
            leaf = min(self._leaves(), key=lambda node: node.used, default=None)
            if leaf is None:
                return False
            assert leaf.parent is not None
            del leaf.parent.children[leaf.chunk]
            if self.pool.release(leaf.block):
                return True

    def reclaim(self, count: int) -> int:
        """Free up to ``count`` blocks; how many became free."""
        freed = 0
        while freed < count and self.evict_one():
            freed += 1
        return freed

    def clear(self) -> None:
        """Forget everything."""
        self.snapshots.clear()
        for leaf in self._all():
            self.pool.release(leaf.block)
        self.roots.clear()

    def _leaves(self) -> list[Node]:
        return [node for node in self._all() if not node.children and not node.holders]

    def _all(self) -> list[Node]:
        found: list[Node] = []
        stack = list(self.roots.values())
        while stack:
            node = stack.pop()
            if node.parent is not None:
                found.append(node)
            stack.extend(node.children.values())
        return found
