"""The page of a report: one file, opened in a real browser."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import pytest
from cli.reports import EVIL, report
from services.browser import Tab, UnavailableError, browser

from reducing_saver.jobs.page import page
from reducing_saver.jobs.report import Report

COMMAND = "reducing-saver compact 'postgresql://app:***@db/prod' --job \"<b>\" --yes"
WHEN = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    # No extra of this project brings a browser, so that only CI, which names one, has to have it.
    try:
        with browser() as tab:
            yield tab
    except UnavailableError as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    made = page(report(errors=("thread '<i>': OSError",)), command=COMMAND, when=WHEN)
    path.write_text(made, encoding="utf-8")
    return path


def test_it_needs_nothing_else(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert not re.search(r"https?:|[\"'(]//|\ssrc=|@import|url\(", text)
    assert re.findall(r"<link [^>]*>", text) == ['<link rel="icon" href="data:,">']
    assert "$" not in text
    assert len(text) < 100_000


def test_only_its_own_script_may_run(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = b64encode(sha256(script.encode()).digest()).decode()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy == (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'"
    )


def test_the_same_report_is_the_same_page() -> None:
    assert page(report()) == page(report())


def test_an_empty_report_is_a_page(tab: Tab, tmp_path: Path) -> None:
    path = tmp_path / "empty.html"
    path.write_text(page(Report(True, "sqlite", "", "keep", "")), encoding="utf-8")
    tab.open(path)
    assert tab.complaints == []
    assert tab.run("document.querySelectorAll('section').length") == 1
    assert "0 of 0 threads" in tab.run("document.querySelector('h1').innerText")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1000])
def test_a_browser_shows_it_without_complaint(tab: Tab, file: Path, width: int, dark: bool) -> None:
    tab.open(file, width=width, dark=dark)
    assert tab.complaints == []
    assert tab.requests == [file.as_uri()]
    wide = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert tab.run(wide), "it scrolls sideways"
    ground = tab.run("getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(int, re.findall(r"\d+", ground)[:3])) / 3
    assert brightness < 60 if dark else brightness > 200


@pytest.mark.parametrize("width", [400, 1000])
def test_the_bar_has_the_shares_of_the_bytes(tab: Tab, file: Path, width: int) -> None:
    tab.open(file, width=width)
    found = tab.run(
        "Object.fromEntries([...document.querySelectorAll('.bar rect')].map(r => "
        "[r.dataset.part, r.getBBox().width * r.getScreenCTM().a]))"
    )
    whole = tab.run("document.querySelector('.bar').getBoundingClientRect().width")
    held = report().bytes
    assert whole > 0.8 * width
    assert sum(found.values()) == pytest.approx(whole, abs=1)
    for name, wide in found.items():
        assert wide == pytest.approx(whole * getattr(held, name) / held.before, abs=0.5)
    colours = (
        "new Set([...document.querySelectorAll('.bar rect')].map(r => getComputedStyle(r).fill))"
    )
    assert tab.run(f"{colours}.size") == 5


def test_what_stays_is_drawn_within_what_was(tab: Tab, file: Path) -> None:
    tab.open(file)
    boxes = (
        "[...document.querySelectorAll('.plot path')].map(p => p.getBoundingClientRect().toJSON())"
    )
    before, after = tab.run(boxes)
    assert before["bottom"] == pytest.approx(after["bottom"], abs=1)
    assert before["left"] == pytest.approx(after["left"], abs=1)
    assert before["width"] == pytest.approx(after["width"], abs=1)
    assert after["height"] < before["height"]
    labels = tab.run("[...document.querySelectorAll('.axis span')].map(s => s.innerText)")
    assert labels == ["1 kB", "10 kB", "100 kB", "1 MB", "10 MB", "100 MB"]


def test_the_bars_of_threads_have_their_shares(tab: Tab, file: Path) -> None:
    tab.open(file)
    rows = tab.run(
        "[...document.querySelectorAll('.size')].map(s => [s, s.firstChild].map("
        "e => e.getBoundingClientRect().width))"
    )
    largest = report().largest
    most = max(one.before for one in largest)
    widest = max(wide for wide, _ in rows)
    for one, (wide, inner) in zip(largest, rows, strict=True):
        assert wide / widest == pytest.approx(one.before / most, abs=0.01)
        assert inner / wide == pytest.approx(one.after / one.before, abs=0.02)


def test_a_thread_id_is_text(tab: Tab, file: Path) -> None:
    tab.open(file)
    assert tab.run("typeof window.pwned") == "undefined"
    names = tab.run(
        "[...document.querySelectorAll('td[data-value]')].map(c => c.firstChild.textContent)"
    )
    assert EVIL in names
    assert tab.run("document.querySelectorAll('script').length") == 1
    assert tab.run("document.querySelector('pre').innerText") == COMMAND
    assert tab.run("document.querySelector('.errors').innerText") == "thread '<i>': OSError"


def test_the_largest_threads_can_be_sorted(tab: Tab, file: Path) -> None:
    tab.open(file)
    cells = "[...document.querySelectorAll('tbody td:nth-child({})[data-value]')]"
    column = f"{cells}.map(cell => cell.dataset.value)"
    for number, convert in ((2, int), (3, int), (4, int), (1, str)):
        button = f"document.querySelector('th:nth-child({number}) button')"
        tab.run(f"{button}.click()")
        down = [convert(value) for value in tab.run(column.format(number))]
        assert down == sorted(down, reverse=number > 1)
        assert tab.run(f"{button}.parentNode.ariaSort") == "descending"
        tab.run(f"{button}.click()")
        assert [convert(value) for value in tab.run(column.format(number))] == down[::-1]
        assert tab.run(f"{button}.parentNode.ariaSort") == "ascending"
    assert tab.complaints == []


def test_it_says_what_the_terminal_says(tab: Tab, file: Path) -> None:
    tab.open(file)
    said = " ".join(tab.run("document.body.innerText").split())
    for words in (
        "Dry run, nothing was changed: 128 of 140 threads would shrink.",
        "added to the archive 5.3 MB 4,231 messages",
        "returned to the disk 0 bytes until VACUUM FULL",
        "Of paused threads nothing is counted as freed.",
        "younger than idle 4",
        "Applying it takes about 12 min.",
        "2026-01-02 03:04 UTC",
    ):
        assert words in said
