"""Streams of a GPU, on stand-ins for torch's streams and events that write down who waits for what."""

from __future__ import annotations

import weakref
from contextlib import contextmanager

import pytest
import torch

from metrale.device.conformance.ordering import CASES
from metrale.device.engine import cuda_streams
from metrale.device.engine.cuda_streams import CudaStreams
from metrale.device.engine.streams import DEFAULT, PREFILL, SECONDARY, Mark


class Gpu:
    """Three streams; nothing is done until a test says so."""

    def __init__(self) -> None:
        self.log: list[tuple[str, ...]] = []
        self.made = 0
        self.events: list[Event] = []
        self.current = Stream(self, "D")

    def new_stream(self, on: torch.device) -> Stream:
        self.made += 1
        return Stream(self, "PS"[self.made - 1])

    @contextmanager
    def inside(self, stream: Stream):
        before, self.current = self.current, stream
        yield
        self.current = before


class Event:
    def __init__(self, gpu: Gpu, name: str) -> None:
        self.gpu, self.name, self.done = gpu, name, False

    def query(self) -> bool:
        return self.done

    def synchronize(self) -> None:
        self.gpu.log.append(("host", self.name))
        self.done = True


class Stream:
    def __init__(self, gpu: Gpu, name: str) -> None:
        self.gpu, self.name, self.count = gpu, name, 0

    def record_event(self) -> Event:
        self.count += 1
        event = Event(self.gpu, f"{self.name}{self.count}")
        self.gpu.events.append(event)
        self.gpu.log.append(("record", event.name))
        return event

    def wait_event(self, event: Event) -> None:
        self.gpu.log.append(("wait", self.name, event.name))

    def wait_stream(self, stream: Stream) -> None:
        self.gpu.log.append(("after", self.name, stream.name))

    def synchronize(self) -> None:
        self.gpu.log.append(("host", self.name))
        for event in self.gpu.events:
            event.done = event.done or event.name.startswith(self.name)


@pytest.fixture
def gpu(monkeypatch) -> Gpu:
    made = Gpu()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda on: made.current)
    monkeypatch.setattr(torch.cuda, "Stream", made.new_stream)
    monkeypatch.setattr(torch.cuda, "stream", made.inside)
    return made


@pytest.fixture
def streams(gpu) -> CudaStreams:
    return CudaStreams(torch.device("cpu"))


def test_work_runs_on_its_stream_after_what_was_queued_on_the_default_stream(gpu, streams):
    ran = []
    assert streams.run(DEFAULT, lambda: ran.append(gpu.current.name)) == Mark(DEFAULT, 1)
    assert streams.run(PREFILL, lambda: ran.append(gpu.current.name)) == Mark(PREFILL, 1)
    assert streams.run(SECONDARY, lambda: ran.append(gpu.current.name)) == Mark(SECONDARY, 1)
    assert ran == ["D", "P", "S"]
    assert gpu.log == [("after", "P", "D"), ("record", "P1"), ("after", "S", "D"), ("record", "S1")]


def test_a_wait_is_for_the_marked_piece_of_work(gpu, streams):
    marks = [streams.run(PREFILL, lambda: None) for _ in range(3)]
    gpu.log.clear()
    streams.wait(DEFAULT, marks[1], "forward-after-prefill")
    streams.wait(SECONDARY, streams.end_of(PREFILL), "copy-after-prefill")
    assert gpu.log == [("wait", "D", "P2"), ("wait", "S", "P3")]


def test_waits_that_are_none(gpu, streams):
    done = streams.run(PREFILL, lambda: None)
    gpu.events[0].done = True
    streams.run(PREFILL, lambda: None)
    gpu.log.clear()
    streams.wait(DEFAULT, None, "event")
    streams.wait(PREFILL, streams.end_of(PREFILL), "event")
    streams.wait(PREFILL, streams.end_of(DEFAULT), "event")
    streams.wait(DEFAULT, Mark(SECONDARY, 0), "event")
    streams.wait(DEFAULT, done, "event")
    assert (gpu.log, streams.waiting) == ([], 1)


def test_tensors_of_unfinished_work_are_kept(gpu, streams):
    tensor = torch.zeros(1)
    alive = weakref.ref(tensor)
    streams.run(SECONDARY, lambda tensor=tensor: tensor.add_(1))
    del tensor
    assert (alive() is not None, streams.waiting) == (True, 1)
    gpu.events[0].done = True
    assert (streams.waiting, alive()) == (0, None)


def test_the_host_waits_for_a_stream(gpu, streams):
    streams.run(PREFILL, lambda: None)
    streams.run(SECONDARY, lambda: None)
    streams.synchronize(PREFILL)
    streams.synchronize(DEFAULT)
    assert gpu.log[-2:] == [("host", "P"), ("host", "D")]
    assert streams.waiting == 1


def test_events(gpu, streams):
    assert [streams.create_event(), streams.create_event()] == [2, 3]
    streams.wait_event(DEFAULT, 2)
    streams.host_wait_event(2)
    assert (gpu.log, streams.query(2)) == ([], True)
    streams.record(2, PREFILL)
    streams.wait_event(DEFAULT, 2)
    assert not streams.query(2)
    streams.record(2, DEFAULT)
    streams.host_wait_event(2)
    assert streams.query(2)
    assert gpu.log == [("record", "P1"), ("wait", "D", "P1"), ("record", "D1"), ("host", "D1")]
    streams.destroy_event(2)
    streams.wait_event(DEFAULT, 2)
    assert len(gpu.log) == 4


def waits_for(edge: str) -> tuple[str, str]:
    """Who waits, and for which stream, as the name of an edge says."""
    if edge in ("teardown", "stream-on-host", "event-on-host"):
        return "host", "P"
    waiter = "S" if "on-secondary" in edge else "D"
    return waiter, "S" if edge.endswith("after-secondary") else "P"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.edge)
def test_every_wait_of_the_engine_reaches_the_gpu(gpu, case):
    """The programs that go wrong without a wait: with streams of a GPU the same tokens, and the wait is made."""
    from metrale.conform.tiny import edge_device

    wanted = case.outcome(edge_device(case, None))
    gpu.log.clear()
    streams = CudaStreams(torch.device("cpu"))
    seen = []
    wait = streams.wait
    streams.wait = lambda stream, mark, edge: (seen.append(edge), wait(stream, mark, edge))
    assert case.outcome(edge_device(case, streams)) == wanted
    waiter, waited = waits_for(case.edge)
    if waiter == "host":
        assert any(line[0] == "host" and line[1].startswith(waited) for line in gpu.log)
    else:
        assert case.edge in seen or case.edge == "event"
        assert any(line[:2] == ("wait", waiter) and line[2].startswith(waited) for line in gpu.log)


def test_the_default_stream_is_that_of_the_building_thread(gpu, streams):
    assert streams._streams[DEFAULT] is gpu.current
    assert cuda_streams.CudaStreams.mode == "cuda"
