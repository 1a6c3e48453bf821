"""The counts of an operator: snapshots, merging, and the page for Prometheus."""

from __future__ import annotations

import gc
import pickle
import shutil
import subprocess

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import REGISTRY

from pipeline.streaming import CallMetrics, register_call_metrics

COUNTERS = (
    "calls",
    "completed",
    "timed_out",
    "retried",
    "failed",
    "dropped",
    "captured",
    "shared",
    "remembered",
    "unknown",
    "lost_attempts",
    "unpaced_tasks",
)


def some_metrics(first: int = 1) -> CallMetrics:
    """Each counter is another number, from `first` up."""
    metrics = CallMetrics()
    for number, name in enumerate((*COUNTERS, "ended"), first):
        setattr(metrics, name, number)
    metrics.calls = metrics.ended + 5
    metrics.queue_wait.observe(2_000_000)
    metrics.limit_wait.observe(1_000_000)
    metrics.call_time.observe(10_000_000)
    metrics.call_time.observe(30_000_000)
    return metrics


def page(registry: CollectorRegistry) -> dict[str, float]:
    """The samples of operators, by name{operator}."""
    return {
        f"{sample.name}{{{sample.labels['operator']}}}": sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
        if not sample.labels.keys() & {"le", "percentile"}
    }


# ------------------------------------------------------------------------------------------------------------- counts


def test_calls_are_in_flight_from_their_beginning_to_their_end() -> None:
    metrics = CallMetrics()

    metrics.calls += 3
    metrics.ended += 1

    assert metrics.in_flight == 2


def test_repetitions_of_the_function_are_calls_that_have_ended() -> None:
    metrics = CallMetrics()

    metrics.count_repetitions(3)

    assert (metrics.calls, metrics.retried, metrics.in_flight) == (3, 3, 0)


def test_a_snapshot_has_all_numbers_and_does_not_change() -> None:
    metrics = some_metrics()

    snapshot = metrics.snapshot()
    metrics.calls += 1

    assert snapshot == {
        "calls": 18,
        **{name: number for number, name in enumerate(COUNTERS[1:], 2)},
        "in_flight": 5,
        "queue_wait_count": 1,
        "queue_wait_sum_s": 0.002,
        **{f"queue_wait_{name}_s": 0.002 for name in ("sum", "min", "p50", "p95", "p99", "max")},
        "limit_wait_count": 1,
        **{f"limit_wait_{name}_s": 0.001 for name in ("sum", "min", "p50", "p95", "p99", "max")},
        "call_time_count": 2,
        "call_time_sum_s": 0.04,
        "call_time_min_s": 0.01,
        "call_time_p50_s": 0.01,
        "call_time_p95_s": 0.03,
        "call_time_p99_s": 0.03,
        "call_time_max_s": 0.03,
    }


def test_merging_adds_every_number_and_leaves_the_other_as_it_was() -> None:
    metrics, other = some_metrics(first=1), some_metrics(first=100)
    before = other.snapshot()

    metrics.merge(other)

    expected = {name: some_metrics(1).snapshot()[name] + before[name] for name in (*COUNTERS, "in_flight")}
    assert {name: metrics.snapshot()[name] for name in expected} == expected
    assert metrics.call_time.count == 4
    assert metrics.queue_wait.count == 2
    assert metrics.limit_wait.count == 2
    assert other.snapshot() == before


def test_metrics_survive_pickling() -> None:
    metrics = some_metrics()

    assert pickle.loads(pickle.dumps(metrics)).snapshot() == metrics.snapshot()


def test_a_field_that_does_not_exist_cannot_be_counted() -> None:
    with pytest.raises(AttributeError):
        CallMetrics().complete = 1  # type: ignore[attr-defined]


# --------------------------------------------------------------------------------------------------------- Prometheus


