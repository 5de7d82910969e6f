"""Guards that the table of planted faults does not take away: a checker sees each of them go."""

from __future__ import annotations

from typing import Any

import pytest
from testkit import E, req, scenario, toks

from metrale.core import admission, parking, scheduler
from metrale.core.request import Request
from metrale.core.state import State
from metrale.sim import RunError, Scenario, run_scenario
from metrale.sim.invariants import check_text


def broken_rules(case: Scenario) -> set[str]:
    return {violation.invariant for violation in check_text(run_scenario(case).text, case)}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a prompt that never fits": (req(1, 400, [10, E]), "prompt needs"),
    "an empty prompt": (req(1, 0, [10, E]), "prompt is empty"),
    "no token to generate": (req(1, 5, [10, E], max_tokens=0), "max_tokens"),
    "an id outside the vocabulary": (req(1, None, [10, E], prompt=[5, 64]), "token 64"),
}


@pytest.mark.parametrize(("first", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_request_that_is_not_refused(first: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = scenario(first, req(2, 5, [20, E]), device={"total_blocks": 10})
    assert broken_rules(case) == set()
    refusal = admission._refusal

    def lenient(s: State, request: Request) -> str | None:
        why = refusal(s, request)
        return None if why is not None and why.startswith(reason) else why

    monkeypatch.setattr(admission, "_refusal", lenient)
    assert "endings" in broken_rules(case)


def test_a_cancel_that_a_prefill_does_not_hear(monkeypatch: pytest.MonkeyPatch) -> None:
    case = scenario(
        req(1, 4, toks(10, 21, E)), req(2, 40, [20, E], at=2, cancel_at_tick=4), req(3, 40, [30, E], at=2),
        max_prefill_tokens=8,
    )  # fmt: skip
    assert broken_rules(case) == set()
    monkeypatch.setattr(parking, "_ended_prefill", lambda s, entry, now: False)
    assert "endings" in broken_rules(case)


def test_a_rotation_that_waits_for_nobody_or_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    case = scenario(req(1, 5, [10, 11, 12, E]), lora_rotation="adapter-x")
    assert broken_rules(case) == set()

    def at_once(s: State, admitted: list[Request]) -> None:
        rotations, s.rotations = s.rotations, []
        for rotation in rotations:
            s.router.rotate_lora(rotation.name)
            rotation.ack.done()

    monkeypatch.setattr(scheduler, "_rotate_if_quiescent", at_once)
    assert "rotation" in broken_rules(case)
    monkeypatch.setattr(scheduler, "_rotate_if_quiescent", lambda s, admitted: None)
    with pytest.raises(RunError):
        run_scenario(case, max_ticks=100)
