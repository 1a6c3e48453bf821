"""The report's plots over time: rows of the tables in, charts out.

A plot without rows is None. Time axes count from the start of the run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dispatcher.util.figures import count, duration, moment
from pipeline.report.plots.pane_chart import ChartPoint, Curve, Hit, Pane, PaneChart
from pipeline.report.plots.plot_style import COLOURS, PALE, Rows, TimeAxis, colours_of, event_name, label, unit_of
from pipeline.report.plots.row_chart import Facet, HeatFacet, RowBar, RowChart
from pipeline.report.plots.scales import Scale, linear, powers_of_ten
from pipeline.report.plots.svg import LegendKey
from pipeline.report.tables.applications import PHASES

_STATE_COLOURS = {
    "NEW": PALE,
    "NEW_SAVING": PALE,
    "SUBMITTED": "purple",
    "ACCEPTED": "amber",
    "RUNNING": "blue",
    "FINAL_SAVING": "brown",
    "FINISHING": "green",
    "KILLING": "red",
}
_PHASE_COLOURS = dict(zip(PHASES, (PALE, "purple", "amber", "teal", "blue", "green"), strict=True))
_RESOURCES = (("memory_share", "Memory"), ("vcores_share", "Virtual cores"), ("gpu_share", "GPUs"))
_FLOOR_US = 0.1
_CLASSES_NAMED = 7
_ROWS_PX = 19


def timeline_plot(stays: Rows, axis: TimeAxis, end_at: int) -> RowChart | None:
    """Each application's states over time, in order of submission, from rows of `application_timeline`."""
    if not stays:
        return None
    by_start = sorted(stays, key=lambda row: (row["from_at"], row["application"]))
    row_of = {name: at for at, name in enumerate(dict.fromkeys(row["application"] for row in by_start))}
    states = list(dict.fromkeys(row["state"] for row in sorted(stays, key=lambda row: (row["from_at"], row["seq"]))))
    colour = colours_of(states, _STATE_COLOURS)
    bars = []
    for row in stays:
        end = end_at if row["to_at"] is None else row["to_at"]
        open_end = ", not ended" if row["to_at"] is None else ""
        about = (
            f"{row['application']}: {row['state']} for {duration((end - row['from_at']) / 1e9)}{open_end}, "
            f"from {moment(row['from_at'])}"
        )
        place = row_of[row["application"]]
        bars.append(RowBar(place, axis.place(row["from_at"]), axis.place(end), colour(row["state"]), about))
    keys = [LegendKey(state, colour(state)) for state in states]
    return RowChart(list(row_of), [Facet(axis.scale(), bars)], keys, _ROWS_PX)


def critical_paths_plot(paths: Rows) -> RowChart | None:
    """Time per phase of each application, in the order of the rows of `critical_paths`."""
    if not paths:
        return None
    longest_s = max(row["total_s"] for row in paths)
    unit_s, unit = unit_of(longest_s)
    phases = [phase for phase in PHASES if any(row[f"{phase}_s"] for row in paths)]
    bars = []
    for at, row in enumerate(paths):
        ends = [0.0, *itertools.accumulate(row[f"{phase}_s"] / unit_s for phase in phases)]
        for phase, low, high in zip(phases, ends, ends[1:], strict=False):
            about = f"{row['application']}: {phase} {duration(row[f'{phase}_s'])}"
            bars.append(RowBar(at, low, high, _PHASE_COLOURS[phase], about))
    scale = linear(0, longest_s / unit_s, f"time from submission to the end ({unit})", to_ticks=False)
    keys = [LegendKey(phase, _PHASE_COLOURS[phase]) for phase in phases]
    return RowChart([row["application"] for row in paths], [Facet(scale, bars)], keys, _ROWS_PX)


def containers_plot(buckets: Rows, axis: TimeAxis) -> PaneChart | None:
    """Containers of the whole cluster over time, from rows of `containers_over_time`."""
    if not buckets:
        return None
    line = Curve("blue", _points(buckets, axis, "containers"), is_step=True, is_filled=True)
    hits = [
        Hit(low, high, f"{count(row['containers'])} at once, {axis.after(low)}")
        for row, low, high in _intervals(buckets, axis)
    ]
    most = max(row["containers"] for row in buckets)
    return PaneChart([Pane(axis.scale(), linear(0, most, "containers at once", is_whole=True), [line], hits=hits)])


