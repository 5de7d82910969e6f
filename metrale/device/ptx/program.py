"""Instructions made ready to run: operands resolved, types matched, blocks of straight code, live registers.

A step is ``(function, target, sources, instruction)``. With a target it is arithmetic on the values of the sources;
without, the function is called with the lanes and does the rest itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .faults import PtxError
from .memory import Access, OwnMemory
from .parser import Address, Instruction, Kernel, Number, Operand, Pair, Register, Special, Symbol, Vector
from .semantics import DTYPES, TABLE

Array = np.ndarray[Any, Any]
SPACES = ("global", "shared", "local")
END = -1
"""The block after the last."""
WIDEST_UNIT = 8
"""Bytes of the widest element."""


@dataclass(slots=True)
class Move:
    """A load or store: where, how wide, which registers (already of the element type's size), under which guard."""

    space: str
    access: Access
    base: str
    offset: int
    values: list[str]
    casts: list[Callable[[Array], Array] | None]
    instruction: Instruction


@dataclass(slots=True)
class Barrier:
    """``bar.sync 0``, or with a ``mask`` ``bar.warp.sync``."""

    mask: str | None
    instruction: Instruction


@dataclass(slots=True)
class Shuffle:
    """A ``shfl.sync``."""

    mode: str
    target: str
    predicate: str | None
    value: str
    lane: str
    clamp: str
    mask: str
    cast: Callable[[Array], Array] | None
    back: Callable[[Array], Array] | None
    instruction: Instruction


Step = tuple[Callable[..., Array], str, list[str], Instruction]


@dataclass(slots=True)
class Block:
    """Straight code. ``meeting``: the barrier or shuffle that it begins with. ``goal`` and ``other`` are blocks: with a
    ``predicate`` lanes that have it (or not, if ``negated``) go to ``goal``, the others to ``other``."""

    number: int
    steps: list[Step | Move] = field(default_factory=list)
    meeting: Barrier | Shuffle | None = None
    predicate: str | None = None
    negated: bool = False
    goal: int = END
    other: int = END
    size: int = 0
    defines: set[str] = field(default_factory=set)
    uses: set[str] = field(default_factory=set)
    live: set[str] = field(default_factory=set)
    last: Instruction | None = None


@dataclass(slots=True)
class Program:
    """A kernel ready to run. ``constants`` and parameters (``@name``) are registers that nobody writes; ``unit`` is the
    finest access to a memory space; ``stored`` the parameters through which global memory may be written."""

    kernel: Kernel
    blocks: list[Block]
    constants: dict[str, Array]
    unit: dict[str, int]
    stored: set[int]


def prepare(kernel: Kernel) -> Program:
    """Raises PtxError for an opcode without a meaning here, by its name and line."""
    return _Preparation(kernel).program()


def caster(source: np.dtype[Any], goal: np.dtype[Any]) -> Callable[[Array], Array] | None:
    """From a register's type to an operand's or back; bits are kept, and wider ones are dropped or filled by sign."""
    if source == goal:
        return None
    if source.itemsize == goal.itemsize:
        return lambda a: a.view(goal)
    bits = np.dtype(f"{'i' if source.kind == 'i' else 'u'}{goal.itemsize}")
    if source.kind == "f" or goal.kind == "b" or source.kind == "b":
        raise PtxError(f"no way from {source} to {goal}")
    return lambda a: a.astype(bits).view(goal)


class _Preparation:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.constants: dict[str, Array] = {}
        self.unit = dict.fromkeys(SPACES, WIDEST_UNIT)
        self.symbols = {name: number for number, name in enumerate(kernel.shared)}
        self.symbols |= {name: number for number, name in enumerate(kernel.local)}
        self.kinds = dict(kernel.parameters)
        self.origins: dict[str, set[int]] = {}
        self.blocks: list[Block] = []

    def program(self) -> Program:
        self._cut()
        for block in self.blocks:
            _flow(block)
        _liveness(self.blocks)
        return Program(self.kernel, self.blocks, self.constants, self.unit, self._stored())

    # -- blocks

    def _cut(self) -> None:
        code = self.kernel.instructions
        starts = {0, *self.kernel.labels.values()}
        for index, one in enumerate(code):
            if _is_end(one):
                starts.add(index + 1)
            elif _is_meeting(one):
                starts.add(index)
        order = sorted(start for start in starts if start < len(code))
        number = {start: at for at, start in enumerate(order)}
        self.at_label = {name: number.get(index, END) for name, index in self.kernel.labels.items()}
        for at, start in enumerate(order):
            end = order[at + 1] if at + 1 < len(order) else len(code)
            following = at + 1 if at + 1 < len(order) else END
            block = Block(at, goal=following, size=end - start)
            self.blocks.append(block)
            for one in code[start:end]:
                try:
                    self._add(block, one, following)
                except PtxError as error:
                    raise PtxError(f"{self.kernel.name}, PTX line {one.line} `{one.text}`: {error}") from None

    def _add(self, block: Block, one: Instruction, following: int) -> None:
        block.last = one
        name = one.opcode
        if name in ("bra", "bra.uni", "ret", "exit"):
            goal = END
            if name.startswith("bra"):
                label = one.operands[0]
                if not isinstance(label, Symbol) or label.name not in self.at_label:
                    raise PtxError("branches to no label of the kernel")
                goal = self.at_label[label.name]
            block.goal = goal
            if one.guard is not None:
                block.predicate, block.negated, block.other = one.guard.name, one.negated, following
            return
        if _is_meeting(one):
            block.meeting = self._shuffle(one) if name.startswith("shfl") else self._barrier(one)
            return
        if name.startswith(("ld.", "st.")) and not name.startswith("ld.param"):
            block.steps.append(self._move(one))
        else:
            self._arithmetic(block, one)

    def _barrier(self, one: Instruction) -> Barrier:
        if one.guard is not None:
            raise PtxError("a barrier under a guard is not supported")
        if one.opcode in ("bar.warp.sync", "barrier.warp.sync"):
            return Barrier(self._key(one.operands[0], "b32")[0], one)
        if one.opcode not in ("bar.sync", "barrier.sync", "barrier.sync.aligned"):
            raise PtxError(f"opcode {one.opcode} is unknown")
        if one.operands != (Number(0),):
            raise PtxError("barriers other than 0, and barriers of some threads, are not supported")
        return Barrier(None, one)

    # -- operands

    def _dtype(self, register: str) -> np.dtype[Any]:
        kind = self.kernel.type_of(register)
        return DTYPES[kind]

    def _constant(self, value: Array) -> str:
        key = f"#{value.dtype}:{value.tobytes().hex()}"
        self.constants.setdefault(key, value)
        return key

    def _key(self, operand: Operand, kind: str) -> tuple[str, np.dtype[Any]]:
        """Where the machine finds an operand that is wanted as ``kind``, and its type there."""
        if isinstance(operand, Register):
            return operand.name, self._dtype(operand.name)
        if isinstance(operand, Special):
            return f"%{operand.name}", DTYPES["b32"]
        if isinstance(operand, Number):
            return self._constant(_number(operand, DTYPES[kind])), DTYPES[kind]
        if isinstance(operand, Symbol) and operand.name in self.symbols:
            address = OwnMemory.address_of(self.symbols[operand.name])
            return self._constant(np.array([address], DTYPES[kind])), DTYPES[kind]
        raise PtxError(f"the operand {operand} is not supported here")

    # -- arithmetic

    def _arithmetic(self, block: Block, one: Instruction) -> None:
        name, operands = one.opcode, one.operands
        if name.startswith("ld.param."):
            return self._parameter(block, one)
        if name.startswith(("cvta.to.global", "cvta.global")):
            name = "mov.b64"
        if name.startswith("mov.b") and any(isinstance(part, Vector) for part in operands):
            return self._packed(block, one)
        operation = TABLE.get(name)
        if operation is None:
            raise PtxError(f"opcode {one.opcode} is unknown")
        if len(operands) != 1 + len(operation.takes) or not isinstance(operands[0], Register):
            raise PtxError(f"{one.opcode} wants one register and {len(operation.takes)} operands")
        pairs = zip(operands[1:], operation.takes, strict=True)
        keys = [self._key(operand, kind) for operand, kind in pairs]
        casts = [caster(have, DTYPES[kind]) for (_, have), kind in zip(keys, operation.takes, strict=True)]
        back = caster(DTYPES[operation.gives], self._dtype(operands[0].name))
        return self._step(block, one, _adapted(operation.function, casts, back), operands[0].name, [k for k, _ in keys])

    def _step(
        self, block: Block, one: Instruction, function: Callable[..., Array], target: str, sources: list[str]
    ) -> None:
        if one.guard is not None:
            function, sources = _guarded(function, one.negated), [*sources, one.guard.name, target]
        block.steps.append((function, target, sources, one))

    def _parameter(self, block: Block, one: Instruction) -> None:
        target, address = one.operands
        kind = one.opcode.rpartition(".")[2]
        if not isinstance(target, Register) or not isinstance(address, Address) or address.offset:
            raise PtxError("parameters are loaded whole, into one register")
        name = address.base.name if isinstance(address.base, Symbol) else ""
        if name not in self.kinds or DTYPES[self.kinds[name]].itemsize != DTYPES[kind].itemsize:
            raise PtxError(f"there is no parameter {name} of type {kind}")
        cast = caster(DTYPES[self.kinds[name]], self._dtype(target.name))
        self._step(block, one, _adapted(np.copy, [cast], None), target.name, [f"@{name}"])

    def _packed(self, block: Block, one: Instruction) -> None:
        """``mov`` between one register and two of half its width."""
        target, source = one.operands
        if isinstance(target, Register) and isinstance(source, Vector) and len(source.parts) == 2:
            word = self._dtype(target.name)
            half = np.dtype(f"u{word.itemsize // 2}")
            keys = [self._key(part, f"b{half.itemsize * 8}") for part in source.parts]
            shift = word.type(half.itemsize * 8)
            casts = [caster(have, half) for _, have in keys]
            join = lambda low, high: low.astype(word) | (high.astype(word) << shift)  # noqa: E731
            return self._step(block, one, _adapted(join, casts, None), target.name, [key for key, _ in keys])
        if isinstance(source, Register) and isinstance(target, Vector) and len(target.parts) == 2:
            word = self._dtype(source.name)
            half = np.dtype(f"u{word.itemsize // 2}")
            for number, part in enumerate(target.parts):
                if not isinstance(part, Register):
                    raise PtxError("unpacks into registers alone")
                shift = word.type(number * half.itemsize * 8)
                take = lambda a, shift=shift: (a >> shift).astype(half)  # noqa: E731
                back = caster(half, self._dtype(part.name))
                self._step(block, one, _adapted(take, [None], back), part.name, [source.name])
            return None
        raise PtxError("packs and unpacks two halves alone")

    # -- memory, shuffles

    def _move(self, one: Instruction) -> Move:
        words = one.opcode.split(".")
        writes, space, kind = words[0] == "st", words[1], words[-1]
        between = [word for word in words[2:-1] if word not in ("nc", "relaxed", "cta", "weak")]
        count = {"v2": 2, "v4": 4}.get(between[0], 0) if between else 1
        if space not in SPACES or kind not in DTYPES or not count or len(between) > 1:
            raise PtxError(f"opcode {one.opcode} is unknown")
        address, value = one.operands if writes else reversed(one.operands)
        parts = value.parts if isinstance(value, Vector) else (value,)
        if not isinstance(address, Address) or len(parts) != count or address.base is None:
            raise PtxError(f"{one.opcode} wants an address and {count} values")
        access = Access(DTYPES[kind], count, writes)
        self.unit[space] = min(self.unit[space], access.dtype.itemsize)
        base, width = self._key(address.base, "b64")
        if width.itemsize not in (4, 8):
            raise PtxError("an address has 32 or 64 bits")
        values, casts = [], []
        for part in parts:
            key, have = self._key(part, kind)
            if not writes and not isinstance(part, Register):
                raise PtxError("loads into registers alone")
            values.append(key)
            casts.append(caster(have, access.dtype) if writes else caster(access.dtype, have))
        return Move(space, access, base, address.offset, values, casts, one)

    def _shuffle(self, one: Instruction) -> Shuffle:
        mode = one.opcode.removeprefix("shfl.sync.").removesuffix(".b32")
        if mode not in ("up", "down", "bfly", "idx") or one.opcode != f"shfl.sync.{mode}.b32":
            raise PtxError(f"opcode {one.opcode} is unknown")
        if one.guard is not None:
            raise PtxError("a shuffle under a guard is not supported")
        target = one.operands[0]
        predicate = target.predicate.name if isinstance(target, Pair) else None
        target = target.value if isinstance(target, Pair) else target
        if not isinstance(target, Register):
            raise PtxError("shuffles into a register alone")
        value, have = self._key(one.operands[1], "b32")
        lane, clamp, mask = (self._key(operand, "b32")[0] for operand in one.operands[2:])
        word = DTYPES["b32"]
        back = caster(word, self._dtype(target.name))
        return Shuffle(mode, target.name, predicate, value, lane, clamp, mask, caster(have, word), back, one)

    # -- where addresses come from

    def _stored(self) -> set[int]:
        """Parameters from which the address of some store to global memory is computed, at most."""
        number = {f"@{name}": at for at, (name, _) in enumerate(self.kernel.parameters)}
        origins: dict[str, set[int]] = {}
        edges = [
            (step[1], source)
            for block in self.blocks
            for step in block.steps
            if not isinstance(step, Move)
            for source in step[2]
        ]
        edges += [
            (block.meeting.target, block.meeting.value) for block in self.blocks if isinstance(block.meeting, Shuffle)
        ]
        changed = True
        while changed:
            changed = False
            for target, source in edges:
                new = origins.get(source, set()) | ({number[source]} if source in number else set())
                old = origins.setdefault(target, set())
                if not new <= old:
                    old |= new
                    changed = True
        found: set[int] = set()
        for block in self.blocks:
            for step in block.steps:
                if isinstance(step, Move) and step.access.writes and step.space == "global":
                    found |= origins.get(step.base, set())
        return found


def _is_end(one: Instruction) -> bool:
    return one.opcode in ("bra", "bra.uni", "ret", "exit")


def _is_meeting(one: Instruction) -> bool:
    return one.opcode.startswith(("bar.", "barrier.", "shfl."))


def _number(operand: Number, dtype: np.dtype[Any]) -> Array:
    if operand.kind != "int":
        word = np.dtype(f"u{4 if operand.kind == 'f32' else 8}")
        bits = np.array([operand.value], word)
        return bits.view(dtype) if word.itemsize == dtype.itemsize else bits.view(f"f{word.itemsize}").astype(dtype)
    if dtype.kind == "f":
        return np.array([operand.value], dtype)
    if dtype.kind == "b":
        return np.array([bool(operand.value)])
    mask = (1 << dtype.itemsize * 8) - 1
    return np.array([operand.value & mask], f"u{dtype.itemsize}").view(dtype)


def _adapted(
    function: Callable[..., Array], casts: list[Callable[[Array], Array] | None], back: Callable[[Array], Array] | None
) -> Callable[..., Array]:
    """The function on registers as they are."""
    if any(casts):

        def cast(*values: Array) -> Array:
            result = function(*[one(value) if one else value for one, value in zip(casts, values, strict=True)])
            return back(result) if back else result

        return cast
    if back is None:
        return function
    return lambda *values: back(function(*values))


def _guarded(function: Callable[..., Array], negated: bool) -> Callable[..., Array]:
    """The new value where the guard holds, else the old one."""

    def guarded(*values: Array) -> Array:
        *sources, guard, old = values
        return np.where(~guard if negated else guard, function(*sources), old)

    return guarded


# -- live registers


def _flow(block: Block) -> None:
    """Registers that a block needs, and those that it sets."""

    def use(*names: str | None) -> None:
        block.uses.update(name for name in names if name is not None and name not in block.defines)

    if isinstance(block.meeting, Shuffle):
        one = block.meeting
        use(one.value, one.lane, one.clamp, one.mask)
        block.defines.update(name for name in (one.target, one.predicate) if name is not None)
    elif block.meeting is not None:
        use(block.meeting.mask)
    for step in block.steps:
        if isinstance(step, Move):
            guard = step.instruction.guard
            use(step.base, guard.name if guard else None)
            if step.access.writes or guard:
                use(*step.values)
            if not step.access.writes:
                block.defines.update(step.values)
        else:
            use(*step[2])
            block.defines.add(step[1])
    use(block.predicate)


def _liveness(blocks: list[Block]) -> None:
    """Registers that are needed at the beginning of each block or after it."""
    changed = True
    while changed:
        changed = False
        for block in reversed(blocks):
            after: set[str] = set()
            for goal in (block.goal, block.other):
                if goal != END:
                    after |= blocks[goal].live
            live = block.uses | (after - block.defines)
            if live != block.live:
                block.live = live
                changed = True
