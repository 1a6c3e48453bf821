"""The comparison of a sweep's combinations: its table, for the terminal as well, and its page.

The page has headline figures, five plots and the table, in one self-contained file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from dispatcher.util.figures import NOTHING, count, duration, exact_percent
from pipeline.report.page.columns import TableColumn, table_body
from pipeline.report.page.page_views import Figure, Section, TableView, plot
from pipeline.report.page.rendering import render
from pipeline.report.plots.plot_style import unit_of
from pipeline.report.plots.plots import spread_plot
from pipeline.report.plots.row_chart import Facet, RowBar, RowChart
from pipeline.report.plots.scales import linear
from pipeline.report.plots.svg import LegendKey

DRAWN: Final = 60
"""Maximum combinations in a plot; the table has all."""

SweepRow = Mapping[str, Any]
"""A row of `pipeline.sweep.run_row`."""

_FLOOR_S = 0.1
_SPREAD = (("p50_s", "median", "blue"), ("p95_s", "95 %", "amber"), ("max_s", "longest", "red"))
_SHARES = (("memory_used", "memory", "blue"), ("vcores_used", "cores", "amber"), ("gpus_used", "GPUs", "green"))
_ROOM = 1.2  # for a text behind the longest bar
_ANCHOR = "combinations"
_ABOUT_ALL = (
    "Click a heading to sort. The best value of a column is green. An application waits from its submission to its "
    "first container, its master's; applications that were never placed have no wait, and are counted. A container "
    "waits from its request to its allocation. The turnaround is the time from an application's submission to its "
    "finish. Utilisation is the mean over the makespan."
)


class ComparedColumn(NamedTuple):
    title: str
    key: str
    """Key of the value in the row."""
    show: Callable[[Any], str]
    best: Callable[[Sequence[Any]], Any] | None = None
    """Picks the best of several values; None if the column has no best value."""
    is_bad: bool = False
    """Whether a value other than 0 is a problem."""


COLUMNS: Final = (
    ComparedColumn("Total nodes", "nodes", count),
    ComparedColumn("Mean wait", "wait_mean_s", duration, min),
    ComparedColumn("Median wait", "wait_p50_s", duration, min),
    ComparedColumn("95 % wait", "wait_p95_s", duration, min),
    ComparedColumn("Longest wait", "wait_max_s", duration, min),
    ComparedColumn("Never placed", "never_placed", count, min),
    ComparedColumn("Mean container wait", "container_wait_mean_s", duration, min),
    ComparedColumn("95 % container wait", "container_wait_p95_s", duration, min),
    ComparedColumn("Mean turnaround", "turnaround_mean_s", duration, min),
    ComparedColumn("95 % turnaround", "turnaround_p95_s", duration, min),
    ComparedColumn("Makespan", "makespan_s", duration, min),
    ComparedColumn("Memory", "memory_used", exact_percent, max),
    ComparedColumn("Cores", "vcores_used", exact_percent, max),
    ComparedColumn("GPUs", "gpus_used", exact_percent, max),
    ComparedColumn("Unfinished", "unfinished", count, is_bad=True),
    ComparedColumn("Failed events", "failed_events", count, is_bad=True),
)
"""The columns after the settings."""


def shown_columns(rows: Sequence[SweepRow]) -> list[ComparedColumn]:
    """The columns that apply to these rows: no GPUs without GPUs, and no problem column without a problem."""
    return [
        column
        for column in COLUMNS
        if any(row[column.key] if column.is_bad else row[column.key] is not None for row in rows)
    ]


def best_numbers(column: ComparedColumn, rows: Sequence[SweepRow]) -> frozenset[int]:
    """Numbers of the combinations with the best value; empty if all are equal, or the column has no best value."""
    values = {row["number"]: row[column.key] for row in rows if row[column.key] is not None}
    if column.best is None or len(set(values.values())) < 2:
        return frozenset()
    best = column.best(list(values.values()))
    return frozenset(number for number, value in values.items() if value == best)


def settings_text(row: SweepRow) -> str:
    return ", ".join(f"{key}={value}" for key, value in row["settings"].items())


def render_sweep_page(workload: str, rows: Sequence[SweepRow]) -> str:
    """Render one HTML document that needs no other file and no network.

    `rows`: all rows of `pipeline.sweep.run_row`, ordered by number.
    """
    ran = [row for row in rows if row["error"] is None]
    cut = f" The first {DRAWN} combinations." if len(ran) > DRAWN else ""
    drawn = ran[:DRAWN]
    plots = [
        plot("Waiting time", f"From submission to the first container.{cut}", _spread(drawn, "wait"), wide=True),
        plot(
            "Waiting time of containers",
            f"From the request of a container, or of a master, to its allocation.{cut}",
            _spread(drawn, "container_wait"),
            wide=True,
        ),
        plot("Turnaround", f"From submission to the finish.{cut}", _spread(drawn, "turnaround"), wide=True),
        plot("Makespan", f"From the first submission to the last end.{cut}", _makespan(drawn), wide=True),
        plot("Utilisation", f"Mean share in use over the makespan.{cut}", _utilisation(drawn), wide=True),
    ]
    return render(
        title="What-if sweep",
        subtitle=f"Workload {workload}: {count(len(rows))} combinations of settings, each replayed in virtual time.",
        figures=_headlines(rows, ran),
        sections=[Section("comparison", "Comparison", plots, tables=[_table(rows, ran)])],
    )


def _headlines(rows: Sequence[SweepRow], ran: Sequence[SweepRow]) -> list[Figure]:
    figures = [
        _best("Shortest mean wait", ran, "wait_mean_s", -1, duration),
        _best("Shortest mean wait of containers", ran, "container_wait_mean_s", -1, duration),
        _best("Shortest mean turnaround", ran, "turnaround_mean_s", -1, duration),
        _best("Shortest makespan", ran, "makespan_s", -1, duration),
        _best("Highest use of memory", ran, "memory_used", 1, exact_percent),
    ]
    failed = len(rows) - len(ran)
    if failed:
        figures.append(
            Figure("Failed combinations", count(failed), f"of {count(len(rows))} combinations.", "bad", _ANCHOR)
        )
    return figures


def _best(name: str, rows: Sequence[SweepRow], key: str, sign: int, show: Any) -> Figure:
    values = [row[key] for row in rows if row[key] is not None]
    if not values:
        return Figure(name, NOTHING, "No combination has one.", link=_ANCHOR)
    best = max(values, key=lambda value: sign * value)
    first, *others = [row for row in rows if row[key] == best]
    more = f", and {count(len(others))} more" if others else ""
    return Figure(name, show(best), f"with {settings_text(first)}{more}.", link=_ANCHOR)


def _table(rows: Sequence[SweepRow], ran: Sequence[SweepRow]) -> TableView:
    columns = [
        TableColumn("#", lambda row: str(row["number"]), lambda row: row["number"]),
        *(_setting(key) for key in (rows[0]["settings"] if rows else ())),
        *(_figure(column, best_numbers(column, ran)) for column in shown_columns(ran)),
    ]
    if len(ran) < len(rows):
        columns.append(
            TableColumn(
                "Error", lambda row: row["error"] or "", lambda row: row["error"], False, lambda row: bool(row["error"])
            )
        )
    note = "With more columns: sweep.parquet and sweep.csv."
    return TableView(_ANCHOR, "All combinations", _ABOUT_ALL, columns, table_body(columns, rows), note)


def _setting(key: str) -> TableColumn:
    return TableColumn(key, lambda row: row["settings"][key], lambda row: row["settings"][key], is_number=False)


def _figure(column: ComparedColumn, best: frozenset[int]) -> TableColumn:
    return TableColumn(
        column.title,
        lambda row: column.show(row[column.key]),
        lambda row: row[column.key],
        is_bad=lambda row: column.is_bad and bool(row[column.key]),
        is_best=lambda row: row["number"] in best,
    )


def _spread(rows: Sequence[SweepRow], name: str) -> RowChart | None:
    """Median, 95 % and longest of a time: of `wait`, for example."""
    found = [row for row in rows if row[f"{name}_max_s"] is not None]
    longest_s = max((row[f"{name}_max_s"] for row in found), default=0.0)
    marks = [(f"{name}_{key}", title, colour) for key, title, colour in _SPREAD]
    return spread_plot([settings_text(row) for row in found], found, marks, longest_s, _FLOOR_S)


def _makespan(rows: Sequence[SweepRow]) -> RowChart | None:
    ended = [row for row in rows if row["makespan_s"] is not None]
    if not ended:
        return None
    longest_s = max(row["makespan_s"] for row in ended)
    unit_s, unit = unit_of(longest_s)
    names = [settings_text(row) for row in ended]
    bars = [
        RowBar(position, 0, row["makespan_s"] / unit_s, "blue", f"{name}: {text}", text)
        for position, (name, row) in enumerate(zip(names, ended, strict=True))
        for text in [duration(row["makespan_s"])]
    ]
    return RowChart(names, [Facet(linear(0, _ROOM * longest_s / unit_s, f"makespan ({unit})", to_ticks=False), bars)])


def _utilisation(rows: Sequence[SweepRow]) -> RowChart | None:
    kinds = [kind for kind in _SHARES if any(row[kind[0]] is not None for row in rows)]
    if not kinds:
        return None
    names = [settings_text(row) for row in rows]
    bars = [
        RowBar(position, 0, 100 * row[key], colour, f"{name}: {title} {exact_percent(row[key])}", lane=lane)
        for position, (name, row) in enumerate(zip(names, rows, strict=True))
        for lane, (key, title, colour) in enumerate(kinds)
        if row[key] is not None
    ]
    most = max((bar.high for bar in bars), default=0.0)
    keys = [LegendKey(title, colour) for _, title, colour in kinds]
    scale = linear(0, most, "of the cluster", unit=" %")
    return RowChart(names, [Facet(scale, bars)], keys, 18 + 12 * len(kinds), len(kinds))
