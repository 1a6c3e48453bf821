"""Compares two runs by their key figures."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from dispatcher.util.units import NS_PER_S

_Figures = dict[str, tuple[str, Column]]


def key_figures(tables: Mapping[str, DataFrame]) -> DataFrame:
    """One row per figure of a run.

    In:  the report's tables run_totals, applications, waiting_by_queue, events_by_type, time_in_state and
         node_utilisation.
    Out: subject string (run, queue NAME, events CLASS.TYPE, stay MACHINE.STATE), metric string (unique together), unit
         string (empty for counts and shares), value double (null if the run lacks the figure).
    """
    ended = {state: F.count_if(F.col("final_state") == state) for state in ("FINISHED", "FAILED", "KILLED")}
    waits = F.percentile("wait_s", [0.5, 0.95])
    of_applications = tables["applications"].agg(
        F.count("*").alias("applications"),
        *(column.alias(state.lower()) for state, column in ended.items()),
        waits[0].alias("wait_p50"),
        waits[1].alias("wait_p95"),
        F.max("wait_s").alias("wait_max"),
    )
    whole = tables["node_utilisation"].where(F.col("node").isNull())
    shares = whole.agg(*(F.mean(name).alias(name) for name in ("memory_share", "vcores_share", "gpu_share")))
    # Three tables of one row each.
    run = tables["run_totals"].join(of_applications, how="cross").join(shares, how="cross")
    run_figures = (
        _counts("events", "failed_events", "transitions", "applications", "finished", "failed", "killed")
        | {"span": ("s", (F.col("last_at") - F.col("first_at")) / NS_PER_S)}
        | {name: ("s", F.col(name)) for name in ("wait_p50", "wait_p95", "wait_max")}
        | _counts("memory_share", "vcores_share", "gpu_share")
    )
    costs = ("queue_mean", "queue_p99", "handling_mean", "handling_p99")
    event = F.concat(F.lit("events "), "event_class", F.lit("."), "event_type")
    stay = F.concat(F.lit("stay "), "machine", F.lit("."), "state")
    queue = F.concat(F.lit("queue "), F.coalesce("queue", F.lit("?")))
    parts = [
        (run, F.lit("run"), run_figures),
        (tables["waiting_by_queue"], queue, _counts("applications", "never_placed") | _seconds("p50", "p95", "max")),
        (
            tables["events_by_type"],
            event,
            _counts("count", "failed") | {name: ("us", F.col(f"{name}_us")) for name in costs},
        ),
        (tables["time_in_state"], stay, _counts("count") | _seconds("p50", "p95", "p99", "max")),
    ]
    return reduce(DataFrame.unionAll, (_figures(*part) for part in parts))


def _seconds(*names: str) -> _Figures:
    return {name: ("s", F.col(f"{name}_s")) for name in names}


def _counts(*names: str) -> _Figures:
    return {name: ("", F.col(name)) for name in names}


def _figures(rows: DataFrame, subject: Column, figures: _Figures) -> DataFrame:
    each = F.array(
        *(
            F.struct(F.lit(metric).alias("metric"), F.lit(unit).alias("unit"), value.cast("double").alias("value"))
            for metric, (unit, value) in figures.items()
        )
    )
    return rows.select(subject.alias("subject"), F.explode(each).alias("figure")).select(
        "subject", "figure.metric", "figure.unit", "figure.value"
    )


def comparison(before: DataFrame, after: DataFrame) -> DataFrame:
    """One row per figure of either run.

    In:  rows of `key_figures`, of each run.
    Out: subject, metric string (unique together), unit string, before, after double (null if that run lacks the
         figure), change double ((after - before) / before; null if either is null or before is 0).
    """
    keys = ["subject", "metric", "unit"]
    change = F.try_divide(F.col("after") - F.col("before"), F.col("before"))
    return (
        before.select(*keys, F.col("value").alias("before"))
        .join(after.select(*keys, F.col("value").alias("after")), on=keys, how="full")  # 1:1, either may be absent
        .select(*keys, "before", "after", change.alias("change"))
    )
