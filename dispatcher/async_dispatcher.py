"""The central dispatcher: a mailbox processor whose default action dispatches events (after Hadoop's AsyncDispatcher).

    producers (any thread) --append--> event queue --> handler thread: default action --> handlers
    control (any thread)   --put-----> mailbox ------> handler thread: mail

The handler thread alone touches handlers, batches and counters (invariant 1). How events reach it, and how none is lost
when it stops, is the event queue's subject; how they are handed to the handlers is that of the batch dispatching.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from enum import Enum
from time import monotonic
from typing import Any

from dispatcher.config import DispatcherConfig
from dispatcher.dispatching.batches import BatchDispatching
from dispatcher.dispatching.draining import Drain
from dispatcher.dispatching.error_policy import ErrorPolicy
from dispatcher.dispatching.progress import Progress
from dispatcher.errors import ForkedProcessError, JournalError, MailboxStateError
from dispatcher.event import DispatcherEventHandler, Handler
from dispatcher.journal.format.event_codec import EventCodec
from dispatcher.journal.writer import JournalWriter
from dispatcher.mailbox.executor import MailboxExecutor
from dispatcher.mailbox.mail import MAX_PRIORITY, MIN_PRIORITY, Mail, MailOptions
from dispatcher.mailbox.processor import MailboxProcessor
from dispatcher.mailbox.task_mailbox import MailboxState, TaskMailbox
from dispatcher.mailbox.timers import ProcessingTimeService
from dispatcher.monitor import HandlerWatch, QueueSizeLog, describe_stack, look_every_ms, shared_time_service
from dispatcher.queue.coalescing import KeyOf
from dispatcher.queue.posting import EventQueue
from dispatcher.queue.state import ABANDONED, DRAINING, FORKED
from dispatcher.queue.write_ahead import WriteAhead
from dispatcher.routes import OnError, RoutingTable
from dispatcher.service import Service
from dispatcher.signals import run_until_signal
from dispatcher.stats import DispatcherStats, stat, take_stats
from dispatcher.util.histogram import Histogram

log = logging.getLogger(__name__)

_ABORT_GRACE_S = 0.5
"""How long stop() still waits, once the drain timeout has passed, for a handler that is about to return."""


class AsyncDispatcher(Service):
    """Takes events from any thread and hands each to the handlers of its Enum class, on one thread, in order.

    `idle_action` is called on the handler thread whenever nothing is queued, before it waits; True means that it made
    work. `clock_ns` is the clock of the run for the journal (Unix ns); None: real time. `exit_action` is what ends the
    process for `on_error="exit"`. `time_service` looks after handlers that take long; None: one that all dispatchers of
    the process share.
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
        time_service: ProcessingTimeService | None = None,
    ) -> None:
        super().__init__(name)
        config = config or DispatcherConfig()
        if queue_capacity is not None:
            config = DispatcherConfig.model_validate({**config.model_dump(), "queue_capacity": queue_capacity})
        self._settings = config  # never changes, as all below that does not say more
        self._drain_on_stop = config.drain_events_on_stop  # any thread writes, the thread that stops reads
        self._drain_timeout_s = config.drain_timeout_s  # set by a group before it stops this; the stopping thread reads
        self._time_service = time_service
        self._siblings: tuple[AsyncDispatcher, ...] = (self,)  # set before the start; see is_inside
        self._checking: Future[None] | None = None  # set by the start, read by the end of the handler thread
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._mailbox = mailbox = TaskMailbox(self._thread)
        self.journal = journal
        """What the dispatcher writes its events to; None: nothing."""
        self.progress = Progress()
        """How far the handler thread has got."""
        self._codec = codec = EventCodec(name)
        writes_ahead = journal is not None and journal.config.write_ahead
        self._write_ahead = WriteAhead(name, journal, codec) if journal is not None and writes_ahead else None
        self._size_log = QueueSizeLog(name, config, self.queue_contents, self.progress.event)
        self.queue = queue = EventQueue(
            name,
            mailbox,
            config,
            times="all" if journal is not None else config.measure_times,
            is_inside=self.is_inside,
            on_size=self._size_log,
            write_ahead=self._write_ahead,
        )
        """The way of the events to the handler thread."""
        if journal is not None:
            # Virtual time stands still while anything is queued, so an event's times are all the same moment.
            journal.attach(virtual=clock_ns is not None, on_failure=self._on_journal_failure, on_flush_due=queue.wake)
        self._routes = routes = RoutingTable(name, self._default_handler())
        self._drain = Drain(queue, self.progress)
        self._dispatching = BatchDispatching(
            name,
            queue,
            mailbox,
            routes,
            config,
            progress=self.progress,
            drain=self._drain,
            errors=ErrorPolicy(self, routes, exit_action),
            size_log=self._size_log,
            journal=journal,
            clock_ns=clock_ns,
            idle_action=idle_action,
        )
        self._processor = MailboxProcessor(self._dispatching, mailbox)
        self._executor = MailboxExecutor(mailbox, MIN_PRIORITY, self._processor)
        self._event_handler = DispatcherEventHandler(queue.post)
        warn_after_s = config.handler_warn_after_s
        self._watch = (
            HandlerWatch(name, warn_after_s, self.progress, self._describe_handler, self._break_batch)
            if warn_after_s is not None
            else None
        )

    # -- handlers ------------------------------------------------------------------------------------------------

    def register(
        self,
        event_type: type[Enum],
        handler: Handler,
        *,
        on_error: OnError = "continue",
        coalesce_by: KeyOf | None = None,
        events: type | Iterable[type] = (),
    ) -> None:
        """Give all events whose type is a member of `event_type` to `handler`, on the handler thread.

        A second handler for a class makes it a MultiListenerHandler, which calls them in the order of registration; the
        strictest `on_error` of them holds. `on_error` says what follows when the handler raises: `continue` with the
        next event, `stop` the dispatcher, or `exit` the process.

        `coalesce_by(event)` gives a key, on the producer's thread: while an event of the class with that key is queued,
        a newer one takes its place, and the older one is counted as superseded. None: this event stands for itself.

        `events` declares what the class's events are: pydantic models or dataclasses, which a journal in write-ahead
        mode keeps as JSON. There, an event of another class is not accepted (EventNotDeclaredError).

        Any thread; best before `start`. Afterwards it holds from the next event that is handled, or, for coalescing,
        posted; for a handler that also yields to mail, from the next batch.

        Raises:
            TypeError: `event_type` is not an Enum class, `handler` or `coalesce_by` cannot be called, or `handler` is
                an `async def`; or `events` has something that is neither a pydantic model nor a dataclass.
            ValueError: an unknown `on_error`; or two classes of one name are declared.
        """
        classes = (events,) if isinstance(events, type) else tuple(events)
        if coalesce_by is not None and not callable(coalesce_by):
            raise TypeError(f"coalesce_by is called with an event and returns its key; {coalesce_by!r} is not callable")
        self._routes.register(event_type, handler, on_error)
        if classes:
            self._codec.declare(event_type, classes)
        if coalesce_by is not None:
            self.queue.coalescing.supersede_by(event_type, coalesce_by)
        self._break_batch()

    def unregister(self, event_type: type[Enum], handler: Handler) -> bool:
        """Take back a registration; says whether there was one. Events of a class without handlers fail."""
        was_registered = self._routes.unregister(event_type, handler)
        self._break_batch()
        return was_registered

    @property
    def event_handler(self) -> DispatcherEventHandler:
        """Where to post; `event_handler.handle(event) -> bool` says whether the event was accepted."""
        return self._event_handler

    def post_without_waiting(self, event: Any) -> bool:
        """As `event_handler.handle`, for threads that must not wait.

        Raises:
            QueueFullError: under the policy `block`, the queue is full; the event was not accepted.
        """
        return self.queue.post_without_waiting(event)

    @property
    def mailbox_executor(self) -> MailboxExecutor:
        """Runs callables on the handler thread, between two events.

        Raises:
            ForkedProcessError: the handler thread is in the parent process.
        """
        self._check_not_forked()
        return self._executor

    def is_redelivering(self) -> bool:
        """On the handler thread: whether the event in its hands was accepted before a crash or a stop, and is handed to
        its handlers again, or perhaps again. Such an event has `redelivered = True`, too, if it can have attributes."""
        return 0 < self.progress.accepted_seq() <= self.progress.redelivered_upto

    # -- draining ----------------------------------------------------------------------------------------------------

    def has_work(self) -> bool:
        """Whether an event or a mail waits. For an idle action, which asks whether it is done; cheap."""
        return bool(self.queue.entries) or self._mailbox.new_mail

    def is_handler_thread(self) -> bool:
        """Whether the caller is on the handler thread."""
        return self._mailbox.is_mailbox_thread()

    def set_drain_events_on_stop(self, drain: bool = True) -> None:
        """Whether `stop` handles what is queued (True, the default) or discards it. Call it before `stop`."""
        self._drain_on_stop = drain

    def await_drained(self, timeout: float | None = None) -> bool:
        """Wait until drained, up to `timeout` seconds (None: for ever), and say whether it is. Holds no other lock.

        Raises:
            RuntimeError: called by a handler, which would wait for itself.
            ForkedProcessError: the handler thread is in the parent process.
        """
        if self._mailbox.is_mailbox_thread():
            raise RuntimeError(f"{self.name}: a handler cannot wait until its own dispatcher is drained")
        drained = self.when_drained()
        try:
            return drained.result(timeout)
        except FutureTimeoutError:
            return False
        finally:
            drained.cancel()

    def when_drained(self) -> Future[bool]:
        """A future that is True once drained; False if the dispatcher has ended without. Any thread; does not block.

        Raises:
            ForkedProcessError: the handler thread is in the parent process.
        """
        self._check_not_forked()
        return self._drain.future()

    def run_until_signal(self) -> int:
        """Start, and run until SIGINT, SIGTERM or a stop; returns an exit code. See `dispatcher.run_until_signal`."""
        return run_until_signal(self)

    def is_stopped(self) -> bool:
        """No event will be handled any more, and the handler thread has ended."""
        return self._drain.finished.is_set()

    def wait_for_service_to_stop(self, timeout: float | None = None) -> bool:
        """As in Service, and until the handler thread has ended, also when a handler made the stop."""
        deadline = None if timeout is None else monotonic() + timeout
        if not super().wait_for_service_to_stop(timeout):
            return False
        return self._drain.finished.wait(None if deadline is None else max(0.0, deadline - monotonic()))

    # -- what can be seen: any thread ----------------------------------------------------------------------------------

    def stats(self) -> DispatcherStats:
        """All that is counted, at this moment."""
        return take_stats(
            self.queue,
            self._dispatching,
            self._routes,
            self._processor,
            self.journal,
            is_failed=self.failure_cause is not None,
        )

    capacity = stat(lambda stats: stats.capacity)
    accepted = stat(lambda stats: stats.accepted)
    handled = stat(lambda stats: stats.handled)
    failed = stat(lambda stats: stats.failed)
    discarded = stat(lambda stats: stats.discarded)
    discarded_by_reason = stat(lambda stats: stats.discarded_by_reason)
    rejected = stat(lambda stats: stats.rejected)
    mails_run = stat(lambda stats: stats.mails_run)

    @property
    def measures_times(self) -> bool:
        """Whether any events are timed in the queue and in their handlers."""
        return self._dispatching.times.measures

    @property
    def queue_time(self) -> Histogram:
        """Time in the queue, of those events that were timed there."""
        return self._dispatching.times.queue_time

    @property
    def handling_time(self) -> Histogram:
        """Time in the handlers, of all events; in a flood of quick ones, the mean of each batch."""
        return self._dispatching.times.handling_time

    def handled_by_type(self) -> dict[tuple[str, str], int]:
        """Events handled, by the names of event class and event type."""
        return self.stats().handled_by_type

    def failed_by_type(self) -> dict[tuple[str, str], int]:
        """Events that failed, by the names of event class and event type."""
        return self.stats().failed_by_type

    def handler_running_s(self) -> float:
        """How long the current handler has run, in a flood: the current batch; 0.0 if none does."""
        return self.stats().handler_running_s

    def idle_s(self) -> float:
        """For how long the handler thread has had nothing to do."""
        return self.stats().idle_s

    def pending(self) -> int:
        """Events accepted and not finished: queued, or in the handler's hands. Exact while the thread is at rest."""
        stats = self.stats()
        return stats.in_hand + stats.queue_size

    def queue_size(self) -> int:
        """How many events wait, without the one in the handler's hands."""
        return len(self.queue.entries)

    def queue_contents(self) -> dict[Enum, int]:
        """What waits, by event type."""
        return self.queue.state.contents()

    def is_drained(self) -> bool:
        """The queue is empty and nothing is in the handler's hands: exactly so at one moment during this call."""
        return self._drain.is_drained()

    # -- groups of dispatchers -----------------------------------------------------------------------------------------

    def drain_with(self, siblings: tuple[AsyncDispatcher, ...]) -> None:
        """Before the start: handlers of `siblings`, of which this is one, count as its own."""
        self._siblings = siblings

    def is_inside(self) -> bool:
        """Whether the caller is a handler of this dispatcher, or of one that drains together with it."""
        return any(sibling.is_handler_thread() for sibling in self._siblings)

    def set_drain_timeout_s(self, timeout_s: float) -> None:
        """How long `stop` waits for handlers. Call it before `stop`."""
        self._drain_timeout_s = timeout_s

    def begin_joint_drain(self) -> None:
        """Refuse posts from outside, but do not end once drained: handlers of the siblings may post yet."""
        self.queue.shutdown.shut(DRAINING, lingers=True)
        self._nudge()

    # -- handler thread -------------------------------------------------------------------------------------------

    def _default_handler(self) -> Handler | None:
        """What handles classes that nobody registered. A hook for subclasses, called once, by the constructor."""
        return None

    def _run(self) -> None:
        """The handler thread."""
        try:
            self._processor.run_mailbox_loop()
        except BaseException as error:
            self.note_failure(error)
            log.critical("%s: the handler thread failed and ends", self.name, exc_info=error)
            self.queue.shutdown.end()
            self._discard_queued()
        finally:
            self.queue.shutdown.end()
            self._end()
            self.stop()  # does nothing after a stop; after a failure it makes the service STOPPED and tells listeners

    def _end(self) -> None:
        """The last act of the handler thread, or of a stop that found it never started."""
        if self._checking is not None:
            self._checking.cancel()
        closing = {"the mailbox": self._processor.close}
        if self.journal is not None:
            closing = {"the journal": self.journal.close, **closing}
        for what, close in closing.items():
            try:
                close()
            except BaseException as error:  # e.g. of the cancel of a mail that was left behind
                self.note_failure(error)
                log.critical("%s: %s could not be closed", self.name, what, exc_info=error)
        self._processor.metrics_controller.stop_latency_measurement()
        self._drain.finish()

    def _on_journal_failure(self, error: JournalError) -> None:
        """On the thread that found out: unless the policy is to go on, end the handler thread by it."""
        if self.journal is None or self.journal.config.failure_policy == "continue":
            return

        def fail() -> None:
            raise error

        with contextlib.suppress(MailboxStateError):  # it has ended
            self._mailbox.put(Mail(fail, MAX_PRIORITY, "the journal failed", options=MailOptions.URGENT))

    # -- life (service hooks) --------------------------------------------------------------------------------------

    def service_start(self) -> None:
        if self._write_ahead is not None:
            recovered = self._write_ahead.take_recovered()
            if recovered:
                self.progress.redelivered_upto = recovered[-1][0]
                self.queue.put_first(recovered)
        time_service = self._time_service or shared_time_service()
        if self._dispatching.times.measures:
            metrics = self._processor.metrics_controller
            metrics.set_up_latency_measurement(time_service, self._executor)
            self._executor.execute(_do_nothing, "the first mail, which starts the latency measurement")
        every_ms = look_every_ms(self._settings)
        self._checking = time_service.schedule_with_fixed_delay(lambda _: self._check(), every_ms, every_ms)
        self._thread.start()

    def service_stop(self) -> None:
        """Drain within the timeout, then end the thread; discard and report what is left (invariants 7 and 10)."""
        if self.queue.phase == FORKED:
            return
        never_ran = self._thread.ident is None
        if self._drain_on_stop and not never_ran:
            self.queue.shutdown.shut(DRAINING)
        else:
            self.queue.shutdown.shut(ABANDONED)
            self._discard_queued()
        if never_ran:
            self._end()
            return
        if self._mailbox.is_mailbox_thread():
            return  # the loop ends once this handler has returned; we cannot wait for ourselves
        self._nudge()
        started = monotonic()
        finished = False
        try:
            finished = self._drain.finished.wait(self._drain_timeout_s)
        finally:  # after a KeyboardInterrupt, too: the waiter gave up
            if not finished:
                self._abort(started)

    def _nudge(self) -> None:
        """Make the loop look at the phase: its thread may wait, or be in a long batch."""
        self.queue.wake()
        self._break_batch()

    def _break_batch(self) -> None:
        """Have the batch that is being dispatched end after the current event."""

        def put() -> None:
            if self._mailbox.state is MailboxState.OPEN:
                self._mailbox.put(Mail(_do_nothing, MAX_PRIORITY, "end the batch", options=MailOptions.URGENT))

        if self.progress.since_ns:
            self._mailbox.run_exclusively(put)

    def _abort(self, started: float) -> None:
        """No more waiting for a drain: discard the queue, and leave a handler that hangs behind, saying where."""
        self.queue.shutdown.shut(ABANDONED)
        self._discard_queued()
        self._nudge()
        if not self._drain.finished.wait(_ABORT_GRACE_S):
            log.error(
                "%s: stop gave up after %.3g s: a handler is still %s",
                self.name,
                monotonic() - started,
                self._describe_handler(),
            )

    def _discard_queued(self) -> None:
        left = self.queue.shutdown.discard()
        if left:
            contents = ", ".join(f"{count} {kind}" for kind, count in Counter(map(_kind, left)).most_common())
            log.warning("%s: stop discarded %d queued events: %s", self.name, len(left), contents)

    def _check(self) -> None:
        """On the timers' thread: what neither producers nor a handler that hangs would report."""
        if self.queue.entries:  # a KeyboardInterrupt may cut a post short before it wakes the handler thread
            self.queue.wake()
        self._size_log(self.queue_size(), self.queue.room.remaining())
        if self._watch is not None:
            self._watch.check()

    def _describe_handler(self) -> str:
        return describe_stack(self._thread, self.progress.event())

    def _check_not_forked(self) -> None:
        if self.queue.phase == FORKED:
            raise ForkedProcessError(self.name)

    def _after_fork(self) -> None:
        """In a child process: one that was started has no handler thread here, and is of no use."""
        super()._after_fork()
        if self._thread.ident is None:
            return
        self._drain.after_fork()
        self.queue.shutdown.after_fork()
        self._mailbox.after_fork()


def _do_nothing() -> None:
    """The run of a mail that is there to be noticed."""


def _kind(event: Any) -> str:
    """Readable event type, also of things that are no proper events."""
    event_type = getattr(event, "type", event)
    return f"{type(event_type).__name__}.{getattr(event_type, 'name', event_type)}"
