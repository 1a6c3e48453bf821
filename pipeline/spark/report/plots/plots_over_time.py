"""The report's plots over time: rows of the jobs in, Plotly figures out. No Spark here.

A plot without rows is None. Time axes count from the start of the run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pipeline.spark.report.page.formats import count, duration, moment
from pipeline.spark.report.phases import PHASES
from pipeline.spark.report.plots import plot_style
from pipeline.spark.report.plots.plot_style import Rows, TimeAxis, event_name, label, name_rows, row_bars, steps, style

_STATE_COLOURS = {
    "NEW": "#b7c0ca",
    "NEW_SAVING": "#b7c0ca",
    "SUBMITTED": "#8a63b8",
    "ACCEPTED": plot_style.AMBER,
    "RUNNING": plot_style.BLUE,
    "FINAL_SAVING": plot_style.GREY,
    "FINISHING": plot_style.GREEN,
    "KILLING": plot_style.RED,
}
_PHASE_COLOURS = dict(
    zip(PHASES, ("#b7c0ca", "#8a63b8", plot_style.AMBER, "#35a7a7", plot_style.BLUE, plot_style.GREEN), strict=True)
)
_RESOURCES = (("memory_share", "Memory"), ("vcores_share", "Virtual cores"), ("gpu_share", "GPUs"))
_FLOOR_US = 0.1
_CLASSES_NAMED = 7


def timeline_plot(stays: Rows, axis: TimeAxis, end_at: int) -> go.Figure | None:
    """Each application's states over time, in order of submission, from rows of `application_timeline`."""
    if not stays:
        return None
    by_start = sorted(stays, key=lambda row: (row["from_at"], row["application"]))
    applications = list(dict.fromkeys(row["application"] for row in by_start))
    states = list(dict.fromkeys(row["state"] for row in sorted(stays, key=lambda row: (row["from_at"], row["seq"]))))
    colour = plot_style.colours_of(states, _STATE_COLOURS)
    figure = go.Figure()
    for state in states:
        rows = [row for row in stays if row["state"] == state]
        ends = [end_at if row["to_at"] is None else row["to_at"] for row in rows]
        bars = row_bars(
            [row["application"] for row in rows],
            [(end - row["from_at"]) / 1e9 / axis.unit_s for row, end in zip(rows, ends, strict=True)],
            label(state) + " for %{customdata[0]}, from %{customdata[1]}",
            name=label(state),
            base=[axis.place(row["from_at"]) for row in rows],
            marker={"color": colour(state), "line": {"width": 0}},
            customdata=[
                [
                    duration((end - row["from_at"]) / 1e9) + (", not ended" if row["to_at"] is None else ""),
                    moment(row["from_at"]),
                ]
                for row, end in zip(rows, ends, strict=True)
            ],
        )
        figure.add_trace(bars)
    figure = style(figure, rows=len(applications), legend=True, row_px=19)
    figure.update_layout(barmode="overlay", bargap=0.25)
    figure.update_xaxes(**axis.style(range=[0, axis.place(end_at)]))
    name_rows(figure, applications, tickfont_size=11)
    return figure


def critical_paths_plot(paths: Rows) -> go.Figure | None:
    """Time per phase of each application, in the order of the rows of `critical_paths`."""
    if not paths:
        return None
    names = [row["application"] for row in paths]
    unit_s, unit = plot_style.unit_of(max(row["total_s"] for row in paths))
    figure = go.Figure()
    for phase in PHASES:
        if not any(row[f"{phase}_s"] for row in paths):
            continue
        bars = row_bars(
            names,
            [row[f"{phase}_s"] / unit_s for row in paths],
            phase + " %{customdata}",
            name=phase,
            marker={"color": _PHASE_COLOURS[phase], "line": {"width": 0}},
            customdata=[duration(row[f"{phase}_s"]) for row in paths],
        )
        figure.add_trace(bars)
    figure = style(figure, rows=len(paths), legend=True, row_px=19)
    figure.update_layout(barmode="stack", bargap=0.25, legend_traceorder="normal")
    figure.update_xaxes(title_text=f"time from submission to the end ({unit})", rangemode="tozero")
    name_rows(figure, names, tickfont_size=11)
    return figure


