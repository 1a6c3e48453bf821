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
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dispatcher.aio import RateLimit
from pipeline.streaming import AdaptiveRateLimit, RetryAfter

from ....kit import TIMEOUT_S
from .harness import Harness, make_host

SLACK = 1e-6  # of rounding


def limiter(calls_per_s: float = 10, burst: float | None = 1) -> Any:
    return make_host(str).limiter_for(RateLimit(calls_per_s, burst))


def starts(limiter: Any, count: int, now_ms: float = 0, cost: float = 1) -> list[float]:
    return [limiter.reserve(now_ms, cost) for _ in range(count)]


# ---------------------------------------------------------------------------------------------------------- the limit


def test_the_default_burst_is_what_20_ms_allow_and_at_least_one_call() -> None:
    assert [RateLimit(rate).burst_calls for rate in (0.5, 50, 1000)] == [1, 1, 20]
    assert RateLimit(1000, 5).burst_calls == 5


@pytest.mark.parametrize("cost", [-1, float("nan"), float("inf"), None, "3"])
def test_a_cost_that_is_no_amount_is_refused_with_its_value(cost: Any) -> None:
    limit = RateLimit(10, cost=lambda _: cost)

    with pytest.raises(ValueError, match="cost of 'abc' is"):
        limit.cost_of("abc")


@pytest.mark.parametrize(
    ("limit", "workers", "part"),
    [
        (RateLimit(100, burst=20, cost=len), 4, RateLimit(25, burst=5, cost=len, scope="worker")),
        (RateLimit(100, scope="task"), 4, RateLimit(25, scope="task")),
        (RateLimit(1000), 4, RateLimit(250, scope="worker")),  # with the burst of that rate
        (AdaptiveRateLimit(100, 1000, cost=len), 4, AdaptiveRateLimit(25, 250, scope="worker")),
        (RateLimit(100, burst=20, scope="task"), 1, RateLimit(100, burst=20, scope="task")),
    ],
)
def test_a_limit_is_divided_among_workers_and_a_share_of_the_job_s_not_again(
    limit: Any, workers: int, part: Any
) -> None:
    copy = pickle.loads(pickle.dumps(limit))

    assert (copy.split(workers), copy.split(workers).cost) == (part, limit.cost)
    assert hash(copy.split(workers)) == hash(part)
    assert copy.cost_of("abc") == limit.cost_of("abc") == (1 if limit.cost is None else 3)
    for none in (0, -1, 1.5, True, None):
        with pytest.raises(ValueError, match="workers is"):
            copy.split(none)


def test_limits_that_differ_in_nothing_but_the_object_of_their_cost_are_equal() -> None:
    one, other = RateLimit(10, 2, cost=lambda value: len(value)), RateLimit(10, 2, cost=lambda value: len(value))

    assert (one, hash(one)) == (other, hash(other))
    assert one not in (RateLimit(10, 2, scope="task"), RateLimit(11, 2), RateLimit(10, 3))


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


@pytest.mark.parametrize("cost", [-1, float("nan"), float("inf")])
def test_a_cost_that_is_no_amount_reserves_nothing_and_no_pause_is_for_ever(cost: float) -> None:
    limited = limiter(10)

    with pytest.raises(ValueError, match="cost is"):
        limited.reserve(0, cost)
    if cost != -1:
        with pytest.raises(ValueError, match="until_ms is"):
            limited.pause(cost)

    assert limited.reserve(0) == 0


def test_later_reservations_wait_for_the_end_of_the_longest_pause_and_are_spaced_after_it() -> None:
    limited = limiter(10, burst=2)

    limited.pause(5000)
    limited.pause(1000)

    assert limited.ready_at(0) == 5000
    assert starts(limited, 4, now_ms=0) == [5000, 5000, 5100, 5200]


def test_a_reservation_within_a_pause_is_void_and_has_to_be_made_again() -> None:
    limited = limiter(10)
    _, inside, outside = starts(limited, 3)

    limited.pause(150)

    assert limited.ready_at(inside) == 150
    assert limited.ready_at(outside) == outside
    assert limited.reserve(inside) == 300


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


@given(RATES, BURSTS, st.lists(st.tuples(st.integers(-5, 2000), COSTS), max_size=60))
@example(10, 5, [(0, 1.0), (-1, 1.0)])
def test_calls_start_exactly_when_a_token_bucket_lets_them(
    rate: float, burst: float, calls: list[tuple[int, float]]
) -> None:
    """A thread may have read its clock before another one that has reserved first."""
    limited, model = limiter(rate, burst), TokenBucket(RateLimit(rate, burst))
    now_ms = 1000
    for gap_ms, cost in calls:
        now_ms += gap_ms

        start_ms = limited.reserve(now_ms, cost)

        assert start_ms == pytest.approx(float(model.start_of(Fraction(now_ms), Fraction(cost))), rel=1e-9, abs=SLACK)


class Users:
    """Users of a limiter that wait for each start, in virtual time; each has an endless supply of calls."""

    def __init__(self, limited: Any, count: int, costs: list[float]) -> None:
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
    shared = limiter(10)
    with Harness(rate_limit=shared) as first, Harness(rate_limit=shared) as second:
        first.process("a")
        second.process("b")
        assert (first.called(), second.called()) == (["a"], [])

        second.advance(100)
        assert second.called() == ["b"]


def test_retry_after_pauses_all_operators_of_a_shared_limiter() -> None:
    shared = limiter(1000, 10)
    with Harness(rate_limit=shared, timeout_ms=9000) as first, Harness(rate_limit=shared, timeout_ms=9000) as second:
        first.process("a")
        first.answer_error("a", RetryAfter(2.0))
        second.process("b")
        assert second.called() == []

        second.advance(2000)
        assert second.called() == ["b"]
