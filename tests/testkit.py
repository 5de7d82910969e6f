"""What tests of core and simulator share: scenarios in one line, traces cut by tick, a device that fails on cue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from textwrap import dedent
from typing import Any

from metrale.core.io import DeviceError, SchedIo
from metrale.core.routers.sync import SyncRouter
from metrale.core.scheduler import Flow, Scheduler
from metrale.core.state import State
from metrale.sim.harness import Harness, StandingClock
from metrale.sim.mock import MockDevice
from metrale.sim.runner import RunResult, mock_config, run_scenario, scheduler_config
from metrale.sim.scenario import Scenario, scenario_from
from metrale.trace.recording import RecordingDevice
from metrale.trace.tracing_router import TracingRouter

E = 63
"""The server's EOS id."""

END = """
fx apply EpShutdown
ep_broadcast_cmd_for_seq(seq=0, cmd=0xffffffff)
fx apply Quiesce{stream=0}
synchronize(stream=0)
fx apply Quiesce{stream=1}
synchronize(stream=1)
fx teardown
teardown()
"""
"""The end sequence of every run (S1 section 21)."""


def toks(first: int, last: int, *more: int) -> list[int]:
    """``first..last`` and then ``more``."""
    return [*range(first, last + 1), *more]


def req(id: int, prompt_len: int | None, tokens: list[int], at: int | None = None, **keys: Any) -> dict[str, Any]:
    """One request table; ``at`` is the arrival tick."""
    table: dict[str, Any] = {"id": id, "tokens": tokens, **keys}
    if prompt_len is not None:
        table["prompt_len"] = prompt_len
    if at is not None:
        table["arrive_at_tick"] = at
    return table


def scenario(*requests: dict[str, Any], device: dict[str, Any] | None = None, **knobs: Any) -> Scenario:
    """A scenario; keyword arguments are scheduler keys."""
    return scenario_from(
        {"name": "case", "device": device or {}, "scheduler": knobs, "request": list(requests)}, "case.toml"
    )


def run(*requests: dict[str, Any], device: dict[str, Any] | None = None, **knobs: Any) -> RunResult:
    """Run requests at depth 1 within a hard bound of ticks."""
    return run_scenario(scenario(*requests, device=device, **knobs), router="sync", max_ticks=5000)


class FailingMock(MockDevice):
    """A mock device on which named calls raise: ``fail[name]`` maps the call's index to the error."""

    def __init__(self, sc: Scenario, fail: dict[str, dict[int, DeviceError]], **overrides: Callable[..., Any]) -> None:
        super().__init__(mock_config(sc.device))
        self.seen: dict[str, int] = {}
        for name, errors in fail.items():
            setattr(self, name, self._failing(name, getattr(self, name), errors))
        for name, call in overrides.items():
            setattr(self, name, call)

    def _failing(self, name: str, call: Callable[..., Any], errors: dict[int, DeviceError]) -> Callable[..., Any]:
        def wrapper(*args: Any) -> Any:
            index = self.seen.get(name, 0)
            self.seen[name] = index + 1
            if index in errors:
                raise errors[index]
            return call(*args)

        return wrapper


def run_failing(sc: Scenario, fail: dict[str, dict[int, DeviceError]], **overrides: Callable[..., Any]) -> RunResult:
    """Run a scenario on a :class:`FailingMock`."""
    return run_scenario(sc, router="sync", max_ticks=5000, device=FailingMock(sc, fail, **overrides))


def outs(result: RunResult) -> list[str]:
    """What each client got, in file order, without the ``out s<id>: `` in front."""
    return [line.split(": ", 1)[1] for line in result.clients if line.startswith("out ")]


def lines_of(text: str) -> list[str]:
    """The non-empty lines of an indented block."""
    return [line for line in dedent(text).strip().splitlines() if line]


def between(result: RunResult, first: int, last: int | None = None) -> list[str]:
    """Call lines from the marker of tick ``first`` to the marker of the tick after ``last``, neither included."""
    last = first if last is None else last
    start = result.calls.index(f"-- tick {first}") + 1
    after = f"-- tick {last + 1}"
    return result.calls[start : result.calls.index(after) if after in result.calls else None]


def assert_block(result: RunResult, text: str) -> None:
    """The block stands in the calls as one contiguous piece."""
    wanted = lines_of(text)
    calls = result.calls
    for start in range(len(calls) - len(wanted) + 1):
        if calls[start : start + len(wanted)] == wanted:
            return
    best = max(range(len(calls)), key=lambda at: _common(calls[at:], wanted))
    common = _common(calls[best:], wanted)
    got = "\n".join(calls[best : best + len(wanted)])
    raise AssertionError(f"no such block; best match breaks at {wanted[common]!r}:\n{got}")


