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


def test_a_snapshot_has_all_numbers_after_pickling_too() -> None:
    metrics = some_metrics()

    snapshot = metrics.snapshot()
    copy = pickle.loads(pickle.dumps(metrics)).snapshot()
    metrics.calls += 1

    assert (
        snapshot
        == copy
        == {
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
    )


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


# --------------------------------------------------------------------------------------------------------- Prometheus


def test_all_numbers_are_on_the_page_under_their_names() -> None:
    registry, metrics = CollectorRegistry(), some_metrics()

    register_call_metrics(metrics, "enrich", registry)

    if (promtool := shutil.which("promtool")) is not None:  # Debian: prometheus
        subprocess.run([promtool, "check", "metrics"], input=generate_latest(registry), timeout=60, check=True)
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


def test_the_buckets_and_percentiles_on_the_page_are_those_of_the_calls() -> None:
    registry, metrics = CollectorRegistry(), CallMetrics()
    register_call_metrics(metrics, "enrich", registry)
    for duration_ms in range(1, 1001):
        metrics.call_time.observe(duration_ms * 1_000_000)
    metrics.call_time.observe(2**62)

    def sampled(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"async_call_{name}", {"operator": "enrich", **labels})

    assert [sampled("seconds_bucket", le=repr(2**power / 1e9)) for power in (19, 20, 24)] == [0, 1, 16]
    assert (sampled("seconds_bucket", le="+Inf"), sampled("percentile_seconds", percentile="0")) == (1001, 0.001)
    percentiles = [sampled("percentile_seconds", percentile=share) for share in ("50", "95", "99")]
    assert percentiles == pytest.approx([0.5, 0.95, 0.99], rel=0.05)
    assert sampled("percentile_seconds", percentile="100") == pytest.approx(2**62 / 1e9)


def test_each_operator_has_its_label_a_name_in_use_goes_to_the_last_and_what_is_gone_leaves() -> None:
    registry, one, other = CollectorRegistry(), some_metrics(1), some_metrics(100)
    for metrics, name in ((one, "one"), (one, "both"), (one, "both"), (other, "both")):
        register_call_metrics(metrics, name, registry)
    metrics = one

    assert [page(registry)[f"async_completed_total{{{name}}}"] for name in ("one", "both")] == [2, 101]
    one.completed += 7
    assert page(registry)["async_completed_total{one}"] == 9
    del one, other, metrics
    gc.collect()
    assert page(registry) == {}


def test_the_default_registry_is_prometheus_clients() -> None:
    metrics = some_metrics()

    register_call_metrics(metrics, "in the default registry")

    value = REGISTRY.get_sample_value("async_completed_total", {"operator": "in the default registry"})
    assert value == 2
