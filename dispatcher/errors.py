"""Every exception of the core.

    DispatcherError
      InvalidValueError             caller: an argument's value; a ValueError as well
      InvalidTypeError              caller: an argument's type; a TypeError as well
      DeadlockError                 caller: it would wait for itself; a RuntimeError as well
      ServiceStateError             caller: a life-cycle method was called in the wrong state
      UnregisteredEventTypeError    caller: no handler is registered for the event's Enum class
      QueueFullError                load: a bounded queue is full, and the caller does not wait
      EventRefusedError             load, disk or shutdown: an event of `post_later` or `ask` was rejected
      EventDiscardedError           load or shutdown: an event of `ask` was accepted, and will not be handled
      AskError                      caller: an event cannot be asked, or the caller would wait for itself
      MailboxStateError             caller: a mailbox method was called from the wrong thread or at the wrong time
        MailboxClosedError          caller or shutdown: the mailbox is quiesced or closed
      NoEventInHandError            caller: a transition that a journal records, outside the handling of an event
      EventLoopClosedError          caller: the event loop of an `async def` handler was closed before its events ended
      RejectedExecutionError        shutdown: an executor no longer takes work
      ForkedProcessError            caller: a dispatcher or a journal of the parent process was used in a forked child
      ConfigError                   user: a configuration file, a key or a value; a ValueError as well
      JournalError                  user or disk: the journal cannot be written or read
        JournalLossError            disk: accepted events are gone from every segment, and may not have been handled
        EventNotDeclaredError       caller: write-ahead mode, and the event's class was not declared at registration

A message gives the values, says what would have been right and what to do. The values are also attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Final

from dispatcher.util.figures import counted
from dispatcher.util.foreign import class_name, is_member, kind_of, register_call, text_of, type_of


class DispatcherError(Exception):
    """Base of all errors raised by the dispatcher and the packages built on it."""


class InvalidValueError(DispatcherError, ValueError):
    """An argument has a value that isn't allowed."""


class InvalidTypeError(DispatcherError, TypeError):
    """An argument has a type that isn't allowed, or a function of yours returned such a value."""


class DeadlockError(DispatcherError, RuntimeError):
    """The caller would wait for itself: it is a handler, or runs on the event loop that it would block."""


class ServiceStateError(DispatcherError):
    """Raised when you call a life-cycle method in a state that doesn't allow it."""

    def __init__(self, service: str, state: Enum, wanted: Enum, advice: str = "") -> None:
        self.service = service
        self.state = state
        self.wanted = wanted
        hint = f" {advice}" if advice else ""
        super().__init__(f"{service}: cannot go from {state.name} to {wanted.name}.{hint}")


class UnregisteredEventTypeError(DispatcherError):
    """Raised for an event whose Enum class has no handler."""

    def __init__(self, dispatcher: str, event_type: object) -> None:
        self.dispatcher = dispatcher
        self.event_type = event_type
        if is_member(event_type):
            what = f"no handler for {kind_of(event_type)}"
            advice = f"Call {register_call(class_name(event_type), '')} before posting."
        else:
            what = f"an event needs an Enum member as its .type, got {text_of(event_type)}"
            advice = "Give the event class a `type` attribute that is an Enum member."
        super().__init__(f"{dispatcher}: {what}. {advice}")


class QueueFullError(DispatcherError):
    """Raised when you post to a full queue without waiting, or before its dispatcher is started."""

    def __init__(self, name: str, capacity: int, *, is_started: bool = True) -> None:
        self.name = name
        self.capacity = capacity
        held = counted(capacity, "event")
        super().__init__(
            f"{name}: the queue is full ({held}). Post in a way that waits, raise queue_capacity, "
            "or slow the producers down."
            if is_started
            else f"{name}: not started, and the queue is full ({held}): the post would wait for the start. "
            "Start the dispatcher first, or raise queue_capacity."
        )


class EventRefusedError(DispatcherError):
    """Set on the future of `post_later` or `ask` where `post` would return False. `post_after` raises it.

    `reason` is as in the dispatcher's counts of rejected posts: `full`, `timeout`, `reentrant`, `draining`, `stopped`
    or `journal`. With `journal`, `__cause__` is the error of the disk. It's `post` if your subclass's `post` has not
    passed on the event of an `ask`.
    """

    def __init__(self, dispatcher: str, reason: str, cause: Exception | None = None) -> None:
        self.dispatcher = dispatcher
        self.reason = reason
        said = f": {cause}" if cause is not None else ". " + _ADVICE.get(reason, "Post it again later.")
        super().__init__(f"{dispatcher}: the event was rejected ({reason}){said}")
        self.__cause__ = cause


_ADVICE: Final = {
    "full": "The queue is full: raise queue_capacity, or slow the producers down.",
    "timeout": "The queue had no room in time: raise queue_capacity, or slow the producers down.",
    "draining": "The dispatcher is stopping.",
    "stopped": "The dispatcher has stopped.",
    "post": "The `post` of its class did not pass it on.",
}


