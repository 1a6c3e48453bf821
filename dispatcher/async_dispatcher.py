"""The central dispatcher: a mailbox processor whose default action dispatches events (after Hadoop's AsyncDispatcher).

    producers (any thread) --append--> event queue --> handler thread: default action --> handlers
    control (any thread)   --put-----> mailbox ------> handler thread: mail

Only the handler thread touches handlers, batches and counters (invariant 1). `dispatcher.queue` brings events to that
thread and loses none when it stops; `dispatcher.dispatching` hands them to the handlers. The invariants, here and in
other modules, are numbered and explained in docs/explanation/invariants.md.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextvars import ContextVar
from enum import Enum
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from dispatcher.dispatching.batches import BatchDispatching
from dispatcher.dispatching.coroutines import Coroutines
from dispatcher.dispatching.deliveries import AskRules
from dispatcher.dispatching.error_policy import ErrorPolicy
from dispatcher.dispatching.lanes import handling_of_context
from dispatcher.dispatching.monitor import Monitor, QueueSizeLog, current_run, describe_run, shared_time_service
from dispatcher.dispatching.stopping import GRACE_S, Drain, StopWait, check_may_wait
from dispatcher.dispatching.times import BatchProgress
from dispatcher.dispatching.timing import Timing
from dispatcher.errors import JournalError, MailboxStateError
from dispatcher.event import DispatcherEventHandler, Handler, HasType
from dispatcher.mailbox.executor import MailboxExecutor
from dispatcher.mailbox.processor import MailboxProcessor
from dispatcher.mailbox.task_mailbox import TaskMailbox
from dispatcher.mailbox.time_service import ProcessingTimeService
from dispatcher.posting_service import Core, PostingService
from dispatcher.queue.asks import Asks
from dispatcher.queue.entry import Entry
from dispatcher.queue.flags import ABANDONED, DRAINING, FORKED, Times
from dispatcher.queue.inbox import Inbox
from dispatcher.queue.write_ahead import RecoveredEvent, WriteAhead
from dispatcher.routes import Part, RoutingTable, require_members
from dispatcher.service import Caller, stop_on_failure
from dispatcher.stats import DispatcherStats
from dispatcher.supervision.at_exit import note_start
from dispatcher.util.figures import counted
from dispatcher.util.foreign import message_of, tell_of
from dispatcher.util.functions import require_methods, require_plain
from dispatcher.util.threads import watchers
from dispatcher.view import DispatcherView

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from dispatcher.config import AtExit, DispatcherConfig
    from dispatcher.journal.writer import JournalWriter
    from dispatcher.letter_target import DeadLettersTo, LetterTarget

log: logging.Logger = logging.getLogger(__name__)


def _checked(
    config: DispatcherConfig | None, queue_capacity: int | None, loop: object, time_service: object
) -> DispatcherConfig:
    if loop is not None:
        require_methods(loop, "loop", "an event loop", "call_soon_threadsafe")
    if time_service is not None:
        require_methods(time_service, "time_service", "a ProcessingTimeService", "register_timer")
    from dispatcher.config import dispatcher_config  # pydantic takes as long to import as all the rest

    return dispatcher_config(config, queue_capacity)


def _letter_target(name: str, to: DeadLettersTo | None, queue: Inbox, write_ahead: WriteAhead) -> LetterTarget | None:
    if to is None:
        return None
    from dispatcher.letter_target import LetterTarget

    return LetterTarget(name, to, write_ahead, queue.post_with)


class AsyncDispatcher(PostingService):
    """Takes events from any thread and hands each to the handlers of its Enum class, in order, on one thread.

    Whenever the queue is empty, `idle_action` runs on the handler thread, and returns True if it made work. `loop` runs
    `async def` handlers (see `register`). `clock_ns` is the clock of the journal, in Unix ns, by default real time.
    `exit_action` ends the process for `on_error="exit"`. `time_service` runs the checks for slow handlers. By default,
    the process shares one, and the handler thread posts events that are due. A ManualClock posts them on the thread
    that advances it.

    `dead_letters` receives the events that still failed after their last attempt. You can pass a handler, called with a
    DeadLetter on the handler thread, another dispatcher to post DeadLetters to, or a folder for a journal, listed by
    `dispatcher journal failed`.

    `carry` are context variables, such as a request id, whose values a journal in write-ahead mode stores with the
    events of classes that you register with `context=True`. They come back with the event after a restart. Up to 16
    variables, whose values are strs of up to 1024 characters.
    """

    view: DispatcherView
    """What the dispatcher does now, for any thread."""

    def __init__(
        self,
        config: DispatcherConfig | None = None,
        *,
        name: str = "AsyncDispatcher",
        queue_capacity: int | None = None,
        journal: JournalWriter | None = None,
        idle_action: Callable[[], bool] | None = None,
        loop: AbstractEventLoop | None = None,
        clock_ns: Callable[[], int] | None = None,
        exit_action: Callable[[int], Any] = os._exit,
        time_service: ProcessingTimeService | None = None,
        dead_letters: DeadLettersTo | None = None,
        carry: Iterable[ContextVar[str]] = (),
    ) -> None:
        super().__init__(name)
        self.settings: DispatcherConfig = (config := _checked(config, queue_capacity, loop, time_service))
        exit_action = require_plain(exit_action, "exit_action", "ends the process")
        idle_action = idle_action and require_plain(idle_action, "idle_action", "returns True if it made work")
        clock_ns = clock_ns and require_plain(clock_ns, "clock_ns", "returns the time in Unix ns", is_hot=True)
        times: Times = "all" if journal is not None else config.measure_times
        # A field that does not say otherwise never changes once the constructor has returned.
        self._drain_on_stop = config.drain_events_on_stop  # any thread writes, the thread that stops reads
        self._drain_timeout_s: Final = config.drain_timeout_s
        self._time_service = time_service
        self._journal = journal  # where handled events are recorded; None: nowhere
        # Which of "thread" and "stop" calls `_end`: the handler thread, or a stop that came before it ran. The first to
        # look sets it: `setdefault` of a text looks and stores under the dict's own lock.
        self._end_by: dict[str, str] = {}
        self._thread_has_failed = False  # handler thread
        self._has_acted = False  # the handler thread's last act is done; handler thread
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._mailbox = mailbox = TaskMailbox(self._thread)
        self._progress = progress = BatchProgress()
        self._write_ahead = write_ahead = WriteAhead(name, journal, carry)
        self._queue = queue = Inbox(
            name,
            mailbox,
            config,
            times=times,
            is_inside=lambda: self._timing.overdue.is_inside(self.core.is_inside),
            on_size=QueueSizeLog(name, config, lambda: self._queue.contents.by_type()[0], progress.event),
            write_ahead=write_ahead,
        )
        self._timing = timing = Timing(queue, mailbox, progress, self._timers)
        self._coroutines = coroutines = Coroutines(name, config, mailbox, progress, loop, self._timers, timing)
        self._routes = RoutingTable(name, self._default_handler(), self._coroutines.bind, queue.set_up_class)
        rules = AskRules(name, mailbox, self._routes, self._coroutines)
        self._asks = Asks(queue, rules.check_ask, rules.check_wait)
        self._drain = Drain(queue, progress)
        letters = _letter_target(name, dead_letters, queue, write_ahead)
        self._errors = ErrorPolicy(self, self._routes, progress, timing.retries, letters, exit_action)
        self._dispatching = BatchDispatching(
            name,
            queue,
            mailbox,
            self._routes,
            config,
            progress=progress,
            drain=self._drain,
            errors=self._errors,
            journal=journal,
            clock_ns=clock_ns,
            idle_action=idle_action,
            alarm=timing.alarm,
            after_batch=self._coroutines.wake,
        )
        self._asks.give, queue.shutdown.discard_asks = self._dispatching.answers.give, self._asks.discard
        self._processor = MailboxProcessor(
            self._dispatching,
            mailbox,
            slow_after_ns=self._dispatching.slow.limit_ns,
            on_slow=self._dispatching.slow.mail_ended,
        )
        self._coroutines.connect(self._dispatching, self._errors, self._processor)
        self._executor = self._coroutines.executor()
        queue.override.post = self.post if type(self).post is not AsyncDispatcher.post else None
        if queue.override.post is None:  # the fast path of a post: one call less for each event
            self.post, queue.post.__doc__ = queue.post, AsyncDispatcher.post.__doc__  # type: ignore[method-assign]
        self._event_handler = DispatcherEventHandler(self.post)
        self._monitor = Monitor(
            name,
            config,
            self._thread,
            self._dispatching,
            self._processor,
            self._break_batch,
            self._coroutines.describe_holdup,
            self._retry_stops,
            self._errors.log.tell_due,
        )
        self.view = DispatcherView(self, config, self._thread, self._dispatching, self._processor, timing, coroutines)
        self.core: Core = self._make_core(progress, config.at_exit)
        if journal is not None:  # last: a constructor that fails leaves the journal to another dispatcher
            journal.attach(
                self,
                virtual=clock_ns is not None,
                on_failure=self._on_journal_failure,
                origin_elsewhere=self._coroutines.transition_origin,
            )

    def _make_core(self, progress: BatchProgress, at_exit: AtExit) -> Core:
        stop_wait = StopWait(
            self.name,
            self._queue,
            self._drain,
            self._coroutines,
            self._timing.retries.drain_for,
            self._nudge,
            self._describe_handler,
            self._asks.end,
        )
        return Core(
            queue=self._queue,
            asks=self._asks,
            schedule=self._timing.schedule,
            retries=self._timing.retries,
            progress=progress,
            journal=self._journal,
            errors=self._errors,
            stop_wait=stop_wait,
            at_exit=at_exit,
            is_handling=self._is_handling,
            when_drained=self._when_drained,
            shut_for_stop=self._shut_for_stop,
        )

    def post(self, event: HasType[Enum], /) -> bool:
        """Post an event and return whether it was accepted. You can call this from any thread, handlers included.

        An accepted event is handled, or counted as discarded. False means a full queue, a failed journal, or a
        dispatcher that drains or has stopped. While a bounded queue is full, the caller waits under the policy `block`.
        Asks, timers and retries also call your subclass's `post`, and queue what you pass to `super().post`.

        Raises:
            QueueFullError: the post would wait for room, and the dispatcher hasn't been started.
            EventNotDeclaredError, JournalError: in write-ahead mode, the journal can't store the event.
            ForkedProcessError: this process is a fork of the one that created the dispatcher.
        """
        return (self._queue.override.take() or self._queue.post)(event)

    # -- handlers ------------------------------------------------------------------------------------------------

    def _register(self, event_class: type[Enum], part: Part) -> None:
        require_members(event_class)
        self._write_ahead.declare(event_class, part.events, is_durable=part.durable)
        self._routes.register(event_class, part)
        self._break_batch()

    def unregister(self, event_type: type[Enum], handler: Handler) -> bool:
        """Remove a registration and its options, and return whether there was one. Events without a handler fail."""
        was_registered = self._routes.unregister(event_type, handler)
        self._break_batch()
        return was_registered

    @property
    def mailbox_executor(self) -> MailboxExecutor:
        """Return an executor that runs callables on the handler thread, between two events.

        Raises:
            ForkedProcessError: the handler thread is in the parent process.
        """
        self._queue.check_not_forked()
        return self._executor

    def is_redelivering(self) -> bool:
        """Whether an earlier run accepted the handler's event, and possibly handled it. Call it in a handler.

        It's the same in each attempt, and also true for a dead letter that was posted again.
        """
        entry = self._entry_in_hand()
        return entry is not None and entry.is_redelivered

    def attempt(self) -> int:
        """Return the number of the handler's current attempt at its event, starting at 1. Call it in a handler."""
        entry = self._entry_in_hand()
        return entry.attempt if entry is not None else 1

    def _entry_in_hand(self) -> Entry | None:
        """The entry of the event that the caller handles. None: it has none, or the caller handles no event."""
        handling = handling_of_context()
        if handling is not None and handling.owner is self._coroutines:
            call = handling.call  # None: a task or thread has outlived the coroutine that started it
            return call.entry if call is not None else None
        return self._progress.entry_in_hand() if self._mailbox.is_mailbox_thread() else None

    # -- draining ----------------------------------------------------------------------------------------------------

    def has_work(self) -> bool:
        """Whether an event or a mail is waiting. A cheap check, for idle actions."""
        return bool(self._queue.size()) or self._mailbox.new_mail

    def is_handler_thread(self) -> bool:
        """Whether the caller is the handler thread."""
        return self._mailbox.is_mailbox_thread()

    def set_drain_events_on_stop(self, drain: bool = True) -> None:
        """Set, before `stop`, whether that handles queued events (the default) or discards them."""
        self._drain_on_stop = drain

    def await_drained(self, timeout: float | None = None) -> bool:
        """Wait until drained, for up to `timeout` seconds, and return whether it is. None waits without a limit.

        Raises:
            RuntimeError: you call this in a handler, which would wait for itself, or on the thread of a handler's event
                loop.
            ForkedProcessError: the handler thread is in the parent process.
        """
        check_may_wait(self.name, is_handler=self._is_handling(), is_on_loop=self._coroutines.is_on_loop())
        self._queue.check_not_forked()
        return self._drain.wait(timeout)

    def is_stopped(self) -> bool:
        """Whether the dispatcher handles no more events and the handler thread has ended."""
        return self._drain.finished.is_set()

    def wait_for_service_to_stop(self, timeout: float | None = None) -> bool:
        """Wait for the stop, as in Service. An abandoned handler can still be running: see `is_stopped`."""
        deadline = None if timeout is None else monotonic() + timeout
        has_stopped = super().wait_for_service_to_stop(timeout)
        if has_stopped and not self._is_handling():  # the handler may be about to return
            self._drain.finished.wait(GRACE_S if deadline is None else max(0.0, min(GRACE_S, deadline - monotonic())))
        return has_stopped

    # -- what it does now: any thread -------------------------------------------------------------------------------

    def stats(self) -> DispatcherStats:
        """Return a snapshot of all counts and times. It never waits for a handler: see `DispatcherView.stats`."""
        return self.view.stats()

    def queue_size(self) -> int:
        """Count the queued events, without the current one."""
        return self._queue.size()

    def queue_contents(self) -> dict[Enum, int]:
        """Count the queued events by type, except unhashable types. For a long queue, use `view`."""
        return self.view.queue_contents().counts

    def is_drained(self) -> bool:
        """Whether the queue is empty and no event is being handled, both at one moment during this call."""
        return self._drain.is_drained()

    def _core_of(self, event: Any) -> Core:
        return self.core

    def _is_handling(self) -> bool:
        return self._mailbox.is_mailbox_thread() or self._coroutines.is_inside()

    def _when_drained(self) -> Future[bool]:
        self._queue.check_not_forked()
        return self._drain.future()

    def _keeps_stop_waiting(self) -> Caller | None:
        """Why a stop would wait for the caller: it is a handler, or on a handler's event loop before all is handled."""
        if self._end_by.get("end") == "thread" and not self.is_stopped():
            if self._is_handling():
                return "handler"
            if self._coroutines.is_on_loop() and not self.is_drained():
                return "loop"
        return super()._keeps_stop_waiting()

    def _has_coroutines_here(self) -> bool:
        return self._coroutines.is_for_this_loop()

    def _longest_stop_s(self) -> float:
        return self._drain_timeout_s

    def _ends_unstarted(self) -> bool:
        """Events posted before the start are counted, asks are answered, and the journal is closed."""
        return True

    # -- handler thread -------------------------------------------------------------------------------------------

    def _default_handler(self) -> Handler | None:
        """The handler of classes without a registration. A hook for subclasses; the constructor calls it once."""
        return None

    def _run(self) -> None:
        """The handler thread. Another thread may throw an exception into it at any line (PyThreadState_SetAsyncExc)."""
        try:
            if self._end_by.setdefault("end", "thread") == "thread":
                self._processor.run_mailbox_loop()
        except BaseException as error:
            self._note_thread_failure(error)
        finally:
            try:
                self._end_surely()
            finally:
                self._end_surely()

    def _note_thread_failure(self, error: BaseException) -> None:
        self._thread_has_failed = True
        self._note_failure(error)
        self._tell_failure("the handler thread failed and ends", error)

    def _tell_failure(self, what: str, error: BaseException) -> None:
        if isinstance(error, JournalError):  # of a disk: its text says all
            tell_of(log, logging.CRITICAL, self.name, "%s: %s", what, message_of(error))
        else:
            tell_of(log, logging.CRITICAL, self.name, what, error=error)

    def _end_surely(self, attempts: int = 100) -> None:
        """Act last, and again each time an exception that is thrown into this thread cuts that short."""
        if self._has_acted or not attempts:
            return
        try:
            self._act_last()
        except BaseException as error:
            self._note_thread_failure(error)
        finally:
            self._end_surely(attempts - 1)

    def _act_last(self) -> None:
        if not self.is_stopped() and self._end_by.setdefault("end", "thread") == "thread":
            self._queue.shutdown.end()
            if self._thread_has_failed:
                self._queue.shutdown.discard()
            self._end()
        # After a failure the service becomes STOPPED and notifies its listeners. And a stop that began in a handler,
        # but could not start a thread, goes on here.
        self._stop_once()
        self._continue_stops_above()
        self._has_acted = True

    def _end(self) -> None:
        """End what belongs to the handler thread: that thread, or a stop if it never ran. Repeating it is harmless."""
        if self._queue.phase == FORKED:
            return
        self._monitor.stop()
        self._errors.log.tell_all()
        self._coroutines.close()
        self._timing.end()
        self._queue.shutdown.discard_retrying()
        closing = {"the mailbox": self._processor.close}
        if self._errors.dead_letters is not None:
            closing["the dead letters"] = self._errors.dead_letters.close
        if self._journal is not None:
            closing = {"the journal": self._journal.close, **closing}
        for what, close in closing.items():
            try:
                close()
            except BaseException as error:  # e.g. from cancelling a mail that never ran
                self._note_failure(error)
                self._tell_failure(f"{what} could not be closed", error)
        self._processor.metrics_controller.stop_latency_measurement()
        self._mailbox.parking.retire()
        self._asks.end()
        self.view.note_end()
        self._drain.finish()

    def _on_journal_failure(self, error: JournalError) -> None:
        """On the thread that met the error: end the handler thread with it, unless the policy is to continue."""
        if self._journal is not None and self._journal.config.failure_policy != "continue":
            with contextlib.suppress(MailboxStateError):  # it has ended
                self._processor.report_throwable(error)

    # -- life cycle (service hooks) -----------------------------------------------------------------------------------

    def service_start(self) -> None:
        self._queue.check_not_forked()
        if self._errors.dead_letters is not None:
            self._errors.dead_letters.open()
        self.view.note_start()
        self._timing.schedule.keys.load()
        if recovered := self._write_ahead.take_recovered():
            self._put_recovered(recovered)
        self._timing.schedule.resume()
        time_service = self._timers()
        if self._dispatching.times.measures:
            metrics = self._processor.metrics_controller
            metrics.set_up_latency_measurement(time_service, self._executor)
            self._executor.execute(lambda: None, "the first mail, which starts the latency measurement")
        watchers.add(self._queue)
        self._monitor.start(time_service)
        self._mailbox.parking.wake_sooner()
        self._queue.room.has_started = True
        self._thread.start()
        note_start(self)
        self._timing.start()

    def _put_recovered(self, recovered: list[RecoveredEvent]) -> None:
        if due := self._timing.retries.restore(recovered, self._routes.policy_of):
            message = "%s of an earlier run %s handled first"
            events, verb = counted(due, "accepted event"), "is" if due == 1 else "are"
            tell_of(log, logging.WARNING, self.name, message, events, verb, count=due)

    def service_stop(self) -> None:
        """Drain within the timeout, end the thread, then discard and report the events left (invariants 7 and 10)."""
        if self._queue.phase == FORKED:
            return
        if self._shut_for_stop():
            StopWait.wait_for_all((self.core.stop_wait,), self._drain_timeout_s)
        if not self.is_stopped() and not self._thread.is_alive():
            self._end()

    def _shut_for_stop(self) -> bool:
        # An interrupted start may leave a thread that has no ident yet. Once a stop is to call `_end`, it does not run.
        ends_by = self._end_by.get("end") or (
            self._end_by.setdefault("end", "stop") if self._thread.ident is None else "thread"
        )
        has_run = ends_by == "thread"
        if self._drain_on_stop and has_run:
            self._queue.shutdown.shut(DRAINING)
        else:
            self._queue.shutdown.shut(ABANDONED)
            self._queue.shutdown.discard()
        return has_run

    def _is_over(self) -> bool:
        return self.is_stopped()

    def _stop_on_own_thread(self) -> None:
        if self._queue.phase < DRAINING:
            self._shut_for_stop()
            self._nudge()
        super()._stop_on_own_thread()

    def _stop_on_failure(self, error: BaseException) -> None:
        """Stop after a failure, as in Service. In a group all fail, or events for this dispatcher would be stuck."""
        if self.core.group is None:
            super()._stop_on_failure(error)
        else:
            self._note_failure(error)
            stop_on_failure(self.core.group, error)

    def _nudge(self) -> None:
        self._queue.wake()
        self._break_batch()
        self._coroutines.nudge()

    def _break_batch(self) -> None:
        """Make the current batch end after the current event."""
        if self._progress.since_ns:
            self._processor.send_control_mail_if_open(lambda: None, "end the batch")

    def _timers(self) -> ProcessingTimeService:
        return self._time_service or shared_time_service()

    def _describe_handler(self) -> str:
        return describe_run(self._thread, current_run(self._progress, self._processor))

    def _after_fork(self) -> None:
        """In a child process: a started dispatcher has no handler thread here, and one with a journal no journal."""
        super()._after_fork()
        self._queue.renew_locks()
        if self._thread.ident is None and self._journal is None:
            # In Python 3.13.0 to 3.13.3, no thread made before a fork starts after it (python/cpython#134381).
            threading.Thread.__init__(self._thread, target=self._run, name=self.name, daemon=True)
            return
        self._terminated = True  # nothing of it runs here, so nothing is waited for
        self.view.forget()
        self._drain.after_fork()
        self._queue.shutdown.after_fork()
        self._timing.after_fork()
        self._mailbox.after_fork(self._queue.check_not_forked)
