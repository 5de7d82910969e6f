"""PTX text to instructions. What NVVM writes is read: one instruction a line, one ``.entry``, no functions.

The syntax is that of NVIDIA's PTX ISA (https://docs.nvidia.com/cuda/parallel-thread-execution/).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from .faults import PtxError


@dataclass(frozen=True, slots=True)
class Register:
    """A register such as ``%rd12``."""

    name: str


@dataclass(frozen=True, slots=True)
class Special:
    """A read-only register such as ``%tid.x``."""

    name: str


@dataclass(frozen=True, slots=True)
class Number:
    """An integer, or the bits of a float: ``kind`` is ``int``, ``f32`` or ``f64``."""

    value: int
    kind: str = "int"


@dataclass(frozen=True, slots=True)
class Symbol:
    """The address of a variable, or a label to branch to."""

    name: str


@dataclass(frozen=True, slots=True)
class Address:
    """``[base + offset]`` in bytes."""

    base: Register | Symbol | None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Vector:
    """``{a, b, ..}``."""

    parts: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """``value|predicate``, the results of a shuffle."""

    value: Register
    predicate: Register


Operand = Register | Special | Number | Symbol | Address | Vector | Pair


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: line of the text (from 1), opcode with its modifiers, operands, and its guard if it has one."""

    line: int
    text: str
    opcode: str
    operands: tuple[Operand, ...]
    guard: Register | None = None
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Variable:
    """An array in shared or local memory: its bytes and their alignment."""

    name: str
    size: int
    align: int


@dataclass(slots=True)
class Kernel:
    """One ``.entry``: parameters (name, type), register types by prefix, variables, instructions, labels to indices."""

    name: str
    parameters: list[tuple[str, str]]
    registers: dict[str, str] = field(default_factory=dict)
    shared: dict[str, Variable] = field(default_factory=dict)
    local: dict[str, Variable] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)

    def type_of(self, register: str) -> str:
        """The declared type: ``pred``, ``b32``, ``f32``, .. Raises PtxError."""
        prefix = register.rstrip("0123456789")
        found = self.registers.get(register) or self.registers.get(prefix)
        if found is None:
            raise PtxError(f"register {register} is not declared")
        return found


_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\(")
_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+([\w$]+)(\[\d+\])?")
_VARIABLE = re.compile(
    r"(?:\.(?:visible|extern|common|weak)\s+)*\.(shared|local|global|const)\s+"
    r"(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(?:\[(\d*)\])?(\s*=.*)?$"
)
_REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+(.+)$")
_LABEL = re.compile(r"([\w$]+):(?!:)")
_INSTRUCTION = re.compile(r"(?:@(!?)(%[\w.]+)\s+)?([a-z][\w.:]*)(?:\s+(.*))?$", re.S)
_INTEGER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|\d+)U?$")
_BYTES = re.compile(r"[a-z]+(\d+)$")
_IGNORED = (".pragma", ".loc", ".file", ".section", ".maxntid", ".minnctapersm", ".maxnreg", ".reqntid")


def size_of(kind: str) -> int:
    """Bytes of a type such as ``u64``."""
    found = _BYTES.match(kind)
    if found is None:
        raise PtxError(f"type .{kind} has no size")
    return int(found.group(1)) // 8


def parse(text: str) -> Kernel:
    """The only kernel of a module. Raises PtxError, which names the line."""
    bare = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)
    bare = re.sub(r"//[^\n]*", "", bare)
    entries = list(_ENTRY.finditer(bare))
    if len(entries) != 1:
        raise PtxError(f"PTX with {len(entries)} kernels; one is wanted")
    entry = entries[0]
    close = bare.index(")", entry.end())
    parameters = []
    for piece in bare[entry.end() : close].split(","):
        found = _PARAMETER.search(piece)
        if found is None or found.group(3):
            raise PtxError(f"line {_line(bare, entry.end())}: parameter {piece.strip()!r} is not a number")
        parameters.append((found.group(2), found.group(1)))
    kernel = Kernel(entry.group(1), parameters)
    begin = bare.index("{", close)
    for line, statement in _statements(bare[: entry.start()], 1):
        if ".shared" in statement:
            _declare(kernel, line, statement)
    end = bare.rindex("}")
    for line, statement in _statements(bare[begin + 1 : end], _line(bare, begin)):
        _body(kernel, line, statement)
    return kernel


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _statements(text: str, first: int) -> Iterator[tuple[int, str]]:
    """Statements without their semicolon, labels with their colon, each with its line."""
    for number, line in enumerate(text.split("\n"), first):
        rest = line.strip()
        while found := _LABEL.match(rest):
            yield number, found.group()
            rest = rest[found.end() :].strip()
        if rest in ("{", "}"):
            continue
        for piece in rest.split(";"):
            if piece.strip():
                yield number, piece.strip()


