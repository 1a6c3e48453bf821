"""When the calls of one operator may start: its rate limit, and the pauses that the service asks for.

The engine's thread only; what is shared with other operators (a limiter, or without one the host's rate after a pause)
takes requests from any thread. After a pause of 0.1 s or more under a RateLimit, or without a limit, calls do not all
start together: they begin at 20 per second, and the rate follows what the service accepts from then on.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from dispatcher.util.rate_limit import RateLimit
from pipeline.streaming.calls.hosts.call_host import CallHost
from pipeline.streaming.calls.limits.adaptive import AdaptiveRateLimit, AdaptiveRateLimiter
from pipeline.streaming.calls.limits.learned_rate import LearnedRate
from pipeline.streaming.calls.rate_limit import ResumingRateLimiter
from pipeline.streaming.calls.record_call import RecordCall

_MOST_GROUP_MS: Final = 10.0
"""To wake up for each call costs about as much as the call."""

Limiter: TypeAlias = ResumingRateLimiter | AdaptiveRateLimiter


class RateTurns:
    """Gives calls their turns, and learns from their answers. The engine's thread only."""

    def __init__(self, host: CallHost, rate_limit: RateLimit | AdaptiveRateLimit | Limiter | str | None) -> None:
        limit = AdaptiveRateLimit() if isinstance(rate_limit, str) else rate_limit
        limiter = host.limiter_for(limit) if isinstance(limit, RateLimit | AdaptiveRateLimit) else limit
        # The operator's own limit, for its cost: equal limits share a limiter, whatever their cost functions are.
        self._limit = limit.limit if isinstance(limit, Limiter) else limit
        self._fixed = limiter if isinstance(limiter, ResumingRateLimiter) else None
        self.adapts: bool = isinstance(limiter, AdaptiveRateLimiter)
        self._learned: LearnedRate
        if isinstance(limiter, AdaptiveRateLimiter):
            self._learned = limiter
        else:
            self._learned = host.resumed if self._fixed is None else self._fixed.resumed
        # Never changes; half of the burst remains for timers that fire late.
        self._group_ms = 0.0 if self._fixed is None else min(self._fixed.spare_ms / 2, _MOST_GROUP_MS)
        self._reserved: tuple[float, float] | None = None  # start (ms) reserved for the first in line, and its cost
        self._is_let_through = False  # the first in line, by the learned rate: it waits for the fixed one

    @property
    def are_limited(self) -> bool:
        """Whether calls need a turn: there is a limit, or the service has asked for a pause."""
        return self._fixed is not None or self.learn

    @property
    def learn(self) -> bool:
        """Whether answers are to be reported."""
        return self.adapts or self._learned.is_used

    @property
    def group_ms(self) -> float:
        """How much later than its turn the first of several calls in line starts: then those behind it do, too."""
        return 0.0 if self.learn else self._group_ms

    def try_take(self, call: RecordCall, now_ms: float) -> float:
        """Take the turn of the first call in line if it has come: then returns `now_ms`, else when to ask again."""
        cost = 1.0 if self._limit is None else self._limit.cost_of(call.value)
        learned_cost = cost if self.adapts else 1.0
        if not self.learn:
            ready_ms = self._learned.ready_at(now_ms)
        elif not self._is_let_through:
            ready_ms = self._learned.try_start(now_ms, learned_cost)
        else:
            ready_ms = now_ms
        if ready_ms > now_ms:
            return ready_ms
        self._is_let_through = True
        if self._fixed is not None:
            start_ms = self._reserve(self._fixed, cost, now_ms)
            if start_ms > now_ms:
                return start_ms
        self._reserved, self._is_let_through = None, False
        call.turn_ms, call.cost = now_ms, learned_cost
        return now_ms

    def ready_at(self, now_ms: float) -> float:
        """`now_ms`, or the end of a pause: for calls that have had their turn."""
        return self._learned.ready_at(now_ms) if self._fixed is None else self._fixed.ready_at(now_ms)

    def accepted(self, call: RecordCall, now_ms: float) -> bool:
        """Report a call that the service has accepted. True: the first call in line should ask again now."""
        return self._learned.accepted(call.turn_ms, now_ms, call.cost)

    def refused(self, call: RecordCall, now_ms: float, delay_ms: float) -> None:
        """Report a call that the service has refused, and pause all calls of the limit's scope."""
        if self._fixed is not None:
            self._fixed.pause(now_ms + delay_ms)
        if self.learn:
            self._learned.refused(call.turn_ms, now_ms, delay_ms)
        else:
            self._learned.pause(now_ms, delay_ms)

    def _reserve(self, limiter: ResumingRateLimiter, cost: float, now_ms: float) -> float:
        reserved = self._reserved
        # Reserve again if a pause voided the reservation, or a cheaper call made it and left the line.
        if reserved is None or limiter.ready_at(reserved[0]) > reserved[0] or cost > reserved[1]:
            reserved = self._reserved = limiter.reserve(now_ms, cost), cost
        return reserved[0]
