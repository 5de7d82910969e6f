"""Free runs: greedy text of each request is the same alone, in any batch, and on every way through the scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from metrale.core.config import SchedulerConfig
from metrale.core.request import Request
from metrale.device.checkpoint import ModelConfig, load_config, load_tensors, load_tokenizer
from metrale.device.engine import EngineDevice, EngineOptions, Streams
from metrale.device.loading import Backend, build_device, shipped_model
from metrale.trace.recording import RecordingDevice

from .rounding import excuse
from .serving import TextSink, serve
from .tiny import random_weights, tiny_config

TEXTS = (
    "In tick",
    "In tick 4, the scheduler admits request 3 and gives it slot 2. In tick 5, the",
    "Q: What is a draft? A: A draft is",
    "In tick 4, the scheduler admits request 3 and gives it slot 2. In tick 5, sequence 3 is prefilled in 4 chunks",
    "A",
    "Count: one, two, three, four, five, six, seven",
)
PROMPT_LENGTHS = (3, 21, 9, 34, 1, 16)
SPILL_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Way:
    """One way through the scheduler. ``evidence`` are call-log fragments without which the way was not taken.

    ``gap`` ticks lie between arrivals. ``again`` lets every request arrive a second time, and once more with the
    beginning of its answer as part of the prompt. Without ``reserve`` the scheduler is not told the pool's size, so it
    admits more than the pool holds and the pool really runs dry. ``by_text`` says why the texts of a model may not lead
    this way.
    """

    name: str
    evidence: tuple[str, ...]
    scheduler: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    gap: int = 0
    router: str = "sync"
    swap: bool = False
    again: bool = False
    reserve: bool = True
    by_text: str = ""
    only: tuple[int, ...] = (0, 1, 2, 3, 4, 5)


LONG = (1, 2, 3, 5)


def _mtp(drafts: int, batch: int, **more: Any) -> dict[str, Any]:
    return {"use_speculative": True, "num_drafts": drafts, "max_batch_size": batch, **more}


CHUNKED = {"max_prefill_tokens": 8, "max_batch_tokens": 8}
SMALL_CHUNKS = {"max_prefill_tokens": 4, "max_batch_tokens": 4}

WAYS = (
    Way("batch", ("decode_batch(tokens=[",), {"max_batch_size": 6}),
    Way("waves", ("decode_batch(tokens=[",), {"max_batch_size": 3}, gap=3),
    Way("chunked", ("prefill_chunk(start=8", "last=false"), {**CHUNKED, "max_batch_size": 1}),
    Way("batched chunks", ("prefill_batch_chunk(",), {**CHUNKED, "max_batch_size": 6}, only=LONG),
    Way("mixed", ("mixed_forward(decode=",), {**CHUNKED, "max_batch_size": 6}, gap=4),
    Way("batched mixed", ("mixed_forward_batch(decode=",), {**CHUNKED, "max_batch_size": 6}, gap=1),
    Way("preempted", ("ERR KV cache exhausted",), {"max_batch_size": 6}, {"total_blocks": 40}, reserve=False),
    Way(
        "spilled",
        ("save_sequence_state(", "restore_sequence_state("),
        {},
        {"total_blocks": 34},
        swap=True,
        reserve=False,
    ),
    Way("prefix cache", ("cache_sequence(",), {}, {"prefix_cache": True}, again=True, gap=6),
    Way("prefix cache, chunked", ("cache_sequence(",), CHUNKED, {"prefix_cache": True}, again=True, gap=6),
    Way("MTP K2", ("decode_verify_graphed(",), _mtp(1, 1)),
    Way("MTP K3", ("decode_verify_graphed_k3(",), _mtp(2, 1)),
    Way("MTP K4", ("decode_verify_graphed_k4(",), _mtp(3, 1)),
    Way("MTP batched", ("decode_verify_batched(", "gdn_fold_accepted("), _mtp(3, 6)),
    Way("MTP mixed", ("decode_verify_batched(", "mixed_forward_batch("), _mtp(3, 6, **SMALL_CHUNKS), gap=1),
    Way("MTP with prefix cache", ("decode_verify_batched(",), _mtp(3, 6), {"prefix_cache": True}, again=True, gap=4),
    Way("DFlash", ("decode_verify_dflash(",), _mtp(4, 1, dflash=True)),
    Way("DFlash batched", ("decode_verify_batched(",), _mtp(4, 6, dflash=True)),
    Way(
        "n-gram",
        ("decode_verify_graphed(",),
        {"ngram_speculative": True, "num_drafts": 1, "max_batch_size": 1},
        by_text="texts of this model do not repeat themselves",
    ),
    Way("self-speculation", ("decode_draft(",), {"self_speculative": True, "num_drafts": 2, "max_batch_size": 1}),
)
FED = ("decode_batch_fed(",)
PIPELINED = (
    Way("depth 2", FED, {"max_batch_size": 6}, router="async"),
    Way("depth 2 in waves", FED, {"max_batch_size": 4}, gap=5, router="async"),
    Way("depth 2, chunked", (*FED, "mixed_forward"), CHUNKED, gap=4, router="async"),
    Way(
        "depth 2, preempted",
        (*FED, "ERR KV"),
        {"max_batch_size": 6},
        {"total_blocks": 40},
        router="async",
        reserve=False,
    ),
    Way("depth 2, spilled", (*FED, "restore_seq"), {}, {"total_blocks": 34}, router="async", swap=True, reserve=False),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with a way, and why it does not count. Empty: nothing is wrong."""

    problem: str = ""
    excused: str = ""


