"""Decode steps from a recording: on a GPU one graph launch instead of a launch for every kernel of every layer.

A step is recorded for its number of rows and a table width that is a power of two. What changes from step to step (ids,
positions, tables, contexts) stands in one buffer of int64 at a fixed address and is sent in one transfer; weights,
pools and arenas stay where they are. A recording is used while all those addresses stand.
"""

from __future__ import annotations

import gc
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from ..checkpoint.config import LINEAR, SLIDING, ModelConfig
from ..kernels.shapes import Paging, Runs
from ..kernels.transfer import send
from .decoder import Decoder, Memory, remember
from .experts import can_be_recorded
from .rows import InputRow, Tile, first_seen, windows_of, written

Tensor = torch.Tensor
Replay = Callable[[], object]
SEEN = 2
"""A step is recorded when its shape comes for this time: until then everything it needs is compiled and warm."""
KEPT = 32
"""Recordings kept; the least recently used one goes."""


class Recorder(Protocol):
    """What can record work on a device."""

    def record(self, work: Callable[[], None]) -> Replay:
        """Record ``work`` without running it; the answer runs it. Raises RuntimeError where that cannot be done."""


class CudaRecorder:
    """CUDA graphs of torch. All recordings share one memory pool: they run one after the other."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, work: Callable[[], None]) -> Replay:
        """Other streams and threads may go on meanwhile. No garbage is collected: a graph must not be destroyed now."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        gc.collect()
        gc.disable()
        try:
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                work()
        except BaseException:
            # A capture that cannot be ended leaves its own stream the current one.
            torch.cuda.set_stream(stream)
            raise
        finally:
            gc.enable()
        return graph.replay


