"""Planting one fault: a function's source is changed in memory and compiled; its file is never touched."""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted fault: in function ``target`` (``module:function`` or ``module:Class.method``) the text ``old``,
    which stands there once, becomes ``new``. ``what`` says what a user would suffer."""

    name: str
    what: str
    target: str
    old: str
    new: str


class PlantError(Exception):
    """A fault that cannot be planted: the code it changes is no longer there."""


def target_of(mutant: Mutant) -> FunctionType:
    """The function that a mutant changes. Raises PlantError."""
    module, _, path = mutant.target.partition(":")
    found: object = importlib.import_module(module)
    for part in path.split("."):
        found = inspect.getattr_static(found, part, None)
        if isinstance(found, property):
            found = found.fget
    if not isinstance(found, FunctionType):
        raise PlantError(f"{mutant.name}: there is no function {mutant.target}")
    return found


def changed_code(mutant: Mutant) -> CodeType:
    """The code object of the changed function. Raises PlantError."""
    function = target_of(mutant)
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except OSError as error:
        raise PlantError(f"{mutant.name}: the source of {mutant.target} cannot be read: {error}") from error
    if source.count(mutant.old) != 1:
        count = source.count(mutant.old)
        raise PlantError(f"{mutant.name}: {mutant.old!r} stands {count} times in {mutant.target}, must be once")
    source = source.replace(mutant.old, mutant.new)
    if source.startswith("@"):
        source = source[source.index("def ") :]
    names: dict[str, object] = {}
    exec(compile(source, f"<mutant {mutant.name}>", "exec", flags=_future(function)), function.__globals__, names)
    made = names[function.__name__]
    assert isinstance(made, FunctionType)
    if made.__code__.co_freevars != function.__code__.co_freevars:
        raise PlantError(f"{mutant.name}: {mutant.target} closes over names and cannot be changed in place")
    return made.__code__


def _future(function: FunctionType) -> int:
    import __future__

    return function.__code__.co_flags & __future__.annotations.compiler_flag


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Run the block with the fault in place. Every caller meets it: the function itself is changed, not its name."""
    function = target_of(mutant)
    code = changed_code(mutant)
    original = function.__code__
    function.__code__ = code
    try:
        yield
    finally:
        function.__code__ = original
