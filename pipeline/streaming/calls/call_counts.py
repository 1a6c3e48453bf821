"""The counters of an operator's calls: plain attributes that their owner writes and any thread reads.

Counting takes no lock. A reader on another thread sees each number as of its read; two numbers may differ by the
calls counted between the two reads.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import REGISTRY

from dispatcher.util import histogram as durations
from dispatcher.util.prometheus import NamedCollector, RegistryCollectors, add_histogram

_COUNTERS = {
    "calls": "Calls begun; each attempt counts.",
    "completed": "Records whose call returned results.",
    "timed_out": "Records whose timeout expired before their call returned.",
    "retried": "Calls repeated after an earlier attempt.",
    "failed": "Records that ended with an error.",
    "dropped": "Failed records that were dropped.",
    "captured": "Failed records whose error was captured as data.",
    "shared": "Records that joined the call of another record.",
    "remembered": "Records answered with remembered results, or from a cache of results.",
    "unknown": "Records whose call was cut off in an earlier job or attempt, as their cache says.",
}


class Histogram(durations.Histogram):
    """Durations in power-of-two nanosecond buckets, and their maximum. Written by one thread."""

    __slots__ = ("max_ns",)

    def __init__(self) -> None:
        super().__init__()
        self.max_ns = 0

    def record_ns(self, duration_ns: int) -> None:
        """Count a duration; a negative one (the clock was set back) counts as 0."""
        if duration_ns < 0:
            duration_ns = 0
        self.counts[duration_ns.bit_length()] += 1  # 65 buckets cover 584 years
        self.total_ns += duration_ns
        if duration_ns > self.max_ns:
            self.max_ns = duration_ns

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def sum_s(self) -> float:
        return self.total_ns / 1e9

    @property
    def max_s(self) -> float:
        return self.max_ns / 1e9

    def quantile(self, q: float) -> float:
        """The `q` quantile in seconds, accurate to a factor of 2; 0 if nothing was counted.

        Raises:
            ValueError: `q` is not from 0 to 1.
        """
        if not 0 <= q <= 1:
            raise ValueError(f"q is {q!r}; it must be a fraction from 0 to 1, such as 0.99.")
        counts = list(self.counts)
        rank = max(q * sum(counts), 1)
        below = 0
        for bits, count in enumerate(counts):
            if count and below + count >= rank:
                lowest_ns = (1 << bits) >> 1
                highest_ns = min((1 << bits) - 1, max(self.max_ns, lowest_ns))  # max_ns is written after the counts
                return (lowest_ns + (highest_ns - lowest_ns) * (rank - below) / count) / 1e9
            below += count
        return 0.0

    def merge(self, other: Histogram) -> None:
        """Add the counts of `other`. Only the thread that writes this histogram may call it."""
        for bits, count in enumerate(list(other.counts)):
            self.counts[bits] += count
        self.total_ns += other.total_ns
        self.max_ns = max(self.max_ns, other.max_ns)


class CallMetrics:
    """The counters of one operator. Only the owner, its mailbox thread, adds to them; any thread reads them.

    A record ends completed or failed, unless its task ends first. A timed-out record also counts as failed, unless the
    function's `timeout` returned results. A failed record that does not fail the task is dropped or captured.
    Pickling copies the current numbers.
    """

    __slots__ = (*_COUNTERS, "__weakref__", "call_time", "ended", "limit_wait", "queue_wait")

    def __init__(self) -> None:
        self.calls = 0  # mailbox thread: attempts begun
        self.ended = 0  # mailbox thread: attempts answered or given up; each counts once
        self.completed = 0  # mailbox thread: records
        self.timed_out = 0  # mailbox thread: records
        self.retried = 0  # mailbox thread: attempts followed by another
        self.failed = 0  # mailbox thread: records, including dropped and captured ones
        self.dropped = 0  # mailbox thread: records
        self.captured = 0  # mailbox thread: records
        self.shared = 0  # mailbox thread: records
        self.remembered = 0  # mailbox thread: records
        self.unknown = 0  # mailbox thread: records
        self.queue_wait = Histogram()  # mailbox thread: from taking a record in to the start of its first call
        # Mailbox thread: from when an attempt was due to its start, if the operator's own limits (rate, concurrency,
        # batch, pause) may have held it back. An operator without limits sends its calls straight on and counts none.
        self.limit_wait = Histogram()
        self.call_time = Histogram()  # mailbox thread: from the start of an attempt to its answer

    @property
    def in_flight(self) -> int:
        """Calls begun and neither answered nor given up."""
        # `ended` first: an attempt that ends between the two reads must not make the number negative.
        ended = self.ended
        return self.calls - ended

    def snapshot(self) -> dict[str, float | int]:
        """All counters by name, and each histogram's count, sum, maximum and quantiles in seconds."""
        numbers: dict[str, float | int] = {name: getattr(self, name) for name in _COUNTERS}
        numbers["in_flight"] = self.in_flight
        for name, histogram in (("queue_wait", self.queue_wait), ("call_time", self.call_time)):
            numbers[f"{name}_count"] = histogram.count
            numbers[f"{name}_sum_s"] = histogram.sum_s
            numbers[f"{name}_max_s"] = histogram.max_s
            numbers[f"{name}_p50_s"] = histogram.quantile(0.5)
            numbers[f"{name}_p99_s"] = histogram.quantile(0.99)
        return numbers

    def merge(self, other: CallMetrics) -> None:
        """Add the counts of `other`. Only the owner of this object may call it."""
        for name in (*_COUNTERS, "ended"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.queue_wait.merge(other.queue_wait)
        self.limit_wait.merge(other.limit_wait)
        self.call_time.merge(other.call_time)


class _CallMetricsCollector(NamedCollector[CallMetrics]):
    """The metrics of all operators of one registry, by the label `operator`. Any thread."""

    def collect(self) -> Iterator[Metric]:
        operators = self.present()
        for field, text in _COUNTERS.items():
            counter = CounterMetricFamily(f"async_{field}", text, labels=["operator"])
            for operator, metrics in operators.items():
                counter.add_metric([operator], getattr(metrics, field))
            yield counter
        in_flight = GaugeMetricFamily("async_in_flight", "Calls under way.", labels=["operator"])
        queue_wait = HistogramMetricFamily(
            "async_queue_wait_seconds", "Time a record waits before its first call starts.", labels=["operator"]
        )
        call_time = HistogramMetricFamily(
            "async_call_seconds", "Duration of a call; each attempt counts.", labels=["operator"]
        )
        for operator, metrics in operators.items():
            in_flight.add_metric([operator], metrics.in_flight)
            add_histogram(queue_wait, [operator], metrics.queue_wait)
            add_histogram(call_time, [operator], metrics.call_time)
        yield from (in_flight, queue_wait, call_time)


_collectors = RegistryCollectors(_CallMetricsCollector)


def register_call_metrics(metrics: CallMetrics, operator: str, registry: CollectorRegistry | None = None) -> None:
    """Export `metrics` to `registry` (default: prometheus-client's own) under the label `operator`.

    Any thread; repeating it is harmless. New metrics replace those registered under the same name. The registry holds
    a weak reference: metrics that are no longer referenced elsewhere disappear from the scrape.
    """
    _collectors.of(REGISTRY if registry is None else registry).add(operator, metrics)
