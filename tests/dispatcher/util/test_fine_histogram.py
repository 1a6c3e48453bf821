"""Histograms against the durations themselves."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dispatcher.util.histogram import FineHistogram, Histogram, bounds_of, bucket_of

pytestmark = pytest.mark.long

# Of any magnitude, since uniformly chosen ones would nearly all be huge.
DURATION_NS = st.integers(0, 63).flatmap(lambda bits: st.integers(0, (2 << bits) - 1))
DURATIONS = st.lists(DURATION_NS, max_size=100)
SOME = st.lists(DURATION_NS, min_size=1, max_size=100)


def histogram(*durations_ns: int) -> FineHistogram:
    made = FineHistogram()
    for duration_ns in durations_ns:
        made.observe(duration_ns)
    return made


def contents(of: FineHistogram) -> tuple[list[int], int, int, int]:
    return of.counts, of.total_ns, of.min_ns, of.max_ns


def test_a_new_histogram_is_empty() -> None:
    empty = FineHistogram()

    assert (empty.count, empty.sum_s, empty.min_s, empty.max_s, empty.quantile(0.5)) == (0, 0, 0, 0, 0)


def test_a_histogram_knows_number_sum_minimum_and_maximum() -> None:
    recorded = histogram(2_000_000, 1_000_000, 5_000_000)

    assert (recorded.count, recorded.sum_s, recorded.min_s, recorded.max_s) == (3, 0.008, 0.001, 0.005)


@pytest.mark.parametrize("durations_ns", [(-5,), (-1,), (7, -1), (-1, 7)])
def test_a_negative_duration_counts_as_none(durations_ns: tuple[int, ...]) -> None:
    recorded = histogram(*durations_ns)

    assert recorded.counts[0] == 1
    assert (recorded.min_s, recorded.quantile(0), recorded.total_ns) == (
        0,
        0,
        sum(max(each, 0) for each in durations_ns),
    )


@given(DURATION_NS)
def test_a_duration_is_within_the_narrow_bounds_of_its_bucket(duration_ns: int) -> None:
    lowest_ns, highest_ns = bounds_of(bucket_of(duration_ns))

    assert lowest_ns <= duration_ns <= highest_ns
    assert highest_ns - lowest_ns <= lowest_ns / 16


def test_buckets_follow_each_other_without_a_gap() -> None:
    bounds = [bounds_of(bucket) for bucket in range(len(FineHistogram().counts))]

    assert bounds[0] == (0, 0)
    assert bounds[-1][1] == 2**64 - 1
    assert all(following[0] == highest_ns + 1 for (_, highest_ns), following in pairwise(bounds))


@given(DURATIONS)
def test_each_duration_is_counted_once_in_its_bucket(durations_ns: list[int]) -> None:
    recorded = histogram(*durations_ns)

    buckets = [bucket_of(duration_ns) for duration_ns in durations_ns]
    assert recorded.counts == [buckets.count(bucket) for bucket in range(len(recorded.counts))]
    assert recorded.total_ns == sum(durations_ns)
    assert (recorded.min_ns, recorded.max_ns) == (min(durations_ns, default=0), max(durations_ns, default=-1))


@given(SOME, st.floats(0, 1))
def test_a_quantile_is_within_5_percent_of_the_exact_one(durations_ns: list[int], q: float) -> None:
    exact_ns = sorted(durations_ns)[max(math.ceil(q * len(durations_ns)), 1) - 1]

    assert histogram(*durations_ns).quantile(q) * 1e9 == pytest.approx(exact_ns, rel=0.05, abs=0)


@given(SOME)
def test_quantiles_grow_from_the_minimum_to_the_maximum(durations_ns: list[int]) -> None:
    recorded = histogram(*durations_ns)

    quantiles = [recorded.quantile(q / 20) for q in range(21)]

    assert quantiles == sorted(quantiles)
    assert quantiles[0] == min(durations_ns) / 1e9
    assert quantiles[-1] == max(durations_ns) / 1e9


@pytest.mark.parametrize("q", [-0.1, 1.1, float("nan"), 99])
def test_a_quantile_of_no_fraction_is_refused(q: float) -> None:
    with pytest.raises(ValueError, match="q is"):
        histogram(1).quantile(q)


@given(DURATIONS, DURATIONS)
def test_merged_histograms_are_the_histogram_of_all(some_ns: list[int], more_ns: list[int]) -> None:
    merged, other = histogram(*some_ns), histogram(*more_ns)

    merged.merge(other)

    assert contents(merged) == contents(histogram(*some_ns, *more_ns))
    assert contents(other) == contents(histogram(*more_ns))


@pytest.mark.parametrize("kind", [Histogram, FineHistogram])
@given(DURATIONS)
@example([-5, 0, 1, 1023, 1024, 1025, 2**40 - 1, 2**40])
def test_a_scrape_has_cumulative_counts_by_powers_of_two(kind: type[Histogram], durations_ns: list[int]) -> None:
    recorded = kind()
    for duration_ns in durations_ns:
        recorded.observe(duration_ns)

    scraped = recorded.buckets()

    # The bounds are those of whole nanoseconds; the page shows them in seconds.
    below = [2**bits for bits in range(10, 41)]
    counts = [sum(duration_ns < bound for duration_ns in durations_ns) for bound in below]
    assert scraped == [*zip((bound / 1e9 for bound in below), counts, strict=True), (math.inf, len(durations_ns))]
    assert recorded.total_ns == sum(max(0, each) for each in durations_ns)


def test_a_duration_of_more_than_64_bits_is_in_the_last_bucket() -> None:
    recorded = Histogram()

    recorded.observe(2**70)

    assert (recorded.counts[-1], recorded.total_ns) == (1, 2**70)
