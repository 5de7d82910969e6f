"""``metrale generate``: text from a model, several prompts at once."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from metrale.cli.errors import DIFFERENT, BadInput
from metrale.cli.text import plain_lines
from metrale.conform.serving import TextSink, serve
from metrale.core.config import SchedulerConfig
from metrale.core.request import Completion, Request, SamplingParams

if TYPE_CHECKING:
    from metrale.device.checkpoint import Tokenizer
    from metrale.device.engine import EngineDevice

BLOCK_SIZE = 16


class Real(click.FloatRange):
    """Numbers of a range; "nan" is none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number. Raises BadParameter."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


@click.command(epilog='Example: metrale generate --max-tokens 40 "A scheduler decides" "Q: What is a slot?"')
@click.argument("prompts", nargs=-1, required=True, metavar="TEXT...")
@click.option(
    "--model", type=click.Path(path_type=Path), help="Model folder (default: the tiny model that is shipped)."
)
@click.option("--lora", type=click.Path(path_type=Path), help="Adapter folder in PEFT's layout.")
@click.option("--max-tokens", type=click.IntRange(1, 1 << 20), default=64, show_default=True, help="Tokens per prompt.")
@click.option("--batch", type=click.IntRange(1, 256), default=8, show_default=True, help="Prompts decoded at once.")
@click.option("--drafts", type=click.IntRange(0, 7), default=0, show_default=True, help="Drafts a step of greedy text.")
@click.option("--temperature", type=Real(0.0, 100.0), default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-p", type=Real(0.0, 1.0, min_open=True), default=1.0, show_default=True)
@click.option("--seed", type=click.IntRange(0, (1 << 63) - 1), default=42, show_default=True, help="Of the sampling.")
@click.option("--device", type=click.Choice(["torch", "cuda"]), default="torch", show_default=True, help="CPU or GPU.")
@click.option(
    "--dtype", type=click.Choice(["float32", "bfloat16"]), help="Of weights and caches on a GPU (default: bfloat16)."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per prompt and line, no stream.")
def generate(
    prompts: tuple[str, ...],
    model: Path | None,
    lora: Path | None,
    max_tokens: int,
    batch: int,
    drafts: int,
    temperature: float,
    top_p: float,
    seed: int,
    device: str,
    dtype: str | None,
    as_json: bool,
) -> int:
    """Continue each TEXT and write the continuations, as they come, in the order of the prompts.

    The model is a folder in the usual layout: config.json, safetensors, tokenizer.json, of the family llama, qwen2,
    qwen3 or qwen3_next. With --json each line has prompt_tokens, tokens, text and finish_reason.
    """
    if drafts and temperature > 0:
        raise BadInput(f"--drafts {drafts}: drafts serve greedy text; leave --temperature {temperature} or them out")
    try:
        from metrale.device.errors import ModelError
    except ImportError as error:
        raise BadInput(f"generate: {error}; `pip install 'metrale[engine]'` installs what it needs") from error
    try:
        engine, tokenizer, ids = _open(prompts, model, lora, max_tokens, batch, device, dtype)
        config = SchedulerConfig(
            max_batch_size=batch,
            max_seq_len=engine.config.max_positions,
            use_speculative=drafts > 0 and temperature == 0.0,
            num_drafts=max(1, drafts),
            eos_tokens=engine.config.eos_ids,
        )
        sampling = SamplingParams(temperature=temperature, top_p=top_p, seed=seed)
        stream = OrderedOutput(tokenizer, prompts, quiet=as_json)
        requests = [
            Request(i, prompt, max_tokens, LiveSink(stream.writer(i), on_end=stream.ender(i)), sampling=sampling)
            for i, prompt in enumerate(ids)
        ]
        started = time.perf_counter()
        serve(engine, config, requests)
        spent = time.perf_counter() - started
        return _report(requests, tokenizer, spent, as_json)
    except ImportError as error:
        raise BadInput(f"generate: {error}; `pip install 'metrale[engine]'` installs what it needs") from error
    except ModelError as error:
        raise BadInput(str(error)) from error
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "memory" not in str(error):
            raise
        raise BadInput("generate: the memory does not suffice; take fewer prompts or a smaller --max-tokens") from error


@dataclass(slots=True)
class LiveSink(TextSink):
    """A client that is also told when its text has ended."""

    on_end: Callable[[], None] = lambda: None

    def finish(self, completion: Completion) -> None:
        """A normal end. The token that ended the text was not streamed; where it has a text, that belongs to it."""
        self.completion = completion
        for token in completion.tokens[len(self.tokens) :]:
            self.on_token(token)
        self.on_end()

    def error(self, text: str) -> None:
        """A failure."""
        self.failure = text
        self.on_end()


def _open(
    prompts: tuple[str, ...],
    model: Path | None,
    lora: Path | None,
    max_tokens: int,
    batch: int,
    device: str,
    dtype: str | None,
) -> tuple[EngineDevice, Tokenizer, list[list[int]]]:
    """The engine, sized for these prompts, and their ids. Raises ModelError and BadInput."""
    from metrale.device.checkpoint import load_config, load_tokenizer
    from metrale.device.engine import EngineOptions
    from metrale.device.loading import backend, limit_threads, open_model, shipped_model

    on = backend(device, dtype or ("bfloat16" if device == "cuda" else "float32"))
    folder = model or shipped_model()
    config = load_config(folder)
    limit_threads(config.hidden_size)
    tokenizer = load_tokenizer(folder, config.vocab_size)
    for number, text in enumerate(prompts, 1):
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            raise BadInput(f"prompt {number} is not valid UTF-8; pass it in that encoding")
    ids = [tokenizer.encode(text) for text in prompts]
    longest = max(len(prompt) for prompt in ids) + max_tokens
    for number, prompt in enumerate(ids, 1):
        if not prompt:
            raise BadInput(f"prompt {number} is empty; give it at least one character")
        if len(prompt) >= config.max_positions:
            why = f" ({config.rope.kind} scaling takes other frequencies past that)" if config.rope.longest else ""
            raise BadInput(
                f"prompt {number} has {len(prompt)} tokens; this model takes {config.max_positions - 1} at most{why}"
            )
    longest = min(longest, config.max_positions)
    options = EngineOptions(
        block_size=BLOCK_SIZE,
        total_blocks=min(batch, len(ids)) * (longest // BLOCK_SIZE + 2),
        max_sequences=min(batch, len(ids)) + 1,
        max_seq_len=longest + 8,
    )
    return open_model(folder, options, lora, on), tokenizer, ids


class OrderedOutput:
    """Streams of several prompts on one output: the first unfinished one is live, later ones wait for their turn."""

    def __init__(self, tokenizer: Tokenizer, prompts: tuple[str, ...], quiet: bool) -> None:
        from metrale.device.checkpoint.tokenizer import TextStream

        self.prompts, self.quiet = prompts, quiet
        self.streams = [TextStream(tokenizer) for _ in prompts]
        self.waiting = [""] * len(prompts)
        self.ended = [False] * len(prompts)
        self.turn = 0
        self._safe = plain_lines if sys.stdout.isatty() else str
        if not quiet:
            self._head()

    def writer(self, index: int) -> Callable[[int], None]:
        """What prompt ``index`` calls with each token."""

        def push(token: int) -> None:
            self.waiting[index] += self.streams[index].push(token)
            if index == self.turn:
                self._show()

        return push

    def ender(self, index: int) -> Callable[[], None]:
        """What prompt ``index`` calls at its end."""

        def end() -> None:
            self.waiting[index] += self.streams[index].flush()
            self.ended[index] = True
            while self.turn < len(self.prompts) and self.ended[self.turn]:
                self._show()
                self.turn += 1
                if not self.quiet:
                    click.echo()
                    self._head()
            if self.turn < len(self.prompts):
                self._show()

        return end

    def _head(self) -> None:
        if 1 < len(self.prompts) > self.turn:
            click.echo(f"==> {self._safe(self.prompts[self.turn])} <==")

    def _show(self) -> None:
        if not self.quiet and self.waiting[self.turn]:
            click.echo(self._safe(self.waiting[self.turn]), nl=False)
            self.waiting[self.turn] = ""


def _report(requests: list[Request], tokenizer: Tokenizer, spent: float, as_json: bool) -> int:
    total, failed = 0, 0
    for request in requests:
        sink = request.sink
        assert isinstance(sink, TextSink)
        done = sink.completion
        tokens = done.tokens if done is not None else sink.tokens
        total += len(tokens)
        if done is None:
            failed += 1
            click.echo(f"prompt {request.id + 1}: {sink.failure}", err=True)
        if as_json:
            answer = {
                "prompt_tokens": request.prompt,
                "tokens": tokens,
                "text": tokenizer.decode(tokens),
                "finish_reason": done.reason if done is not None else "error",
            }
            click.echo(json.dumps(answer))
    rate = total / spent if spent > 0 else 0.0
    failures = f", {failed} failed; next: fewer prompts or a smaller --max-tokens" if failed else ""
    click.echo(f"{len(requests)} prompts, {total} tokens in {spent:.2f} s, {rate:.0f} tokens/s{failures}", err=True)
    return DIFFERENT if failed else 0
