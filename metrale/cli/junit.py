"""The outcomes of a check as JUnit XML, which CI systems show as tests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree as ET

from metrale.cli.goldens import Outcome, Verdict

_FORBIDDEN = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(outcomes: Sequence[Outcome]) -> bytes:
    """One test case per pair, in the order of the check; a difference is a failure, an unusable file an error."""
    failures = [o for o in outcomes if _element(o) == "failure"]
    errors = [o for o in outcomes if _element(o) == "error"]
    counts = {"tests": str(len(outcomes)), "failures": str(len(failures)), "errors": str(len(errors))}
    root = ET.Element("testsuites", counts)
    suite = ET.SubElement(root, "testsuite", {"name": "metrale check", **counts})
    for outcome in outcomes:
        pair = outcome.pair
        case = ET.SubElement(suite, "testcase", {"classname": _clean(str(pair.stem.parent)), "name": _clean(pair.name)})
        tag = _element(outcome)
        if tag is not None:
            found = ET.SubElement(case, tag, {"type": outcome.verdict.value, "message": _clean(outcome.message)})
            found.text = _clean(str(outcome.diff) if outcome.diff is not None else outcome.message)
    ET.indent(root)
    body: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return body + b"\n"


def _element(outcome: Outcome) -> str | None:
    if outcome.verdict is Verdict.PASSED:
        return None
    return "error" if outcome.verdict in (Verdict.INVALID, Verdict.STUCK) else "failure"


def _clean(text: str) -> str:
    """XML cannot hold most control characters."""
    return _FORBIDDEN.sub("�", text)
