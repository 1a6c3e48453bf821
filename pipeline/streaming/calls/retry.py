"""Retry strategies of asynchronous calls: whether to make a call again after an attempt, and after which delay.

A strategy reads no clock and keeps no state: the operator counts the attempts of each record and asks. So one strategy
serves any number of records, operators and threads. It pickles if its predicates do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from dispatcher.errors import InvalidTypeError, InvalidValueError

RetryOnResult: TypeAlias = Callable[[Sequence[Any]], bool]
RetryOnException: TypeAlias = Callable[[BaseException], bool] | type[BaseException] | tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryStrategy:
    """When to repeat a call. Create one with `no_retry`, `fixed_delay` or `exponential_backoff`.

    Attempts count from 1. As in Flink, `max_attempts` counts those that another can follow: 2 means up to 3 calls. The
    predicates decide which outcomes are retried. Without a predicate, none are.

    - `retry_on_result` gets the list of results, for example `operator.not_` to retry an empty one.
    - `retry_on_exception` gets the error. It can also be the class to retry on, or a tuple of classes.

    Your predicates run on the engine's thread, so they must not block. If one raises, its error propagates to the
    caller.
    """

    max_attempts: int
    initial_delay_ms: int
    max_delay_ms: int
    multiplier: float = 1.0
    jitter: float = 0.0
    retry_on_result: RetryOnResult | None = None
    retry_on_exception: RetryOnException | None = None

    @classmethod
    def no_retry(cls) -> RetryStrategy:
        """Make one attempt only."""
        return cls(max_attempts=0, initial_delay_ms=1, max_delay_ms=1)

    @classmethod
    def fixed_delay(
        cls,
        max_attempts: int,
        delay_ms: int,
        retry_on_result: RetryOnResult | None = None,
        retry_on_exception: RetryOnException | None = None,
    ) -> RetryStrategy:
        """Retry `delay_ms` after each outcome accepted by a predicate.

        Raises:
            ValueError: a number is out of range. The message names it.
            TypeError: a predicate is neither callable nor an exception class.
        """
        _check_count("max_attempts", max_attempts)
        _check_count("delay_ms", delay_ms)
        return cls.exponential_backoff(max_attempts, delay_ms, delay_ms, 1.0, 0.0, retry_on_result, retry_on_exception)

    @classmethod
    def exponential_backoff(
        cls,
        max_attempts: int,
        initial_delay_ms: int,
        max_delay_ms: int,
        multiplier: float,
        jitter: float = 0.0,
        retry_on_result: RetryOnResult | None = None,
        retry_on_exception: RetryOnException | None = None,
    ) -> RetryStrategy:
        """Retry after a delay that grows by `multiplier` from one attempt to the next, up to `max_delay_ms`.

        `jitter`: how much shorter or longer a delay can be, as a fraction, so that calls that failed together don't
            retry together. A delay never exceeds `max_delay_ms`, even with jitter.

        Raises:
            ValueError, TypeError: as `fixed_delay`.
        """
        _check_count("max_attempts", max_attempts)
        return cls(
            max_attempts=max_attempts,
            initial_delay_ms=initial_delay_ms,
            max_delay_ms=max_delay_ms,
            multiplier=multiplier,
            jitter=jitter,
            retry_on_result=retry_on_result,
            retry_on_exception=retry_on_exception,
        )

    def __post_init__(self) -> None:
        if not _is_int(self.max_attempts) or self.max_attempts < 0:
            raise InvalidValueError(
                f"max_attempts is {self.max_attempts!r}; it must be a whole number, 0 for no retry."
            )
        _check_count("initial_delay_ms", self.initial_delay_ms)
        _check_count("max_delay_ms", self.max_delay_ms)
        if self.max_delay_ms < self.initial_delay_ms:
            raise InvalidValueError(
                f"max_delay_ms is {self.max_delay_ms}, less than initial_delay_ms, which is {self.initial_delay_ms}; "
                "the longest delay cannot be below the first."
            )
        if not _is_number(self.multiplier) or not 1 <= self.multiplier < float("inf"):
            raise InvalidValueError(f"multiplier is {self.multiplier!r}; it must be a number of at least 1, such as 2.")
        if not _is_number(self.jitter) or not 0 <= self.jitter <= 1:
            raise InvalidValueError(
                f"jitter is {self.jitter!r}; it must be a fraction from 0 (none) to 1, such as 0.2."
            )
        _check_predicates(self.retry_on_result, self.retry_on_exception)

    def is_enabled(self) -> bool:
        """Whether any outcome can lead to another call."""
        return self.max_attempts > 0 and (self.retry_on_result is not None or self.retry_on_exception is not None)

    def can_retry(self, attempt: int) -> bool:
        """Whether another attempt can follow number `attempt`, counted from 1."""
        return attempt <= self.max_attempts

    def backoff_ms(self, attempt: int, draw: Callable[[], float] = random.random) -> int:
        """Return the delay from the end of attempt number `attempt` to the start of the next, or -1 for `no_retry`.

        `draw`: the source of jitter, uniform from 0 to 1. Not called without jitter.
        """
        if self.max_attempts == 0:
            return -1
        try:
            delay_ms = min(self.initial_delay_ms * float(self.multiplier) ** (attempt - 1), float(self.max_delay_ms))
        except OverflowError:
            delay_ms = float(self.max_delay_ms)
        if self.jitter == 0:
            return int(delay_ms)
        # Cap the range, not the drawn delay: half of the delays at the cap would otherwise be equal.
        shortest_ms = delay_ms * (1 - self.jitter)
        longest_ms = min(delay_ms * (1 + self.jitter), float(self.max_delay_ms))
        return int(shortest_ms + (longest_ms - shortest_ms) * draw())

    def retries_result(self, results: Sequence[Any]) -> bool:
        """Whether a call with this result is repeated."""
        predicate = self.retry_on_result
        return predicate is not None and bool(predicate(results))

    def retries_error(self, error: BaseException) -> bool:
        """Whether a call that raised this is repeated."""
        predicate = self.retry_on_exception
        if predicate is None:
            return False
        if isinstance(predicate, (type, tuple)):
            return issubclass(type(error), predicate)
        return bool(predicate(error))


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_count(name: str, value: int) -> None:
    if not _is_int(value) or value < 1:
        raise InvalidValueError(f"{name} is {value!r}; it must be a whole number of at least 1.")


def _check_predicates(on_result: object, on_exception: object) -> None:
    if on_result is not None and (isinstance(on_result, type) or not callable(on_result)):
        raise InvalidTypeError(f"retry_on_result is {on_result!r}; it must be a function of the list of results.")
    if isinstance(on_exception, (type, tuple)):
        classes = on_exception if isinstance(on_exception, tuple) else (on_exception,)
        is_valid = classes != () and all(isinstance(each, type) and issubclass(each, BaseException) for each in classes)
    else:
        is_valid = on_exception is None or callable(on_exception)
    if not is_valid:
        raise InvalidTypeError(
            f"retry_on_exception is {on_exception!r}; it must be an exception class, a tuple of them, "
            "or a function of the error."
        )
