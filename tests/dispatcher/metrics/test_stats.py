"""Counters that one thread writes and any thread reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher import AsyncDispatcher, Retry
from dispatcher import stats as stats_module
from dispatcher.mailbox import ManualClock
from dispatcher.util.histogram import Histogram, snapshot

from ..conftest import Gate, Numbered, Work
from ..waiting import until

INFINITY = float("inf")


def test_an_empty_histogram_has_all_its_buckets() -> None:
    buckets = Histogram().buckets()

    assert [count for _, count in buckets] == [0] * 32
    assert buckets[0][0] == pytest.approx(1.024e-6)
    assert buckets[-2][0] == pytest.approx(1099.5, rel=1e-3)
    assert buckets[-1][0] == INFINITY


@pytest.mark.parametrize("duration_ns", [0, 1, 1023, 1024, 1025, 10**6, 2**40 - 1, 2**40, 2**63, 2**70])
def test_a_duration_is_in_the_buckets_whose_bound_it_does_not_pass(duration_ns: int) -> None:
    histogram = Histogram()

    histogram.observe(duration_ns)

    # A duration of exactly 2**n is counted one bucket higher: the bounds are exclusive.
    assert histogram.buckets() == [
        (bound_s, 1 if bound_s == INFINITY or duration_ns < round(bound_s * 1e9) else 0)
        for bound_s, _ in histogram.buckets()
    ]
    assert histogram.total_ns == duration_ns


def test_a_negative_duration_counts_as_none() -> None:
    histogram = Histogram()

    histogram.observe(-5)

    assert histogram.buckets()[0][1] == 1
    assert histogram.total_ns == 0


@given(st.lists(st.integers(0, 2**45)))
def test_buckets_are_cumulative_and_the_last_one_counts_all(durations_ns: list[int]) -> None:
    histogram = Histogram()

    for duration_ns in durations_ns:
        histogram.observe(duration_ns)

    bounds, counts = zip(*histogram.buckets(), strict=True)
    assert list(bounds) == sorted(set(bounds))
    assert list(counts) == sorted(counts)
    assert counts[-1] == len(durations_ns)
    assert histogram.total_ns == sum(durations_ns)


def test_a_snapshot_is_tried_again_while_the_owner_changes_the_container() -> None:
    container = {"a": 1}
    interruptions = iter([RuntimeError("dictionary changed size during iteration")] * 3)

    def copy() -> dict[str, int]:
        for interruption in interruptions:
            raise interruption
        return container.copy()

    assert snapshot(copy) == {"a": 1}


def test_other_errors_of_a_snapshot_are_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        snapshot(lambda: 1 // 0)


def amid_a_snapshot(monkeypatch: pytest.MonkeyPatch, move: Callable[[], None]) -> None:
    """Have the next snapshot call `move` once, after it has read all counts but the queue's size."""
    moves, look = [move], stats_module._moves

    def look_and_move(dispatching: Any) -> Any:
        seen = look(dispatching)
        if moves:
            moves.pop()()
        return seen

    monkeypatch.setattr(stats_module, "_moves", look_and_move)


def test_an_event_that_begins_to_wait_for_its_next_attempt_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()

    def fail(event: Numbered) -> None:
        gate.handle(event)
        raise OSError

    def let_it_fail() -> None:
        gate.opened.set()
        until(lambda: dispatcher.core.queue.state.retrying, "it waits for its next attempt")

    dispatcher = AsyncDispatcher(time_service=ManualClock())
    dispatcher.register(Work, fail, on_error=Retry(attempts=2, delay_s=1))
    with dispatcher:
        dispatcher.post(Numbered())
        assert gate.entered.wait(60)
        amid_a_snapshot(monkeypatch, let_it_fail)

        stats = dispatcher.stats()

        assert (stats.accepted, stats.in_hand, stats.retrying) == (1, 0, 1)
        dispatcher.set_drain_events_on_stop(False)


def test_events_that_are_taken_meanwhile_are_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()

    def let_them_end() -> None:
        gate.opened.set()
        until(dispatcher.is_drained)

    dispatcher = AsyncDispatcher()
    dispatcher.register(Work, gate)
    with dispatcher:
        for number in range(3):
            dispatcher.post(Numbered(number))
        assert gate.entered.wait(60)
        amid_a_snapshot(monkeypatch, let_them_end)

        stats = dispatcher.stats()

    assert (stats.accepted, stats.handled, stats.queue_size) == (3, 3, 0)
