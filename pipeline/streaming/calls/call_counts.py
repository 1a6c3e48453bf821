"""What an operator counts about its calls: plain attributes, written by their owners and read by anybody.

Nothing here takes a lock where calls are made. A reader on another thread sees each number as it is at that moment;
two of them may be apart by the calls that were counted between the two reads.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import REGISTRY

from dispatcher.util import histogram as durations
from dispatcher.util.prometheus import NamedCollector, RegistryCollectors, add_histogram

_COUNTERS = {
    "calls": "Calls begun, each attempt for itself.",
    "completed": "Records whose call came back with results.",
    "timed_out": "Records whose time was over before their call came back.",
    "retried": "Calls that came back and were made again.",
    "failed": "Records that ended with an error.",
    "dropped": "Failed records that were left out.",
    "captured": "Failed records whose error was passed on as data.",
    "shared": "Records that got their results from the call of another record.",
    "remembered": "Records that got results of a call that had ended before.",
}


class Histogram(durations.Histogram):
    """Durations in buckets of powers of two of a nanosecond, and the longest of them. Written by one thread."""

    __slots__ = ("max_ns",)

    def __init__(self) -> None:
        super().__init__()
        self.max_ns = 0

    def record_ns(self, duration_ns: int) -> None:
        """Count a duration; a negative one (a clock that was set back) counts as 0."""
        if duration_ns < 0:
            duration_ns = 0
        self.counts[duration_ns.bit_length()] += 1  # there are 65: enough for 584 years
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
        """The duration in seconds that the fraction `q` of all do not exceed, at most a factor of 2 off; 0 if none.

        Raises:
            ValueError: `q` is not from 0 to 1.
        """
        if not 0 <= q <= 1:
            raise ValueError(f"q is {q!r}; it has to be a fraction from 0 to 1, such as 0.99.")
        counts = list(self.counts)
        rank = max(q * sum(counts), 1)
        below = 0
        for bits, count in enumerate(counts):
            if count and below + count >= rank:
                lowest_ns = (1 << bits) >> 1
                highest_ns = min((1 << bits) - 1, max(self.max_ns, lowest_ns))  # it is written after the counts
                return (lowest_ns + (highest_ns - lowest_ns) * (rank - below) / count) / 1e9
            below += count
        return 0.0

    def merge(self, other: Histogram) -> None:
        """Add what `other` has counted. For the thread that writes this one; `other` is left as it is."""
        for bits, count in enumerate(list(other.counts)):
            self.counts[bits] += count
        self.total_ns += other.total_ns
        self.max_ns = max(self.max_ns, other.max_ns)


class CallMetrics:
    """The counts of one operator. Each field has one owner, which alone adds to it; any thread reads.

    A record ends as completed or as failed, or not at all if its task ends first. One that is timed out is among the
    failed, too, unless the function had results for that case. Those failed that did not fail the task are dropped or
    captured. It pickles, as the numbers of that moment.
    """

    __slots__ = (
        "__weakref__",
        "call_time",
        "calls",
        "captured",
        "completed",
        "dropped",
        "ended",
        "failed",
        "queue_wait",
        "remembered",
        "retried",
        "shared",
        "timed_out",
    )

    def __init__(self) -> None:
        self.calls = 0  # mailbox thread: attempts begun
        self.ended = 0  # mailbox thread: attempts that came back or were given up; of each begun one once
        self.completed = 0  # mailbox thread: records
        self.timed_out = 0  # mailbox thread: records
        self.retried = 0  # mailbox thread: attempts after which another was asked for
        self.failed = 0  # mailbox thread: records, those dropped and captured included
        self.dropped = 0  # mailbox thread: records
        self.captured = 0  # mailbox thread: records
        self.shared = 0  # mailbox thread: records
        self.remembered = 0  # mailbox thread: records
        self.queue_wait = Histogram()  # mailbox thread: from the record's coming in to the start of its first call
        self.call_time = Histogram()  # mailbox thread: of an attempt, from its start until it came back

    @property
    def in_flight(self) -> int:
        """Calls begun that have neither come back nor been given up."""
        # In this order: an attempt that ends between the two reads must not make it negative.
        ended = self.ended
        return self.calls - ended

    def snapshot(self) -> dict[str, float | int]:
        """All numbers by name; of each histogram its count, sum, maximum and quantiles, the times in seconds."""
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
        """Add what `other` has counted. For the owner of this one; `other` is left as it is."""
        for name in (*_COUNTERS, "ended"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.queue_wait.merge(other.queue_wait)
        self.call_time.merge(other.call_time)


class _CallMetricsCollector(NamedCollector[CallMetrics]):
    """The metrics of all operators of one registry, told apart by the label `operator`. Any thread."""

    def collect(self) -> Iterator[Metric]:
        operators = self.present()
        for field, text in _COUNTERS.items():
            counter = CounterMetricFamily(f"async_{field}", text, labels=["operator"])
            for operator, metrics in operators.items():
                counter.add_metric([operator], getattr(metrics, field))
            yield counter
        in_flight = GaugeMetricFamily("async_in_flight", "Calls under way.", labels=["operator"])
        queue_wait = HistogramMetricFamily(
            "async_queue_wait_seconds", "Time of records until their first call begins.", labels=["operator"]
        )
        call_time = HistogramMetricFamily("async_call_seconds", "Time of a call, each attempt.", labels=["operator"])
        for operator, metrics in operators.items():
            in_flight.add_metric([operator], metrics.in_flight)
            add_histogram(queue_wait, [operator], metrics.queue_wait)
            add_histogram(call_time, [operator], metrics.call_time)
        yield from (in_flight, queue_wait, call_time)


_collectors = RegistryCollectors(_CallMetricsCollector)


def register_call_metrics(metrics: CallMetrics, operator: str, registry: CollectorRegistry | None = None) -> None:
    """Show `metrics` in the scrapes of `registry`, by default prometheus-client's own, under the name `operator`.

    Any thread; repeating it is harmless. Metrics that come under a name in use take the place of those before. The
    registry does not keep them: once nobody refers to them any more they are gone from the page.
    """
    _collectors.of(REGISTRY if registry is None else registry).add(operator, metrics)
