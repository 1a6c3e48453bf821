"""What can go wrong with stream tasks and asynchronous calls, and what is kept of it.

    DispatcherError
      StreamingError              catch this for all of them
        AsyncTimeoutError         service: a call was not answered in time (is a TimeoutError, too)
        AsyncOperatorError        user's function or service: a record failed, and with it the task
        CheckpointError           the folder, or what a value is: a checkpoint cannot be taken, stored or restored
          DamagedCheckpointError  the disk, or whoever changed the file
        InputClosedError          user: a producer comes too late
        SourceInterruptedError    nobody: tells a source that its task is over
        TaskCancelledError        nobody: the task was cancelled

A RetryAfter is no error of ours: a user's function raises it to say when the service wants to be called again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from dispatcher.errors import DispatcherError

_QUOTED_CHARACTERS = 500


class StreamingError(DispatcherError):
    """Base class of what stream tasks and their operators raise."""


class AsyncTimeoutError(StreamingError, TimeoutError):
    """A call, with all its attempts, was not answered in time."""

    def __init__(self, timeout_ms: float | None = None, attempts: int = 1) -> None:
        self.timeout_ms = timeout_ms
        self.attempts = attempts
        # These are all of its arguments, so that it pickles.
        super().__init__(timeout_ms, attempts)

    def __str__(self) -> str:
        if self.timeout_ms is None:
            return "the call was not answered in time"
        return (
            f"no answer within {self.timeout_ms:g} ms (attempt {self.attempts}). Raise the timeout, or give the "
            "function a timeout() that returns what is to be emitted instead."
        )


class AsyncOperatorError(StreamingError):
    """A record's call failed for good, and `on_error` says that this fails the task. Raised `from` the call's error."""

    def __init__(self, operator: str, value: object, cause: BaseException, attempts: int) -> None:
        self.operator = operator
        self.value = value
        self.cause = cause
        self.attempts = attempts
        super().__init__(operator, value, cause, attempts)

    def __str__(self) -> str:
        tried = f" after {self.attempts} attempts" if self.attempts > 1 else ""
        return (
            f"{self.operator}: could not complete the element {quoted(self.value)}{tried}: {describe(self.cause)}. "
            'To go on without it, set on_error to "drop", "capture" or a function.'
        )


class CheckpointError(StreamingError):
    """A checkpoint cannot be taken, stored or restored."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint's file is not what was written: cut off, or changed."""


class InputClosedError(StreamingError):
    """A producer put something into an input that has been ended, or whose task is over."""


class SourceInterruptedError(StreamingError):
    """The task of a source is over: the source's `run` is to end, and need not do anything with this error."""


class TaskCancelledError(StreamingError):
    """A task was cancelled before it had processed all of its input."""


class RetryAfter(Exception):
    """Raised by a user's function: the service wants no call before `delay_s` seconds have passed.

    All calls of the limit's scope wait until then, and this one is made again, behind those that wait already, within
    its timeout. It does not count as an attempt of the retry strategy.
    """

    def __init__(self, delay_s: float, cause: BaseException | None = None) -> None:
        if not 0 <= delay_s < float("inf"):
            raise ValueError(f"delay_s is {delay_s}; a pause takes 0 seconds or more, and ends")
        self.delay_s = delay_s
        self.cause = cause
        super().__init__(delay_s, cause)

    def __str__(self) -> str:
        return f"the service asks for a pause of {self.delay_s:g} s" + (
            f" ({describe(self.cause)})" if self.cause is not None else ""
        )


@dataclass(frozen=True, slots=True)
class CapturedError:
    """A record whose call failed for good, and what is known of that.

    `error_class` is the name of the error's class, with its module unless that is a built-in. `time_spent_ms` runs
    from when the operator took the record in, so it includes the waits for a limit and between attempts. `error` is
    the error itself, where it has not crossed a process.
    """

    input: object
    error_class: str
    message: str
    attempts: int
    time_spent_ms: float = field(compare=False)
    error: BaseException | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, value: object, error: BaseException, attempts: int, started_ns: int) -> CapturedError:
        """Of an error that has just happened to a record taken in at `started_ns` (of `time.perf_counter_ns`)."""
        spent_ms = (time.perf_counter_ns() - started_ns) / 1e6
        return cls(value, class_name(error), str(error), attempts, spent_ms, error)


def class_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def describe(error: BaseException) -> str:
    """One line: the error's class and message."""
    message = " ".join(str(error).split())
    return f"{class_name(error)}: {message}" if message else class_name(error)


def quoted(value: object) -> str:
    """A value as it is shown in a message: its repr, cut to what fits into one."""
    text = repr(value)
    return text if len(text) <= _QUOTED_CHARACTERS else f"{text[:_QUOTED_CHARACTERS]}... ({len(text)} characters)"