def queue_depth_plot(buckets: Rows, axis: TimeAxis) -> go.Figure | None:
    """Waiting events, if there ever were any, and the rates of arrivals and starts, from rows of `queue_depth`."""
    if not buckets:
        return None
    most = max(row["greatest_depth"] for row in buckets)
    depths = (
        [
            ("maximum", "greatest_depth", plot_style.BLUE, 1.0),
            ("at the end of each interval", "depth", plot_style.AMBER, 1.0),
        ]
        if most
        else []
    )
    per_s = _per_second(buckets)
    rates = [
        ("arrivals per second", "arrivals", plot_style.GREY, per_s),
        ("starts per second", "starts", plot_style.GREEN, per_s),
    ]
    figure = make_subplots(rows=2 if depths else 1, shared_xaxes=True, vertical_spacing=0.1)
    for at_row, lines in enumerate(filter(None, [depths, rates]), start=1):
        for name, key, colour, factor in lines:
            heights = [row[key] * factor for row in buckets]
            area = {"fill": "tozeroy" if key == "greatest_depth" else None, "fillcolor": plot_style.LIGHT_BLUE}
            line = steps(buckets, axis, heights, colour, "%{y:,.4~g} " + name, name=name, line_width=1.4, **area)
            figure.add_trace(line, row=at_row, col=1)
    style(figure, rows=11 if depths else 7, legend=True)
    figure.update_layout(hovermode="x unified")
    figure.update_xaxes(rangemode="tozero", hoverformat=".4~g")
    figure.update_xaxes(**axis.style(), row=2 if depths else 1)
    if depths:
        figure.update_yaxes(title_text="events waiting", **plot_style.whole_numbers(most), row=1)
    figure.update_yaxes(title_text="events per second", rangemode="tozero", row=2 if depths else 1)
    return figure


def _per_second(buckets: Rows) -> float:
    if len(buckets) < 2:
        return 1.0
    width_ns = buckets[1]["starts_at"] - buckets[0]["starts_at"]
    return 1e9 / width_ns if width_ns else 1.0


def latency_plot(times: Rows, axis: TimeAxis) -> go.Figure | None:
    """Median and 99th percentile of the time in the queue and, below, in handlers, from rows of `event_times`.

    One colour per event type.
    """
    if not times:
        return None
    names = list(dict.fromkeys(event_name(row) for row in times))
    colour = plot_style.colours_of(names, {})
    figure = make_subplots(rows=2, shared_xaxes=True, vertical_spacing=0.08)
    for position, (kind, title) in enumerate((("queue", "in the queue"), ("handling", "in handlers")), start=1):
        for name in names:
            rows = sorted((row for row in times if event_name(row) == name), key=lambda row: row["bucket"])
            for line in _percentile_lines(name, rows, axis, kind, colour(name)):
                figure.add_trace(line.update(showlegend=line.showlegend and position == 1), row=position, col=1)
        least_us = min(max(row[f"{kind}_p50_us"], _FLOOR_US) for row in times)
        most_us = max(max(row[f"{kind}_p99_us"], _FLOOR_US) for row in times)
        figure.update_yaxes(title_text=title, **_log_axis_us(least_us, most_us), row=position)
    style(figure, rows=16, legend=True)
    figure.update_xaxes(rangemode="tozero")
    figure.update_xaxes(**axis.style(), row=2)
    return figure


def _percentile_lines(name: str, rows: Rows, axis: TimeAxis, kind: str, colour: str) -> list[go.Scatter]:
    return [
        go.Scatter(
            name=label(name),
            legendgroup=label(name),
            x=[axis.place(row["starts_at"]) for row in rows],
            y=[max(row[f"{kind}_{quantile}_us"], _FLOOR_US) for row in rows],
            mode="lines+markers",
            marker_size=3,
            line={"color": colour, "dash": dash, "width": width},
            customdata=[[duration(row[f"{kind}_{quantile}_us"] / 1e6), count(row["count"])] for row in rows],
            hovertemplate=label(name) + ": " + title + " %{customdata[0]} of %{customdata[1]} events<extra></extra>",
            showlegend=quantile == "p99",
        )
        for quantile, title, dash, width in (("p99", "99 %", "solid", 1.6), ("p50", "median", "dot", 1.1))
    ]


def _log_axis_us(least_us: float, most_us: float) -> dict[str, Any]:
    low, high = math.floor(math.log10(least_us)), math.ceil(math.log10(most_us) + 0.05)
    powers = range(low, max(high, low + 1) + 1)
    return {
        "type": "log",
        "range": [powers[0], powers[-1]],
        "tickvals": [10.0**power for power in powers],
        "ticktext": [duration(10.0 ** (power - 6)) for power in powers],
        "minor_showgrid": False,
    }


