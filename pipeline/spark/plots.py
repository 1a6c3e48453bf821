"""The report's plots: rows of the jobs in, Plotly figures out. No Spark here.

A plot without rows is None. Names that come from the journal are escaped: Plotly reads labels as markup.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pipeline.spark.formats import count, duration, memory, thousandths

Rows = Sequence[Mapping[str, Any]]

_TEXT = "#1f2933"
_GRID = "#e4e7eb"
_BLUE = "#2f6fab"
_LIGHT_BLUE = "rgba(47, 111, 171, 0.18)"
_GREEN = "#2e8b57"
_RED = "#c0392b"
_AMBER = "#d08a1d"
_GREY = "#7b8794"
_STATE_COLOURS = {"FINISHED": _GREEN, "FAILED": _RED, "KILLED": _AMBER}
_QUANTILES = (("p50_s", "median", _BLUE, 10), ("p95_s", "95 %", _AMBER, 9), ("p99_s", "99 %", _RED, 8))
_CLASS_COLOURS = (_BLUE, _AMBER, _GREEN, "#7d5ba6", _RED, "#3aa6a6", _GREY, "#a0643c")

_FLOOR_S = 1e-3
_TICKS_S = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 60.0, 600.0, 3600.0, 6 * 3600.0, 86400.0, 10 * 86400.0, 100 * 86400.0)
_TIME_UNITS = ((86400.0 * 2, 86400.0, "days"), (7200.0, 3600.0, "h"), (120.0, 60.0, "min"), (0.0, 1.0, "s"))


class _Resource(NamedTuple):
    title: str
    capacity: str
    peak: str
    show: Callable[[int | None], str]


_NODE_RESOURCES = (
    _Resource("Memory", "memory_mb", "peak_memory_mb", memory),
    _Resource("Virtual cores", "vcores_milli", "peak_vcores_milli", thousandths),
    _Resource("GPUs", "gpu_milli", "peak_gpu_milli", thousandths),
)

_ROW_PX = 30
_FRAME_PX = 90
_MOST_BARS = 25
_MOST_NAMED_NODES = 40
_LONGEST_NAME = 36
_ENDS = 17


def applications_plot(states: Rows) -> go.Figure | None:
    """Applications by final state, from rows of `applications_by_final_state`."""
    if not states:
        return None
    fewest_first = sorted(states, key=lambda row: row["applications"])  # the last one is drawn at the top
    names = [row["final_state"] for row in fewest_first]
    numbers = [row["applications"] for row in fewest_first]
    bars = go.Bar(
        x=numbers,
        y=[_label(name) for name in names],
        orientation="h",
        marker_color=[_STATE_COLOURS.get(name, _GREY) for name in names],
        text=[count(number) for number in numbers],
        textposition="auto",
        hovertemplate="%{y}: %{x:,}<extra></extra>",
    )
    figure = _styled(go.Figure(bars), rows=len(states))
    figure.update_xaxes(title_text="applications", **_whole_numbers(max(numbers)))
    return figure


def waiting_plot(queues: Rows) -> go.Figure | None:
    """Waiting time for the first container per queue, from rows of `waiting_by_queue`."""
    placed = [row for row in queues if row["max_s"] is not None]
    longest_s = max((row["max_s"] for row in placed), default=0.0)
    return _spread_plot([row["queue"] for row in placed], placed, _QUANTILES[:2], longest_s)


def state_plots(stays: Rows) -> dict[str, go.Figure]:
    """Per machine, how long its entities stayed in each state, from rows of `time_in_state`."""
    figures = {}
    longest_s = max((row["max_s"] for row in stays), default=0.0)
    for machine in sorted({row["machine"] for row in stays}):
        rows = sorted((row for row in stays if row["machine"] == machine), key=lambda row: -row["p50_s"])
        figure = _spread_plot([row["state"] for row in rows], rows, _QUANTILES, longest_s)
        if figure is not None:
            figures[machine] = figure
    return figures


def containers_plot(buckets: Rows, start_at: int) -> go.Figure | None:
    """Containers of the whole cluster over the time of the run, from rows of `containers_over_time`."""
    if not buckets:
        return None
    span_s = (buckets[-1]["starts_at"] - start_at) / 1e9
    unit_s, unit = next((unit_s, unit) for least, unit_s, unit in _TIME_UNITS if span_s >= least)
    line = go.Scatter(
        x=[(row["starts_at"] - start_at) / 1e9 / unit_s for row in buckets],
        y=[row["containers"] for row in buckets],
        mode="lines",
        line={"shape": "hv", "color": _BLUE, "width": 1.5},
        fill="tozeroy",
        fillcolor=_LIGHT_BLUE,
        hovertemplate="%{y:,} containers after %{x:.4~g} " + unit + "<extra></extra>",
    )
    figure = _styled(go.Figure(line), rows=8)
    figure.update_xaxes(title_text=f"time since the start of the run ({unit})", rangemode="tozero")
    most = max(row["containers"] for row in buckets)
    figure.update_yaxes(title_text="containers at once", **_whole_numbers(most))
    return figure


def nodes_plot(peaks: Rows) -> go.Figure | None:
    """The highest use of each node's resources in % of its capacity, from rows of `node_peaks`.

    One bar per node while the names can be read, in the order of the rows; of more nodes, a curve from the
    fullest to the emptiest.
    """
    shown = [resource for resource in _NODE_RESOURCES if any(row[resource.capacity] for row in peaks)]
    if not shown:
        return None
    named = len(peaks) <= _MOST_NAMED_NODES
    figure = make_subplots(
        cols=len(shown),
        shared_yaxes=named,
        horizontal_spacing=0.04 if named else 0.07,
        subplot_titles=[resource.title for resource in shown],
    )
    fullest = 100.0
    for column, resource in enumerate(shown, start=1):
        nodes = [row for row in peaks if row[resource.capacity]]
        shares = [_share(row, resource) for row in nodes]
        fullest = max(fullest, *shares)
        figure.add_trace(_node_bars(nodes, resource) if named else _node_curve(nodes, resource), row=1, col=column)
    limit = {"line": {"color": _RED, "dash": "dot", "width": 1}}
    share_axis = {"range": [0, 1.08 * fullest], "ticksuffix": " %"}
    if named:
        _styled(figure, rows=len(peaks))
        _name_rows(figure, [row["node"] for row in peaks])
        figure.update_yaxes(showticklabels=True, col=1)
        figure.update_xaxes(**share_axis)
        figure.add_vline(x=100, **limit)
    else:
        _styled(figure, rows=9)
        figure.update_xaxes(title_text="nodes, fullest first", showgrid=False)
        figure.update_yaxes(**share_axis)
        figure.add_hline(y=100, **limit)
    figure.update_layout(margin_t=40)
    return figure


def events_plot(types: Rows) -> go.Figure | None:
    """Where the handlers' time went: total per type of event, from rows of `events_by_type`."""
    top = sorted(types, key=lambda row: -row["handling_total_ms"])[:_MOST_BARS]
    if not top:
        return None
    classes = sorted({row["event_class"] for row in top})
    figure = go.Figure()
    for position, name in enumerate(classes):
        rows = [row for row in top if row["event_class"] == name]
        figure.add_bar(
            name=escape(name),
            x=[row["handling_total_ms"] for row in rows],
            y=[_label(_event_name(row)) for row in rows],
            orientation="h",
            marker_color=_CLASS_COLOURS[position % len(_CLASS_COLOURS)],
            customdata=[
                [count(row["count"]), duration(row["handling_mean_us"] / 1e6), duration(row["handling_p99_us"] / 1e6)]
                for row in rows
            ],
            hovertemplate="%{y}: %{x:,.1f} ms in all<br>%{customdata[0]} events, "
            "mean %{customdata[1]}, 99 % below %{customdata[2]}<extra></extra>",
        )
    figure = _styled(figure, rows=len(top), legend=len(classes) > 1)
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title_text="time in handlers (ms)", rangemode="tozero", tickformat=",")
    _name_rows(figure, [_event_name(row) for row in top])
    return figure


