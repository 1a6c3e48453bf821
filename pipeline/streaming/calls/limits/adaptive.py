"""Rate limits that follow what the service accepts, in place of a number that the user would have to know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dispatcher.util.rate_limit import (
    RateLimitScope,
    check_cost_and_scope,
    check_rate,
    check_workers,
    cost_of,
    share_scope,
)
from pipeline.streaming.calls.limits.learned_rate import LearnedRate

ADAPTIVE: Final = "adaptive"
"""The value of `rate_limit` that stands for an AdaptiveRateLimit with its defaults."""


@dataclass(frozen=True, slots=True)
class AdaptiveRateLimit:
    """Lets as many calls start per second as the service accepts. `rate_limit="adaptive"` is one with the defaults.

    When the service rejects a call (HTTP 429), raise `RetryAfter` in your function. The rate grows until a call is
    rejected, falls to about the accepted rate, and then slowly tests for a higher one: see LearnedRate. A pause of up
    to 2 seconds ends early once the service accepts a call made after the rejected one. Up to three calls are made to
    find out. A longer pause is kept.

    `initial_calls_per_s`: the rate of the first calls.
    `max_calls_per_s`: the maximum rate. By default, there's none.
    `cost`, `scope`: as in RateLimit. The rates have the cost's unit.

    Raises:
        ValueError: a number is out of range, or the scope is unknown. The message names it.
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
        """See `RateLimit.cost_of`."""
        return cost_of(self.cost, value)

    def split(self, workers: int) -> AdaptiveRateLimit:
        """Divide the initial rate and the maximum between `workers` workers. The scope of a share isn't "job".

        Raises:
            ValueError: `workers` isn't a whole number of at least 1.
        """
        check_workers(workers)
        return replace(
            self,
            initial_calls_per_s=self.initial_calls_per_s / workers,
            max_calls_per_s=None if self.max_calls_per_s is None else self.max_calls_per_s / workers,
            scope=share_scope(self.scope),
        )


class AdaptiveRateLimiter(LearnedRate):
    """Enforces an AdaptiveRateLimit for all operators that share it. Any thread."""

    def __init__(self, limit: AdaptiveRateLimit | None = None) -> None:
        self.limit: AdaptiveRateLimit = AdaptiveRateLimit() if limit is None else limit  # never changes
        super().__init__(self.limit.initial_calls_per_s, self.limit.max_calls_per_s)
