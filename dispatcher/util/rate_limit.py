"""Rate limits: how many calls may start in a given time.

A `RateLimit` is a value that says what is allowed, and travels to where the calls are made. A `RateLimiter` enforces
one limit there. Handlers and the streams of `pipeline.streaming` share both.
"""

from __future__ import annotations

import math
import numbers
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

from dispatcher.errors import InvalidValueError

RateLimitScope: TypeAlias = Literal["job", "worker", "task"]

_DEFAULT_BURST_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class RateLimit:
    """Up to `burst + calls_per_s * t` calls start in any t seconds.

    `burst`: how many calls can start at once after a rest. By default, the calls allowed by `calls_per_s` in 20 ms, and
        at least 1. So up to 50 calls/s are spaced evenly, and above that a late timer costs no calls. With a burst of
        3 calls or more, calls that wait start in groups of up to half a burst, or 10 ms of the rate.
    `cost`: value -> the cost of its call. By default, 1. The rate and the burst then have its unit, such as bytes or
        tokens. It's called on the engine's thread, for a handler's event on the handler thread. A call that costs more
        than the burst starts when the burst is full, and later calls wait until it's paid off. The bound then has that
        cost in place of the burst. Limits are equal whatever their costs are: unpickled for the next task, a function
        is another object.
    `scope`: of a stream, which of its tasks share the limit.
    `per_key`: of an AsyncioHandler, whether each key has the rate and the burst to itself.

    Raises:
        ValueError: a number is out of range, or the scope is unknown. The message names it.
    """

    calls_per_s: float
    burst: float | None = None
    cost: Callable[[Any], float] | None = field(default=None, compare=False)
    scope: RateLimitScope = "job"
    per_key: bool = False

    def __post_init__(self) -> None:
        check_rate("calls_per_s", self.calls_per_s)
        if self.burst is not None and not _is_positive(self.burst):
            raise InvalidValueError(
                f"burst is {self.burst!r}; it must be a number above 0, such as 1, or None for the default."
            )
        check_cost_and_scope(self.cost, self.scope)
        if not isinstance(self.per_key, bool):
            raise InvalidValueError(f"per_key is {self.per_key!r}; it must be True or False.")

    @property
    def burst_calls(self) -> float:
        """How many calls can begin at once after a pause."""
        return max(1.0, self.calls_per_s * _DEFAULT_BURST_S) if self.burst is None else self.burst

    def cost_of(self, value: object) -> float:
        """Return the cost of a call for `value`. If `cost` raises, its error propagates.

        Raises:
            ValueError: `cost` didn't return a number of at least 0.
        """
        return cost_of(self.cost, value)

    def split(self, workers: int) -> RateLimit:
        """Divide a limit for all `workers` workers into the share of each. The scope of a share isn't "job".

        The burst is divided as well. Each worker can start one call at once, however small its burst.

        Raises:
            ValueError: `workers` isn't a whole number of at least 1.
        """
        check_workers(workers)
        burst = None if self.burst is None else self.burst / workers
        return replace(self, calls_per_s=self.calls_per_s / workers, burst=burst, scope=share_scope(self.scope))


