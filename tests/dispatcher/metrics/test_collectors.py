"""Parts of collectors: objects by name for as long as they are in use, and one collector in each registry."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

from dispatcher.util.histogram import Histogram
from dispatcher.util.prometheus import NamedCollector, RegistryCollectors, add_histogram

from ...kit import in_threads


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
