"""pytest collects scenarios: every NAME.toml with NAME.trace beside it is a test that runs it and compares bytes.

The test passes if the trace of a fresh run equals NAME.trace; otherwise the failure shows where they part. Nothing
is written unless ``--metrale-update`` is given, which makes the fresh trace the golden and is refused in CI. Collection
can be turned off with the ini option ``metrale_collect = false`` or with ``-p no:metrale``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from metrale.trace.align import Comparison


class TraceDiffers(Exception):
    """The run gave another trace than the golden."""

    def __init__(self, found: Comparison) -> None:
        super().__init__("the trace differs from the golden")
        self.found = found


class Unusable(Exception):
    """The scenario cannot be read or run; the text is one line that says why."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("metrale", "scheduler scenarios with golden traces")
    group.addoption(
        "--metrale-update",
        action="store_true",
        help="make the traces of this run the goldens of the scenarios that ran; refused when CI is set",
    )
    parser.addini("metrale_collect", "collect NAME.toml with NAME.trace beside it as tests", "bool", default=True)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("metrale_update"):
        from metrale.cli.files import in_ci

        if in_ci():
            raise pytest.UsageError("--metrale-update: CI is set, and in CI nothing writes a golden")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    wanted = file_path.suffix == ".toml" and file_path.with_suffix(".trace").is_file()
    if not wanted or not parent.config.getini("metrale_collect"):
        return None
    return ScenarioFile.from_parent(parent, path=file_path)


class ScenarioFile(pytest.File):
    """A scenario with a golden: one test, named like the scenario's file."""

    def collect(self) -> Iterator[pytest.Item]:
        yield ScenarioItem.from_parent(self, name=self.path.stem)


class ScenarioItem(pytest.Item):
    """Runs the scenario and compares with the golden, bytes first."""

    def runtest(self) -> None:
        fresh = self._run()
        golden = self.path.with_suffix(".trace")
        expected = golden.read_bytes()
        if fresh == expected:
            return
        if self.config.getoption("metrale_update"):
            from metrale.cli.files import write_whole

            write_whole(golden, fresh)
            return
        from metrale.trace.align import compare

        raise TraceDiffers(compare(expected, fresh, (golden.name, "this run")))

    def _run(self) -> bytes:
        from metrale.sim.runner import RunError, run_scenario
        from metrale.sim.scenario import ScenarioError, load_scenario

        try:
            return run_scenario(load_scenario(self.path)).text.encode()
        except ScenarioError as error:
            raise Unusable(str(error)) from None
        except RunError as error:
            raise Unusable(f"{self.path}: {error}") from None

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, TraceDiffers):
            from metrale.trace.report import short_report

            return f"{short_report(excinfo.value.found)}\nnext: metrale check {self.path}"
        if isinstance(excinfo.value, Unusable):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"scenario {self.name}"