class RateLimiter:
    """Hands out start times for calls, in the order of the requests. Any thread; never waits.

    Each user keeps its calls in a line and reserves for the first of them only. So users take turns; a call that
    leaves the line leaves its reservation to the next that costs no more; and a pause voids at most one reservation
    of each user. To start a call:

        start_ms = limiter.reserve(now_ms, cost)        # then wait until start_ms
        if limiter.ready_at(start_ms) > start_ms:       # a pause has begun meanwhile: the reservation is void
            start_ms = limiter.reserve(now_ms, cost)    # and wait again

    Times are milliseconds of a monotonic clock that all users share.
    """

    __slots__ = ("_burst_ms", "_full_ms", "_last_ms", "_lock", "_ms_per_unit", "_paused_until_ms", "limit")

    def __init__(self, limit: RateLimit) -> None:
        self.limit: RateLimit = limit  # never changes
        self._lock = threading.Lock()  # leaf lock
        self._ms_per_unit = 1000.0 / limit.calls_per_s  # never changes
        self._burst_ms = limit.burst_calls * self._ms_per_unit  # time to refill an empty burst
        # Guarded by _lock. Usage is kept as the time at which the burst would be full again: exact whatever time passes
        # between two calls, and without a timer.
        self._full_ms = -math.inf
        self._last_ms = -math.inf  # guarded by _lock; the latest start handed out, which no later one precedes
        self._paused_until_ms = -math.inf  # written under _lock, read without it: one reference, which only grows

    @property
    def spare_ms(self) -> float:
        """How much later than reserved each call can start without lowering the rate; 0 where calls are spaced."""
        spare_ms = self._burst_ms - self._ms_per_unit
        return spare_ms if spare_ms >= 2 * self._ms_per_unit else 0.0

    def reserve(self, now_ms: float, cost: float = 1.0) -> float:
        """Reserve a start for a call of this `cost`; return its time, `now_ms` or later.

        Start times never decrease: a later reservation starts no earlier, however little its call costs.

        Raises:
            ValueError: `cost` is not a number of at least 0. Nothing was reserved.
        """
        if not 0 <= cost < math.inf:
            raise InvalidValueError(f"cost is {cost!r}; it must be a number of at least 0.")
        cost_ms = cost * self._ms_per_unit
        with self._lock:
            # The call starts when the burst holds its cost, or is full if it costs more.
            enough_ms = self._full_ms - max(self._burst_ms - cost_ms, 0.0)
            start_ms = max(now_ms, enough_ms, self._last_ms, self._paused_until_ms)
            self._full_ms = max(self._full_ms, start_ms) + cost_ms
            self._last_ms = start_ms
            return start_ms

    def is_full(self, now_ms: float) -> bool:
        """Whether a new limiter would do as well: the burst is full."""
        with self._lock:
            return max(self._full_ms, self._paused_until_ms) <= now_ms

    def pause(self, until_ms: float) -> None:
        """Start no call before `until_ms`. Of several pauses, the one that ends last counts.

        Raises:
            ValueError: the pause would never end.
        """
        if not until_ms < math.inf:
            raise InvalidValueError(f"until_ms is {until_ms!r}; it must be a finite time.")
        with self._lock:
            self._paused_until_ms = max(self._paused_until_ms, until_ms)

    def ready_at(self, time_ms: float) -> float:
        """`time_ms`, or the end of the pause if that is later. Takes no lock."""
        return max(time_ms, self._paused_until_ms)


def cost_of(cost: Callable[[Any], float] | None, value: object) -> float:
    """The cost of a call for `value`, 1 without a `cost`.

    Raises:
        ValueError: `cost` did not return a number of at least 0. What `cost` raises propagates.
    """
    if cost is None:
        return 1.0
    amount = cost(value)
    if not isinstance(amount, numbers.Real) or not 0 <= amount < math.inf:
        raise InvalidValueError(f"cost of {value!r} is {amount!r}; it must be a number of at least 0.")
    return float(amount)


def share_scope(scope: RateLimitScope) -> RateLimitScope:
    """The scope of a share: what was the job's is the worker's, and is not divided again."""
    return "worker" if scope == "job" else scope


def check_rate(name: str, value: object) -> None:
    if not _is_positive(value):
        raise InvalidValueError(f"{name} is {value!r}; it must be a number above 0, such as 100.")


def check_cost_and_scope(cost: object, scope: object) -> None:
    if cost is not None and not callable(cost):
        raise InvalidValueError(f"cost is {cost!r}; it must be a function of the value that returns a number.")
    if scope not in ("job", "worker", "task"):
        raise InvalidValueError(f"scope is {scope!r}; it must be 'job', 'worker' or 'task'.")


def check_workers(workers: object) -> None:
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise InvalidValueError(f"workers is {workers!r}; it must be a whole number of at least 1.")


def _is_positive(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
