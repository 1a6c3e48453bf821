"""Parts of Prometheus collectors over plain counters.

A scrape reads objects that other code owns and writes. A collector shows each under a name, for as long as that code
refers to it; a new object replaces an earlier one of the same name.
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
    """Shows objects by name. A subclass says how, in `collect`. Any thread can use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # leaf lock
        self._named: weakref.WeakValueDictionary[str, T] = weakref.WeakValueDictionary()  # guarded by _lock

    def add(self, name: str, shown: T) -> None:
        with self._lock:
            self._named[name] = shown

    def present(self) -> dict[str, T]:
        """Return the objects still in use. The mapping keeps them alive while you read them."""
        with self._lock:
            return dict(self._named.items())

    def describe(self) -> Iterator[Metric]:
        """Return nothing to check in advance, since each module has separate metric names."""
        return iter(())


class RegistryCollectors(Generic[C]):
    """One collector for each registry, made and registered on first use. Any thread."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make  # never changes
        self._lock = threading.Lock()  # held while a registry registers a collector, which calls its `describe`
        # Guarded by _lock. The registry keeps the collector: one kept here, whose sources lead to the registry, would
        # keep both for ever.
        self._collectors: weakref.WeakKeyDictionary[CollectorRegistry, weakref.ref[C]] = weakref.WeakKeyDictionary()

    def of(self, registry: CollectorRegistry) -> C:
        with self._lock:
            known = self._collectors.get(registry)
            collector = known() if known else None
            if collector is None:
                collector = self._make()
                registry.register(collector)
                self._collectors[registry] = weakref.ref(collector)
            return collector


def add_histogram(family: HistogramMetricFamily, labels: Sequence[str], histogram: Histogram) -> None:
    """Add a histogram's buckets and its sum, in seconds, to `family`."""
    buckets = [("+Inf" if bound == float("inf") else repr(bound), count) for bound, count in histogram.buckets()]
    family.add_metric(labels, buckets=buckets, sum_value=histogram.total_ns / 1e9)
