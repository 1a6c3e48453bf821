"""How far the handler thread has got, how long events take, and how long that thread is idle.

**Progress.** An event that the handler thread has taken is in hand until its route counts it, or its entry has moved or
ended. Other threads can tell that none is in hand. How many are, the handler thread alone can tell, between two events,
or during the call of a handler that does so: see `DispatcherView.stats`.

**Times.** An event is timed singly if the configuration says so, if handlers are so slow that timing costs little, or
if its post noted the time. Other events are timed by the batch, with two readings of the clock. Events that are timed
singly also count for their types, and so does one event of each batch (TypeSampling).
"""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter_ns
from typing import Any, Final

from dispatcher.dispatching.lanes import EventTaken
from dispatcher.queue.entry import IN_HAND, Entry, event_of
from dispatcher.queue.inbox import Inbox
from dispatcher.routes import NO_TYPE, Route, RoutingTable, Turn
from dispatcher.util.histogram import Histogram


class BatchProgress:
    """Written by the handler thread alone (invariant 1); read by any thread.

    `begun` counts a batch before its first event leaves the queue, `done` after its last handler has returned. So if
    the queue is empty at a moment when the two are equal, no event is in hand either (invariant 3). The event of a
    coroutine counts as a batch of its own: `begun` within the batch that took it, `done` once it is handled or failed.
    """

    __slots__ = ("begun", "done", "entry", "since_ns")

    def __init__(self) -> None:
        self.begun: int = 0
        self.done: int = 0
        # What was taken last, until its route has counted it, or it waits for its turn or its next attempt.
        self.entry: Any = None
        # Start of the current handler, which is the end of the event before it in the batch; in a flood, the start of
        # the batch; 0: none.
        self.since_ns: int = 0

    def is_at_rest(self) -> bool:
        """No event is in hand. Exact on the handler thread; see `Drain.is_drained` for others."""
        return self.begun == self.done

    def has_event(self) -> bool:
        """Whether a handler has an event, apart from coroutines. Exact on the handler thread, and while that is in a
        handler."""
        entry = self.entry
        return entry is not None and (type(entry) is not Entry or entry.state == IN_HAND)

    def event(self) -> Any:
        """The event that the handler thread has now, apart from coroutines, or None."""
        entry = self.entry
        return entry.event if type(entry) is Entry else event_of(entry)

    def entry_in_hand(self) -> Entry | None:
        """The entry of the event in hand; None: it has none."""
        return self.entry if type(self.entry) is Entry else None


_FLOOD: Final = 64
"""The smallest batch that can indicate a flood."""
_QUICK_NS: Final = 10_000
"""In a flood, handlers faster than this are timed by the batch."""
_SLOW_NS: Final = 20_000
"""Handlers slower than this are timed singly."""


