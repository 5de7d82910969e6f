"""Forced, free and late runs of the engine behind the scheduler, and that they can fail."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from metrale.cli import conform as command
from metrale.cli import run as run_command
from metrale.cli.errors import BadInput
from metrale.cli.goldens import find_pairs
from metrale.conform.checks import fixed_tiles, free_checks
from metrale.conform.devices import DEVICES, MODES, SHORT
from metrale.conform.forced import drawn_check, forced_check, suite
from metrale.conform.forced_device import ForcedDevice
from metrale.conform.free import PIPELINED, WAYS, Finding, Weights, alone, check_way, models
from metrale.conform.tiny import edge_device, random_weights, tiny_config
from metrale.device.conformance.ordering import CASES
from metrale.device.engine import Streams
from metrale.device.kernels import reference
from metrale.device.loading import BACKENDS, backend, shipped_model
from metrale.device.ptx import runner
from metrale.device.ptx.faults import KernelFault, PtxError
from metrale.device.ptx.runner import interpreting
from metrale.sim.fuzz.draw import draw_scenario
from metrale.sim.scenario import scenario_from

GOLDEN = Path(__file__).parents[2] / "golden"
PAIRS = find_pairs([GOLDEN])
TOKENS = 16


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_forced_traces_equal_the_goldens(pair):
    check = forced_check(pair.scenario)
    assert check.problem == ""
    assert check.excused == ""


@pytest.mark.parametrize("pair", PAIRS[:: max(1, len(PAIRS) // 12)], ids=lambda pair: pair.name)
def test_forced_traces_in_late_order(pair):
    assert forced_check(pair.scenario, "late").problem == ""


@pytest.mark.parametrize("seed", range(24))
def test_drawn_scenarios_on_the_engine_and_on_the_mock(seed):
    check = drawn_check(seed)
    assert check.problem == "" or check.excused


def test_a_wrong_engine_is_noticed(monkeypatch):
    """Rows of a forced run really come from the engine's own arena: spoil the pick and the trace differs."""
    monkeypatch.setattr(ForcedDevice, "argmax_batch", lambda self, row, count, stream: [5] * count)
    pair = next(pair for pair in PAIRS if pair.name == "preempt_requeue")
    assert "instead of" in forced_check(pair.scenario).problem


@pytest.fixture(scope="module")
def loaded():
    return [(weights, ways, alone(weights, TOKENS)) for weights, ways in models(shipped_model())]


@pytest.mark.parametrize("way", [*WAYS, *PIPELINED], ids=lambda way: way.name)
def test_free_text_is_the_same_on_every_way(loaded, way):
    weights, _, wanted = next(entry for entry in loaded if way in entry[1])
    assert check_way(weights, way, wanted, TOKENS) == Finding()


@pytest.mark.parametrize("name", ["mixed", "spilled", "MTP batched", "MTP mixed", "MTP with prefix cache", "n-gram"])
def test_free_text_in_late_and_random_order(loaded, name):
    weights, ways, wanted = loaded[0]
    way = next(way for way in ways if way.name == name)
    for order, seed in (("late", 0), ("random", 3)):
        assert check_way(weights, way, wanted, TOKENS, Streams(order, seed)) == Finding()


@pytest.mark.parametrize(("edge", "name"), [("event", "mixed"), ("forward-after-secondary", "MTP K4")])
def test_a_missing_wait_shows_in_free_text(loaded, edge, name):
    weights, ways, wanted = loaded[0]
    way = next(way for way in ways if way.name == name)
    assert "instead of" in check_way(weights, way, wanted, TOKENS, Streams("late", 0, without=edge)).problem


def test_a_way_that_is_not_taken_is_no_success(loaded):
    weights, ways, wanted = loaded[0]
    way = replace(ways[0], evidence=("beam_search_of_the_moon(",))
    assert "this way was not taken" in check_way(weights, way, wanted, TOKENS).problem


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.edge)
def test_every_wait_is_needed(case):
    wanted = case.outcome(edge_device(case, Streams()))
    assert case.outcome(edge_device(case, Streams("late"))) == wanted
    assert case.outcome(edge_device(case, Streams("late", without=case.edge))) != wanted


def run(*args: str) -> int:
    return command.conform.main(args=list(args), standalone_mode=False)


