"""The central dispatcher: a mailbox processor whose default action dispatches events (after Hadoop's AsyncDispatcher).

    producers (any thread) --append--> event queue --> handler thread: default action --> handlers
    control (any thread)   --put-----> mailbox ------> handler thread: mail

Only the handler thread touches handlers, batches and counters (invariant 1). `dispatcher.queue` brings events to that
thread and loses none when it stops; `dispatcher.dispatching` hands them to the handlers.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from enum import Enum
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from dispatcher.config import DispatcherConfig, dispatcher_config
from dispatcher.dispatching.batches import BatchDispatching
from dispatcher.dispatching.coroutines import Coroutines
from dispatcher.dispatching.draining import Drain
from dispatcher.dispatching.error_policy import ErrorPolicy
from dispatcher.dispatching.monitor import Monitor, QueueSizeLog, describe_run, shared_time_service
from dispatcher.dispatching.progress import Progress
from dispatcher.dispatching.runs import current_run
from dispatcher.dispatching.stopping import GRACE_S, StopWait
from dispatcher.errors import JournalError, MailboxStateError
from dispatcher.event import DispatcherEventHandler, Handler, KeyOf
from dispatcher.journal.writer import JournalWriter
from dispatcher.mailbox.executor import MailboxExecutor
from dispatcher.mailbox.processor import MailboxProcessor
from dispatcher.mailbox.task_mailbox import TaskMailbox
from dispatcher.mailbox.time_service import ProcessingTimeService
from dispatcher.queue.later import PostMethods
from dispatcher.queue.posting import EventQueue
from dispatcher.queue.state import ABANDONED, DRAINING, FORKED, Times
from dispatcher.queue.write_ahead import WriteAhead
from dispatcher.routes import OnError, RoutingTable
from dispatcher.service import Caller, Service
from dispatcher.stats import DispatcherStats, StatsAttributes
from dispatcher.util.foreign import tell
from dispatcher.util.functions import require_plain
from dispatcher.view import DispatcherView

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

log = logging.getLogger(__name__)


class AsyncDispatcher(Service, StatsAttributes, PostMethods):
    """Takes events from any thread and hands each to the handlers of its Enum class, on one thread, in order.

    `idle_action` runs on the handler thread whenever the queue is empty, before the thread waits; it returns True if it
    made work. `loop` runs `async def` handlers; see `register`. `clock_ns` is the journal's clock (Unix ns); None: real
    time. `exit_action` ends the process for `on_error="exit"`. `time_service` runs the checks for slow handlers; None:
    one shared by the whole process.
    """

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
    ) -> None:
        super().__init__(name)
        config = dispatcher_config(config, queue_capacity)
        # A field that does not say otherwise never changes once the constructor has returned.
        self._drain_on_stop = config.drain_events_on_stop  # any thread writes, the thread that stops reads
        self.drain_timeout_s: Final = config.drain_timeout_s
        self._time_service = time_service
        self.siblings: tuple[AsyncDispatcher, ...] = (self,)  # set by a group before the start; see is_inside
        self.group: Service | None = None  # set by a group before the start
        # Which of "thread" and "stop" calls `_end`: the handler thread, or a stop that came before it ran. The first to
        # look sets it, in one step.
        self._end_by: dict[str, str] = {}
        self._thread_has_failed = False  # handler thread
        self._has_acted = False  # the handler thread's last act is done; handler thread
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._mailbox = mailbox = TaskMailbox(self._thread)
        self.journal = journal  # where handled events are recorded; None: nowhere
        self.progress = Progress()  # how far the handler thread has got
        self._write_ahead = write_ahead = WriteAhead(name, journal)
        times: Times = "all" if journal is not None else config.measure_times
        size_log = QueueSizeLog(name, config, lambda: self.queue.contents.by_type()[0], self.progress.event)
        self.queue = queue = EventQueue(
            name, mailbox, config, times=times, is_inside=self.is_inside, on_size=size_log, write_ahead=write_ahead
        )
        self._coroutines = Coroutines(name, config, mailbox, self.progress, loop, self._timers)
        self._routes = routes = RoutingTable(name, self._default_handler(), self._coroutines.bind, queue.supersede_by)
        self._drain, errors = Drain(queue, self.progress), ErrorPolicy(self, routes, exit_action)
        self._dispatching = dispatching = BatchDispatching(
            name,
            queue,
            mailbox,
            routes,
            config,
            progress=self.progress,
            drain=self._drain,
            errors=errors,
            journal=journal,
            clock_ns=clock_ns,
            idle_action=idle_action,
        )
        limit_ns, on_slow = dispatching.slow.limit_ns, dispatching.slow.mail_ended
        self._processor = processor = MailboxProcessor(dispatching, mailbox, slow_after_ns=limit_ns, on_slow=on_slow)
        self._coroutines.connect(dispatching, errors, processor)
        self._executor = self._coroutines.executor()
        self._event_handler = DispatcherEventHandler(queue.post)
        self.view = DispatcherView(self, config, self._thread, dispatching, processor)
        self._monitor = Monitor(
            name,
            config,
            self._thread,
            dispatching,
            processor,
            self._break_batch,
            self._coroutines.describe_holdup,
            self._retry_stops,
        )
        self.stop_wait = StopWait(name, queue, self._drain, self._coroutines, self.nudge, self._describe_handler)
        if journal is not None:  # last: a constructor that fails leaves the journal to another dispatcher
            journal.attach(
                self,
                virtual=clock_ns is not None,
                on_failure=self._on_journal_failure,
                origin_elsewhere=self._coroutines.transition_origin,
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

        Several handlers of a class run in the order of registration, under the strictest `on_error` among them: when a
        handler raises, `continue` with the next event, `stop` the dispatcher, or `exit` the process.

        An `async def` handler runs on the `loop` that the dispatcher was given. Its events are in hand until their
        coroutines have ended, 100 at most. Those of equal `lock_key` run one after another, as do all those without a
        key. `aio.AsyncioHandler` gives it another loop, key or capacity. It is the only handler of its class.

        `coalesce_by(event)` returns a key, on the producer's thread. While an event of the class with that key is
        queued, a newer one replaces it, and the older one counts as superseded. A key of None never replaces. It holds
        for all events of the class, until this handler is unregistered; of several, the last one that was registered.

        `events` declares the classes of the events, pydantic models or dataclasses, which a journal in write-ahead mode
        stores as JSON. In that mode the dispatcher accepts no event of another class (EventNotDeclaredError).

        Any thread; best before `start`. Later, it takes effect with the next event that is handled or, for coalescing,
        posted; if the running handler yields to mail, with the next batch.

        Raises:
            TypeError: `event_type` is not an Enum class with members; `handler` or `coalesce_by` is not callable, or
                a call of it runs nothing, because it is a generator function, or `handler` a class; `handler` is an
                `async def` without a loop; or `events` contains something other than pydantic models and dataclasses.
            ValueError: an unknown `on_error`; one of several handlers of the class is an `async def`; or `events`
                declares two classes of the same name.
        """
        classes = (events,) if isinstance(events, type) else tuple(events)
        if coalesce_by is not None:
            require_plain(coalesce_by, "coalesce_by", "returns an event's key")
        self._routes.register(event_type, handler, on_error, coalesce_by)
        if classes:
            self._write_ahead.declare(event_type, classes)
        self._break_batch()

    def unregister(self, event_type: type[Enum], handler: Handler) -> bool:
        """Remove a registration and its options; returns whether there was one. Without handlers, events fail."""
        was_registered = self._routes.unregister(event_type, handler)
        self._break_batch()
        return was_registered

    @property
    def event_handler(self) -> DispatcherEventHandler:
        """Where to post: `event_handler.handle(event)` returns whether the event was accepted."""
        return self._event_handler

    @property
    def mailbox_executor(self) -> MailboxExecutor:
        """Runs callables on the handler thread, between two events.

        Raises:
            ForkedProcessError: the handler thread is in the parent process.
        """
        self.queue.check_not_forked()
        return self._executor

    def is_redelivering(self) -> bool:
        """On the handler thread: whether the current event was accepted by an earlier run, and may have been handled
        there. Such an event also has `redelivered = True`, if it accepts attributes."""
        return 0 < self.progress.accepted_seq() <= self.progress.redelivered_upto

    # -- draining ----------------------------------------------------------------------------------------------------

    def has_work(self) -> bool:
        """Whether an event or a mail waits. A cheap check, for idle actions."""
        return bool(self.queue.entries) or self._mailbox.new_mail

    def is_handler_thread(self) -> bool:
        return self._mailbox.is_mailbox_thread()

    def set_drain_events_on_stop(self, drain: bool = True) -> None:
        """Whether `stop` handles what is queued (True, the default) or discards it. Call it before `stop`."""
        self._drain_on_stop = drain

    def await_drained(self, timeout: float | None = None) -> bool:
        """Wait until drained, up to `timeout` seconds (None: for ever); returns whether it is.

        Raises:
            RuntimeError: called by a handler, which would wait for itself, or on the thread of a handler's event loop.
            ForkedProcessError: the handler thread is in the parent process.
        """
        if self.is_handling():
            raise RuntimeError(f"{self.name}: a handler cannot wait until its own dispatcher is drained")
        if self._coroutines.is_on_loop():
            raise RuntimeError(f"{self.name}: this blocks its event loop; use `await aio.await_drained(dispatcher)`")
        self.queue.check_not_forked()
        return self._drain.wait(timeout)

    def when_drained(self) -> Future[bool]:
        """A future: True once drained, False if the dispatcher ends first. Any thread; does not block.

        Raises:
            ForkedProcessError: the handler thread is in the parent process.
        """
        self.queue.check_not_forked()
        return self._drain.future()

    def is_stopped(self) -> bool:
        """The dispatcher handles no more events, and the handler thread has ended."""
        return self._drain.finished.is_set()

    def wait_for_service_to_stop(self, timeout: float | None = None) -> bool:
        """As in Service. A handler that the stop has given up on may still run: see `is_stopped`."""
        deadline = None if timeout is None else monotonic() + timeout
        has_stopped = super().wait_for_service_to_stop(timeout)
        if has_stopped and not self.is_handling():  # the handler may be about to return
            self._drain.finished.wait(GRACE_S if deadline is None else max(0.0, min(GRACE_S, deadline - monotonic())))
        return has_stopped

    # -- statistics: any thread ----------------------------------------------------------------------------------

    def stats(self) -> DispatcherStats:
        """All that is counted, at this moment."""
        return self.view.stats()

    @property
    def capacity(self) -> int | None:
        """Most events in the queue; None: no bound."""
        return self.queue.room.capacity

    def queue_size(self) -> int:
        """Events that wait, without the one in hand."""
        return len(self.queue.entries)

    def queue_contents(self) -> dict[Enum, int]:
        """Events that wait, by event type; without the types that cannot be hashed. See `view` for a long queue."""
        return self.view.queue_contents().counts

    def is_drained(self) -> bool:
        """The queue is empty and no event is in hand: both hold at one moment during this call."""
        return self._drain.is_drained()

    def is_handling(self) -> bool:
        """Whether the caller is a handler of this dispatcher: on its thread, or in a coroutine that has not ended."""
        return self._mailbox.is_mailbox_thread() or self._coroutines.is_inside()

    def is_inside(self) -> bool:
        """Whether the caller is a handler of this dispatcher or of a sibling that drains with it."""
        return any(sibling.is_handling() for sibling in self.siblings)

    def _keeps_stop_waiting(self) -> Caller | None:
        """As in Service: the caller is a handler, or on the thread of a handler's event loop before all is handled."""
        if self._end_by.get("end") == "thread" and not self.is_stopped():
            if self.is_handling():
                return "handler"
            if self._coroutines.is_on_loop() and not self.is_drained():
                return "loop"
        return super()._keeps_stop_waiting()

    def _longest_stop_s(self) -> float:
        return self.drain_timeout_s

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
        self.note_failure(error)
        tell(log, logging.CRITICAL, "%s: the handler thread failed and ends", self.name, error=error)

    def _end_surely(self, attempts: int = 100) -> None:
        """The last act of the handler thread, again if an exception that is thrown into the thread cuts it short."""
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
            self.queue.shutdown.end()
            if self._thread_has_failed:
                self.queue.shutdown.discard()
            self._end()
        # After a failure the service becomes STOPPED and notifies its listeners. And a stop that began in a handler,
        # but could not start a thread, goes on here.
        self._stop_once()
        self._continue_stops_above()
        self._has_acted = True

    def _end(self) -> None:
        """End what belongs to the handler thread: that thread, or a stop if it never ran. Repeating it is harmless."""
        if self.queue.phase == FORKED:
            return
        self._monitor.stop()
        self._coroutines.end()
        closing = {"the mailbox": self._processor.close}
        if self.journal is not None:
            closing = {"the journal": self.journal.close, **closing}
        for what, close in closing.items():
            try:
                close()
            except BaseException as error:  # e.g. from cancelling a mail that never ran
                self.note_failure(error)
                tell(log, logging.CRITICAL, "%s: %s could not be closed", self.name, what, error=error)
        self._processor.metrics_controller.stop_latency_measurement()
        self._mailbox.parking.retire()
        self.view.note_end()
        self._drain.finish()

    def _on_journal_failure(self, error: JournalError) -> None:
        """On the thread that met the error: end the handler thread with it, unless the policy is to continue."""
        if self.journal is not None and self.journal.config.failure_policy != "continue":
            with contextlib.suppress(MailboxStateError):  # it has ended
                self._processor.report_throwable(error)

    # -- life cycle (service hooks) -----------------------------------------------------------------------------------

    def service_start(self) -> None:
        self.queue.check_not_forked()
        self.view.note_start()
        recovered = self._write_ahead.take_recovered()
        if recovered:
            self.progress.redelivered_upto = recovered[-1][0]
            self.queue.put_first(recovered)
        time_service = self._timers()
        if self._dispatching.times.measures:
            metrics = self._processor.metrics_controller
            metrics.set_up_latency_measurement(time_service, self._executor)
            self._executor.execute(lambda: None, "the first mail, which starts the latency measurement")
        self._monitor.start(time_service)
        self._mailbox.parking.wake_sooner()
        self._thread.start()

    def service_stop(self) -> None:
        """Drain within the timeout, then end the thread; discard and report what is left (invariants 7 and 10)."""
        if self.queue.phase == FORKED:
            return
        if self.shut_for_stop():
            StopWait.wait_for_all((self.stop_wait,), self.drain_timeout_s)
        if not self.is_stopped() and not self._thread.is_alive():
            self._end()

    def shut_for_stop(self) -> bool:
        """Refuse posts from outside; returns whether the handler thread has run, and so has to end. Does not wait."""
        # An interrupted start may leave a thread that has no ident yet. Once a stop is to call `_end`, it does not run.
        ends_by = self._end_by.get("end") or (
            self._end_by.setdefault("end", "stop") if self._thread.ident is None else "thread"
        )
        has_run = ends_by == "thread"
        if self._drain_on_stop and has_run:
            self.queue.shutdown.shut(DRAINING)
        else:
            self.queue.shutdown.shut(ABANDONED)
            self.queue.shutdown.discard()
        return has_run

    def _is_over(self) -> bool:
        return self.is_stopped()

    def _stop_on_own_thread(self) -> None:
        if self.queue.phase < DRAINING:
            self.shut_for_stop()
            self.nudge()
        super()._stop_on_own_thread()

    def stop_on_failure(self, error: BaseException) -> None:
        """As in Service. In a group, the whole group fails: events for this dispatcher would be stuck."""
        if self.group is None:
            super().stop_on_failure(error)
        else:
            self.note_failure(error)
            self.group.stop_on_failure(error)

    def nudge(self) -> None:
        """Make the loop check the queue's phase, even if its thread waits or is in a long batch. Any thread."""
        self.queue.wake()
        self._break_batch()
        self._coroutines.nudge()

    def _break_batch(self) -> None:
        """Make the current batch end after the current event."""
        if self.progress.since_ns:
            self._processor.send_control_mail_if_open(lambda: None, "end the batch")

    def _timers(self) -> ProcessingTimeService:
        return self._time_service or shared_time_service()

    def _describe_handler(self) -> str:
        return describe_run(self._thread, current_run(self.progress, self._processor))

    def _after_fork(self) -> None:
        """In a child process: a started dispatcher has no handler thread here, and one with a journal no journal."""
        super()._after_fork()
        if self._thread.ident is None and self.journal is None:
            # In Python 3.13.0 to 3.13.3, no thread made before a fork starts after it (python/cpython#134381).
            threading.Thread.__init__(self._thread, target=self._run, name=self.name, daemon=True)
            return
        self._terminated = True  # nothing of it runs here, so nothing is waited for
        self.view.forget()
        self._drain.after_fork()
        self.queue.shutdown.after_fork()
        self._mailbox.after_fork(self.queue.check_not_forked)
