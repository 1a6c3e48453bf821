"""Parts of collectors: objects by name for as long as they are in use, one collector in each registry, histograms."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

from dispatcher.util.histogram import Histogram
from dispatcher.util.prometheus import NamedCollector, RegistryCollectors, add_histogram

from ...kit import in_threads

INFINITY = float("inf")


class Counted:
    def __init__(self, number: int) -> None:
        self.number = number


class Numbers(NamedCollector[Counted]):
    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily("numbers", "Numbers.", labels=["name"])
        for name, counted in self.present().items():
            family.add_metric([name], counted.number)
        yield family


def test_a_scrape_shows_what_is_registered_by_name() -> None:
    registry, collectors = CollectorRegistry(), RegistryCollectors(Numbers)
    one, two, instead = Counted(1), Counted(2), Counted(3)

    for name, counted in (("one", one), ("two", two), ("one", instead)):
        collectors.of(registry).add(name, counted)

    assert registry.get_sample_value("numbers", {"name": "one"}) == 3
    assert registry.get_sample_value("numbers", {"name": "two"}) == 2


def test_an_object_without_other_references_is_not_shown() -> None:
    collector, gone = Numbers(), Counted(1)
    collector.add("gone", gone)

    del gone
    gc.collect()

    assert collector.present() == {}


def test_each_registry_has_a_collector_of_its_own() -> None:
    first, second, collectors = CollectorRegistry(), CollectorRegistry(), RegistryCollectors(Numbers)

    assert collectors.of(first) is collectors.of(first)
    assert collectors.of(first) is not collectors.of(second)


def test_a_registry_is_freed_though_what_its_collector_shows_leads_to_it() -> None:
    """Each resource manager that had ended stayed in memory, with all that it had known."""
    registry, collectors, shown = CollectorRegistry(), RegistryCollectors(Numbers), Counted(1)
    collector = collectors.of(registry)
    collector.kept, shown.registry = shown, registry  # type: ignore[attr-defined]
    freed = weakref.ref(registry)

    del registry, collector, shown
    gc.collect()

    assert freed() is None


def test_threads_that_ask_at_the_same_time_get_the_same_collector() -> None:
    registry, collectors = CollectorRegistry(), RegistryCollectors(Numbers)
    found: list[Numbers] = []

    in_threads(*[lambda: found.append(collectors.of(registry))] * 8)

    assert found == [collectors.of(registry)] * 8


def test_a_histogram_has_its_buckets_and_its_sum_in_seconds() -> None:
    family, times = HistogramMetricFamily("times_seconds", "Times.", labels=["name"]), Histogram()
    times.observe(1_000_000, 3)

    add_histogram(family, ["a"], times)

    samples = {(sample.name, sample.labels.get("le")): sample.value for sample in family.samples}
    assert samples[("times_seconds_sum", None)] == 0.003
    assert samples[("times_seconds_bucket", "+Inf")] == samples[("times_seconds_count", None)] == 3


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
