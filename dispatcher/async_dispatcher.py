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
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from enum import Enum
from time import monotonic
from typing import Any

from dispatcher.config import DispatcherConfig
from dispatcher.dispatcher_view import DispatcherView
from dispatcher.dispatching import BatchDispatching, frame_of
from dispatcher.errors import EventNotDeclaredError, ForkedProcessError, JournalError, MailboxStateError
from dispatcher.event import Handler
from dispatcher.journal.format.event_codec import EventCodec
from dispatcher.journal.writer import NOT_LOGGED, JournalWriter
from dispatcher.mailbox.executor import MailboxExecutor
from dispatcher.mailbox.mail import MAX_PRIORITY, MIN_PRIORITY, Mail, MailOptions
from dispatcher.mailbox.processor import MailboxController, MailboxProcessor
from dispatcher.mailbox.task_mailbox import MailboxState, TaskMailbox
from dispatcher.mailbox.timers import ProcessingTimeService
from dispatcher.monitor import HandlerWatch, QueueSizeLog, describe_stack, look_every_ms, shared_time_service
from dispatcher.queue.event_queue import ABANDONED, DRAINING, FORKED, STOPPED, EventQueue, KeyOf
from dispatcher.routes import OnError, Route, RoutingTable
from dispatcher.signals import run_until_signal

log = logging.getLogger(__name__)

_ABORT_GRACE_S = 0.5
"""How long stop() still waits, once the drain timeout has passed, for a handler that is about to return."""


class DispatcherEventHandler:
    """Where producers post. Bind `handle` once, call it often; any thread may."""

    __slots__ = ("handle",)

    def __init__(self, handle: Callable[[Any], bool]) -> None:
        self.handle = handle
        """`handle(event) -> bool`: True if the event was accepted, so that it is handled, or counted as discarded;
        False if it was refused: the queue is full, or the dispatcher drains or has stopped."""

    def __call__(self, event: Any) -> bool:
        return self.handle(event)


