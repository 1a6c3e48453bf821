"""Lookups through the caches: which queries reach the table, and when."""

from __future__ import annotations

import asyncio
import logging

import pytest

from pipeline.lookup import (
    FullCache,
    LookupMetrics,
    PartialCache,
    TableUnavailableError,
)
from pipeline.lookup.answers import RowsAsColumns
from pipeline.lookup.cache import Found, LookupCache, NoCache, TableLookups, lookups_of
from pipeline.lookup.queries import Queries, QueryRetries

from .fakes import FakeReader, HandClock, in_loop, settle

A, B, C = ("a",), ("b",), ("c",)
RACKS = {"a": ["r1"], "b": ["r2", "r3"]}


class Setup:
    """Lookups over a FakeReader, open within `async with`."""

    def __init__(self, cache: LookupCache) -> None:
        self.reader = FakeReader(RACKS)
        self.metrics = LookupMetrics()
        self.clock = HandClock()
        queries = Queries(RowsAsColumns(self.reader, 1), QueryRetries(2, 1.0), self.metrics, self.clock)
        self.lookups: TableLookups = lookups_of(queries, cache, 1)

    async def __aenter__(self) -> Setup:
        await self.lookups.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.lookups.close()
        assert not self.reader.is_open

    def begin(self, *keys: tuple[str]) -> asyncio.Task[Found]:
        return asyncio.get_running_loop().create_task(self.lookups.lookup(keys))

    async def racks(self, key: tuple[str]) -> list[object]:
        rows = (await self.lookups.lookup([key]))[key]
        assert not isinstance(rows, Exception)
        return [rack for (rack,) in rows]


@in_loop
async def test_without_a_cache_each_batch_queries_each_of_its_keys_once() -> None:
    async with Setup(NoCache()) as setup:
        found = await setup.lookups.lookup([A, C, A, B])
        await setup.lookups.lookup([A])

        assert found == {A: [("r1",)], B: [("r2",), ("r3",)], C: ()}
        assert setup.reader.queries == [[A, C, B], [A]]
        assert (setup.metrics.hits, setup.metrics.misses, setup.metrics.loads) == (0, 5, 2)


@in_loop
async def test_keys_that_wait_for_a_connection_are_joined() -> None:
    setup = Setup(NoCache())
    setup.reader.parallelism, setup.reader.gate = 1, asyncio.Event()
    async with setup:
        first = setup.begin(A)
        await settle()
        others = [setup.begin(B), setup.begin(C, A), setup.begin(B)]
        await settle()
        setup.reader.gate.set()

        assert await first == {A: [("r1",)]}
        assert await others[0] == await others[2] == {B: [("r2",), ("r3",)]}
        assert await others[1] == {C: (), A: [("r1",)]}
        assert setup.reader.queries == [[A], [B, C, A]]


@in_loop
async def test_a_joined_query_has_a_size_limit() -> None:
    setup = Setup(NoCache())
    setup.reader.parallelism, setup.reader.gate = 1, asyncio.Event()
    batches = [[(f"{batch}-{number}",) for number in range(300)] for batch in range(10)]
    async with setup:
        asking = [setup.begin(*batch) for batch in batches]
        await settle()
        setup.reader.gate.set()
        await asyncio.gather(*asking)

        assert [len(keys) for keys in setup.reader.queries] == [900, 900, 900, 300]


@in_loop
async def test_a_query_is_cancelled_once_all_its_callers_gave_up() -> None:
    setup = Setup(NoCache())
    setup.reader.parallelism, setup.reader.gate = 1, asyncio.Event()
    async with setup:
        together = [setup.begin(A), setup.begin(B)]
        await settle()
        waiting, given_up = setup.begin(C), setup.begin(B)
        await settle()
        for each in (together[0], given_up):
            each.cancel()
        await settle()
        assert setup.reader.queries == [[A, B]]
        together[1].cancel()
        await settle()
        assert setup.reader.queries == [[A, B], [C]]
        setup.reader.gate.set()

        assert await waiting == {C: ()}


@in_loop
async def test_an_error_reaches_all_callers_of_a_joined_query() -> None:
    setup = Setup(NoCache())
    setup.reader.parallelism, setup.reader.error = 1, OSError("gone")
    async with setup:
        outcomes = await asyncio.gather(setup.begin(A), setup.begin(B), return_exceptions=True)
        setup.reader.error = None

        assert [str(each) for each in outcomes] == ["gone", "gone"]
        assert await setup.racks(A) == ["r1"]


