"""Compares two runs by their key figures."""

from __future__ import annotations

from pipeline.report.digests.run import ReportRun
from pipeline.report.tables.applications import END_STATES

_Figures = dict[str, tuple[str, str]]
KEY = "subject, metric, unit"


def key_figures(run: ReportRun) -> str:
    """One row per key figure of a run: its subject, metric, unit and value.

    The subject is `run` for the run as a whole, `queue NAME`, `events CLASS.TYPE` or `stay MACHINE.STATE`. The unit is
    empty for counts and shares; the value is null if the run lacks the figure. From run_totals, applications,
    waiting_by_queue, events_by_type, time_in_state and node_utilisation.
    """
    ended = ", ".join(f"count_if(final_state = '{state}') AS {state.lower()}" for state in END_STATES)
    whole = f"""
        SELECT * FROM run_totals, (
            SELECT count(*) AS applications, {ended}, quantile_cont(wait_s, 0.5) AS wait_p50,
                quantile_cont(wait_s, 0.95) AS wait_p95, max(wait_s) AS wait_max
            FROM applications
        ), (
            SELECT avg(memory_share) AS memory_share, avg(vcores_share) AS vcores_share, avg(gpu_share) AS gpu_share
            FROM node_utilisation WHERE node IS NULL
        )
    """
    run_figures = (
        _counts("events", "failed_events", "transitions", "applications", "finished", "failed", "killed")
        | {"span": ("s", "(last_at - first_at) / 1e9::DOUBLE")}
        | {name: ("s", name) for name in ("wait_p50", "wait_p95", "wait_max")}
        | _counts("memory_share", "vcores_share", "gpu_share")
    )
    costs = ("queue_mean", "queue_p99", "handling_mean", "handling_p99")
    of_types = _counts("count", "failed") | {name: ("us", f"{name}_us") for name in costs}
    parts = (
        (whole, "'run'", run_figures),
        (
            "FROM waiting_by_queue",
            "concat('queue ', coalesce(queue, '?'))",
            _counts("applications", "never_placed") | _seconds("p50", "p95", "max"),
        ),
        ("FROM events_by_type", "concat('events ', event_class, '.', event_type)", of_types),
        (
            "FROM time_in_state",
            "concat('stay ', machine, '.', state)",
            _counts("count") | _seconds("p50", "p95", "p99", "max"),
        ),
    )
    return " UNION ALL ".join(_figures(*part) for part in parts)


def _seconds(*names: str) -> _Figures:
    return {name: ("s", f"{name}_s") for name in names}


def _counts(*names: str) -> _Figures:
    return {name: ("", f'"{name}"') for name in names}


def _figures(rows: str, subject: str, figures: _Figures) -> str:
    each = ", ".join(
        f"{{'metric': '{metric}', 'unit': '{unit}', 'value': ({value})::DOUBLE}}"
        for metric, (unit, value) in figures.items()
    )
    return f"""
        SELECT subject, figure.metric, figure.unit, figure.value
        FROM (SELECT {subject} AS subject, unnest([{each}]) AS figure FROM ({rows}))
    """


def comparison(run: ReportRun) -> str:
    """One row per figure of either run; from key_figures, and before_key_figures of the earlier run.

    change is (after - before) / before; null if either is null or before is 0.
    """
    return f"""
        SELECT {KEY}, before, after, CASE WHEN before <> 0 THEN (after - before) / before END AS change
        FROM (SELECT {KEY}, value AS before FROM before_key_figures)
        FULL JOIN (SELECT {KEY}, value AS after FROM key_figures) USING ({KEY})
    """
