"""The counts of all tasks' calls, on the driver: as observed metrics of batch queries, streams and Spark Connect.

Once a second and at its end, a task emits a row with its counts since the previous such row. `observe` sums these rows,
and a filter after it drops them. The counts of a failed task attempt are lost with its rows. A task that a `limit` ends
early has reported its counts up to its last such row. Waits for a first call are not reported: each number costs the
JVM time on every row, all together 1 to 2 us.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry
from pyspark.sql import Column, DataFrame
from pyspark.sql import types as T
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from pipeline.streaming.calls.call_counts import CallMetrics, register_call_metrics

METRICS_COLUMN: Final = "__async_wait_metrics"
_COUNTERS: Final = (
    "calls",
    "ended",
    "completed",
    "failed",
    "timed_out",
    "retried",
    "dropped",
    "captured",
    "shared",
    "remembered",
    "unknown",
)
# A Histogram's buckets, with all below 2^20 ns (1 ms) joined into one, and all from 2^34 ns (17 s) into another.
_BUCKETS: Final = range(20, 36)

METRICS_TYPE: Final = T.StructType(
    [
        T.StructField(name, T.LongType())
        for name in ("tasks", *_COUNTERS, "call_time_sum_ns", "call_time_max_ns", *(f"call_time_{n}" for n in _BUCKETS))
    ]
)
"""The type of one row of metrics."""


class TaskReport:
    """The counts of a task since its previous report. One thread."""

    def __init__(self, metrics: CallMetrics) -> None:
        self._metrics = metrics
        self._reported: list[int] = [0] * len(METRICS_TYPE.fields)  # one thread; totals at the last report

    def take(self, is_last: bool) -> list[int]:
        """The values of METRICS_TYPE since the last call."""
        metrics, time = self._metrics, self._metrics.call_time
        counts = list(time.counts)
        first, last = _BUCKETS[0], _BUCKETS[-1]
        buckets = [sum(counts[: first + 1]), *counts[first + 1 : last], sum(counts[last:])]
        counters = [getattr(metrics, name) for name in _COUNTERS]
        now = [int(is_last), *counters, time.total_ns, 0, *buckets]
        values = [new - old for new, old in zip(now, self._reported, strict=True)]
        values[METRICS_TYPE.names.index("call_time_max_ns")] = time.max_ns
        self._reported = now
        return values


def observe_calls(df: DataFrame, observation: Any) -> DataFrame:
    """`df` without its rows of metrics, which `observation` (an Observation or a name) sums."""
    functions = functions_for(df)
    column = functions.col(METRICS_COLUMN)

    def total(name: str, aggregate: Callable[[Column], Column] = functions.sum) -> Column:
        return functions.coalesce(aggregate(column.getField(name)), functions.lit(0))  # type: ignore[no-any-return]

    totals = [total(name).alias(name) for name in ("tasks", *_COUNTERS)]
    totals.append(total("call_time_sum_ns").alias("call_time_sum_ns"))
    totals.append(total("call_time_max_ns", functions.max).alias("call_time_max_ns"))
    # As text: not every Spark 4 returns an observed array.
    counts = (total(f"call_time_{bits}").cast("string") for bits in _BUCKETS)
    totals.append(functions.concat_ws(",", *counts).alias("call_time_counts"))
    return df.observe(observation, *totals).where(column.isNull()).drop(METRICS_COLUMN)


def functions_for(df: DataFrame) -> Any:
    """`pyspark.sql.functions` fits the process's default kind of session, but a process may have both kinds."""
    if type(df).__module__.startswith("pyspark.sql.connect."):
        from pyspark.sql.connect import functions as connect_functions

        return connect_functions
    from pyspark.sql import functions

    return functions