class AsyncDispatcher(DispatcherView):
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
        self._settings = config
        self._drain_on_stop = config.drain_events_on_stop
        self._drain_timeout_s = config.drain_timeout_s
        self._journal = journal
        self._idle_action = idle_action
        self._exit_action = exit_action
        self._time_service = time_service
        times = "all" if journal is not None else config.measure_times
        self._codec = EventCodec(name)
        self._writes_ahead = journal is not None and journal.config.write_ahead
        if journal is not None:
            # Virtual time stands still while anything is queued, so an event's times are all the same moment.
            journal.attach(
                virtual=clock_ns is not None,
                on_failure=self._on_journal_failure,
                on_flush_due=lambda: self._queue.wake(),
            )

        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._mailbox = TaskMailbox(self._thread)
        self._size_log = size_log = QueueSizeLog(name, config, self.queue_contents, self._in_hand)
        self._queue = EventQueue(
            name,
            self._mailbox,
            config,
            times=times,
            is_inside=self._is_inside,
            on_size=size_log,
            accept=self._write_ahead if self._writes_ahead else None,
            settle=journal.settle if journal is not None else lambda _: None,
        )
        self._routes = RoutingTable(name, self._default_handler())
        self._dispatching = BatchDispatching(
            name,
            self._queue,
            self._mailbox,
            self._routes,
            config,
            times=times,
            journal=journal,
            clock_ns=clock_ns,
            on_empty=self._on_empty,
            on_error=self._on_handler_error,
            on_size=size_log,
        )
        self._processor = MailboxProcessor(self._dispatching, self._mailbox)
        self._executor = MailboxExecutor(self._mailbox, MIN_PRIORITY, self._processor)
        self._event_handler = DispatcherEventHandler(self._queue.post)
        self._watch = (
            HandlerWatch(
                name,
                config.handler_warn_after_s,
                lambda: self._dispatching.since_ns,
                self._describe_handler,
                self._break_batch,
            )
            if config.handler_warn_after_s is not None
            else None
        )
        self._looking: Future[None] | None = None  # set by the start
        self._siblings: tuple[AsyncDispatcher, ...] = (self,)  # set before the start; see _is_inside
        self._drained_lock = threading.Lock()  # leaf lock
        # Guarded by _drained_lock; looked at without by the handler thread.
        self._drain_waiters: list[Future[bool]] = []
        self._finished = threading.Event()  # set by the handler thread as its last act

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
            self._queue.supersede_by(event_type, coalesce_by)
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
        return self._queue.post_without_waiting(event)

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
        return 0 < self._dispatching.in_hand_seq <= self._dispatching.redelivered_upto

    # -- draining ----------------------------------------------------------------------------------------------------

    def has_work(self) -> bool:
        """Whether an event or a mail waits. For an idle action, which asks whether it is done; cheap."""
        return bool(self._queue.entries) or self._mailbox._new_mail

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
        drained: Future[bool] = Future()
        with self._drained_lock:
            # Forget those who gave up waiting: the queue may not run empty for long.
            self._drain_waiters = [waiter for waiter in self._drain_waiters if not waiter.cancelled()]
            self._drain_waiters.append(drained)  # before the look: who empties the queue after it sees us waiting
        self._tell_drained()
        return drained

    def run_until_signal(self) -> int:
        """Start, and run until SIGINT, SIGTERM or a stop; returns an exit code. See `dispatcher.run_until_signal`."""
        return run_until_signal(self)

    def is_stopped(self) -> bool:
        """No event will be handled any more, and the handler thread has ended."""
        return self._finished.is_set()

    def wait_for_service_to_stop(self, timeout: float | None = None) -> bool:
        """As in Service, and until the handler thread has ended, also when a handler made the stop."""
        deadline = None if timeout is None else monotonic() + timeout
        if not super().wait_for_service_to_stop(timeout):
            return False
        return self._finished.wait(None if deadline is None else max(0.0, deadline - monotonic()))

    # -- handler thread -------------------------------------------------------------------------------------------

    def _default_handler(self) -> Handler | None:
        """What handles classes that nobody registered. A hook for subclasses, called once, by the constructor."""
        return None

    def _on_empty(self, controller: MailboxController) -> bool:
        """Nothing is queued: end the drain, or let the idle action make work; True: wait for the next post."""
        if self._drain_waiters:
            self._tell_drained()
        queue = self._queue
        if queue.phase < STOPPED and self._mailbox.has_mail():
            return False
        if queue.is_ending():
            queue.shut(STOPPED)
            self._dispatching.dispatch_last()
            controller.all_actions_completed()
            return False
        if self._idle_action is not None and self._idle_action():
            return False
        if self._journal is not None:
            self._journal.idle()
        return True

    def _tell_drained(self) -> None:
        """Tell who waits, unless a post has come meanwhile: then the handler thread comes here again."""
        with self._drained_lock:
            # Looked at once all of them are known: one may have posted before it began to wait.
            finished, drained = self._finished.is_set(), self.is_drained()
            if not (drained or finished):
                return
            waiters, self._drain_waiters = self._drain_waiters, []
        for waiter in waiters:
            if waiter.set_running_or_notify_cancel():
                waiter.set_result(drained)

    def _on_handler_error(self, event: Any, error: BaseException, route: Route) -> None:
        """Log, and do what the class's policy says (invariant 6)."""
        log.error("%s: handling %r failed", self.name, event, exc_info=error)
        if route.on_error == "continue":
            return
        self.note_failure(error)
        if route.on_error == "exit" and not sys.is_finalizing():
            log.critical("%s: exiting the process, as registered for this event class", self.name)
            # On a thread of its own: exit hooks may stop this dispatcher, which waits for this very handler.
            threading.Thread(target=self._exit_action, args=(-1,), name=f"{self.name}-exit", daemon=True).start()
        self.stop()

    def _run(self) -> None:
        """The handler thread."""
        try:
            self._processor.run_mailbox_loop()
        except BaseException as error:
            self.note_failure(error)
            log.critical("%s: the handler thread failed and ends", self.name, exc_info=error)
            self._queue.end()
            self._discard_queued()
        finally:
            self._queue.end()
            self._end()
            self.stop()  # does nothing after a stop; after a failure it makes the service STOPPED and tells listeners

    def _end(self) -> None:
        """The last act of the handler thread, or of a stop that found it never started."""
        if self._looking is not None:
            self._looking.cancel()
        closing = {"the mailbox": self._processor.close}
        if self._journal is not None:
            closing = {"the journal": self._journal.close, **closing}
        for what, close in closing.items():
            try:
                close()
            except BaseException as error:  # e.g. of the cancel of a mail that was left behind
                self.note_failure(error)
                log.critical("%s: %s could not be closed", self.name, what, exc_info=error)
        self._processor.metrics_controller.stop_latency_measurement()
        self._finished.set()
        self._tell_drained()

    # -- the journal ---------------------------------------------------------------------------------------------------

    def _write_ahead(self, event: Any) -> int:
        """Put a posted event in the log, on its producer's thread, which may wait for the disk; 0: refused."""
        journal = self._journal
        assert journal is not None
        try:
            line = self._codec.encode(event)
        except AttributeError as error:  # it has no type
            raise EventNotDeclaredError(self.name, event) from error
        try:
            return journal.append_accepted(line)
        except JournalError:
            # A journal that has failed has said so; if the dispatcher goes on without it, so do its producers.
            return NOT_LOGGED if journal.is_failed and journal.config.failure_policy == "continue" else 0

    def _redeliver(self) -> None:
        """Before the start: queue what the journal's earlier writer accepted and did not see handled.

        Raises:
            JournalError: the class of one was not declared, or has changed.
        """
        if self._journal is None or not self._journal.recovered:
            return
        recovered = [(accepted.seq, self._codec.decode(accepted.line)) for accepted in self._journal.recovered]
        for _, event in recovered:
            with contextlib.suppress(AttributeError, TypeError, ValueError):  # one with slots has no room for it
                object.__setattr__(event, "redelivered", True)
        self._dispatching.redelivered_upto = recovered[-1][0]
        self._queue.put_first(recovered)
        self._journal.forget_recovered()
        log.warning("%s: %d accepted events of an earlier run are handled first", self.name, len(recovered))

    def _on_journal_failure(self, error: JournalError) -> None:
        """On the thread that found out: unless the policy is to go on, end the handler thread by it."""
        if self._journal is None or self._journal.config.failure_policy == "continue":
            return

        def fail() -> None:
            raise error

        with contextlib.suppress(MailboxStateError):  # it has ended
            self._mailbox.put(Mail(fail, MAX_PRIORITY, "the journal failed", options=MailOptions.URGENT))

    # -- life (service hooks) --------------------------------------------------------------------------------------

    def service_start(self) -> None:
        self._redeliver()
        time_service = self._time_service or shared_time_service()
        if self.measures_times:
            metrics = self._processor.metrics_controller
            metrics.set_up_latency_measurement(time_service, self._executor)
            self._executor.execute(_do_nothing, "the first mail, which starts the latency measurement")
        every_ms = look_every_ms(self._settings)
        self._looking = time_service.schedule_with_fixed_delay(lambda _: self._look(), every_ms, every_ms)
        self._thread.start()

    def service_stop(self) -> None:
        """Drain within the timeout, then end the thread; discard and report what is left (invariants 7 and 10)."""
        if self._queue.phase == FORKED:
            return
        never_ran = self._thread.ident is None
        if self._drain_on_stop and not never_ran:
            self._queue.shut(DRAINING)
        else:
            self._queue.shut(ABANDONED)
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
            finished = self._finished.wait(self._drain_timeout_s)
        finally:  # also of a KeyboardInterrupt: who waits has no patience left
            if not finished:
                self._abort(started)

    def _begin_joint_drain(self) -> None:
        """Refuse posts from outside, but do not end once drained: handlers of the siblings may post yet."""
        self._queue.shut(DRAINING, lingers=True)
        self._nudge()

    def _nudge(self) -> None:
        """Make the loop look at the phase: its thread may wait, or be in a long batch."""
        self._queue.wake()
        self._break_batch()

    def _break_batch(self) -> None:
        """Have the batch that is being dispatched end after the current event."""

        def put() -> None:
            if self._mailbox.state is MailboxState.OPEN:
                self._mailbox.put(Mail(_do_nothing, MAX_PRIORITY, "end the batch", options=MailOptions.URGENT))

        if self._dispatching.since_ns:
            self._mailbox.run_exclusively(put)

    def _abort(self, started: float) -> None:
        """No more waiting for a drain: discard the queue, and leave a handler that hangs behind, saying where."""
        self._queue.shut(ABANDONED)
        self._discard_queued()
        self._nudge()
        if not self._finished.wait(_ABORT_GRACE_S):
            log.error(
                "%s: stop gave up after %.3g s: a handler is still %s",
                self.name,
                monotonic() - started,
                self._describe_handler(),
            )

    def _discard_queued(self) -> None:
        left = self._queue.discard()
        if left:
            contents = ", ".join(f"{count} {kind}" for kind, count in Counter(map(_kind, left)).most_common())
            log.warning("%s: stop discarded %d queued events: %s", self.name, len(left), contents)

    def _look(self) -> None:
        """On the timers' thread: what neither producers nor a handler that hangs would tell."""
        if self._queue.entries:  # a KeyboardInterrupt may cut a post short before it wakes the handler thread
            self._queue.wake()
        self._size_log(self.queue_size(), self._queue.remaining())
        if self._watch is not None:
            self._watch.look()

    def _describe_handler(self) -> str:
        frame = frame_of(self._thread.ident)
        return describe_stack(frame, self._dispatching.in_hand(frame))

    def _is_inside(self) -> bool:
        """Whether the caller is a handler of this dispatcher, or of one that drains together with it."""
        return any(sibling._mailbox.is_mailbox_thread() for sibling in self._siblings)

    def _check_not_forked(self) -> None:
        if self._queue.phase == FORKED:
            raise ForkedProcessError(self.name)

    def _after_fork(self) -> None:
        """In a child process: one that was started has no handler thread here, and is of no use."""
        super()._after_fork()
        if self._thread.ident is None:
            return
        self._finished = threading.Event()
        self._finished.set()
        self._drained_lock = threading.Lock()
        self._queue.after_fork()
        self._mailbox.after_fork()


def _do_nothing() -> None:
    """The run of a mail that is there to be noticed."""


def _kind(event: Any) -> str:
    """Readable event type, also of things that are no proper events."""
    event_type = getattr(event, "type", event)
    return f"{type(event_type).__name__}.{getattr(event_type, 'name', event_type)}"
