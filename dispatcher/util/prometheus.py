"""Prometheus collectors over plain counters: what several of them need.

A scrape reads objects that others own and write. A collector shows each by a name, for as long as somebody else refers
to it; one that comes under a name in use takes its predecessor's place.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from dispatcher.util.histogram import Histogram

T = TypeVar("T")
C = TypeVar("C", bound=Collector)


class NamedCollector(Collector, Generic[T]):
    """Shows objects by name; a subclass says how, in `collect`. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # leaf lock
        self._named: weakref.WeakValueDictionary[str, T] = weakref.WeakValueDictionary()  # guarded by _lock

    def add(self, name: str, shown: T) -> None:
        with self._lock:
            self._named[name] = shown

    def present(self) -> dict[str, T]:
        """The objects that are still referred to; none of them ends while it is read."""
        with self._lock:
            return dict(self._named.items())

    def describe(self) -> Iterator[Metric]:
        """Nothing to check in advance: the names are the module's own."""
        return iter(())


class RegistryCollectors(Generic[C]):
    """One collector in each registry, made and registered when it is first asked for. Any thread."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make  # never changes
        self._lock = threading.Lock()  # held while a registry takes a collector, which asks it to describe itself
        # Guarded by _lock.
        self._collectors: weakref.WeakKeyDictionary[CollectorRegistry, C] = weakref.WeakKeyDictionary()

    def of(self, registry: CollectorRegistry) -> C:
        with self._lock:
            collector = self._collectors.get(registry)
            if collector is None:
                collector = self._collectors[registry] = self._make()
                registry.register(collector)
            return collector


def add_histogram(family: HistogramMetricFamily, labels: Sequence[str], histogram: Histogram) -> None:
    """Add a histogram's buckets and its sum, in seconds, to `family`."""
    buckets = [("+Inf" if bound == float("inf") else repr(bound), count) for bound, count in histogram.buckets()]
    family.add_metric(labels, buckets=buckets, sum_value=histogram.total_ns / 1e9)
