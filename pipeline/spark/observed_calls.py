"""The counts of all tasks' calls, on the driver: as observed metrics of batch queries, streams and Spark Connect.

At its start, once a second and at its end, a task emits rows with its counts since the previous such rows. `observe`
sums them, and a filter after it drops them. An ordinary row has a null in their column, an array: its 4 bytes and the
aggregates that ignore it cost about 0.2 us a row, all together. A struct with a field for each number would be filled
with zeros in every row.

The counts of a task attempt that failed or was killed are lost with its rows. The attempt that succeeds tells how many
preceded it: `lost_attempts`. A task that a `limit` ends early has reported its counts up to its last such row, and is a
lost attempt, too. Spark does not report a speculative copy that is killed because the attempt before it succeeds.

Spark has no aggregate that sums vectors, and one sum for each bucket of a histogram would cost every row. But
`percentile` keeps a map from values to their frequencies, which it adds up over rows and tasks, and whose size depends
on the distinct values only. So a task reports a row for each bucket that has new durations: the bucket as the value,
their number as the frequency. The result has the bucket of each of SHARES. From these, `read_shares` rebuilds the
counts: whole and half percents are in their exact bucket, and any other quantile is off by at most half a percent of
the durations. Of up to 200 durations, all are in their exact bucket.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from itertools import pairwise
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

from dispatcher.errors import InvalidValueError
from dispatcher.util.functions import require_methods
from dispatcher.util.histogram import FineHistogram
from pipeline.streaming.calls.call_counts import COUNTERS, HISTOGRAMS, CallMetrics, register_call_metrics

METRICS_COLUMN: Final = "__async_wait_metrics"
METRICS_TYPE: Final = T.ArrayType(T.LongType())
"""The type of the column: the numbers of METRICS_FIELDS. One without news is null, or missing at the end."""

_COUNTERS: Final = ("ended", *COUNTERS)
_SUMS: Final = (
    "tasks",  # that have ended
    "tasks_started",
    *_COUNTERS,
    *(f"{name}_{number}" for name in HISTOGRAMS for number in ("count", "sum_ns")),
)
_LEAST: Final = tuple(f"{name}_min_ns" for name in HISTOGRAMS)
_MOST: Final = tuple(f"{name}_max_ns" for name in HISTOGRAMS)
# A bucket of one of the histograms, and how many durations are in it.
_BUCKETS: Final = (*(f"{name}_bucket" for name in HISTOGRAMS), "in_bucket")
METRICS_FIELDS: Final = (*_SUMS, *_LEAST, *_MOST, *_BUCKETS)
"""What the numbers of METRICS_TYPE are."""
_PLACES: Final = {name: place for place, name in enumerate(METRICS_FIELDS)}
_TAILS: Final = (0.0001, 0.0005, 0.001, 0.999, 0.9995, 0.9999, 0.99995, 0.99999)
# `percentile` interpolates between two values where a share ends exactly between them. A little less than the share is
# within the lower one, which is the nearest rank, if each duration counts for many.
_LESS: Final = 1e-7
_WEIGHT: Final = 1 << 24
SHARES: Final = (
    0.0,
    *(share - _LESS for share in sorted({*_TAILS, *(number / 200 for number in range(1, 200))})),
    1.0,
)
"""The shares of the durations whose buckets are read back, in ascending order."""


class TaskReport:
    """The counts of a task since its previous report. One thread."""

    def __init__(self, metrics: CallMetrics) -> None:
        self._metrics = metrics  # never changes
        self._reported: list[int] = [0] * len(_SUMS)  # one thread; totals at the last report
        self._buckets = {name: FineHistogram().counts for name in HISTOGRAMS}  # one thread; likewise

    def take(self, is_last: bool = False) -> list[list[int | None]]:
        """Values of METRICS_TYPE: a row for each bucket with new durations, then one with the other counts."""
        counts = {name: getattr(self._metrics, name).copy() for name in HISTOGRAMS}
        rows = [row for name, histogram in counts.items() for row in self._new_in(name, histogram)]
        counters = [getattr(self._metrics, name) for name in _COUNTERS]
        of_times = [number for each in counts.values() for number in (each.count, each.total_ns)]
        totals = [int(is_last), 1, *counters, *of_times]
        new = [now - before for now, before in zip(totals, self._reported, strict=True)]
        self._reported = totals
        least = [each.min_ns if each.count else None for each in counts.values()]
        most = [each.max_ns if each.count else None for each in counts.values()]
        return [*rows, [*new, *least, *most]]

    def _new_in(self, name: str, histogram: FineHistogram) -> list[list[int | None]]:
        before, self._buckets[name] = self._buckets[name], histogram.counts
        rows = []
        for bucket, (now, then) in enumerate(zip(histogram.counts, before, strict=True)):
            if now != then:
                row: list[int | None] = [None] * len(_PLACES)
                row[_PLACES[f"{name}_bucket"]] = bucket
                row[_PLACES["in_bucket"]] = now - then
                rows.append(row)
        return rows


def observe_calls(df: DataFrame, observation: Any) -> DataFrame:
    """`df` without its rows of metrics, which `observation` (an Observation or a name) sums."""
    functions = functions_for(df)
    column = functions.col(METRICS_COLUMN)

    def total(name: str, aggregate: Callable[[Column], Column]) -> Column:
        value = functions.get(column, functions.lit(_PLACES[name]))
        return functions.coalesce(aggregate(value), functions.lit(0)).alias(name)  # type: ignore[no-any-return]

    totals = [total(name, functions.sum) for name in _SUMS]
    totals += [total(name, functions.min) for name in _LEAST]
    totals += [total(name, functions.max) for name in _MOST]
    number = f"get({METRICS_COLUMN}, {_PLACES['in_bucket']})"
    for name in HISTOGRAMS:
        bucket = f"get({METRICS_COLUMN}, {_PLACES[f'{name}_bucket']})"
        totals.append(functions.expr(shares_sql(bucket, number)).alias(f"{name}_shares"))
    return df.observe(observation, *totals).where(column.isNull()).drop(METRICS_COLUMN)


def shares_sql(bucket: str, number: str) -> str:
    """The SQL of a text that `read_shares` takes.

    `bucket` and `number` are SQL: null, or a bucket and how many durations are in it.
    """
    shares = ",".join(map(repr, SHARES))
    # The shares are one literal, which Spark analyzes faster than 200. The lambda refers to the percentiles twice; an
    # aggregate that is written twice is computed twice.
    percentiles = f"percentile({bucket}, cast(split('{shares}', ',') as array<double>), {number} * {_WEIGHT}L)"
    firsts = "transform(array_distinct(p), b -> concat(cast(round(b) as int), ':', array_position(p, b)))"
    return f"coalesce(element_at(transform(array({percentiles}), p -> array_join({firsts}, ',')), 1), '')"


def read_shares(text: str, into: FineHistogram, number: int) -> None:
    """Add the counts of `number` durations to `into`, from the result of `shares_sql`.

    `text` has the distinct buckets in ascending order, each with the place, from 1, of its first share in SHARES.
    """
    if not text or not number:
        return
    firsts = [tuple(map(int, part.split(":"))) for part in text.split(",")]
    below = 0
    for (bucket, _), (_, place) in pairwise(firsts):
        # The durations of the buckets up to this one end somewhere between the two ranks.
        first, last = _rank(SHARES[place - 2], number), _rank(SHARES[place - 1], number) - 1
        upto = (first + last + 1) // 2
        into.counts[bucket] += upto - below
        below = upto
    into.counts[firsts[-1][0]] += number - below


def _rank(share: float, number: int) -> int:
    """Which duration of `number`, from 1 in ascending order, `percentile` finds for a share."""
    return int((number * _WEIGHT - 1) * share) // _WEIGHT + 1


def functions_for(df: DataFrame) -> Any:
    """`pyspark.sql.functions` fits the process's default kind of session, but a process may have both kinds."""
    if type(df).__module__.startswith("pyspark.sql.connect."):
        from pyspark.sql.connect import functions as connect_functions

        return connect_functions
    from pyspark.sql import functions

    return functions


