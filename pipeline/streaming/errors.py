"""The errors of stream tasks and asynchronous calls.

    DispatcherError
      StreamingError              catch this for all of them
        AsyncTimeoutError         service: a call was not answered in time (also a TimeoutError)
        AsyncOperatorError        user's function or service: a record failed, and with it the task
        CheckpointError           the folder, or a value's type: a checkpoint cannot be taken, stored or restored
          DamagedCheckpointError  the disk, or a program that changed the file
        ForkedWaitError           user: an iterator of results was used in a forked child
        InputClosedError          user: a producer comes too late
        ResultCacheError          the file, the database or its settings: a cache of results cannot be used
          ResultCacheAwayError    service: the cache's database does not answer now
        OperatorStateError        caller: an operator or a host was opened, used or restored in the wrong order
        SourceInterruptedError    no fault: stops a source whose task is over
        TaskCancelledError        no fault: the task was cancelled
        UnknownOutcomeError       no fault: a call was in flight when its process ended, and is not made again

A RetryAfter is not among them: a user's function raises it to say when the service accepts calls again.
"""

from __future__ import annotations

import math
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC
from email.utils import parsedate_to_datetime
from numbers import Real
from typing import Any

from dispatcher.errors import DispatcherError, InvalidValueError
from dispatcher.util.figures import moment
from dispatcher.util.foreign import cut_text, full_class_name, message_of
from dispatcher.util.units import NS_PER_S

_QUOTED_CHARACTERS = 500
_LONGEST_PAUSE_S = 86_400.0


class StreamingError(DispatcherError):
    """Base class of the errors of stream tasks and their operators."""


@dataclass(frozen=True, slots=True)
class CallTimes:
    """Where a record's time went since it was taken in."""

    waiting_ms: float = 0.0
    """Waiting for a rate limit, a free slot or thread, a batch to fill, or the end of a pause."""
    under_way_ms: float = 0.0
    """In calls of the function, all attempts together."""
    between_ms: float = 0.0
    """Between attempts: the delays of the retry strategy."""

    @property
    def total_ms(self) -> float:
        return self.waiting_ms + self.under_way_ms + self.between_ms

    def __str__(self) -> str:
        return (
            f"{self.waiting_ms:.0f} ms waiting for the limit, {self.under_way_ms:.0f} ms in flight, "
            f"{self.between_ms:.0f} ms between attempts"
        )


class AsyncTimeoutError(StreamingError, TimeoutError):
    """Raised when a record had no answer, with all attempts, within its timeout or by its deadline.

    `times`: where the time went, or None if unknown.
    """

    def __init__(
        self,
        timeout_ms: float | None = None,
        attempts: int = 1,
        times: CallTimes | None = None,
        deadline_ms: float | None = None,
    ) -> None:
        self.timeout_ms = timeout_ms
        self.attempts = attempts
        self.times = times
        self.deadline_ms = deadline_ms
        # All constructor arguments, so that it pickles.
        super().__init__(timeout_ms, attempts, times, deadline_ms)

    def __str__(self) -> str:
        if self.deadline_ms is not None:
            missed = f"no answer by the deadline, {self.deadline_ms:g} ms after the record was taken in"
        elif self.timeout_ms is not None:
            missed = f"no answer within {self.timeout_ms:g} ms"
        else:
            return "the call was not answered in time"
        bound = "timeout" if self.deadline_ms is None else "deadline"
        return (
            f"{missed} (attempt {self.attempts}{'' if self.times is None else f'; {self.times}'}). {self._why()}"
            f"Raise the {bound}, or give the function a timeout() that returns the results to emit instead."
        )

    def _why(self) -> str:
        times = self.times
        if self.deadline_ms is not None or times is None or times.under_way_ms or times.between_ms:
            return ""
        return "Its call could not begin, because calls before it do not end. "


class AsyncOperatorError(StreamingError):
    """Raised when a record's last attempt failed and `on_error` fails the task. Raised `from` the call's error."""

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
            'To continue without it, set on_error to "drop", "capture" or a function.'
        )


class CheckpointError(StreamingError):
    """Raised when a checkpoint can't be taken, stored or restored."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint's file was cut off or changed, is not the checkpoint of its name, or cannot be read."""


class ForkedWaitError(StreamingError):
    """Raised when you use an iterator of `ordered_wait` or `unordered_wait` in a forked child.

    Its threads are in the parent.
    """

    def __init__(self) -> None:
        super().__init__(
            "this process was forked from the one that reads these results, and has none of the threads that make "
            "them. Call ordered_wait or unordered_wait in each process, after the fork."
        )


class InputClosedError(StreamingError):
    """Raised when you put an element into an ended input, or one of a task that is over."""


