"""What a scrape sees of lookups."""

from __future__ import annotations

import gc

from prometheus_client import CollectorRegistry, generate_latest

from pipeline.lookup import LookupMetrics, register_lookup_metrics


def test_lookups_are_scraped_by_table_for_as_long_as_they_live() -> None:
    registry = CollectorRegistry()
    nodes, racks = LookupMetrics(), LookupMetrics()
    nodes.hits, nodes.misses, nodes.latest_load_s = 3, 1, 0.5
    register_lookup_metrics(nodes, "nodes", registry)
    register_lookup_metrics(racks, "racks", registry)

    text = generate_latest(registry).decode()

    assert 'lookup_cache_hits_total{table="nodes"} 3.0' in text
    assert 'lookup_cache_misses_total{table="nodes"} 1.0' in text
    assert 'lookup_latest_load_seconds{table="nodes"} 0.5' in text
    assert 'lookup_cache_hits_total{table="racks"} 0.0' in text
    del racks
    gc.collect()
    assert "racks" not in generate_latest(registry).decode()


def test_a_snapshot_names_every_count() -> None:
    metrics = LookupMetrics()
    metrics.loads = 2

    assert metrics.snapshot() == {
        "hits": 0,
        "misses": 0,
        "loads": 2,
        "load_failures": 0,
        "retries": 0,
        "latest_load_s": 0.0,
        "evictions": 0,
        "cached_rows": 0,
    }