def test_all_numbers_are_on_the_page_under_their_names() -> None:
    registry, metrics = CollectorRegistry(), some_metrics()

    register_call_metrics(metrics, "enrich", registry)

    assert page(registry) == {
        "async_calls_total{enrich}": 18,
        **{f"async_{name}_total{{enrich}}": number for number, name in enumerate(COUNTERS[1:], 2)},
        "async_in_flight{enrich}": 5,
        "async_queue_wait_seconds_count{enrich}": 1,
        "async_queue_wait_seconds_sum{enrich}": 0.002,
        "async_limit_wait_seconds_count{enrich}": 1,
        "async_limit_wait_seconds_sum{enrich}": 0.001,
        "async_call_seconds_count{enrich}": 2,
        "async_call_seconds_sum{enrich}": 0.04,
    }


def test_the_buckets_on_the_page_are_cumulative() -> None:
    registry, metrics = CollectorRegistry(), CallMetrics()
    for duration_ns in (1_000_000, 10_000_000, 10_000_000, 2**62):
        metrics.call_time.observe(duration_ns)

    register_call_metrics(metrics, "enrich", registry)

    def at_most(seconds: str) -> float | None:
        return registry.get_sample_value("async_call_seconds_bucket", {"operator": "enrich", "le": seconds})

    assert at_most(repr(2**19 / 1e9)) == 0
    assert at_most(repr(2**20 / 1e9)) == 1
    assert at_most(repr(2**24 / 1e9)) == 3
    assert at_most("+Inf") == 4


def test_the_percentiles_on_the_page_are_those_of_the_calls() -> None:
    registry, metrics = CollectorRegistry(), CallMetrics()
    for duration_ms in range(1, 1001):
        metrics.call_time.observe(duration_ms * 1_000_000)

    register_call_metrics(metrics, "enrich", registry)

    def percentile(share: str) -> float | None:
        labels = {"operator": "enrich", "percentile": share}
        return registry.get_sample_value("async_call_percentile_seconds", labels)

    assert (percentile("0"), percentile("100")) == (0.001, 1)
    assert [percentile(share) for share in ("50", "95", "99")] == pytest.approx([0.5, 0.95, 0.99], rel=0.05)


def test_a_scrape_sees_what_was_counted_since_the_last() -> None:
    registry, metrics = CollectorRegistry(), CallMetrics()
    register_call_metrics(metrics, "enrich", registry)
    before = page(registry)["async_calls_total{enrich}"]

    metrics.calls += 7

    assert (before, page(registry)["async_calls_total{enrich}"]) == (0, 7)


def test_operators_of_one_registry_have_labels_of_their_own() -> None:
    registry, one, other = CollectorRegistry(), some_metrics(1), some_metrics(100)

    register_call_metrics(one, "one", registry)
    register_call_metrics(other, "other", registry)

    assert page(registry)["async_completed_total{one}"] == 2
    assert page(registry)["async_completed_total{other}"] == 101


def test_registering_again_is_harmless_and_a_name_in_use_goes_to_the_last() -> None:
    registry, one, other = CollectorRegistry(), some_metrics(1), some_metrics(100)

    for metrics in (one, one, other):
        register_call_metrics(metrics, "enrich", registry)

    assert page(registry)["async_completed_total{enrich}"] == 101


def test_unreferenced_metrics_leave_the_page() -> None:
    registry, metrics = CollectorRegistry(), some_metrics()
    register_call_metrics(metrics, "enrich", registry)

    del metrics
    gc.collect()

    assert page(registry) == {}


def test_the_default_registry_is_prometheus_clients() -> None:
    metrics = some_metrics()

    register_call_metrics(metrics, "in the default registry")

    value = REGISTRY.get_sample_value("async_completed_total", {"operator": "in the default registry"})
    assert value == 2


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_promtool_finds_nothing_wrong_with_the_page() -> None:
    registry, metrics = CollectorRegistry(), some_metrics()
    register_call_metrics(metrics, "enrich", registry)

    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=generate_latest(registry), capture_output=True, timeout=60, check=False
    )

    assert checked.returncode == 0, checked.stderr.decode()
