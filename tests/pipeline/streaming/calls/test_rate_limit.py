"""Rate limits: what is refused, how a limit is divided, and that no sequence of calls ever gets past one."""

from __future__ import annotations

import heapq
import itertools
import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.aio import RateLimit
from pipeline.streaming import AdaptiveRateLimit, RetryAfter
from pipeline.streaming.calls.rate_limit import ResumingRateLimiter

from ....kit import TIMEOUT_S, in_threads
from .harness import Harness

SLACK = 1e-6  # of rounding


def limiter(calls_per_s: float = 10, burst: float | None = 1) -> ResumingRateLimiter:
    return ResumingRateLimiter(RateLimit(calls_per_s, burst))


def starts(limiter: ResumingRateLimiter, count: int, now_ms: float = 0, cost: float = 1) -> list[float]:
    return [limiter.reserve(now_ms, cost) for _ in range(count)]


# ---------------------------------------------------------------------------------------------------------- the limit


def test_the_default_burst_is_what_20_ms_allow_and_at_least_one_call() -> None:
    assert [RateLimit(rate).burst_calls for rate in (0.5, 50, 1000)] == [1, 1, 20]
    assert RateLimit(1000, 5).burst_calls == 5


def test_a_call_counts_for_one_unless_there_is_a_cost() -> None:
    assert RateLimit(10).cost_of("abc") == 1
    assert RateLimit(10, cost=len).cost_of("abc") == 3
    assert RateLimit(10, cost=lambda _: 0).cost_of("abc") == 0


@pytest.mark.parametrize("cost", [-1, float("nan"), float("inf"), None, "3"])
def test_a_cost_that_is_no_amount_is_refused_with_its_value(cost: Any) -> None:
    limit = RateLimit(10, cost=lambda _: cost)

    with pytest.raises(ValueError, match="cost of 'abc' is"):
        limit.cost_of("abc")


def test_a_limit_is_divided_among_workers() -> None:
    limit = RateLimit(100, burst=20, cost=len, scope="task")

    part = limit.split(4)

    assert (part.calls_per_s, part.burst_calls, part.cost, part.scope) == (25, 5, len, "task")
    assert limit.split(1) == limit


def test_a_share_of_the_job_s_limit_is_not_divided_again() -> None:
    assert RateLimit(100).split(4).scope == "worker"
    assert AdaptiveRateLimit(100, 1000).split(4) == AdaptiveRateLimit(25, 250, scope="worker")


def test_a_burst_that_was_not_given_is_chosen_for_the_part() -> None:
    assert RateLimit(1000).split(4).burst_calls == 5
    assert RateLimit(1000).split(1000).burst_calls == 1


@pytest.mark.parametrize("workers", [0, -1, 1.5, True, None])
def test_a_limit_cannot_be_split_among_no_workers(workers: Any) -> None:
    with pytest.raises(ValueError, match="workers is"):
        RateLimit(100).split(workers)


def test_limits_that_differ_in_nothing_but_the_object_of_their_cost_are_equal() -> None:
    one, other = RateLimit(10, 2, cost=lambda value: len(value)), RateLimit(10, 2, cost=lambda value: len(value))

    assert one == other
    assert hash(one) == hash(other)
    assert one != RateLimit(10, 2, scope="task")
    assert one != RateLimit(11, 2)
    assert one != RateLimit(10, 3)


@pytest.mark.parametrize(
    "limit", [RateLimit(10, 2, cost=len, scope="task"), AdaptiveRateLimit(5, 50, cost=len, scope="task")]
)
def test_a_limit_survives_pickling(limit: RateLimit | AdaptiveRateLimit) -> None:
    copy = pickle.loads(pickle.dumps(limit))

    assert copy == limit
    assert copy.cost_of("abc") == 3


@pytest.mark.parametrize("number", [0, -1, float("nan"), float("inf"), True, "10"])
@pytest.mark.parametrize(
    ("limit", "name"),
    [
        (RateLimit, "calls_per_s"),
        (partial(RateLimit, 10), "burst"),
        (AdaptiveRateLimit, "initial_calls_per_s"),
        (partial(AdaptiveRateLimit, 10), "max_calls_per_s"),
    ],
)
def test_a_number_that_makes_no_sense_is_refused_by_name(limit: Any, name: str, number: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} is"):
        limit(number)


@pytest.mark.parametrize("limit", [RateLimit, AdaptiveRateLimit])
def test_a_cost_or_a_scope_that_does_not_exist_is_refused(limit: Any) -> None:
    with pytest.raises(ValueError, match="cost is 5"):
        limit(10, cost=5)
    with pytest.raises(ValueError, match="scope is 'host'; it must be 'job', 'worker' or 'task'"):
        limit(10, scope="host")


# -------------------------------------------------------------------------------------------------------- the limiter


