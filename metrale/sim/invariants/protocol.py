"""Protocols: stretches of lines that belong together, written as generators that say which line must come next.

A protocol starts at a line of one of its kinds and then yields what it wants: ``record = yield want(...)``. A wish
that is ``optional`` may stay unfulfilled: the generator then gets None and decides what that means.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import cache
from typing import Any, NamedTuple

from metrale.trace.records import Call, Record

from .base import Invariant, on

Wish = Generator["Want", Any, Any]


class Want(NamedTuple):
    """The kinds of line that may come next, and why, for the message."""

    kinds: tuple[type[Record], ...]
    why: str
    optional: bool = False
    fits: Callable[[Any], bool] | None = None
    look: bool = False


def want(*kinds: type[Record], why: str) -> Want:
    """One of these kinds must come next."""
    return Want(kinds, why)


def look(*kinds: type[Record], why: str) -> Want:
    """One of these kinds must come next; the line itself is left to whatever it starts."""
    return Want(kinds, why, look=True)


def may(*kinds: type[Record], fits: Callable[[Any], bool] | None = None) -> Want:
    """One of these kinds may come next, if it ``fits``."""
    return Want(kinds, "", optional=True, fits=fits)


def spelled(kind: type[Record]) -> str:
    """The name of a kind of line as the trace spells it."""
    if issubclass(kind, Call):
        return f"{kind.call}(..)"
    words = kind.__name__.removeprefix("Fx")
    verb = "launch" if words.startswith("Launch") else "lora" if words in ("Rotate",) else "apply"
    return f"fx {verb} {words.removeprefix('Launch')}" if kind.__name__.startswith("Fx") else words


class Protocol(Invariant):
    """An invariant about what must follow what. ``starters`` maps a kind of line to the generator method it starts."""

    def starters(self) -> dict[type[Record], Callable[[Any], Wish]]:
        """The generator to start at each kind of line, while no protocol is running."""
        return {kind: getattr(self, name) for kind, name in _started_by(type(self))}

    def strays(self) -> dict[type[Record], str]:
        """Kinds of line that stand inside a protocol only, with what they belong to."""
        return {}


@cache
def _started_by(protocol: type[Protocol]) -> tuple[tuple[type[Record], str], ...]:
    methods = ((name, getattr(protocol, name)) for name in dir(protocol))
    return tuple((kind, name) for name, method in methods for kind in getattr(method, "starts", ()))


def starts(*kinds: type[Record]) -> Callable[[Any], Any]:
    """Mark a generator method with the kinds of line that start it."""

    def mark(method: Any) -> Any:
        method.starts = kinds
        return method

    return mark


class Conductor:
    """Runs the protocols over the lines: at most one at a time."""

    def __init__(self, protocols: list[Protocol]) -> None:
        self.starters: dict[type[Record], tuple[Protocol, Callable[[Any], Wish]]] = {}
        self.strays: dict[type[Record], tuple[Protocol, str]] = {}
        for protocol in protocols:
            for kind, method in protocol.starters().items():
                self.starters[kind] = (protocol, method)
            for kind, why in protocol.strays().items():
                self.strays[kind] = (protocol, why)
        self.owner: Protocol | None = None
        self.running: Wish | None = None
        self.wish: Want | None = None
        self.began = 0

    def step(self, record: Record) -> None:
        """Take the next line."""
        wish = self.wish
        if wish is not None:
            kind = type(record)
            while wish is not None:
                if kind in wish.kinds and (wish.fits is None or wish.fits(record)):
                    self._send(record)
                    if not wish.look:
                        return
                    break
                if not wish.optional:
                    self._broken(wish, kind)
                    break
                self._send(None)
                wish = self.wish
        kind = type(record)
        starter = self.starters.get(kind)
        if starter is not None:
            self.owner, method = starter
            self.began = self.owner.g.line
            self.running = method(record)
            self._send(None)
        elif kind in self.strays:
            protocol, why = self.strays[kind]
            protocol.fail(f"`{spelled(kind)}` stands alone: {why}")

    def _send(self, record: Record | None) -> None:
        assert self.running is not None
        try:
            self.wish = self.running.send(record)
        except StopIteration:
            self.wish = self.running = None

    def _broken(self, wish: Want, kind: type[Record] | None) -> None:
        assert self.owner is not None
        names = " or ".join(dict.fromkeys(f"`{spelled(one)}`" for one in wish.kinds))
        found = "the log ends" if kind is None else f"`{spelled(kind)}` comes"
        self.owner.fail(f"{names} must come here, {wish.why}, but {found}", self.began)
        self.wish = self.running = None

    def finish(self) -> None:
        """The log is over: a protocol that still wants a line is broken."""
        while self.wish is not None:
            if not self.wish.optional:
                self._broken(self.wish, None)
                return
            self._send(None)


__all__ = ["Conductor", "Protocol", "Want", "Wish", "look", "may", "on", "spelled", "starts", "want"]