class StepNumbers:
    """The numbers of one decode step, and where they lie in the buffer [size] int64 on the device.

    R rows, W table entries; ``windows`` are the sliding windows of the model's layers, 0 for none.
    """

    def __init__(self, rows: int, width: int, windows: list[int], on: torch.device) -> None:
        self.rows, self.width, self.windows = rows, width, windows
        sizes = [rows] * 6 + [2 * rows] * len(windows) + [rows * width]
        self.buffer = torch.zeros(sum(sizes), dtype=torch.int64, device=on)
        parts = self.buffer.split(sizes)
        self.ids, self.fed, self.positions, self.where, self.places, self.history, *spans, tables = parts
        self.spans = {window: span.view(rows, 2) for window, span in zip(windows, spans, strict=True)}
        self.tables = tables.view(rows, width)

    def set(self, rows: list[InputRow], memory: Memory) -> None:
        """Send the numbers of a step."""
        size, dummy, forgotten = memory.block_size, memory.dummy, memory.forgotten
        numbers = [row.token for row in rows] + [int(row.fed) for row in rows] + [row.position for row in rows]
        numbers += [written(row, size, dummy) for row in rows] + [row.slot for row in rows]
        numbers += [row.history if row.history >= 0 else forgotten for row in rows]
        for window in self.windows:
            for row in rows:
                numbers += (first_seen(row, window), row.position + 1)
        on_gpu = self.buffer.device.type == "cuda"
        host = torch.zeros(self.buffer.numel(), dtype=torch.int64, pin_memory=on_gpu)
        filled = host.numpy()
        filled[: len(numbers)] = numbers
        for i, row in enumerate(rows):
            start = len(numbers) + i * self.width
            filled[start : start + len(row.table)] = row.table.numpy()
        self.buffer.copy_(host, non_blocking=True)

    def idle(self, memory: Memory) -> None:
        """Numbers of a step that touches dummy block, dummy slot and the forgotten row of the history only."""
        self.buffer.zero_()
        self.where.fill_(memory.dummy)
        self.places.fill_(memory.h.shape[0] - 1)
        self.history.fill_(memory.forgotten)
        self.tables.fill_(memory.dummy // memory.block_size)
        for span in self.spans.values():
            span[:, 1] = 1


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded step. ``tile`` holds tensors that were made before it was recorded and that every replay reads."""

    numbers: StepNumbers
    tile: Tile
    replay: Replay


class DecodeGraphs:
    """Recorded steps of one decoder. ``reason`` says why there are none any more, once recording has failed."""

    def __init__(self, decoder: Decoder, recorder: Recorder) -> None:
        self.decoder, self.recorder = decoder, recorder
        self.reason = ""
        self.windows = sliding_windows(decoder.config)
        self._seen: Counter[tuple[int, ...]] = Counter()
        self._kept: OrderedDict[tuple[int, ...], Recording] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def run(self, rows: list[InputRow], memory: Memory, cells: Tensor, hidden: Tensor, logits: Tensor) -> bool:
        """Run a step from its recording; False if there is none and ``rows`` must go the usual way."""
        if self.reason or not self.takes(rows):
            return False
        width = 1 << (max(len(row.table) for row in rows) - 1).bit_length()
        standing = [cells, hidden, logits, self.decoder.rope.cos, memory.h, memory.conv, *memory.keys[:1]]
        key = (len(rows), width, *(tensor.data_ptr() for tensor in standing))
        found = self._kept.get(key) or self._record(key, memory, cells, hidden, logits)
        if found is None:
            return False
        self._kept.move_to_end(key)
        found.numbers.set(rows, memory)
        found.replay()
        return True

    def takes(self, rows: list[InputRow]) -> bool:
        """Whether the rows are plain decode rows, one for a sequence, results in their order, without adapters."""
        if not can_be_recorded(self.decoder.config, len(rows)):
            return False
        plain = all(
            row.logits == row.hidden == i and row.write and row.inter is None and row.adapter is None
            for i, row in enumerate(rows)
        )
        return plain and len({row.slot for row in rows}) == len(rows)

    def _record(
        self, key: tuple[int, ...], memory: Memory, cells: Tensor, hidden: Tensor, logits: Tensor
    ) -> Recording | None:
        """A recording for a shape that has been seen often enough, if it can be made."""
        self._seen[key] += 1
        if self._seen[key] < SEEN:
            return None
        count, width = key[:2]
        numbers = StepNumbers(count, width, self.windows, self.decoder.device)
        tile = self._tile(numbers, memory)

        @torch.inference_mode()
        def step() -> None:
            x = self.decoder.layered(tile, memory, cells)
            logits[:count].copy_(self.decoder.judged(x))
            hidden[:count].copy_(x)
            remember(x, tile, memory)

        try:
            # Once for real, so that nothing is compiled or loaded while the step is recorded.
            numbers.idle(memory)
            step()
            replay = self.recorder.record(step)
        except RuntimeError as error:
            self.reason = str(error).splitlines()[0]
            self._kept.clear()
            return None
        self._kept[key] = Recording(numbers, tile, replay)
        if len(self._kept) > KEPT:
            old, _ = self._kept.popitem(last=False)
            del self._seen[old]
        return self._kept[key]

    def _tile(self, numbers: StepNumbers, memory: Memory) -> Tile:
        """A tile whose tensors are the buffer's views; its rows say how many there are and nothing else."""
        count, on = numbers.rows, self.decoder.device
        rows = [InputRow(0, 0, torch.zeros(1, dtype=torch.int64), slot) for slot in range(count)]
        _, window, tail = windows_of(rows, count, self.decoder.taps)
        starts = send(list(range(count + 1)), on)
        longest = numbers.width * memory.block_size
        return Tile(
            rows=rows,
            ids=numbers.ids,
            fed=numbers.fed,
            positions=numbers.positions,
            where=numbers.where,
            places=numbers.places,
            window=send(window, on),
            tail=send(tail, on),
            history=None if memory.history is None else numbers.history,
            runs=Runs([0] * count, (numbers.places, starts)),
            pagings={
                window: Paging([], [longest] * count, [0] * count, self._plan(numbers, window, longest))
                for window in numbers.windows
            },
            fixed=True,
        )

    def _plan(self, numbers: StepNumbers, window: int, longest: int) -> object:
        """What attention wants to know of the rows, for contexts up to the whole table."""
        config = self.decoder.config
        heads = config.heads, config.kv_heads, config.head_dim
        return self.decoder.k.decode_plan(numbers.tables, numbers.spans[window], longest, *heads)


def sliding_windows(config: ModelConfig) -> list[int]:
    """The sliding windows of a model's attention layers, 0 for layers that see everything."""
    return sorted({config.window if kind == SLIDING else 0 for kind in config.layer_types if kind != LINEAR})