def call_metrics(observed: Any, name: str | None = None) -> CallMetrics:
    """Return the counts of all tasks, from the metrics that Spark observed.

    `observed`: an Observation, which waits for its query to end, the result of its `get`, an entry of a progress's
        `observedMetrics`, or a streaming progress (the counts of one micro-batch) with the `name` of the metrics.

    Raises:
        ValueError: `observed` has no such metrics.
    """
    if name is not None:
        is_dict, key = isinstance(observed, Mapping), "observedMetrics"
        of_progress = observed[key] if is_dict else getattr(observed, key, None)
        observed = (of_progress or {}).get(name)
    values = _as_dict(observed)
    if values is None or not values.keys() >= {*_SUMS, *_LEAST, *_MOST}:
        raise InvalidValueError(
            f"no metrics of asynchronous calls in {observed!r}"
            + (f", the metrics {name!r} of the progress" if name is not None else "")
            + "; give the metrics argument of ordered_wait"
        )
    metrics = CallMetrics()
    for counter in _COUNTERS:
        setattr(metrics, counter, values[counter])
    metrics.lost_attempts += values["tasks_started"] - values["tasks"]
    for each in HISTOGRAMS:
        if count := values[f"{each}_count"]:
            histogram: FineHistogram = getattr(metrics, each)
            histogram.total_ns = values[f"{each}_sum_ns"]
            histogram.min_ns, histogram.max_ns = values[f"{each}_min_ns"], values[f"{each}_max_ns"]
            read_shares(values[f"{each}_shares"], histogram, count)
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
    """Return a table to print, with one line per operator and times in milliseconds.

    If the line shows lost attempts, its other numbers lack the calls of that many task attempts.
    """
    require_methods(metrics, "metrics", "a mapping of operators to their metrics", "items")
    counters = (
        "calls",
        "completed",
        "failed",
        "retried",
        "timed out",
        "dropped",
        "captured",
        "shared",
        "lost attempts",
    )
    times = ("mean ms", "min ms", "p50 ms", "p99 ms", "max ms", "limit p50 ms", "limit p99 ms")
    rows: list[tuple[str, ...]] = [("operator", *counters, *times)]
    for name, each in metrics.items():
        ends = (each.completed, each.failed, each.retried, each.timed_out, each.dropped, each.captured)
        counts = (each.calls, *ends, each.shared + each.remembered, each.lost_attempts)
        time, waits = each.call_time, each.limit_wait
        mean_s = time.sum_s / time.count if time.count else 0.0
        times_s = (mean_s, time.min_s, time.quantile(0.5), time.quantile(0.99), time.max_s)
        in_s = (*times_s, waits.quantile(0.5), waits.quantile(0.99))
        rows.append((name, *map(str, counts), *(f"{seconds * 1e3:.1f}" for seconds in in_s)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows)


class CallMetricsListener(StreamingQueryListener):
    """Sums the metrics of streams and exposes them to Prometheus as the operator `query/name`.

    Pass it to `spark.streams.addListener`, also over Spark Connect, where it runs in the client. If your query has no
    name, its id is the label. The metrics of an ended query remain.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._registry = registry  # never changes
        self._lock = threading.Lock()  # leaf lock
        self._totals: dict[str, CallMetrics] = {}  # guarded by _lock, as are the writes to the metrics

    def totals(self) -> dict[str, CallMetrics]:
        """Return the counts so far, by operator. Thread-safe."""
        with self._lock:
            return dict(self._totals)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing. Called on Spark's thread."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Add a batch's metrics. Called on Spark's thread."""
        progress = event.progress
        for name, observed in progress.observedMetrics.items():
            try:
                metrics = call_metrics(observed)
            except ValueError:
                continue  # another observation of the query
            self._add(f"{progress.name or progress.id}/{name}", metrics)

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing. Called on Spark's thread."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing. Called on Spark's thread."""

    def _add(self, operator: str, metrics: CallMetrics) -> None:
        with self._lock:
            total = self._totals.get(operator)
            if total is not None:
                total.merge(metrics)
                return
            self._totals[operator] = metrics
        register_call_metrics(metrics, operator, self._registry)