def _share(row: Mapping[str, Any], resource: _Resource) -> float:
    return float(100 * row[resource.peak] / row[resource.capacity])


def _node_bars(nodes: Rows, resource: _Resource) -> go.Bar:
    shares = [_share(row, resource) for row in nodes]
    return go.Bar(
        x=shares,
        y=[_label(row["node"]) for row in nodes],
        orientation="h",
        marker_color=[_RED if share > 100 else _BLUE for share in shares],
        customdata=[[resource.show(row[resource.peak]), resource.show(row[resource.capacity])] for row in nodes],
        hovertemplate="%{y}: %{customdata[0]} of %{customdata[1]} (%{x:.0f} %)<extra></extra>",
    )


def _node_curve(nodes: Rows, resource: _Resource) -> go.Scatter:
    fullest_first = sorted(nodes, key=lambda row: -_share(row, resource))
    return go.Scatter(
        x=list(range(1, len(nodes) + 1)),
        y=[_share(row, resource) for row in fullest_first],
        text=[_label(row["node"]) for row in fullest_first],
        mode="lines",
        line_color=_BLUE,
        fill="tozeroy",
        fillcolor=_LIGHT_BLUE,
        hovertemplate="%{text}: %{y:.0f} %<extra></extra>",
    )


def _spread_plot(
    names: Sequence[str | None], rows: Rows, quantiles: Sequence[tuple[str, str, str, int]], longest_s: float
) -> go.Figure | None:
    """One line per row, from its median to its longest, on a logarithmic scale up to `longest_s`."""
    if not rows:
        return None
    labels = [_label(name) for name in names]
    figure = go.Figure()
    for label, row in zip(labels, rows, strict=True):
        ends = [_on_scale(row["p50_s"]), _on_scale(row["max_s"])]
        line = {"color": "#cbd2d9", "width": 3}
        figure.add_scatter(x=ends, y=[label, label], mode="lines", line=line, hoverinfo="skip", showlegend=False)
    marks = [*((key, title, colour, size, "circle") for key, title, colour, size in quantiles)]
    for key, title, colour, size, symbol in [*marks, ("max_s", "longest", _TEXT, 9, "line-ns-open")]:
        figure.add_scatter(
            name=title,
            x=[_on_scale(row[key]) for row in rows],
            y=labels,
            mode="markers",
            marker={
                "color": colour,
                "size": size,
                "symbol": symbol,
                "line": {"width": 2 if symbol != "circle" else 0, "color": colour},
            },
            customdata=[duration(row[key]) for row in rows],
            hovertemplate="%{y}: " + title + " %{customdata}<extra></extra>",
        )
    figure = _styled(figure, rows=len(rows), legend=True)
    longest = _on_scale(longest_s)
    ticks = [tick for tick in _TICKS_S if tick <= 10 * max(longest, 1.0)]
    figure.update_xaxes(
        type="log",
        range=[math.log10(_FLOOR_S) - 0.15, math.log10(max(longest, 1.0)) + 0.25],
        tickvals=ticks,
        ticktext=[f"≤ {duration(_FLOOR_S)}", *(duration(tick) for tick in ticks[1:])],
        minor_showgrid=False,
    )
    _name_rows(figure, names)
    return figure


