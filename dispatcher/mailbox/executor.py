"""Running callables on the mailbox thread, after Flink's MailboxExecutor."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from dispatcher.errors import MailboxClosedError, RejectedExecutionError
from dispatcher.mailbox.mail import ActionExecutor, Mail, MailOptions
from dispatcher.mailbox.task_mailbox import TaskMailbox
from dispatcher.util.foreign import reraise_interrupt, text_of
from dispatcher.util.functions import ran

T = TypeVar("T")

_DEFAULT = MailOptions.DEFAULT


class MailboxExecutor:
    """Sends commands to a mailbox at one priority.

    `is_idle`: the default action is suspended, no mail waits, and the mailbox is open.
    `bind`: called with a command on the sender's thread, returns the callable to run instead.
    `run_nested`: runs the mail when a command or the default action yields.

    Any thread can call `execute` and `submit`. Only the mailbox thread can call `yield_`, `try_yield` and
    `should_interrupt`.
    """

    def __init__(
        self,
        mailbox: TaskMailbox,
        priority: int,
        *,
        is_idle: Callable[[], bool] = lambda: False,
        action_executor: ActionExecutor | None = None,
        bind: Callable[[Callable[[], Any]], Callable[[], Any]] | None = None,
        run_nested: Callable[[Mail], None] | None = None,
    ) -> None:
        self._mailbox = mailbox
        self.priority = priority  # never changes
        self.is_idle = is_idle  # never changes
        self._action_executor = action_executor
        self._bind, self._run_nested = bind, run_nested or Mail.run

    def execute(
        self,
        command: Callable[[], Any],
        description: str = "",
        *args: Any,
        options: MailOptions = MailOptions.DEFAULT,
    ) -> None:
        """Run `command` on the mailbox thread. If it raises, the mailbox loop fails.

        Raises:
            RejectedExecutionError: the mailbox accepts no more mail, and the command won't run.
        """
        self._send(command if self._bind is None else self._bind(command), description, args, options)

    def _send(self, command: Callable[[], Any], description: str, args: tuple[Any, ...], options: MailOptions) -> None:
        if args or options is not _DEFAULT or self._action_executor is not None:
            mail = Mail(
                command, self.priority, description, *args, options=options, action_executor=self._action_executor
            )
        else:
            mail = Mail(command, self.priority, description)  # positional: half the time of the above
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
        """Run `command` as `execute` does, and return a future. An error goes to the future instead of the loop.

        It can be any error, even a SystemExit. Only Ctrl-C also ends the loop, if the mailbox thread is the main
        thread. A command that runs nothing when called, such as an `async def`, is a TypeError.
        """
        task = _FutureTask(command, command if self._bind is None else self._bind(command))
        self._send(task, description, args, options)
        return task.future

    def yield_(self) -> None:
        """Wait for a mail of this priority or higher, and run it.

        Raises:
            MailboxStateError: you're not on the mailbox thread.
            MailboxClosedError: the mailbox is closed.
        """
        self._run_nested(self._mailbox.take(self.priority))

    def try_yield(self, *, ignore_deferrable: bool = False) -> bool:
        """Run one waiting mail of this priority or higher, and return whether there was one.

        With `ignore_deferrable`, deferrable mail counts with its original priority.
        """
        mail = self._mailbox.try_take(self.priority, ignore_deferrable=ignore_deferrable)
        if mail is None:
            return False
        self._run_nested(mail)
        return True

    def should_interrupt(self) -> bool:
        """Whether mail is waiting, so that long work on the mailbox thread should yield."""
        return self._mailbox.has_mail()

    def as_executor(self) -> ExecutorView:
        """Return this executor with the signature of `concurrent.futures`: `submit(fn, *args)`."""
        return ExecutorView(self)


class ExecutorView:
    """`submit(fn, *args, **kwargs) -> Future` on a mailbox thread."""

    def __init__(self, executor: MailboxExecutor) -> None:
        self._executor = executor

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run `fn(*args, **kwargs)` on the mailbox thread. Any thread; does not block."""
        return self._executor.submit(partial(fn, *args, **kwargs), "%s", fn)


class _FutureTask:
    """A mail's runnable that completes a future. Closing the mailbox cancels it."""

    __slots__ = ("_cancelled", "_command", "_run", "future")

    def __init__(self, command: Callable[[], Any], run: Callable[[], Any]) -> None:
        self._command = command  # what was given, for the log
        self._run = run
        self._cancelled = False  # mailbox thread only: the future is done, and must not be touched again
        self.future: Future[Any] = Future()

    def __call__(self) -> None:
        if self._cancelled:
            return
        if not self.future.set_running_or_notify_cancel():
            self._cancelled = True
            return
        try:
            result = ran(self._command, self._run())
        except BaseException as error:
            self.future.set_exception(error)
            reraise_interrupt(error)
        else:
            self.future.set_result(result)

    def __repr__(self) -> str:
        return f"call of {text_of(self._command)}"

    def cancel(self) -> bool:
        if self._cancelled or not self.future.cancel():
            return self._cancelled
        self._cancelled = True
        # Without this, concurrent.futures.wait never sees the future done; no later run makes the call.
        self.future.set_running_or_notify_cancel()
        return True
