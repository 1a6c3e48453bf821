"""The report's page in a real browser: it draws, it sorts, its console stays empty, and it runs no stranger's code.

Pictures go to the folder in ARTIFACTS_DIR, if that is set, to be looked at.
"""

from __future__ import annotations

import itertools
import os
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipeline.spark import Report, write_report

from .browser import Browser

NASTY = "</script><img src=x onerror=\"document.title='broken'\">'"
WIDTHS = [1400, 700]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no chromium on the PATH; on Debian: apt-get install --no-install-recommends chromium"
    ),
]


@pytest.fixture(scope="module")
def report(module_journal: Any, spark: SparkSession) -> Report:
    """Of a run in which every name that a user can choose is markup."""
    seq = itertools.count(1)
    module_journal.node(next(seq), "h1:1", memory_mb=2048)
    module_journal.node(next(seq), f"h2{NASTY}:1")
    for number, queue in enumerate(["b", "a", NASTY, "a"], start=1):
        application = f"application_0_000{number}{NASTY if queue == NASTY else ''}"
        module_journal.submit(next(seq), application, number, name=NASTY, queue=queue)
        module_journal.event(at := next(seq), "RMAppEventType", "APP_NEW_SAVED", application, number)
        module_journal.move(at, "RMApp", application, "NEW_SAVING APP_NEW_SAVED SUBMITTED", number)
        container = f"container_0_000{number}_01_000001"
        module_journal.allocate(next(seq), container, "h1:1", 2 * number, application=application)
    for number in (1, 2, 3, 4):
        module_journal.complete(next(seq), f"container_0_000{number}_01_000001", 90)
    module_journal.event(at := next(seq), "AType", "GO", NASTY, 95, handling_ns=70_000)
    module_journal.move(at, f"M'{NASTY}", "x", '"\'A\'" "E\'" <B>', at=95)
    module_journal.event(
        at := next(seq), "AType", "STOP", NASTY, 96, outcome="failed", error=f"E: {NASTY}", handling_ns=5000
    )
    module_journal.move(at, f"M'{NASTY}", "x", "<B> \"E'\" </svg><script>document.title='broken'</script>", at=96)
    return write_report(spark, module_journal.path, module_journal.path.parent / "report")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert CHROMIUM is not None
    with Browser(CHROMIUM, tmp_path_factory.mktemp("chromium") / "profile") as started:
        yield started


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("ARTIFACTS_DIR") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def shown(browser: Browser, report: Report) -> Iterator[Browser]:
    """The page at full width; whatever a test does with it, its console stays empty."""
    browser.open(report.page, 1400)
    yield browser
    assert browser.problems == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_is_drawn_at_every_width_and_says_nothing_on_the_console(
    browser: Browser, report: Report, pictures: Path, width: int, scheme: str
) -> None:
    browser.open(report.page, width, scheme)

    picture = pictures / f"report-{width}-{scheme}.png"
    browser.screenshot(picture)
    assert browser.problems == []
    # Of a page of one colour, all lines are the same.
    assert len(set(scanlines(picture))) > 100
    assert browser.value("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("width", WIDTHS)
def test_every_plot_has_marks_and_no_label_is_cut(browser: Browser, report: Report, width: int) -> None:
    browser.open(report.page, width)

    assert browser.value("document.querySelectorAll('.js-plotly-plot').length") >= 8
    assert browser.value(EMPTY_PLOTS) == []
    assert browser.value(CUT_LABELS) == []


EMPTY_PLOTS = """
[...document.querySelectorAll(".js-plotly-plot")].filter((plot) => !plot.querySelector(
  ".scatterlayer .trace, .barlayer .point, .heatmaplayer image")).map((plot) => plot.parentElement.id)
"""
CUT_LABELS = """
[...document.querySelectorAll(".js-plotly-plot text, svg.graph text")].filter((text) => {
  const box = text.getBoundingClientRect(), frame = text.closest(".panel").getBoundingClientRect();
  return box.width && (box.left < frame.left || box.right > frame.right);
}).map((text) => text.textContent)
"""


def test_names_of_a_malicious_journal_are_shown_and_never_run(shown: Browser) -> None:
    assert shown.value("document.title") == "Resource manager report"
    assert shown.value("document.querySelectorAll('img').length") == 0
    assert shown.value(f"document.body.innerText.includes({NASTY!r})")
    states = shown.value("[...document.querySelectorAll('svg.graph .state title')].map((title) => title.textContent)")
    assert "\"'A'\"" in states
    assert "</svg><script>document.title='broken'</script>" in states


def test_an_injected_script_does_not_run(browser: Browser, report: Report, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    text = report.page.read_text(encoding="utf-8")
    page.write_text(text.replace("<footer>", "<script>document.title='broken'</script><footer>"), encoding="utf-8")

    browser.open(page, 1400)

    assert browser.value("document.title") == "Resource manager report"
    assert [problem for problem in browser.problems if "Content Security Policy" in problem] != []
    browser.problems.clear()


def test_a_click_on_a_heading_sorts_and_a_second_click_reverses_the_order(shown: Browser) -> None:
    assert column(shown, "waiting-by-queue", 1) == ["2", "1", "1"]
    before = column(shown, "waiting-by-queue", 0)

    shown.value(head("waiting-by-queue", 0) + ".click()")

    assert column(shown, "waiting-by-queue", 0) == [NASTY, "a", "b"]
    assert sorts(shown, "waiting-by-queue")[0] == "ascending"
    shown.value(head("waiting-by-queue", 0) + ".click()")
    assert column(shown, "waiting-by-queue", 0) == ["b", "a", NASTY]
    assert sorts(shown, "waiting-by-queue") == ["descending", None, None, None, None, None]
    assert sorted(before) == sorted(["a", "b", NASTY])


def test_the_keyboard_sorts_numbers_as_numbers_greatest_first(shown: Browser) -> None:
    handling = (
        "[...document.querySelectorAll('#table-events-by-type th')].findIndex((head) => "
        "head.textContent === 'Handler total')"
    )
    position = shown.value(handling)
    shown.value(head("events-by-type", position) + ".focus()")

    shown.press("Enter")

    assert column(shown, "events-by-type", position)[:2] == ["70 µs", "5 µs"]
    assert sorts(shown, "events-by-type")[position] == "descending"
    shown.press("Enter")
    assert column(shown, "events-by-type", position)[-2:] == ["5 µs", "70 µs"]
    assert sorts(shown, "events-by-type")[position] == "ascending"


def test_unknown_values_sort_last_in_both_directions(shown: Browser) -> None:
    ended = head("applications", 7)

    for _ in range(2):
        shown.value(ended + ".click()")
        assert column(shown, "applications", 7)[-1] == "\N{EN DASH}"


def head(table: str, position: int) -> str:
    return f"document.querySelectorAll('#table-{table} th button')[{position}]"


def column(browser: Browser, table: str, position: int) -> list[str]:
    found: list[str] = browser.value(
        f"[...document.querySelectorAll('#table-{table} tbody tr')].map((row) => row.cells[{position}].textContent)"
    )
    return found


def sorts(browser: Browser, table: str) -> list[str | None]:
    found: list[str | None] = browser.value(
        f"[...document.querySelectorAll('#table-{table} th')].map((head) => head.getAttribute('aria-sort'))"
    )
    return found


def scanlines(picture: Path) -> list[bytes]:
    """A PNG's lines of pixels, as they are stored."""
    content, pixels, at = picture.read_bytes(), b"", 8
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width = int.from_bytes(content[16:20])
    channels = {2: 3, 6: 4}[content[25]]
    while at < len(content):
        size, kind = int.from_bytes(content[at : at + 4]), content[at + 4 : at + 8]
        pixels += content[at + 8 : at + 8 + size] if kind == b"IDAT" else b""
        at += 12 + size
    lines, stride = zlib.decompress(pixels), 1 + width * channels
    return [lines[start : start + stride] for start in range(0, len(lines), stride)]
