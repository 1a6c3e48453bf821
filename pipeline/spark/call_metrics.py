"""The counts of all tasks' calls on the driver: in observed metrics of batch queries, streams and Spark Connect.

A task adds a row with what it has counted since the last such row: once a second, and at its end. `observe` adds these
rows up, and they are filtered out behind it. What a failed attempt of a task has counted is lost with its rows; a task
that ends early, because of a `limit`, has told what it knew up to then. Waits for a first call are not told of: each
number costs the JVM time for every row, all of them together 1 to 2 us.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
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
)
# As those of a Histogram, but all below 2^20 ns (1 ms) are one, and all from 2^34 ns (17 s).
_BUCKETS: Final = range(20, 36)

METRICS_TYPE: Final = T.StructType(
    [T.StructField("tasks", T.LongType())]
    + [T.StructField(name, T.LongType()) for name in _COUNTERS]
    + [T.StructField("call_time_sum_ns", T.LongType()), T.StructField("call_time_max_ns", T.LongType())]
    + [T.StructField(f"call_time_{bits}", T.LongType()) for bits in _BUCKETS]
)
"""Of one row of metrics."""


class TaskReport:
    """What a task tells of its counts: the difference to what it has told before. One thread."""

    def __init__(self, metrics: CallMetrics) -> None:
        self._metrics = metrics
        self._told: list[int] = [0] * len(METRICS_TYPE.fields)

    def take(self, is_last: bool) -> list[int]:
        """The values of METRICS_TYPE, which count from now on as told."""
        metrics, time = self._metrics, self._metrics.call_time
        counts = list(time.counts)
        first, last = _BUCKETS[0], _BUCKETS[-1]
        buckets = [sum(counts[: first + 1]), *counts[first + 1 : last], sum(counts[last:])]
        counters = [getattr(metrics, name) for name in _COUNTERS]
        now = [int(is_last), *counters, time.total_ns, 0, *buckets]
        values = [new - old for new, old in zip(now, self._told, strict=True)]
        values[METRICS_TYPE.names.index("call_time_max_ns")] = time.max_ns
        self._told = now
        return values


def observe_calls(df: DataFrame, observation: Any) -> DataFrame:
    """`df`, whose rows of metrics are added up by `observation` (an Observation or a name) and left out."""
    functions = _functions_for(df)
    column = functions.col(METRICS_COLUMN)

    def total(name: str, aggregate: Callable[[Column], Column] = functions.sum) -> Column:
        return functions.coalesce(aggregate(column.getField(name)), functions.lit(0))  # type: ignore[no-any-return]

    totals = [total(name).alias(name) for name in ("tasks", *_COUNTERS)]
    totals.append(total("call_time_sum_ns").alias("call_time_sum_ns"))
    totals.append(total("call_time_max_ns", functions.max).alias("call_time_max_ns"))
    # As text: not every Spark 4 brings an array back.
    counts = (total(f"call_time_{bits}").cast("string") for bits in _BUCKETS)
    totals.append(functions.concat_ws(",", *counts).alias("call_time_counts"))
    return df.observe(observation, *totals).where(column.isNull()).drop(METRICS_COLUMN)


def _functions_for(df: DataFrame) -> Any:
    """`pyspark.sql.functions` makes the columns of the process's own kind of session; a process may have both."""
    if type(df).__module__.startswith("pyspark.sql.connect."):
        from pyspark.sql.connect import functions as connect_functions

        return connect_functions
    from pyspark.sql import functions

    return functions


def call_metrics(observed: Any, name: str | None = None) -> CallMetrics:
    """The counts of all tasks, from what Spark has observed.

    `observed`: an Observation, which waits for its query to end; what its `get` gave; an entry of a progress's
    `observedMetrics`; or a progress itself (of a stream: the counts of one micro-batch) and the `name` in it.

    Raises:
        ValueError: there are no such metrics in it.
    """
    if name is not None:
        of_progress = _field(observed, "observedMetrics") or {}
        observed = of_progress.get(name)
    values = _as_dict(observed)
    if values is None or not values.keys() >= {*_COUNTERS, "call_time_counts"}:
        raise ValueError(
            f"there are no metrics of asynchronous calls in {observed!r}"
            + (f", the metrics {name!r} of the progress" if name is not None else "")
            + "; give what was given to ordered_wait as metrics"
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
        # In the progress of a stream over Spark Connect a row is one of its values and its schema.
        if values.keys() == {"values", "schema"}:
            return dict(zip((field["name"] for field in values["schema"]["fields"]), values["values"], strict=True))
        return values
    return _as_dict(observed.get) if hasattr(observed, "get") else None


def _field(progress: Any, name: str) -> Any:
    return progress[name] if isinstance(progress, Mapping) else getattr(progress, name, None)


def format_call_metrics(metrics: Mapping[str, CallMetrics]) -> str:
    """A table to print: one line for each operator. Times are in milliseconds."""
    head = ("operator", "calls", "completed", "failed", "retried", "timed out", "dropped", "captured", "shared")
    times = ("mean ms", "p50 ms", "p99 ms", "max ms")
    rows: list[tuple[str, ...]] = [(*head, *times)]
    for name, each in metrics.items():
        time = each.call_time
        mean_s = time.sum_s / time.count if time.count else 0.0
        counts = (each.calls, each.completed, each.failed, each.retried, each.timed_out, each.dropped, each.captured)
        # A quantile is a guess within its bucket, and the first bucket goes up to 1 ms.
        p50_s, p99_s = (min(time.quantile(share), time.max_s) for share in (0.5, 0.99))
        in_ms = (mean_s, p50_s, p99_s, time.max_s)
        shared = each.shared + each.remembered
        rows.append((name, *map(str, counts), str(shared), *(f"{seconds * 1e3:.1f}" for seconds in in_ms)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(_line(row, widths) for row in rows)


def _line(row: Iterable[str], widths: Iterable[int]) -> str:
    first, *others = zip(row, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(text.rjust(width) for text, width in others)])


class CallMetricsListener(StreamingQueryListener):
    """Adds up the metrics of streams and shows them to Prometheus, as the operator `query/name`.

    For `spark.streams.addListener`, also over Spark Connect, where it runs in the client. A query without a name goes
    by its id. Metrics of a query that has ended stay.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._registry = registry  # never changes
        self._lock = threading.Lock()  # leaf lock
        self._totals: dict[str, CallMetrics] = {}  # guarded by _lock, as are the writes to the metrics

    def totals(self) -> dict[str, CallMetrics]:
        """What has been counted so far, by operator. Any thread."""
        with self._lock:
            return dict(self._totals)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing to count yet. Spark's thread."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Spark's thread."""
        progress = event.progress
        for name, observed in progress.observedMetrics.items():
            try:
                metrics = call_metrics(observed)
            except ValueError:
                continue  # of somebody else
            self._add(f"{progress.name or progress.id}/{name}", metrics)

    def onQueryIdle(self, event: Any) -> None:
        """Nothing to count. Spark's thread."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Nothing to count any more. Spark's thread."""

    def _add(self, operator: str, metrics: CallMetrics) -> None:
        with self._lock:
            total = self._totals.get(operator)
            if total is not None:
                total.merge(metrics)
                return
            self._totals[operator] = metrics
        register_call_metrics(metrics, operator, self._registry)
