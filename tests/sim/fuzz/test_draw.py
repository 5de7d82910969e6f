"""Drawn scenarios are scenarios, the same for ever, and of every kind."""

from __future__ import annotations

import tomllib

from metrale.sim.fuzz.draw import LANES, draw_scenario
from metrale.sim.fuzz.toml_text import scenario_toml
from metrale.sim.scenario import DeviceTable, SchedulerTable, scenario_from


def test_every_seed_is_a_scenario() -> None:
    for seed in range(400):
        scenario = scenario_from(draw_scenario(seed), f"seed {seed}")
        assert 1 <= len(scenario.request) <= 8


def test_a_seed_gives_one_scenario() -> None:
    assert draw_scenario(11) == draw_scenario(11)
    assert draw_scenario(11) != draw_scenario(12)


def test_a_scenario_survives_its_text() -> None:
    for seed in range(100):
        tables = draw_scenario(seed)
        read = tomllib.loads(scenario_toml(tables))
        assert scenario_from(read) == scenario_from(tables)


def test_every_lane_and_every_knob_is_drawn() -> None:
    drawn = [draw_scenario(seed) for seed in range(1500)]
    assert {tables["about"] for tables in drawn} == {f"lane {lane}" for lane in LANES}
    device = {key for tables in drawn for key in tables["device"]}
    scheduler = {key for tables in drawn for key in tables["scheduler"]}
    request = {key for tables in drawn for one in tables["request"] for key in one}
    assert set(DeviceTable.model_fields) - device == {"dflash_gamma", "twophase_ok"}
    assert set(SchedulerTable.model_fields) - scheduler == {"slai_deadline_ms"}
    assert {
        "cancel_at",
        "cancel_at_tick",
        "deadline_at_tick",
        "drop_reader_after",
        "beam_hyp",
        "stop_tokens",
    } <= request


def test_two_phases() -> None:
    """Faults strike early; many scenarios have requests that come after them."""
    late = 0
    for seed in range(300):
        tables = draw_scenario(seed)
        assert all(call < 20 for call in tables["device"].get("kv_exhaust_at", ()))
        late += any(one.get("arrive_at_tick", 0) >= 30 for one in tables["request"])
    assert late > 60
