"""Tables of a journal's events: the cost of each type, in total and over time, and the depth of the queue.

Queue and handling times are wall-clock even in a replay; points in time are in the clock of the run.
"""

from __future__ import annotations

from pipeline.report.digests.run import ReportRun
from pipeline.report.tables.sql import starts_at, summed_up

_TYPE = "event_class, event_type"
_PERCENTILES = {"p50": 0.5, "p99": 0.99}


def run_totals(run: ReportRun) -> str:
    """One row: the journal's totals and its span; from event_totals and transition_totals.

    first_at is the first arrival of an event or the first transition, last_at the last end of a handling or the last
    transition.
    """
    return """
        SELECT e."count" AS events, e.failed AS failed_events, t."count" AS transitions,
            least(e.first_at, t.first_at) AS first_at, greatest(e.last_at, t.last_at) AS last_at
        FROM event_totals e, transition_totals t
    """


def events_by_type(run: ReportRun) -> str:
    """One row per event type: its count and its cost in wall-clock time; from event_group."""
    outcomes = ", ".join(
        f"coalesce(sum(\"count\") FILTER (outcome = '{outcome}'), 0) AS {outcome}"
        for outcome in ("failed", "unregistered")
    )
    return f"""
        SELECT {_TYPE}, "count", failed, unregistered, {_figures("queue", "mean", "p99")},
            {_figures("handling", "mean", "p99")}, handling.total / 1e6::DOUBLE AS handling_total_ms
        FROM ({_measured("handling", _TYPE)}) handling
        JOIN ({_measured("queue", _TYPE)}) queue USING ({_TYPE})
        JOIN (SELECT {_TYPE}, {outcomes} FROM event_group WHERE measure = 'handling_ns' GROUP BY {_TYPE})
            USING ({_TYPE})
    """


def event_times(run: ReportRun) -> str:
    """One row per event type and interval in which events of the type were handled; from event_group."""
    times = run.times
    keys = f"bucket, {_TYPE}"
    figures = ("mean", "p50", "p99", "max")
    return f"""
        SELECT (bucket - {times.first})::INTEGER AS bucket, bucket * {times.width_ns} AS starts_at, {_TYPE}, "count",
            {_figures("queue", *figures)}, {_figures("handling", *figures)}
        FROM ({_measured("handling", keys)}) handling JOIN ({_measured("queue", keys)}) queue USING ({keys})
    """


def _measured(measure: str, keys: str) -> str:
    """One row per combination of keys; only `handling` has count."""
    groups = f"FROM event_group WHERE measure = '{measure}_ns'"
    each = f"({summed_up(groups, keys, _PERCENTILES)})"
    count = ', "count"' if measure == "handling" else ""
    return f"""
        SELECT {keys}{count}, total, total / "count" / 1e3::DOUBLE AS mean, p50 / 1e3::DOUBLE AS p50,
            p99 / 1e3::DOUBLE AS p99, greatest / 1e3::DOUBLE AS max
        FROM {each}
    """


def _figures(measure: str, *names: str) -> str:
    return ", ".join(f"{measure}.{name} AS {measure}_{name}_us" for name in names)


def slowest_handlers(run: ReportRun) -> str:
    """One row per event: those with the longest handling, among equals those with the lowest seq; from slow_event."""
    return f"""
        SELECT seq, {_TYPE}, entity, handling_ns / 1e6::DOUBLE AS handling_ms, started_at AS "at" FROM slow_event
    """


def queue_depth(run: ReportRun) -> str:
    """One row per interval: how many events waited to be handled; from depth.

    Counts journaled events only: events that were never handled do not count as waiting, and the final depth is 0. In
    virtual time an event is handled at the instant of its arrival, so its queue appears empty; `event_times` has the
    wall-clock time in the queue.
    """
    depths, fine = run.depths, run.fine_depths
    first, parts = fine.first, depths.width_ns // fine.width_ns
    return f"""
        WITH part AS (
            SELECT bucket, coalesce(arrivals, 0) AS arrivals, coalesce(starts, 0) AS starts,
                sum(coalesce(arrivals, 0) - coalesce(starts, 0)) OVER (ORDER BY bucket) AS depth
            FROM (SELECT unnest(range({first}, {first + fine.number})) AS bucket)
            LEFT JOIN depth USING (bucket)
            WHERE EXISTS (FROM depth)
        ), each AS (
            SELECT *, lag(depth, 1, 0) OVER (ORDER BY bucket) AS before, (bucket - {first}) // {parts} AS coarse
            FROM part
        )
        SELECT coarse AS bucket, {starts_at(depths, "coarse")} AS starts_at, sum(arrivals) AS arrivals,
            sum(starts) AS starts, arg_max(depth, bucket) AS depth, max(greatest(before, depth)) AS greatest_depth
        FROM each GROUP BY coarse
    """