def _on_scale(seconds: float) -> float:
    # A logarithmic scale has no place for the stays of no time that virtual time is full of.
    return max(seconds, _FLOOR_S)


def _label(name: str | None) -> str:
    return escape(name) if name is not None else "(not known)"


def _name_rows(figure: go.Figure, names: Sequence[str | None]) -> None:
    """Give each horizontal bar its name, the first at the top; a long name loses its middle, but not on hover."""
    labels = [_label(name) for name in names]
    short = [
        _label(
            name
            if name is None or len(name) <= _LONGEST_NAME
            else f"{name[:_ENDS]}\N{HORIZONTAL ELLIPSIS}{name[-_ENDS:]}"
        )
        for name in names
    ]
    # Stated, as names that look like numbers or dates would otherwise be put on a scale.
    figure.update_yaxes(
        type="category", categoryorder="array", categoryarray=labels[::-1], tickvals=labels, ticktext=short
    )


def _whole_numbers(most: int) -> dict[str, Any]:
    """An axis of counts; with few of them Plotly would divide it into halves and label them 0, 1, 1, 2."""
    return {"tickformat": ",d", "rangemode": "tozero", **({"dtick": 1} if most < 6 else {})}


def _event_name(row: Mapping[str, Any]) -> str:
    return f"{row['event_class'].removesuffix('EventType')} {row['event_type']}"


def _styled(figure: go.Figure, rows: int, legend: bool = False) -> go.Figure:
    figure.update_layout(
        template="plotly_white",
        height=_FRAME_PX + _ROW_PX * max(rows, 2) + (30 if legend else 0),
        margin={"l": 8, "r": 16, "t": 12, "b": 8},
        font={"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 13, "color": _TEXT},
        showlegend=legend,
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0},
        bargap=0.35,
        hoverlabel={"align": "left"},
    )
    axis = {"automargin": True, "gridcolor": _GRID, "zerolinecolor": _GRID, "title_font_size": 13}
    figure.update_annotations(font_size=14)
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis, ticklabelstandoff=6)
    return figure
