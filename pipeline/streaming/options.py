"""The options of Async I/O: each is declared, described and checked only here.

Operators and their parts get `AsyncOptions` whole. The TypedDicts list the options that a function accepts as keyword
arguments (`**options: Unpack[...]`), for editors and type checkers; `takes_options` shows them in the function's
signature and rejects any other name.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from numbers import Integral, Real
from typing import Any, Final, Literal, TypeAlias, TypedDict, TypeVar, cast

from dispatcher.errors import InvalidTypeError, InvalidValueError
from dispatcher.util import functions
from dispatcher.util.rate_limit import RateLimit
from pipeline.streaming.cache.results import ResultCache
from pipeline.streaming.calls.limits.adaptive import ADAPTIVE, AdaptiveRateLimit, AdaptiveRateLimiter
from pipeline.streaming.calls.rate_limit import ResumingRateLimiter
from pipeline.streaming.calls.retry import RetryStrategy
from pipeline.streaming.errors import CapturedError
from pipeline.streaming.function_forms import check_plain
from pipeline.streaming.number_checks import require_number

log: logging.Logger = logging.getLogger(__name__)

OutputMode: TypeAlias = Literal["ordered", "unordered"]
OnError: TypeAlias = Literal["fail", "drop", "capture"] | Callable[[CapturedError], Any]
RateLimitOption: TypeAlias = (
    RateLimit | ResumingRateLimiter | AdaptiveRateLimit | AdaptiveRateLimiter | Literal["adaptive"]
)
DeadLetter: TypeAlias = Callable[[CapturedError], Any]

_F = TypeVar("_F", bound=Callable[..., Any])
DEFAULT_CONCURRENCY: Final = 100
DEFAULT_POOL_SIZE: Final = 32
_DEFAULT_BATCH_SIZE: Final = 100
_COUNTS: Final = {"capacity": 1, "read_ahead": 0, "concurrency": 1, "remember": 0, "pool_size": 1, "max_batch_size": 1}
_FIRST: Final = ("df", "values")
"""The first parameter of the functions `ordered_wait` and `unordered_wait` of a DataFrame, and of an iterable."""
_MAY_BE_NONE: Final = {"capacity", "concurrency", "pool_size", "max_batch_size", "linger_ms"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncOptions:
    """How to take in records, call the function for them and emit the results. Pickles if its values do.

    `timeout_ms`: for a record with all its attempts, from the start of its first call, as in Flink, so without waits
        for a limit, a free slot or thread, or the end of a pause. 0 disables it, which excludes `retry`.
    `deadline_ms`: a second bound for a record, from its intake, and so including those waits. None disables it. If a
        record misses either, the function's `timeout` gives its results.
    `concurrency`: maximum calls in flight or, with the batch form, batches. By default `capacity`, as in Flink, else
        100.
    `capacity`: maximum elements in the queue: records taken in and not emitted, and watermarks. By default, unordered
        output has the same maximum as `concurrency`. Ordered output has 10 times as many as soon as the oldest call
        holds up the rest, so their slots don't idle, and up to 64 times as many while it still does, as long as the
        records in the queue take less than 64 MiB, by a sample. With the batch form and a `concurrency`, these numbers
        are of batches.
    `read_ahead`: calls handed to the host beyond `concurrency`, and elements taken in beyond `capacity` for them. Even
        so, up to `concurrency` calls are in flight. The next one starts the moment one has ended, without first waking
        other threads. If you pass in a CallHost, it needs `concurrency` as its `max_calls` for that.
    `output_mode`: "ordered" emits results in the order of the records, "unordered" as calls end. Watermarks keep their
        place in both.
    `retry`: which outcomes to retry, and when.
    `retries_at_end`: retries keep their delays at the end of the input. By default, as in Flink, the waiting ones are
        made at once, and none after them.
    `on_error`: what happens to a record whose last attempt failed. "fail" fails the task, "drop" counts it, "capture"
        emits a CapturedError in its place or, if you set `dead_letter`, passes it to that at once. A callable gets the
        CapturedError and returns results to emit, as a function does.
    `rate_limit`: how many calls can start in a given time. Pass a RateLimit or, to find out how many the service
        accepts, "adaptive" or an AdaptiveRateLimit. They cover all operators that share the host, or with scope "task"
        only this one. A ResumingRateLimiter or an AdaptiveRateLimiter covers all operators that share the limiter.
    `dedupe_by`: value -> key. While a call for a key is in flight, other records of the key wait for its outcome. The
        results of the last `remember` keys used are cached, for up to `remember_ms` if you set it. Aware datetimes are
        the same key if they are the same instant, and all NaN are one key.
    `combine`: (value, results) -> results, called when a record completes, to turn results shared by a key into the
        record's. It also gets captured errors and the results of a timeout.
    `cache`: a SqliteResults or PostgresResults, which keeps results beyond the job. A call is made only if it has no
        valid result for the record's key. Records with equal keys share a call, as with `dedupe_by`.
    `pool_size`: threads for a blocking function. By default `concurrency`, else 32.
    `max_batch_size`, `linger_ms`: for the batch form. A batch is sent when it's full, when its first member has waited
        `linger_ms` (0: when other mail has run), or when the queue is full. By default, `capacity`, up to 100, and 0 ms
        for an AsyncWaitOperator, 5 ms for the functions that wait for an input.

    Your functions among the options, and the function's `timeout`, run on the engine's thread, so they must not block.
    That's the thread of the calls' loop, or the mailbox thread of a StreamTask.

    Raises:
        ValueError, TypeError: an option is invalid. The message names it.
    """

    timeout_ms: int
    deadline_ms: int | None = None
    capacity: int | None = None
    read_ahead: int = 0
    output_mode: OutputMode = "ordered"
    retry: RetryStrategy | None = None
    retries_at_end: bool = False
    on_error: OnError = "fail"
    dead_letter: DeadLetter | None = None
    rate_limit: RateLimitOption | None = None
    concurrency: int | None = None
    dedupe_by: Callable[[Any], Any] | None = None
    remember: int = 0
    remember_ms: int | None = None
    combine: Callable[[Any, Sequence[Any]], Sequence[Any]] | None = None
    cache: ResultCache | None = None
    pool_size: int | None = None
    max_batch_size: int | None = None
    linger_ms: int | None = None

    def __post_init__(self) -> None:
        self._check_kinds()
        _check_number("timeout_ms", self.timeout_ms, 0)
        if self.deadline_ms is not None:
            _check_number("deadline_ms", self.deadline_ms, 1)
        if self.enabled_retry is not None and self.timeout_ms == 0:
            raise InvalidValueError("timeout_ms is 0; it must be positive, because it ends retries")
        for name, least in _COUNTS.items():
            _check_number(name, getattr(self, name), least, Integral)
        _check_number("linger_ms", self.linger_ms, 0)
        if self.output_mode not in ("ordered", "unordered"):
            raise InvalidValueError(f'output_mode is {self.output_mode!r}; choose "ordered" or "unordered"')
        if self.on_error not in ("fail", "drop", "capture") and not callable(self.on_error):
            raise InvalidValueError(
                f'on_error is {self.on_error!r}; choose "fail", "drop", "capture", or give a function'
            )
        if self.dead_letter is not None and self.on_error != "capture":
            raise InvalidValueError(f'on_error is {self.on_error!r}; dead_letter needs "capture"')
        if self.remember and self.dedupe_by is None:
            raise InvalidValueError(
                f"remember is {self.remember}; results are remembered by key: give dedupe_by as well"
            )
        if self.remember_ms is not None:
            require_number("remember_ms", self.remember_ms, above=0)
        if self.remember_ms is not None and not self.remember:
            raise InvalidValueError(
                f"remember_ms is {self.remember_ms}, but remember is 0: say how many keys to remember"
            )

    @property
    def enabled_retry(self) -> RetryStrategy | None:
        """The retry strategy, if any outcome can lead to another call."""
        return self.retry if self.retry is not None and self.retry.is_enabled() else None

    @property
    def batch_size(self) -> int:
        """Maximum rows of a call."""
        return self.max_batch_size or min(self.capacity or _DEFAULT_BATCH_SIZE, _DEFAULT_BATCH_SIZE)

    @property
    def most_calls(self) -> int:
        """Maximum calls in flight or, with the batch form, batches."""
        calls = self.concurrency or self.capacity or DEFAULT_CONCURRENCY
        return calls if self.capacity is None else min(calls, self.capacity)

    @property
    def threads(self) -> int:
        """Maximum threads that call a blocking function."""
        return self.pool_size or self.concurrency or DEFAULT_POOL_SIZE

    @property
    def may_grow(self) -> bool:
        """Whether the number of records taken in follows the calls and the memory, instead of being fixed."""
        return self.capacity is None and self.output_mode == "ordered"

    def records_for_calls(self, is_batch: bool) -> int:
        """Return how many records make `most_calls` calls, for a function of the batch form or another."""
        return self.most_calls * (self.batch_size if is_batch and self.concurrency is not None else 1)

    def first_records(self, is_batch: bool) -> int:
        """Return the maximum number of elements in the queue until it grows, if it can."""
        return self.capacity or self.records_for_calls(is_batch)

    def arguments(self) -> dict[str, Any]:
        """Return the options as keyword arguments."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _check_kinds(self) -> None:
        if not isinstance(self.retry, RetryStrategy | None):
            raise InvalidTypeError(
                f"retry is {self.retry!r}; give a RetryStrategy, such as RetryStrategy.fixed_delay(3, 100)"
            )
        limits = RateLimit | ResumingRateLimiter | AdaptiveRateLimit | AdaptiveRateLimiter | None
        if not isinstance(self.rate_limit, limits) and self.rate_limit != ADAPTIVE:
            raise InvalidTypeError(
                f"rate_limit is {self.rate_limit!r}; give a RateLimit, such as RateLimit(calls_per_s=100), "
                f'or "{ADAPTIVE}"'
            )
        if isinstance(self.rate_limit, RateLimit) and self.rate_limit.per_key:
            raise InvalidValueError("rate_limit has per_key=True, which only an AsyncioHandler takes; leave it out")
        if not isinstance(self.cache, ResultCache | None):
            raise InvalidTypeError(
                f"cache is {self.cache!r}; give a SqliteResults(path) or a PostgresResults(conninfo)"
            )
        for name in ("dead_letter", "dedupe_by", "combine"):
            if (function := getattr(self, name)) is not None and not callable(function):
                raise InvalidTypeError(f"{name} is {function!r}; give a function")
        for name in ("on_error", "dead_letter", "dedupe_by", "combine"):
            if callable(function := getattr(self, name)):
                check_plain(name, function)