@pytest.mark.parametrize("cache", [NoCache(), PartialCache(max_rows=10)])
@in_loop
async def test_closing_fails_waiting_lookups(cache: LookupCache) -> None:
    setup = Setup(cache)
    setup.reader.parallelism, setup.reader.gate = 1, asyncio.Event()
    async with setup:
        under_way = setup.begin(A)
        await settle()
        waiting = setup.begin(B)
        await settle()

    outcomes = await asyncio.gather(under_way, waiting, return_exceptions=True)
    for outcome, key in zip(outcomes, (A, B), strict=True):
        assert isinstance(outcome[key] if isinstance(outcome, dict) else outcome, TableUnavailableError)


@in_loop
async def test_a_partial_cache_queries_a_key_once() -> None:
    async with Setup(PartialCache(max_rows=10)) as setup:
        first = await setup.lookups.lookup([A, C])
        second = await setup.lookups.lookup([A, B, C])

        assert first == {A: [("r1",)], C: ()}
        assert second == {A: [("r1",)], B: [("r2",), ("r3",)], C: ()}
        assert setup.reader.queries == [[A, C], [B]]
        assert (setup.metrics.hits, setup.metrics.misses, setup.metrics.cached_rows) == (2, 3, 4)


@in_loop
async def test_an_expired_key_is_queried_again() -> None:
    async with Setup(PartialCache(expire_after_write_s=60)) as setup:
        await setup.racks(A)
        setup.reader.rows[A] = [("moved",)]
        await setup.clock.advance(59)
        assert await setup.racks(A) == ["r1"]
        await setup.clock.advance(1)

        assert await setup.racks(A) == ["moved"]


@in_loop
async def test_batches_share_a_query_under_way() -> None:
    async with Setup(PartialCache(max_rows=10)) as setup:
        setup.reader.gate = asyncio.Event()
        first, second = setup.begin(A, B), setup.begin(B, C)
        await settle()
        setup.reader.gate.set()

        assert (await first)[B] == (await second)[B] == [("r2",), ("r3",)]
        assert setup.reader.queries == [[A, B], [C]]


@in_loop
async def test_a_query_outlives_the_batch_that_started_it() -> None:
    async with Setup(PartialCache(max_rows=10)) as setup:
        setup.reader.gate = asyncio.Event()
        first, second = setup.begin(A), setup.begin(A)
        await settle()
        first.cancel()
        await settle()
        setup.reader.gate.set()

        assert (await second)[A] == [("r1",)]
        assert first.cancelled()
        assert setup.reader.queries == [[A]]


@in_loop
async def test_a_failure_fails_its_keys_only_and_is_not_cached() -> None:
    async with Setup(PartialCache(max_rows=10)) as setup:
        await setup.racks(A)
        setup.reader.error = OSError("gone")
        found = await setup.lookups.lookup([A, B])
        setup.reader.error = None

        assert found[A] == [("r1",)]
        assert isinstance(found[B], OSError)
        assert await setup.racks(B) == ["r2", "r3"]
        assert setup.metrics.load_failures == 1


@pytest.mark.parametrize("cache", [NoCache(), PartialCache(max_rows=10), FullCache()])
@in_loop
async def test_an_unavailable_table_is_retried_with_growing_delays(cache: LookupCache) -> None:
    setup = Setup(cache)
    setup.reader.error = TableUnavailableError("away")
    async with setup:
        asking = setup.begin(A)
        await setup.clock.advance(1)
        await setup.clock.advance(1)
        assert not asking.done()
        setup.reader.error = None
        await setup.clock.advance(1)

        assert await asking == {A: [("r1",)]}
        assert (setup.metrics.retries, setup.metrics.loads, setup.metrics.load_failures) == (2, 1, 0)


@in_loop
async def test_an_unavailable_table_is_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    async with Setup(NoCache()) as setup:
        setup.reader.error = TableUnavailableError("away")
        for _ in range(3):
            asking = [setup.begin(A), setup.begin(B), setup.begin(C)]
            await setup.clock.advance(1)
            await setup.clock.advance(2)
            await asyncio.gather(*asking, return_exceptions=True)
        quiet = list(caplog.messages)
        await setup.clock.advance(60)
        asking = [setup.begin(A)]
        await setup.clock.advance(1)
        await setup.clock.advance(2)
        await asyncio.gather(*asking, return_exceptions=True)

    assert quiet == ["away (retry 1 of 2 in 1 s)"]
    assert caplog.messages[1] == "away (retry 1 of 2 in 1 s) (17 more since the last line)"
    assert setup.metrics.retries == 20


