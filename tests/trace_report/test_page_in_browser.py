"""The HTML page in a real browser: no console errors, clicks and keys show calls, it fits a phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from metrale.trace.align import compare
from metrale.trace.report.html import Result, check_page, diff_page, trace_page

from .browser import Browser, find_browser
from .planting import golden
from .test_explanations import rerun

BROWSER = find_browser()
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium here (apt-get install chromium)")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert BROWSER is not None
    browser = Browser(BROWSER, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page on a difference, on a small trace, on a long one, and on a check."""
    folder = tmp_path_factory.mktemp("pages")
    a, b = golden("preempt_requeue"), rerun("preempt_requeue", "a later decode is refused")
    found = compare(a.encode(), b.encode(), ("a", "b"))
    texts = {
        "diff": diff_page(found),
        "small": trace_page("small", golden("spill_swap_out_in").encode()),
        "long": trace_page("long", golden("watchdog_rollback").encode()),
        "check": check_page([Result("x", False, "different", "", found)], "1 checked"),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text)
    return {name: folder / f"{name}.html" for name in texts}


@pytest.fixture(autouse=True)
def no_errors(browser: Browser) -> Iterator[None]:
    yield
    assert browser.errors == []


def calls(browser: Browser) -> str:
    return browser.run(
        "document.getElementById('calls-title').textContent + '|' + document.getElementById('calls').innerText"
    )


def test_it_opens_at_the_first_difference(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["diff"])
    text = calls(browser)
    assert text.startswith("Calls of A tick 2, B tick 2|")
    assert "-> ERR KV cache exhausted" in text
    assert "cause 1" in text
    assert browser.run("document.querySelectorAll('#calls tr.r1').length") == 1
    assert [url for url in browser.requests if url.startswith(("http", "ws"))] == []


def test_a_click_shows_the_calls_of_a_tick(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["diff"])
    browser.click('.col[data-column="4"] .hit')
    browser.wait("document.getElementById('calls-title').textContent === 'Calls of A tick 4, B tick 4'")
    assert "decode_batch(tokens=[33, 23, 12]" in calls(browser)
    assert browser.run("document.querySelector('.col[aria-pressed=\"true\"]').dataset.column") == "4"


def test_the_keyboard_is_enough(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["diff"])
    browser.run("document.querySelector('.col[tabindex=\"0\"]').focus()")
    browser.press("ArrowRight")
    browser.wait("document.getElementById('calls-title').textContent === 'Calls of A tick 3, B tick 3'")
    browser.press("Enter")
    browser.wait("document.activeElement.id === 'calls'")
    browser.press("Escape")
    browser.wait("document.activeElement.dataset.column === '3'")
    browser.press("End")
    browser.wait("document.getElementById('calls-title').textContent === 'Calls of A tick 8, B tick 8'")
    browser.press("Home")
    browser.wait("document.getElementById('calls-title').textContent === 'Calls of A tick 0, B tick 0'")


def test_next_difference(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["diff"], fragment="#column0")
    assert calls(browser).startswith("Calls of A tick 0, B tick 0")
    browser.click("#next")
    browser.wait("document.getElementById('calls-title').textContent === 'Calls of A tick 2, B tick 2'")


def test_a_trace_by_slots_requests_and_blocks(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["small"])
    assert browser.run("document.querySelectorAll('#slots .seat').length") == 9
    assert browser.run("document.querySelectorAll('#lanes .parked').length") == 1
    assert browser.run("document.querySelectorAll('#blocks path').length") == 1
    assert browser.run("[...document.querySelectorAll('#lanes title')].some(t => t.textContent.includes('parked'))")


def test_a_long_trace_loads_by_tick(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["long"])
    assert browser.run("document.querySelectorAll('#slots .col').length") == 40
    browser.click("#on")
    browser.wait("document.getElementById('where').textContent === 'ticks 40 to 79'")
    browser.click("#overview")
    browser.wait("document.getElementById('calls-title').textContent.startsWith('Calls of tick 127')")


@pytest.mark.parametrize("page", ["diff", "small", "long", "check"])
def test_a_phone_need_not_scroll_sideways(browser: Browser, pages: dict[str, Path], page: str) -> None:
    browser.open(pages[page], width=390, height=800)
    assert browser.run("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("dark", [False, True])
def test_text_has_contrast_in_light_and_dark(
    browser: Browser, pages: dict[str, Path], dark: bool, tmp_path: Path
) -> None:
    browser.open(pages["diff"], dark=dark)
    luminance = (
        "(c => { const [r, g, b] = c.match(/[0-9.]+/g).map(v => { v /= 255;"
        " return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126*r + 0.7152*g + 0.0722*b; })"
    )
    for selector in ("body", "h1", ".hint", "pre .a", "pre .b", "#calls tr.r2 td.w", "#calls td.n"):
        ratio = browser.run(
            f"(() => {{ const lum = {luminance}; let e = document.querySelector({selector!r});"
            " const ink = lum(getComputedStyle(e).color); let back = 'rgba(0, 0, 0, 0)';"
            " for (; e && back === 'rgba(0, 0, 0, 0)'; e = e.parentElement) back = getComputedStyle(e).backgroundColor;"
            " const paper = lum(back); return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05); })()"
        )
        assert ratio >= (3 if selector.startswith("#calls tr.r2") else 4.5), selector
    browser.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000