class OperatorStateError(StreamingError, RuntimeError):
    """An operator or a host was opened, used or restored in the wrong order. The message says what to call first."""


class ResultCacheError(StreamingError):
    """Raised when a cache of results has an unusable file, database or setting.

    The message is one line, without a password.
    """


class ResultCacheAwayError(ResultCacheError):
    """Raised when the database of a cache can't be reached, is locked, or went away. You can retry."""


class SourceInterruptedError(StreamingError):
    """Raised in a source's `run`, which must end because the task is over. You don't need to handle this error."""


class TaskCancelledError(StreamingError):
    """Raised when a task was cancelled before it had processed all of its input."""


class UnknownOutcomeError(StreamingError):
    """Raised for a call that was in flight when its process ended or gave it up. The service could have done its work.

    With `on_unknown="capture"` a cache doesn't make it again. `began_at` is in Unix seconds.
    """

    def __init__(self, key: str, began_at: float) -> None:
        self.key = key
        self.began_at = began_at
        super().__init__(key, began_at)

    def __str__(self) -> str:
        began = moment(int(self.began_at * NS_PER_S))
        return (
            f"the call for the key {self.key}, begun at {began}, was cut off, so its outcome is unknown. Ask the "
            "service what it did; then call the cache's forget_unknown(), and the call is made again."
        )


class RetryAfter(Exception):
    """Raise it in your function when the service accepts no call for a while.

    `delay_s` is in seconds. You can also pass the service's header `Retry-After`: seconds as text, an HTTP date in any
    of its three formats, or None without one. The attribute always has the seconds. A header that makes no sense
    doesn't fail the row: a negative or an infinite number, NaN, a date in the past, an empty or any other text count as
    None. A pause of more than a day counts as one of a day.

    All calls of the limit's scope wait until then. This one is then made again, before calls not made yet, within its
    timeout. It doesn't count as an attempt of the retry strategy. If a call is rejected repeatedly, its pauses grow
    from 50 ms to 5 s, even if the service asks for shorter ones. To find the rate instead, use `rate_limit="adaptive"`.

    Raises:
        ValueError: `delay_s` is neither a number nor a text.
    """

    def __init__(self, delay_s: float | str | None, cause: BaseException | None = None) -> None:
        seconds: Any = 0.0 if delay_s is None else delay_s
        if isinstance(delay_s, str):
            seconds = _seconds_of_header(delay_s)
        elif isinstance(delay_s, bool) or not isinstance(seconds, Real):
            raise InvalidValueError(f"delay_s is {quoted(delay_s)}; it must be a number of seconds, or a header's text")
        # NaN is neither.
        self.delay_s: float = float(min(seconds, _LONGEST_PAUSE_S)) if 0 <= seconds < math.inf else 0.0
        self.cause = cause
        super().__init__(self.delay_s, cause)

    def __str__(self) -> str:
        return f"the service asks for a pause of {self.delay_s:g} s" + (
            f" ({describe(self.cause)})" if self.cause is not None else ""
        )


def _seconds_of_header(text: str) -> float:
    with suppress(ValueError):
        return float(text)
    try:
        date = parsedate_to_datetime(text)
        if date.tzinfo is None:  # in the format of asctime: HTTP's dates are all in GMT
            date = date.replace(tzinfo=UTC)
        return date.timestamp() - time.time()
    except Exception:  # the parser of dates has raised errors of several classes for odd texts
        return 0.0


@dataclass(frozen=True, slots=True)
class CapturedError:
    """A record whose last attempt failed, and its error.

    `error_class` is the name of the error's class, with its module unless that's `builtins`. `time_spent_ms` runs from
    the record's intake, so it includes waits for limits and retries. `error` is the error itself, unless it has crossed
    a process boundary.
    """

    input: object
    error_class: str
    message: str
    attempts: int
    time_spent_ms: float = field(compare=False)
    error: BaseException | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, value: object, error: BaseException, attempts: int, started_ns: int) -> CapturedError:
        """Make one from an error as it occurs. `started_ns` (`time.perf_counter_ns`) is the intake."""
        spent_ms = (time.perf_counter_ns() - started_ns) / 1e6
        return cls(value, full_class_name(error), message_of(error), attempts, spent_ms, error)


def describe(error: BaseException) -> str:
    """One line: the error's class and message."""
    message = " ".join(message_of(error).split())
    name = full_class_name(error)
    return f"{name}: {message}" if message else name


def quoted(value: object) -> str:
    """The repr of a value, truncated for messages."""
    text = cut_text(lambda: repr(value), sys.maxsize)
    return text if len(text) <= _QUOTED_CHARACTERS else f"{text[:_QUOTED_CHARACTERS]}... ({len(text)} characters)"
