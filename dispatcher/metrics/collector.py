"""Prometheus metrics of dispatchers, read from their plain counters at a scrape (invariant 11).

One collector per registry serves all its dispatchers, with their name as the label `dispatcher`. Of two with one name
in use at the same time, the second has a number behind it.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from itertools import count as numbers_from
from typing import Any, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import REGISTRY

from dispatcher.async_dispatcher import AsyncDispatcher
from dispatcher.groups import DispatcherGroup
from dispatcher.metrics.page import failures
from dispatcher.queue.flags import FORKED
from dispatcher.stats import METRICS, DispatcherStats, MetricSpec
from dispatcher.util.foreign import class_name, tell, text_of, type_name
from dispatcher.util.functions import require_kind, require_methods
from dispatcher.util.prometheus import NamedCollector, RegistryCollectors, add_histogram

log: logging.Logger = logging.getLogger(__name__)


class MetricsSource(Protocol):
    """Adds to a dispatcher's metrics, for example the counts of its state machines."""

    def collect(self, dispatcher: str) -> Iterable[Metric]:
        """Return metric families with the label `dispatcher`. Called on the scraping thread."""


class DispatcherCollector(NamedCollector[AsyncDispatcher]):
    """The metrics of all dispatchers in a registry. Any thread can use it."""

    def __init__(self) -> None:
        super().__init__()
        self._sources: dict[str, tuple[MetricsSource, ...]] = {}  # guarded by _lock, by label
        self._labels: weakref.WeakKeyDictionary[AsyncDispatcher, str] = weakref.WeakKeyDictionary()  # guarded by _lock
        # Guarded by _lock: the value of the last scrape, below which the counter must not fall.
        self._accepted: weakref.WeakKeyDictionary[AsyncDispatcher, int] = weakref.WeakKeyDictionary()

    def add(self, name: str, shown: AsyncDispatcher, sources: Iterable[MetricsSource] = ()) -> None:
        """Show a dispatcher by its name, in place of an ended one of that name.

        If the earlier one hasn't ended, the dispatcher is shown as `name#2`, or with the first free number. It keeps
        its label.
        """
        with self._lock:
            label = self._labels.get(shown)
            is_new = label is None or self._named.get(label) is not shown  # or it has ended, and was replaced
            if label is None or is_new:
                label = self._labels[shown] = self._free_label(name)
            self._named[label] = shown
            self._sources[label] = tuple(sources)
        if is_new and label != name:
            message = "%s: another dispatcher of this name is in use; the metrics show this one as %s"
            tell(log, logging.WARNING, message, name, label)

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            dispatchers = dict(self._named.items())  # `items` holds each one while it copies, so none is freed
            for gone in self._sources.keys() - dispatchers.keys():
                del self._sources[gone]
            sources = dict(self._sources)
        stats = {name: self._stats_so_far(dispatcher) for name, dispatcher in dispatchers.items()}
        for field, spec in METRICS.items():
            yield _family(spec, {name: getattr(of, field) for name, of in stats.items()})
        yield _contents(dispatchers)
        for name, extras in sources.items():
            for source in extras:
                yield from _collected(source, name)

    def _free_label(self, name: str) -> str:
        """Under _lock: the first of `name`, `name#2`, ... that no dispatcher has which may still count events."""
        for label in chain([name], (f"{name}#{number}" for number in numbers_from(2))):
            holder = self._named.get(label)
            if holder is None or holder.is_stopped() or holder.core.queue.phase == FORKED:
                return label
        raise AssertionError("numbers never end")

    def _stats_so_far(self, dispatcher: AsyncDispatcher) -> DispatcherStats:
        # The counters are read one after another while the handler thread works: do not let their sum decrease.
        stats = dispatcher.stats()
        with self._lock:
            accepted = self._accepted[dispatcher] = max(stats.accepted, self._accepted.get(dispatcher, 0))
        return replace(stats, accepted=accepted)


def _family(spec: MetricSpec, values: dict[str, Any]) -> Metric:
    """The samples of one field, from its values by dispatcher."""
    labels = ["dispatcher", *spec.labels]
    if spec.kind == "histogram":
        histograms = HistogramMetricFamily(spec.name, spec.help, labels=labels)
        for name, histogram in values.items():
            if histogram is not None:
                add_histogram(histograms, [name], histogram)
        return histograms
    if spec.kind == "summary":
        summaries = SummaryMetricFamily(spec.name, spec.help, labels=labels)
        for name, times in values.items():
            for label, (count, seconds) in times.items():
                summaries.add_metric([name, *label], count, seconds)
        return summaries
    make = GaugeMetricFamily if spec.kind == "gauge" else CounterMetricFamily
    family = make(spec.name, spec.help, labels=labels)
    for name, value in values.items():
        for label, number in (value if spec.labels else {(): value}).items():
            if number is not None:
                family.add_metric([name, *(label if isinstance(label, tuple) else (label,))], number)
    return family


def _contents(dispatchers: dict[str, AsyncDispatcher]) -> Metric:
    """The events that wait, by type. Not part of the statistics, because it walks through the queue."""
    family = GaugeMetricFamily(
        "dispatcher_event_queue_contents",
        "Events waiting in the queue, by type; beyond 50,000 an estimate from a sample.",
        labels=["dispatcher", "event_class", "event_type"],
    )
    for name, dispatcher in dispatchers.items():
        for event_type, count in dispatcher.core.queue.contents.by_type()[0]:
            family.add_metric([name, class_name(event_type), type_name(event_type)], count)
    return family


def _collected(source: MetricsSource, dispatcher: str) -> list[Metric]:
    """The source's families; none if it raises, so that the other metrics are still shown."""
    try:
        return list(source.collect(dispatcher))
    except Exception as error:
        failures.note(source)
        tell(log, logging.ERROR, "%s: a metrics source failed: %s", dispatcher, text_of(source), error=error)
        return []


_collectors = RegistryCollectors(DispatcherCollector)


def register_metrics(
    dispatcher: AsyncDispatcher | DispatcherGroup,
    registry: CollectorRegistry = REGISTRY,
    sources: Iterable[MetricsSource] = (),
) -> None:
    """Show a dispatcher and its `sources` in the scrapes of `registry`. You can call this from any thread, repeatedly.

    Each partition of a DispatcherGroup or a MultiDispatcher has a separate name. A dispatcher replaces an ended one of
    its name, and is otherwise shown as `name#2`.
    """
    require_kind(dispatcher, "dispatcher", AsyncDispatcher, DispatcherGroup)
    require_methods(registry, "registry", "a CollectorRegistry", "register", "collect")
    require_methods(sources, "sources", "MetricsSources", "__iter__")
    collector = _collectors.of(registry)
    for each in dispatcher.partitions if isinstance(dispatcher, DispatcherGroup) else (dispatcher,):
        collector.add(each.name, each, sources)
