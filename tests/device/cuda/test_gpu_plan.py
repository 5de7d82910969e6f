"""What the GPU check does in which order, what it does when a launch fails, and how its report reads."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

TOOLS = Path(__file__).parents[3] / "tools"
FACTS = {"gpu": "a card", "cores": 16, "processes": "many"}
GOOD, BAD = {"fault": ""}, {"fault": "wrong results of rms_norm"}


@pytest.fixture(autouse=True)
def tools(monkeypatch):
    monkeypatch.syspath_prepend(TOOLS)


class Jobs:
    """Processes that answer at once. ``probes`` are what successive probes find out."""

    def __init__(self, report, probes, left=100.0):
        self.report, self.probes, self.left = report, list(probes), left
        self.environment = {}
        self.finished = []
        self.settled = []
        self.prepared = 0
        self.busy = []

    def start(self, job):
        self.prepared += 1
        return SimpleNamespace(job=job)

    def settle(self, waiting, limit):
        self.settled.append((len(self.finished), [one.job.name for one in waiting]))
        return self.busy

    def finish(self, running, limit):
        self.finished.append([one.job.name for one in running])
        self.prepared -= len(running)
        if running[0].job.name == "probe":
            for section, name, value in self.probes.pop(0):
                failures = [value] if name == "problem" else []
                self.report.take({"section": section, "name": name, "value": value, "failures": failures})
        for one in running:
            for section in one.job.sections:
                self.report.told(section, "done", "")


def probed(smoke, launches="packed", captured="yes", **facts):
    found = [("machine", name, value) for name, value in (FACTS | facts).items()]
    return [*found, ("smoke", launches, smoke), ("graph capture", "thread_local", {"captured": captured})]


def checked(tmp_path, probes, left=100.0, busy=()):
    import gpu_check
    import gpu_report

    report = gpu_report.Report(tmp_path, gpu_check.SECTIONS, rehearsal=False)
    jobs = Jobs(report, probes, left)
    jobs.busy = list(busy)
    check = gpu_check.Check(report, jobs, rehearse=False)
    check.run()
    return report, jobs, check


def test_with_many_cores_checks_run_together_and_measurements_in_turn(tmp_path):
    report, jobs, check = checked(tmp_path, [probed(GOOD)])
    assert [len(names) for names in jobs.finished] == [1, 14, 1, 1, 1]
    assert jobs.finished[1][0] == "kernel checks, part 1 of 7"
    assert jobs.finished[2:] == [["bandwidth"], ["decode steps"], ["engine"]]
    assert jobs.settled == [(2, ["bandwidth", "decode steps", "engine"])]
    assert (check.graphs, jobs.environment, report.failures) == (True, {}, [])
    assert {entry["state"] for entry in report.sections.values()} == {"done"}


@pytest.mark.parametrize("facts", [{"cores": 4}, {"processes": "one"}])
def test_with_few_cores_or_a_gpu_for_one_process_everything_runs_in_turn(tmp_path, facts):
    _, jobs, _ = checked(tmp_path, [probed(GOOD, **facts)])
    assert [names[0] for names in jobs.finished] == [
        "probe",
        "kernel checks",
        "conform free",
        "conform forced",
        "conform free, as served",
        "bandwidth",
        "decode steps",
        "engine",
    ]
    assert all(len(names) == 1 for names in jobs.finished)
    assert jobs.settled == [(5, [])]


def test_measurements_beside_something_busy_are_marked(tmp_path):
    report, _, _ = checked(tmp_path, [probed(GOOD)], busy=["engine"])
    notes = {name: entry["notes"] for name, entry in report.sections.items() if "notes" in entry}
    told = "not alone at the start of the measurements: engine"
    assert notes == {"bandwidth": [told], "decode steps": [told], "engine": [told]}
    assert report.failures == []


def test_where_our_launches_fail_numbas_are_taken(tmp_path):
    _, jobs, _ = checked(tmp_path, [probed(BAD), probed(GOOD, "numba")])
    assert jobs.environment == {"METRALE_LAUNCH": "numba"}
    assert [names[0] for names in jobs.finished[:3]] == ["probe", "probe", "kernel checks, part 1 of 7"]


def test_a_probe_that_answers_nothing_is_tried_with_numbas_launches(tmp_path):
    report, jobs, _ = checked(tmp_path, [[], []])
    assert jobs.finished == [["probe"], ["probe"]]
    assert report.sections["engine"]["state"] == "not run"


def test_a_gpu_that_numba_cannot_use_fails_once_and_ends_the_check(tmp_path):
    report, jobs, _ = checked(tmp_path, [[("machine", "problem", "Numba cannot compile")]])
    assert jobs.finished == [["probe"]]
    assert report.failures == ["machine: Numba cannot compile"]
    assert report.content["status"] == "run"
    states = {name: entry["state"] for name, entry in report.sections.items() if name not in ("smoke", "graph capture")}
    assert states == {"machine": "done"} | dict.fromkeys(list(states)[1:], "not run")
    assert "* machine: Numba cannot compile" in (tmp_path / "gpu_check.md").read_text().split("\n")


def test_without_a_gpu_nothing_else_is_tried(tmp_path):
    report, jobs, _ = checked(tmp_path, [[("machine", "reason", "torch sees no CUDA GPU here")]])
    assert (jobs.finished, report.failures, report.content["status"]) == ([["probe"]], [], "not run")


def test_without_a_capture_no_graphs_are_asked_for(tmp_path):
    _, _, check = checked(tmp_path, [probed(GOOD, captured="no")])
    assert check.graphs is False


def test_when_the_time_is_over_sections_are_left_out(tmp_path):
    report, jobs, _ = checked(tmp_path, [], left=-1.0)
    assert jobs.finished == []
    assert report.sections["machine"]["notes"] == ["the time was over"]
    assert report.sections["bandwidth"]["state"] == "not run"


def test_a_lost_context_starts_the_process_anew_behind_its_unit(monkeypatch):
    import gpu_sections

    from metrale.device.cuda import checks

    def broken(inputs):
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(
        gpu_sections, "_checks", lambda rehearse: iter([("broken", broken), ("good", checks.check_moves)])
    )
    monkeypatch.setattr(gpu_sections, "lost", lambda: True)
    again = []
    task = gpu_sections.Task((0, 1), True, False, lambda: None, 1, again.append)
    found = list(gpu_sections.kernel_checks(task))
    assert [(name, failures) for _, name, _, failures in found] == [
        ("broken, bfloat16", ["broken, bfloat16: RuntimeError: an illegal memory access"])
    ]
    assert again == [2]


def test_a_process_becomes_its_successor(monkeypatch):
    import gpu_check

    became = []
    monkeypatch.setattr(gpu_check.os, "execv", lambda path, command: became.append(command))
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--task", "kernel checks"])
    gpu_check.start_again(3)
    monkeypatch.setattr(sys, "argv", became[0][1:])
    gpu_check.start_again(5)
    assert became[1] == [sys.executable, "gpu_check.py", "--task", "kernel checks", "--done", "5"]


def test_a_context_that_stands_is_not_lost(monkeypatch):
    import gpu_sections

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert gpu_sections.lost() is False
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: (_ for _ in ()).throw(RuntimeError("sticky")))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert gpu_sections.lost() is True


def section(**results):
    return {"state": "done", "from": 1.0, "until": 2.5, "results": results}


def test_the_report_for_people():
    import gpu_report

    rate = {"bytes": 2_000_000, "seconds": 1e-6, "gigabytes_per_second": 2000.0, "share_of_copy": 0.5}
    step = {"same_picks": 1.0, "kernels_steps_per_second": 200.0, "torch_steps_per_second": 150.0}
    content = {
        "status": "run",
        "rehearsal": False,
        "failures": ["kernel checks: x: wrong"],
        "sections": {
            "kernel checks": section(
                **{"argmax, float32": {"pairs": 3, "faults": []}, "x": {"pairs": 2, "faults": ["wrong"]}}
            ),
            "conform free": section(
                **{
                    "one": {"problem": "", "excused": ""},
                    "two": {"problem": "request 0: differs", "excused": "rounding: margin 1e-6"},
                    "three": {"problem": "request 1: differs", "excused": ""},
                }
            ),
            "bandwidth": section(
                **{
                    "copy": 4000.0,
                    "timed by": "graph replays",
                    "slow": rate | {"aim": 0.85},
                    "fast": rate | {"aim": 0.4},
                    "free": rate | {"aim": 0.0},
                    "broken": {"error": "RuntimeError: a|b"},
                }
            ),
            "decode steps": section(
                **{"1 x 8": step | {"kernels_graph_steps_per_second": 900.0}, "2 x 8": {"error": "out of memory"}}
            ),
            "engine": section(
                **{
                    "bf16": {"steps_per_second": 99.5, "tokens_per_second": 796.0, "recordings": 2, "reason": ""},
                    "fp32": {"error": "no"},
                }
            ),
        },
    }
    text = gpu_report.markdown(content)
    for line in (
        "| kernel checks | done | 1.0 | 2.5 |  |",
        "2 checks, 5 comparisons, 1 checks with faults.",
        "Argmax: the lowest index on ties, the same bits in three runs: yes.",
        "* x: wrong",
        "3 checks, 1 failed, 1 excused.",
        "* three: request 1: differs",
        "* two: excused: rounding: margin 1e-6",
        "* copy: 4000 GB/s",
        "* timed by graph replays",
        "| kernel | MB | µs | GB/s | share of copy | aim | met |",
        "| slow | 2.0 | 1.0 | 2000 | 50% | 85% | not met |",
        "| fast | 2.0 | 1.0 | 2000 | 50% | 40% | met |",
        "| free | 2.0 | 1.0 | 2000 | 50% |  |  |",
        "| broken |  |  |  |  |  | RuntimeError: a\\|b |",
        "| 1 x 8 | 200 | 900 | 150 | not captured | 100% |",
        "| 2 x 8 | out of memory |",
        "| bf16 | 99.5 | 796 | 2 |  |",
        "| fp32 | no |",
    ):
        assert line in text.split("\n"), line
