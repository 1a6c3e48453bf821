"""The loop of the mailbox thread, after Flink's MailboxProcessor: mail first, then one turn of the default action.

One turn runs at most one batch of mail before the default action, so mail that sends mail cannot starve it
(after FLINK-14304). When the default action has nothing to do it suspends itself, and the thread waits for mail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from dispatcher.errors import MailboxClosedError, MailboxStateError
from dispatcher.mailbox.executor import MailboxExecutor
from dispatcher.mailbox.mail import MAX_PRIORITY, MIN_PRIORITY, Mail, MailOptions
from dispatcher.mailbox.task_mailbox import MailboxState, TaskMailbox


class Suspension:
    """A suspended default action. `resume` works from any thread, any number of times, for this suspension only."""

    __slots__ = ("_processor",)

    def __init__(self, processor: MailboxProcessor) -> None:
        self._processor = processor

    def resume(self) -> None:
        self._processor._resume(self)


class MailboxController:
    """What a default action may do to its loop. Mailbox thread only."""

    __slots__ = ("_processor",)

    def __init__(self, processor: MailboxProcessor) -> None:
        self._processor = processor

    def suspend_default_action(self) -> Suspension:
        """Run no default action until the suspension is resumed; mail goes on.

        Raises:
            MailboxStateError: not the mailbox thread, or it is suspended already.
        """
        return self._processor._suspend_default_action()

    def all_actions_completed(self) -> None:
        """End the loop for good, after this turn of the default action."""
        self._processor.all_actions_completed()


DefaultAction = Callable[[MailboxController], Any]


class MailboxProcessor:
    """Runs mail and a default action on the mailbox thread until suspended or completed.

    `run_mailbox_loop`, `run_mailbox_step`, `prepare_close`, `close` and `drain` are the mailbox thread's; `suspend`,
    `all_actions_completed`, `report_throwable` and the executors are for every thread.
    """

    def __init__(self, default_action: DefaultAction, mailbox: TaskMailbox | None = None) -> None:
        self._mailbox = mailbox or TaskMailbox()
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
        return MailboxExecutor(self._mailbox, MIN_PRIORITY)

    def mailbox_executor(self, priority: int) -> MailboxExecutor:
        return MailboxExecutor(self._mailbox, priority, self)

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
            if mailbox._new_mail or mailbox._batch or self._suspension is not None:
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
        if self._mailbox.create_batch():
            mail = self._mailbox.try_take_from_batch()
            if mail is not None:
                self._run_mail(mail)
                return True
        if self._suspension is not None:
            return False
        self._default_action(self._controller)
        return True

    def suspend(self) -> None:
        """Make the loop return after the mail that runs now. Any thread; nothing if the mailbox is not open."""

        def suspend() -> None:
            self._suspended = True

        self._send_control_mail_if_open(suspend, "suspend the mailbox loop")

    def all_actions_completed(self) -> None:
        """End the loop for good. Any thread; nothing if the mailbox is not open."""

        def complete() -> None:
            self._loop_running = False
            self._suspended = True

        self._send_control_mail_if_open(complete, "complete the mailbox loop")

    def report_throwable(self, error: BaseException) -> None:
        """Raise `error` inside the loop. Any thread.

        Raises:
            MailboxClosedError: the mailbox takes no more mail.
        """

        def fail() -> None:
            raise error

        self._send_control_mail(fail, "report %r", error)

    def prepare_close(self) -> None:
        """Refuse new mail; what is there still runs with `drain`."""
        self._mailbox.quiesce()

    def drain(self) -> None:
        """Run all mail that is there, whatever the loop's state. What a mail raises ends it; the rest stays."""
        left = deque(self._mailbox.drain())
        try:
            while left:
                self._run_mail(left.popleft())
        finally:
            # Behind a mail that raised: left here, it would be lost, and its futures would never be done.
            self._mailbox._batch.extendleft(reversed(left))

    def close(self) -> None:
        """Close the mailbox and cancel the futures among the mail that did not run.

        Raises:
            Exception: the first error of a cancellation, after all were tried; the others are its notes.
        """
        first: Exception | None = None
        for mail in self._mailbox.close():
            try:
                mail.try_cancel()
            except Exception as error:
                if first is None:
                    first = error
                else:
                    first.add_note(f"and {mail.description}: {error!r}")
        if first is not None:
            raise first

    def _check_runnable(self) -> None:
        if not self._mailbox.is_mailbox_thread():
            raise MailboxStateError("the mailbox loop runs on the mailbox thread only; start it there")
        if self._mailbox.state is not MailboxState.OPEN:
            raise MailboxClosedError(self._mailbox.state, "run the mailbox loop")

    def _process_mail(self) -> None:
        """Run one batch of mail, then more while the default action is suspended."""
        mailbox = self._mailbox
        if mailbox.create_batch():
            while not self._suspended:
                mail = mailbox.try_take_from_batch()
                if mail is None:
                    break
                self._run_mail(mail)
        while self._suspension is not None and not self._suspended:
            self._run_mail(mailbox.take(MIN_PRIORITY))

    def _run_mail(self, mail: Mail) -> None:
        self.mails_run += 1  # before the run: mail that fails counts, too
        mail.run()

    def _suspend_default_action(self) -> Suspension:
        if not self._mailbox.is_mailbox_thread():
            raise MailboxStateError("the default action is suspended by the mailbox thread only")
        if self._suspension is not None:
            raise MailboxStateError("the default action is suspended already; resume that suspension first")
        suspension = self._suspension = Suspension(self)
        return suspension

    def _resume(self, suspension: Suspension) -> None:
        def resume() -> None:
            if self._suspension is suspension:
                self._suspension = None

        if self._mailbox.is_mailbox_thread():
            resume()
        else:
            self._send_control_mail_if_open(resume, "resume the default action")

    def _send_control_mail(self, action: Callable[[], None], description: str, *args: Any) -> None:
        self._mailbox.put(Mail(action, MAX_PRIORITY, description, *args, options=MailOptions.URGENT))

    def _send_control_mail_if_open(self, action: Callable[[], None], description: str) -> None:
        def send() -> None:
            if self._mailbox.state is MailboxState.OPEN:
                self._send_control_mail(action, description)

        self._mailbox.run_exclusively(send)