def call_metrics(observed: Any, name: str | None = None) -> CallMetrics:
    """The counts of all tasks, from the metrics that Spark observed.

    `observed`: an Observation, which waits for its query to end; the result of its `get`; an entry of a progress's
    `observedMetrics`; or a streaming progress (the counts of one micro-batch) with the `name` of the metrics.

    Raises:
        ValueError: `observed` has no such metrics.
    """
    if name is not None:
        is_dict, key = isinstance(observed, Mapping), "observedMetrics"
        of_progress = observed[key] if is_dict else getattr(observed, key, None)
        observed = (of_progress or {}).get(name)
    values = _as_dict(observed)
    if values is None or not values.keys() >= {*_COUNTERS, "call_time_counts"}:
        raise ValueError(
            f"no metrics of asynchronous calls in {observed!r}"
            + (f", the metrics {name!r} of the progress" if name is not None else "")
            + "; give the metrics argument of ordered_wait"
        )
    metrics = CallMetrics()
    for counter in _COUNTERS:
        setattr(metrics, counter, values[counter])
    metrics.call_time.total_ns = values["call_time_sum_ns"]
    metrics.call_time.max_ns = values["call_time_max_ns"]
    for bits, count in zip(_BUCKETS, values["call_time_counts"].split(","), strict=True):
        metrics.call_time.counts[bits] = int(count)
    return metrics


def _as_dict(observed: Any) -> dict[str, Any] | None:
    if isinstance(observed, Mapping):
        return dict(observed)
    if hasattr(observed, "asDict"):
        values: dict[str, Any] = observed.asDict()
        # In a stream's progress over Spark Connect, a row is a dict of its values and its schema.
        if values.keys() == {"values", "schema"}:
            return dict(zip((field["name"] for field in values["schema"]["fields"]), values["values"], strict=True))
        return values
    return _as_dict(observed.get) if hasattr(observed, "get") else None


def format_call_metrics(metrics: Mapping[str, CallMetrics]) -> str:
    """A table to print, with one line per operator and times in milliseconds."""
    head = ("operator", "calls", "completed", "failed", "retried", "timed out", "dropped", "captured", "shared")
    times = ("mean ms", "p50 ms", "p99 ms", "max ms")
    rows: list[tuple[str, ...]] = [(*head, *times)]
    for name, each in metrics.items():
        time = each.call_time
        mean_s = time.sum_s / time.count if time.count else 0.0
        counts = (each.calls, each.completed, each.failed, each.retried, each.timed_out, each.dropped, each.captured)
        # A quantile is an estimate within its bucket, and the first bucket extends to 1 ms.
        p50_s, p99_s = (min(time.quantile(share), time.max_s) for share in (0.5, 0.99))
        in_ms = (mean_s, p50_s, p99_s, time.max_s)
        shared = each.shared + each.remembered
        rows.append((name, *map(str, counts), str(shared), *(f"{seconds * 1e3:.1f}" for seconds in in_ms)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows)


class CallMetricsListener(StreamingQueryListener):
    """Sums the metrics of streams and exposes them to Prometheus as the operator `query/name`.

    Pass it to `spark.streams.addListener`, also over Spark Connect, where it runs in the client. A query without a name
    is labeled by its id. The metrics of an ended query remain.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._registry = registry  # never changes
        self._lock = threading.Lock()  # leaf lock
        self._totals: dict[str, CallMetrics] = {}  # guarded by _lock, as are the writes to the metrics

    def totals(self) -> dict[str, CallMetrics]:
        """The counts so far, by operator. Any thread."""
        with self._lock:
            return dict(self._totals)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Does nothing. Spark's thread."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Spark's thread."""
        progress = event.progress
        for name, observed in progress.observedMetrics.items():
            try:
                metrics = call_metrics(observed)
            except ValueError:
                continue  # another observation of the query
            self._add(f"{progress.name or progress.id}/{name}", metrics)

    def onQueryIdle(self, event: Any) -> None:
        """Does nothing. Spark's thread."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Does nothing. Spark's thread."""

    def _add(self, operator: str, metrics: CallMetrics) -> None:
        with self._lock:
            total = self._totals.get(operator)
            if total is not None:
                total.merge(metrics)
                return
            self._totals[operator] = metrics
        register_call_metrics(metrics, operator, self._registry)
