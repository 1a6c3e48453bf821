"""The page of a sweep: headline figures, three plots and the comparison table, in one file that loads nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final, NamedTuple

import plotly.graph_objects as go
from markupsafe import Markup

from pipeline.spark.report.page.formats import count, duration
from pipeline.spark.report.page.template import render
from pipeline.sweep.table import ComparedColumn, Row, best_numbers, cell_text, percent, settings_text, shown_columns

DRAWN: Final = 60
"""Combinations in each plot at most; the table has all."""

_TEXT, _GRID, _BLUE, _AMBER, _RED, _GREEN = "#1f2933", "#e4e7eb", "#2f6fab", "#d08a1d", "#c0392b", "#2e8b57"
_FLOOR_S = 0.1
_TICKS_S = (_FLOOR_S, 1.0, 10.0, 60.0, 600.0, 3600.0, 6 * 3600.0, 86400.0, 10 * 86400.0, 100 * 86400.0)
_WAITS = (("wait_p50_s", "median", _BLUE), ("wait_p95_s", "95 %", _AMBER), ("wait_max_s", "longest", _RED))
_SHARES = (("memory_used", "memory", _BLUE), ("vcores_used", "cores", _AMBER), ("gpus_used", "GPUs", _GREEN))


class _Figure(NamedTuple):
    name: str
    value: str
    detail: str
    mood: str = ""


class _Plot(NamedTuple):
    title: str
    text: str
    drawing: Markup | None


class _Heading(NamedTuple):
    title: str
    is_number: bool


class _Cell(NamedTuple):
    text: str
    key: str
    """By which it is sorted; empty: it comes last."""
    style: str


def render_sweep_page(workload: str, rows: Sequence[Row]) -> str:
    """The page as one HTML document that needs no other file and no network.

    `rows`: of all combinations, as `pipeline.sweep.run_row` gives them, in their order.
    """
    ran = [row for row in rows if row["error"] is None]
    cut = f" The first {DRAWN} combinations." if len(ran) > DRAWN else ""
    drawn = ran[:DRAWN]
    return render(
        __package__,
        "sweep.html",
        title="What-if sweep",
        subtitle=f"Workload {workload}: {count(len(rows))} combinations of settings, each replayed in virtual time.",
        figures=_headlines(rows, ran),
        plots=[
            _plot("waiting", "Waiting time", f"From submission to the first container.{cut}", _waiting(drawn)),
            _plot("makespan", "Makespan", f"From the first submission to the last end.{cut}", _makespan(drawn)),
            _plot("utilisation", "Utilisation", f"Mean share in use over the makespan.{cut}", _utilisation(drawn)),
        ],
        **_table(rows, ran),
    )


# -- figures and table ----------------------------------------------------------------------------------------------


def _headlines(rows: Sequence[Row], ran: Sequence[Row]) -> list[_Figure]:
    figures = [
        _best("Shortest mean wait", ran, "wait_mean_s", -1, duration),
        _best("Shortest makespan", ran, "makespan_s", -1, duration),
        _best("Highest use of memory", ran, "memory_used", 1, percent),
    ]
    failed = len(rows) - len(ran)
    if failed:
        figures.append(_Figure("Failed combinations", count(failed), f"of {count(len(rows))}", "bad"))
    return figures


def _best(name: str, rows: Sequence[Row], key: str, sign: int, show: Any) -> _Figure:
    values = [row[key] for row in rows if row[key] is not None]
    if not values:
        return _Figure(name, "\N{EN DASH}", "no combination has one")
    best = max(values, key=lambda value: sign * value)
    first, *others = [row for row in rows if row[key] == best]
    more = f", and {count(len(others))} more" if others else ""
    return _Figure(name, show(best), settings_text(first) + more)


def _table(rows: Sequence[Row], ran: Sequence[Row]) -> Mapping[str, Any]:
    columns = shown_columns(ran, duration)
    best = {column.key: best_numbers(column, ran) for column in columns}
    keys = list(rows[0]["settings"]) if rows else []
    has_errors = len(ran) < len(rows)
    headings = [
        _Heading("#", True),
        *(_Heading(key, False) for key in keys),
        *(_Heading(column.title, True) for column in columns),
        *([_Heading("Error", False)] if has_errors else []),
    ]
    cells = []
    for row in rows:
        settings = [_Cell(row["settings"][key], row["settings"][key], "") for key in keys]
        figures = [_figure_cell(column, row, row["number"] in best[column.key]) for column in columns]
        error = [_Cell(row["error"] or "", row["error"] or "", "bad")] if has_errors else []
        cells.append([_Cell(str(row["number"]), str(row["number"]), "number"), *settings, *figures, *error])
    return {"columns": headings, "rows": cells}


def _figure_cell(column: ComparedColumn, row: Row, is_best: bool) -> _Cell:
    value = row[column.key]
    mood = " best" if is_best else " bad" if column.is_bad and value else ""
    return _Cell(cell_text(column, row), "" if value is None else repr(value), "number" + mood)


# -- plots ------------------------------------------------------------------------------------------------------------


def _waiting(rows: Sequence[Row]) -> go.Figure | None:
    placed = [row for row in rows if row["wait_max_s"] is not None]
    if not placed:
        return None
    names = _names(placed)
    figure = go.Figure()
    for name, row in zip(names, placed, strict=True):
        ends = [_on_scale(row["wait_p50_s"]), _on_scale(row["wait_max_s"])]
        line = {"color": "#cbd2d9", "width": 3}
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
    return _styled(figure, names, legend=True)


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
            marker_color=_BLUE,
            text=texts,
            textposition="auto",
            hovertemplate="%{y}: %{text}<extra></extra>",
        )
    )
    figure.update_xaxes(title_text=unit, rangemode="tozero")
    return _styled(figure, names)


def _utilisation(rows: Sequence[Row]) -> go.Figure | None:
    kinds = [kind for kind in _SHARES if any(row[kind[0]] is not None for row in rows)]
    if not kinds:
        return None
    names = _names(rows)
    figure = go.Figure()
    for key, title, colour in reversed(kinds):  # of a group of bars the last one is at the top
        figure.add_bar(
            name=title,
            x=[None if row[key] is None else 100 * row[key] for row in rows],
            y=names,
            orientation="h",
            marker_color=colour,
            customdata=["" if row[key] is None else percent(row[key]) for row in rows],
            hovertemplate="%{y}: " + title + " %{customdata}<extra></extra>",
        )
    figure.update_layout(barmode="group")
    figure.update_xaxes(title_text="% of the cluster", rangemode="tozero")
    return _styled(figure, names, legend=True, reverses=True, row_px=18 + 12 * len(kinds))


def _names(rows: Sequence[Row]) -> list[str]:
    return [escape(settings_text(row)) for row in rows]  # Plotly reads labels as markup


def _on_scale(seconds: float) -> float:
    return max(seconds, _FLOOR_S)  # a logarithmic scale has no place for no wait


def _styled(
    figure: go.Figure, names: Sequence[str], *, legend: bool = False, reverses: bool = False, row_px: int = 30
) -> go.Figure:
    figure.update_layout(
        template="plotly_white",
        height=90 + row_px * max(len(names), 2) + (30 if legend else 0),
        margin={"l": 8, "r": 16, "t": 12, "b": 8},
        font={"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 13, "color": _TEXT},
        showlegend=legend,
        legend={
            "orientation": "h",
            "yanchor": "bottom",
            "y": 1.0,
            "x": 0,
            "traceorder": "reversed" if reverses else "normal",
        },
        bargap=0.3,
        hoverlabel={"align": "left"},
    )
    figure.update_xaxes(automargin=True, gridcolor=_GRID, zerolinecolor=_GRID)
    # The first combination at the top. A category, as a name that looks like a number would be put on a scale.
    figure.update_yaxes(
        type="category", categoryorder="array", categoryarray=names[::-1], automargin=True, ticklabelstandoff=6
    )
    return figure


def _plot(anchor: str, title: str, text: str, figure: go.Figure | None) -> _Plot:
    if figure is None:
        return _Plot(title, text, None)
    drawing = figure.to_html(
        full_html=False,
        include_plotlyjs=False,
        div_id=f"plot-{anchor}",  # or it gets a random one, and no two pages of a sweep are the same
        config={"responsive": True, "displaylogo": False, "displayModeBar": False},
    )
    return _Plot(title, text, Markup(drawing))
