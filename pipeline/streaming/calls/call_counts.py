"""The counters of an operator's calls: plain attributes that their owner writes and any thread reads.

Counting takes no lock. A reader on another thread sees each number as of its read; two numbers may differ by the
calls counted between the two reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import REGISTRY

from dispatcher.errors import InvalidTypeError
from dispatcher.util.histogram import FineHistogram
from dispatcher.util.prometheus import NamedCollector, RegistryCollectors, add_histogram

COUNTERS: Final = {
    "calls": "Calls begun. Each attempt counts, also one that the function makes itself.",
    "completed": "Records whose call returned results.",
    "timed_out": "Records whose timeout expired before their call returned.",
    "retried": "Calls repeated after an earlier attempt.",
    "failed": "Records that ended with an error.",
    "dropped": "Failed records that were dropped.",
    "captured": "Failed records whose error was captured as data.",
    "shared": "Records that joined the call of another record.",
    "remembered": "Records answered with remembered results, or from a cache of results.",
    "unknown": "Records whose call was cut off in an earlier job or attempt, according to their cache.",
    "lost_attempts": "Spark task attempts whose counts are missing: they failed, were killed or ended early.",
    "unpaced_tasks": "Spark tasks that called ahead of the reader of their results: PySpark hid how far it had read.",
}
"""The fields of CallMetrics that count, and what they count."""
HISTOGRAMS: Final = {
    "queue_wait": ("async_queue_wait", "Time a record waits before its first call starts."),
    "limit_wait": ("async_limit_wait", "Time a call waits for our own limits; each attempt counts."),
    "call_time": ("async_call", "Duration of a call; each attempt counts."),
}
"""The fields that are histograms, with their names in Prometheus."""
_QUANTILES = {"min": 0.0, "p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}


class CallMetrics:
    """The counters of one operator. Only the owner, its engine's thread, adds to them, but any thread can read them.

    A record ends completed or failed, unless its task ends first. A timed-out record also counts as failed, unless the
    function's `timeout` returned results. A failed record that doesn't fail the task is dropped or captured. A function
    that repeats its calls itself, as a lookup does with its queries, reports their number. They count as calls and as
    retried, one for each query, however many keys it has. Pickling copies the current numbers.

    With a cache, an attempt might find the results of a call that another task has just made. Its answer shows whether
    it was a call, so it counts as one no earlier than that.
    """

    __slots__ = (*COUNTERS, *HISTOGRAMS, "__weakref__", "attempts", "ended")

    def __init__(self) -> None:
        self.calls: int = 0  # the engine's thread: attempts begun
        self.ended: int = 0  # the engine's thread: attempts answered or given up; each counts once
        # The engine's thread: `calls` and `ended` with all attempts, if some may be no calls; None: each is a call.
        self.attempts: CallMetrics | None = None
        self.completed = 0  # the engine's thread: records
        self.timed_out = 0  # the engine's thread: records
        self.retried: int = 0  # the engine's thread: attempts followed by another, and the function's own repetitions
        self.failed = 0  # the engine's thread: records, including dropped and captured ones
        self.dropped = 0  # the engine's thread: records
        self.captured = 0  # the engine's thread: records
        self.shared = 0  # the engine's thread: records
        self.remembered = 0  # the engine's thread: records
        self.unknown = 0  # the engine's thread: records
        self.unpaced_tasks = 0  # the engine's thread: Spark tasks
        self.lost_attempts = 0  # the engine's thread: attempts of Spark tasks, whose calls are in no other count
        # The engine's thread: from taking a record in to the start of its first call.
        self.queue_wait: FineHistogram = FineHistogram()
        # The engine's thread: from when an attempt was due to its start, if the operator's own limits (rate,
        # concurrency, batch, pause) may have held it back. Without limits, calls go straight on and count none.
        self.limit_wait: FineHistogram = FineHistogram()
        # The engine's thread: from the start of an attempt to its answer.
        self.call_time: FineHistogram = FineHistogram()

    def count_repetitions(self, number: int) -> None:
        """Count calls repeated by the function itself. Call it on the engine's thread."""
        self.calls += number
        self.ended += number
        self.retried += number

    @property
    def in_flight(self) -> int:
        """Number of calls begun and neither answered nor given up. With a cache, also those that wait for
        another task's."""
        attempts = self.attempts or self
        # `ended` first: an attempt that ends between the two reads must not make the number negative.
        ended = attempts.ended
        return attempts.calls - ended

    def snapshot(self) -> dict[str, float | int]:
        """Return all counters by name. Histograms give a count, and sum, minimum, maximum and quantiles in seconds."""
        numbers: dict[str, float | int] = {name: getattr(self, name) for name in COUNTERS}
        numbers["in_flight"] = self.in_flight
        for name in HISTOGRAMS:
            histogram = getattr(self, name).copy()
            numbers[f"{name}_count"] = histogram.count
            numbers[f"{name}_sum_s"] = histogram.sum_s
            for quantile, share in _QUANTILES.items():
                numbers[f"{name}_{quantile}_s"] = histogram.quantile(share)
        return numbers

    def merge(self, other: CallMetrics) -> None:
        """Add the counts of `other`. Only the owner of this object can call it."""
        for name in (*COUNTERS, "ended"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in HISTOGRAMS:
            getattr(self, name).merge(getattr(other, name))


class _CallMetricsCollector(NamedCollector[CallMetrics]):
    """The metrics of all operators of one registry, by the label `operator`. Any thread."""

    def collect(self) -> Iterator[Metric]:
        operators = self.present()
        for field, text in COUNTERS.items():
            counter = CounterMetricFamily(f"async_{field}", text, labels=["operator"])
            for operator, metrics in operators.items():
                counter.add_metric([operator], getattr(metrics, field))
            yield counter
        in_flight = GaugeMetricFamily("async_in_flight", "Calls in flight.", labels=["operator"])
        for operator, metrics in operators.items():
            in_flight.add_metric([operator], metrics.in_flight)
        yield in_flight
        for field, (name, text) in HISTOGRAMS.items():
            histogram = HistogramMetricFamily(f"{name}_seconds", text, labels=["operator"])
            percentiles = GaugeMetricFamily(
                f"{name}_percentile_seconds",
                f"Percentiles of {name}_seconds since the operator began, within 5 %.",
                labels=["operator", "percentile"],
            )
            for operator, metrics in operators.items():
                durations = getattr(metrics, field).copy()
                add_histogram(histogram, [operator], durations)
                for share in _QUANTILES.values():
                    percentiles.add_metric([operator, f"{100 * share:g}"], durations.quantile(share))
            yield from (histogram, percentiles)


def counts_of(metrics: CallMetrics | None) -> CallMetrics:
    """The counters that the option `metrics` gives, or new ones.

    Raises:
        TypeError: it is something else, which could not count.
    """
    if metrics is None:
        return CallMetrics()
    if not isinstance(metrics, CallMetrics):
        raise InvalidTypeError(
            f"metrics is {metrics!r}; give a CallMetrics(). A name and an Observation are for DataFrames"
        )
    return metrics


_collectors = RegistryCollectors(_CallMetricsCollector)


def register_call_metrics(metrics: CallMetrics, operator: str, registry: CollectorRegistry | None = None) -> None:
    """Export `metrics` to `registry` under the label `operator`. The default is prometheus-client's registry.

    You can call this from any thread, repeatedly. New metrics replace those registered under the same name. The
    registry holds a weak reference, so metrics disappear once you no longer hold them.
    """
    _collectors.of(REGISTRY if registry is None else registry).add(operator, metrics)
