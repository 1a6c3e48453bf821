"""Histograms by key, counted row by row or by sorting."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

import numpy as np

from pipeline.report.digests import buckets
from pipeline.report.digests.buckets import GroupedHistograms, TimeBuckets, log_buckets

KEYS, VALUES = [7, 3, 7, 7, 7], [10, 1, 10, 0, 1 << 40]


def taken(groups: GroupedHistograms) -> set[tuple[int, ...]]:
    """Each row: key, bucket, count, total, least, greatest."""
    keys, log_bucket, figures = groups.take()
    return set(zip(*(column.tolist() for column in (keys, log_bucket, *figures.values())), strict=True))


@pytest.mark.parametrize("most_places", [1 << 21, 0])
def test_values_count_in_the_bucket_of_their_key(monkeypatch: pytest.MonkeyPatch, most_places: int) -> None:
    """The second time by sorting, as it happens where the keys and buckets would need too much memory."""
    monkeypatch.setattr(buckets, "_MOST_PLACES", most_places)
    of_ten, of_one, of_most = log_buckets(np.array([10, 1, 1 << 40])).tolist()
    groups = GroupedHistograms()

    groups.add(np.array(KEYS[:2]), np.array(VALUES[:2]))
    groups.add(np.array([], np.int64), np.array([], np.int64))
    groups.add(np.array(KEYS[2:]), np.array(VALUES[2:]))

    assert taken(groups) == {
        (3, of_one, 1, 1, 1, 1),
        (7, of_ten, 2, 20, 10, 10),
        (7, -1, 1, 0, 0, 0),
        (7, of_most, 1, 1 << 40, 1 << 40, 1 << 40),
    }


def test_both_ways_of_counting_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(5)
    keys, values = random.integers(0, 90, 4000), random.integers(0, 1 << 45, 4000) >> random.integers(0, 45, 4000)
    counted, ordered = GroupedHistograms(), GroupedHistograms()

    counted.add(keys, values)
    monkeypatch.setattr(buckets, "_MOST_PLACES", 0)
    ordered.add(keys, values)

    assert taken(counted) == taken(ordered)


def test_groups_are_full_by_their_distinct_rows() -> None:
    groups = GroupedHistograms()
    for _ in range(10):
        groups.add(np.array([1, 2]), np.array([5, 5]))

    assert not groups.is_full(4)
    assert {row[2] for row in taken(groups)} == {10}
    assert taken(groups) == set()


def test_groups_that_are_full_are_those_that_merging_leaves_large() -> None:
    """Groups counted as full once half of the room was taken, by rows that merging would have left few of."""
    groups = GroupedHistograms()
    for _ in range(3):
        groups.add(np.array([1, 2, 3]), np.array([5, 5, 5]))
        assert not groups.is_full(10)

    groups.add(np.array([4, 5, 6]), np.array([5, 5, 5]))

    assert groups.is_full(10)
    assert [row[2] for row in sorted(taken(groups))] == [3, 3, 3, 1, 1, 1]


def test_times_outside_belong_to_the_nearest_interval() -> None:
    times = TimeBuckets.over(100, 199, most=4)

    assert times.numbers(np.array([0, 100, 150, 199, 999])).tolist() == [0, 0, 1, times.number - 1, times.number - 1]