def test_the_command(capsys):
    paths = [str(GOLDEN / "beam.toml"), str(GOLDEN / "verify_k4.toml")]
    assert run("--mode", "forced", *paths, "--seeds", "3", "--json") == 0
    out, err = capsys.readouterr()
    assert [check["problem"] for check in json.loads(out)["checks"]] == [""] * 5
    assert err == "5 checks, 0 failed: forced 5/5\n"


def test_the_command_on_a_changed_golden(tmp_path, capsys):
    (tmp_path / "beam.toml").write_bytes((GOLDEN / "beam.toml").read_bytes())
    text = (GOLDEN / "beam.trace").read_text()
    (tmp_path / "beam.trace").write_text(text.replace("n=1", "n=2", 1))
    assert run("--mode", "forced", str(tmp_path)) == 1
    out, err = capsys.readouterr()
    assert "instead of" in out
    assert f"next: metrale run {tmp_path}/beam.toml --device torch" in err


def test_the_command_without_a_model(tmp_path):
    with pytest.raises(BadInput, match="no such directory"):
        run("--mode", "free", "--model", str(tmp_path / "absent"))


def test_every_backend_has_its_modes():
    assert set(BACKENDS) == set(DEVICES)
    assert DEVICES["torch"].modes == MODES
    assert {name: (entry.modes, entry.short) for name, entry in DEVICES.items() if name != "torch"} == {
        "cuda-sim": (("forced",), True),
        "cuda-ptx": (("forced", "free"), True),
        "cuda": (("forced", "free"), False),
    }


def test_what_takes_minutes_runs_only_where_it_is_asked_for(capsys):
    assert {name: entry.unasked for name, entry in DEVICES.items()} == {
        "torch": ("forced", "free", "late"),
        "cuda-sim": ("forced",),
        "cuda-ptx": ("forced",),
        "cuda": ("forced", "free"),
    }
    with pytest.raises(
        BadInput, match="no late mode there, it repeats free mode three times; it offers forced and free"
    ):
        run("--mode", "late", "--device", "cuda-ptx")
    with pytest.raises(BadInput, match="--no-races: --device torch looks for no races; cuda-ptx does"):
        run("--no-races", str(GOLDEN / "beam.toml"))


def test_the_search_for_races_can_be_left_out(monkeypatch, capsys):
    monkeypatch.setattr(runner, "active", None)
    path = str(GOLDEN / "no_request.toml")
    assert run("--device", "cuda-ptx", path) == 0
    assert runner.active.races is True
    assert run("--device", "cuda-ptx", "--no-races", path) == 0
    assert runner.active.races is False
    assert capsys.readouterr().err == "1 checks, 0 failed: forced 1/1\n" * 2


def faulty(monkeypatch, fault):
    """The kernel that picks tokens does what no kernel may do."""

    def argmax(logits):
        raise fault

    monkeypatch.setattr(reference, "argmax", argmax)


@pytest.mark.parametrize("fault", [KernelFault("pick: an address\n  of nobody"), PtxError("an unknown opcode")])
def test_a_kernel_that_faults_is_a_failed_check(monkeypatch, capsys, fault):
    faulty(monkeypatch, fault)
    told = f"kernel fault: {' '.join(str(fault).split())}"
    assert run("--mode", "forced", str(GOLDEN / "preempt_requeue.toml")) == 1
    out, err = capsys.readouterr()
    name = GOLDEN / "preempt_requeue"
    assert out == f"forced  {name}: {told}\n"
    assert err.splitlines()[-1] == "1 checks, 1 failed: forced 0/1"
    checks = list(free_checks(("free",), backend("torch"), part=(20, 25), count=4))
    assert [(check.problem, check.failed) for check in checks] == [(told, True)]


def test_no_excuse_holds_for_a_fault(monkeypatch):
    faulty(monkeypatch, KernelFault("pick: an address of nobody"))
    drawn = ((seed, scenario_from(draw_scenario(seed), "drawn")) for seed in range(200))
    seed = next(seed for seed, scenario in drawn if scenario.device.spill_capacity is not None)
    check = drawn_check(seed)
    assert (check.problem, check.failed) == ("kernel fault: pick: an address of nobody", True)


