"""The central dispatcher: a mailbox processor whose default action dispatches events (after Hadoop's AsyncDispatcher).

    producers (any thread) --append--> event queue --> handler thread: default action --> handlers
    control (any thread)   --put-----> mailbox ------> handler thread: mail

The handler thread alone touches handlers, batches and counters (invariant 1). How events reach it, and how none is lost
when it stops, is the event queue's subject.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from enum import Enum
from time import monotonic, perf_counter_ns, time_ns
from typing import Any, Literal

from dispatcher.config import DispatcherConfig
from dispatcher.errors import UnregisteredEventTypeError
from dispatcher.event import Handler, handling_callable
from dispatcher.event_queue import RUNNING, STOPPED, EventQueue
from dispatcher.journal.writer import JournalWriter
from dispatcher.mailbox.executor import MailboxExecutor
from dispatcher.mailbox.mail import MAX_PRIORITY, MIN_PRIORITY, Mail, MailOptions
from dispatcher.mailbox.processor import MailboxController, MailboxProcessor
from dispatcher.mailbox.task_mailbox import MailboxState, TaskMailbox
from dispatcher.multi_listener import MultiListenerHandler
from dispatcher.service import Service
from dispatcher.stats import EventClassStats, Histogram, count_by_type, snapshot

log = logging.getLogger(__name__)

OnError = Literal["continue", "stop", "exit"]
_SEVERITY: dict[OnError, int] = {"continue": 0, "stop": 1, "exit": 2}

_ABORT_GRACE_S = 0.5
"""How long stop() still waits, once the drain timeout has passed, for a handler that is about to return."""


class _Registration:
    """The handler of one event class. Replaced, never changed, while the dispatcher runs."""

    __slots__ = ("handle", "handled", "handler", "on_error")

    def __init__(self, handler: Handler, on_error: OnError, stats: EventClassStats) -> None:
        self.handler = handler
        self.handle = handling_callable(handler)
        self.on_error: OnError = on_error
        self.handled = stats.handled


class DispatcherEventHandler:
    """Where producers post. Bind `handle` once, call it often; any thread may."""

    __slots__ = ("handle",)

    def __init__(self, handle: Callable[[Any], bool]) -> None:
        self.handle = handle
        """`handle(event) -> bool`: True if the event was accepted, so that it is handled, or counted as discarded by a
        stop; False if it was refused: the queue is full, or the dispatcher drains or has stopped."""

    def __call__(self, event: Any) -> bool:
        return self.handle(event)


class AsyncDispatcher(Service):
    """Takes events from any thread and hands each to the handlers of its Enum class, on one thread, in order.

    `idle_action` is called on the handler thread whenever nothing is queued, before it waits; True means that it made
    work. `clock_ns` is the clock of the run for the journal (Unix ns); None: real time.
    """

    def __init__(
        self,
        config: DispatcherConfig | None = None,
        *,
        name: str = "AsyncDispatcher",
        queue_capacity: int | None = None,
        journal: JournalWriter | None = None,
        idle_action: Callable[[], bool] | None = None,
        clock_ns: Callable[[], int] | None = None,
        exit_action: Callable[[int], Any] = os._exit,
    ) -> None:
        super().__init__(name)
        config = config or DispatcherConfig()
        if queue_capacity is not None:
            config = DispatcherConfig.model_validate({**config.model_dump(), "queue_capacity": queue_capacity})
        self._settings = config
        self._drain_on_stop = config.drain_events_on_stop
        self._journal = journal
        self._idle_action = idle_action
        self._clock_ns = clock_ns
        self._unix_offset_ns = time_ns() - perf_counter_ns()  # real time that never runs backwards
        self._exit_action = exit_action
        # A bounded queue frees room in small steps, so that waiting producers do not stall for a whole batch.
        capacity = config.queue_capacity
        self._batch_size = min(config.batch_size, max(1, capacity // 2)) if capacity else config.batch_size

        self._measure_times = config.measure_times or journal is not None
        self._dispatch = self._dispatch_timed if self._measure_times else self._dispatch_plain
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._mailbox = TaskMailbox(self._thread)
        self._processor = MailboxProcessor(self._dispatch_batch, self._mailbox)
        self._executor = MailboxExecutor(self._mailbox, MIN_PRIORITY, self._processor)
        self._queue = EventQueue(self._mailbox, config, stamped=self._measure_times)
        self._event_handler = DispatcherEventHandler(self._queue.post)

        self._register_lock = threading.Lock()  # leaf lock: one registration at a time
        self._registrations: dict[type, _Registration] = {}  # entries are replaced; read by the handler thread
        self._drained = threading.Condition(threading.Lock())  # leaf lock
        self._drain_waiters = 0  # guarded by _drained; read without it when the queue runs empty
        self._finished = threading.Event()  # set by the handler thread as its last act

        # Mailbox thread only, read by others (invariants 1, 3 and 4). An event is counted in _taken before it leaves
        # the queue and in _done after its handler has returned, so at no moment is it in neither.
        self._taken = 0
        self._done = 0
        self._current: Any = None  # the event in the handler's hands
        self._current_since_ns = 0  # of perf_counter_ns; 0: no handler runs, or times are not measured
        self.stats: dict[str, EventClassStats] = {}  # by event class; entries are never removed
        self.queue_time = Histogram()
        self.handling_time = Histogram()

    # -- handlers ------------------------------------------------------------------------------------------------

    def register(self, event_type: type[Enum], handler: Handler, *, on_error: OnError = "continue") -> None:
        """Give all events whose type is a member of `event_type` to `handler`, on the handler thread.

        A second handler for a class makes it a MultiListenerHandler, which calls them in the order of registration; the
        strictest `on_error` of them holds. `on_error` says what follows when the handler raises: `continue` with the
        next event, `stop` the dispatcher, or `exit` the process. Any thread; best before `start`.

        Raises:
            TypeError: `event_type` is not an Enum class, or `handler` cannot be called, or is an `async def`.
            ValueError: an unknown `on_error`.
        """
        if not (isinstance(event_type, type) and issubclass(event_type, Enum)):
            raise TypeError(f"register takes an Enum class first, got {event_type!r}")
        if on_error not in _SEVERITY:
            raise ValueError(f"on_error is one of {', '.join(_SEVERITY)}, not {on_error!r}")
        handling_callable(handler)  # raises for what cannot handle
        with self._register_lock:
            self._set_registration(event_type, handler, on_error)

    def _set_registration(self, event_type: type[Enum], handler: Handler, on_error: OnError) -> None:
        """Under _register_lock: add a handler to what the class has."""
        present = self._registrations.get(event_type)
        if present is not None:
            on_error = max(on_error, present.on_error, key=_SEVERITY.__getitem__)
            handler = MultiListenerHandler(*_handlers_of(present), handler)
        self._registrations[event_type] = _Registration(handler, on_error, self._stats_of(event_type.__name__))

    def unregister(self, event_type: type[Enum], handler: Handler) -> bool:
        """Take back a registration; says whether there was one. Events of a class without handlers fail."""
        with self._register_lock:
            present = self._registrations.get(event_type)
            others = _handlers_of(present) if present is not None else []
            if present is None or handler not in others:
                return False
            others.remove(handler)
            if not others:
                del self._registrations[event_type]
            else:
                rest = others[0] if len(others) == 1 else MultiListenerHandler(*others)
                self._registrations[event_type] = _Registration(
                    rest, present.on_error, self._stats_of(event_type.__name__)
                )
            return True

    @property
    def event_handler(self) -> DispatcherEventHandler:
        """Where to post; `event_handler.handle(event) -> bool` says whether the event was accepted."""
        return self._event_handler

    @property
    def mailbox_executor(self) -> MailboxExecutor:
        """Runs callables on the handler thread, between two events."""
        return self._executor

    # -- looking at it from outside --------------------------------------------------------------------------------

    @property
    def capacity(self) -> int | None:
        """Most events in the queue; None: no bound."""
        return self._queue.capacity

    @property
    def measures_times(self) -> bool:
        """Whether each event is timed in the queue and in its handler."""
        return self._measure_times

    @property
    def mails_run(self) -> int:
        return self._processor.mails_run

    @property
    def accepted(self) -> int:
        """Events accepted so far: handled + failed + in hand + queued + discarded (invariant 4)."""
        return self.handled + self.failed + self.discarded + self.pending()

    @property
    def handled(self) -> int:
        return sum(sum(stats.handled.copy().values()) for stats in self.stats.copy().values())

    @property
    def failed(self) -> int:
        return sum(sum(stats.failed.copy().values()) for stats in self.stats.copy().values())

    @property
    def discarded(self) -> int:
        """Events accepted, and thrown away by a stop that did not wait for them."""
        return self._queue.discarded

    @property
    def rejected(self) -> dict[str, int]:
        """Events refused, by reason: full, timeout, draining, stopped."""
        return snapshot(self._queue.rejected.copy)

    def pending(self) -> int:
        """Events accepted and not finished: queued, or in the handler's hands. Exact while the thread is at rest."""
        return len(self._queue.entries) + (1 if self._current is not None else 0)

    def queue_size(self) -> int:
        """How many events wait, without the one in the handler's hands."""
        return len(self._queue.entries)

    def queue_contents(self) -> dict[Enum, int]:
        """What waits, by event type."""
        return count_by_type(self._queue.entries)

    def handler_running_s(self) -> float:
        """How long the current handler has run; 0.0 if none does, or if times are not measured."""
        since_ns = self._current_since_ns
        return (perf_counter_ns() - since_ns) / 1e9 if since_ns else 0.0

    def set_drain_events_on_stop(self, drain: bool = True) -> None:
        """Whether `stop` handles what is queued (True, the default) or discards it. Call it before `stop`."""
        self._drain_on_stop = drain

    def is_drained(self) -> bool:
        """The queue is empty and nothing is in the handler's hands: exactly so at one moment during this call.

        Where YARN-3878's flag could be wrong: `done` is read before the queue and `taken` after it; if they are equal,
        nothing was taken in between, so what the queue said holds for both.
        """
        done = self._done
        return not self._queue.entries and self._taken == done

    def await_drained(self, timeout: float | None = None) -> bool:
        """Wait until drained, up to `timeout` seconds (None: for ever), and say whether it is. Holds no other lock.

        Raises:
            RuntimeError: called by a handler, which would wait for itself.
        """
        if self._mailbox.is_mailbox_thread():
            raise RuntimeError(f"{self.name}: a handler cannot wait until its own dispatcher is drained")
        with self._drained:
            self._drain_waiters += 1  # before the look: who empties the queue after it sees us waiting
            try:
                return self._drained.wait_for(lambda: self.is_drained() or self._finished.is_set(), timeout) and (
                    self.is_drained()
                )
            finally:
                self._drain_waiters -= 1

    def is_stopped(self) -> bool:
        """No event will be handled any more, and the handler thread has ended."""
        return self._finished.is_set()

    def wait_for_service_to_stop(self, timeout: float | None = None) -> bool:
        """As in Service, and until the handler thread has ended, also when a handler made the stop."""
        deadline = None if timeout is None else monotonic() + timeout
        if not super().wait_for_service_to_stop(timeout):
            return False
        return self._finished.wait(None if deadline is None else max(0.0, deadline - monotonic()))

    # -- the default action: handler thread -----------------------------------------------------------------------

    def _dispatch_batch(self, controller: MailboxController) -> None:
        entries = self._queue.entries
        count = min(len(entries), self._batch_size)
        if not count:
            self._on_empty(controller)
            return
        popleft, dispatch, mailbox = entries.popleft, self._dispatch, self._mailbox
        self._taken += count
        left = count
        try:
            while left:
                try:
                    entry = popleft()
                except IndexError:  # a stop that gave up waiting has discarded the rest
                    break
                left -= 1
                dispatch(entry)
                if mailbox._new_mail:  # a hint, read without a lock: mail does not wait for the whole batch
                    break
        finally:
            self._current = None
            self._current_since_ns = 0
            self._done += count - left
            self._taken -= left
        if self._queue.waiting_producers:
            self._queue.room_was_made()

    def _dispatch_plain(self, event: Any) -> None:
        self._current = event
        try:
            registration = self._registrations.get(event.type.__class__)
            if registration is None:
                raise UnregisteredEventTypeError(self.name, event.type)
            registration.handle(event)
            registration.handled[event.type._name_] += 1
        except BaseException as error:
            self._on_handler_error(event, error)

    def _dispatch_timed(self, entry: Any) -> None:
        event, enqueued_ns = entry
        journal, clock_ns = self._journal, self._clock_ns
        self._current = event
        started_ns = self._current_since_ns = perf_counter_ns()
        if journal is not None:
            journal.begin(clock_ns() if clock_ns is not None else started_ns + self._unix_offset_ns)
        outcome, error = "handled", None
        try:
            registration = self._registrations.get(event.type.__class__)
            if registration is None:
                outcome = "unregistered"
                raise UnregisteredEventTypeError(self.name, event.type)
            registration.handle(event)
            registration.handled[event.type._name_] += 1
        except BaseException as raised:
            error = raised
            if outcome == "handled":
                outcome = "failed"
            self._on_handler_error(event, raised)
        finished_ns = perf_counter_ns()
        queue_ns, handling_ns = max(0, started_ns - enqueued_ns), finished_ns - started_ns
        self.queue_time.observe(queue_ns)
        self.handling_time.observe(handling_ns)
        if journal is not None:
            if clock_ns is not None:
                # Virtual time stands still while anything is queued, so all three times are the same moment.
                enqueued_at = finished_at = journal.at
            else:
                enqueued_at = journal.at - queue_ns
                finished_at = journal.at + handling_ns
            journal.event(self.name, event, enqueued_at, finished_at, queue_ns, handling_ns, outcome, error)

    def _on_empty(self, controller: MailboxController) -> None:
        """Nothing is queued: end the drain, let the idle action make work, or wait for the next post."""
        if self._drain_waiters:
            with self._drained:
                self._drained.notify_all()
        if self._mailbox.has_mail() and self._queue.phase != STOPPED:
            return
        if self._queue.phase != RUNNING:
            self._drain_the_last()
            controller.all_actions_completed()
        elif self._idle_action is None or not self._idle_action():
            if self._journal is not None:
                self._journal.flush()
            self._queue.wait_with(controller.suspend_default_action())

    def _drain_the_last(self) -> None:
        """Set STOPPED; then handle what came in before that was visible, and what the handlers post to finish."""
        self._queue.shut(drain=False)
        self._taken += 1  # before it leaves the queue
        while (entry := self._queue.take_last()) is not None:
            try:
                self._dispatch(entry)
            finally:
                self._current = None
                self._current_since_ns = 0
                self._taken += 1
                self._done += 1
        self._taken -= 1

    def _stats_of(self, event_class: str) -> EventClassStats:
        stats = self.stats.get(event_class)
        if stats is None:
            stats = self.stats[event_class] = EventClassStats(event_class)
        return stats

    def _on_handler_error(self, event: Any, error: BaseException) -> None:
        """Count, log, and do what the class's policy says (invariant 6)."""
        event_type = getattr(event, "type", None)
        stats = self._stats_of(type(event_type).__name__)
        stats.failed[getattr(event_type, "_name_", None) or str(event_type)] += 1
        log.error("%s: handling %r failed", self.name, event, exc_info=error)
        registration = self._registrations.get(type(event_type))
        on_error = registration.on_error if registration is not None else "continue"
        if on_error == "continue":
            return
        self.note_failure(error)
        if on_error == "exit" and not sys.is_finalizing():
            log.critical("%s: exiting the process, as registered for this event class", self.name)
            # On a thread of its own: exit hooks may stop this dispatcher, which waits for this very handler.
            threading.Thread(target=self._exit_action, args=(-1,), name=f"{self.name}-exit", daemon=True).start()
        self.stop()

    # -- life (service hooks) --------------------------------------------------------------------------------------

    def service_start(self) -> None:
        self._thread.start()

    def service_stop(self) -> None:
        """Drain within the timeout, then end the thread; discard and report what is left (invariants 7 and 10)."""
        never_ran = self._thread.ident is None
        self._queue.shut(drain=self._drain_on_stop and not never_ran)
        if self._queue.phase == STOPPED:
            self._discard_queued()
        if never_ran:
            self._end()
            return
        if self._mailbox.is_mailbox_thread():
            return  # the loop ends once this handler has returned; we cannot wait for ourselves
        self._nudge()
        if not self._finished.wait(self._settings.drain_timeout_s):
            self._abort()

    def _nudge(self) -> None:
        """Make the loop look at the phase: its thread may wait, or be in a long batch."""
        self._queue.wake()

        def put() -> None:
            if self._mailbox.state is MailboxState.OPEN:
                self._mailbox.put(Mail(_do_nothing, MAX_PRIORITY, "stop %s", self.name, options=MailOptions.URGENT))

        self._mailbox.run_exclusively(put)

    def _abort(self) -> None:
        """The drain timeout has passed: discard the queue, and leave a handler that hangs behind, saying where."""
        self._queue.shut(drain=False)
        self._discard_queued()
        self._nudge()
        if self._finished.wait(_ABORT_GRACE_S):
            return
        frame = sys._current_frames().get(self._thread.ident or 0)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else "(its thread is gone)"
        log.error(
            "%s: stop gave up after %g s: a handler is still at work on %r. It hangs here:\n%s",
            self.name,
            self._settings.drain_timeout_s,
            self._current,
            stack.rstrip(),
        )

    def _discard_queued(self) -> None:
        left = self._queue.discard()
        if left:
            contents = ", ".join(f"{count} {kind}" for kind, count in Counter(map(_kind, left)).most_common())
            log.warning("%s: stop discarded %d queued events: %s", self.name, len(left), contents)

    def _run(self) -> None:
        """The handler thread."""
        try:
            self._processor.run_mailbox_loop()
        except BaseException as error:
            self.note_failure(error)
            log.critical("%s: the handler thread failed and ends", self.name, exc_info=error)
        finally:
            self._queue.end()
            self._discard_queued()
            self._end()
            self.stop()  # does nothing after a stop; after a failure it makes the service STOPPED and tells listeners

    def _end(self) -> None:
        """The last act of the handler thread, or of a stop that found it never started."""
        if self._journal is not None:
            try:
                self._journal.close()
            except Exception as error:
                self.note_failure(error)
                log.critical("%s: the journal could not be closed", self.name, exc_info=error)
        self._processor.close()
        self._finished.set()
        with self._drained:
            self._drained.notify_all()


def _do_nothing() -> None:
    """The run of a mail that is there to be noticed."""


def _handlers_of(registration: _Registration) -> list[Handler]:
    handler = registration.handler
    return list(handler.handlers) if isinstance(handler, MultiListenerHandler) else [handler]


def _kind(event: Any) -> str:
    """Readable event type, also of things that are no proper events."""
    event_type = getattr(event, "type", event)
    return f"{type(event_type).__name__}.{getattr(event_type, 'name', event_type)}"
