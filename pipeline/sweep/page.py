"""The comparison of a sweep's combinations: its table, for the terminal as well, and its page.

The page has headline figures, three plots and the table, in one self-contained file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import plotly.graph_objects as go

from pipeline.spark.report.page.formats import NOTHING, count, duration
from pipeline.spark.report.page.page_views import Figure, Section, TableColumn, TableView, cells, plot, render
from pipeline.spark.report.plots.plot_style import AMBER, BLUE, GREEN, PALE, RED, label, name_rows, style

DRAWN: Final = 60
"""Most combinations in a plot; the table has all."""

Row = Mapping[str, Any]
"""A row of `pipeline.sweep.run_row`."""

_FLOOR_S = 0.1
_TICKS_S = (_FLOOR_S, 1.0, 10.0, 60.0, 600.0, 3600.0, 6 * 3600.0, 86400.0, 10 * 86400.0, 100 * 86400.0)
_WAITS = (("wait_p50_s", "median", BLUE), ("wait_p95_s", "95 %", AMBER), ("wait_max_s", "longest", RED))
_SHARES = (("memory_used", "memory", BLUE), ("vcores_used", "cores", AMBER), ("gpus_used", "GPUs", GREEN))
_ABOUT_ALL = (
    "Click a heading to sort. The best value of a column is green. An application waits from its submission to its "
    "first container; applications that were never placed have no wait, and are counted. Utilisation is the mean over "
    "the makespan."
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


def percent(share: float | None) -> str:
    """A share of 1 in percent, with one decimal; less than one percent with two significant digits."""
    if share is None:
        return NOTHING
    return f"{100 * share:.1f} %" if share >= 0.01 or share == 0 else f"{100 * share:.2g} %"


COLUMNS: Final = (
    ComparedColumn("Total nodes", "nodes", count),
    ComparedColumn("Mean wait", "wait_mean_s", duration, min),
    ComparedColumn("Median wait", "wait_p50_s", duration, min),
    ComparedColumn("95 % wait", "wait_p95_s", duration, min),
    ComparedColumn("Longest wait", "wait_max_s", duration, min),
    ComparedColumn("Never placed", "never_placed", count, min),
    ComparedColumn("Makespan", "makespan_s", duration, min),
    ComparedColumn("Memory", "memory_used", percent, max),
    ComparedColumn("Cores", "vcores_used", percent, max),
    ComparedColumn("GPUs", "gpus_used", percent, max),
    ComparedColumn("Unfinished", "unfinished", count, is_bad=True),
    ComparedColumn("Failed events", "failed_events", count, is_bad=True),
)
"""The columns after the settings."""


def shown_columns(rows: Sequence[Row]) -> list[ComparedColumn]:
    """The columns that apply to these rows: no GPUs without GPUs, and no problem column without a problem."""
    return [
        column
        for column in COLUMNS
        if any(row[column.key] if column.is_bad else row[column.key] is not None for row in rows)
    ]


def best_numbers(column: ComparedColumn, rows: Sequence[Row]) -> frozenset[int]:
    """Numbers of the combinations with the best value; empty if all are equal, or the column has no best value."""
    values = {row["number"]: row[column.key] for row in rows if row[column.key] is not None}
    if column.best is None or len(set(values.values())) < 2:
        return frozenset()
    best = column.best(list(values.values()))
    return frozenset(number for number, value in values.items() if value == best)


def settings_text(row: Row) -> str:
    """The settings of a row on one line."""
    return ", ".join(f"{key}={value}" for key, value in row["settings"].items())


def render_sweep_page(workload: str, rows: Sequence[Row]) -> str:
    """Render one HTML document that needs no other file and no network.

    `rows`: all rows of `pipeline.sweep.run_row`, ordered by number.
    """
    ran = [row for row in rows if row["error"] is None]
    cut = f" The first {DRAWN} combinations." if len(ran) > DRAWN else ""
    drawn = ran[:DRAWN]
    plots = [
        plot("Waiting time", f"From submission to the first container.{cut}", _waiting(drawn), wide=True),
        plot("Makespan", f"From the first submission to the last end.{cut}", _makespan(drawn), wide=True),
        plot("Utilisation", f"Mean share in use over the makespan.{cut}", _utilisation(drawn), wide=True),
    ]
    return render(
        title="What-if sweep",
        subtitle=f"Workload {workload}: {count(len(rows))} combinations of settings, each replayed in virtual time.",
        figures=_headlines(rows, ran),
        sections=[Section("comparison", "Comparison", plots, tables=[_table(rows, ran)])],
    )


def _headlines(rows: Sequence[Row], ran: Sequence[Row]) -> list[Figure]:
    figures = [
        _best("Shortest mean wait", ran, "wait_mean_s", -1, duration),
        _best("Shortest makespan", ran, "makespan_s", -1, duration),
        _best("Highest use of memory", ran, "memory_used", 1, percent),
    ]
    failed = len(rows) - len(ran)
    if failed:
        figures.append(Figure("Failed combinations", count(failed), f"of {count(len(rows))}", "bad"))
    return figures


def _best(name: str, rows: Sequence[Row], key: str, sign: int, show: Any) -> Figure:
    values = [row[key] for row in rows if row[key] is not None]
    if not values:
        return Figure(name, NOTHING, "no combination has one")
    best = max(values, key=lambda value: sign * value)
    first, *others = [row for row in rows if row[key] == best]
    more = f", and {count(len(others))} more" if others else ""
    return Figure(name, show(best), settings_text(first) + more)


def _table(rows: Sequence[Row], ran: Sequence[Row]) -> TableView:
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
    return TableView("combinations", "All combinations", _ABOUT_ALL, columns, cells(columns, rows), note)


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


def _waiting(rows: Sequence[Row]) -> go.Figure | None:
    placed = [row for row in rows if row["wait_max_s"] is not None]
    if not placed:
        return None
    names = _names(placed)
    figure = go.Figure()
    for name, row in zip(names, placed, strict=True):
        ends = [_on_scale(row["wait_p50_s"]), _on_scale(row["wait_max_s"])]
        line = {"color": PALE, "width": 3}
        figure.add_scatter(x=ends, y=[name, name], mode="lines", line=line, hoverinfo="skip", showlegend=False)
    for key, title, colour in _WAITS:
        figure.add_scatter(
            name=title,
            x=[_on_scale(row[key]) for row in placed],
            y=names,
            mode="markers",
            marker={"color": colour, "size": 10},
            customdata=[duration(row[key]) for row in placed],
            hovertemplate="%{y}: " + title + " %{customdata}<extra></extra>",
        )
    longest_s = max(_on_scale(row["wait_max_s"]) for row in placed)
    figure.update_xaxes(
        type="log",
        range=[math.log10(_FLOOR_S) - 0.1, math.log10(max(longest_s, 10.0)) + 0.2],
        tickvals=_TICKS_S,
        ticktext=[f"≤ {duration(_FLOOR_S)}", *map(duration, _TICKS_S[1:])],
        minor_showgrid=False,
    )
    return _styled(figure, placed, legend=True)


def _makespan(rows: Sequence[Row]) -> go.Figure | None:
    ended = [row for row in rows if row["makespan_s"] is not None]
    if not ended:
        return None
    names = _names(ended)
    longest_s = max(row["makespan_s"] for row in ended)
    unit_s, unit = next(
        pair for pair in ((86400.0, "days"), (3600.0, "h"), (1.0, "s")) if longest_s >= 2 * pair[0] or pair[0] == 1
    )
    texts = [duration(row["makespan_s"]) for row in ended]
    figure = go.Figure(
        go.Bar(
            x=[row["makespan_s"] / unit_s for row in ended],
            y=names,
            orientation="h",
            marker_color=BLUE,
            text=texts,
            textposition="outside",
            cliponaxis=False,
            hovertemplate="%{y}: %{text}<extra></extra>",
        )
    )
    figure.update_xaxes(title_text=unit, rangemode="tozero")
    return _styled(figure, ended)


def _utilisation(rows: Sequence[Row]) -> go.Figure | None:
    kinds = [kind for kind in _SHARES if any(row[kind[0]] is not None for row in rows)]
    if not kinds:
        return None
    names = _names(rows)
    figure = go.Figure()
    for key, title, colour in reversed(kinds):  # Plotly draws the last bar of a group at the top
        figure.add_bar(
            name=title,
            x=[None if row[key] is None else 100 * row[key] for row in rows],
            y=names,
            orientation="h",
            marker_color=colour,
            customdata=["" if row[key] is None else percent(row[key]) for row in rows],
            hovertemplate="%{y}: " + title + " %{customdata}<extra></extra>",
        )
    figure.update_layout(barmode="group", legend_traceorder="reversed")
    figure.update_xaxes(title_text="% of the cluster", rangemode="tozero")
    return _styled(figure, rows, legend=True, row_px=18 + 12 * len(kinds))


def _names(rows: Sequence[Row]) -> list[str]:
    return [label(settings_text(row)) for row in rows]


def _on_scale(seconds: float) -> float:
    return max(seconds, _FLOOR_S)  # a logarithmic scale cannot show 0


def _styled(figure: go.Figure, rows: Sequence[Row], *, legend: bool = False, row_px: int = 30) -> go.Figure:
    styled = style(figure, len(rows), legend, row_px)
    name_rows(styled, [settings_text(row) for row in rows])
    return styled
