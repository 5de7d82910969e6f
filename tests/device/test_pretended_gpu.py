"""The engine and the GPU check's measurements on a pretended GPU: no tensor is on the wrong side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from metrale.conform.forced import forced_check
from metrale.conform.free import Way, Weights, alone, engine_for, number_prompts, run_way
from metrale.conform.tiny import random_weights, tiny_config
from metrale.device.kernels import reference
from metrale.device.loading import Backend

from .pretend import CUDA, Recorder, marked, picking_kernels, pretended_gpu

ROOT = Path(__file__).parents[2]
GOLDENS = ("chunked_prefill", "batched_mixed", "spill_swap_out_in", "batched_verify_k4", "dflash", "self_spec", "ngram",
           "async_lagging", "verify_k3_partial")  # fmt: skip
LAUNCHED = ("dflash", "verify_k3_partial")
"""Those without two plain decode steps of one shape; the others run from recordings."""


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    with pretended_gpu(monkeypatch) as pretended:
        yield pretended


def on_gpu() -> Backend:
    return Backend(picking_kernels(), 0, torch.device("cuda"))


def test_what_it_refuses(gpu):
    there, here = torch.ones(3, device="cuda"), torch.ones(3)
    assert (there.device, (there + 1).device, there.cpu().device) == (CUDA, CUDA, torch.device("cpu"))
    assert torch.equal((there + torch.tensor(1.0)).cpu(), torch.full((3,), 2.0))
    assert torch.equal(there[torch.tensor([0, 2])].to("cpu"), torch.ones(2))
    for mixed in (
        lambda: there + here,
        lambda: torch.cat([there, here]),
        lambda: there.index_select(0, torch.tensor([0])),
        lambda: there.__setitem__(slice(0, 2), here[:2]),
        lambda: here[there.long()],
    ):
        with pytest.raises(RuntimeError, match="tensors on the GPU and on the CPU"):
            mixed()
    with pytest.raises(TypeError, match="can't convert cuda tensor to numpy"):
        there.numpy()
    from metrale.device.cuda import backend

    with pytest.raises(TypeError, match="a kernel is given a tensor on the CPU"):
        backend.swiglu(there, here)
    replay = Recorder(gpu).record(lambda: there.tolist())
    with pytest.raises(RuntimeError, match="tolist: in a recording"):
        replay()
    assert not marked(here)
    assert marked(torch.zeros_like(there))


@pytest.mark.parametrize("name", GOLDENS)
def test_forced_runs(gpu, monkeypatch, name):
    """Every call of these lanes, with real streams pretended and decode steps from recordings."""
    replays = []
    record = Recorder.record
    monkeypatch.setattr(Recorder, "record", lambda self, work: replays.append(1) or record(self, work))
    assert forced_check(ROOT / "golden" / f"{name}.toml", on=on_gpu()).problem == ""
    assert bool(replays) == (name not in LAUNCHED)


def test_the_prefix_cache_and_the_margins(gpu):
    from metrale.conform.rounding import furthest

    config = tiny_config(64, hybrid=True)
    model = Weights("tiny", config, random_weights(config), number_prompts(64)[:3])
    way = Way("prefix cache", ("cache_sequence(",), {}, {"prefix_cache": True}, gap=6)
    texts, _, cached = run_way(model, way, [*model.prompts, *model.prompts], 4, on=on_gpu())
    assert [len(text) for text in texts] == [4] * 6
    assert cached > 0
    on = replace(on_gpu(), width=reference.TILE)
    assert len(alone(model, 2, on)) == 3
    furthest(engine_for(model, {}, on=on), model.prompts[0], [1, 2])


def test_bandwidths_of_the_gpu_check(gpu):
    import gpu_bench
    from gpu_clock import Clock

    sizes = replace(gpu_bench.WARM, rows=16, inner=64, channels=64, width=128, vocabulary=1000, sequences=1, state=8)
    sizes = replace(sizes, contexts=((2, 300),), picks=(2,), copy=64)
    clock = Clock(torch.device("cuda"))
    found = dict(gpu_bench.bandwidths(clock, sizes))
    assert found["timed by"] == "graph replays"
    rows = {name: row for name, row in found.items() if isinstance(row, dict)}
    assert len(rows) == 13
    assert [row["error"] for row in rows.values() if "error" in row] == []
    # An event lies a millisecond after the other, 20 repeats of 16 calls between them.
    assert rows["rms norm"]["seconds"] == pytest.approx(1e-3 / 20 / 16)
    assert found["copy"] == pytest.approx(8 * 64 / (1e-3 / 20) / 1e9)


def test_inputs_exceed_the_cache_and_fit_a_small_card(monkeypatch):
    """60 MB of L2 cache, 24 GB of memory; by arithmetic, nothing is allocated."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    import gpu_bench

    full = gpu_bench.FULL
    for batch, context in full.contexts:
        size = 4 * batch * context * 8 * 128
        assert 4 * 60e6 < full.sets(size) * size < 2e9
    for rows in full.picks:
        size = 2 * rows * full.vocabulary
        assert 60e6 < full.sets(size) * size < 1e9
    for elements, width in ((full.rows * full.width, 2), (full.rows * full.channels, 2), (full.copy, 4)):
        assert 2 * 60e6 < elements * width < 4e9


