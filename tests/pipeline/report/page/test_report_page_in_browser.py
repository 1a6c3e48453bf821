"""The report's page in a real browser: it draws, it sorts, its console stays empty, and it runs no stranger's code.

Pictures go to the folder in ARTIFACTS_DIR, if that is set, to be looked at.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.journal import Problem

from .browser import Browser
from .page_rows import SECOND, Tables, rendered, small_tables

NASTY = "</script><img src=x onerror=\"document.title='broken'\">'"
WIDTHS = [390, 700, 1280, 2560]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no chromium on the PATH; on Debian: apt-get install --no-install-recommends chromium"
    ),
]


def nasty_tables() -> Tables:
    """Of a run in which every name that a user can choose is markup, with some rows to sort."""
    tables = small_tables(NASTY)
    [queue], [application] = tables["waiting_by_queue"], tables["applications"]
    tables["waiting_by_queue"] = [
        queue | {"queue": name, "applications": number} for name, number in (("a", 2), ("b", 1), (NASTY, 1))
    ]
    tables["applications"] = [application, application | {"ended_at": 90 * SECOND}]
    [of_type] = tables["events_by_type"]
    tables["events_by_type"] = [of_type | {"handling_total_ms": ms} for ms in (0.005, 0.07, 0.006)]
    [transition, _] = tables["mined_graph"]
    tables["mined_graph"] = [
        transition | {"to_state": "\"'A'\""},
        transition | {"from_state": "\"'A'\"", "to_state": "</svg><script>document.title='broken'</script>"},
    ]
    tables["node_peaks"] *= 3
    [time] = tables["event_times"]
    tables["event_times"] = [time, time | {"bucket": 1, "starts_at": 50 * SECOND}]
    return tables


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    page = tmp_path_factory.mktemp("page") / "report.html"
    text = rendered(nasty_tables(), damage=[Problem(NASTY, 1, 1, NASTY)], compared_with=NASTY, config=NASTY)
    page.write_text(text, encoding="utf-8")
    return page


@pytest.fixture(scope="module")
def empty_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    page = tmp_path_factory.mktemp("page") / "empty.html"
    page.write_text(rendered({}, first_at=None, last_at=None), encoding="utf-8")
    return page


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(CHROMIUM, tmp_path_factory.mktemp("chromium") / "profile") as started:
        yield started


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("ARTIFACTS_DIR") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def shown(browser: Browser, report: Path) -> Iterator[Browser]:
    """The page at full width; whatever a test does with it, its console stays empty."""
    browser.open(report, 1280)
    yield browser
    assert browser.problems == []


@pytest.mark.parametrize(("width", "scheme"), [*((width, "light") for width in WIDTHS), (WIDTHS[0], "dark")])
def test_the_page_fits_every_width_with_marks_in_every_plot_and_says_nothing_on_the_console(
    browser: Browser, report: Path, pictures: Path, width: int, scheme: str
) -> None:
    browser.open(report, width, scheme)

    picture = pictures / f"report-{width}-{scheme}.png"
    browser.screenshot(picture)
    assert browser.problems == []
    # Of a page of one colour, all lines are the same.
    assert len(set(scanlines(picture))) > 100
    assert browser.value("document.documentElement.scrollWidth <= innerWidth")
    assert browser.value("document.querySelectorAll('.chart').length") == 15
    assert browser.value(EMPTY_PLOTS) == []
    assert browser.value(CUT_LABELS) == []
    assert browser.value(TOUCHING_LABELS) == []


@pytest.mark.parametrize("width", [WIDTHS[0], WIDTHS[2]])
def test_the_page_of_an_empty_journal_fits_too(browser: Browser, empty_report: Path, width: int) -> None:
    browser.open(empty_report, width)

    assert browser.problems == []
    assert browser.value("document.documentElement.scrollWidth <= innerWidth")


EMPTY_PLOTS = """
[...document.querySelectorAll(".chart")].filter((plot) => ![...plot.querySelectorAll(
  ":is(.facet, .pane) :is(rect, circle, path)")].some((mark) => !mark.matches(".hit, .limit") && (
    mark.getBoundingClientRect().width || mark.getBoundingClientRect().height))).map((plot) => plot.parentElement.id)
