"""Waiting while the queue is empty, and dispatching the events that come one at a time.

`LoneEvents` decides how soon an idle dispatcher handles an event. Each step between the end of the wait and the handler
delays the event: what does not depend on the event is done before the wait, and what the handler does not need comes
after it. `Pauses` takes the place of the wait while logged events arrive in a stream.
"""

from __future__ import annotations

from time import perf_counter_ns, sleep
from typing import Any, Final

from dispatcher.dispatching.error_policy import ErrorPolicy
from dispatcher.dispatching.lanes import EventTaken
from dispatcher.dispatching.monitor import SlowRuns
from dispatcher.dispatching.stopping import Drain
from dispatcher.dispatching.times import BatchProgress, EventTimes, IdleTime
from dispatcher.mailbox.parking import NEVER
from dispatcher.mailbox.task_mailbox import TaskMailbox
from dispatcher.queue.alarm import Alarm
from dispatcher.queue.entry import Entry
from dispatcher.queue.flags import RUNNING, STOPPED
from dispatcher.queue.inbox import Inbox
from dispatcher.routes import NO_TYPE, Route, RoutingTable
from dispatcher.util.foreign import type_of

_TURNS: Final = 1000
"""Waits in one turn of the mailbox loop."""
_SHORT_NS: Final = 100_000
"""After a shorter wait, several events are likely to come during a pause."""
_PAUSE_S: Final = 200e-6
_WORTHWHILE_EVENTS: Final = 4
"""A pause that gathers fewer is a miss: waking the handler thread for each of those would cost less."""
_MOST_MISSES: Final = 8
_LEAST_CAPACITY: Final = 256
"""The capacity from which on a bounded queue gets pauses. Producers could fill a smaller one meanwhile, and wait."""