def test_who_reserves_later_starts_no_earlier_though_its_clock_was_read_before() -> None:
    limited = limiter(10, burst=5)

    assert [limited.reserve(now_ms) for now_ms in (1000, 999)] == [1000, 1000]


@pytest.mark.parametrize("cost", [-1, float("nan"), float("inf")])
def test_a_cost_that_is_no_amount_reserves_nothing(cost: float) -> None:
    limited = limiter(10)

    with pytest.raises(ValueError, match="cost is"):
        limited.reserve(0, cost)

    assert limited.reserve(0) == 0


def test_later_reservations_wait_for_the_end_of_a_pause_and_are_spaced_after_it() -> None:
    limited = limiter(10, burst=2)

    limited.pause(5000)

    assert starts(limited, 4, now_ms=0) == [5000, 5000, 5100, 5200]


def test_a_reservation_within_a_pause_is_void_and_has_to_be_made_again() -> None:
    limited = limiter(10)
    _, inside, outside = starts(limited, 3)

    limited.pause(150)

    assert limited.ready_at(inside) == 150
    assert limited.ready_at(outside) == outside
    assert limited.reserve(inside) == 300


def test_a_shorter_pause_changes_nothing() -> None:
    limited = limiter(10)

    limited.pause(5000)
    limited.pause(1000)

    assert limited.ready_at(0) == 5000
    assert limited.reserve(0) == 5000


@pytest.mark.parametrize("until_ms", [float("nan"), float("inf")])
def test_a_pause_for_ever_is_refused(until_ms: float) -> None:
    limited = limiter(10)

    with pytest.raises(ValueError, match="until_ms is"):
        limited.pause(until_ms)

    assert limited.ready_at(0) == 0


def test_threads_that_reserve_at_once_all_get_a_start_of_their_own() -> None:
    limited = limiter(1000)
    given_out: list[list[float]] = [[] for _ in range(4)]

    in_threads(*(lambda mine=mine: mine.extend(starts(limited, 100)) for mine in given_out))  # type: ignore[misc]

    assert sorted(itertools.chain(*given_out)) == list(range(400))
    assert all(mine == sorted(mine) for mine in given_out)


class Interrupted(float):
    """A time; in the middle of the reservation that first compares it, `interrupt` is called."""

    interrupt: Callable[[], None] | None = None

    def __lt__(self, other: float) -> bool:
        interrupt, self.interrupt = self.interrupt, None
        if interrupt is not None:
            interrupt()
        return float(self) < other


def test_a_reservation_in_the_middle_of_another_waits_for_its_turn() -> None:
    limited = limiter(10)
    second: list[float] = []
    thread = threading.Thread(target=lambda: second.append(limited.reserve(0)))

    def begin_the_second() -> None:
        thread.start()
        thread.join(0.05)  # it gets no further before the first is through; without a lock it would be done by then

    now_ms = Interrupted(0)
    now_ms.interrupt = begin_the_second
    first = limited.reserve(now_ms)
    thread.join(TIMEOUT_S)

    assert (first, second) == (0, [100])


# ------------------------------------------------------------------------------------------------ any sequence of calls

RATES = st.sampled_from([0.5, 3, 10, 1000, 12_345.6])
BURSTS = st.sampled_from([0.25, 1, 2.5, 10])
COSTS = st.sampled_from([0.0, 0.5, 1.0, 1.0, 3.0, 25.0])


@dataclass
class Start:
    at_ms: float
    cost: float


def assert_within_limit(calls: list[Start], limit: RateLimit) -> None:
    """In no window from one start to another one, both included, is more than burst + rate * t."""
    calls = sorted(calls, key=lambda call: call.at_ms)
    for last in range(len(calls)):
        total = 0.0
        for first in range(last, -1, -1):
            total += calls[first].cost
            seconds = (calls[last].at_ms - calls[first].at_ms) / 1000
            allowed = max(limit.burst_calls, calls[last].cost) + limit.calls_per_s * seconds
            assert total <= allowed + SLACK * (1 + limit.calls_per_s)


class TokenBucket:
    """The model: tokens that fill up with time and are taken by calls, in exact arithmetic."""

    def __init__(self, limit: RateLimit) -> None:
        self.per_ms = Fraction(limit.calls_per_s) / 1000
        self.size = Fraction(limit.burst_calls)
        self.tokens, self.at_ms = self.size, Fraction(0)

    def start_of(self, now_ms: Fraction, cost: Fraction) -> Fraction:
        start_ms = max(now_ms, self.at_ms)
        tokens = min(self.tokens + (start_ms - self.at_ms) * self.per_ms, self.size)
        missing = min(cost, self.size) - tokens
        if missing > 0:
            start_ms += missing / self.per_ms
            tokens += missing
        self.tokens, self.at_ms = tokens - cost, start_ms
        return start_ms