"""
CUT_LABELS = """
[...document.querySelectorAll(".chart text, svg.graph text")].filter((text) => {
  const box = text.getBoundingClientRect(), frame = text.closest(".panel").getBoundingClientRect();
  return box.width && (box.left < frame.left || box.right > frame.right);
}).map((text) => text.textContent)
"""
TOUCHING_LABELS = """
[...document.querySelectorAll(".chart svg")].flatMap((svg) => {
  const boxes = [...svg.querySelectorAll(":scope > .tick")].map((text) => text.getBoundingClientRect());
  const shown = boxes.filter((box) => box.width).sort((one, other) => one.left - other.left);
  return shown.filter((box, at) => at && box.left < shown[at - 1].right).map(() => svg.getAttribute("aria-label"));
})
"""


def test_paper_is_white_in_a_dark_scheme_too(browser: Browser, report: Path) -> None:
    browser.open(report, 1032, "dark")
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser("Emulation.setEmulatedMedia", media="print", features=dark)

    ground = browser.value("getComputedStyle(document.querySelector('.panel.table')).backgroundColor")
    scheme = browser.value("getComputedStyle(document.documentElement).colorScheme")
    is_cut = browser.value("getComputedStyle(document.querySelector('.scroll')).maxHeight")
    browser("Emulation.setEmulatedMedia", media="")

    assert (ground, scheme, is_cut) == ("rgb(255, 255, 255)", "light", "none")


def test_the_first_screen_leads_to_a_table_in_one_click(shown: Browser) -> None:
    assert shown.value("document.querySelectorAll('.answers li').length") <= 10
    assert shown.value("document.querySelector('.answers').getBoundingClientRect().bottom < 800")

    shown.value("document.querySelector('.answers a[href=\"#table-failures\"]').click()")

    table = "document.querySelector('#table-failures').getBoundingClientRect().top"
    # Below the bar of sections, which stays on the screen.
    assert shown.value(f"{table} > document.querySelector('nav').getBoundingClientRect().bottom")
    assert shown.value(f"{table} < innerHeight / 2")


def test_a_mark_tells_its_values_at_once_and_as_text(shown: Browser) -> None:
    heat = "document.querySelector('#plot-use-of-the-nodes-over-time .hit')"
    shown.value(f"{heat}.scrollIntoView({{block: 'center'}})")
    x, y = shown.value(f"(() => {{ const at = {heat}.getBoundingClientRect(); return [at.x + 9, at.y + 5]; }})()")

    for step in (0, 1):
        shown("Input.dispatchMouseEvent", type="mouseMoved", x=x + step, y=y)

    assert shown.value("document.querySelector('.tip').textContent") == (
        f"50 % here\nn{NASTY}, Memory: 50 % on average, up to 50 %"
    )
    assert shown.value("document.querySelector('.tip').getBoundingClientRect().height > 20")
    shown("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
    assert shown.value("document.querySelector('.tip').hidden")


def test_names_of_a_malicious_journal_are_shown_and_never_run(shown: Browser) -> None:
    assert shown.value("document.title") == "Resource manager report"
    assert shown.value("document.querySelectorAll('img').length") == 0
    assert shown.value(f"document.body.innerText.includes({NASTY!r})")
    states = shown.value("[...document.querySelectorAll('svg.graph .state title')].map((title) => title.textContent)")
    assert "\"'A'\"" in states
    assert "</svg><script>document.title='broken'</script>" in states


def test_an_injected_script_does_not_run(browser: Browser, report: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    text = report.read_text(encoding="utf-8")
    page.write_text(text.replace("<footer>", "<script>document.title='broken'</script><footer>"), encoding="utf-8")

    browser.open(page, 1280)

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

    assert column(shown, "events-by-type", position) == ["70 µs", "6 µs", "5 µs"]
    assert sorts(shown, "events-by-type")[position] == "descending"
    shown.press("Enter")
    assert column(shown, "events-by-type", position) == ["5 µs", "6 µs", "70 µs"]
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
