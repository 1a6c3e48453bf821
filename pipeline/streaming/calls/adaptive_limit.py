"""Adaptive rate limits: they find how many calls a service accepts, and follow it when that changes.

An `AdaptiveRateLimit` is a value, as a `RateLimit` is. An `AdaptiveRateLimiter` enforces one for all operators of its
scope, from their answers alone. A call that the service refuses (the function raises `RetryAfter`) is the only sign of
its limit.

- At first the rate grows exponentially with the calls accepted, until one is refused.
- A refusal cuts the rate: to the share of the calls then under way that the service accepted, by at least 15 %. It
  is cut once for all calls under way.
- After that the rate grows linearly, by an amount that is larger for its size at low rates, so that the tasks of a job
  approach equal shares. It passes the rate of the last refusal only after 20 accepted calls for each call refused.
  When it has passed that by a quarter, the service's limit has risen, and the rate grows exponentially again.

Additive increase and multiplicative decrease are TCP's (Jacobson, "Congestion Avoidance and Control", 1988). That the
rate follows what the service accepts is the adaptive throttling of "Site Reliability Engineering" (chapter 21) and of
Beam's AdaptiveThrottler, except that a call waits here where it is rejected there.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pipeline.streaming.calls.rate_limit import (
    RateLimitScope,
    check_cost_and_scope,
    check_rate,
    check_workers,
    cost_of,
)

_BURST_S: Final = 0.02
"""A timer that is so late costs no calls."""
_LEAST_CALLS_PER_S: Final = 0.1
_GROWTH_S: Final = 0.33
"""In this time an exponential growth multiplies the rate by e, ..."""
_LATER_GROWTH_S: Final = 0.6
"""... in this time once a limit has been found, ..."""
_GROWTH_CALLS: Final = 3
"""... after at least so many accepted calls, ..."""
_GROWTH_CALL_TIMES: Final = 6
"""... and in so many call times: more calls than are under way have been answered."""
_LEAST_CUT: Final = 0.85
_DEEPEST_CUT: Final = 0.5
"""Of what was accepted in the last second."""
_EXPECTED_CALLS: Final = 10
"""An expectation, of as many calls, about the share accepted, before the calls under way show it."""
_EXPECTED_SHARE: Final = 0.95
_ADDED_PER_S: Final = 3.0
"""Calls per second by which a rate of 1 call per second grows each second; at r calls per second times sqrt(r)."""
_LIMIT_HAS_RISEN: Final = 1.25
_CALLS_PER_REFUSAL: Final = 20
_TESTED_PAUSE_MS: Final = 2000
"""A longer pause is what the service means; a shorter one may be no more than a header's whole seconds."""
_TESTS: Final = 3
_TEST_AFTER_MS: Final = 40
_LONGEST_SETTLING_MS: Final = 250
_MOST_CAUTION_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class AdaptiveRateLimit:
    """As many calls per second as the service accepts. `rate_limit="adaptive"` is one with the defaults.

    The function tells the limiter of a refusal (HTTP 429) by raising `RetryAfter`. A pause of up to 2 seconds ends
    when the service accepts a call that was made after the refused one; up to three calls are made to find out. A
    longer pause is kept.

    `initial_calls_per_s`: the rate of the first calls. `max_calls_per_s`: the rate never exceeds it; None: no bound.
    `cost`, `scope`: as in RateLimit, with the rates in the cost's unit.

    Raises:
        ValueError: a number is out of its range, or the scope unknown; the message names it.
    """

    initial_calls_per_s: float = 20.0
    max_calls_per_s: float | None = None
    cost: Callable[[Any], float] | None = field(default=None, compare=False)
    scope: RateLimitScope = "job"

    def __post_init__(self) -> None:
        check_rate("initial_calls_per_s", self.initial_calls_per_s)
        if self.max_calls_per_s is not None:
            check_rate("max_calls_per_s", self.max_calls_per_s)
        check_cost_and_scope(self.cost, self.scope)

    def cost_of(self, value: object) -> float:
        """As `RateLimit.cost_of`."""
        return cost_of(self.cost, value)

    def split(self, workers: int) -> AdaptiveRateLimit:
        """The share of each of `workers` workers: that of the first calls, and of the bound.

        Raises:
            ValueError: `workers` is not a whole number of at least 1.
        """
        check_workers(workers)
        most = None if self.max_calls_per_s is None else self.max_calls_per_s / workers
        return replace(self, initial_calls_per_s=self.initial_calls_per_s / workers, max_calls_per_s=most)