class EventTimes:
    """The times of one dispatcher's events. Written by the handler thread, read by any."""

    def __init__(self, queue: Inbox) -> None:
        self._flags = queue.flags
        self._stamping = queue.stamping
        self.samples: Final = queue.stamping.samples
        # If so, every ended event was timed, so the sums in the routes are complete.
        self.every: Final = queue.stamping.stamps_all
        self.measures: Final = self.samples or self.every
        self.queue_time: Histogram = Histogram()  # handler thread writes, any copies
        self.handling_time: Histogram = Histogram()  # handler thread writes, any copies
        # Whether to time the next batch singly. If `every`, events are timed singly anyway: each post notes its time.
        self.singly: bool = not self.every  # handler thread
        self.timed: int = 0  # events of this batch that were timed singly; handler thread
        self.timed_ns: int = 0  # their time in the handlers; handler thread
        self._pace_ns = _QUICK_NS  # of an event in the last quick batch, at most _QUICK_NS; handler thread

    def note(self, route: Route, started_ns: int, finished_ns: int, enqueued_ns: int) -> None:
        """Record an event that was timed singly. `enqueued_ns`: 0 if its post did not note the time."""
        handling_ns = finished_ns - started_ns
        self.timed += 1
        self.timed_ns += handling_ns
        if not self.measures:
            return
        if enqueued_ns:
            queue_ns = max(0, started_ns - enqueued_ns)
            self.queue_time.observe(queue_ns)
            route.queue_timed += 1
            route.queue_ns += queue_ns
        self.handling_time.observe(handling_ns)
        route.timed += 1
        route.handling_ns += handling_ns

    def copies(self, routes: Iterable[Route]) -> tuple[Histogram, Histogram]:
        """Copies of the times in the queue and in the handlers, of the events of these routes. Any thread."""
        queue_time, handling_time = self.queue_time.copy(), self.handling_time.copy()
        if self.every:
            queue_time.total_ns = handling_time.total_ns = 0
            for route in routes:
                queue_time.total_ns += route.queue_ns
                handling_time.total_ns += route.handling_ns
        return queue_time, handling_time

    def note_taken(self, handing_over_ns: int) -> None:
        """Keep the time of handing an event to a coroutine out of the times of the batch's other events."""
        self.timed += 1
        self.timed_ns += handing_over_ns

    def note_coroutine(self, route: Route, started_ns: int, finished_ns: int, enqueued_ns: int) -> None:
        """Record an event whose coroutine has ended. Its time does not count for the batch."""
        timed, timed_ns = self.timed, self.timed_ns
        self.note(route, started_ns, finished_ns, enqueued_ns)
        self.timed, self.timed_ns = timed, timed_ns

    def end_batch(self, events: int, started_ns: int) -> int:
        """Record the events of the batch that were not timed singly, and choose how to time the next batch.

        Returns when the batch ended.
        """
        finished_ns = perf_counter_ns()
        woken_ns = self._flags.woken_ns
        if woken_ns and self.samples:
            self._flags.woken_ns = 0
            self.queue_time.observe(started_ns - woken_ns)
        bare = events - self.timed if not self.every else 0
        if bare > 0:
            bare_ns = max(0, finished_ns - started_ns - self.timed_ns)
            mean_ns = bare_ns // bare
            if mean_ns <= _QUICK_NS:
                self._pace_ns = mean_ns
            # Time beyond the usual pace goes to one event: count and sum are exact, the distribution is a guess.
            pace_ns = self._pace_ns
            if self.measures:
                self.handling_time.observe(pace_ns, bare - 1)
                self.handling_time.observe(bare_ns - pace_ns * (bare - 1))
            self.singly = mean_ns > _SLOW_NS
        elif events >= _FLOOD and self.timed_ns < _QUICK_NS * events:
            self.singly = False
        self.timed = self.timed_ns = 0
        if self.samples and finished_ns >= self._stamping.again_at_ns:
            self._stamping.stamp_again(finished_ns)
        return finished_ns

    def end_lone(self, route: Route, started_ns: int) -> int:
        """Account for a batch of one event, which was not timed singly. Return the time of its end."""
        finished_ns = perf_counter_ns()
        handling_ns = finished_ns - started_ns
        if self.samples:
            woken_ns = self._flags.woken_ns
            if woken_ns:
                self.queue_time.observe(started_ns - woken_ns)
            self.handling_time.observe(handling_ns)
            route.timed += 1
            route.handling_ns += handling_ns
        if handling_ns <= _QUICK_NS:
            self._pace_ns = handling_ns
            self.singly = False
        else:
            self.singly = handling_ns > _SLOW_NS
        return finished_ns


class TypeSampling:
    """In a flood, times one event of a batch by itself, of each type in its turn. Handler thread.

    After each batch, the next event of one more type is to be timed, whenever it comes. So each event of a rare type is
    timed, and frequent types share what is left. No other event is slower for it: the batch looks up the handler of a
    type anyway, and finds one that reads the clock.
    """

    def __init__(self, routes: RoutingTable) -> None:
        self._routes = routes

    def choose(self) -> None:
        """After a batch: have the next event of one more type timed."""
        routes = self._routes
        if routes.has_changed:
            routes.find_untimed()
        if routes.untimed:
            route = routes.untimed.popleft()
            route.turn = route.timed_turn or self._make_turn(route)

    def _make_turn(self, route: Route) -> Turn:
        """The turn that times one event and then gives the next to the handler."""
        # A closure, because each batch pays for it. The event still counts as one that its batch has timed.
        routes = self._routes

        def handle(event: Any) -> None:
            turn: Turn | None = None
            while route.plain_turn is not turn:  # another thread may replace it meanwhile
                route.turn = turn = route.plain_turn
            routes.untimed.append(route)
            started_ns = perf_counter_ns()
            try:
                turn[0](event)
            except EventTaken:
                started_ns = 0  # its coroutine is timed instead
                raise
            finally:
                if started_ns:
                    route.handling_ns += perf_counter_ns() - started_ns
                    route.timed += 1

        route.timed_turn = Turn(handle, NO_TYPE)
        return route.timed_turn


class IdleTime:
    """The time that the handler thread spent waiting. Written by that thread, read by any."""

    __slots__ = ("until_ns", "waits")

    def __init__(self) -> None:
        # The sum of the waits before the last one, and the start of that. The handler thread replaces both in one
        # store, so no reader counts a wait twice.
        self.waits: tuple[int, int] = (0, 0)
        # When the last wait ended; before its start while it goes on; handler thread writes, any reads.
        self.until_ns: int = 0

    def last_ns(self) -> int:
        """How long the last wait took; 0: there was none. Handler thread, after the wait."""
        return self.until_ns - self.waits[1]

    def note(self, since_ns: int, until_ns: int) -> None:
        """Record a wait that has ended. Handler thread."""
        self.waits = (self.waits[0] + self.last_ns(), since_ns)
        self.until_ns = until_ns

    def total_ns(self) -> int:
        """Time spent waiting so far. Any thread."""
        while True:
            waits, until_ns = self.waits, self.until_ns
            if waits == self.waits:  # otherwise a wait has begun, and the two do not belong together
                break
        waited_ns, since_ns = waits
        return waited_ns + (until_ns if until_ns >= since_ns else perf_counter_ns()) - since_ns