def _common(left: list[str], right: list[str]) -> int:
    count = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        count += 1
    return count


def count(result: RunResult, start: str) -> int:
    """Call lines that start so."""
    return sum(line.startswith(start) for line in result.calls)


def tick_of(result: RunResult, start: str, nth: int = 0) -> int:
    """The tick in whose lanes the nth call line that starts so stands (lines before a marker belong to the tick
    before)."""
    tick = 0
    for line in result.calls:
        if line.startswith("-- tick "):
            tick = int(line.removeprefix("-- tick "))
        if line.startswith(start):
            if nth == 0:
                return tick
            nth -= 1
    raise AssertionError(f"no line starts with {start!r}")


# -- the lines that the specification promises, built from the few numbers that vary -----------------------------------

START = ["bind_gpu_to_thread()", "create_stream() -> 1", "create_event() -> 2"]
END_LINES = lines_of(END)
PAIR = ["record_event(event=2, stream=1)", "stream_wait_event(stream=0, event=2)"]


def gate(candidates: int) -> list[str]:
    """The admission gate of so many candidates."""
    return ["adapter_id_for(-1)"] * (candidates + 1)


def marker(free: int, tick: int) -> list[str]:
    """The snapshot of a tick."""
    return [f"num_free_blocks() -> {free}", f"-- tick {tick}"]


def preamble(slot: int, length: int, start: int, total: int) -> list[str]:
    """The six announcements of a prefill or chunk."""
    return [
        f"ep_broadcast_cmd_for_seq(seq={slot}, cmd=0xfffffff0)",
        f"ep_broadcast_cmd({length:#x})",
        f"ep_broadcast_cmd({start:#x})",
        f"ep_broadcast_cmd({total:#x})",
        f"ep_broadcast_tokens(n={total})",
        f"ep_sync_vision_embeds(n={total})",
    ]


def whole(id: int, slot: int, length: int, first: int | None) -> list[str]:
    """One unchunked prefill with its greedy pick."""
    lines = [f"alloc_sequence() -> slot {slot}", "adapter_id_for(-1)", "acquire_adapter_slot(-1)"]
    lines += preamble(slot, length, 0, length)
    lines += [f"prefill(n={length}, s{id}@{slot}:len={length}, stream=0)"]
    return lines + ([] if first is None else [f"argmax_on_device(row=0, stream=0) -> {first}"])


def resume(id: int, slot: int, length: int) -> list[str]:
    """A requeue resume: no identity query, no pick."""
    return [
        f"alloc_sequence() -> slot {slot}",
        "acquire_adapter_slot(-1)",
        *preamble(slot, length, 0, length),
        f"prefill(n={length}, s{id}@{slot}:len={length}, stream=0)",
    ]


def swap_in(slot: int, blocks: int) -> list[str]:
    """A restore."""
    return [
        f"alloc_sequence() -> slot {slot}",
        f"restore_sequence_state(s0@{slot}:len=0, blocks={blocks})",
        "acquire_adapter_slot(-1)",
    ]


def chunk0(id: int, slot: int, total: int, budget: int, length: int, first: int | None = None) -> list[str]:
    """An inline first chunk; ``first`` is the pick of a last one."""
    last = "true" if length == total else "false"
    lines = [f"alloc_sequence_for(budget={budget}) -> slot {slot}", "adapter_id_for(-1)", "acquire_adapter_slot(-1)"]
    lines += preamble(slot, length, 0, total)
    lines += [f"prefill_chunk(start=0, len={length}, last={last}, s{id}@{slot}:len={length}, stream=1)", *PAIR]
    return lines + ([] if first is None else [f"argmax_on_device(row=0, stream=0) -> {first}"])


def _rows(rows: tuple[str, ...]) -> list[tuple[str, int, int, int]]:
    """``"s1@0:5 10>11"``: sequence, length before, input, output."""
    parsed = []
    for row in rows:
        place, move = row.split(" ")
        name, length = place.split(":")
        given, picked = move.split(">")
        parsed.append((name, int(length), int(given), int(picked)))
    return parsed


def _sids(rows: list[tuple[str, int, int, int]]) -> str:
    return ", ".join(f'"{name}:len={length}"' for name, length, _, _ in rows)


def exhausted(*texts: str, readback: str = "Argmax") -> list[str]:
    """A launch that finds the pool dry."""
    rows = _rows(texts)
    inputs = [given for _, _, given, _ in rows]
    return [
        f"fx launch Decode{{n={len(rows)}, ctx=Unified, readback={readback}}}",
        f"decode_batch(tokens={inputs}, seqs=[{_sids(rows)}], stream=0) -> ERR KV cache exhausted",
    ]