def cluster_plot(shares: Rows, axis: TimeAxis) -> go.Figure | None:
    """Share of the whole cluster in use, from the rows of `node_utilisation` without a node."""
    figure = go.Figure()
    for (key, name), colour in zip(_RESOURCES, plot_style.COLOURS, strict=False):
        rows = [row for row in shares if row[key] is not None]
        if rows:
            percents = [100 * row[key] for row in rows]
            figure.add_trace(steps(rows, axis, percents, colour, name + " %{y:.0f} %", name=name, line_width=1.6))
    if not figure.data:
        return None
    style(figure, rows=7, legend=True)
    figure.update_layout(hovermode="x unified")
    figure.update_xaxes(**axis.style(rangemode="tozero", hoverformat=".4~g"))
    figure.update_yaxes(title_text="of the capacity", ticksuffix=" %", rangemode="tozero")
    return figure


def heat_plot(shares: Rows, axis: TimeAxis, key: str) -> go.Figure | None:
    """Use over time: one map per known resource, with one row per name under `key`, in order."""
    names = list(dict.fromkeys(row[key] for row in shares))
    known = [(column, title) for column, title in _RESOURCES if any(row[column] is not None for row in shares)]
    if not known:
        return None
    cells = {(row[key], row["bucket"]): row for row in shares}
    buckets = sorted({row["bucket"]: row["starts_at"] for row in shares}.items())
    titles = [title for _, title in known]
    figure = make_subplots(cols=len(known), shared_yaxes=True, horizontal_spacing=0.025, subplot_titles=titles)
    most = max(row[column] or 0.0 for row in shares for column, _ in known)
    for position, (column, title) in enumerate(known, start=1):
        figure.add_heatmap(
            x=[axis.place(at) for _, at in buckets],
            y=[label(name) for name in names],
            z=[[_percent(cells.get((name, bucket)), column) for bucket, _ in buckets] for name in names],
            zmin=0,
            zmax=_scale_end(100 * most),
            colorscale="Cividis",
            xgap=0,
            ygap=1,
            showscale=position == len(known),
            colorbar={"ticksuffix": " %", "thickness": 12, "outlinewidth": 0, "len": 1.0},
            hovertemplate="%{y}: " + title.lower() + " %{z:.3~g} % after %{x:.4~g} " + axis.unit + "<extra></extra>",
            row=1,
            col=position,
        )
    style(figure, rows=len(names), row_px=15 if len(names) > 12 else 24)
    name_rows(figure, names, tickfont_size=11, showgrid=False)
    figure.update_yaxes(ticktext=[plot_style.short(name) for name in names])
    figure.update_xaxes(showgrid=False, title_text=f"time ({axis.unit})")
    figure.update_layout(margin_t=34)
    return figure


def _scale_end(most: float) -> float:
    """The next round number, so that the scale also fits low shares."""
    power = 10.0 ** math.floor(math.log10(max(most, 0.1)))
    return next(digit * power for digit in (1, 2, 3, 4, 5, 6, 8, 10) if digit * power >= most - 1e-9)


def _percent(row: Mapping[str, Any] | None, column: str) -> float | None:
    return None if row is None or row[column] is None else round(100 * row[column], 2)


def slowest_plot(handlings: Rows, axis: TimeAxis) -> go.Figure | None:
    """Start and duration of the slowest handlers, from rows of `slowest_handlers`; one colour per event class."""
    if not handlings:
        return None
    classes = list(dict.fromkeys(row["event_class"] for row in handlings))
    named, others = classes[:_CLASSES_NAMED], classes[_CLASSES_NAMED:]
    groups = [(label(name), [name], colour) for name, colour in zip(named, plot_style.COLOURS, strict=False)]
    if others:
        groups.append(("others", others, plot_style.PALE))
    figure = go.Figure()
    for title, names, colour in groups:
        rows = [row for row in handlings if row["event_class"] in names]
        figure.add_scatter(
            name=title,
            x=[axis.place(row["at"]) for row in rows],
            y=[max(1e3 * row["handling_ms"], _FLOOR_US) for row in rows],
            mode="markers",
            marker={"color": colour, "size": 8, "opacity": 0.85},
            customdata=[
                [label(event_name(row)), label(row["entity"]), duration(row["handling_ms"] / 1e3), count(row["seq"])]
                for row in rows
            ],
            hovertemplate="%{customdata[0]} of %{customdata[1]}: %{customdata[2]} "
            "(seq %{customdata[3]})<extra></extra>",
        )
    figure = style(figure, rows=9, legend=True)
    figure.update_xaxes(**axis.style(rangemode="tozero"))
    values = [max(1e3 * row["handling_ms"], _FLOOR_US) for row in handlings]
    figure.update_yaxes(**_log_axis_us(min(values), max(values)))
    return figure
