"""Rate limits of calls: the limiter that the dispatcher's handlers have, with what a stream adds to it.

The scope of a limit says which calls it covers:

- `"task"`: each operator has a limiter of its own. With n concurrent tasks, n times the rate.
- `"worker"`: one limiter for all operators that share a function's host, concurrently or one after another. On Spark
  that is a Python worker: one for each concurrent task, kept from task to task, so that a new task starts with what
  the previous one left, not with a new burst.
- `"job"`: on Spark each worker gets an equal share of the limit (`pipeline.spark.async_io.job_limits`). Elsewhere the
  process is the job, and the scope is as `"worker"`.

A limiter does not see other processes. `limit.split(n)` is the share of each of n workers. Workers that are idle leave
their shares unused. Where that matters, let the service decide: `rate_limit="adaptive"`.
"""

from __future__ import annotations

from typing import Final

from dispatcher.util.rate_limit import RateLimit, RateLimiter
from pipeline.streaming.calls.limits.learned_rate import LearnedRate

RESUMED_CALLS_PER_S: Final = 20.0
"""After a first pause, the rate at which calls begin again."""


class ResumingRateLimiter(RateLimiter):
    """The limiter of the dispatcher, with the rate at which calls begin again after a pause."""

    __slots__ = ("resumed",)

    def __init__(self, limit: RateLimit) -> None:
        super().__init__(limit)
        # Used from a first pause on; never changes.
        self.resumed: LearnedRate = LearnedRate(RESUMED_CALLS_PER_S, keeps_pauses=True)
