"""The default action of a dispatcher: take a batch of events from the queue and hand each to its handler.

Only the handler thread runs this and writes its counters; other threads read them (invariant 1).

Six functions hand an event to its handler and count it, because a call for each event would cost as much as the
dispatcher's own work on it: four here, one in `lone`, one in `journaled`. tests/dispatcher/test_loop_contract.py holds
all of them to the same results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat, starmap
from time import perf_counter_ns, sleep
from typing import Any, Final

from dispatcher.config import DispatcherConfig
from dispatcher.dispatching.deliveries import Answers
from dispatcher.dispatching.error_policy import ErrorPolicy
from dispatcher.dispatching.journaled import JournaledDispatching
from dispatcher.dispatching.lanes import EventTaken
from dispatcher.dispatching.lone import LoneEvents, Pauses
from dispatcher.dispatching.monitor import SIZE_STEP, Backlog, SlowRuns
from dispatcher.dispatching.stopping import Drain
from dispatcher.dispatching.times import EventTimes, Progress, TypeSampling
from dispatcher.journal.writer import JournalWriter
from dispatcher.mailbox.processor import MailboxController
from dispatcher.mailbox.task_mailbox import TaskMailbox
from dispatcher.queue.delivery import Delivery
from dispatcher.queue.entries import STOPPED, InQueue, QueuedEvent, is_stamped
from dispatcher.queue.posting import EventQueue
from dispatcher.routes import NO_TYPE, RoutingTable
from dispatcher.util.foreign import type_of
from dispatcher.util.threads import postponed, try_postponed

_SIZE_EVERY_NS: Final = 1_000_000
"""In a flood, the size of the queue is told at most once in this time: its log costs as much as ten events."""

_NAP_S: Final = 0.01


class BatchDispatching:
    """Called with each turn of the mailbox loop.

    With a `journal`, each event gets a row there, timed by `clock_ns`. `idle_action` is called when the queue is empty;
    it returns True if it made work.
    """

    def __init__(
        self,
        name: str,
        queue: EventQueue,
        mailbox: TaskMailbox,
        routes: RoutingTable,
        config: DispatcherConfig,
        *,
        progress: Progress,
        drain: Drain,
        errors: ErrorPolicy,
        journal: JournalWriter | None,
        clock_ns: Callable[[], int] | None,
        idle_action: Callable[[], bool] | None,
    ) -> None:
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
        self.times = times = EventTimes(queue)
        self._ended_ns = 0  # when the last batch ended; handler thread
        self._size_due_ns = 0  # when to tell the size of a long queue next; handler thread
        self.backlog = Backlog(queue, progress)
        self.slow = SlowRuns(name, config.handler_warn_after_s)
        self._choose_timed = TypeSampling(routes).choose if times.samples else None
        self.answers = Answers(progress, journal)
        self.journaled = (
            JournaledDispatching(
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
            )
            if journal is not None
            else None
        )
        waits, stays = journal is not None, idle_action is None
        self._lone = LoneEvents(
            queue, mailbox, routes, progress, times, self.slow, drain, errors, only_waits=waits, stays=stays
        )
        self.idle = self._lone.idle
        self._pauses = Pauses(queue, self.idle) if queue.write_ahead.is_on and stays else None

    def __call__(self, controller: MailboxController) -> None:
        """Dispatch one batch, which mail cuts short. If the queue is empty, wait for a post first."""
        progress, times = self.progress, self.times
        if self._postponed:
            try_postponed()
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
        turns: Iterator[tuple[()]] = repeat((), count)
        batch: Iterator[Any] = starmap(self._popleft, turns)
        before = progress.taken()
        progress.turns = (before + count, turns)
        progress.begun += 1
        quickly, last, since_ns = False, None, 0
        started_ns = progress.since_ns = perf_counter_ns()
        try:
            if self.journaled is not None:
                self.journaled.dispatch(batch)
            elif times.every:
                self._dispatch_every(batch, count)
            elif count > 1 and times.singly:
                self._dispatch_singly(batch)
            else:
                quickly = True
                self._dispatch_quickly(batch, count)
        finally:
            last, since_ns = progress.entry, progress.since_ns
            progress.entry = None
            progress.since_ns = 0
            progress.done += 1
        self._ended_ns = ended_ns = times.end_batch(progress.taken() - before, started_ns)
        if quickly:
            if self._choose_timed is not None:
                self._choose_timed()
            if ended_ns - since_ns > self.slow.limit_ns and type(last) is not QueuedEvent:
                # The watch has ended the batch early, so it is the last event that took so long.
                self.slow.event_ended(self.routes.find(type_of(last)), last, since_ns, ended_ns)

    def dispatch_last(self) -> bool:
        """After STOPPED: dispatch the events posted before producers saw that, and what handlers post to finish.

        Returns whether those were all; otherwise events are in coroutines, which may post more.
        """
        progress = self.progress
        progress.begun += 1
        while True:
            before, turns = progress.taken(), repeat((), 1)
            progress.turns = (before + 1, turns)
            is_last = progress.begun - progress.done == 1  # this call's own
            entry = self.queue.shutdown.take_last(starmap(self._popleft, turns), ends=is_last)
            if entry is None:
                progress.turns = (before, repeat((), 0))  # the turn may be used up, in vain
                break
            progress.since_ns = perf_counter_ns()
            try:
                if self.journaled is not None:
                    self.journaled.dispatch((entry,))
                else:
                    progress.entry = entry
                    self._dispatch_one(entry)
            finally:
                progress.entry = None
                progress.since_ns = 0
        progress.done += 1
        return self.queue.shutdown.has_ended

    def _nap(self) -> None:
        """As the wait for a post, but for a moment: a thread that could not be started is to be tried again."""
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

    def _dispatch_quickly(self, batch: Iterator[Any] | None, count: int) -> None:
        """The hot path, until there is mail: for each event its handler's call, a count and a store; no lock.

        See test_loop_contract.py.
        """
        mailbox, progress, by_id, find = self._mailbox, self.progress, self.routes.by_type.get, self.routes.find
        bounded, room, give_back = self._bounded, self._room, self._room.permits.append
        most_upto = progress.turns[0] - count + self._batch_size
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
                        if room.is_crowded:
                            room.serve()
                        else:
                            give_back(None)
                            if room.is_crowded:  # by a producer that may have looked for a permit before
                                room.wake_one()
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
                    event = None  # counted
                    if mailbox.new_mail:  # a hint, read without a lock, so that mail does not wait for the whole batch
                        return
                batch = None if self.times.singly else self._next_batch(most_upto)
            except BaseException as error:
                if event is None and error.__class__ is IndexError:  # another thread has emptied the queue
                    upto, turns = progress.turns
                    progress.turns = (upto - 1, turns)
                    return
                failed, event = event, None
                self._quick_failed(failed, error)
                if mailbox.new_mail:
                    return

    def _next_batch(self, most_upto: int) -> Iterator[Any] | None:
        """What a batch goes on with once its turns are used up, until that many are taken; None: nothing.

        Handlers may post one event at a time: a turn of the loop for each would cost more than the event.
        """
        upto = self.progress.taken()
        more = min(len(self._entries), most_upto - upto)
        if more <= 0 or self._mailbox.new_mail or self._flags.phase >= STOPPED:
            return None
        turns = repeat((), more)
        self.progress.turns = (upto + more, turns)
        return starmap(self._popleft, turns)

    def _quick_failed(self, event: Any, error: BaseException) -> None:
        """Account for an event of a quick batch whose handler raised.

        Raises:
            BaseException: `error`, if no handler has raised it.
        """
        if type(event) is QueuedEvent:  # `_dispatch_one` deals with the errors of handlers
            raise error
        if type(error) is not EventTaken:
            self.errors.failed(event, error)

    def _dispatch_every(self, batch: Iterator[Any] | None, count: int) -> None:
        """As `_dispatch_singly`, and what handlers post meanwhile."""
        most_upto = self.progress.turns[0] - count + self._batch_size
        while batch is not None:
            self._dispatch_singly(batch)
            batch = self._next_batch(most_upto)

    def _dispatch_singly(self, batch: Iterator[Any]) -> None:
        """Dispatch and time each event, until there is mail: as `_dispatch_one`, without a call for each step. See
        test_loop_contract.py.

        One reading of the clock ends an event and begins the next. So the dispatcher's own work on an event, a few
        hundred ns, counts as handling, as it does in a quick batch.
        """
        mailbox, progress, times, clock_ns = self._mailbox, self.progress, self.times, perf_counter_ns
        bounded, by_type, find, slow_ns = self._bounded, self.routes.by_type, self.routes.find, self.slow.limit_ns
        queue_counts, handling_counts, every = times.queue_time.counts, times.handling_time.counts, times.every
        entry: Any = None
        known: Any = NO_TYPE  # as in a quick batch, events of one type in a row share one lookup
        route, handle, started_ns = self.routes.others, self.routes.others.handle, progress.since_ns
        try:
            for entry in batch:
                if bounded:
                    self._room.serve()
                progress.entry, event, enqueued_ns = entry, entry, 0
                if every and type(entry) is tuple:  # a stamped entry: no event is queued bare
                    event, enqueued_ns = entry[0], entry[1]
                elif type(entry) is QueuedEvent:
                    if entry.key is not None:
                        self.queue.coalescing.close(entry)
                    event, enqueued_ns = entry.event, entry.enqueued_ns
                    if entry.delivery is not None:
                        self._dispatch_delivery(entry.event, entry.delivery, entry.enqueued_ns)
                        started_ns, entry = progress.since_ns, None
                        if mailbox.new_mail:
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
                    entry = None
                    if mailbox.new_mail:
                        break
                    continue
                except BaseException as error:
                    self.errors.failed(event, error)
                    route, known = find(type_of(event)), NO_TYPE
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
                    times.note(route, started_ns, ended_ns, enqueued_ns)
                if handling_ns > slow_ns:
                    self.slow.event_ended(route, event, started_ns, ended_ns)
                started_ns, entry = ended_ns, None
                if mailbox.new_mail:
                    break
        except IndexError:
            if entry is not None:  # not raised by the iterator
                raise
            upto, turns = progress.turns  # another thread has emptied the queue
            progress.turns = (upto - 1, turns)

    def _dispatch_one(self, entry: Any) -> None:
        """Dispatch and time one event. See test_loop_contract.py."""
        event, enqueued_ns = entry, 0
        if type(entry) is QueuedEvent:
            if entry.key is not None:
                self.queue.coalescing.close(entry)
            if entry.delivery is not None:
                self._dispatch_delivery(entry.event, entry.delivery, entry.enqueued_ns)
                del entry, event  # as in `_dispatch_delivery`
                return
            event, enqueued_ns = entry.event, entry.enqueued_ns
        elif is_stamped(entry):
            event, enqueued_ns = entry[0], entry[1]
        started_ns = self.progress.since_ns = perf_counter_ns()
        try:
            event_type = event.type
            route = self.routes.by_type.get(id(event_type)) or self.routes.find(event_type)
            route.handle(event)
            route.handled += 1
        except EventTaken:  # its coroutine is timed instead
            self.progress.since_ns = perf_counter_ns()
            return
        except BaseException as error:
            self.errors.failed(event, error)
            route = self.routes.find(type_of(event))
        finished_ns = self.progress.since_ns = perf_counter_ns()
        self.times.note(route, started_ns, finished_ns, enqueued_ns)
        if finished_ns - started_ns > self.slow.limit_ns:
            self.slow.event_ended(route, event, started_ns, finished_ns)

    def _dispatch_delivery(self, event: Any, delivery: Delivery, enqueued_ns: int) -> None:
        """As `_dispatch_one`, of an entry that is closed and has a delivery. See test_loop_contract.py."""
        is_retried = False
        started_ns = self.progress.since_ns = perf_counter_ns()
        try:
            route = self.routes.find(event.type)
            self.answers.handle(delivery, route.handle, event)
            route.handled += 1
        except EventTaken:  # withdrawn, or in the hands of a coroutine
            self.progress.since_ns = perf_counter_ns()
            return
        except BaseException as error:
            outcome, error = self.errors.failed(event, error)
            is_retried = outcome == "retried"
            self.answers.failed(error)
            route = self.routes.find(type_of(event))
        finished_ns = self.progress.since_ns = perf_counter_ns()
        self.times.note(route, started_ns, finished_ns, enqueued_ns)
        if finished_ns - started_ns > self.slow.limit_ns:
            self.slow.event_ended(route, event, started_ns, finished_ns)
        if is_retried:
            self.answers.forget()
        else:
            self.answers.give(delivery)
        del delivery  # the traceback of an error, which an ask gets, refers to this frame
