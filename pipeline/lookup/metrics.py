"""Counts of lookups and their caches, after Flink's CacheMetricGroup, and their Prometheus collector."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import REGISTRY

from dispatcher.util.prometheus import NamedCollector, RegistryCollectors

_COUNTERS = {
    "hits": ("lookup_cache_hits", "Lookups that the cache answered."),
    "misses": ("lookup_cache_misses", "Lookups that the cache could not answer."),
    "loads": ("lookup_loads", "Queries that the table answered."),
    "load_failures": ("lookup_load_failures", "Queries to the table that failed."),
    "retries": ("lookup_retries", "Queries that were repeated because the table was unavailable or a connection lost."),
    "evictions": ("lookup_cache_evictions", "Keys that expired from the cache or made room for others."),
}
_GAUGES = {
    "latest_load_s": ("lookup_latest_load_seconds", "Duration of the latest query or full load."),
    "cached_rows": ("lookup_cached_rows", "Rows in the cache."),
}


class LookupMetrics:
    """Counts of one function in one worker process. The host's loop thread writes them, and any thread can read them.

    `hits + misses` is the number of lookups whose key isn't null. Without a cache, all are misses.
    """

    __slots__ = (*_COUNTERS, *_GAUGES, "__weakref__")

    def __init__(self) -> None:
        self.hits = 0
        self.misses = 0
        self.loads = 0  # queries that the table answered; for a full cache, loads of the whole table
        self.load_failures = 0  # queries that failed after all retries, or were cancelled
        self.retries = 0  # queries that were repeated
        self.latest_load_s: float = 0.0  # duration of the latest query or load
        self.evictions = 0  # keys that expired from a partial cache or made room for others
        self.cached_rows = 0  # rows in the cache; a key cached as missing counts as one

    def snapshot(self) -> dict[str, float]:
        """Return all counts by name. It isn't atomic: each is read separately."""
        return {name: getattr(self, name) for name in (*_COUNTERS, *_GAUGES)}

    def __repr__(self) -> str:
        return f"LookupMetrics({', '.join(f'{name}={value:g}' for name, value in self.snapshot().items())})"


class _LookupCollector(NamedCollector[LookupMetrics]):
    """The lookups of one registry, labeled by `table`. Any thread."""

    def collect(self) -> Iterator[Metric]:
        present = self.present()
        for family_type, fields in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES)):
            for field, (name, text) in fields.items():
                family = family_type(name, text, labels=["table"])
                for table, metrics in present.items():
                    family.add_metric([table], getattr(metrics, field))
                yield family


_collectors = RegistryCollectors(_LookupCollector)


def register_lookup_metrics(metrics: LookupMetrics, table: str, registry: CollectorRegistry = REGISTRY) -> None:
    """Expose a function's counts in `registry` for as long as `metrics` lives. Thread-safe.

    Registering the same `table` again replaces it.
    """
    _collectors.of(registry).add(table, metrics)
