"""Free mode where bits may depend on the batch: a tie that rounding settles is excused, a fault is not."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest
import torch

from metrale.conform.checks import TOKENS, Check, fixed_tiles, free_checks
from metrale.conform.devices import DEVICES
from metrale.conform.free import Finding, Way, Weights, alone, check_way, number_prompts, run_way
from metrale.conform.rounding import shortfall
from metrale.conform.tiny import random_weights, tiny_config
from metrale.device.kernels import reference
from metrale.device.loading import Backend, backend

TOLERANCE = DEVICES["cuda"].rounding
BATCH = Way("batch", ("decode_batch(tokens=[",), {"max_batch_size": 6})
CHUNKS = Way("mixed", ("mixed_forward(decode=",), {"max_prefill_tokens": 8, "max_batch_tokens": 8}, gap=4)


@pytest.fixture(scope="module")
def tied() -> Weights:
    """A model whose logits come in pairs of equal ones: 2j and 2j + 1."""
    config = tiny_config(64, hybrid=False)
    tensors = random_weights(config)
    head = "lm_head.weight" if "lm_head.weight" in tensors else "model.embed_tokens.weight"
    tensors[head] = tensors[head][torch.arange(64) // 2 * 2].clone()
    return Weights("tied", config, tensors, number_prompts(64))


def leaking(share: float) -> Backend:
    """A backend whose products take up a share of the neighbouring row, which is another sequence's or padding."""
    kernels = ModuleType("leaking")
    kernels.__dict__.update({name: value for name, value in vars(reference).items() if not name.startswith("__")})

    def linear(x, weight, bias=None):
        y = reference.linear(x, weight, bias)
        return y + share * y.roll((1, 1), (0, 1))

    kernels.linear = linear
    return replace(backend("torch"), kernels=kernels)


def found(model: Weights, way: Way, share: float, rounding: float = TOLERANCE) -> Finding:
    on = leaking(share)
    return check_way(model, way, alone(model, TOKENS, on), TOKENS, on=on, rounding=rounding)


@pytest.mark.parametrize("way", [BATCH, CHUNKS], ids=lambda way: way.name)
def test_a_tie_is_settled_either_way(tied, way):
    finding = found(tied, way, 1e-7)
    assert "instead of" in finding.problem
    assert finding.excused.count("rounding: margin ") == finding.problem.count("instead of")
    assert "of the logit range at token " in finding.excused
    assert not Check("free", "", finding.problem, finding.excused).failed


def test_without_a_tolerance_nothing_is_excused(tied):
    finding = found(tied, BATCH, 1e-7, rounding=0.0)
    assert "instead of" in finding.problem
    assert finding.excused == ""


@pytest.mark.parametrize("way", [BATCH, CHUNKS], ids=lambda way: way.name)
def test_a_leak_between_rows_is_a_fault(tied, way):
    finding = found(tied, way, 0.05)
    assert "instead of" in finding.problem
    assert finding.excused == ""
    assert Check("free", "", finding.problem, finding.excused).failed


def test_picks_of_the_wrong_row_are_a_fault(tied):
    on = leaking(0.0)
    wanted = alone(tied, TOKENS, on)
    on.kernels.argmax = lambda logits: reference.argmax(logits).flip(0)
    finding = check_way(tied, BATCH, wanted, TOKENS, on=on, rounding=TOLERANCE)
    assert "instead of" in finding.problem
    assert finding.excused == ""


def test_a_failed_request_is_a_fault(tied):
    on = backend("torch")
    starved = replace(BATCH, options={"total_blocks": 10})
    finding = check_way(tied, starved, alone(tied, TOKENS, on), TOKENS, on=on, rounding=TOLERANCE)
    assert "instead of" in finding.problem
    assert finding.excused == ""


def test_a_greedy_text_is_excused_where_the_wanted_one_took_the_other_of_a_tie(tied):
    on = backend("torch")
    wanted = alone(tied, TOKENS, on)
    other = [[token ^ 1, *text[1:]] for text in wanted for token in text[:1]]
    finding = check_way(tied, BATCH, other, TOKENS, on=on, rounding=TOLERANCE)
    assert finding.excused.count("margin 0.0e+00") == 6
    texts, _, _ = run_way(tied, BATCH, tied.prompts, TOKENS, on=on)
    assert texts == wanted


@pytest.mark.parametrize(
    ("logits", "token", "wanted"),
    [
        ([4.0, 0.0, 3.0], 0, 0.0),
        ([4.0, 0.0, 3.0], 2, 0.25),
        ([4.0, 0.0, 3.0], 1, 1.0),
        ([2.0, 2.0], 1, 0.0),
        ([4.0, 0.0], 2, float("inf")),
        ([4.0, float("nan")], 0, float("inf")),
        ([4.0, float("-inf")], 0, float("inf")),
    ],
)
def test_shortfall(logits, token, wanted):
    assert shortfall(torch.tensor(logits), token) == wanted


def test_tiles_have_one_width():
    assert fixed_tiles(replace(backend("torch"), width=0)).width == reference.TILE
    assert fixed_tiles(backend("torch")).width == 8


def test_parts_cover_every_way_once():
    on = backend("torch")
    shares = [[check.name for check in free_checks(("free",), on, part=(i, 8), count=2)] for i in range(8)]
    names = [name for share in shares for name in share]
    assert len(names) == len(set(names)) == 25
    assert max(len(share) for share in shares) == 4
