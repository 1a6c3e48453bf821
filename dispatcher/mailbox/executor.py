"""Running callables on the mailbox thread, after Flink's MailboxExecutor."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from dispatcher.errors import MailboxClosedError, RejectedExecutionError
from dispatcher.mailbox.mail import ActionExecutor, Mail, MailOptions
from dispatcher.mailbox.task_mailbox import TaskMailbox

T = TypeVar("T")

_DEFAULT = MailOptions.DEFAULT


class MailboxLoop(Protocol):
    """The loop that runs the mail, as far as an executor asks about it."""

    def is_idle(self) -> bool: ...


class MailboxExecutor:
    """Sends commands to a mailbox at one priority.

    Any thread may `execute` and `submit`; `yield_`, `try_yield` and `should_interrupt` are the mailbox thread's.
    """

    def __init__(
        self,
        mailbox: TaskMailbox,
        priority: int,
        processor: MailboxLoop | None = None,
        *,
        action_executor: ActionExecutor | None = None,
    ) -> None:
        self._mailbox = mailbox
        self._priority = priority
        self._processor = processor
        self._action_executor = action_executor

    @property
    def priority(self) -> int:
        return self._priority

    def execute(
        self,
        command: Callable[[], Any],
        description: str = "",
        *args: Any,
        options: MailOptions = MailOptions.DEFAULT,
    ) -> None:
        """Run `command` on the mailbox thread. What it raises fails the mailbox loop.

        Raises:
            RejectedExecutionError: the mailbox takes no more mail; the command will not run.
        """
        if args or options is not _DEFAULT or self._action_executor is not None:
            mail = Mail(
                command, self._priority, description, *args, options=options, action_executor=self._action_executor
            )
        else:
            mail = Mail(command, self._priority, description)  # positional: half the time of the above
        try:
            self._mailbox.put(mail)
        except MailboxClosedError as error:
            raise RejectedExecutionError(f"{mail.description} was rejected: {error}") from error

    def submit(
        self,
        command: Callable[[], T],
        description: str = "",
        *args: Any,
        options: MailOptions = MailOptions.DEFAULT,
    ) -> Future[T]:
        """As `execute`, but the result, or what the command raises, goes to the future and not to the loop."""
        task = _FutureTask(command)
        self.execute(task, description, *args, options=options)
        return task.future

    def yield_(self) -> None:
        """Run one mail of this priority or a higher one; waits for one.

        Raises:
            MailboxStateError: not the mailbox thread. MailboxClosedError: the mailbox is closed.
        """
        self._mailbox.take(self._priority).run()

    def try_yield(self, *, ignore_deferrable: bool = False) -> bool:
        """Run one mail of this priority or a higher one if there is one, and say whether there was.

        With `ignore_deferrable`, deferrable mail counts with the priority it was sent with.
        """
        mail = self._mailbox.try_take(self._priority, ignore_deferrable=ignore_deferrable)
        if mail is None:
            return False
        mail.run()
        return True

    def should_interrupt(self) -> bool:
        """Whether mail waits, so that a long piece of work on the mailbox thread had better end soon."""
        return self._mailbox.has_mail()

    def is_idle(self) -> bool:
        """The default action has nothing to do, there is no mail, and the mailbox is open."""
        processor = self._processor
        return processor is not None and processor.is_idle()

    def as_executor(self) -> ExecutorView:
        """This executor with the signature of `concurrent.futures`: `submit(fn, *args)`."""
        return ExecutorView(self)


class ExecutorView:
    """`submit(fn, *args, **kwargs) -> Future` on a mailbox thread."""

    def __init__(self, executor: MailboxExecutor) -> None:
        self._executor = executor

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run `fn(*args, **kwargs)` on the mailbox thread. Any thread; does not block."""
        return self._executor.submit(lambda: fn(*args, **kwargs), "%s", fn)


class _FutureTask:
    """A mail's runnable whose result goes to a future. Cancelled with its mail when the mailbox closes."""

    __slots__ = ("_cancelled", "_command", "future")

    def __init__(self, command: Callable[[], Any]) -> None:
        self._command = command
        self._cancelled = False  # mailbox thread only: nobody is to touch the future any more
        self.future: Future[Any] = Future()

    def __call__(self) -> None:
        if self._cancelled:
            return
        if not self.future.set_running_or_notify_cancel():
            self._cancelled = True
            return
        try:
            result = self._command()
        except BaseException as error:
            self.future.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            self.future.set_result(result)

    def cancel(self) -> bool:
        if self._cancelled or not self.future.cancel():
            return self._cancelled
        self._cancelled = True
        # No run will do it any more, and without it concurrent.futures.wait never sees the future done.
        self.future.set_running_or_notify_cancel()
        return True
