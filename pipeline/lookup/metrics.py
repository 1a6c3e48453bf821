"""What lookups and their caches count, after Flink's CacheMetricGroup, and Prometheus' view of it."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import REGISTRY

from dispatcher.util.prometheus import NamedCollector, RegistryCollectors


class LookupMetrics:
    """Counts of one function in one worker process. Written by its host's loop thread; any thread may read.

    `hits + misses` are the lookups with a key that is not null. Without a cache, all are misses.
    """

    __slots__ = (
        "__weakref__",
        "cached_rows",
        "evictions",
        "hits",
        "latest_load_s",
        "load_failures",
        "loads",
        "misses",
        "retries",
    )

    def __init__(self) -> None:
        self.hits = 0
        self.misses = 0
        self.loads = 0  # questions to the table that were answered; of a full cache, whole loads
        self.load_failures = 0  # questions that failed, with all their retries, or were cancelled
        self.retries = 0  # questions that were asked again
        self.latest_load_s = 0.0  # how long the latest load took
        self.evictions = 0  # keys that left a partial cache: expired, or for want of room
        self.cached_rows = 0  # rows that the cache holds now; a key cached as missing counts as one

    def snapshot(self) -> dict[str, float]:
        """All counts by name, each of its own moment."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "__weakref__"}

    def __repr__(self) -> str:
        return f"LookupMetrics({', '.join(f'{name}={value:g}' for name, value in self.snapshot().items())})"


_COUNTERS = {
    "hits": ("lookup_cache_hits", "Lookups that the cache answered."),
    "misses": ("lookup_cache_misses", "Lookups that the cache could not answer."),
    "loads": ("lookup_loads", "Questions to the table that were answered."),
    "load_failures": ("lookup_load_failures", "Questions to the table that failed."),
    "retries": ("lookup_retries", "Questions that were asked again, because the table was not available."),
    "evictions": ("lookup_cache_evictions", "Keys that left the cache: expired, or for want of room."),
}
_GAUGES = {
    "latest_load_s": ("lookup_latest_load_seconds", "How long the latest load took."),
    "cached_rows": ("lookup_cached_rows", "Rows in the cache."),
}


class _LookupCollector(NamedCollector[LookupMetrics]):
    """The lookups of one registry, told apart by the label `table`. Any thread."""

    def collect(self) -> Iterator[Metric]:
        present = self.present()
        for field, (name, text) in _COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=["table"])
            for table, metrics in present.items():
                counter.add_metric([table], getattr(metrics, field))
            yield counter
        for field, (name, text) in _GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=["table"])
            for table, metrics in present.items():
                gauge.add_metric([table], getattr(metrics, field))
            yield gauge


_collectors = RegistryCollectors(_LookupCollector)


def register_lookup_metrics(metrics: LookupMetrics, table: str, registry: CollectorRegistry = REGISTRY) -> None:
    """Show a function's counts in the scrapes of `registry`, for as long as it lives. Any thread.

    The next one of the same `table` takes its place.
    """
    _collectors.of(registry).add(table, metrics)
