"""Runs a program on all threads of a grid at once.

A register is a numpy array of one element a thread, or of one element that every thread has. Threads that stand at the
same instruction run together; of several such groups the one that is least far in the text goes next, so groups meet
again where the code does. A group's registers are gathered when it first needs them, and put back when it stops.

Barriers wait for every thread of the block, shuffles for every thread that their mask names. Each fault is raised at
once, as a :class:`KernelFault`. Blocks run in portions of the grid, one after the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import meetings
from .accesses import Accesses, Regions
from .faults import KernelFault, LaneError
from .memory import Argument, GlobalMemory
from .parser import Instruction
from .profile import Profile
from .program import END, Block, Move, Program
from .threads import Geometry, Lanes, Threads

Array = np.ndarray[Any, Any]
PORTION = 1 << 14
"""Threads of a portion, more or less."""
MOST_SHARED = 48 * 1024
"""Bytes of shared memory that a block may declare."""


class Launch:
    """One kernel with its arguments: ``arguments`` by the parameter that is their address, ``parameters`` the others by
    name. ``races`` turns the search for races on, ``profile`` takes counts.

    Raises KernelFault for what a GPU does not start."""

    def __init__(
        self,
        name: str,
        program: Program,
        geometry: Geometry,
        parameters: dict[str, Array],
        arguments: dict[int, Argument],
        races: bool = True,
        profile: Profile | None = None,
    ) -> None:
        refusal = geometry.refusal() or _too_much_shared(program)
        if refusal is not None:
            raise KernelFault(f"{name}: {refusal}")
        self.name, self.program, self.geometry, self.profile = name, program, geometry, profile
        self.memory = GlobalMemory(list(arguments.values()))
        names = [name for name, _ in program.kernel.parameters]
        values = parameters | {names[at]: np.array([one.base], np.uint64) for at, one in arguments.items()}
        self.fixed = program.constants | {f"@{name}": value for name, value in values.items()}
        self.regions = Regions(arguments, program, geometry.threads) if races else None

    def run(self) -> None:
        """Raises KernelFault."""
        blocks = self.geometry.blocks
        portion = max(1, PORTION // self.geometry.threads)
        with np.errstate(all="ignore"):
            for first in range(0, blocks, portion):
                _Portion(self, first, min(portion, blocks - first)).run()


class _Portion:
    """Some blocks of the grid, from start to end."""

    def __init__(self, launch: Launch, first: int, blocks: int) -> None:
        self.launch, self.blocks = launch, launch.program.blocks
        self.threads = Threads(launch.geometry, first, blocks, launch.fixed)
        program = launch.program
        self.accesses = Accesses(
            self.threads, program.kernel, program.unit, launch.memory, launch.regions, launch.profile
        )
        self.pending: dict[int, list[Array]] = {0: [self.threads.everyone]}
        self.waiting: dict[int, Array] = {}

    def run(self) -> None:
        while self.pending:
            number = min(self.pending)
            self._follow(Lanes(self.threads, _joined(self.pending.pop(number))), number)
        if self.waiting:
            lanes, meeting, error = meetings.stuck(self.threads, self.launch.program, self.waiting)
            raise self._fault(lanes, meeting.instruction, error)

    def _follow(self, lanes: Lanes, number: int) -> None:
        """Run a group until it parts, ends, waits, or another is behind it."""
        while number != END:
            block = self.blocks[number]
            if block.meeting is not None:
                met = self._meet(lanes, block)
                if met is None:
                    return
                lanes = met
            self._steps(lanes, block)
            goals = self._goals(lanes, block)
            number = goals[0][0]
            if len(goals) > 1 or (self.pending and number >= min(self.pending)):
                lanes.park(set().union(*(self.blocks[goal].live for goal, _ in goals if goal != END)))
                for goal, some in goals:
                    if goal != END:
                        self.pending.setdefault(goal, []).append(lanes.index[some])
                return

    def _goals(self, lanes: Lanes, block: Block) -> list[tuple[int, Any]]:
        """Blocks to go to, and which lanes go there."""
        everyone = slice(None)
        if block.predicate is None:
            return [(block.goal, everyone)]
        try:
            taken = lanes.registers[block.predicate]
        except LaneError as error:
            raise self._fault(lanes, block.last, error) from None
        taken = ~taken if block.negated else taken
        if taken.all():
            return [(block.goal, everyone)]
        if not taken.any():
            return [(block.other, everyone)]
        return [(block.goal, taken), (block.other, ~taken)]

    def _steps(self, lanes: Lanes, block: Block) -> None:
        registers = lanes.registers
        step: Any = None
        try:
            for step in block.steps:
                if type(step) is Move:
                    self.accesses.move(lanes, step)
                else:
                    function, target, sources, _ = step
                    registers[target] = function(*[registers[name] for name in sources])
        except LaneError as error:
            raise self._fault(lanes, step.instruction if type(step) is Move else step[3], error) from None
        lanes.defined |= block.defines
        if self.launch.profile is not None:
            self.launch.profile.block(block, lanes.count, lanes.warps)

    def _meet(self, lanes: Lanes, block: Block) -> Lanes | None:
        """The lanes that go on from a meeting, or None when all of them wait."""
        meeting, number = block.meeting, block.number
        assert meeting is not None
        try:
            full = lanes.whole or (not meetings.of_a_block(meeting) and lanes.full_warps())
            if number in self.waiting or not full:
                lanes.park(block.live)
                if number in self.waiting:
                    lanes = Lanes(self.threads, _joined([self.waiting.pop(number), lanes.index]))
                ready = meetings.ready(lanes, meeting)
                if not ready.all():
                    self.waiting[number] = lanes.index[~ready]
                    if not ready.any():
                        return None
                    lanes = Lanes(self.threads, lanes.index[ready])
            meetings.meet(lanes, meeting)
        except LaneError as error:
            raise self._fault(lanes, meeting.instruction, error) from None
        return lanes

    def _fault(self, lanes: Lanes, one: Instruction | None, error: LaneError) -> KernelFault:
        threads, geometry = self.threads, self.launch.geometry
        bad = np.broadcast_to(np.asarray(error.lanes), lanes.count)
        identity = int(threads.identity[lanes.index[bad.argmax()]]) - 1
        block, thread = geometry.block_at(identity // geometry.threads), geometry.thread_name(identity)
        where = f"PTX line {one.line} `{one.text}`" if one else "its end"
        return KernelFault(f"{self.launch.name}: block {block}, thread {thread}, {where}: {error}")


def _too_much_shared(program: Program) -> str | None:
    size = sum(one.size for one in program.kernel.shared.values())
    return f"shared arrays of {size} bytes; a block may declare {MOST_SHARED}" if size > MOST_SHARED else None


def _joined(groups: list[Array]) -> Array:
    return groups[0] if len(groups) == 1 else np.sort(np.concatenate(groups))
