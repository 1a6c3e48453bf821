"""Rate limits: how many calls may start in a time, whoever makes them.

A `RateLimit` says what is allowed; it is a value, and travels to where the calls are made. A `RateLimiter` keeps the
books of one limit there. What it covers is the limit's scope:

- `"task"`: each operator has a limiter of its own. With n tasks at once, n times the rate.
- `"worker"`: one limiter for all operators that share the host of a function, one after the other or at once. On Spark
  that is a Python worker, of which there is one for each task that runs at once, kept from task to task: a new task
  begins with what the one before has left, not with a new burst.

No limiter sees other processes. A limit over a whole job is divided: `limit.split(n)` for n workers. On Spark n is how
many tasks run at once: all executor cores over `spark.task.cpus`. Workers that are idle leave their part unused. Where
that matters let the service decide: raise `RetryAfter` when it refuses (HTTP 429), which pauses the whole scope.
"""

from __future__ import annotations

import math
import numbers
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

RateLimitScope: TypeAlias = Literal["task", "worker"]

_DEFAULT_BURST_S = 0.02


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most `burst + calls_per_s * t` calls start in any t seconds.

    `burst`: how many may start at once after a rest. By default what `calls_per_s` allows in 20 ms, and at least 1: up
    to 50 calls/s are spaced evenly, and above that a timer that is late by some milliseconds costs no calls.

    `cost`: what a call for a value counts for, 1 where none is given; the rate and the burst are then in its unit, such
    as bytes or tokens. It is called on the mailbox thread. A call that costs more than the burst starts when the burst
    is full, and those after it wait until it is paid off: in place of the burst, the bound then has that cost.
    Limits are equal whatever their costs are: unpickled for the next task, a function is another object.

    Raises:
        ValueError: a number is out of its range, or the scope unknown; the message names it.
    """

    calls_per_s: float
    burst: float | None = None
    cost: Callable[[Any], float] | None = field(default=None, compare=False)
    scope: RateLimitScope = "worker"

    def __post_init__(self) -> None:
        if not _is_positive(self.calls_per_s):
            raise ValueError(f"calls_per_s is {self.calls_per_s!r}; it has to be a number above 0, such as 100.")
        if self.burst is not None and not _is_positive(self.burst):
            raise ValueError(f"burst is {self.burst!r}; it has to be a number above 0, such as 1, or None to choose.")
        if self.cost is not None and not callable(self.cost):
            raise ValueError(f"cost is {self.cost!r}; it has to be a function of the value that returns a number.")
        if self.scope not in ("task", "worker"):
            raise ValueError(f"scope is {self.scope!r}; it has to be 'task' or 'worker'.")

    @property
    def burst_calls(self) -> float:
        """The burst, chosen if none was given."""
        return max(1.0, self.calls_per_s * _DEFAULT_BURST_S) if self.burst is None else self.burst

    def cost_of(self, value: object) -> float:
        """What a call for `value` counts for.

        Raises:
            ValueError: `cost` gave something else than a number of at least 0. What it raises itself is passed on.
        """
        if self.cost is None:
            return 1.0
        cost = self.cost(value)
        if not isinstance(cost, numbers.Real) or not 0 <= cost < math.inf:
            raise ValueError(f"cost of {value!r} is {cost!r}; it has to be a number of at least 0.")
        return float(cost)

    def split(self, workers: int) -> RateLimit:
        """The part of each of `workers` workers in a limit that is meant for all of them together.

        A burst is divided, too. The least that can start at once is one call in each worker, whatever the burst.

        Raises:
            ValueError: `workers` is not a whole number of at least 1.
        """
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise ValueError(f"workers is {workers!r}; it has to be a whole number of at least 1.")
        burst = None if self.burst is None else self.burst / workers
        return replace(self, calls_per_s=self.calls_per_s / workers, burst=burst)


class RateLimiter:
    """Hands out the times at which calls may start, in the order in which they are asked for. Any thread; no waiting.

    Each user keeps its calls in a line and reserves for the first of them only. So users take turns; a call that
    leaves the line leaves its reservation to the next that costs no more; and a pause voids no more than one. A start
    goes so:

        start_ms = limiter.reserve(now_ms, cost)        # then wait until start_ms
        if limiter.ready_at(start_ms) > start_ms:       # a pause has begun meanwhile: the reservation is void
            start_ms = limiter.reserve(now_ms, cost)    # and wait again

    Times are milliseconds of a clock that all users share and that does not go back.
    """

    __slots__ = ("_burst_ms", "_full_ms", "_last_ms", "_lock", "_ms_per_unit", "_paused_until_ms", "limit")

    def __init__(self, limit: RateLimit) -> None:
        self.limit = limit
        """What this keeps to."""
        self._lock = threading.Lock()  # leaf lock
        self._ms_per_unit = 1000.0 / limit.calls_per_s  # never changes
        self._burst_ms = limit.burst_calls * self._ms_per_unit  # how long an empty burst takes to fill
        # Guarded by _lock. What has been used is kept as the time at which the burst would be full again; that is
        # exact whatever time passes between two calls, and needs no timer.
        self._full_ms = -math.inf
        self._last_ms = -math.inf  # guarded by _lock; the latest start given out, which no later one precedes
        self._paused_until_ms = -math.inf  # written under _lock, read without: one reference, and it only grows

    def reserve(self, now_ms: float, cost: float = 1.0) -> float:
        """Reserve a start for a call of this `cost`; returns when it may start, which is `now_ms` at the earliest.

        Starts never go back: who reserves later starts no earlier, however little the call costs.

        Raises:
            ValueError: `cost` is not a number of at least 0. Nothing was reserved.
        """
        if not 0 <= cost < math.inf:
            raise ValueError(f"cost is {cost!r}; it has to be a number of at least 0.")
        cost_ms = cost * self._ms_per_unit
        with self._lock:
            # The start is when as much of the burst is there as the call takes: all of it, if it takes more.
            enough_ms = self._full_ms - max(self._burst_ms - cost_ms, 0.0)
            start_ms = max(now_ms, enough_ms, self._last_ms, self._paused_until_ms)
            self._full_ms = max(self._full_ms, start_ms) + cost_ms
            self._last_ms = start_ms
            return start_ms

    def pause(self, until_ms: float) -> None:
        """Let no call start before `until_ms`. The pause that lasts longest holds; a shorter one changes nothing.

        Raises:
            ValueError: the pause would never end.
        """
        if not until_ms < math.inf:
            raise ValueError(f"until_ms is {until_ms!r}; a pause has to end at some time.")
        with self._lock:
            self._paused_until_ms = max(self._paused_until_ms, until_ms)

    def ready_at(self, time_ms: float) -> float:
        """`time_ms`, or the end of the pause if that is later. Takes no lock."""
        return max(time_ms, self._paused_until_ms)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_positive(value: object) -> bool:
    return _is_number(value) and 0 < value < math.inf  # type: ignore[operator]
