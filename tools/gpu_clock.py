"""Time on a GPU: CUDA events around replayed graphs, or around single launches where nothing can be captured."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

Call = Callable[[], object]
ROUNDS = 5
"""Measurements; the median counts."""
MEASURED = 0.02
"""Seconds of one measurement, more or less."""
MOST_REPEATS = 200
TOGETHER = 16
"""Calls in one graph, so that the start of a graph does not count as time of a short kernel."""
CAPTURE_MODE = "thread_local"
"""What other threads do meanwhile is no concern of a capture."""


def warm(calls: list[Call]) -> None:
    """Run everything twice on a stream of its own, as torch asks for before a capture: code is compiled and loaded,
    handles and workspaces are made."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            for call in calls:
                call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()


def captured(calls: list[Call], mode: str = CAPTURE_MODE) -> torch.cuda.CUDAGraph:
    """One graph of all calls, after :func:`warm`. Raises what torch raises where a call cannot be captured."""
    graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph, capture_error_mode=mode):
            for call in calls:
                call()
    except BaseException:
        # torch ends the capture before it leaves the capture's stream: where that fails, the stream stays the current.
        torch.cuda.set_stream(before)
        raise
    return graph


class Clock:
    """Seconds of a call. ``graphs``: whether to try graphs. ``graphed`` says whether the latest measurement was one of
    a graph, ``reason`` why the latest that was none was not."""

    def __init__(self, on: torch.device, graphs: bool = True) -> None:
        self.on, self.graphs = on, graphs and on.type == "cuda"
        self.graphed = False
        self.reason = "" if self.graphs else "a rehearsal" if on.type != "cuda" else "not asked for"

    @property
    def method(self) -> str:
        """How it measured, for the report."""
        if not self.graphs:
            return f"single launches ({self.reason})"
        return f"graph replays, but for some single launches ({self.reason})" if self.reason else "graph replays"

    def seconds(self, calls: list[Call], together: int = TOGETHER) -> float:
        """Of one call, each in its turn, so that inputs larger than the cache can take turns. A graph holds at least
        ``together`` calls."""
        if self.on.type != "cuda":
            started = time.perf_counter()
            for call in calls:
                call()
            return (time.perf_counter() - started) / len(calls)
        warm(calls)
        turns = calls * max(1, together // len(calls))
        play = self._graph(turns) if self.graphs else None
        self.graphed = play is not None
        play = play or (lambda: [call() for call in turns])
        play()
        first = _events(play, 1)
        repeats = max(1, min(MOST_REPEATS, round(MEASURED / max(first, 1e-6))))
        return median(_events(play, repeats) for _ in range(ROUNDS)) / len(turns)

    def _graph(self, calls: list[Call]) -> Call | None:
        try:
            return captured(calls).replay
        except Exception as error:
            self.reason = f"{type(error).__name__}: {error}".splitlines()[0]
            torch.cuda.synchronize()
            return None


def _events(play: Call, repeats: int) -> float:
    """Seconds of one ``play`` among ``repeats``, by the GPU's clock."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(repeats):
        play()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000 / repeats
