"""The heart of the engine: pools, rows, and how a forward is queued."""

from __future__ import annotations

from types import ModuleType

import torch

from metrale.core.io import DeviceFacts
from metrale.core.sequence import Sequence
from metrale.core.slots import SlotBook

from ..checkpoint.config import ModelConfig
from ..model.decoder import Decoder, Memory, new_memory
from ..model.drafter import DraftHead
from ..model.graphs import CudaRecorder, DecodeGraphs
from ..model.rows import InputRow, Intermediate
from .adapters import AdapterTable
from .books import BlockPool, PhysicalSlots
from .cuda_streams import CudaStreams
from .options import EngineOptions, facts_of
from .picks import Picks
from .prefix_cache import PrefixCache
from .state import EngineState, Saved, state_of
from .streams import DEFAULT, PREFILL, Streams

ARENA_ROWS = 160
HOT = 30.0
"""The logit of a forced token; every other logit of its row is 0."""

Tensor = torch.Tensor


class EngineCore:
    """State that the parts of the device share. ``picks`` is set in forced runs alone."""

    def __init__(
        self,
        kernels: ModuleType,
        config: ModelConfig,
        tensors: dict[str, Tensor],
        options: EngineOptions,
        *,
        width: int,
        facts: DeviceFacts | None = None,
        picks: Picks | None = None,
        streams: Streams | None = None,
    ) -> None:
        self.k, self.config, self.options, self.picks = kernels, config, options, picks
        self.facts = facts or facts_of(config, options)
        self.decoder = Decoder(kernels, config, tensors, width)
        on, dtype = self.on, self.dtype = self.decoder.device, self.decoder.dtype
        self.streams: Streams | CudaStreams = streams or Streams()
        if on.type == "cuda":
            self._on_a_gpu()
        self.pool = BlockPool(options.total_blocks, options.held_blocks)
        self.slots = PhysicalSlots(options.max_sequences)
        self.labels = SlotBook()
        self.memory: Memory = new_memory(
            config, options.total_blocks, options.block_size, options.max_sequences, on, dtype
        )
        self.head: DraftHead | None = None
        if config.draft_head:
            room = options.max_sequences, options.max_seq_len
            self.head = DraftHead(kernels, config, tensors, self.decoder, *room)
            self.memory.history = torch.empty((room[0] * room[1] + 1, config.hidden_size), device=on, dtype=dtype)
        self.adapters = AdapterTable()
        self.cache: PrefixCache | None = None
        if options.prefix_cache:
            self.cache = PrefixCache(self.pool, options.block_size, options.snapshots, config.linear is not None)
            self.pool.make_room = self.cache.evict_one
        self.logits = torch.zeros((ARENA_ROWS, config.vocab_size), device=on)
        self.hidden = torch.zeros((ARENA_ROWS, config.hidden_size), device=on, dtype=dtype)
        self.saved = torch.zeros(config.hidden_size, device=on, dtype=dtype)
        self.stash = torch.zeros((32, config.hidden_size), device=on, dtype=dtype)
        self.cells = torch.zeros(ARENA_ROWS, dtype=torch.int64, device=on)
        self.buffers: dict[int, Tensor] = {}
        self.forced: dict[int, int] = {}
        self.live: list[Sequence] = []

    def _on_a_gpu(self) -> None:
        """Real streams, steps from CUDA graphs, and rotary tables that no stream will have to grow."""
        if self.streams.mode == "immediate":
            self.streams = CudaStreams(self.on)
        if self.options.graphs:
            self.decoder.graphs = DecodeGraphs(self.decoder, CudaRecorder())
        self.decoder.rope.reach(self.options.max_seq_len)

    # -- blocks

    def take_blocks(self, wanted: list[tuple[Sequence, int]]) -> list[tuple[Sequence, list[int]]]:
        """Raise block tables to so many entries, all or none. Raises KvExhausted with nothing changed."""
        missing = [(seq, max(0, blocks - len(state_of(seq).blocks))) for seq, blocks in wanted]
        taken = self.pool.take(sum(count for _, count in missing))
        given = []
        for seq, count in missing:
            given.append((seq, taken[:count]))
            if count:
                self._extend(seq, taken[:count])
            taken = taken[count:]
        return given

    def _extend(self, seq: Sequence, blocks: list[int]) -> None:
        state = state_of(seq)
        state.blocks.extend(blocks)
        state.table = torch.tensor(state.blocks)
        seq.num_blocks = len(state.blocks)

    def _one_ahead(self, seq: Sequence, length: int) -> None:
        """At a full boundary the table is one block ahead, if the pool has one on its free list (S6 section 9)."""
        state = state_of(seq)
        ahead = length // self.options.block_size + 1 - len(state.blocks)
        if 0 < ahead <= self.pool.free:
            self._extend(seq, self.pool.take(ahead))

    def drop_blocks(self, seq: Sequence, count: int) -> None:
        """Give the last ``count`` table entries back, at most all."""
        state = state_of(seq)
        for _ in range(min(count, len(state.blocks))):
            self.pool.release(state.blocks.pop())
        state.table = torch.tensor(state.blocks, dtype=torch.int64)
        seq.num_blocks = len(state.blocks)

    # -- forwards

    def rows_of(self, seq: Sequence, tokens: list[int], start: int) -> list[InputRow]:
        """Input rows at positions from ``start`` on. Ids outside the vocabulary (decision D17) wrap."""
        state, vocab = state_of(seq), self.config.vocab_size
        floor = state.match.matched if state.match is not None else 0
        return [
            InputRow(
                token=token % vocab,
                position=start + i,
                table=state.table,
                slot=state.slot,
                write=start + i >= floor,
                adapter=state.adapter,
                history=self.history_row(state, start + i),
            )
            for i, token in enumerate(tokens)
        ]

    def history_row(self, state: EngineState, position: int) -> int:
        """Where the drafter finds the hidden row of a position; -1 where it has no room for one."""
        room = self.options.max_seq_len
        return state.slot * room + position if self.head is not None and position < room else -1

    def launch(
        self,
        stream: int,
        seqs: list[Sequence],
        rows: list[InputRow],
        forced: dict[int, int] | None = None,
        recurrent: bool = True,
    ) -> None:
        """Queue a forward. It runs after all S work on its sequences, and after P work when it is queued on D."""
        for seq in seqs:
            self.streams.wait(stream, state_of(seq).secondary, "forward-after-secondary")
            if stream == DEFAULT:
                self.streams.wait(DEFAULT, state_of(seq).prefill, "forward-after-prefill")
        self._reach_arena(rows)
        logits, hidden, cells, scripted = self.logits, self.hidden, self.cells, dict(forced or {})

        def work() -> None:
            recorded = recurrent and stream == DEFAULT
            self.decoder.forward(rows, self.memory, cells, hidden, logits, recurrent, recorded)
            for row, token in scripted.items():
                logits[row] = 0.0
                if token < logits.shape[1]:
                    logits[row, token] = HOT

        mark = self.streams.run(stream, work)
        self.forced = scripted
        if stream == PREFILL:
            for seq in seqs:
                state_of(seq).prefill = mark

    def _reach_arena(self, rows: list[InputRow]) -> None:
        top = max((max(row.logits, row.hidden) for row in rows), default=0) + 1
        if top > self.logits.shape[0]:
            grow = top - self.logits.shape[0]
            self.logits = torch.nn.functional.pad(self.logits, (0, 0, 0, grow))
            self.hidden = torch.nn.functional.pad(self.hidden, (0, 0, 0, grow))
            self.cells = torch.nn.functional.pad(self.cells, (0, grow))

    def fed(self, seq: Sequence, tokens: list[int]) -> None:
        """Book fed tokens after their forward was queued."""
        seq.tokens.extend(tokens)
        seq.seq_len = len(seq.tokens)
        state_of(seq).rec = seq.seq_len
        self._one_ahead(seq, seq.seq_len)

    def blocks_before(self, seq: Sequence, rows: int) -> tuple[Sequence, int]:
        """The table a forward of ``rows`` more rows needs before it runs (S6 3.1)."""
        return seq, (seq.seq_len + rows - 1) // self.options.block_size + 1

    # -- recurrent copies

    def wait_for_copies(self, state: EngineState, what: str) -> None:
        """A copy from or to the live state on D runs after S and P work on it; ``what`` names its waits."""
        self.streams.wait(DEFAULT, state.secondary, f"{what}-after-secondary")
        self.streams.wait(DEFAULT, state.prefill, f"{what}-after-prefill")

    def load_state(self, slot: int, h: Tensor, conv: Tensor) -> None:
        """Live state of all layers := a copy."""
        self.memory.h[slot] = h
        self.memory.conv[slot] = conv

    def load_intermediate(self, slot: int, inter: Intermediate, h: bool = True, conv: bool = True) -> None:
        """Live state := state after a verify row."""
        for layer in range(len(inter.h)):
            if h:
                self.memory.h[slot, layer] = inter.h[layer]
            if conv:
                self.memory.conv[slot, layer] = inter.conv[layer]

    # -- prefix-cache snapshots

    def remember(self, seq: Sequence, tokens: list[int], stream: int) -> None:
        """Snapshot the live state, which has absorbed exactly ``tokens``, into the prefix cache."""
        if self.cache is None or not self.cache.recurrent:
            return
        state = state_of(seq)
        if stream == DEFAULT:
            self.wait_for_copies(state, "snapshot")
        saved = self.copy_state(state.slot, len(tokens))
        slot = state.slot

        def work() -> None:
            saved.h.copy_(self.memory.h[slot])
            saved.conv.copy_(self.memory.conv[slot])

        mark = self.streams.run(stream, work)
        self.cache.remember(seq.adapter_id, tokens, saved, mark)

    def copy_state(self, slot: int, position: int) -> Saved:
        """Room for a copy of a slot's recurrent state; it is filled by work queued later."""
        return Saved(position, torch.zeros_like(self.memory.h[slot]), torch.zeros_like(self.memory.conv[slot]))
