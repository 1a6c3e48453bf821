"""The rate at which a service accepts calls, learned from its answers.

A call that the service refuses is the only sign of its limit.

- At first the rate grows exponentially with the calls accepted, until one is refused.
- A refusal cuts the rate by at least 15 %: to the share of the calls then in flight that the service accepted, but
  hardly below what it accepted in the second before. All calls in flight lead to one cut.
- After that the rate grows linearly, by an amount that is larger for its size at low rates, so that the tasks of a job
  approach equal shares. It passes the rate of the last refusal only after 20 accepted calls for each one refused. Once
  it has passed that by a quarter, the service's limit has risen, and the rate grows exponentially again.

Additive increase and multiplicative decrease are TCP's (Jacobson, "Congestion Avoidance and Control", 1988). The bound
by what the service accepts is the adaptive throttling of "Site Reliability Engineering", chapter 21, and of Beam's
AdaptiveThrottler; but a call that is rejected there waits here.
"""

from __future__ import annotations

import math
import threading
from typing import Final

_ROUNDING_MS: Final = 0.001
_BURST_S: Final = 0.02
"""Calls of this many seconds may start at once: a timer that fires so late costs no calls."""
_LEAST_CALLS_PER_S: Final = 0.1
# Exponential growth multiplies the rate by e in the longest of these three times.
_GROWTH_S: Final = 0.33
_LATER_GROWTH_S: Final = 0.6
"""In place of _GROWTH_S once a limit has been found."""
_GROWTH_CALLS: Final = 3
"""The time in which this many calls start."""
_GROWTH_CALL_TIMES: Final = 6
"""This many times the mean duration of a call: by then more calls than are in flight have been answered."""
_LEAST_CUT: Final = 0.85
"""A refusal leaves this share of the rate, or less."""
_NEXT_CUT: Final = 0.7
"""In place of _LEAST_CUT if fewer than _NEXT_CUT_CALLS were accepted since the last cut: the limit has fallen far, or
the rate has grown far beyond the limit."""
_NEXT_CUT_CALLS: Final = 10
_DEEPEST_CUT: Final = 0.5
"""A refusal leaves this share of what was accepted in the last second, or more."""
_EXPECTED_CALLS: Final = 10
"""The share accepted is worked out with this many more calls, of which _EXPECTED_SHARE were accepted: the first answers
after a refusal say little."""
_EXPECTED_SHARE: Final = 0.95
_ADDED_PER_S: Final = 3.0
"""Below the ceiling, a rate of r calls per second grows by this many calls per second times sqrt(r) in each second."""
_LIMIT_HAS_RISEN: Final = 1.25
_CALLS_PER_REFUSAL: Final = 20
_TESTED_PAUSE_MS: Final = 2000
"""A longer pause is kept to its end; a shorter one may be no more than a header's whole seconds, and is tested."""
_LEAST_TESTED_PAUSE_MS: Final = 100
"""The shortest tested pause, also where the service names none."""
_SHORT_PAUSE_MS: Final = 100
"""A shorter pause that is kept says nothing about the rate: the service wants the calls right after it."""
_TESTS: Final = 3
_TEST_AFTER_MS: Final = 40
_LONGEST_SETTLING_MS: Final = 250
_MOST_CAUTION_S: Final = 3.0


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


