"""How the GPU check measures and compares: what a capture that fails leaves behind, how products are added up."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from metrale.conform.checks import fixed_tiles, full_products
from metrale.device.loading import backend

TOOLS = Path(__file__).parents[3] / "tools"


@pytest.fixture(autouse=True)
def tools(monkeypatch):
    monkeypatch.syspath_prepend(TOOLS)


class Streams:
    """The current stream of a pretended GPU, and captures that end as torch's do: first the capture, then its stream.

    ``broken``: a capture cannot be ended."""

    def __init__(self, monkeypatch, broken):
        self.current, self.broken = "default", broken
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: "the graph")
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: self.current)
        monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: setattr(self, "current", stream))
        monkeypatch.setattr(torch.cuda, "graph", lambda graph, capture_error_mode: self)

    def __enter__(self):
        self.current = "capture"

    def __exit__(self, *_):
        if self.broken:
            raise RuntimeError("the capture was invalidated")
        self.current = "default"


def test_a_capture_that_cannot_be_ended_gives_the_stream_back(monkeypatch):
    import gpu_clock

    streams, seen = Streams(monkeypatch, broken=True), []
    with pytest.raises(RuntimeError, match="invalidated"):
        gpu_clock.captured([lambda: seen.append(streams.current)])
    assert (seen, streams.current) == (["capture"], "default")


def test_a_capture_that_ends_is_the_graph(monkeypatch):
    import gpu_clock

    streams = Streams(monkeypatch, broken=False)
    assert (gpu_clock.captured([lambda: None]), streams.current) == ("the graph", "default")


@pytest.mark.parametrize("prepare", [full_products, lambda: fixed_tiles(backend("torch"))])
def test_products_are_added_up_in_fp32(prepare):
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    torch.set_float32_matmul_precision("high")
    prepare()
    assert torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction is False
    assert torch.get_float32_matmul_precision() == "highest"


def test_argmax_has_its_aim_on_many_rows_whose_inputs_no_cache_holds(monkeypatch):
    import gpu_bench

    assert gpu_bench.FULL.picks == (512, 64, 1)
    sizes = gpu_bench.replace(gpu_bench.SMALL, picks=(512, 64, 1), room=512 * 80 + 1)
    found = {name: (size, aim, len(calls)) for name, size, aim, calls in gpu_bench._picks(torch.device("cpu"), sizes)}
    assert {name: entry for name, entry in found.items() if name.startswith("argmax")} == {
        "argmax, 512 rows": (40960, 0.8, 2),
        "argmax, 64 rows": (5120, 0.0, 9),
        "argmax, 1 rows": (80, 0.0, 256),
    }
