"""When steps are recorded, and what a failed capture leaves behind."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from metrale.device.conformance.driver import chunk, prefilled, start
from metrale.device.model.graphs import CudaRecorder

from .support import HYBRID, device_for, prompt_of


class NoGraphs:
    """Is asked for every step that may be recorded, and has none."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def run(self, rows, memory, cells, hidden, logits) -> bool:
        self.asked.append(len(rows))
        return False


def test_only_work_of_the_default_stream_is_recorded():
    """Recordings share one buffer and one pool of memory: on two streams they would run into each other."""
    device = device_for(HYBRID)
    graphs = device.decoder.graphs = NoGraphs()
    seqs = [prefilled(device, prompt_of(3), 1), start(device, prompt_of(5), 2)]
    assert graphs.asked == [3]
    device.prefill_chunk(chunk(seqs[1], prompt_of(5), 0, 4), 1)
    device.prefill_chunk(chunk(seqs[1], prompt_of(5), 4), 1)
    assert graphs.asked == [3]
    device.decode_batch([1, 2], seqs, 0)
    assert graphs.asked == [3, 2]
    device.decode_draft(3, seqs[0], 0)
    assert graphs.asked == [3, 2], "a step without the recurrent layers is another step"
    device.decode_verify([4, 5], seqs[1])
    assert graphs.asked == [3, 2, 2]


@pytest.fixture
def cuda(monkeypatch):
    """torch.cuda as far as a capture needs it; ``fails`` breaks the capture at its end, as torch does."""
    state = SimpleNamespace(current="D", fails=False, collecting=[])

    @contextmanager
    def capture(graph, pool, capture_error_mode):
        assert (pool, capture_error_mode) == ("pool", "thread_local")
        state.current = "capture"
        yield
        if state.fails:
            raise RuntimeError("operation failed due to a previous error during capture")
        state.current = "D"

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay="replay"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: state.current)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: setattr(state, "current", stream))
    monkeypatch.setattr(torch.cuda, "graph", capture)
    return state


def test_a_capture(cuda):
    work = []
    assert CudaRecorder().record(lambda: work.append((cuda.current, gc.isenabled()))) == "replay"
    assert (work, cuda.current, gc.isenabled()) == ([("capture", False)], "D", True)


def test_a_failed_capture_gives_the_stream_back(cuda):
    cuda.fails = True
    with pytest.raises(RuntimeError, match="during capture"):
        CudaRecorder().record(lambda: None)
    assert (cuda.current, gc.isenabled()) == ("D", True)
