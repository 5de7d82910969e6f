"""Telemetry changes nothing and counts what the clients got (S5 sections 2.10 and 14.8)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from metrale.sim import RunResult, Scenario, load_scenario, run_scenario, scenario_from
from metrale.sim.instruments import Instruments

GOLDEN = Path(__file__).parents[2] / "golden"


def run(scenario: Scenario) -> tuple[RunResult, Instruments]:
    made: list[Instruments] = []

    def listen(inner: Any) -> Instruments:
        made.append(Instruments(inner))
        return made[0]

    return run_scenario(scenario, instrument=listen), made[0]


def outputs_of(line: str) -> int:
    done = re.search(r"Done\(\w+, n=(\d+)", line)
    if done:
        return int(done[1])
    response = re.search(r"Response\(tokens=\[(.*?)\]", line)
    return len(response[1].split(",")) if response and response[1] else 0


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.toml")), ids=lambda path: path.stem)
def test_the_trace_is_the_same_and_the_finished_are_counted(path: Path) -> None:
    scenario = load_scenario(path)
    result, instruments = run(scenario)
    assert result.text == run_scenario(scenario).text
    assert instruments.ticks == result.ticks
    lost = any("device lost" in line for line in result.clients)
    assert instruments.spans["drain"] == result.ticks - lost  # the plan after a loss drains nothing
    assert instruments.finished_output_tokens == sum(map(outputs_of, result.clients))
    ended = sum("Done(" in line or "Response(" in line for line in result.clients)
    assert instruments.finished_requests == ended
    launches = sum(line.startswith("fx launch Decode{") for line in result.calls)
    assert sum(instruments.decode_rows.values()) == launches


TALLIED = {"plain_decode": 21, "preempt_requeue": 18, "beam": 7, "lora_rotation_at_quiescence": 4}


@pytest.mark.parametrize(("name", "tokens"), TALLIED.items())
def test_the_tally_is_what_the_clients_got(name: str, tokens: int) -> None:
    result, instruments = run(load_scenario(GOLDEN / f"{name}.toml"))
    assert instruments.token_tally == tokens == sum(map(outputs_of, result.clients))


def test_the_tally_never_goes_back_on_a_rollback() -> None:
    _result, instruments = run(load_scenario(GOLDEN / "watchdog_rollback.toml"))
    assert instruments.finished_output_tokens == 119
    assert instruments.token_tally == 253


@pytest.mark.parametrize("drafts", [1, 2, 3])
def test_speculative_steps_record_the_width_they_draft(drafts: int) -> None:
    request = {"id": 1, "prompt_len": 5, "tokens": [*range(10, 24), 63], "draft_wrong_every": 4}
    scenario = scenario_from(
        {
            "name": "widths",
            "device": {"has_proposer": True},
            "scheduler": {"use_speculative": True, "num_drafts": drafts},
            "request": [request],
        }
    )
    _result, instruments = run(scenario)
    assert set(instruments.draft_widths) == {drafts}
    assert {verified for verified, _accepted in instruments.verified} == {drafts}