class LoneEvents:
    """The wait of one dispatcher for its next event. Handler thread.

    `only_waits`: leave the events in the queue. `stays`: between two waits the dispatcher does nothing but dispatch, so
    one turn of the mailbox loop may wait many times.
    """

    def __init__(
        self,
        queue: Inbox,
        mailbox: TaskMailbox,
        routes: RoutingTable,
        progress: BatchProgress,
        times: EventTimes,
        slow: SlowRuns,
        drain: Drain,
        errors: ErrorPolicy,
        alarm: Alarm,
        *,
        only_waits: bool,
        stays: bool,
    ) -> None:
        self.idle: IdleTime = IdleTime()  # says who may touch it
        self._queue = queue  # never changes, like all fields of this class
        self._entries = queue.entries
        self._flags = queue.flags
        self._due: list[None] = queue.stamping.due if times.samples else []
        self._room = queue.room
        self._bounded = queue.room.capacity is not None
        self._mailbox = mailbox
        self._parking = mailbox.parking
        self._routes = routes
        self._progress = progress
        self._times = times
        self._slow = slow
        self._drain = drain
        self._errors = errors
        self._alarm = alarm
        self._only_waits = only_waits
        self._stays = stays

    def dispatch(self) -> None:
        """Wait for a post, and dispatch its event; then the same again, unless something else is to be done.

        See test_loop_contract.py.
        """
        entries, flags, mailbox, due = self._entries, self._flags, self._mailbox, self._due
        progress, times, idle, parking = self._progress, self._times, self.idle, self._parking
        by_type, slow_ns, stays, bounded = self._routes.by_type, self._slow.limit_ns, self._stays, self._bounded
        every, only_waits, known, known_route = times.every, self._only_waits, NO_TYPE, self._routes.others
        duties, wait, wake, drain = parking.duties, parking.lock.acquire, parking.lock.release, self._drain
        popleft, room, side, nothing, alarm = entries.popleft, self._room, self._queue.side, NO_TYPE, self._alarm
        ended_ns = perf_counter_ns()
        for _ in range(_TURNS):
            if due:
                due.clear()  # the time of the post that wakes this thread is measured anyway
            flags.woken_ns = 0
            idle.waits = (idle.waits[0] + idle.until_ns - idle.waits[1], ended_ns)
            if duties:
                duties.clear()  # a second release ended the last wait, so its duty is still there
            duties.append(wake)
            flags.alert = True  # H1: pairs with P2 in `Inbox._make_post`
            progress.begun += 1  # before the last look, which may take an event
            place: Any = nothing
            try:
                if not only_waits and flags.phase == RUNNING:
                    place = popleft()  # H2: the last look
            except IndexError:
                pass
            if place is nothing:
                progress.done += 1
                if drain.waiters:  # one that has looked since `begun` has not found this thread at rest
                    drain.notify()
                # Mail and a stop set what is looked at here, and then look for a duty.
                if entries or side or mailbox.new_mail or (flags.phase != RUNNING and self._is_ending()):
                    parking.unpark()
                if alarm.next_ns == NEVER:
                    wait()
                else:
                    parking.wait_in_time()
                if (flags.alert or mailbox.new_mail or only_waits) and not self._is_to_dispatch():
                    return
                progress.begun += 1
            else:
                duties.clear()  # no post has to end this wait
                self._queue.calm()
            started_ns = progress.since_ns = idle.until_ns = perf_counter_ns()
            event: Any = None
            route: Route | None = None
            enqueued_ns = 0
            try:
                event = progress.entry = popleft() if place is nothing else place
                if bounded:
                    room.give_back()
                if every and type(event) is tuple:  # a stamped entry: no event is queued bare
                    event, enqueued_ns = event[0], event[1]
                event_type = event.type
                if event_type is not known:  # a type keeps its route, whose handler may change
                    known_route = by_type.get(id(event_type)) or self._routes.find(event_type)
                    known = known_route.event_type
                route = known_route
                route.handle(event)
                route.handled += 1
            except BaseException as error:
                if event is None and error.__class__ is IndexError:  # another thread has emptied the queue
                    self._leave()
                    return
                route = self._failed(event, error)
            if enqueued_ns and route is not None:
                ended_ns = perf_counter_ns()
                times.note(route, started_ns, ended_ns, enqueued_ns)
                if ended_ns - started_ns > slow_ns:
                    self._slow.event_ended(route, event, started_ns, ended_ns)
            if route is None or times.timed:
                ended_ns = times.end_batch(1, started_ns)
            else:
                ended_ns = times.end_lone(route, started_ns)
                if ended_ns - started_ns > slow_ns:
                    self._slow.event_ended(route, event, started_ns, ended_ns)
            event = place = progress.entry = None
            progress.since_ns = 0
            progress.done += 1
            if entries or mailbox.new_mail or mailbox.batch or drain.waiters or not stays or flags.phase != RUNNING:
                return

    def _is_ending(self) -> bool:
        return self._queue.shutdown.is_ending() and self._progress.is_at_rest()

    def _is_to_dispatch(self) -> bool:
        """The wait may have ended without a post: whether to dispatch an event now."""
        if self._flags.alert:
            self._queue.calm()
        if self._entries and not (self._mailbox.new_mail or self._only_waits or self._flags.phase >= STOPPED):
            return True
        self.idle.until_ns = perf_counter_ns()
        return False

    def _failed(self, event: Any, error: BaseException) -> Route | None:
        """The handler has raised `error`. Returns the event's route; None: it is timed elsewhere."""
        if type(event) is Entry:  # its own dispatching deals with handlers' errors
            self._leave()
            raise error
        if type(error) is not EventTaken:
            self._errors.failed(event, error)
        self._progress.entry = None
        if type(error) is EventTaken:
            return None
        return self._routes.find(type_of(event))

    def _leave(self) -> None:
        """Note that no event is in hand."""
        self._progress.entry = None
        self._progress.since_ns = 0
        self._progress.done += 1


class Pauses:
    """Lets posts gather while a stream of events is logged ahead. Handler thread.

    To wake the handler thread costs a producer more than its post: that thread takes the GIL while the producer writes
    to the log, and keeps it until it waits again. So after a short wait the handler thread sleeps for a moment instead
    of waiting for the next post, and posts find nothing to wake. Mail and `stop` are seen at the end of the pause. A
    pause that gathers too few events is a miss: the next pauses are left out, twice as many after each miss in a row.
    """

    def __init__(self, queue: Inbox, idle: IdleTime) -> None:
        self._entries = queue.entries  # never changes
        self._flags = queue.flags  # never changes
        self._idle = idle  # never changes
        self._are_on = queue.room.capacity is None or queue.room.capacity >= _LEAST_CAPACITY  # never changes
        self._pays = False  # the last pause gathered enough
        self._misses = 0  # pauses in a row that did not
        self._skips = 0  # waits until the next pause

    def take(self) -> bool:
        """Called with the queue empty. Pause if that is likely to pay, and return True; otherwise return False."""
        if self._skips:
            self._skips -= 1
            return False
        pays, self._pays = self._pays, False
        if not self._are_on or self._flags.phase != RUNNING or not (pays or 0 < self._idle.last_ns() < _SHORT_NS):
            return False
        since_ns = perf_counter_ns()
        sleep(_PAUSE_S)
        self._idle.note(since_ns, perf_counter_ns())
        if len(self._entries) >= _WORTHWHILE_EVENTS:
            self._pays, self._misses = True, 0
        else:
            self._misses = min(self._misses + 1, _MOST_MISSES)
            self._skips = 1 << self._misses
        return True
