"""Prometheus metrics of dispatchers: read from their plain counters when somebody scrapes (invariant 11).

One collector per registry serves all dispatchers in it, told apart by the label `dispatcher`. A dispatcher that comes
back under the same name takes its predecessor's place; one that nobody refers to any more drops out.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import REGISTRY, Collector

from dispatcher.async_dispatcher import AsyncDispatcher
from dispatcher.config import MetricsConfig
from dispatcher.dispatcher_group import DispatcherGroup
from dispatcher.errors import ConfigError
from dispatcher.service import Service
from dispatcher.util.prometheus import RegistryCollectors, add_histogram

log = logging.getLogger(__name__)


class MetricsSource(Protocol):
    """Something that adds metrics of its own to a dispatcher's, such as the state machines on it."""

    def collect(self, dispatcher: str) -> Iterable[Metric]:
        """Metric families with the label `dispatcher` among others. Called on the scraping thread."""


class DispatcherCollector(Collector):
    """The metrics of all dispatchers of one registry. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # leaf lock
        self._dispatchers: weakref.WeakValueDictionary[str, AsyncDispatcher] = weakref.WeakValueDictionary()
        self._sources: dict[str, tuple[MetricsSource, ...]] = {}  # guarded by _lock, by dispatcher name
        # Guarded by _lock: what was last told, so that it never goes back.
        self._accepted: weakref.WeakKeyDictionary[AsyncDispatcher, int] = weakref.WeakKeyDictionary()

    def add(self, dispatcher: AsyncDispatcher, sources: Iterable[MetricsSource] = ()) -> None:
        with self._lock:
            self._dispatchers[dispatcher.name] = dispatcher
            self._sources[dispatcher.name] = tuple(sources)

    def describe(self) -> Iterator[Metric]:
        """Nothing to check in advance: the names are this module's own."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            dispatchers = dict(self._dispatchers.items())  # items: holds each before it is told, so none is gone
            for gone in self._sources.keys() - dispatchers.keys():
                del self._sources[gone]
            sources = dict(self._sources)
        yield from self._of_queues(dispatchers)
        yield from self._of_events(dispatchers)
        yield from self._of_times(dispatchers)
        yield from _of_journals(dispatchers)
        for name, extras in sources.items():
            for source in extras:
                yield from source.collect(name)

    def _of_queues(self, dispatchers: dict[str, AsyncDispatcher]) -> Iterator[Metric]:
        size = GaugeMetricFamily("dispatcher_event_queue_size", "Events waiting in the queue.", labels=["dispatcher"])
        contents = GaugeMetricFamily(
            "dispatcher_event_queue_contents",
            "Events waiting in the queue, by type.",
            labels=["dispatcher", "event_class", "event_type"],
        )
        capacity = GaugeMetricFamily(
            "dispatcher_event_queue_capacity",
            "Most events that the queue holds; +Inf: no bound.",
            labels=["dispatcher"],
        )
        mails = CounterMetricFamily(
            "dispatcher_mailbox_mails", "Mails run on the handler thread.", labels=["dispatcher"]
        )
        running = GaugeMetricFamily(
            "dispatcher_handler_running_seconds", "How long the current handler has run.", labels=["dispatcher"]
        )
        idle = CounterMetricFamily(
            "dispatcher_idle_seconds", "Time in which the handler thread had nothing to do.", labels=["dispatcher"]
        )
        failed = GaugeMetricFamily(
            "dispatcher_failed", "1: the dispatcher has failed, and its failure_cause says why.", labels=["dispatcher"]
        )
        for name, dispatcher in dispatchers.items():
            idle.add_metric([name], dispatcher.idle_s())
            failed.add_metric([name], dispatcher.failure_cause is not None)
            size.add_metric([name], dispatcher.queue_size())
            capacity.add_metric([name], dispatcher.capacity if dispatcher.capacity is not None else float("inf"))
            mails.add_metric([name], dispatcher.mails_run)
            running.add_metric([name], dispatcher.handler_running_s())
            for event_type, count in dispatcher.queue_contents().items():
                kind = [name, type(event_type).__name__, str(getattr(event_type, "name", event_type))]
                contents.add_metric(kind, count)
        yield from (size, contents, capacity, mails, running, idle, failed)

    def _of_events(self, dispatchers: dict[str, AsyncDispatcher]) -> Iterator[Metric]:
        accepted = CounterMetricFamily(
            "dispatcher_events_accepted", "Events taken from producers.", labels=["dispatcher"]
        )
        discarded = CounterMetricFamily(
            "dispatcher_events_discarded", "Events accepted that will never be handled.", labels=["dispatcher"]
        )
        dropped = CounterMetricFamily(
            "dispatcher_events_dropped", "The discarded events by reason.", labels=["dispatcher", "reason"]
        )
        rejected = CounterMetricFamily("dispatcher_events_rejected", "Events refused.", labels=["dispatcher", "reason"])
        by_type = ["dispatcher", "event_class", "event_type"]
        handled = CounterMetricFamily("dispatcher_events_handled", "Events handled.", labels=by_type)
        failed = CounterMetricFamily(
            "dispatcher_events_failed", "Events whose handler raised, or that had none.", labels=by_type
        )
        for name, dispatcher in dispatchers.items():
            accepted.add_metric([name], self._accepted_so_far(dispatcher))
            discarded.add_metric([name], dispatcher.discarded)
            for reason, count in dispatcher.discarded_by_reason.items():
                dropped.add_metric([name, reason], count)
            for reason, count in dispatcher.rejected.items():
                rejected.add_metric([name, reason], count)
            for kind, count in dispatcher.handled_by_type().items():
                handled.add_metric([name, *kind], count)
            for kind, count in dispatcher.failed_by_type().items():
                failed.add_metric([name, *kind], count)
        yield from (accepted, discarded, dropped, rejected, handled, failed)

    def _of_times(self, dispatchers: dict[str, AsyncDispatcher]) -> Iterator[Metric]:
        queue = HistogramMetricFamily(
            "dispatcher_event_queue_seconds", "Time of events in the queue.", labels=["dispatcher"]
        )
        handling = HistogramMetricFamily(
            "dispatcher_event_handling_seconds", "Time of events in their handlers.", labels=["dispatcher"]
        )
        latency = HistogramMetricFamily(
            "dispatcher_mailbox_latency_seconds", "Time of a mail until it is run, now and then.", labels=["dispatcher"]
        )
        for name, dispatcher in dispatchers.items():
            if dispatcher.measures_times:
                add_histogram(queue, [name], dispatcher.queue_time)
                add_histogram(handling, [name], dispatcher.handling_time)
                add_histogram(latency, [name], dispatcher.mailbox_latency)
        yield from (queue, handling, latency)

    def _accepted_so_far(self, dispatcher: AsyncDispatcher) -> int:
        # The parts are read one after the other while the handler thread works: never let the sum step back.
        accepted = dispatcher.accepted
        with self._lock:
            accepted = self._accepted[dispatcher] = max(accepted, self._accepted.get(dispatcher, 0))
            return accepted