class EventDiscardedError(DispatcherError):
    """Set on the future of `ask` when an accepted event will never be handled.

    `reason` is `stop`, `drop_oldest` or `superseded`, as in the dispatcher's counts of discarded events. In write-ahead
    mode, the next start handles an event that a stop discarded, but nobody receives its answer.
    """

    def __init__(self, dispatcher: str, reason: str) -> None:
        self.dispatcher = dispatcher
        self.reason = reason
        super().__init__(f"{dispatcher}: the event was discarded ({reason}). {_DISCARDED[reason]}")


_DISCARDED: Final = {
    "stop": "The dispatcher stopped before it was handled to the end.",
    "drop_oldest": "The queue was full, and drops its oldest event for a new one.",
    "superseded": "A newer event of its key took its place.",
}


class AskError(DispatcherError, RuntimeError):
    """Raised by `ask` when you can't ask the event, and by its future where you'd wait without end.

    After an error of `ask`, nothing was posted.
    """

    def __init__(self, dispatcher: str, problem: str) -> None:
        self.dispatcher = dispatcher
        super().__init__(f"{dispatcher}: {problem}")


class EventLoopClosedError(DispatcherError):
    """The event loop of an `async def` handler is closed, so that the handler's event cannot end."""

    def __init__(self, handler: object) -> None:
        self.handler = handler
        super().__init__(
            f"{text_of(handler)}: its event loop is closed. Stop the dispatcher before the loop ends, with "
            "`await aio.stop(dispatcher)`."
        )


class NoEventInHandError(DispatcherError):
    """A journal was to record a transition, but the caller does not handle an event of the journal's dispatcher.

    The machine raises this before it changes.
    """

    def __init__(self, dispatcher: str, problem: str) -> None:
        self.dispatcher = dispatcher
        super().__init__(
            f"{dispatcher}: the journal records a transition under the event that makes it, but {problem}. Make the "
            "transition in the event's handler, which may await tasks, `aio.submit` and `asyncio.to_thread` for it. A "
            "thread of your own needs `contextvars.copy_context().run`. Elsewhere, post an event whose handler makes "
            "the transition."
        )


class MailboxStateError(DispatcherError):
    """Raised when you call a mailbox or processor method on the wrong thread or at the wrong time."""


class MailboxClosedError(MailboxStateError):
    """Raised when the mailbox no longer accepts mail (QUIESCED) or no longer returns any (CLOSED)."""

    def __init__(self, state: Enum, action: str) -> None:
        self.state = state
        super().__init__(f"cannot {action}: the mailbox is {state.name}")


class RejectedExecutionError(DispatcherError):
    """Raised when you send a command to a mailbox that accepts no more mail."""


class ForkedProcessError(DispatcherError):
    """Raised in a forked child when you use something that belongs to the parent process.

    The thread of a dispatcher or timer service runs in the parent, and only the parent writes a journal. `name` is that
    of the dispatcher or service, or the journal's path. `journal` is that path, if any.
    """

    def __init__(self, name: str, journal: Path | None = None) -> None:
        self.name: str = name
        self.dispatcher: str = name
        self.journal = journal
        if journal is None:
            why = "in which its thread runs"
            advice = "Make one in each process, after the fork."
        else:
            why = "that opened the journal" if name == str(journal) else f"that opened the journal {journal}"
            advice = (
                "In each process, after the fork, make the dispatcher and its JournalWriter; give each a folder of its "
                "own."
            )
        super().__init__(f"{name}: this process was forked from the one {why}. {advice}")


class ConfigError(DispatcherError, ValueError):
    """Raised for an invalid configuration file, key or value, also by the constructors of configuration models.

    You can show its one-line message to users.
    """


class JournalError(DispatcherError):
    """Raised when the event journal can't be written or read."""


class JournalLossError(JournalError):
    """Raised in write-ahead mode if accepted events were lost with damaged or missing segments.

    No row says that they were handled. Nothing in the folder was changed.
    """

    def __init__(self, path: object, losses: Sequence[object]) -> None:
        self.losses = losses
        lines = "; ".join(map(str, losses))
        super().__init__(
            f"{path}: {lines}. Put the segments back, for example from a backup, or set on_loss: start to go on "
            "without these events."
        )


class EventNotDeclaredError(JournalError):
    """Raised in write-ahead mode when you post an event whose class isn't declared for its Enum class."""

    def __init__(self, dispatcher: str, event: object, event_type: object = None) -> None:
        """`event_type`: the type that a scope gave the event; by default, `event.type`."""
        self.dispatcher = dispatcher
        self.event = event
        enum = class_name(type_of(event) if event_type is None else event_type)
        name = class_name(event)
        super().__init__(
            f"{dispatcher}: {name} is not declared for {enum}, so it cannot be kept in the write-ahead journal. "
            f"Call {register_call(enum, f', events={name}')} with a pydantic model or a dataclass."
        )
