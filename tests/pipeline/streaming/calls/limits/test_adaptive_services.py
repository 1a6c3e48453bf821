"""Adaptive rate limits against services that refuse calls: the time they take, and the share of calls refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.streaming import AdaptiveRateLimit

from .....kit import tries
from .services import FixedWindow, Schedule, Service, SlidingWindow, TokenBucket, run

pytestmark = pytest.mark.long

STEADY = Schedule((0, 300))
CHANGING = Schedule((0, 300), (3, 100), (6, 300))
EXACT, WHOLE_SECONDS, UNKNOWN = None, 1.0, 0.0
"""What a service says of the time to wait."""


def tasks(count: int) -> list[AdaptiveRateLimit]:
    return [AdaptiveRateLimit().split(count)] * count


@settings(max_examples=tries(4), derandomize=True)
@given(
    st.integers(100, 320),
    st.sampled_from([0.4, 0.6, 1.0, 2.0]),
    st.integers(5, 40),
    st.sampled_from([None, 1.0, 0.0]),
    st.sampled_from([0.1, 0.2, 0.3]),
    st.integers(0, 1000),
)
def test_a_limit_that_is_not_told_and_changes_is_found(
    first: int, times: float, latency_ms: int, retry_after_s: float | None, burst_s: float, seed: int
) -> None:
    """The goal: within 1.3 times the ideal time, with at most 5 % of the calls refused."""
    schedule = Schedule((0, first), (4, first * times))
    rows = int(4 * first * (1 + times))
    service = TokenBucket(schedule, retry_after_s)
    service.burst_s = burst_s

    took_s = run(service, rows, ["adaptive"], latency_ms=latency_ms, seed=seed)

    assert took_s <= 1.3 * schedule.ideal_s(rows)
    assert service.refused_share <= 0.05


@pytest.mark.parametrize(
    ("schedule", "retry_after_s"),
    [(STEADY, EXACT), (CHANGING, WHOLE_SECONDS), (CHANGING, UNKNOWN)],
    ids=["steady", "changing, whole seconds", "changing, unknown"],
)
def test_two_tasks_share_what_the_service_accepts(schedule: Schedule, retry_after_s: float | None) -> None:
    service = TokenBucket(schedule, retry_after_s)

    took_s = run(service, 1500, tasks(2))

    assert took_s <= 1.3 * schedule.ideal_s(1500)
    assert service.refused_share <= 0.05


@pytest.mark.parametrize(
    ("kind", "most_times", "retry_after_s"),
    [
        (FixedWindow, 1.3, EXACT),
        (FixedWindow, 1.3, UNKNOWN),
        (SlidingWindow, 1.5, WHOLE_SECONDS),
        (SlidingWindow, 1.5, UNKNOWN),
    ],
)
def test_services_that_refuse_all_calls_for_a_while_are_kept_busy(
    kind: type[Service], most_times: float, retry_after_s: float | None
) -> None:
    """They accept nothing until their window is over, and their Retry-After may be too long or missing."""
    service = kind(STEADY, retry_after_s)

    took_s = run(service, 1500, ["adaptive"])

    assert took_s <= most_times * STEADY.ideal_s(1500)
    assert service.refused_share <= 0.05


def test_after_a_plain_pause_calls_do_not_all_start_together() -> None:
    """All calls resumed at the end of each pause: 1,500 rows took 23 s in place of 5, with 1,110 refusals."""
    service = TokenBucket(STEADY, 1.0)

    took_s = run(service, 1500, [None] * 2)

    assert took_s <= 13
    assert service.refused <= 300
    ends_ms = [
        at_ms
        for before_ms, at_ms in zip(service.calls_ms, service.calls_ms[1:], strict=False)
        if at_ms - before_ms > 500
    ]
    assert ends_ms, "no pause was kept"
    for end_ms in ends_ms:
        assert sum(1 for at_ms in service.calls_ms if end_ms <= at_ms < end_ms + 50) <= 40


def test_a_long_pause_is_kept() -> None:
    service = FixedWindow(Schedule((0, 0.5), (5, 1000)), retry_after_s=5.0)

    run(service, 20, ["adaptive"])

    assert [at_ms // 1000 for at_ms in service.calls_ms if 1000 <= at_ms < 5000] == []


def test_a_service_that_refuses_nothing_is_not_held_back_for_long() -> None:
    service = TokenBucket(Schedule((0, 1e6)))

    took_s = run(service, 5000, ["adaptive"])

    assert took_s <= 2.5
    assert service.refused == 0
