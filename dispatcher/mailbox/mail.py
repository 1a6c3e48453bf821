"""Mail: a piece of work for the mailbox thread, after Flink's Mail and MailOptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

from dispatcher.util.foreign import text_of
from dispatcher.util.functions import ran

MIN_PRIORITY: Final = -1
"""Priority of mail without an operator, which only the main loop runs."""
MAX_PRIORITY: Final = 2**31 - 1

ActionExecutor = Callable[[Callable[[], Any]], Any]
"""Runs an action inside something else: a lock, a context, a measurement."""


class MailOptions:
    """How a mail is queued. Use the constants.

    DEFAULT: in order of arrival. URGENT: before all mail that isn't urgent. DEFERRABLE: only the main loop runs it,
    never a yield at a priority of 0 or more.
    """

    __slots__ = ("is_deferrable", "is_urgent")

    DEFAULT: ClassVar[MailOptions]
    URGENT: ClassVar[MailOptions]
    DEFERRABLE: ClassVar[MailOptions]

    def __init__(self, *, is_urgent: bool = False, is_deferrable: bool = False) -> None:
        self.is_urgent: bool = is_urgent
        self.is_deferrable: bool = is_deferrable

    def __repr__(self) -> str:
        return "URGENT" if self.is_urgent else "DEFERRABLE" if self.is_deferrable else "DEFAULT"


MailOptions.DEFAULT = MailOptions()
MailOptions.URGENT = MailOptions(is_urgent=True)
MailOptions.DEFERRABLE = MailOptions(is_deferrable=True)


class Mail:
    """A runnable with a description and a priority. Priorities filter mail and never sort it.

    `description` is %-formatted with `args` when you read it. Takes filter by `priority`, the effective one.
    `original_priority` is the sender's. `action_executor` runs the runnable (after StreamTaskActionExecutor).
    """

    __slots__ = ("_action_executor", "_args", "_description", "options", "original_priority", "priority", "runnable")

    def __init__(
        self,
        runnable: Callable[[], Any],
        priority: int,
        description: str = "",
        *args: Any,
        options: MailOptions = MailOptions.DEFAULT,
        action_executor: ActionExecutor | None = None,
    ) -> None:
        self.runnable: Callable[..., Any] = runnable
        self.original_priority: int = priority
        self.priority: int = MIN_PRIORITY if options.is_deferrable else priority
        self.options: MailOptions = options
        self._description = description
        self._args = args
        self._action_executor = action_executor

    @property
    def is_urgent(self) -> bool:
        """Whether it's taken before all other mail."""
        return self.options.is_urgent

    @property
    def description(self) -> str:
        """The description, without its arguments if one can't be formatted. Never raises."""
        if not self._description:
            return text_of(self.runnable)
        try:
            return self._description % self._args if self._args else self._description
        except Exception:
            return self._description

    def run(self) -> None:
        """Run the command, on the mailbox thread."""
        if self._action_executor is None:
            result = self.runnable()
            if result is not None:
                ran(self.runnable, result)
        else:
            self._action_executor(self.runnable)

    def try_cancel(self) -> bool:
        """Cancel the runnable if it's a future, and return whether it was cancelled."""
        cancel = getattr(self.runnable, "cancel", None)
        return bool(cancel()) if cancel is not None else False

    def __repr__(self) -> str:
        return f"<Mail {self.description!r} priority={self.original_priority} {self.options!r}>"