def queue_depth_plot(buckets: Rows, axis: TimeAxis) -> PaneChart | None:
    """Waiting events, if there ever were any, and the rates of arrivals and starts, from rows of `queue_depth`."""
    if not buckets:
        return None
    per_s = _per_second(buckets)
    rates = (("arrivals per second", "arrivals", "grey"), ("starts per second", "starts", "green"))
    depths = (("most at once", "greatest_depth", "blue"), ("at the end of each interval", "depth", "amber"))
    most = max(row["greatest_depth"] for row in buckets)
    hits = [
        Hit(
            low,
            high,
            f"{axis.after(low)}\nup to {count(row['greatest_depth'])} waiting, {count(row['depth'])} at the end"
            f"\n{row['arrivals'] * per_s:,.4g} arrivals, {row['starts'] * per_s:,.4g} starts per second",
        )
        for row, low, high in _intervals(buckets, axis)
    ]
    fastest = max(row[key] * per_s for _, key, _ in rates for row in buckets)
    lines = [Curve(colour, _points(buckets, axis, key, per_s), is_step=True) for _, key, colour in rates]
    panes = [Pane(axis.scale(), linear(0, fastest, "events per second"), lines, hits=hits)]
    if most:
        of_depth = [
            Curve(colour, _points(buckets, axis, key), is_step=True, is_filled=key == "greatest_depth")
            for _, key, colour in depths
        ]
        above = axis.scale()._replace(title="")
        panes.insert(0, Pane(above, linear(0, most, "events waiting", is_whole=True), of_depth, hits=hits))
    keys = [LegendKey(name, colour) for name, _, colour in (*(depths if most else ()), *rates)]
    return PaneChart(panes, keys)


def latency_plot(times: Rows, axis: TimeAxis) -> PaneChart | None:
    """Median and 99th percentile of the time in the queue and, below, in handlers, from rows of `event_times`.

    One colour per event type.
    """
    if not times:
        return None
    names = list(dict.fromkeys(event_name(row) for row in times))
    colour = colours_of(names, {})
    in_order = sorted(times, key=lambda row: row["bucket"])
    panes = []
    for kind, title in (("queue", "in the queue"), ("handling", "in handlers")):
        lines = [
            Curve(
                colour(name),
                [
                    (axis.place(row["starts_at"]), _seconds(row[f"{kind}_{quantile}_us"]))
                    for row in in_order
                    if event_name(row) == name
                ],
                is_dotted=quantile == "p50",
            )
            for name in names
            for quantile in ("p99", "p50")
        ]
        y = powers_of_ten(
            min(_seconds(row[f"{kind}_p50_us"]) for row in times),
            max(_seconds(row[f"{kind}_p99_us"]) for row in times),
            title,
        )
        x = axis.scale() if kind == "handling" else axis.scale()._replace(title="")
        panes.append(Pane(x, y, lines, hits=list(_latency_hits(in_order, axis, kind, title))))
    return PaneChart(panes, [LegendKey(name, colour(name)) for name in names])


def _latency_hits(times: Rows, axis: TimeAxis, kind: str, title: str) -> Iterator[Hit]:
    groups = [(key, list(group)) for key, group in itertools.groupby(times, lambda row: row["starts_at"])]
    starts = [{"starts_at": at} for at, _ in groups]
    for (_, rows), (_, low, high) in zip(groups, _intervals(starts, axis), strict=True):
        lines = (
            f"{event_name(row)}: 99 % within {duration(row[f'{kind}_p99_us'] / 1e6)}, "
            f"half within {duration(row[f'{kind}_p50_us'] / 1e6)} ({count(row['count'])} events)"
            for row in rows
        )
        yield Hit(low, high, "\n".join([f"{title}, {axis.after(low)}", *lines]))


def _seconds(microseconds: float) -> float:
    """On a logarithmic axis."""
    return max(microseconds, _FLOOR_US) / 1e6


def cluster_plot(shares: Rows, axis: TimeAxis) -> PaneChart | None:
    """Share of the whole cluster in use, from the rows of `node_utilisation` without a node."""
    known = [
        (key, name, colour)
        for (key, name), colour in zip(_RESOURCES, COLOURS, strict=False)
        if any(row[key] is not None for row in shares)
    ]
    if not known:
        return None
    lines = [
        Curve(colour, _points([row for row in shares if row[key] is not None], axis, key, 100), is_step=True)
        for key, _, colour in known
    ]
    hits = [
        Hit(
            low,
            high,
            "\n".join(
                [axis.after(low), *(f"{name} {100 * row[key]:.0f} %" for key, name, _ in known if row[key] is not None)]
            ),
        )
        for row, low, high in _intervals(shares, axis)
    ]
    most = max(y for line in lines for _, y in line.points)
    pane = Pane(axis.scale(), linear(0, most, "of the capacity", unit=" %"), lines, hits=hits)
    return PaneChart([pane], [LegendKey(name, colour) for _, name, colour in known])


