"""The loop of the mailbox thread, after Flink's MailboxProcessor: mail first, then one turn of the default action.

One turn runs at most one batch of mail before the default action, so mail that sends mail cannot starve it
(after FLINK-14304). When the default action has nothing to do it suspends itself, and the thread waits for mail.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Final, Protocol

from dispatcher.errors import MailboxClosedError, MailboxStateError
from dispatcher.mailbox.executor import MailboxExecutor
from dispatcher.mailbox.latency import MailboxMetricsController
from dispatcher.mailbox.mail import MAX_PRIORITY, MIN_PRIORITY, ActionExecutor, Mail, MailOptions
from dispatcher.mailbox.task_mailbox import MailboxState, TaskMailbox

_OPEN: Final = MailboxState.OPEN  # an Enum's member is slow to look up, and the loop turns often


class PeriodTimer(Protocol):
    """Measures periods, such as those in which a default action has nothing to do. Called on the mailbox thread."""

    def mark_start(self) -> None: ...

    def mark_end(self) -> None: ...


class IdleTimer:
    """A PeriodTimer that adds up its periods. Written by the mailbox thread, read by any."""

    __slots__ = ("_clock_ns", "_total_and_since")

    def __init__(self, clock_ns: Callable[[], int] = perf_counter_ns) -> None:
        self._clock_ns = clock_ns
        # Of the periods that have ended, and the start of one that has not; replaced as one, so that nobody sees a
        # period twice or not at all.
        self._total_and_since: tuple[int, int | None] = (0, None)

    def mark_start(self) -> None:
        self._total_and_since = (self._total_and_since[0], self._clock_ns())

    def mark_end(self) -> None:
        total_ns, since_ns = self._total_and_since
        if since_ns is not None:
            self._total_and_since = (total_ns + self._clock_ns() - since_ns, None)

    @property
    def total_ns(self) -> int:
        """Of all periods so far, the part of an unended one included."""
        total_ns, since_ns = self._total_and_since
        return total_ns if since_ns is None else total_ns + self._clock_ns() - since_ns


class Suspension:
    """A suspended default action. `resume` works from any thread, any number of times, for this suspension only."""

    __slots__ = ("_processor", "_timer")

    def __init__(self, processor: MailboxProcessor, timer: PeriodTimer | None = None) -> None:
        self._processor = processor
        self._timer = timer

    def resume(self) -> None:
        self._processor._resume(self)


class MailboxController:
    """What a default action may do to its loop. Mailbox thread only."""

    __slots__ = ("_processor",)

    def __init__(self, processor: MailboxProcessor) -> None:
        self._processor = processor

    def suspend_default_action(self, timer: PeriodTimer | None = None) -> Suspension:
        """Run no default action until the suspension is resumed; mail goes on.

        A `timer` that the caller has started runs until then, but not while mail does.

        Raises:
            MailboxStateError: not the mailbox thread, or it is suspended already.
        """
        return self._processor._suspend_default_action(timer)

    def all_actions_completed(self) -> None:
        """End the loop for good, after this turn of the default action."""
        self._processor.all_actions_completed()


DefaultAction = Callable[[MailboxController], Any]


class MailboxProcessor:
    """Runs mail and a default action on the mailbox thread until suspended or completed.

    `run_mailbox_loop`, the single steps, `prepare_close`, `close` and `drain` are the mailbox thread's; `suspend`,
    `all_actions_completed`, `report_throwable` and the executors are for every thread. `action_executor` runs all mail
    of the executors made here.
    """

    def __init__(
        self,
        default_action: DefaultAction,
        mailbox: TaskMailbox | None = None,
        *,
        action_executor: ActionExecutor | None = None,
        metrics_controller: MailboxMetricsController | None = None,
    ) -> None:
        self._mailbox = mailbox or TaskMailbox()
        self._action_executor = action_executor
        self._metrics = metrics_controller or MailboxMetricsController()
        self._default_action = default_action
        self._controller = MailboxController(self)
        self._loop_running = True  # mailbox thread only; false for ever once completed
        self._suspended = False  # mailbox thread only
        self._suspension: Suspension | None = None  # mailbox thread only; None: the default action may run
        self.mails_run = 0  # written by the mailbox thread only; counted before the run

    @property
    def mailbox(self) -> TaskMailbox:
        return self._mailbox

    @property
    def main_mailbox_executor(self) -> MailboxExecutor:
        return MailboxExecutor(self._mailbox, MIN_PRIORITY, action_executor=self._action_executor)

    @property
    def metrics_controller(self) -> MailboxMetricsController:
        return self._metrics

    def mailbox_executor(self, priority: int) -> MailboxExecutor:
        return MailboxExecutor(self._mailbox, priority, self, action_executor=self._action_executor)

    def is_mailbox_loop_running(self) -> bool:
        return self._loop_running

    def is_default_action_available(self) -> bool:
        return self._suspension is None

    def is_idle(self) -> bool:
        return (
            self._suspension is not None and not self._mailbox.has_mail() and self._mailbox.state is MailboxState.OPEN
        )

    def run_mailbox_loop(self) -> None:
        """Run until `suspend` or `all_actions_completed`. What a mail or the default action raises ends it, too.

        After `suspend` it may be called again; after `all_actions_completed` it returns at once.

        Raises:
            MailboxStateError: not the mailbox thread. MailboxClosedError: the mailbox is not open.
        """
        self._check_runnable()
        self._suspended = not self._loop_running
        action, controller, mailbox = self._default_action, self._controller, self._mailbox
        while not self._suspended:
            # The same hints that create_batch looks at first, without the call: most turns have no mail.
            if mailbox.new_mail or mailbox.batch or self._suspension is not None or mailbox.state is not _OPEN:
                self._process_mail()
                if self._suspended:
                    break
            action(controller)

    def run_mailbox_step(self) -> bool:
        """Run one mail, or else one turn of the default action if it is available; says whether anything ran.

        After `all_actions_completed` nothing does.
        """
        self._check_runnable()
        self._suspended = not self._loop_running
        if self._suspended:
            return False
        return self._run_one_batched_mail() or self._run_default_action_if_available()

    def run_single_mailbox_loop(self) -> bool:
        """Run one mail, if there is one, and then one turn of the default action if it is available.

        Says whether anything ran. After `all_actions_completed` nothing does.
        """
        self._check_runnable()
        self._suspended = not self._loop_running
        if self._suspended:
            return False
        ran_mail = self._run_one_batched_mail()
        return (not self._suspended and self._run_default_action_if_available()) or ran_mail

    def suspend(self) -> None:
        """Make the loop return after the mail that runs now. Any thread; nothing if the mailbox is not open."""

        def suspend() -> None:
            self._suspended = True

        self.send_control_mail_if_open(suspend, "suspend the mailbox loop")

    def all_actions_completed(self) -> None:
        """End the loop for good. Any thread; nothing if the mailbox is not open."""

        def complete() -> None:
            self._loop_running = False
            self._suspended = True

        self.send_control_mail_if_open(complete, "complete the mailbox loop")

    def report_throwable(self, error: BaseException) -> None:
        """Raise `error` inside the loop. Any thread.

        Raises:
            MailboxClosedError: the mailbox takes no more mail.
        """

        def fail() -> None:
            raise error

        self._send_control_mail(fail, "report %r", error)

    def send_control_mail_if_open(self, action: Callable[[], None], description: str) -> None:
        """Run `action` before all other mail. Any thread; nothing if the mailbox is not open."""

        def send() -> None:
            if self._mailbox.state is MailboxState.OPEN:
                self._send_control_mail(action, description)

        self._mailbox.run_exclusively(send)

    def prepare_close(self) -> None:
        """Refuse new mail; what is there still runs with `drain`."""
        self._mailbox.quiesce()

    def drain(self) -> None:
        """Run all mail that is there, whatever the loop's state. What a mail raises ends it; the rest stays."""
        batch, queue = self._mailbox.take_all()
        try:
            for left in (batch, queue):
                while left:
                    self._run_mail(left.popleft())
        finally:
            # Behind a mail that raised: it would be lost, and its futures would never be done.
            if not self._mailbox.give_back(batch, queue):
                _cancel([*batch, *queue])

    def close(self) -> None:
        """Close the mailbox and cancel the futures among the mail that did not run.

        Raises:
            Exception: the first error of a cancellation, after all were tried; the others are its notes.
        """
        _cancel(self._mailbox.close())

    def _check_runnable(self) -> None:
        if not self._mailbox.is_mailbox_thread():
            raise MailboxStateError("the mailbox loop runs on the mailbox thread only; start it there")
        if self._mailbox.state is not MailboxState.OPEN:
            raise MailboxClosedError(self._mailbox.state, "run the mailbox loop")

    def _process_mail(self) -> None:
        """Run one batch of mail, then more while the default action is suspended."""
        mailbox = self._mailbox
        if mailbox.create_batch():
            suspension = self._mark_idle_end()
            batch = mailbox.batch
            while (batch or mailbox.new_urgent_mail) and not self._suspended:
                if mailbox.new_urgent_mail:
                    mailbox.pull(urgent_only=True)
                self._run_mail(batch.popleft())
            self._mark_idle_start(suspension)
        while self._suspension is not None and not self._suspended:
            mail = mailbox.take(MIN_PRIORITY)
            suspension = self._mark_idle_end()
            self._run_mail(mail)
            self._mark_idle_start(suspension)

    def _run_mail(self, mail: Mail) -> None:
        self.mails_run += 1  # before the run: mail that fails counts, too
        mail.run()
        if self._metrics.is_waiting_for_start and not self._suspended:
            self._metrics.start_latency_measurement()

    def _mark_idle_end(self) -> Suspension | None:
        suspension = self._suspension
        if suspension is not None and suspension._timer is not None:
            suspension._timer.mark_end()
        return suspension

    def _mark_idle_start(self, suspension: Suspension | None) -> None:
        """Mail has been run: idle again, unless that mail resumed the default action."""
        if suspension is not None and suspension._timer is not None and self._suspension is suspension:
            suspension._timer.mark_start()

    def _run_one_batched_mail(self) -> bool:
        if not self._mailbox.create_batch():
            return False
        mail = self._mailbox.try_take_from_batch()
        if mail is None:
            return False
        suspension = self._mark_idle_end()
        self._run_mail(mail)
        self._mark_idle_start(suspension)
        return True

    def _run_default_action_if_available(self) -> bool:
        if self._suspension is not None:
            return False
        self._default_action(self._controller)
        return True

    def _suspend_default_action(self, timer: PeriodTimer | None) -> Suspension:
        if not self._mailbox.is_mailbox_thread():
            raise MailboxStateError("the default action is suspended by the mailbox thread only")
        if self._suspension is not None:
            raise MailboxStateError("the default action is suspended already; resume that suspension first")
        suspension = self._suspension = Suspension(self, timer)
        return suspension

    def _resume(self, suspension: Suspension) -> None:
        def resume() -> None:
            if self._suspension is suspension:
                self._suspension = None

        if self._mailbox.is_mailbox_thread():
            resume()
        else:
            self.send_control_mail_if_open(resume, "resume the default action")

    def _send_control_mail(self, action: Callable[[], None], description: str, *args: Any) -> None:
        self._mailbox.put(Mail(action, MAX_PRIORITY, description, *args, options=MailOptions.URGENT))


def _cancel(mails: list[Mail]) -> None:
    """Cancel the futures among mails that will not run; raises the first error, after all were tried."""
    first: BaseException | None = None
    for mail in mails:
        try:
            mail.try_cancel()
        except BaseException as error:
            if first is None:
                first = error
            else:
                first.add_note(f"and {mail.description}: {error!r}")
    if first is not None:
        raise first