class AcceptedRate:
    """What was accepted in the last second, by two counts: of the current second, and of the one before."""

    __slots__ = ("_began_ms", "_current", "_previous")

    def __init__(self) -> None:
        self._began_ms: float | None = None
        self._current = 0.0
        self._previous: float | None = None

    def add(self, now_ms: float, cost: float) -> None:
        self._turn(now_ms)
        self._current += cost

    def per_s(self, now_ms: float) -> float:
        """Since the first call, if that is less than a second ago."""
        passed_s = self._turn(now_ms) / 1000
        if self._previous is None:
            return self._current / max(0.1, passed_s)
        return self._current + self._previous * (1 - passed_s)

    def _turn(self, now_ms: float) -> float:
        """Begin another second if one is over; return the milliseconds since its beginning."""
        began_ms = now_ms if self._began_ms is None else self._began_ms
        if now_ms - began_ms >= 1000:
            is_next = now_ms - began_ms < 2000
            self._previous, self._current = (self._current if is_next else 0.0), 0.0
            began_ms = began_ms + 1000 if is_next else now_ms
        self._began_ms = began_ms
        return now_ms - began_ms


class AdaptiveRateLimiter:
    """Lets calls start at a rate that it learns from their answers. Any thread; never waits.

        ready_ms = limiter.try_start(now_ms, cost)      # now_ms: start the call; later: ask again then
        limiter.accepted(sent_ms, now_ms, cost)         # after an answer to a call that was started at sent_ms
        limiter.refused(sent_ms, now_ms, delay_ms)

    Times are milliseconds of a monotonic clock that all users share. `keeps_pauses`: every pause is kept to its end.
    """

    def __init__(self, limit: AdaptiveRateLimit | None = None, *, keeps_pauses: bool = False) -> None:
        self.limit = AdaptiveRateLimit() if limit is None else limit  # never changes
        self._keeps_pauses = keeps_pauses  # never changes
        self._lock = threading.Lock()  # leaf lock; guards all that follows
        self._rate = min(self.limit.initial_calls_per_s, self.limit.max_calls_per_s or math.inf)  # units per second
        self._unit = 1.0  # the mean cost of a call
        self._full_ms = -math.inf  # when the burst is full again
        self._is_waited_for = False  # the latest request has to wait: the rate is what holds calls back
        self._waiting_rate = self._rate  # the rate that the latest wait was worked out with
        self._call_ms = 0.0  # the mean time of a call
        self._accepted = AcceptedRate()
        # The rate as it follows refusals.
        self._is_searching = True  # grows exponentially
        self._has_found = False  # a limit, at least once
        self._ceiling = math.inf  # the rate that the service accepts at most, by the latest refusal
        self._added_per_s = 0.0  # the growth below the ceiling
        self._owed = 0.0  # what is to be accepted before the rate passes the ceiling
        self._caution = 0  # pauses kept to their end, one after the other
        # The latest cut.
        self._cut_ms = -math.inf
        self._refused_sent_ms = -math.inf  # the refused call that led to it was started then
        self._rate_before = 0.0
        self._accepted_before = 0.0  # per second
        self._seen = [0, 0]  # answers to calls sent between those two times: accepted, refused
        # The latest pause.
        self._paused_until_ms = -math.inf
        self._settled_ms = -math.inf  # when the calls under way should have been answered
        self._is_kept = False  # the pause, to its end
        self._test_ms: float | None = None  # the start of the next test
        self._tests = 0  # refused ones
        self._refused_tests = 0  # in a row, over several pauses

    @property
    def calls_per_s(self) -> float:
        """The rate now."""
        return self._rate

    def try_start(self, now_ms: float, cost: float = 1.0) -> float:
        """Start a call if it may start: then returns `now_ms`, otherwise the time at which to ask again."""
        with self._lock:
            if now_ms < self._paused_until_ms:
                return self._try_test(now_ms)
            ms_per_unit = 1000.0 / self._rate
            burst_ms = self._burst_ms()
            ready_ms = self._full_ms - max(burst_ms - cost * ms_per_unit, 0.0)
            self._is_waited_for = ready_ms > now_ms
            if self._is_waited_for:
                self._waiting_rate = self._rate
                return ready_ms
            self._full_ms = max(self._full_ms, now_ms) + cost * ms_per_unit
            self._unit += (cost - self._unit) / 16 if cost else 0.0
            return now_ms

    def accepted(self, sent_ms: float, now_ms: float, cost: float = 1.0) -> bool:
        """Count a call, started at `sent_ms`, that the service accepted. True: a waiting call should ask again now."""
        with self._lock:
            took_ms = now_ms - sent_ms
            self._call_ms = self._call_ms + (took_ms - self._call_ms) / 8 if self._call_ms else took_ms
            self._accepted.add(now_ms, cost)
            self._owed = max(0.0, self._owed - cost)
            if sent_ms > self._cut_ms:
                self._refused_tests = 0
            elif sent_ms > self._refused_sent_ms:
                self._seen[0] += 1
                self._cut(now_ms)
            if now_ms < self._paused_until_ms:
                return self._try_resume(sent_ms, now_ms)
            if sent_ms > self._cut_ms and self._is_waited_for:
                self._grow(cost)
            return self._is_waited_for and self._rate > 1.5 * self._waiting_rate

    def refused(self, sent_ms: float, now_ms: float, delay_ms: float) -> None:
        """Count a call, started at `sent_ms`, that the service refused with a pause of `delay_ms`."""
        with self._lock:
            if self._keeps_pauses:
                self._paused_until_ms = max(self._paused_until_ms, now_ms + delay_ms)
            if sent_ms <= self._cut_ms:
                self._refused_before_cut(sent_ms, now_ms)
            elif now_ms < self._paused_until_ms and not self._keeps_pauses:
                self._test_refused(now_ms)
            else:
                self._cut_and_pause(sent_ms, now_ms, delay_ms)

    def pause(self, now_ms: float, delay_ms: float) -> None:
        """Start no call for `delay_ms`. The calls under way say nothing about the rate: they began without it."""
        with self._lock:
            self._cut_ms = self._refused_sent_ms = max(self._cut_ms, now_ms)
            self._paused_until_ms = max(self._paused_until_ms, now_ms + delay_ms)
            self._is_kept = True
            self._empty_burst(self._paused_until_ms)

    def ready_at(self, time_ms: float) -> float:
        """`time_ms`, or the end of the pause if that is later. Takes no lock."""
        return max(time_ms, self._paused_until_ms)

    def _burst_ms(self) -> float:
        return max(self._unit, self._rate * _BURST_S) * 1000.0 / self._rate

    def _empty_burst(self, at_ms: float) -> None:
        """Space the calls from then on; so that they do not start together."""
        self._full_ms = max(self._full_ms, at_ms + self._burst_ms())

    def _grow(self, cost: float) -> None:
        if self._is_searching:
            least_s = _LATER_GROWTH_S if self._has_found else _GROWTH_S
            call_times_s = _GROWTH_CALL_TIMES * self._call_ms / 1000
            self._rate += cost / max(least_s, call_times_s, _GROWTH_CALLS * self._unit / self._rate)
        elif self._rate < self._ceiling:
            self._rate += self._added_per_s * cost / self._rate
        elif self._owed <= 0:
            self._rate += self._least_growth() * cost / self._rate
            if self._rate > _LIMIT_HAS_RISEN * self._ceiling:
                self._is_searching, self._caution = True, 0
        if self.limit.max_calls_per_s is not None:
            self._rate = min(self._rate, self.limit.max_calls_per_s)

    def _least_growth(self) -> float:
        """Per second. A square root: what is added to a low rate is more of it, so that shares become equal."""
        return max((1 - _LEAST_CUT) * self._ceiling, _ADDED_PER_S * math.sqrt(self._ceiling * self._unit))

    def _owe(self, amount: float) -> None:
        self._owed = min(self._owed + amount, max(self._owed, self._ceiling))

    def _cut_and_pause(self, sent_ms: float, now_ms: float, delay_ms: float) -> None:
        self._cut_ms, self._refused_sent_ms = now_ms, sent_ms
        self._rate_before, self._accepted_before = self._rate, self._accepted.per_s(now_ms)
        self._seen = [0, 1]
        self._is_searching, self._has_found = False, True
        self._cut(now_ms)
        self._owe(_CALLS_PER_REFUSAL * self._unit)
        self._settled_ms = now_ms + min(self._call_ms, _LONGEST_SETTLING_MS)
        self._paused_until_ms = max(now_ms + delay_ms, self._settled_ms)
        self._tests = 0
        self._is_kept = self._keeps_pauses or delay_ms > _TESTED_PAUSE_MS
        self._test_ms = None if self._is_kept else now_ms + max(5.0, 1000 * self._unit / self._rate)
        self._empty_burst(self._paused_until_ms if self._is_kept else now_ms)
        if self._is_kept:
            self._be_cautious(delay_ms)

    def _cut(self, now_ms: float) -> None:
        """Set the rate by the answers since the refusal; anew with each answer to a call that was under way then."""
        accepted, refused = self._seen
        share = (accepted + _EXPECTED_CALLS * _EXPECTED_SHARE) / (accepted + refused + _EXPECTED_CALLS)
        in_a_second = min(self._accepted_before, self._rate_before)
        rate = min(_LEAST_CUT * self._rate_before, 0.95 * max(share * self._rate_before, in_a_second))
        self._set_rate(max(rate, _DEEPEST_CUT * in_a_second), 0.9 * in_a_second)
        self._empty_burst(now_ms)

    def _set_rate(self, rate: float, least_ceiling: float = 0.0) -> None:
        self._rate = max(rate, _LEAST_CALLS_PER_S * self._unit)
        self._ceiling = max(self._rate / _LEAST_CUT, least_ceiling)
        self._added_per_s = max(self._ceiling - self._rate, self._least_growth())
        self._owed = min(self._owed, self._ceiling)

    def _refused_before_cut(self, sent_ms: float, now_ms: float) -> None:
        if sent_ms > self._refused_sent_ms:
            self._seen[1] += 1
            self._cut(now_ms)
        self._owe(_CALLS_PER_REFUSAL * self._unit)

    def _try_test(self, now_ms: float) -> float:
        """In a pause: start a call that tests whether the service accepts calls, if one is due."""
        self._is_waited_for, self._waiting_rate = True, self._rate
        if self._test_ms is None:
            return self._paused_until_ms
        if now_ms < self._test_ms:
            return min(self._test_ms, self._paused_until_ms)
        self._test_ms = None
        return now_ms

    def _test_refused(self, now_ms: float) -> None:
        self._tests += 1
        self._refused_tests += 1
        # Also if the service names no pause.
        self._paused_until_ms = max(self._paused_until_ms, now_ms + 50 * 2 ** min(self._refused_tests, 5))
        self._owe(_CALLS_PER_REFUSAL * self._unit)
        if self._tests < _TESTS:
            spaced_ms = 4 * self._tests * 1000 * self._unit / self._rate
            self._test_ms = self._cut_ms + max(_TEST_AFTER_MS * 3**self._tests, spaced_ms)
        else:
            # For a while the service accepts nothing, so that it accepts no more than it did before.
            self._is_kept = True
            self._set_rate(max(min(self._rate, self._accepted_before), _DEEPEST_CUT * self._rate))
            self._be_cautious(self._paused_until_ms - self._cut_ms)
        self._empty_burst(self._paused_until_ms)

    def _try_resume(self, sent_ms: float, now_ms: float) -> bool:
        """End the pause if the service has accepted a call made after the refused one."""
        if self._is_kept or sent_ms <= self._refused_sent_ms:
            return False
        self._paused_until_ms = min(self._paused_until_ms, max(now_ms, self._settled_ms))
        self._test_ms = None
        self._full_ms = self._paused_until_ms + self._burst_ms()
        return True

    def _be_cautious(self, pause_ms: float) -> None:
        """After a pause, which costs more than a refused call: the longer it was, the later the rate passes the limit."""
        self._caution = min(self._caution + 1, 3)
        self._owed = max(self._owed, min(_MOST_CAUTION_S, 2**self._caution * pause_ms / 1000) * self._ceiling)
