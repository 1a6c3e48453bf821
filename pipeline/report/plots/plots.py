"""The report's plots of totals and distributions: rows of the tables in, charts out.

A plot without rows is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dispatcher.util.figures import count, duration, gibibytes, thousandths
from pipeline.report.plots.pane_chart import Curve, Hit, Pane, PaneChart
from pipeline.report.plots.plot_style import COLOURS, Rows, event_name, label
from pipeline.report.plots.row_chart import Dot, Facet, RowBar, RowChart, Span
from pipeline.report.plots.scales import durations, linear
from pipeline.report.plots.svg import LegendKey

_STATE_COLOURS = {"FINISHED": "green", "FAILED": "red", "KILLED": "amber"}
_QUANTILES = (("p50_s", "median", "blue"), ("p95_s", "95 %", "amber"), ("p99_s", "99 %", "red"))
_FLOOR_S = 1e-3
_MOST_BARS = 25
_MOST_NAMED_NODES = 40
_NODE_GROUPS = 60
_ROOM = 1.2  # for a text behind the longest bar


class NodeResource(NamedTuple):
    """A resource of nodes: the columns of `node_peaks` that have its capacity and its peak use, and how these read."""

    name: str
    capacity: str
    peak: str
    show: Callable[[int | None], str]

    @property
    def title(self) -> str:
        return self.name[0].upper() + self.name[1:]

    def share(self, row: Mapping[str, Any]) -> float:
        """The peak use as a share of the capacity, which is not 0."""
        return float(row[self.peak] / row[self.capacity])

    def percent(self, row: Mapping[str, Any]) -> float:
        """The same in percent, without the error of a share that is rounded before: 1.15 of 2 are 57.5 %."""
        return float(100 * row[self.peak] / row[self.capacity])

    def use(self, row: Mapping[str, Any]) -> str:
        return f"{self.show(row[self.peak])} of {self.show(row[self.capacity])}"


NODE_RESOURCES = (
    NodeResource("memory", "memory_mb", "peak_memory_mb", gibibytes),
    NodeResource("virtual cores", "vcores_milli", "peak_vcores_milli", thousandths),
    NodeResource("GPUs", "gpu_milli", "peak_gpu_milli", thousandths),
)


def applications_plot(states: Rows) -> RowChart | None:
    """Applications by final state, from rows of `applications_by_final_state`."""
    if not states:
        return None
    rows = sorted(states, key=lambda row: -row["applications"])
    names = [row["final_state"] for row in rows]
    bars = [
        RowBar(position, 0, row["applications"], _STATE_COLOURS.get(name, "grey"), f"{name}: {number}", number)
        for position, (name, row) in enumerate(zip(names, rows, strict=True))
        for number in [count(row["applications"])]
    ]
    scale = linear(0, _ROOM * rows[0]["applications"], "applications", is_whole=True, to_ticks=False)
    return RowChart(names, [Facet(scale, bars)])


def waiting_plot(queues: Rows) -> RowChart | None:
    """Waiting time for the first container per queue, from rows of `waiting_by_queue`."""
    placed = [row for row in queues if row["max_s"] is not None]
    longest_s = max((row["max_s"] for row in placed), default=0.0)
    names = [label(row["queue"]) for row in placed]
    return spread_plot(names, placed, (*_QUANTILES[:2], ("max_s", "longest", "grey")), longest_s, _FLOOR_S)


def state_plots(stays: Rows) -> dict[str, RowChart]:
    """Per machine, how long its entities stayed in each state, from rows of `time_in_state`."""
    charts = {}
    longest_s = max((row["max_s"] for row in stays), default=0.0)
    for machine in sorted({row["machine"] for row in stays}):
        rows = sorted((row for row in stays if row["machine"] == machine), key=lambda row: -row["p50_s"])
        names = [row["state"] for row in rows]
        chart = spread_plot(names, rows, (*_QUANTILES, ("max_s", "longest", "grey")), longest_s, _FLOOR_S)
        if chart is not None:
            charts[machine] = chart
    return charts


def spread_plot(
    names: Sequence[str], rows: Rows, quantiles: Sequence[tuple[str, str, str]], longest_s: float, floor_s: float
) -> RowChart | None:
    """One line per row, from its first quantile to its last, on a logarithmic scale from `floor_s` to `longest_s`.

    `quantiles`: key of the seconds in a row, what they are called, colour.
    """
    if not rows:
        return None
    first, last = quantiles[0][0], quantiles[-1][0]
    spans = [Span(at, max(row[first], floor_s), max(row[last], floor_s)) for at, row in enumerate(rows)]
    # Each quantile's dots are smaller than those before it, so that equal ones stay visible.
    dots = [
        Dot(
            at,
            max(row[key], floor_s),
            colour,
            f"{name}: {title} {duration(row[key])}",
            6.0 - step,
            is_end=key == last,
        )
        for step, (key, title, colour) in enumerate(quantiles)
        for at, (name, row) in enumerate(zip(names, rows, strict=True))
    ]
    keys = [LegendKey(title, colour) for _, title, colour in quantiles]
    return RowChart(names, [Facet(durations(floor_s, longest_s), dots=dots, spans=spans)], keys)


def nodes_plot(peaks: Rows) -> RowChart | PaneChart | None:
    """Peak use of each node's resources in % of its capacity, from rows of `node_peaks`.

    One bar per node, in the order of the rows; for too many nodes to name, a curve from the fullest to the emptiest.
    """
    shown = [resource for resource in NODE_RESOURCES if any(row[resource.capacity] for row in peaks)]
    if not shown:
        return None
    fullest = max(resource.percent(row) for resource in shown for row in peaks if row[resource.capacity])
    if len(peaks) > _MOST_NAMED_NODES:
        return PaneChart([_node_curve(peaks, resource, fullest) for resource in shown], is_side_by_side=True)
    scale = linear(0, 1.05 * max(fullest, 100.0), unit=" %", to_ticks=False)
    facets = [
        Facet(scale._replace(title="of the capacity"), _node_bars(peaks, resource), title=resource.title, limit=100.0)
        for resource in shown
    ]
    return RowChart([row["node"] for row in peaks], facets, row_px=22)


def events_plot(types: Rows) -> RowChart | None:
    """Total handler time per event type, from rows of `events_by_type`."""
    top = sorted(types, key=lambda row: -row["handling_total_ms"])[:_MOST_BARS]
    if not top:
        return None
    classes = sorted({row["event_class"] for row in top})
    colours = {name: COLOURS[position % len(COLOURS)] for position, name in enumerate(classes)}
    bars = [
        RowBar(
            position,
            0,
            row["handling_total_ms"],
            colours[row["event_class"]],
            f"{event_name(row)}: {duration(row['handling_total_ms'] / 1e3)} in total, {count(row['count'])} events, "
            f"mean {duration(row['handling_mean_us'] / 1e6)}, 99 % below {duration(row['handling_p99_us'] / 1e6)}",
            duration(row["handling_total_ms"] / 1e3),
        )
        for position, row in enumerate(top)
    ]
    scale = linear(0, _ROOM * top[0]["handling_total_ms"], "time in handlers (ms)", to_ticks=False)
    keys = [LegendKey(name, colour) for name, colour in colours.items()]
    return RowChart([event_name(row) for row in top], [Facet(scale, bars)], keys, row_px=22)


def changes_plot(metrics: Rows) -> RowChart | None:
    """The largest changes between two journals, from rows of `comparison`."""
    changed = sorted((row for row in metrics if row["change"]), key=lambda row: -abs(row["change"]))[:_MOST_BARS]
    if not changed:
        return None
    names = [f"{row['subject']}: {row['metric']}" for row in changed]
    percents = [100 * row["change"] for row in changed]
    texts = [f"{change:+,.0f} %" if abs(change) >= 10 else f"{change:+.1f} %" for change in percents]
    bars = [
        RowBar(position, 0, change, "amber" if change > 0 else "blue", f"{name}: {text}", text)
        for position, (name, change, text) in enumerate(zip(names, percents, texts, strict=True))
    ]
    least, most = min(0.0, *percents), max(0.0, *percents)
    room = 0.25 * (most - least)
    scale = linear(
        least - room if least else 0.0,
        most + room if most else 0.0,
        "change from before to after",
        unit=" %",
        to_ticks=False,
    )
    return RowChart(names, [Facet(scale, bars)], row_px=22)


def _node_bars(peaks: Rows, resource: NodeResource) -> list[RowBar]:
    bars = []
    for position, row in enumerate(peaks):
        if row[resource.capacity]:
            share = resource.percent(row)
            about = f"{row['node']}: {resource.use(row)} ({share:.0f} %)"
            bars.append(RowBar(position, 0, share, "red" if share > 100 else "blue", about))
    return bars


def _node_curve(peaks: Rows, resource: NodeResource, fullest: float) -> Pane:
    nodes = sorted((row for row in peaks if row[resource.capacity]), key=lambda row: -resource.percent(row))
    shares = [resource.percent(row) for row in nodes]
    # Of nodes that are equally full only the first is a point of the line.
    points = [
        (position, share) for position, share in enumerate(shares) if not position or share != shares[position - 1]
    ]
    size = -(-len(nodes) // _NODE_GROUPS)
    whole = f"of {count(len(nodes))} from the fullest"
    hits = [
        Hit(first, first + size, f"{nodes[first]['node']}: {shares[first]:.0f} %, number {count(first + 1)} {whole}")
        for first in range(0, len(nodes), size)
    ]
    across = linear(0, len(nodes), "nodes, fullest first", is_whole=True, to_ticks=False)
    height = linear(0, max(fullest, 100.0), resource.title, unit=" %")
    line = Curve("blue", points, is_step=True, is_filled=True)
    return Pane(across, height, [line], hits=hits, limit=100.0 if fullest > 100 else None)