def test_free_text_on_the_interpreted_kernels():
    """Two requests at depth 2; `metrale conform --mode free --device cuda-ptx` takes every way."""
    weights, ways = models(shipped_model())[1]
    few = replace(weights, prompts=weights.prompts[:3:2])
    with interpreting() as machine:
        on = fixed_tiles(backend("cuda-ptx"))
        wanted = alone(few, 3, on)
        assert check_way(few, replace(ways[0], only=(0, 1)), wanted, 3, on=on) == Finding()
    assert wanted == alone(few, 3)
    assert {"pick", "attention_decode", "attention_prefill"} <= set(machine.kernels())


def test_a_run_whose_kernel_faults_ends_in_one_line(monkeypatch, capsys, tmp_path):
    faulty(monkeypatch, KernelFault("pick: an address of nobody"))
    path, trace = str(GOLDEN / "preempt_requeue.toml"), tmp_path / "out.trace"
    status = run_command.run.main(args=[path, "--device", "torch", "-o", str(trace)], standalone_mode=False)
    out, err = capsys.readouterr()
    assert (status, out, err) == (1, "", f"{path}: kernel fault: pick: an address of nobody\n")
    assert not trace.exists()


def test_the_suite_begins_with_its_shortest_golden():
    whole, short = suite(GOLDEN), suite(GOLDEN, short=True)
    assert len(whole) == len(PAIRS)
    assert short == [path for path in whole if path.with_suffix(".trace").stat().st_size <= SHORT]
    assert 10 < len(short) < len(whole)
    assert whole[: len(short)] == short


def test_a_scenario_without_a_golden(tmp_path):
    (tmp_path / "beam.toml").write_bytes((GOLDEN / "beam.toml").read_bytes())
    with pytest.raises(BadInput, match=r"beam\.trace: no such file; `metrale accept .*beam\.toml` records it"):
        run("--mode", "forced", str(tmp_path / "beam.toml"))


WITHOUT = """
import sys
from pathlib import Path
for name in sys.argv[2:]:
    sys.modules[name] = None
from metrale.conform.checks import free_checks
from metrale.device.loading import backend, limit_threads
limit_threads(0)
on = backend("torch")
print(sum(check.problem == "" for check in free_checks(("free",), on, part=(20, 25), count=4)), "free")
from metrale.conform.forced import forced_check
print(forced_check(Path(sys.argv[1]), on=on).problem == "", "forced")
"""


def without(*packages: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT, str(GOLDEN / "beam.toml"), *packages]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_free_mode_needs_torch_alone_and_forced_mode_pydantic():
    done = without("click", "lark", "rich", "jinja2", "hypothesis")
    assert (done.returncode, done.stdout) == (0, "1 free\nTrue forced\n"), done.stderr
    done = without("click", "lark", "pydantic")
    assert (done.returncode, done.stdout) == (1, "1 free\n")
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: import of pydantic halted; None in sys.modules"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mode", "free", "golden/beam.toml"], "golden/beam.toml: only forced mode runs scenarios"),
        (["--mode", "late", "--seeds", "3"], "--seeds 3: only forced mode runs scenarios"),
        (["--mode", "forced", "--model", "m"], "--model m: forced mode has a model of its own"),
    ],
)
def test_what_no_mode_looks_at_is_refused(arguments, message):
    with pytest.raises(BadInput, match=message):
        command.conform.main(args=arguments, standalone_mode=False)


def test_a_foreign_model_may_not_lead_every_way():
    """Texts of the small attention model on the n-gram way: nothing repeats, which is a fault of our model alone."""
    config = tiny_config(64, hybrid=False)
    prompts = [[1, 2, 3], [4, 5]]
    ways = {way.name: way for way in WAYS}
    way = replace(ways["n-gram"], only=(0, 1), evidence=("never in a log",))
    model = Weights("mine", config, random_weights(config), prompts)
    found = check_way(model, way, alone(model, 4), 4)
    assert (found.problem, found.excused) == ("no call log line has 'never in a log': this way was not taken", "")
    found = check_way(replace(model, foreign=True), way, alone(model, 4), 4)
    assert found.excused == "texts of this model do not repeat themselves"
    found = check_way(replace(model, foreign=True), replace(way, by_text=""), alone(model, 4), 4)
    assert found.excused == ""