class LearnedRate:
    """Lets calls start at a rate that it learns from their answers. Any thread; never waits.

        ready_ms = rate.try_start(now_ms, cost)      # now_ms: start the call; later: ask again then
        rate.accepted(sent_ms, now_ms, cost)         # after an answer to a call that was started at sent_ms
        rate.refused(sent_ms, now_ms, delay_ms)

    Times are milliseconds of a monotonic clock that all users share. `initial_per_s`, `most_per_s`: the rate at first,
    and at most. `keeps_pauses`: every pause is kept to its end; otherwise those of up to 2 seconds end once the service
    accepts a call that was made after the refused one.
    """

    def __init__(self, initial_per_s: float, most_per_s: float | None = None, *, keeps_pauses: bool = False) -> None:
        self._most = math.inf if most_per_s is None else most_per_s  # never changes
        self._keeps_pauses = keeps_pauses  # never changes
        self._lock = threading.Lock()  # leaf lock
        self._rate = min(initial_per_s, self._most)  # units of cost per second; guarded by _lock
        self._unit = 1.0  # the mean cost of a call; guarded by _lock
        self._call_ms = 0.0  # the mean time of a call; guarded by _lock
        self._accepted = AcceptedRate()  # guarded by _lock
        self._full_ms = -math.inf  # when the burst is full again; guarded by _lock
        self._is_waited_for = False  # the latest request has to wait, because of the rate; guarded by _lock
        self._waiting_rate = self._rate  # the rate that the latest wait was worked out with; guarded by _lock
        self.is_used: bool = False  # began with a pause that was not short; set once under _lock, read without it
        # How the rate grows.
        self._is_searching = True  # exponentially; guarded by _lock
        self._has_found = False  # a limit, at least once; guarded by _lock
        self._ceiling = math.inf  # what the service accepts at most, by the latest refusal; guarded by _lock
        self._added_per_s = 0.0  # growth below the ceiling; guarded by _lock
        self._owed = 0.0  # still to be accepted before the rate passes the ceiling; guarded by _lock
        self._caution = 0  # pauses in a row that were kept to their ends; guarded by _lock
        # The latest cut.
        self._cut_ms = -math.inf  # guarded by _lock
        self._refused_sent_ms = -math.inf  # when the refused call was started; guarded by _lock
        self._rate_before = 0.0  # guarded by _lock
        self._accepted_before = 0.0  # per second; guarded by _lock
        self._seen = [0, 0]  # accepted, refused: of the calls started between those two times; guarded by _lock
        self._most_kept = _LEAST_CUT  # of the rate; guarded by _lock
        self._since_cut = 0  # accepted calls started after it; guarded by _lock
        # The latest pause.
        self._paused_until_ms = -math.inf  # written under _lock, read without it: one reference
        self._settled_ms = -math.inf  # when the calls in flight should have been answered; guarded by _lock
        self._is_kept = False  # to its end; guarded by _lock
        self._test_ms: float | None = None  # the start of the next test; guarded by _lock
        self._tests = 0  # refused in this pause; guarded by _lock
        self._refused_tests = 0  # refused in a row, over several pauses; guarded by _lock

    @property
    def calls_per_s(self) -> float:
        return self._rate

    def try_start(self, now_ms: float, cost: float = 1.0) -> float:
        """Start a call if it may start: then returns `now_ms`, otherwise the time at which to ask again."""
        with self._lock:
            if now_ms < self._paused_until_ms:
                return self._try_test(now_ms)
            ms_per_unit = 1000.0 / self._rate
            burst_ms = self._burst_ms()
            ready_ms = self._full_ms - max(burst_ms - cost * ms_per_unit, 0.0)
            self._is_waited_for = ready_ms > now_ms + _ROUNDING_MS
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
                self._since_cut += 1
            elif sent_ms > self._refused_sent_ms:
                self._seen[0] += 1
                self._cut()
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
                if delay_ms < _SHORT_PAUSE_MS:
                    return
            if sent_ms <= self._cut_ms:
                self._refused_before_cut(sent_ms, now_ms)
            elif now_ms < self._paused_until_ms and not self._keeps_pauses:
                self._test_refused(now_ms)
            else:
                self._cut_and_pause(sent_ms, now_ms, delay_ms)

    def pause(self, now_ms: float, delay_ms: float) -> None:
        """Begin with a pause of `delay_ms`. Calls in flight do not count: they were started without the rate."""
        with self._lock:
            self._paused_until_ms = max(self._paused_until_ms, now_ms + delay_ms)
            if delay_ms < _SHORT_PAUSE_MS:
                return
            self.is_used = True
            self._cut_ms = self._refused_sent_ms = now_ms
            self._is_kept = True
            self._resume_at(self._paused_until_ms)

    def ready_at(self, time_ms: float) -> float:
        """`time_ms`, or the end of the pause if that is later. Takes no lock."""
        return max(time_ms, self._paused_until_ms)

    def _burst_ms(self) -> float:
        return max(self._unit, self._rate * _BURST_S) * 1000.0 / self._rate

    def _resume_at(self, time_ms: float) -> None:
        """Let one call start at `time_ms`, and space the calls after it, which would else start together."""
        self._full_ms = time_ms + self._burst_ms() - self._unit * 1000.0 / self._rate

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
        self._rate = min(self._rate, self._most)

    def _least_growth(self) -> float:
        """Per second. By the square root, a low rate grows by a larger part of itself, so shares become equal."""
        return max((1 - _LEAST_CUT) * self._ceiling, _ADDED_PER_S * math.sqrt(self._ceiling * self._unit))

    def _owe(self, amount: float) -> None:
        self._owed = min(self._owed + amount, max(self._owed, self._ceiling))

    def _cut_and_pause(self, sent_ms: float, now_ms: float, delay_ms: float) -> None:
        self._cut_ms, self._refused_sent_ms = now_ms, sent_ms
        self._rate_before, self._accepted_before = self._rate, self._accepted.per_s(now_ms)
        self._seen = [0, 1]
        self._most_kept = _LEAST_CUT if self._since_cut >= _NEXT_CUT_CALLS else _NEXT_CUT
        self._since_cut = 0
        self._is_searching, self._has_found = False, True
        self._cut()
        self._owe(_CALLS_PER_REFUSAL * self._unit)
        self._settled_ms = now_ms + min(self._call_ms, _LONGEST_SETTLING_MS)
        self._is_kept = self._keeps_pauses or delay_ms > _TESTED_PAUSE_MS
        least_ms = 0.0 if self._is_kept else _LEAST_TESTED_PAUSE_MS
        self._paused_until_ms = max(self._paused_until_ms, now_ms + max(delay_ms, least_ms), self._settled_ms)
        self._tests = 0
        self._test_ms = None if self._is_kept else now_ms + max(5.0, 1000 * self._unit / self._rate)
        self._resume_at(self._paused_until_ms)
        if self._is_kept:
            self._be_cautious(delay_ms)

    def _cut(self) -> None:
        """Set the rate by the answers since the refusal, again with each answer to a call that was in flight then."""
        accepted, refused = self._seen
        share = (accepted + _EXPECTED_CALLS * _EXPECTED_SHARE) / (accepted + refused + _EXPECTED_CALLS)
        in_a_second = min(self._accepted_before, self._rate_before)
        rate = min(self._most_kept * self._rate_before, 0.95 * max(share * self._rate_before, in_a_second))
        self._set_rate(max(rate, _DEEPEST_CUT * in_a_second), 0.9 * in_a_second)

    def _set_rate(self, rate: float, least_ceiling: float = 0.0) -> None:
        self._rate = max(rate, _LEAST_CALLS_PER_S * self._unit)
        self._ceiling = max(self._rate / _LEAST_CUT, least_ceiling)
        self._added_per_s = max(self._ceiling - self._rate, self._least_growth())
        self._owed = min(self._owed, self._ceiling)

    def _refused_before_cut(self, sent_ms: float, now_ms: float) -> None:
        if sent_ms > self._refused_sent_ms:
            self._seen[1] += 1
            self._cut()
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
        self._resume_at(self._paused_until_ms)

    def _try_resume(self, sent_ms: float, now_ms: float) -> bool:
        """End the pause if the service has accepted a call made after the refused one."""
        if self._is_kept or sent_ms <= self._refused_sent_ms:
            return False
        self._paused_until_ms = min(self._paused_until_ms, max(now_ms, self._settled_ms))
        self._test_ms = None
        self._resume_at(self._paused_until_ms)
        return True

    def _be_cautious(self, pause_ms: float) -> None:
        """After a pause, which costs more than a refusal: the longer it was, the later the rate passes the ceiling."""
        self._caution = min(self._caution + 1, 3)
        self._owed = max(self._owed, min(_MOST_CAUTION_S, 2**self._caution * pause_ms / 1000) * self._ceiling)