class CallOptions(TypedDict, total=False):
    """What `lookup_join` takes. Each TypedDict below adds to the one above it."""

    capacity: int | None
    retry: RetryStrategy | None
    on_error: OnError
    rate_limit: RateLimitOption | None
    concurrency: int | None
    max_batch_size: int | None
    linger_ms: int | None


class WaitOptions(CallOptions, total=False):
    """What `ordered_wait` and `unordered_wait` of a DataFrame take, where `dedupe_by` may name columns."""

    remember: int
    remember_ms: int | None
    cache: ResultCache | None
    pool_size: int | None


class StreamOptions(WaitOptions, total=False):
    """What `ordered_wait` and `unordered_wait` of an iterable take."""

    dedupe_by: Callable[[Any], Any] | None
    dead_letter: DeadLetter | None


class OperatorOptions(StreamOptions, total=False):
    """What AsyncWaitOperator takes: all but `timeout_ms`, which is a parameter of its own."""

    deadline_ms: int | None
    output_mode: OutputMode
    read_ahead: int
    retries_at_end: bool
    combine: Callable[[Any, Sequence[Any]], Sequence[Any]] | None


class TimesInMs(TypedDict):
    """The two bounds of AsyncOptions that functions take in seconds."""

    timeout_ms: int
    deadline_ms: int | None


