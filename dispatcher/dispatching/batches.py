"""The default action of a dispatcher: take a batch of events from the queue and hand each to its handler.

Only the handler thread runs this and writes its counters; other threads read them (invariant 1).

Four loops hand an event to its handler and count it, because a call for each event would cost as much as the
dispatcher's own work on it: two here, one in `lone`, one in `journaled`. An event with an Entry costs more anyway, so
`_dispatch_entry` is a function of its own. tests/dispatcher/test_loop_contract.py holds all to the same results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import repeat, starmap
from operator import length_hint
from time import perf_counter_ns, sleep
from typing import TYPE_CHECKING, Any, Final

from dispatcher.dispatching.deliveries import Answers
from dispatcher.dispatching.early_signs import EarlySigns
from dispatcher.dispatching.error_policy import ErrorPolicy
from dispatcher.dispatching.lanes import EventTaken
from dispatcher.dispatching.lone import LoneEvents, Pauses
from dispatcher.dispatching.monitor import SIZE_STEP, Backlog, SlowRuns
from dispatcher.dispatching.stopping import Drain
from dispatcher.dispatching.times import BatchProgress, EventTimes, TypeSampling
from dispatcher.mailbox.parking import NEVER
from dispatcher.mailbox.processor import MailboxController
from dispatcher.mailbox.task_mailbox import TaskMailbox
from dispatcher.queue.alarm import Alarm
from dispatcher.queue.entry import Entry, InQueue, event_of
from dispatcher.queue.flags import STOPPED
from dispatcher.queue.inbox import Inbox
from dispatcher.queue.shutdown import NOTHING_LEFT
from dispatcher.routes import NO_TYPE, RoutingTable
from dispatcher.util.foreign import type_of
from dispatcher.util.threads import postponed, try_postponed

if TYPE_CHECKING:
    from dispatcher.config import DispatcherConfig
    from dispatcher.dispatching.journaled import JournaledDispatching
    from dispatcher.dispatching.times import IdleTime
    from dispatcher.journal.writer import JournalWriter

_SIZE_EVERY_NS: Final = 1_000_000
"""In a flood, the size of the queue is reported at most once in this time: its log costs as much as ten events."""

_NAP_S: Final = 0.01
_LONG_NS: Final = 10_000
"""A batch of quicker events ends soon enough for what is due."""


class BatchDispatching:
    """Called with each turn of the mailbox loop.

    With a `journal`, each event gets a row there, timed by `clock_ns`. `idle_action` is called when the queue is empty;
    it returns True if it made work. `after_batch` is called after the events of each batch, before its mail.
    """

    def __init__(
        self,
        name: str,
        queue: Inbox,
        mailbox: TaskMailbox,
        routes: RoutingTable,
        config: DispatcherConfig,
        *,
        progress: BatchProgress,
        drain: Drain,
        errors: ErrorPolicy,
        journal: JournalWriter | None,
        clock_ns: Callable[[], int] | None,
        idle_action: Callable[[], bool] | None,
        alarm: Alarm,
        after_batch: Callable[[], None],
    ) -> None:
        self._alarm = alarm
        self._after_batch = after_batch
        self.queue = queue  # never changes, like all fields that do not say otherwise
        self._entries = queue.entries
        self._flags = queue.flags
        self._popleft = queue.entries.popleft
        self._room = queue.room
        self._bounded = queue.room.capacity is not None
        self._mailbox = mailbox
        self.routes = routes
        self.errors = errors
        self.drain = drain
        self.journal = journal
        self._idle_action = idle_action
        self._postponed = postponed  # the process's, which says who may touch it
        capacity = config.queue_capacity
        # Smaller batches for a bounded queue: its size is checked between batches, and the warning should come in time.
        self._batch_size = min(config.batch_size, max(1, capacity // 2)) if capacity else config.batch_size
        routes.add_internal(InQueue.ENTRY, self._dispatch_one)
        self.progress = progress
        times = EventTimes(queue)
        self.times: EventTimes = times
        # Entries that this batch takes, and the turns that it takes them with; handler thread.
        self._count = 0
        self._turns: Iterator[tuple[()]] = repeat((), 0)
        self._ended_ns = 0  # when the last batch ended; handler thread
        self._size_due_ns = 0  # when to tell the size of a long queue next; handler thread
        self.backlog: Backlog = Backlog(queue, self.left)
        self.signs: EarlySigns = EarlySigns(config, lambda: len(queue.entries), routes.all, errors.letters_lost)
        self.slow: SlowRuns = SlowRuns(name, config.handler_warn_after_s)
        self._choose_timed = TypeSampling(routes).choose if times.samples else None
        self.answers: Answers = Answers(journal)
        self.journaled: JournaledDispatching | None = None
        if journal is not None:
            from dispatcher.dispatching.journaled import JournaledDispatching

            self.journaled = JournaledDispatching(
                name,
                queue,
                mailbox,
                routes,
                progress=progress,
                times=times,
                slow=self.slow,
                errors=errors,
                answers=self.answers,
                journal=journal,
                clock_ns=clock_ns,
                alarm=alarm,
            )
        waits, stays = journal is not None, idle_action is None
        self._lone = LoneEvents(
            queue, mailbox, routes, progress, times, self.slow, drain, errors, alarm, only_waits=waits, stays=stays
        )
        self.idle: IdleTime = self._lone.idle
        self._pauses = Pauses(queue, self.idle) if queue.write_ahead.is_on and stays else None

    def __call__(self, controller: MailboxController) -> None:
        """Dispatch one batch, which mail cuts short. If the queue is empty, wait for a post first."""
        progress, times, queue = self.progress, self.times, self.queue
        if self._postponed:
            try_postponed()
        if queue.side:
            queue.bring_in()
        if self._alarm.next_ns != NEVER and self._alarm.next_ns <= perf_counter_ns():
            self._alarm.fire()
        # Once STOPPED, `dispatch_last` takes the entries, under the queue's lock.
        count = len(self._entries) if self._flags.phase < STOPPED else 0
        if not count:
            if self._is_to_wait(controller) and not (self._pauses is not None and self._pauses.take()):
                if self._postponed:
                    self._nap()
                else:
                    self._lone.dispatch()
            # If there are events now, dispatch them at once: another turn of the loop costs as much as several events.
            count = len(self._entries) if self._flags.phase < STOPPED and not self._mailbox.new_mail else 0
            if not count:
                return
        if count > self._batch_size:
            if count >= SIZE_STEP and self._ended_ns >= self._size_due_ns:
                self._size_due_ns = self._ended_ns + _SIZE_EVERY_NS
                self._room.on_size(count, self._room.remaining())
            count = self._batch_size
        # starmap pops the entries: no Python call for each event, and an error in a handler does not end the iterator.
        self._count, self._turns = count, repeat((), count)
        batch: Iterator[Any] = starmap(self._popleft, self._turns)
        progress.begun += 1
        quickly = False
        started_ns = progress.since_ns = perf_counter_ns()
        try:
            if self.journaled is not None:
                if not self.journaled.dispatch(batch):
                    self._count -= 1
            elif times.every:
                self._dispatch_every(batch)
            elif count > 1 and (times.singly or self._begins_with_ask()):
                self._dispatch_singly(batch)
            else:
                quickly = True
                self._dispatch_quickly(batch)
        finally:
            since_ns, last = progress.since_ns, progress.entry
            progress.entry = None
            progress.since_ns = 0
            progress.done += 1
            self._after_batch()
        events = self._count - len(tuple(self._turns))  # those that mail has cut off are left
        self._ended_ns = ended_ns = times.end_batch(events, started_ns)
        if quickly:
            if self._choose_timed is not None:
                self._choose_timed()
            if ended_ns - since_ns > self.slow.limit_ns and last is not None:
                # The watch has ended the batch early, so it is the last event that took so long.
                self.slow.event_ended(self.routes.find(type_of(last)), last, since_ns, ended_ns)

    def dispatch_last(self) -> bool:
        """After STOPPED: dispatch the events posted before producers saw that, and what handlers post to finish.

        Returns whether those were all; otherwise events are in coroutines, which may post more.
        """
        progress, queue = self.progress, self.queue
        progress.begun += 1
        while True:
            if queue.side:
                queue.bring_in()
            is_last = progress.begun - progress.done == 1  # this call's own
            place = queue.shutdown.take_last(ends=is_last)
            if place is NOTHING_LEFT:
                if queue.side and not queue.shutdown.has_ended:
                    continue
                break
            progress.since_ns = perf_counter_ns()
            try:
                if self.journaled is not None:
                    self.journaled.dispatch((place,))
                else:
                    self._dispatch_singly((place,))
            finally:
                progress.entry = None
                progress.since_ns = 0
        progress.done += 1
        return queue.shutdown.has_ended

    # -- any thread ----------------------------------------------------------------------------------------------------

    def is_at_work(self) -> bool:
        """Whether the handler thread is in a batch, or in mail; a snapshot."""
        progress = self.progress
        return bool(progress.since_ns) or not self._mailbox.parking.is_waiting()

    def in_hand(self) -> int:
        """How many events handlers and coroutines have. Exact on the handler thread, and while that is in a handler."""
        progress = self.progress
        if not progress.since_ns:
            return max(0, progress.begun - progress.done)
        return max(0, progress.begun - progress.done - 1) + progress.has_event()

    def ended(self) -> int:
        """How many events have ended in handlers, or wait for another attempt."""
        return sum(route.handled + route.failed + route.retried for route in self.routes.all())

    def left(self) -> int:
        """About how many events have left the queue at its front."""
        with self.queue.lock:
            dropped = self.queue.dropped.get("drop_oldest", 0) + self.queue.dropped.get("stop", 0)
        return self.ended() + self.in_hand() + dropped

    # -- handler thread ------------------------------------------------------------------------------------------------

    def following(self) -> Any:
        """The event that the batch takes next, if there is no mail; None: it has none."""
        if not length_hint(self._turns) or self._mailbox.new_mail:
            return None
        try:
            return event_of(self._entries[0])
        except IndexError:  # another thread has emptied the queue
            return None

    def _begins_with_ask(self) -> bool:
        """Whether asks come in a flood: a batch of them is cheaper than a quick one that hands over each."""
        with suppress(IndexError):  # another thread has emptied the queue
            first = self._entries[0]
            return type(first) is Entry and first.ask is not None
        return False

    def _nap(self) -> None:
        """Wait for a moment, whether or not a post comes: a thread that could not be started is to be tried again."""
        since_ns = perf_counter_ns()
        sleep(_NAP_S)
        self.idle.note(since_ns, perf_counter_ns())

    def _is_to_wait(self, controller: MailboxController) -> bool:
        """The queue is empty: end the drain, or run the idle action. Returns whether to wait for the next post."""
        shutdown = self.queue.shutdown
        if shutdown.late:
            shutdown.discard_late()
        if self.drain.waiters:
            self.drain.notify()
        if self.queue.phase < STOPPED and self._mailbox.has_mail():
            return False
        if shutdown.is_ending() and (self.progress.is_at_rest() or (self._flags.phase >= STOPPED and self._entries)):
            shutdown.shut(STOPPED)
            if self.dispatch_last():
                controller.all_actions_completed()
            return False
        if self._idle_action is not None and self._idle_action():
            return False
        if self.journal is not None:
            self.journal.idle()
        return True

    def _dispatch_quickly(self, batch: Iterator[Any] | None) -> None:
        """The hot path, until there is mail: for each event its handler's call, a count and a store; no lock.

        See test_loop_contract.py.
        """
        mailbox, progress, by_id, find = self._mailbox, self.progress, self.routes.by_type.get, self.routes.find
        bounded, room, give_back = self._bounded, self._room, self._room.permits.append
        event: Any = None
        # The batch keeps the handlers of four types: four comparisons are faster than a look-up. Once there are four,
        # another one takes the place of the newest. That is safe because a thread that changes registrations also sends
        # a mail, which ends the batch. Each of the four has its own call, which CPython adapts to that handler.
        no_type: Any = NO_TYPE
        type_0, route_0 = type_1, route_1 = type_2, route_2 = type_3, route_3 = no_type, self.routes.others
        handle_0 = handle_1 = handle_2 = handle_3 = route_0.handle
        while batch is not None:
            try:
                for event in batch:
                    if bounded:
                        give_back(None)
                        if room.is_crowded:  # R3
                            room.relieve()
                    progress.entry = event
                    event_type = event.type
                    if event_type is type_0:
                        handle_0(event)
                        route_0.handled += 1
                    elif event_type is type_1:
                        handle_1(event)
                        route_1.handled += 1
                    elif event_type is type_2:
                        handle_2(event)
                        route_2.handled += 1
                    elif event_type is type_3:
                        handle_3(event)
                        route_3.handled += 1
                    else:
                        route = by_id(id(event_type)) or find(event_type)
                        handle, known = route.turn
                        handle(event)
                        route.handled += 1
                        if known is not no_type:
                            if type_3 is no_type:
                                type_3, handle_3, route_3 = type_2, handle_2, route_2
                                type_2, handle_2, route_2 = type_1, handle_1, route_1
                                type_1, handle_1, route_1 = type_0, handle_0, route_0
                            type_0, handle_0, route_0 = known, handle, route
                    event = None  # counted; `progress.entry` keeps it until the next one
                    if mailbox.new_mail:  # a hint, read without a lock, so that mail does not wait for the whole batch
                        return
                batch = None if self.times.singly else self._next_batch()
            except BaseException as error:
                if event is None and error.__class__ is IndexError:  # another thread has emptied the queue
                    self._count -= 1
                    return
                failed, event = event, None
                self._quick_failed(failed, error)
                if mailbox.new_mail:
                    return

    def _next_batch(self) -> Iterator[Any] | None:
        """What a batch goes on with once its turns are used up, until it is full; None: nothing.

        Handlers may post one event at a time: a turn of the loop for each would cost more than the event.
        """
        more = min(len(self._entries), self._batch_size - self._count)
        is_cut = self._mailbox.new_mail or self._flags.phase >= STOPPED or not self._alarm.next_ns  # which rings
        if more <= 0 or is_cut:
            return None
        self._count, self._turns = self._count + more, repeat((), more)
        return starmap(self._popleft, self._turns)

    def _quick_failed(self, event: Any, error: BaseException) -> None:
        """Account for an event of a quick batch whose handler raised.

        Raises:
            BaseException: `error`, if no handler has raised it.
        """
        if type(event) is Entry:  # `_dispatch_one` deals with the errors of handlers
            raise error
        if type(error) is EventTaken:
            self.progress.entry = None
        else:
            self.errors.failed(event, error)

    def _dispatch_every(self, batch: Iterator[Any] | None) -> None:
        """Dispatch a batch singly, and what handlers post meanwhile."""
        while batch is not None:
            self._dispatch_singly(batch)
            batch = self._next_batch()

    def _dispatch_one(self, place: Entry) -> None:
        """Dispatch an entry that a quick batch, or the wait for an event, has met."""
        self.progress.since_ns = perf_counter_ns()
        self._dispatch_entry(place)

    def _dispatch_entry(self, place: Entry) -> None:
        """Dispatch and time an entry just popped, from `progress.since_ns` on. See test_loop_contract.py."""
        progress, started_ns, enqueued_ns = self.progress, self.progress.since_ns, place.enqueued_ns
        entry = progress.entry = place.take()
        if entry is None:  # it was withdrawn
            return
        event = entry.event
        try:
            event_type = event.type
            route = self.routes.by_type.get(id(event_type)) or self.routes.find(event_type)
            self.answers.handle(entry, route)
        except EventTaken:  # its coroutine is timed instead, or it was withdrawn
            entry = progress.entry = None
            progress.since_ns = perf_counter_ns()
            return
        except BaseException as error:
            self.errors.failed(event, error)
            route = self.routes.find(type_of(event))
        entry = progress.entry = None  # the traceback of an error, which an ask gets, refers to this frame
        ended_ns = progress.since_ns = perf_counter_ns()
        self.times.note(route, started_ns, ended_ns, enqueued_ns)
        if ended_ns - started_ns > self.slow.limit_ns:
            self.slow.event_ended(route, event, started_ns, ended_ns)

    def _dispatch_singly(self, batch: Iterable[Any]) -> None:
        """Dispatch and time each event, until there is mail: a bare one, a stamped one, or an Entry. See
        test_loop_contract.py.

        One reading of the clock ends an event and begins the next. So the dispatcher's own work on an event, a few
        hundred ns, counts as handling, as it does in a quick batch.
        """
        mailbox, progress, times, clock_ns = self._mailbox, self.progress, self.times, perf_counter_ns
        bounded, by_type, find, slow_ns = self._bounded, self.routes.by_type, self.routes.find, self.slow.limit_ns
        queue_counts, handling_counts, every = times.queue_time.counts, times.handling_time.counts, times.every
        alarm, long_ns = self._alarm, _LONG_NS
        place: Any = None
        known: Any = NO_TYPE  # as in a quick batch, events of one type in a row share one lookup
        route, handle, started_ns = self.routes.others, self.routes.others.handle, progress.since_ns
        try:
            for place in batch:
                if bounded:
                    self._room.give_back()
                progress.entry, event, enqueued_ns = place, place, 0
                if every and type(place) is tuple:  # a stamped entry: no event is queued bare
                    event, enqueued_ns = place[0], place[1]
                elif type(place) is Entry:
                    self._dispatch_entry(place)
                    handling_ns, started_ns, place = progress.since_ns - started_ns, progress.since_ns, None
                    if mailbox.new_mail or (handling_ns > long_ns and started_ns >= alarm.next_ns):
                        break
                    continue
                try:
                    event_type = event.type
                    if event_type is not known:
                        route = by_type.get(id(event_type)) or find(event_type)
                        handle, known = route.handle, route.event_type
                    handle(event)
                    route.handled += 1
                except EventTaken:  # its coroutine is timed instead
                    started_ns = progress.since_ns = clock_ns()
                    place = progress.entry = None
                    if mailbox.new_mail:
                        break
                    continue
                except BaseException as error:
                    self.errors.failed(event, error)
                    route, known = find(type_of(event)), NO_TYPE
                progress.entry = None
                ended_ns = progress.since_ns = clock_ns()
                handling_ns = ended_ns - started_ns
                if every:
                    route.handling_ns += handling_ns
                    handling_counts[handling_ns.bit_length()] += 1
                    if enqueued_ns:
                        queue_ns = started_ns - enqueued_ns if enqueued_ns < started_ns else 0  # 0: posted just now
                        route.queue_ns += queue_ns
                        queue_counts[queue_ns.bit_length()] += 1
                else:
                    times.note(route, started_ns, ended_ns, 0)
                if handling_ns > slow_ns:
                    self.slow.event_ended(route, event, started_ns, ended_ns)
                started_ns, place = ended_ns, None
                if mailbox.new_mail or (handling_ns > long_ns and ended_ns >= alarm.next_ns):
                    break
        except IndexError:
            if place is not None:  # not raised by the iterator
                raise
            self._count -= 1  # another thread has emptied the queue
