"""What a scrape sees of lookups."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from pipeline.lookup import FunctionTable, LookupMetrics, TableUnavailableError, register_lookup_metrics
from pipeline.streaming import AsyncFunction, CallMetrics, ordered_wait

from .fakes import TIMEOUT_S, LookupFunction, opened, run


class FailingBatches(AsyncFunction[str, Any]):
    """Asks one by one; the first error fails the whole batch, as that of a database does."""

    def __init__(self, ask: Callable[[str], Awaitable[Any]]) -> None:
        self._ask = ask

    async def async_invoke_batch(self, values: list[str]) -> list[Any]:
        return [await self._ask(value) for value in values]


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


def test_queries_that_a_lookup_repeats_are_among_the_calls_of_its_operator() -> None:
    """They were counted nowhere but in the worker, so an operator over a flapping database reported no retries."""
    asked: list[str] = []

    async def flapping(node: str) -> tuple[str]:
        asked.append(node)
        if asked.count(node) <= 2:
            raise TableUnavailableError("away")
        return (f"rack of {node}",)

    table = FunctionTable(FailingBatches(flapping), key="node string", columns="rack string")
    function = LookupFunction(table, "node", input_columns=["node"], max_retries=2, retry_delay_s=0)
    metrics = CallMetrics()

    results = list(
        ordered_wait([("a",), ("b",)], function, timeout=TIMEOUT_S, max_batch_size=1, concurrency=2, metrics=metrics)
    )

    assert results == [("a", "rack of a"), ("b", "rack of b")]
    assert len(asked) == 6
    assert (metrics.calls, metrics.retried, metrics.in_flight) == (6, 4, 0)


def test_a_function_that_is_opened_again_counts_on() -> None:
    function = LookupFunction(FunctionTable(str, key="node string", columns="rack string"), "node")
    function.metrics.retries = 3

    async def reopen() -> None:
        async with opened(function):
            function.metrics.retries += 2

    run(reopen())

    assert function.own_retries() == 5


def test_a_snapshot_names_every_count() -> None:
    metrics = LookupMetrics()
    metrics.loads = 2

    counts = dict.fromkeys(
        ["hits", "misses", "load_failures", "retries", "latest_load_s", "evictions", "cached_rows"], 0
    )
    assert metrics.snapshot() == counts | {"loads": 2}