@in_loop
async def test_a_table_that_stays_unavailable_fails_the_lookup() -> None:
    async with Setup(NoCache()) as setup:
        setup.reader.error = TableUnavailableError("away")
        asking = setup.begin(A)
        await setup.clock.advance(1)
        await setup.clock.advance(2)

        with pytest.raises(TableUnavailableError, match="away"):
            await asking
        assert (len(setup.reader.queries), setup.metrics.load_failures) == (3, 1)


@in_loop
async def test_lookups_before_the_first_full_load_wait_for_it() -> None:
    setup = Setup(FullCache())
    setup.reader.gate = asyncio.Event()
    async with setup:
        asking = [setup.begin(A), setup.begin(B, C)]
        await settle()
        assert not any(each.done() for each in asking)
        setup.reader.gate.set()

        assert await asking[0] == {A: [("r1",)]}
        assert await asking[1] == {B: [("r2",), ("r3",)], C: ()}
        assert await setup.racks(A) == ["r1"]
        assert (setup.reader.scans, setup.reader.queries) == (1, [])
        assert (setup.metrics.hits, setup.metrics.misses, setup.metrics.cached_rows) == (1, 3, 3)


@in_loop
async def test_a_failed_first_load_fails_its_waiters_and_the_next_lookup_retries() -> None:
    setup = Setup(FullCache())
    setup.reader.gate, setup.reader.error = asyncio.Event(), OSError("down")
    async with setup:
        asking = setup.begin(A)
        await settle()
        setup.reader.gate.set()
        with pytest.raises(OSError, match="down"):
            await asking
        setup.reader.error = None

        assert await setup.racks(A) == ["r1"]
        assert (setup.metrics.loads, setup.metrics.load_failures) == (1, 1)


@in_loop
async def test_a_full_cache_is_reloaded_while_the_old_content_answers() -> None:
    async with Setup(FullCache(reload_interval_s=60)) as setup:
        assert await setup.racks(A) == ["r1"]
        setup.reader.rows = {A: [("moved",)]}
        await setup.clock.advance(59)
        assert await setup.racks(A) == ["r1"]
        setup.reader.gate = asyncio.Event()
        await setup.clock.advance(1)
        assert await setup.racks(A) == ["r1"]
        setup.reader.gate.set()
        await settle()

        assert await setup.racks(A) == ["moved"]
        assert await setup.racks(B) == []
        assert setup.metrics.cached_rows == 1


@in_loop
async def test_a_reload_that_fails_keeps_the_old_content_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with Setup(FullCache(reload_interval_s=60)) as setup:
        await setup.racks(A)
        setup.reader.error = OSError("down")
        with caplog.at_level(logging.WARNING):
            await setup.clock.advance(60)
        assert await setup.racks(A) == ["r1"]
        assert "reload failed, the old content stays in use: down" in caplog.text
        setup.reader.error, setup.reader.rows = None, {A: [("moved",)]}
        await setup.clock.advance(60)

        assert await setup.racks(A) == ["moved"]


@pytest.mark.parametrize(("mode", "next_at_s"), [("fixed_delay", 70), ("fixed_rate", 60)])
@in_loop
async def test_the_interval_counts_from_the_end_of_a_load_or_its_beginning(mode: str, next_at_s: int) -> None:
    setup = Setup(FullCache(reload_interval_s=60, schedule_mode=mode))  # type: ignore[arg-type]
    setup.reader.gate = asyncio.Event()
    async with setup:
        await setup.clock.advance(10)
        setup.reader.gate.set()
        await settle()
        await setup.clock.advance(next_at_s - 11)
        assert setup.reader.scans == 1
        await setup.clock.advance(1)

        assert setup.reader.scans == 2


@in_loop
async def test_closing_ends_a_load() -> None:
    setup = Setup(FullCache(reload_interval_s=60))
    setup.reader.gate = asyncio.Event()
    async with setup:
        await settle()

    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
