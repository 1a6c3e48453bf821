"""The report's plots of totals and distributions: rows of the jobs in, Plotly figures out. No Spark here.

A plot without rows is None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pipeline.spark.report.page.formats import count, duration, memory, thousandths
from pipeline.spark.report.plots import plot_style
from pipeline.spark.report.plots.plot_style import Rows, TimeAxis, event_name, label, name_rows, row_bars, steps, style

_STATE_COLOURS = {"FINISHED": plot_style.GREEN, "FAILED": plot_style.RED, "KILLED": plot_style.AMBER}
_QUANTILES = (
    ("p50_s", "median", plot_style.BLUE, 10),
    ("p95_s", "95 %", plot_style.AMBER, 9),
    ("p99_s", "99 %", plot_style.RED, 8),
)

_FLOOR_S = 1e-3
_TICKS_S = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 60.0, 600.0, 3600.0, 6 * 3600.0, 86400.0, 10 * 86400.0, 100 * 86400.0)


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

_MOST_BARS = 25
_MOST_NAMED_NODES = 40


def applications_plot(states: Rows) -> go.Figure | None:
    """Applications by final state, from rows of `applications_by_final_state`."""
    if not states:
        return None
    fewest_first = sorted(states, key=lambda row: row["applications"])  # the last one is drawn at the top
    names = [row["final_state"] for row in fewest_first]
    numbers = [row["applications"] for row in fewest_first]
    bars = row_bars(
        names,
        numbers,
        "%{x:,}",
        marker_color=[_STATE_COLOURS.get(name, plot_style.GREY) for name in names],
        text=[count(number) for number in numbers],
        textposition="outside",
        cliponaxis=False,
    )
    figure = style(go.Figure(bars), rows=len(states))
    figure.update_xaxes(title_text="applications", **plot_style.whole_numbers(max(numbers)))
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


def containers_plot(buckets: Rows, axis: TimeAxis) -> go.Figure | None:
    """Containers of the whole cluster over time, from rows of `containers_over_time`."""
    if not buckets:
        return None
    held = [row["containers"] for row in buckets]
    hover = "%{y:,} containers after %{x:.4~g} " + axis.unit
    area = {"fill": "tozeroy", "fillcolor": plot_style.LIGHT_BLUE}
    figure = style(go.Figure(steps(buckets, axis, held, plot_style.BLUE, hover, **area)), rows=8)
    figure.update_xaxes(**axis.style(rangemode="tozero"))
    figure.update_yaxes(title_text="containers at once", **plot_style.whole_numbers(max(held)))
    return figure


def nodes_plot(peaks: Rows) -> go.Figure | None:
    """Peak use of each node's resources in % of its capacity, from rows of `node_peaks`.

    One bar per node, in the order of the rows; for too many nodes to name, a curve from the fullest to the emptiest.
    """
    shown = [resource for resource in _NODE_RESOURCES if any(row[resource.capacity] for row in peaks)]
    if not shown:
        return None
    named = len(peaks) <= _MOST_NAMED_NODES
    titles = [resource.title for resource in shown]
    figure = make_subplots(cols=len(shown), shared_yaxes=True, horizontal_spacing=0.04, subplot_titles=titles)
    fullest = 100.0
    for column, resource in enumerate(shown, start=1):
        nodes = [row for row in peaks if row[resource.capacity]]
        shares = [_share(row, resource) for row in nodes]
        fullest = max(fullest, *shares)
        figure.add_trace(_node_bars(nodes, resource) if named else _node_curve(nodes, resource), row=1, col=column)
    limit = {"line": {"color": plot_style.RED, "dash": "dot", "width": 1}}
    share_axis = {"range": [0, 1.08 * fullest], "ticksuffix": " %"}
    if named:
        style(figure, rows=len(peaks))
        name_rows(figure, [row["node"] for row in peaks])
        figure.update_xaxes(**share_axis)
        figure.add_vline(x=100, **limit)
    else:
        style(figure, rows=9)
        figure.update_xaxes(title_text="nodes, fullest first", showgrid=False)
        figure.update_yaxes(**share_axis)
        figure.add_hline(y=100, **limit)
    figure.update_layout(margin_t=40)
    return figure


def events_plot(types: Rows) -> go.Figure | None:
    """Total handler time per event type, from rows of `events_by_type`."""
    top = sorted(types, key=lambda row: -row["handling_total_ms"])[:_MOST_BARS]
    if not top:
        return None
    classes = sorted({row["event_class"] for row in top})
    figure = go.Figure()
    for position, name in enumerate(classes):
        rows = [row for row in top if row["event_class"] == name]
        bars = row_bars(
            [event_name(row) for row in rows],
            [row["handling_total_ms"] for row in rows],
            "%{x:,.1f} ms in total<br>%{customdata[0]} events, mean %{customdata[1]}, 99 % below %{customdata[2]}",
            name=label(name),
            marker_color=plot_style.COLOURS[position % len(plot_style.COLOURS)],
            customdata=[
                [count(row["count"]), duration(row["handling_mean_us"] / 1e6), duration(row["handling_p99_us"] / 1e6)]
                for row in rows
            ],
        )
        figure.add_trace(bars)
    figure = style(figure, rows=len(top))
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title_text="time in handlers (ms)", rangemode="tozero", tickformat=",")
    name_rows(figure, [event_name(row) for row in top])
    return figure


def changes_plot(metrics: Rows) -> go.Figure | None:
    """The largest changes between two journals, from rows of `comparison`."""
    changed = sorted((row for row in metrics if row["change"]), key=lambda row: -abs(row["change"]))[:_MOST_BARS]
    if not changed:
        return None
    names = [f"{row['subject']}: {row['metric']}" for row in changed]
    percents = [100 * row["change"] for row in changed]
    bars = row_bars(
        names,
        percents,
        "%{text}",
        marker_color=[plot_style.AMBER if change > 0 else plot_style.BLUE for change in percents],
        text=[f"{change:+,.0f} %" if abs(change) >= 10 else f"{change:+.1f} %" for change in percents],
        textposition="outside",
        cliponaxis=False,
    )
    figure = style(go.Figure(bars), rows=len(changed), row_px=22)
    room = 0.15 * (max(0.0, *percents) - min(0.0, *percents))
    figure.update_xaxes(
        title_text="change from before to after",
        ticksuffix=" %",
        range=[min(0.0, *percents) - room, max(0.0, *percents) + room],
    )
    name_rows(figure, names)
    return figure


def _share(row: Mapping[str, Any], resource: _Resource) -> float:
    return float(100 * row[resource.peak] / row[resource.capacity])


def _node_bars(nodes: Rows, resource: _Resource) -> go.Bar:
    shares = [_share(row, resource) for row in nodes]
    return row_bars(
        [row["node"] for row in nodes],
        shares,
        "%{customdata[0]} of %{customdata[1]} (%{x:.0f} %)",
        marker_color=[plot_style.RED if share > 100 else plot_style.BLUE for share in shares],
        customdata=[[resource.show(row[resource.peak]), resource.show(row[resource.capacity])] for row in nodes],
    )


def _node_curve(nodes: Rows, resource: _Resource) -> go.Scatter:
    fullest_first = sorted(nodes, key=lambda row: -_share(row, resource))
    return go.Scatter(
        x=list(range(1, len(nodes) + 1)),
        y=[_share(row, resource) for row in fullest_first],
        text=[label(row["node"]) for row in fullest_first],
        mode="lines",
        line_color=plot_style.BLUE,
        fill="tozeroy",
        fillcolor=plot_style.LIGHT_BLUE,
        hovertemplate="%{text}: %{y:.0f} %<extra></extra>",
    )


def _spread_plot(
    names: Sequence[str | None], rows: Rows, quantiles: Sequence[tuple[str, str, str, int]], longest_s: float
) -> go.Figure | None:
    """One line per row, from its median to its longest, on a logarithmic scale up to `longest_s`."""
    if not rows:
        return None
    labels = [label(name) for name in names]
    figure = go.Figure()
    for line_label, row in zip(labels, rows, strict=True):
        figure.add_scatter(
            x=[_on_scale(row["p50_s"]), _on_scale(row["max_s"])],
            y=[line_label, line_label],
            mode="lines",
            line={"color": plot_style.PALE, "width": 3},
            hoverinfo="skip",
            showlegend=False,
        )
    for key, title, colour, size in (*quantiles, ("max_s", "longest", plot_style.GREY, 9)):
        is_end = key == "max_s"
        figure.add_scatter(
            name=title,
            x=[_on_scale(row[key]) for row in rows],
            y=labels,
            mode="markers",
            marker={
                "color": colour,
                "size": size,
                "symbol": "line-ns-open" if is_end else "circle",
                "line": {"width": 2 if is_end else 0, "color": colour},
            },
            customdata=[duration(row[key]) for row in rows],
            hovertemplate="%{y}: " + title + " %{customdata}<extra></extra>",
        )
    figure = style(figure, rows=len(rows), legend=True)
    longest = _on_scale(longest_s)
    ticks = [tick for tick in _TICKS_S if tick <= 10 * max(longest, 1.0)]
    figure.update_xaxes(
        type="log",
        range=[math.log10(_FLOOR_S) - 0.15, math.log10(max(longest, 1.0)) + 0.25],
        tickvals=ticks,
        ticktext=[f"≤ {duration(_FLOOR_S)}", *(duration(tick) for tick in ticks[1:])],
        minor_showgrid=False,
    )
    name_rows(figure, names)
    return figure


def _on_scale(seconds: float) -> float:
    # Virtual time has many stays of 0 s, which a logarithmic scale cannot show.
    return max(seconds, _FLOOR_S)
