"""Adaptive rate limits: what is refused, what they travel as, and what shares one."""

from __future__ import annotations

import pytest

from pipeline.streaming import AdaptiveRateLimit
from pipeline.streaming.calls.limits.learned_rate import AcceptedRate, LearnedRate

from ..harness import make_host
from .services import Schedule, TokenBucket, run


def test_operators_of_a_host_share_a_limiter_unless_the_scope_is_the_task() -> None:
    host = make_host(str)

    assert host.limiter_for(AdaptiveRateLimit()) is host.limiter_for(AdaptiveRateLimit())
    assert host.limiter_for(AdaptiveRateLimit(scope="task")) is not host.limiter_for(AdaptiveRateLimit(scope="task"))


def test_operators_may_share_a_limiter() -> None:
    """Two operators with limiters of their own would make 200 calls per second."""
    limiter = make_host(str).limiter_for(AdaptiveRateLimit(max_calls_per_s=100))

    took_s = run(TokenBucket(Schedule((0, 1e6))), 500, [limiter, limiter])

    assert took_s >= 4.8


def test_a_cost_is_counted_in_its_unit() -> None:
    """50 calls that cost 10 each, at most 100 per second in the unit of the cost: 10 calls per second."""
    limit = AdaptiveRateLimit(100, 100, cost=lambda _: 10)

    took_s = run(TokenBucket(Schedule((0, 1e6))), 50, [limit])

    assert 4 <= took_s <= 6


# ----------------------------------------------------------------------------------------------------------- the rate


def test_calls_under_way_when_one_is_refused_lead_to_one_cut() -> None:
    rate = LearnedRate(100)
    for _ in range(5):
        rate.refused(0, 50, 100)
    after_five = rate.calls_per_s

    assert after_five >= 50


def test_accepted_calls_under_way_soften_the_cut() -> None:
    refused_alone, among_accepted = LearnedRate(100), LearnedRate(100)
    for rate in (refused_alone, among_accepted):
        rate.refused(0, 50, 100)
    for sent_ms in range(1, 21):
        refused_alone.refused(sent_ms, 51, 100)
        among_accepted.accepted(sent_ms, 51)

    assert refused_alone.calls_per_s < 0.6 * among_accepted.calls_per_s


def test_a_pause_ends_when_a_call_made_after_the_refused_one_is_accepted() -> None:
    rate = LearnedRate(100)
    rate.refused(10, 50, 1000)
    assert not rate.accepted(9, 51)
    assert rate.try_start(52) > 52

    assert rate.accepted(11, 60)

    assert rate.ready_at(60) <= 110


def test_a_pause_that_is_kept_ends_at_its_end() -> None:
    rate = LearnedRate(100, keeps_pauses=True)
    rate.pause(50, 1000)
    rate.accepted(60, 70)

    assert rate.try_start(1049) == 1050
    assert rate.try_start(1050) == 1050
    assert rate.try_start(1050) > 1050


def test_the_rate_does_not_grow_while_nothing_waits_for_it() -> None:
    rate = LearnedRate(100)
    for at_ms in range(0, 10_000, 100):
        assert rate.try_start(at_ms) == at_ms
        rate.accepted(at_ms, at_ms + 10)

    assert rate.calls_per_s == 100


def test_what_was_accepted_in_the_last_second_is_counted() -> None:
    accepted = AcceptedRate()
    for at_ms in range(0, 5000, 10):
        accepted.add(at_ms, 1)

    assert accepted.per_s(5000) == pytest.approx(100, abs=2)
    assert accepted.per_s(5500) == pytest.approx(50, abs=2)
    assert accepted.per_s(9000) == 0