def _of_journals(dispatchers: dict[str, AsyncDispatcher]) -> Iterator[Metric]:
    label = ["dispatcher"]
    written = CounterMetricFamily("dispatcher_journal_bytes", "Bytes written to the event journal.", labels=label)
    frames = CounterMetricFamily("dispatcher_journal_frames", "Frames written: batches of rows.", labels=label)
    syncs = CounterMetricFamily("dispatcher_journal_syncs", "Waits for the disk to have the journal.", labels=label)
    segments = CounterMetricFamily("dispatcher_journal_segments", "Segments closed.", labels=label)
    outstanding = GaugeMetricFamily(
        "dispatcher_journal_outstanding", "Write-ahead mode: events accepted and not handled.", labels=label
    )
    failed = GaugeMetricFamily(
        "dispatcher_journal_failed", "1: the journal could not be written and has ended.", labels=label
    )
    for name, dispatcher in dispatchers.items():
        journal = dispatcher.journal
        if journal is None:
            continue
        written.add_metric([name], journal.bytes_written)
        frames.add_metric([name], journal.frames)
        syncs.add_metric([name], journal.syncs)
        segments.add_metric([name], journal.segments_closed)
        outstanding.add_metric([name], journal.outstanding)
        failed.add_metric([name], journal.is_failed)
    yield from (written, frames, syncs, segments, outstanding, failed)


_collectors = RegistryCollectors(DispatcherCollector)


def register_metrics(
    dispatcher: AsyncDispatcher | DispatcherGroup,
    registry: CollectorRegistry = REGISTRY,
    sources: Iterable[MetricsSource] = (),
) -> None:
    """Show a dispatcher, and `sources` with it, in the scrapes of `registry`. Any thread; repeating it is harmless.

    Of a group, or a MultiDispatcher, each partition is shown by its own name.
    """
    collector = _collectors.of(registry)
    for each in dispatcher.partitions if isinstance(dispatcher, DispatcherGroup) else (dispatcher,):
        collector.add(each, sources)


class MetricsServer(Service):
    """Serves a registry at `/metrics` while started, on a thread of prometheus-client's.

    Raises (from `start`):
        ConfigError: the address cannot be listened on.
    """

    def __init__(self, config: MetricsConfig | None = None, registry: CollectorRegistry = REGISTRY) -> None:
        super().__init__("MetricsServer")
        self._settings = config or MetricsConfig()
        self._registry = registry
        self.port: int | None = None
        """The port listened on, once started."""

    @property
    def url(self) -> str:
        return f"http://{self._settings.host}:{self.port}/metrics"

    def service_start(self) -> None:
        host, port = self._settings.host, self._settings.port
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=self._registry)
        except OSError as error:
            raise ConfigError(
                f"metrics.host {host}, metrics.port {port}: cannot listen there: {error.strerror or error}; "
                "choose another, or port 0 for a free one"
            ) from error
        self.port = self._server.server_port

    def service_stop(self) -> None:
        if self.port is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
