"""Processes of the GPU check that hang, crash, or are not started, and what the report says of them."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[3] / "tools"
WRITE = (
    "import json, os, sys, time\n"
    "def write(**record):\n"
    "    with open(sys.argv[-1], 'a') as file: file.write(json.dumps(record) + '\\n')\n"
    "def result(name, value, failures=()): write(section='one', name=name, value=value, failures=list(failures))\n"
)


@pytest.fixture
def parts(monkeypatch, tmp_path):
    """A report with the sections one and two, and a maker of jobs that run some code."""
    monkeypatch.syspath_prepend(TOOLS)
    import gpu_jobs
    import gpu_report

    report = gpu_report.Report(tmp_path, ("one", "two"), rehearsal=False)
    jobs = gpu_jobs.Jobs(tmp_path, dict(os.environ), time.monotonic() + 60, report.take, report.told)

    def start(code: str, section: str = "one"):
        running = jobs.start(gpu_jobs.Job(section, (section,), (sys.executable, "-c", WRITE + code)))
        report.open((section,))
        return running

    yield report, jobs, start
    jobs.end()


def written(report):
    return json.loads((report.folder / "gpu_check.json").read_text())


def test_a_hanging_process_is_killed_and_keeps_what_it_had(parts):
    report, jobs, start = parts
    hanging = start("result('first', 1)\ntime.sleep(600)")
    while not hanging.records.exists() or not hanging.records.read_bytes().endswith(b"\n"):
        time.sleep(0.01)
    jobs.finish([hanging], 0.2)
    assert hanging.process.poll() == -9
    entry = written(report)["sections"]["one"]
    assert (entry["state"], entry["results"]) == ("killed", {"first": 1})
    assert report.failures == [f"one: {entry['notes'][0]}"]
    assert entry["notes"][0].startswith("one: killed after ")


def test_a_crash_is_told_with_its_last_words(parts):
    report, jobs, start = parts
    jobs.finish([start("result('first', 1)\nsys.exit('no such kernel')")], 60)
    entry = written(report)["sections"]["one"]
    assert (entry["state"], entry["results"]) == ("crashed", {"first": 1})
    assert report.failures == ["one: one: exit status 1: no such kernel"]


def test_one_that_has_said_that_it_is_through_may_hang_at_its_end(parts):
    report, jobs, start = parts
    jobs.finish([start("result('first', 1, ['wrong'])\nwrite(end=True)\ntime.sleep(600)")], 60)
    assert written(report)["sections"]["one"]["state"] == "done"
    assert report.failures == ["one: wrong"]


def test_a_process_waits_for_its_turn(parts):
    report, jobs, start = parts
    waiting = start("result('line', sys.stdin.readline())\nwrite(end=True)")
    time.sleep(0.3)
    assert waiting.look() == []
    jobs.finish([waiting], 60)
    assert written(report)["sections"]["one"]["results"] == {"line": "go\n"}


READY = "write(ready=True)\nsys.stdin.readline()\nwrite(end=True)"


def test_measurements_start_when_all_that_wait_are_prepared(parts):
    _, jobs, start = parts
    first, second = start(READY), start("time.sleep(0.5)\n" + READY, "two")
    assert jobs.settle([first, second], 60) == []
    assert (first.ready, second.ready, first.ended, second.ended) == (True, True, False, False)
    jobs.finish([first], 60)
    assert (first.ended, second.ended) == (True, False)


def test_one_that_waits_is_busy_for_who_does_not_expect_it(parts):
    _, jobs, start = parts
    waiting = start(READY)
    assert jobs.settle([waiting], 60) == []
    assert jobs.settle([], 0.1) == ["one"]


def test_who_does_not_get_prepared_or_does_not_end_is_named(parts):
    _, jobs, start = parts
    start("result('first', 1)\ntime.sleep(600)", "two")
    slow = start("time.sleep(600)")
    assert jobs.settle([slow], 0.2) == ["two", "one"]


def test_a_process_that_crashes_while_it_is_prepared_is_not_waited_for(parts):
    report, jobs, start = parts
    crashed = start("sys.exit('no kernel')")
    assert jobs.settle([crashed], 60) == []
    jobs.finish([crashed], 60)
    assert report.failures == ["one: one: exit status 1: no kernel"]


def test_notes_are_no_failures(parts):
    report, _, _ = parts
    report.note("one", "beside another")
    entry = written(report)["sections"]["one"]
    assert (entry["notes"], entry["state"], report.failures) == (["beside another"], "waiting", [])


@pytest.mark.parametrize(("code", "state"), [("sys.exit(3)", "crashed"), ("write(end=True)", "done")])
def test_a_section_of_two_processes_is_as_good_as_the_worse(parts, code, state):
    report, jobs, start = parts
    jobs.finish([start(code), start("write(end=True)")], 60)
    assert written(report)["sections"]["one"]["state"] == state


def test_what_a_process_leaves_out_is_no_failure(parts):
    report, jobs, start = parts
    jobs.finish([start("write(section='one', left_out='needs pydantic')\nwrite(end=True)")], 60)
    entry = written(report)["sections"]["one"]
    assert (entry["state"], entry["notes"], report.failures) == ("not run", ["needs pydantic"], [])
    lines = (report.folder / "gpu_check.md").read_text().split("\n")
    assert "* one: not run: needs pydantic" in lines


def test_past_the_deadline_nothing_goes_on(parts):
    report, jobs, start = parts
    jobs.deadline = time.monotonic() - 1
    jobs.finish([start("time.sleep(600)", "two")], 60)
    assert written(report)["sections"]["two"]["state"] == "killed"


def test_the_end_kills_whatever_is_left(parts):
    _, jobs, start = parts
    left = start("time.sleep(600)")
    jobs.end()
    assert left.process.poll() == -9