@given(RATES, BURSTS, st.lists(st.tuples(st.integers(0, 2000), COSTS), max_size=60))
def test_calls_start_exactly_when_a_token_bucket_lets_them(
    rate: float, burst: float, calls: list[tuple[int, float]]
) -> None:
    limited, model = limiter(rate, burst), TokenBucket(RateLimit(rate, burst))
    now_ms = 0
    for gap_ms, cost in calls:
        now_ms += gap_ms

        start_ms = limited.reserve(now_ms, cost)

        assert start_ms == pytest.approx(float(model.start_of(Fraction(now_ms), Fraction(cost))), rel=1e-9, abs=SLACK)


@given(
    RATES,
    BURSTS,
    st.lists(
        st.tuples(st.just("call"), st.integers(0, 2000), COSTS)
        | st.tuples(st.just("pause"), st.integers(0, 2000), st.integers(0, 3000)),
        max_size=60,
    ),
)
def test_no_window_holds_more_than_the_burst_and_what_the_rate_allows(
    rate: float, burst: float, steps: list[tuple[str, int, float]]
) -> None:
    limited = limiter(rate, burst)
    now_ms, paused_until_ms = 0.0, 0.0
    reserved: list[Start] = []
    for what, gap_ms, amount in steps:
        now_ms += gap_ms
        if what == "pause":
            paused_until_ms = max(paused_until_ms, now_ms + amount)
            limited.pause(now_ms + amount)
        else:
            start_ms = limited.reserve(now_ms, amount)
            assert start_ms >= max([now_ms, paused_until_ms, *(call.at_ms for call in reserved)])
            reserved.append(Start(start_ms, amount))

    assert_within_limit(reserved, limited.limit)


class Users:
    """Users of a limiter that wait for each start, in virtual time; each has an endless supply of calls."""

    def __init__(self, limited: ResumingRateLimiter, count: int, costs: list[float]) -> None:
        self.limited = limited
        self.costs = itertools.cycle(costs)
        self.pending = [next(self.costs) for _ in range(count)]  # the first call in the line of each
        self.begun: list[list[Start]] = [[] for _ in range(count)]
        # When, in what order, whose turn it is.
        self.turns = [(limited.reserve(0, self.pending[user]), user, user) for user in range(count)]
        heapq.heapify(self.turns)
        self.order = count

    def run_until(self, until_ms: float) -> None:
        while self.turns[0][0] < until_ms:
            at_ms, _, user = heapq.heappop(self.turns)
            if self.limited.ready_at(at_ms) <= at_ms:
                self.begun[user].append(Start(at_ms, self.pending[user]))
                self.pending[user] = next(self.costs)
            self.order += 1
            heapq.heappush(self.turns, (self.limited.reserve(at_ms, self.pending[user]), self.order, user))

    def all_begun(self) -> list[Start]:
        return list(itertools.chain(*self.begun))


@settings(deadline=None)
@given(
    st.sampled_from([3, 10, 100]),
    BURSTS,
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 500)), max_size=6),
    st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=1, max_size=5),
)
def test_a_pause_holds_for_all_users_and_what_comes_after_it_is_within_the_limit(
    rate: float, burst: float, count: int, pauses: list[tuple[int, int]], costs: list[float]
) -> None:
    users = Users(limiter(rate, burst), count, costs)
    held: list[tuple[float, float]] = []
    now_ms = 0.0
    for gap_ms, length_ms in pauses:
        now_ms += gap_ms
        users.run_until(now_ms)
        users.limited.pause(now_ms + length_ms)
        held.append((now_ms, now_ms + length_ms))
    users.run_until(now_ms + 1500)

    begun = users.all_begun()
    assert not [call for call in begun for start_ms, end_ms in held if start_ms <= call.at_ms < end_ms]
    assert_within_limit(begun, users.limited.limit)


@given(st.sampled_from([3, 10, 100]), BURSTS, st.integers(1, 5))
def test_users_take_turns(rate: float, burst: float, count: int) -> None:
    users = Users(limiter(rate, burst), count, [1.0])

    users.run_until(1000)

    begun = [len(calls) for calls in users.begun]
    assert max(begun) - min(begun) <= 1
    assert sum(begun) >= rate - 1


def test_a_limiter_may_be_shared() -> None:
    limiter = ResumingRateLimiter(RateLimit(10, burst=1))
    with Harness(rate_limit=limiter) as first, Harness(rate_limit=limiter) as second:
        first.process("a")
        second.process("b")
        assert (first.called(), second.called()) == (["a"], [])

        second.advance(100)
        assert second.called() == ["b"]


def test_retry_after_pauses_all_operators_of_a_shared_limiter() -> None:
    limiter = ResumingRateLimiter(RateLimit(1000, burst=10))
    with Harness(rate_limit=limiter, timeout_ms=9000) as first, Harness(rate_limit=limiter, timeout_ms=9000) as second:
        first.process("a")
        first.answer_error("a", RetryAfter(2.0))
        second.process("b")
        assert second.called() == []

        second.advance(2000)
        assert second.called() == ["b"]