def test_a_kernel_that_cannot_be_captured_is_timed_by_launches(gpu, monkeypatch):
    import gpu_clock

    clock = gpu_clock.Clock(torch.device("cuda"))
    monkeypatch.setattr(gpu_clock, "captured", lambda calls: (_ for _ in ()).throw(RuntimeError("no\nmore")))
    assert clock.seconds([lambda: None], together=1) == pytest.approx(1e-3 / 20)
    assert (clock.graphed, clock.reason) == (False, "RuntimeError: no")
    assert clock.method == "graph replays, but for some single launches (RuntimeError: no)"


def test_steps_of_the_gpu_check(gpu, monkeypatch):
    import gpu_steps

    monkeypatch.setattr(gpu_steps, "MODEL", gpu_steps.TOY)
    monkeypatch.setattr("metrale.device.cuda.backend.argmax", reference.argmax)
    monkeypatch.setattr("gpu_clock.ROUNDS", 1)
    gpu_steps.warm_steps(torch.device("cuda"), True)
    rows = dict(gpu_steps.step_rates(torch.device("cuda"), True, True))
    assert list(rows) == ["1 x 1024", "16 x 1024", "64 x 1024"]
    assert [row.get("error") for row in rows.values()] == [None] * 3
    assert rows["1 x 1024"]["kernels_graph_steps_per_second"] == pytest.approx(20e3)


def test_the_engine_of_the_gpu_check(gpu, monkeypatch):
    import gpu_engine

    on = on_gpu()
    monkeypatch.setattr(gpu_engine, "MIDDLE", gpu_engine.TOY)
    monkeypatch.setattr(gpu_engine, "FULL", gpu_engine.Load(5, 3, 2, (1, 3)))
    gpu_engine.warm_engine(on)
    rows = dict(gpu_engine.engine_rates(on, True))
    assert {name: row.get("error") for name, row in rows.items()} == dict.fromkeys(rows)
    recordings = {name: row["recordings"] for name, row in rows.items() if "shipped" not in name}
    assert recordings == {
        f"{dtype}, {kind}, batch {batch}": int(kind == "recorded")
        for dtype in ("bfloat16", "float32")
        for kind in ("recorded", "launched")
        for batch in (1, 3)
    }


@pytest.mark.parametrize(
    ("replay", "captured", "reason"),
    [
        ("again", "yes", "the replay of changed inputs equals a launch, bit for bit"),
        ("nothing", "no", "the replay did not see the changed input"),
        ("other", "no", "the replay differs from a launch of its own"),
        ("refused", "no", "RuntimeError: operation not permitted"),
    ],
)
def test_the_proof_of_a_capture(gpu, monkeypatch, replay, captured, reason):
    import gpu_clock
    import gpu_sections

    monkeypatch.setattr("metrale.device.cuda.backend.swiglu", reference.swiglu)

    class Graph:
        def __init__(self, calls, mode):
            self.calls = calls
            if replay == "refused":
                raise RuntimeError("operation not permitted")

        def replay(self):
            out = self.calls[0]() if replay != "nothing" else None
            if replay == "other":
                out.add_(1)

    monkeypatch.setattr(gpu_clock, "captured", Graph)
    task = gpu_sections.Task((0, 1), False, True, lambda: None)
    assert gpu_sections.graph_capture(task, "thread_local") == {"captured": captured, "reason": reason}


def test_the_smoke_test_names_what_is_wrong(gpu, monkeypatch):
    import gpu_sections

    monkeypatch.setattr("metrale.device.cuda.backend.feed_ids", lambda ids, fed, cells: ids.clone())
    monkeypatch.setattr("metrale.device.cuda.backend.rms_norm", reference.rms_norm)
    monkeypatch.setattr("metrale.device.cuda.backend.swiglu", reference.swiglu)
    found = gpu_sections.smoke(gpu_sections.Task((0, 1), False, True, lambda: None))
    assert found["fault"] == "wrong results of feed_ids"


def test_facts_of_the_machine_never_stop_the_check(gpu, monkeypatch):
    import gpu_sections

    properties = SimpleNamespace(name="a card", major=9, minor=0, total_memory=24e9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    facts = gpu_sections.machine(rehearse=False)
    assert (facts["gpu"], facts["capability"], facts["memory, GB"]) == ("a card", "9.0", 24.0)
    assert facts["L2 cache, MB"] == "unknown (AttributeError)"
    assert facts["driver's CUDA"].startswith("unknown (")
    assert facts["processes"] == "many"