def checkpoints(*texts: str, grown: int = 1, stops: tuple[int, ...] = (E,)) -> list[str]:
    """One checkpoint per row that did not end by a stop id."""
    lines = []
    for name, length, _, picked in _rows(texts):
        if picked not in stops:
            lines += ["fx apply MarconiCheckpoint", f"decode_marconi_checkpoint({name}:len={length + grown})"]
    return lines


def step(*texts: str, readback: str = "Argmax", vocab: int = 64, stops: tuple[int, ...] = (E,)) -> list[str]:
    """One plain decode step and its commit."""
    rows = _rows(texts)
    inputs = [given for _, _, given, _ in rows]
    lines = [
        f"fx launch Decode{{n={len(rows)}, ctx=Unified, readback={readback}}}",
        f"decode_batch(tokens={inputs}, seqs=[{_sids(rows)}], stream=0)",
    ]
    lines += [f"commit_ctx({n}:len={k + 1}, n=1, base={k}, row={i})" for i, (n, k, _, _) in enumerate(rows)]
    if readback == "Argmax":
        lines += [f"argmax_batch(row=0, n={len(rows)}, stream=0) -> {[picked for *_, picked in rows]}"]
    else:
        lines += [f"copy_logits_to_host(row=0, off=0, bytes={len(rows) * vocab * 2})"]
    return lines + checkpoints(*texts, stops=stops)


def release(place: str, blocks: int, what: str, cache: bool = True) -> list[str]:
    """A ReleaseSeq effect; ``place`` is ``"s1@0:11"``."""
    name, length = place.split(":")
    sid, slot = f"{name}:len={length}", int(name.split("@")[1])
    lines = [f"fx apply ReleaseSeq{{cache={'true' if cache else 'false'}, {what}}}"]
    lines += [f"cache_sequence({sid})"] if cache else []
    return [
        *lines,
        f"free_sequence({sid}, blocks={blocks})",
        f"ep_broadcast_cmd_for_seq(seq={slot & 0xFFFFFFFF}, cmd=0xfffffff1)",
    ]


def finish(place: str, blocks: int) -> list[str]:
    """The release of a request that ended."""
    return release(place, blocks, "finish_sequence")


def free_direct(place: str, blocks: int) -> list[str]:
    """The direct free of a sequence that never became a row."""
    return release(place, blocks, "", cache=False)[1:]


def compact(place: str, target: int) -> list[str]:
    """One compaction move."""
    name, length = place.split(":")
    return [f"fx apply CompactSlot{{target={target}}}", f"compact_sequence({name}:len={length}, new_slot={target})"]


def spill(place: str, blocks: int) -> list[str]:
    """A successful spill."""
    name, length = place.split(":")
    return [
        "fx apply SaveSequenceState",
        f"save_sequence_state({name}:len={length}, blocks={blocks})",
        *release(place, blocks, "spill_out_sequence", cache=False),
    ]


def done(reason: str, n: int, guard: str = "None", think: int = 0) -> str:
    """A streaming terminal frame."""
    shown = guard if guard == "None" else f'Some("{guard}")'
    return f"Done({reason}, n={n}, think={think}, cached=0, acc=0, guard={shown})"


def stream(tokens: list[int], end: str) -> str:
    """A whole stream of plain tokens."""
    return " ".join([*(f"T{token}" for token in tokens), end])


class Bench:
    """A scheduler over a logged mock device without a driver: tests move it and look inside."""

    def __init__(self, sc: Scenario, device: MockDevice | None = None, **knobs: Any) -> None:
        self.calls: list[str] = []
        self.harness = Harness(sc)
        self.harness.write = self.calls.append
        self.device = device or MockDevice(mock_config(sc.device))
        recording = RecordingDevice(self.device, self.calls.append)
        self.router = TracingRouter(SyncRouter(recording), self.calls.append)
        config = replace(scheduler_config(sc.scheduler), **knobs)
        io = SchedIo(self.router, self.harness, StandingClock(), self.harness, None)
        self.scheduler = Scheduler(io, config)
        self.scheduler.start()

    @property
    def state(self) -> State:
        """What the scheduler knows."""
        return self.scheduler.state

    def tick(self, count: int = 1) -> bool:
        """Turns of the driver loop; False when a plan said shutdown."""
        for _ in range(count):
            plan = self.scheduler.plan()
            if plan.shutdown:
                return False
            for lane in plan.lanes:
                if self.scheduler.execute(lane, plan) is Flow.SKIP_REST:
                    break
            else:
                self.scheduler.end_tick()
        return True

    def outs(self) -> list[str]:
        """What the clients have so far."""
        return [client.sink.render() for client in self.harness.clients]