def _body(kernel: Kernel, line: int, statement: str) -> None:
    if statement.split()[0] in _IGNORED:
        return
    if label := _LABEL.fullmatch(statement):
        kernel.labels[label.group(1)] = len(kernel.instructions)
        return
    if found := _REGISTERS.match(statement):
        for name in found.group(2).split(","):
            kernel.registers[re.sub(r"<\d+>$", "", name.strip())] = found.group(1)
        return
    if statement.startswith("."):
        _declare(kernel, line, statement)
        return
    kernel.instructions.append(instruction(statement, line))


def _declare(kernel: Kernel, line: int, statement: str) -> None:
    found = _VARIABLE.match(statement)
    if found is None or found.group(6):
        raise PtxError(f"line {line}: cannot read {statement!r}")
    space, align, kind, name, count, _ = found.groups()
    size = size_of(kind) * (1 if count is None else int(count or 0))
    if space not in ("shared", "local"):
        raise PtxError(f"line {line}: variables in .{space} memory are not supported: {statement!r}")
    (kernel.shared if space == "shared" else kernel.local)[name] = Variable(name, size, int(align or size_of(kind)))


def instruction(statement: str, line: int = 1) -> Instruction:
    """One instruction without its semicolon."""
    found = _INSTRUCTION.match(statement)
    if found is None:
        raise PtxError(f"line {line}: cannot read {statement!r}")
    negated, guard, opcode, rest = found.groups()
    operands = tuple(_operand(piece, line) for piece in _split(rest or ""))
    text = re.sub(r"\s+", " ", statement)
    return Instruction(line, text, opcode, operands, Register(guard) if guard else None, bool(negated))


def _split(text: str) -> Iterator[str]:
    """Operands at commas outside of braces."""
    depth, piece = 0, ""
    for letter in text:
        depth += (letter == "{") - (letter == "}")
        if letter == "," and not depth:
            yield piece.strip()
            piece = ""
        else:
            piece += letter
    if piece.strip():
        yield piece.strip()


def _operand(text: str, line: int) -> Operand:
    if text.startswith("["):
        base, plus, offset = text.strip("[] ").partition("+")
        if not plus and _INTEGER.match(base.strip()):
            return Address(None, int(base, 0))
        kind = _operand(base.strip(), line)
        if not isinstance(kind, Register | Symbol):
            raise PtxError(f"line {line}: cannot read the address {text!r}")
        return Address(kind, int(offset.strip(), 0) if plus else 0)
    if text.startswith("{"):
        return Vector(tuple(_operand(piece, line) for piece in _split(text.strip("{} "))))
    if "|" in text:
        value, predicate = text.split("|")
        return Pair(Register(value.strip()), Register(predicate.strip()))
    if text.startswith("%"):
        special = "." in text or text[1:] in ("laneid", "warpid", "nwarpid")
        return Special(text[1:]) if special else Register(text)
    if text[:2].lower() == "0f":
        return Number(int(text[2:], 16), "f32")
    if text[:2].lower() == "0d":
        return Number(int(text[2:], 16), "f64")
    if _INTEGER.match(text):
        return Number(int(text.rstrip("U"), 0))
    if re.fullmatch(r"[\w$]+", text):
        return Symbol(text)
    raise PtxError(f"line {line}: cannot read the operand {text!r}")