@dataclass(frozen=True, slots=True)
class Weights:
    """A model in memory, and six prompts for it. A ``foreign`` one was not made for them."""

    name: str
    config: ModelConfig
    tensors: dict[str, torch.Tensor]
    prompts: list[list[int]]
    foreign: bool = False


def models(folder: Path) -> list[tuple[Weights, tuple[Way, ...]]]:
    """The model of ``folder`` on its ways; beside it a small attention model, since depth 2 needs one."""
    config = load_config(folder)
    tokenizer = load_tokenizer(folder, config.vocab_size)
    texts = [tokenizer.encode(text) for text in TEXTS]
    foreign = folder.resolve() != shipped_model().resolve()
    given = Weights(folder.name, config, load_tensors(folder, config), texts, foreign)
    plain = tiny_config(64, hybrid=False)
    small = Weights("attention", plain, random_weights(plain), number_prompts(64))
    ways = WAYS if config.linear is not None else tuple(w for w in WAYS if "self_speculative" not in w.scheduler)
    return [(given, ways), (small, PIPELINED)]


def number_prompts(vocab: int) -> list[list[int]]:
    """Six prompts of ids; two begin alike."""
    found = [[(11 * i * i + 5 * i + length) % (vocab - 1) + 1 for i in range(length)] for length in PROMPT_LENGTHS]
    found[3][:16] = found[1][:16]
    return found


def engine_for(
    model: Weights, options: Mapping[str, Any], streams: Streams | None = None, on: Backend | None = None
) -> EngineDevice:
    """An engine of the sizes that every way has, but for ``options``. A recorded step has as many rows as the batch, so
    there are recordings only where tiles have no fixed width."""
    sizes = EngineOptions(
        block_size=4,
        total_blocks=256,
        max_sequences=40,
        max_seq_len=256,
        graphs=on is not None and not on.width,
    )
    return build_device(model.config, model.tensors, replace(sizes, **options), streams, on)


def alone(model: Weights, count: int, on: Backend | None = None) -> list[list[int]]:
    """The texts that every way must give."""
    return [run_way(model, Way("alone", ()), [prompt], count, on=on)[0][0] for prompt in model.prompts]


def run_way(
    model: Weights,
    way: Way,
    prompts: list[list[int]],
    count: int,
    streams: Streams | None = None,
    on: Backend | None = None,
) -> tuple[list[list[int]], list[str], int]:
    """Token lists in the order of the prompts, the call log, and how many prompt tokens came from the cache.

    A request that failed has its error text in place of tokens."""
    lines: list[str] = []
    engine = engine_for(model, way.options, streams, on)
    if not way.reserve:
        engine.facts = replace(engine.facts, total_blocks=0)
    device = RecordingDevice(engine, lines.append)
    config = replace(SchedulerConfig(max_seq_len=256, eos_tokens=()), **way.scheduler)
    requests = [Request(i, list(prompt), count, TextSink()) for i, prompt in enumerate(prompts)]
    arrive = [i * way.gap for i in range(len(prompts))]
    serve(device, config, requests, arrive_at=arrive, router=way.router, swap_bytes=SPILL_BYTES if way.swap else 0)
    texts, cached = [], 0
    for request in requests:
        sink = request.sink
        assert isinstance(sink, TextSink)
        texts.append(sink.completion.tokens if sink.completion else [sink.failure])  # type: ignore[list-item]
        cached += sink.completion.cached if sink.completion else 0
    return texts, lines, cached


def check_way(
    model: Weights,
    way: Way,
    wanted: list[list[int]],
    count: int,
    streams: Streams | None = None,
    *,
    on: Backend | None = None,
    rounding: float = 0.0,
) -> Finding:
    """What is wrong with one way. With ``rounding``, a text that is greedy to within that share is excused."""
    asked, expected = [model.prompts[i] for i in way.only], [wanted[i] for i in way.only]
    if way.again:
        halves = [len(text) // 2 for text in expected]
        longer = [[*p, *text[:half]] for p, text, half in zip(asked, expected, halves, strict=True)]
        rest = [text[half:] for text, half in zip(expected, halves, strict=True)]
        asked, expected = [*asked, *asked, *longer], [*expected, *expected, *rest]
    texts, lines, cached = run_way(model, way, asked, count, streams, on)
    problems, excuses = [], []
    for index, (got, text) in enumerate(zip(texts, expected, strict=True)):
        if got[: len(text)] == text:
            continue
        problem, reason = f"request {index}: {got} instead of {text}", ""
        if rounding and len(got) == count and all(isinstance(token, int) for token in got):
            reason = excuse(engine_for(model, {}, on=on), asked[index], got, rounding)
        if not reason:
            return Finding(problem)
        problems.append(problem)
        excuses.append(f"request {index}: {reason}")
    for fragment in way.evidence:
        if not any(fragment in line for line in lines):
            excused = way.by_text if model.foreign else ""
            return Finding(f"no call log line has {fragment!r}: this way was not taken", excused)
    if way.again and not cached:
        return Finding("nothing came from the prefix cache")
    return Finding("; ".join(problems), "; ".join(excuses))
