"""Counters that one thread writes and any thread reads."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher import AsyncDispatcher, DispatcherConfig, DispatcherStats
from dispatcher.util.histogram import Histogram

from ...kit import Gate, Numbered, Work

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


def test_the_handler_thread_takes_the_snapshot_between_two_events() -> None:
    seen: list[DispatcherStats] = []
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            seen.append(dispatcher.stats())

    dispatcher = AsyncDispatcher(DispatcherConfig(batch_size=7))
    dispatcher.register(Work, lambda event: None)
    with dispatcher:
        looking = threading.Thread(target=look)
        looking.start()
        for number in range(5_000):
            dispatcher.post(Numbered(number))
        assert dispatcher.await_drained(60)
        is_over.set()
        looking.join()

    accepted = [each.accepted for each in seen]
    assert accepted == sorted(accepted)
    assert all(each.in_hand == 0 or each.handled < 5_000 for each in seen)


def test_while_a_handler_hangs_its_caller_takes_the_snapshot(gate: Gate) -> None:
    dispatcher = AsyncDispatcher()
    dispatcher.register(Work, gate)
    with dispatcher:
        for number in range(3):
            dispatcher.post(Numbered(number))
        assert gate.entered.wait(60)

        stats = dispatcher.stats()

        assert (stats.accepted, stats.in_hand, stats.queue_size, stats.mails_run) == (3, 1, 2, stats.mails_run)
        gate.opened.set()