def heat_plot(shares: Rows, axis: TimeAxis, key: str) -> RowChart | None:
    """Use over time: one map per known resource, with one row per name under `key`, in order."""
    known = [(column, title) for column, title in _RESOURCES if any(row[column] is not None for row in shares)]
    if not known:
        return None
    names = list(dict.fromkeys(row[key] for row in shares))
    cells = {(row[key], row["bucket"]): row for row in shares}
    scale, buckets = _bucket_scale(shares, axis)
    highest = 100 * max(row[column] or 0.0 for row in shares for column, _ in known)
    most = min(_scale_end(highest), 100.0)
    facets = []
    for column, title in known:
        values = [[_percent(cells.get((name, bucket)), column) for bucket in buckets] for name in names]
        about = [
            f"{label(name)}, {title}: {sum(uses) / len(uses):.3g} % on average, up to {max(uses):.3g} %"
            if (uses := [use for use in row if use is not None])
            else f"{label(name)}, {title}: unknown"
            for name, row in zip(names, values, strict=True)
        ]
        facets.append(HeatFacet(scale, values, most, about, title))
    row_px = 15 if len(names) > 12 else 24
    keys = [LegendKey("above 100 %", "over")] if highest > 100 else []
    return RowChart([label(name) for name in names], facets, keys, row_px, heat_end=f"{most:g} %")


def _bucket_scale(rows: Rows, axis: TimeAxis) -> tuple[Scale, range]:
    """The axis that the buckets of the rows divide evenly, and their numbers."""
    starts = {row["bucket"]: axis.place(row["starts_at"]) for row in rows}
    first, last = min(starts), max(starts)
    width = (starts[last] - starts[first]) / (last - first) if last > first else axis.length - starts[first]
    scale = linear(starts[first], starts[last] + width, f"time ({axis.unit})", to_ticks=False)
    return scale, range(first, last + 1)


def _scale_end(most: float) -> float:
    """The next round number, so that the scale also fits low shares."""
    power = 10.0 ** math.floor(math.log10(max(most, 0.1)))
    return next(digit * power for digit in (1, 2, 3, 4, 5, 6, 8, 10) if digit * power >= most - 1e-9)


def _percent(row: Mapping[str, Any] | None, column: str) -> float | None:
    return None if row is None or row[column] is None else round(100 * row[column], 2)


def slowest_plot(handlings: Rows, axis: TimeAxis) -> PaneChart | None:
    """Start and duration of the slowest handlers, from rows of `slowest_handlers`; one colour per event class."""
    if not handlings:
        return None
    classes = list(dict.fromkeys(row["event_class"] for row in handlings))
    colour = dict(zip(classes, COLOURS[:_CLASSES_NAMED], strict=False))
    points = [
        ChartPoint(
            axis.place(row["at"]),
            _seconds(1e3 * row["handling_ms"]),
            colour.get(row["event_class"], PALE),
            f"{event_name(row)} of {label(row['entity'])}: {duration(row['handling_ms'] / 1e3)} "
            f"(seq {count(row['seq'])}), {axis.after(axis.place(row['at']))}",
        )
        for row in handlings
    ]
    keys = [LegendKey(name, shade) for name, shade in colour.items()]
    if len(classes) > len(colour):
        keys.append(LegendKey("others", PALE))
    longest = [point.y for point in points]
    return PaneChart([Pane(axis.scale(), powers_of_ten(min(longest), max(longest)), points=points)], keys)


def _points(rows: Rows, axis: TimeAxis, key: str, factor: float = 1) -> list[tuple[float, float]]:
    return [(axis.place(row["starts_at"]), row[key] * factor) for row in rows]


def _intervals(rows: Rows, axis: TimeAxis) -> Iterator[tuple[Mapping[str, Any], float, float]]:
    """Each row with where its interval begins and ends on the axis; the last one ends with the axis."""
    starts = [axis.place(row["starts_at"]) for row in rows]
    return zip(rows, starts, [*starts[1:], max(axis.scale().high, starts[-1])], strict=True)


def _per_second(buckets: Sequence[Mapping[str, Any]]) -> float:
    if len(buckets) < 2:
        return 1.0
    width_ns = buckets[1]["starts_at"] - buckets[0]["starts_at"]
    return 1e9 / width_ns if width_ns else 1.0
