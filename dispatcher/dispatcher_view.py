"""What can be seen of a dispatcher from outside: counts, sizes and times. For any thread, at a moment's truth.

The counters are written by the handler thread alone (invariant 1); what is read here one after the other may be apart
by the events of that while, except where it says more.
"""

from __future__ import annotations

import threading
from collections import Counter
from enum import Enum
from time import perf_counter_ns
from typing import Any

from dispatcher.dispatching import BatchDispatching, frame_of
from dispatcher.journal.writer import JournalWriter
from dispatcher.mailbox.processor import MailboxProcessor
from dispatcher.queue.event_queue import EventQueue
from dispatcher.routes import RoutingTable
from dispatcher.service import Service
from dispatcher.stats import Histogram, snapshot


class DispatcherView(Service):
    """The part of a dispatcher that a scrape, a test or an operator reads."""

    _queue: EventQueue
    _dispatching: BatchDispatching
    _routes: RoutingTable
    _processor: MailboxProcessor
    _thread: threading.Thread

    @property
    def capacity(self) -> int | None:
        """Most events in the queue; None: no bound."""
        return self._queue.capacity

    @property
    def measures_times(self) -> bool:
        """Whether any events are timed in the queue and in their handlers."""
        return self._dispatching.measures

    @property
    def queue_time(self) -> Histogram:
        """Time in the queue, of those events that were timed there."""
        return self._dispatching.queue_time

    @property
    def handling_time(self) -> Histogram:
        """Time in the handlers, of all events; in a flood of quick ones, the mean of each batch."""
        return self._dispatching.handling_time

    @property
    def mailbox_latency(self) -> Histogram:
        """How long a mail waited until it was run, measured about once a second."""
        return self._processor.metrics_controller.latency

    @property
    def mails_run(self) -> int:
        return self._processor.mails_run

    @property
    def accepted(self) -> int:
        """Events accepted so far: handled + failed + in hand + queued + discarded (invariant 4).

        Read against the direction in which events move, so that none is seen twice; one that moves meanwhile is missed.
        """
        ended = self.handled + self.failed
        in_hand = self._in_hand() is not None
        return ended + in_hand + self.discarded + len(self._queue.entries)

    @property
    def handled(self) -> int:
        return sum(route.handled for route in self._routes.all())

    @property
    def failed(self) -> int:
        return sum(route.failed for route in self._routes.all())

    def handled_by_type(self) -> dict[tuple[str, str], int]:
        """Events handled, by the names of event class and event type."""
        counts: Counter[tuple[str, str]] = Counter()
        for route in self._routes.all():
            counts[route.event_class, route.name] += route.handled
        return dict(+counts)

    def failed_by_type(self) -> dict[tuple[str, str], int]:
        """Events that failed, by the names of event class and event type."""
        counts: Counter[tuple[str, str]] = Counter()
        for route in self._routes.all():
            counts[route.event_class, route.name] += route.failed
        return dict(+counts)

    @property
    def discarded(self) -> int:
        """Events accepted that will never be handled; `discarded_by_reason` says why."""
        return self._queue.discarded

    @property
    def discarded_by_reason(self) -> dict[str, int]:
        """stop: left behind by one; drop_oldest: made room in a full queue; superseded: by a newer one of its key."""
        return dict(snapshot(self._queue.dropped.copy).items())

    @property
    def rejected(self) -> dict[str, int]:
        """Events refused, by reason: full, timeout, draining, stopped."""
        return snapshot(self._queue.rejected.copy)

    @property
    def journal(self) -> JournalWriter | None:
        """What the dispatcher writes its events to."""
        return self._dispatching.journal

    def pending(self) -> int:
        """Events accepted and not finished: queued, or in the handler's hands. Exact while the thread is at rest."""
        in_hand = self._in_hand() is not None
        return in_hand + len(self._queue.entries)

    def queue_size(self) -> int:
        """How many events wait, without the one in the handler's hands."""
        return len(self._queue.entries)

    def queue_contents(self) -> dict[Enum, int]:
        """What waits, by event type."""
        return self._queue.contents()

    def handler_running_s(self) -> float:
        """How long the current handler has run, in a flood: the current batch; 0.0 if none does."""
        since_ns = self._dispatching.since_ns
        return (perf_counter_ns() - since_ns) / 1e9 if since_ns else 0.0

    def idle_s(self) -> float:
        """For how long the handler thread has had nothing to do."""
        return self._dispatching.idle_ns() / 1e9

    def is_drained(self) -> bool:
        """The queue is empty and nothing is in the handler's hands: exactly so at one moment during this call.

        Where YARN-3878's flag could be wrong: `done` is read before the queue and `taken` after it; if they are equal,
        nothing was taken in between, so what the queue said holds for both.
        """
        done = self._dispatching.done
        return not self._queue.entries and self._dispatching.taken == done

    def _in_hand(self) -> Any:
        """The event in the handler's hands, or None. Any thread."""
        return self._dispatching.in_hand(frame_of(self._thread.ident))
