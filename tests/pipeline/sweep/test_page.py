from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from pipeline.sweep.page import DRAWN, render_sweep_page

from ..report.page.page_rows import rendered

pytestmark = pytest.mark.long

FIGURES = {
    "nodes": 10,
    "applications": 5,
    "finished": 5,
    "containers": 5,
    "events": 100,
    **dict.fromkeys(("failed", "killed", "unfinished", "never_placed", "failed_events"), 0),
    "wait_mean_s": 3.0,
    "wait_p50_s": 0.0,
    "wait_p95_s": 65.0,
    "wait_max_s": 90.0,
    "container_wait_mean_s": 4.0,
    "container_wait_p50_s": 1.0,
    "container_wait_p95_s": 70.0,
    "container_wait_max_s": 95.0,
    "turnaround_mean_s": 600.0,
    "turnaround_p50_s": 500.0,
    "turnaround_p95_s": 900.0,
    "turnaround_max_s": 1000.0,
    "makespan_s": 7200.0,
    "memory_used": 0.75,
    "vcores_used": 0.5,
    "gpus_used": None,
    "wall_s": 0.1,
    "error": None,
}


def row(number: int, scheduler: str, **changed: Any) -> dict[str, Any]:
    return {"number": number, "settings": {"scheduler": scheduler}, **FIGURES, **changed}


def failed_row(number: int) -> dict[str, Any]:
    return {**row(number, "capacity"), **dict.fromkeys(set(FIGURES) - {"nodes"}), "error": "ValueError: no <room>"}


class _Table(HTMLParser):
    """The cells of the page's table, with their classes."""

    def __init__(self) -> None:
        super().__init__()
        self.cells: list[list[tuple[str, str]]] = []
        self._style: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.cells.append([])
        if tag in ("td", "th"):
            self._style = dict(attrs).get("class") or ""

    def handle_data(self, data: str) -> None:
        if self._style is not None and data.strip():
            self.cells[-1].append((data, self._style))
            self._style = None

    def handle_endtag(self, tag: str) -> None:
        self._style = None if tag in ("td", "th") else self._style


def table_of(page: str) -> list[list[tuple[str, str]]]:
    parser = _Table()
    parser.feed(page)
    return parser.cells


def test_the_page_compares_all_combinations_and_marks_the_best() -> None:
    page = render_sweep_page("openb", [row(1, "fifo"), row(2, "capacity", wait_mean_s=2.0, memory_used=0.7)])

    headings, first, second = table_of(page)

    assert [text for text, _ in headings] == [
        *("#", "scheduler", "Total nodes", "Mean wait", "Median wait", "95 % wait", "Longest wait", "Never placed"),
        *("Mean container wait", "95 % container wait", "Mean turnaround", "95 % turnaround"),
        *("Makespan", "Memory", "Cores"),
    ]
    assert [text for text, _ in first] == [
        *("1", "fifo", "10", "3 s", "0 s", "1 min 5 s", "1 min 30 s", "0"),
        *("4 s", "1 min 10 s", "10 min", "15 min", "2 h", "75.0 %", "50.0 %"),
    ]
    assert (first[3], second[3]) == (("3 s", "number"), ("2 s", "number best"))
    assert (first[13], second[13]) == (("75.0 %", "number best"), ("70.0 %", "number"))


def test_problems_get_columns_only_where_there_are_any() -> None:
    headings, first, second = table_of(
        render_sweep_page("w", [row(1, "fifo", unfinished=2, gpus_used=0.004), failed_row(2)])
    )

    assert [text for text, _ in headings][-3:] == ["GPUs", "Unfinished", "Error"]
    assert first[-2:] == [("0.4 %", "number"), ("2", "number bad")]  # and no error
    assert second[-1] == ("ValueError: no <room>", "bad")
    assert second[3] == ("\N{EN DASH}", "number")


