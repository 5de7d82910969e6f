"""Decode steps from recordings, with the real kernels on the PTX machine: the same tokens and states as without.

Prints one JSON object: for each case what was recorded and replayed, and what differs.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from device.cuda.recorder import CpuRecorder, held
from device.support import HYBRID, LLAMA, config_of, device_for, prompt_of, random_tensors, start
from metrale.device.cuda import backend
from metrale.device.engine import EngineDevice, EngineOptions
from metrale.device.model import experts, graphs
from metrale.device.ptx.runner import Machine, enable

torch.set_num_threads(1)
enable(Machine(races=False))
SLIDING = LLAMA | {"model_type": "qwen3", "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}
UNMASKED = (0xFFFFFFFF, 0xFFFFFFFF)


def engine(values: dict) -> EngineDevice:
    config = config_of(values)
    options = EngineOptions(block_size=4, total_blocks=32, max_sequences=4, max_seq_len=64)
    device = EngineDevice(backend, config, random_tensors(config), options, width=0)
    device.decoder.graphs = graphs.DecodeGraphs(device.decoder, CpuRecorder(lambda: standing(device)))
    return device


def standing(device: EngineDevice) -> list[torch.Tensor]:
    memory = device.memory
    history = [] if memory.history is None else [memory.history]
    return [*memory.keys, *memory.values, memory.h, memory.conv, device.logits, device.hidden, device.cells, *history]


def lasting(device: EngineDevice) -> list[torch.Tensor]:
    """The same without the dummy block and slot and the forgotten row, where rows of padding write."""
    arenas = (device.logits, device.hidden, device.cells)
    return [one if any(one is arena for arena in arenas) else one[:-1] for one in standing(device)]


def decoded(device: EngineDevice, steps: int) -> list[list[int]]:
    """Greedy tokens of two sequences of different length, a third joins for one step."""
    prompts = [prompt_of(5), prompt_of(3, salt=2)]
    seqs = [start(device, prompt, i) for i, prompt in enumerate(prompts)]
    texts = []
    for seq, prompt in zip(seqs, prompts, strict=True):
        device.prefill(prompt, seq, 0)
        texts.append([device.argmax_on_device(0, 0)])
    for _ in range(steps):
        device.decode_batch([text[-1] for text in texts], seqs, 0)
        for text, token in zip(texts, device.argmax_batch(0, 2, 0), strict=True):
            text.append(token)
    return texts


def fed(device: EngineDevice, steps: int) -> list[list[int]]:
    """The same with inputs from the feed cells; the host appends tokens one step late."""
    prompts = [prompt_of(5), prompt_of(3, salt=2)]
    seqs = [start(device, prompt, i) for i, prompt in enumerate(prompts)]
    texts = []
    for i, (seq, prompt) in enumerate(zip(seqs, prompts, strict=True)):
        device.prefill(prompt, seq, 0)
        texts.append([device.argmax_on_device(0, 0)])
        device.cells[i] = texts[i][0]
    for _ in range(steps):
        device.decode_batch_fed([1, 0], seqs[::-1], 0)
        device.argmax_batch_to_feed(0, [UNMASKED] * 2, 0, 2, 0)
        for seq, text in zip(seqs, texts, strict=True):
            seq.tokens.append(text[-1])
            seq.seq_len += 1
        seqs, texts = seqs[::-1], texts[::-1]
        for text, token in zip(texts, device.read_feed(0, 2), strict=True):
            text.append(token)
    return texts


def compared(values: dict, way, steps: int) -> dict[str, object]:
    """Tokens beside those of the reference kernels, and the recurrent states and arenas that are left."""
    plain, recorded = device_for(values, total_blocks=32, max_sequences=4, max_seq_len=64), engine(values)
    for device in (plain, recorded):
        if device.memory.history is not None:
            device.memory.history.zero_()
    same = way(plain, steps) == way(recorded, steps)
    close = all(torch.allclose(a, b, atol=1e-3) for a, b in zip(lasting(plain), lasting(recorded), strict=True))
    recorder = recorded.decoder.graphs.recorder
    kept = recorder.outside <= held(recorded, set())
    return {"same": same and close, "kept": kept, "recorded": recorder.recorded, "replayed": recorder.replayed}


def dropped() -> dict[str, object]:
    """A control: what a step reads is not all kept once its tile is gone."""
    device = engine(HYBRID)
    seq = start(device, [1])
    device.prefill([1], seq, 0)
    device.decode_batch([2], [seq], 0)
    outside = device.decoder.graphs.recorder.outside
    before = outside <= held(device, set())
    for recording in device.decoder.graphs._kept.values():
        object.__setattr__(recording, "tile", None)
    return {"kept": [before, outside <= held(device, set())]}


def refused() -> dict[str, object]:
    """A step that cannot be recorded is run the usual way, now and later."""
    plain, broken = device_for(LLAMA), engine(LLAMA)

    def fail(work: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    broken.decoder.graphs.recorder.record = fail
    same = decoded(plain, 2) == decoded(broken, 2)
    return {"same": same, "reason": broken.decoder.graphs.reason, "kept": len(broken.decoder.graphs)}


def without_gathering(case, *arguments) -> dict[str, object]:
    """The same where experts run one by one."""
    with mock.patch.object(experts, "GATHERED", 1):
        return case(*arguments)


def looked() -> dict[str, object]:
    """A control of the recorder: a host that asks which experts were chosen is caught."""
    device = engine(HYBRID)
    make = device.decoder.graphs._tile
    device.decoder.graphs._tile = lambda *sizes: replace(make(*sizes), fixed=False)
    seq = start(device, [1])
    device.prefill([1], seq, 0)
    device.decode_batch([2], [seq], 0)
    return {"reason": device.decoder.graphs.reason}


def bounded() -> dict[str, object]:
    """Recordings beyond the bound go, the least recently used first."""
    graphs.KEPT = 1
    device = engine(LLAMA)
    seqs = [start(device, [i], i) for i in range(2)]
    for i, seq in enumerate(seqs):
        device.prefill([i], seq, 0)
    for _ in range(2):
        device.decode_batch([1, 2], seqs, 0)
    recorder = device.decoder.graphs.recorder
    return {"recorded": recorder.recorded, "kept": len(device.decoder.graphs)}


if __name__ == "__main__":
    found = {
        "sliding": compared(SLIDING, decoded, 5),
        "hybrid": compared(HYBRID, decoded, 2),
        "fed": compared(LLAMA, fed, 3),
        "refused": refused(),
        "all experts": without_gathering(compared, HYBRID, decoded, 2),
        "looked": without_gathering(looked),
        "bounded": bounded(),
        "dropped": dropped(),
    }
    print(json.dumps(found))
