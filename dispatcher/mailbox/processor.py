"""The loop of the mailbox thread, after Flink's MailboxProcessor: mail first, then one turn of the default action.

One turn runs at most one batch of mail before the default action, so mail that sends mail cannot starve it
(after FLINK-14304). When the default action has nothing to do it suspends itself, and the thread waits for mail.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from time import perf_counter_ns
from typing import Any, Final

from dispatcher.errors import DispatcherError, MailboxClosedError, MailboxStateError, RejectedExecutionError
from dispatcher.mailbox.executor import MailboxExecutor
from dispatcher.mailbox.mail import MAX_PRIORITY, MIN_PRIORITY, ActionExecutor, Mail, MailOptions
from dispatcher.mailbox.task_mailbox import MailboxState, TaskMailbox
from dispatcher.mailbox.time_service import ProcessingTimeService
from dispatcher.util.foreign import text_of
from dispatcher.util.functions import require_plain
from dispatcher.util.histogram import Histogram
from dispatcher.util.threads import NO_THREAD, postpone

log: logging.Logger = logging.getLogger(__name__)

_OPEN: Final = MailboxState.OPEN  # looking up an Enum member is slow, and the loop turns often


class IdleTimer:
    """Adds up periods, such as the idle times of a default action. Written by the mailbox thread, read by any."""

    __slots__ = ("_clock_ns", "_total_and_since")

    def __init__(self, clock_ns: Callable[[], int] = perf_counter_ns) -> None:
        self._clock_ns = clock_ns
        # The sum of the ended periods, and the start of the current one. Both are replaced in one store, so a reader
        # counts each period exactly once.
        self._total_and_since: tuple[int, int | None] = (0, None)

    def mark_start(self) -> None:
        self._total_and_since = (self._total_and_since[0], self._clock_ns())

    def mark_end(self) -> None:
        total_ns, since_ns = self._total_and_since
        if since_ns is not None:
            self._total_and_since = (total_ns + self._clock_ns() - since_ns, None)

    @property
    def total_ns(self) -> int:
        """The sum of all periods so far, including the current one."""
        total_ns, since_ns = self._total_and_since
        return total_ns if since_ns is None else total_ns + self._clock_ns() - since_ns


class MailboxMetricsController:
    """Sends a mail each interval, and records how long it waits until it runs (after Flink's class of that name).

    There's one measurement at a time, so they're interval + latency apart. Once the controller is set up, its processor
    starts it with the first mail. The mailbox thread writes `latency`.
    """

    def __init__(self, latency: Histogram | None = None, *, clock_ns: Callable[[], int] = perf_counter_ns) -> None:
        self.latency: Histogram = latency or Histogram()
        self.interval_ms = 1000
        """Time from the end of a measurement to the start of the next."""
        self._clock_ns = clock_ns
        self._parts: tuple[ProcessingTimeService, MailboxExecutor] | None = None  # set once, before the start
        # The next measurement; written by the mailbox thread, or by the one that starts what was postponed.
        self._timer: Future[None] | None = None
        self.is_waiting_for_start: bool = False  # set up, and not started

    def set_up_latency_measurement(self, time_service: ProcessingTimeService, executor: MailboxExecutor) -> None:
        """Set the timers and the mailbox. Call it once, before the mailbox loop runs.

        Raises:
            MailboxStateError: it's already set up.
        """
        if self._parts is not None:
            raise MailboxStateError("latency measurement is set up already; it is done once")
        self._parts = time_service, executor
        self.is_waiting_for_start = True

    def start_latency_measurement(self) -> None:
        """Register the first timer, one interval from now. Call it once.

        Raises:
            MailboxStateError: it isn't set up, or it's already started.
        """
        if self._parts is None:
            raise MailboxStateError("latency measurement is not set up; call set_up_latency_measurement first")
        if not self.is_waiting_for_start:
            raise MailboxStateError("latency measurement is started already; it is done once")
        self.is_waiting_for_start = False
        self._schedule()

    def stop_latency_measurement(self) -> None:
        """Cancel the timer. Call it once the mailbox thread runs no more mail."""
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        assert self._parts is not None
        time_service, executor = self._parts
        due_ms = time_service.current_processing_time() + self.interval_ms
        try:
            self._timer = time_service.register_timer(due_ms, lambda _: self._measure(executor))
        except DispatcherError as error:  # the timers are shut down, which must not fail the mailbox
            log.debug("the mailbox latency is no longer measured: %s", error)
        except NO_THREAD as error:
            postpone("the mailbox's latency measurement", self._schedule, error)

    def _measure(self, executor: MailboxExecutor) -> None:
        """On the timers' thread. The mail registers the next timer, so a closed mailbox ends the measurement."""
        sent_ns = self._clock_ns()

        def arrived() -> None:
            self.latency.observe(self._clock_ns() - sent_ns)
            self._schedule()

        with suppress(RejectedExecutionError):
            executor.execute(arrived, "measure the mailbox latency")


class Suspension:
    """A suspended default action. Any thread can call `resume`, repeatedly. It ends this suspension only."""

    __slots__ = ("_processor", "_timer")

    def __init__(self, processor: MailboxProcessor, timer: IdleTimer | None = None) -> None:
        self._processor = processor
        self._timer = timer

    def resume(self) -> None:
        """Let the default action run again. Thread-safe."""
        processor = self._processor

        def resume() -> None:
            if processor._suspension is self:
                processor._suspension = None

        if processor.mailbox.is_mailbox_thread():
            resume()
        else:
            processor.send_control_mail_if_open(resume, "resume the default action")


class MailboxController:
    """Controls the loop for a default action. Use it only on the mailbox thread."""

    __slots__ = ("_processor",)

    def __init__(self, processor: MailboxProcessor) -> None:
        self._processor = processor

    def suspend_default_action(self, timer: IdleTimer | None = None) -> Suspension:
        """Don't run the default action until you resume the suspension. Mail still runs.

        A `timer` that you have started runs until then, except while mail runs.

        Raises:
            MailboxStateError: you're not on the mailbox thread, or it's already suspended.
        """
        processor = self._processor
        if not processor.mailbox.is_mailbox_thread():
            raise MailboxStateError("the default action is suspended by the mailbox thread only")
        if processor._suspension is not None:
            raise MailboxStateError("the default action is suspended already; resume that suspension first")
        suspension = processor._suspension = Suspension(processor, timer)
        return suspension

    def all_actions_completed(self) -> None:
        """End the loop for good, after this run of the default action."""
        self._processor.all_actions_completed()


DefaultAction = Callable[[MailboxController], Any]


class MailboxProcessor:
    """Runs mail and a default action on the mailbox thread until suspended or completed.

    `action_executor`: runs all mail of the executors created here.
    `on_slow`: called with a mail that ran longer than `slow_after_ns`, and its start and end (perf_counter_ns).

    Only the mailbox thread can call `run_mailbox_loop`, the single steps, `prepare_close`, `close` and `drain`. Any
    thread can call `suspend`, `all_actions_completed`, `report_throwable` and the executors.
    """

    def __init__(
        self,
        default_action: DefaultAction,
        mailbox: TaskMailbox | None = None,
        *,
        action_executor: ActionExecutor | None = None,
        metrics_controller: MailboxMetricsController | None = None,
        slow_after_ns: int = sys.maxsize,
        on_slow: Callable[[Mail, int, int], Any] = lambda *_: None,
    ) -> None:
        self.mailbox: TaskMailbox = mailbox or TaskMailbox()  # never changes
        self._action_executor = action_executor  # never changes
        # Never changes.
        self.metrics_controller: MailboxMetricsController = metrics_controller or MailboxMetricsController()
        self._default_action = require_plain(default_action, "default_action", "does the work of a turn", is_hot=True)
        self._controller = MailboxController(self)
        self._loop_running = True  # mailbox thread only; stays false once completed
        self._suspended = False  # mailbox thread only
        self._suspension: Suspension | None = None  # mailbox thread only; None: the default action may run
        self.mails_run: int = 0  # written by the mailbox thread only; counted before the run
        self._running: Mail | None = None  # mailbox thread writes, any reads
        self._began_ns = 0  # when that mail began, by perf_counter_ns; written before it; mailbox thread, any reads
        self.slow_mails: int = 0  # mails that ran longer than `slow_after_ns`; mailbox thread writes, any reads
        self._slow_after_ns = slow_after_ns  # never changes
        self._on_slow = require_plain(on_slow, "on_slow", "takes a mail, its start and its end")  # never changes

    @property
    def main_mailbox_executor(self) -> MailboxExecutor:
        """Return the executor of mail with the lowest priority."""
        return MailboxExecutor(self.mailbox, MIN_PRIORITY, action_executor=self._action_executor)

    def mailbox_executor(self, priority: int) -> MailboxExecutor:
        """Return an executor of mail with this priority."""
        return MailboxExecutor(self.mailbox, priority, is_idle=self.is_idle, action_executor=self._action_executor)

    def is_mailbox_loop_running(self) -> bool:
        """Whether the loop should keep running."""
        return self._loop_running

    def is_default_action_available(self) -> bool:
        """Whether the default action can run, that is, isn't suspended."""
        return self._suspension is None

    def is_idle(self) -> bool:
        """Whether the loop is waiting for mail with the default action suspended."""
        return self._suspension is not None and not self.mailbox.has_mail() and self.mailbox.state is MailboxState.OPEN

    def running(self) -> tuple[Mail, int] | None:
        """Return the current mail and when it began (perf_counter_ns). Thread-safe."""
        # Between two mails, the earlier one may come with the time of the later: it looks as if it had just begun.
        mail, began_ns = self._running, self._began_ns
        return None if mail is None else (mail, began_ns)

    def run_mailbox_loop(self) -> None:
        """Run until `suspend`, `all_actions_completed`, or an error in a mail or the default action.

        After `suspend` you can call it again. After `all_actions_completed` it returns at once.

        Raises:
            MailboxStateError: you're not on the mailbox thread.
            MailboxClosedError: the mailbox isn't open.
        """
        self._begin()
        action, controller, mailbox = self._default_action, self._controller, self.mailbox
        while not self._suspended:
            # The hints that create_batch checks first, without the call: most turns have no mail.
            if mailbox.new_mail or mailbox.batch or self._suspension is not None or mailbox.state is not _OPEN:
                self._process_mail()
                if self._suspended:
                    break
            action(controller)

    def run_mailbox_step(self) -> bool:
        """Run one mail or, without mail, the default action once if it's available, and return whether either ran.

        After `all_actions_completed` nothing runs.
        """
        return self._begin() and (self._run_one_batched_mail() or self._run_default_action_if_available())

    def run_single_mailbox_loop(self) -> bool:
        """Run one mail, if there is one, then the default action once if it's available.

        Returns whether either ran. After `all_actions_completed` nothing runs.
        """
        ran_mail = self._begin() and self._run_one_batched_mail()
        return (not self._suspended and self._run_default_action_if_available()) or ran_mail

    def suspend(self) -> None:
        """Make the loop return after the current mail, from any thread. Does nothing if the mailbox isn't open."""

        def suspend() -> None:
            self._suspended = True

        self.send_control_mail_if_open(suspend, "suspend the mailbox loop")

    def all_actions_completed(self) -> None:
        """End the loop for good, from any thread. Does nothing if the mailbox isn't open."""

        def complete() -> None:
            self._loop_running = False
            self._suspended = True

        self.send_control_mail_if_open(complete, "complete the mailbox loop")

    def report_throwable(self, error: BaseException) -> None:
        """Raise `error` inside the loop, from any thread.

        Raises:
            MailboxClosedError: the mailbox accepts no more mail.
        """

        def fail() -> None:
            raise error

        self._send_control_mail(fail, "report %s", text_of(error))

    def send_control_mail_if_open(self, action: Callable[[], None], description: str) -> None:
        """Run `action` before all other mail, from any thread. Does nothing if the mailbox isn't open."""

        def send() -> None:
            if self.mailbox.state is MailboxState.OPEN:
                self._send_control_mail(action, description)

        self.mailbox.run_exclusively(send)

    def prepare_close(self) -> None:
        """Reject new mail. `drain` still runs the mail that waits."""
        self.mailbox.quiesce()

    def drain(self) -> None:
        """Run all waiting mail, even if the loop has ended. If a mail raises, the drain ends and the rest waits."""
        batch, queue = self.mailbox.take_all()
        try:
            for left in (batch, queue):
                while left:
                    self._run_mail(left.popleft())
        finally:
            # Mail behind one that raised would be lost, and its futures would never be done.
            if not self.mailbox.give_back(batch, queue):
                _cancel([*batch, *queue])

    def close(self) -> None:
        """Close the mailbox and cancel the futures among the mail that didn't run.

        Raises:
            Exception: the first cancellation error, after all were tried; the others are attached as notes.
        """
        _cancel(self.mailbox.close())

    def _begin(self) -> bool:
        """Before a loop or a step: check that it may run; returns whether the loop is not completed."""
        if not self.mailbox.is_mailbox_thread():
            raise MailboxStateError("the mailbox loop runs on the mailbox thread only; start it there")
        if self.mailbox.state is not MailboxState.OPEN:
            raise MailboxClosedError(self.mailbox.state, "run the mailbox loop")
        self._suspended = not self._loop_running
        return self._loop_running

    def _process_mail(self) -> None:
        """Run one batch of mail, then more while the default action is suspended."""
        mailbox = self.mailbox
        if mailbox.create_batch():
            suspension = self._mark_idle_end()
            batch = mailbox.batch
            now_ns = perf_counter_ns()
            try:
                while (batch or mailbox.new_urgent_mail) and not self._suspended:
                    if mailbox.new_urgent_mail:
                        mailbox.pull(urgent_only=True)
                    now_ns = self._run(batch.popleft(), now_ns)
            finally:
                self._running = None
            self._mark_idle_start(suspension)
        while self._suspension is not None and not self._suspended:
            mail = mailbox.take(MIN_PRIORITY)
            self._run_mail_while_idle(mail)

    def _run_mail_while_idle(self, mail: Mail) -> None:
        suspension = self._mark_idle_end()
        self._run_mail(mail)
        self._mark_idle_start(suspension)

    def _run_mail(self, mail: Mail) -> None:
        try:
            self._run(mail, perf_counter_ns())
        finally:
            self._running = None

    def _run(self, mail: Mail, began_ns: int) -> int:
        """Run a mail; returns when it ended. The caller resets `_running`, once for several mails."""
        self.mails_run += 1  # before the run, to count mail that fails
        self._began_ns = began_ns
        self._running = mail
        mail.run()
        ended_ns = perf_counter_ns()
        if ended_ns - began_ns > self._slow_after_ns:
            self.slow_mails += 1
            self._on_slow(mail, began_ns, ended_ns)
            ended_ns = perf_counter_ns()
        if self.metrics_controller.is_waiting_for_start and not self._suspended:
            self.metrics_controller.start_latency_measurement()
        return ended_ns

    def _mark_idle_end(self) -> Suspension | None:
        suspension = self._suspension
        if suspension is not None and suspension._timer is not None:
            suspension._timer.mark_end()
        return suspension

    def _mark_idle_start(self, suspension: Suspension | None) -> None:
        """After mail: idle again, unless that mail resumed the default action."""
        if suspension is not None and suspension._timer is not None and self._suspension is suspension:
            suspension._timer.mark_start()

    def _run_one_batched_mail(self) -> bool:
        mail = self.mailbox.try_take_from_batch() if self.mailbox.create_batch() else None
        if mail is not None:
            self._run_mail_while_idle(mail)
        return mail is not None

    def _run_default_action_if_available(self) -> bool:
        if self._suspension is not None:
            return False
        self._default_action(self._controller)
        return True

    def _send_control_mail(self, action: Callable[[], None], description: str, *args: Any) -> None:
        self.mailbox.put(Mail(action, MAX_PRIORITY, description, *args, options=MailOptions.URGENT))


def _cancel(mails: list[Mail]) -> None:
    """Cancel the futures among mails that will not run, then raise the first error."""
    first: BaseException | None = None
    for mail in mails:
        try:
            mail.try_cancel()
        except BaseException as error:
            if first is None:
                first = error
            else:
                first.add_note(f"and {mail.description}: {text_of(error)}")
    if first is not None:
        raise first