def test_headline_figures_name_the_best_combination_and_count_the_failed() -> None:
    page = render_sweep_page("w", [row(1, "fifo"), row(2, "capacity", wait_mean_s=1.5), failed_row(3)])

    figures = re.findall(r'<li class="(.*?)"><a href="#(.*?)">(.*?)</a><p><strong>(.*?)</strong> (.*?)</p>', page)

    assert figures == [
        ("", "combinations", "Shortest mean wait", "1.5 s", "with scheduler=capacity."),
        ("", "combinations", "Shortest mean wait of containers", "4 s", "with scheduler=fifo, and 1 more."),
        ("", "combinations", "Shortest mean turnaround", "10 min", "with scheduler=fifo, and 1 more."),
        ("", "combinations", "Shortest makespan", "2 h", "with scheduler=fifo, and 1 more."),
        ("", "combinations", "Highest use of memory", "75.0 %", "with scheduler=fifo, and 1 more."),
        ("bad", "combinations", "Failed combinations", "1", "of 3 combinations."),
    ]
    assert '<table id="combinations">' in page


def test_the_page_needs_no_other_file_and_no_network() -> None:
    page = render_sweep_page("w", [row(1, "fifo")])

    assert re.findall(r"""(?:src|href)\s*=\s*["'](?!#)[^"'\s>]*""", page) == []
    assert re.findall(r"https?://|url\(|@import", page) == []
    assert "default-src 'none'" in page


def test_names_from_the_workload_and_the_settings_are_no_markup() -> None:
    page = render_sweep_page("<script>x</script>", [row(1, "<b>bold</b>")])

    assert "<script>x" not in page
    assert "<b>bold" not in page


def test_the_same_sweep_makes_the_same_page() -> None:
    assert render_sweep_page("w", [row(1, "fifo")]) == render_sweep_page("w", [row(1, "fifo")])


@pytest.mark.parametrize("count", [DRAWN, DRAWN + 1])
def test_plots_of_many_combinations_say_where_they_stop(count: int) -> None:
    page = render_sweep_page("w", [row(number, f"s{number}") for number in range(1, count + 1)])

    assert (f"The first {DRAWN} combinations." in page) == (count > DRAWN)


def test_a_sweep_of_failures_has_a_page_too() -> None:
    page = render_sweep_page("w", [failed_row(1)])

    assert re.findall(r'<span id="(plot-.*?)">', page) == [
        *("plot-waiting-time", "plot-waiting-time-of-containers", "plot-turnaround"),
        *("plot-makespan", "plot-utilisation"),
    ]
    assert 'class="chart"' not in page


def test_the_plots_have_a_row_for_each_combination_that_has_the_figure() -> None:
    rows = [row(1, "fifo"), row(2, "capacity", wait_max_s=None), row(3, "fair", gpus_used=0.25)]

    page = render_sweep_page("w", rows)

    waiting, _, turnaround, makespan, utilisation = re.findall(
        r'<section class="panel wide" id="plot-.*?</section>', page, re.DOTALL
    )
    assert re.findall(r'<span title="(.*?)"', waiting) == ["scheduler=fifo", "scheduler=fair"]
    assert "<title>scheduler=fifo: 95 % 1 min 5 s</title>" in waiting
    assert re.findall(r'<span title="(.*?)"', turnaround) == ["scheduler=fifo", "scheduler=capacity", "scheduler=fair"]
    assert makespan.count("<rect") == 3
    assert re.findall(r'class="\w+" x="0%"[^>]*><title>(.*?)</title>', utilisation)[-1] == "scheduler=fair: GPUs 25.0 %"


def test_report_and_sweep_have_the_same_policy_style_and_script() -> None:
    report = rendered({})
    sweep = render_sweep_page("w", [row(1, "fifo")])

    for part in (
        r'http-equiv="Content-Security-Policy" content="(.*?)"',
        "<style>(.*?)</style>",
        "<script>(.*?)</script>",
    ):
        assert re.findall(part, report, re.DOTALL) == re.findall(part, sweep, re.DOTALL)