def times_in_ms(timeout: float, deadline: float | None) -> TimesInMs:
    """Seconds to whole milliseconds, at least 1. A deadline that ends before any timeout could is logged.

    Raises:
        ValueError: one is not positive, or not finite.
    """
    found: TimesInMs = {
        "timeout_ms": _in_ms("timeout", timeout, "for a value with all its attempts, from the start of its first call"),
        "deadline_ms": None if deadline is None else _in_ms("deadline", deadline, "from when a value is taken in"),
    }
    if deadline is not None and deadline < timeout:
        log.warning("deadline is %g s, less than timeout, %g s, which has no effect then", deadline, timeout)
    return found


def _in_ms(name: str, seconds: float, meaning: str) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, Real) or not 0 < seconds < math.inf:
        raise InvalidValueError(f"{name} is {seconds!r}; it must be a positive, finite number of seconds {meaning}")
    return max(1, round(seconds * 1000))


def takes_options(
    accepted: type, *, check_first: Callable[[str, Any], None] | None = None, **defaults: object
) -> Callable[[_F], _F]:
    """For a function with `**options: Unpack[accepted]`, whose other defaults are AsyncOptions's.

    `check_first`: called before the options are looked at, with the function's public name and its first argument,
        which can belong to the function of the same name in another package.
    """
    with_options = functions.takes_options(accepted, AsyncOptions, **defaults)
    if check_first is None:
        return with_options

    def decorate(function: _F) -> _F:
        called, name = with_options(function), functions.public_name(function)

        @wraps(called)
        def checked(*args: Any, **given: Any) -> Any:
            if first := args or tuple(given[each] for each in _FIRST if each in given):
                check_first(name, first[0])
            return called(*args, **given)

        return cast(_F, checked)

    return decorate


def _check_number(name: str, number: Any, least: int, kind: type = Real) -> None:
    if number is None and name in _MAY_BE_NONE:
        return
    require_number(name, number, least=least, whole=kind is Integral)
