"""Lookups through the caches: what is asked of the table, when, and who waits for it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from pipeline.lookup import FullCache, LookupCache, LookupMetrics, NoCache, PartialCache, TableUnavailableError
from pipeline.lookup.caching import Lookups, lookups_of
from pipeline.lookup.queries import Found, Retries

from .fakes import FakeReader, HandClock, run, settle

A, B, C = ("a",), ("b",), ("c",)
RACKS = {"a": ["r1"], "b": ["r2", "r3"]}


class Desk:
    """Lookups over a FakeReader; open within `async with`."""

    def __init__(self, cache: LookupCache) -> None:
        self.reader = FakeReader(RACKS)
        self.metrics = LookupMetrics()
        self.clock = HandClock()
        self.lookups: Lookups = lookups_of(self.reader, cache, Retries(2, 1.0), self.metrics, self.clock)

    async def __aenter__(self) -> Desk:
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


def test_without_a_cache_each_batch_asks_once_for_each_of_its_keys() -> None:
    async def scenario() -> None:
        async with Desk(NoCache()) as desk:
            found = await desk.lookups.lookup([A, C, A, B])
            await desk.lookups.lookup([A])

            assert found == {A: [("r1",)], B: [("r2",), ("r3",)], C: ()}
            assert desk.reader.queries == [[A, C, B], [A]]
            assert (desk.metrics.hits, desk.metrics.misses, desk.metrics.loads) == (0, 5, 2)

    run(scenario())


def test_keys_that_wait_for_a_connection_go_together() -> None:
    async def scenario() -> None:
        desk = Desk(NoCache())
        desk.reader.parallelism, desk.reader.gate = 1, asyncio.Event()
        async with desk:
            first = desk.begin(A)
            await settle()
            others = [desk.begin(B), desk.begin(C, A), desk.begin(B)]
            await settle()
            desk.reader.gate.set()

            assert await first == {A: [("r1",)]}
            assert await others[0] == await others[2] == {B: [("r2",), ("r3",)]}
            assert await others[1] == {C: (), A: [("r1",)]}
            assert desk.reader.queries == [[A], [B, C, A]]

    run(scenario())


def test_no_question_that_is_put_together_grows_too_large() -> None:
    async def scenario() -> None:
        desk = Desk(NoCache())
        desk.reader.parallelism, desk.reader.gate = 1, asyncio.Event()
        batches = [[(f"{batch}-{number}",) for number in range(300)] for batch in range(10)]
        async with desk:
            asking = [desk.begin(*batch) for batch in batches]
            await settle()
            desk.reader.gate.set()
            await asyncio.gather(*asking)

            assert [len(keys) for keys in desk.reader.queries] == [900, 900, 900, 300]

    run(scenario())


def test_a_question_ends_when_nobody_waits_for_it_any_more() -> None:
    async def scenario() -> None:
        desk = Desk(NoCache())
        desk.reader.parallelism, desk.reader.gate = 1, asyncio.Event()
        async with desk:
            together = [desk.begin(A), desk.begin(B)]
            await settle()
            waiting, given_up = desk.begin(C), desk.begin(B)
            await settle()
            for each in (together[0], given_up):
                each.cancel()
            await settle()
            assert desk.reader.queries == [[A, B]]
            together[1].cancel()
            await settle()
            assert desk.reader.queries == [[A, B], [C]]
            desk.reader.gate.set()

            assert await waiting == {C: ()}

    run(scenario())


def test_an_error_is_that_of_all_who_asked_together() -> None:
    async def scenario() -> None:
        desk = Desk(NoCache())
        desk.reader.parallelism, desk.reader.error = 1, OSError("gone")
        async with desk:
            outcomes = await asyncio.gather(desk.begin(A), desk.begin(B), return_exceptions=True)
            desk.reader.error = None

            assert [str(each) for each in outcomes] == ["gone", "gone"]
            assert await desk.racks(A) == ["r1"]

    run(scenario())


@pytest.mark.parametrize("cache", [NoCache(), PartialCache(max_rows=10)])
def test_closing_answers_those_who_wait(cache: LookupCache) -> None:
    async def scenario() -> None:
        desk = Desk(cache)
        desk.reader.parallelism, desk.reader.gate = 1, asyncio.Event()
        async with desk:
            under_way = desk.begin(A)
            await settle()
            waiting = desk.begin(B)
            await settle()

        outcomes = await asyncio.gather(under_way, waiting, return_exceptions=True)
        for outcome, key in zip(outcomes, (A, B), strict=True):
            assert isinstance(outcome[key] if isinstance(outcome, dict) else outcome, TableUnavailableError)

    run(scenario())


def test_a_partial_cache_asks_for_a_key_once() -> None:
    async def scenario() -> None:
        async with Desk(PartialCache(max_rows=10)) as desk:
            first = await desk.lookups.lookup([A, C])
            second = await desk.lookups.lookup([A, B, C])

            assert first == {A: [("r1",)], C: ()}
            assert second == {A: [("r1",)], B: [("r2",), ("r3",)], C: ()}
            assert desk.reader.queries == [[A, C], [B]]
            assert (desk.metrics.hits, desk.metrics.misses, desk.metrics.cached_rows) == (2, 3, 4)

    run(scenario())


def test_a_missing_key_is_asked_for_again_if_it_is_not_to_be_remembered() -> None:
    async def scenario() -> None:
        async with Desk(PartialCache(max_rows=10, cache_missing_key=False)) as desk:
            assert await desk.racks(C) == []
            desk.reader.rows[C] = [("r9",)]

            assert await desk.racks(C) == ["r9"]

    run(scenario())


def test_an_expired_key_is_asked_for_again() -> None:
    async def scenario() -> None:
        async with Desk(PartialCache(expire_after_write=60)) as desk:
            await desk.racks(A)
            desk.reader.rows[A] = [("moved",)]
            await desk.clock.advance(59)
            assert await desk.racks(A) == ["r1"]
            await desk.clock.advance(1)

            assert await desk.racks(A) == ["moved"]

    run(scenario())


def test_batches_share_a_question_that_is_under_way() -> None:
    async def scenario() -> None:
        async with Desk(PartialCache(max_rows=10)) as desk:
            desk.reader.gate = asyncio.Event()
            first, second = desk.begin(A, B), desk.begin(B, C)
            await settle()
            desk.reader.gate.set()

            assert (await first)[B] == (await second)[B] == [("r2",), ("r3",)]
            assert desk.reader.queries == [[A, B], [C]]

    run(scenario())


def test_a_question_outlives_the_batch_that_asked_it() -> None:
    async def scenario() -> None:
        async with Desk(PartialCache(max_rows=10)) as desk:
            desk.reader.gate = asyncio.Event()
            first, second = desk.begin(A), desk.begin(A)
            await settle()
            first.cancel()
            await settle()
            desk.reader.gate.set()

            assert (await second)[A] == [("r1",)]
            assert first.cancelled()
            assert desk.reader.queries == [[A]]

    run(scenario())


def test_a_failure_fails_its_keys_only_and_is_not_remembered() -> None:
    async def scenario() -> None:
        async with Desk(PartialCache(max_rows=10)) as desk:
            await desk.racks(A)
            desk.reader.error = OSError("gone")
            found = await desk.lookups.lookup([A, B])
            desk.reader.error = None

            assert found[A] == [("r1",)]
            assert isinstance(found[B], OSError)
            assert await desk.racks(B) == ["r2", "r3"]
            assert desk.metrics.load_failures == 1

    run(scenario())


def test_closing_ends_what_is_under_way() -> None:
    async def scenario() -> None:
        desk = Desk(PartialCache(max_rows=10))
        async with desk:
            desk.reader.gate = asyncio.Event()
            asking = desk.begin(A)
            await settle()

        assert isinstance((await asking)[A], Exception)

    run(scenario())


@pytest.mark.parametrize("cache", [NoCache(), PartialCache(max_rows=10), FullCache()])
def test_a_table_that_is_away_is_asked_again_later_each_time(cache: LookupCache) -> None:
    async def scenario() -> None:
        desk = Desk(cache)
        desk.reader.error = TableUnavailableError("away")
        async with desk:
            asking = desk.begin(A)
            await desk.clock.advance(1)
            await desk.clock.advance(1)
            assert not asking.done()
            desk.reader.error = None
            await desk.clock.advance(1)

            assert await asking == {A: [("r1",)]}
            assert (desk.metrics.retries, desk.metrics.loads, desk.metrics.load_failures) == (2, 1, 0)

    run(scenario())


def test_a_table_that_stays_away_fails_in_the_end() -> None:
    async def scenario() -> None:
        async with Desk(NoCache()) as desk:
            desk.reader.error = TableUnavailableError("away")
            asking = desk.begin(A)
            await desk.clock.advance(1)
            await desk.clock.advance(2)

            with pytest.raises(TableUnavailableError, match="away"):
                await asking
            assert (len(desk.reader.queries), desk.metrics.load_failures) == (3, 1)

    run(scenario())


def test_lookups_before_the_first_full_load_wait_for_it() -> None:
    async def scenario() -> None:
        desk = Desk(FullCache())
        desk.reader.gate = asyncio.Event()
        async with desk:
            asking = [desk.begin(A), desk.begin(B, C)]
            await settle()
            assert not any(each.done() for each in asking)
            desk.reader.gate.set()

            assert await asking[0] == {A: [("r1",)]}
            assert await asking[1] == {B: [("r2",), ("r3",)], C: ()}
            assert await desk.racks(A) == ["r1"]
            assert (desk.reader.scans, desk.reader.queries) == (1, [])
            assert (desk.metrics.hits, desk.metrics.misses, desk.metrics.cached_rows) == (1, 3, 3)

    run(scenario())


def test_a_first_load_that_fails_fails_those_who_wait_and_the_next_lookup_tries_again() -> None:
    async def scenario() -> None:
        desk = Desk(FullCache())
        desk.reader.gate, desk.reader.error = asyncio.Event(), OSError("down")
        async with desk:
            asking = desk.begin(A)
            await settle()
            desk.reader.gate.set()
            with pytest.raises(OSError, match="down"):
                await asking
            desk.reader.error = None

            assert await desk.racks(A) == ["r1"]
            assert (desk.metrics.loads, desk.metrics.load_failures) == (1, 1)

    run(scenario())


def test_a_full_cache_is_reloaded_while_the_old_content_answers() -> None:
    async def scenario() -> None:
        async with Desk(FullCache(reload_interval=60)) as desk:
            assert await desk.racks(A) == ["r1"]
            desk.reader.rows = {A: [("moved",)]}
            await desk.clock.advance(59)
            assert await desk.racks(A) == ["r1"]
            desk.reader.gate = asyncio.Event()
            await desk.clock.advance(1)
            assert await desk.racks(A) == ["r1"]
            desk.reader.gate.set()
            await settle()

            assert await desk.racks(A) == ["moved"]
            assert await desk.racks(B) == []
            assert desk.metrics.cached_rows == 1

    run(scenario())


def test_a_reload_that_fails_keeps_the_old_content_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with Desk(FullCache(reload_interval=60)) as desk:
            await desk.racks(A)
            desk.reader.error = OSError("down")
            with caplog.at_level(logging.WARNING):
                await desk.clock.advance(60)
            assert await desk.racks(A) == ["r1"]
            assert "a reload; the old content stays in use failed: down" in caplog.text
            desk.reader.error, desk.reader.rows = None, {A: [("moved",)]}
            await desk.clock.advance(60)

            assert await desk.racks(A) == ["moved"]

    run(scenario())


@pytest.mark.parametrize(("mode", "next_at_s"), [("fixed_delay", 70), ("fixed_rate", 60)])
def test_the_interval_counts_from_the_end_of_a_load_or_its_beginning(mode: str, next_at_s: int) -> None:
    async def scenario() -> None:
        desk = Desk(FullCache(reload_interval=60, schedule_mode=mode))  # type: ignore[arg-type]
        desk.reader.gate = asyncio.Event()
        async with desk:
            await desk.clock.advance(10)
            desk.reader.gate.set()
            await settle()
            await desk.clock.advance(next_at_s - 11)
            assert desk.reader.scans == 1
            await desk.clock.advance(1)

            assert desk.reader.scans == 2

    run(scenario())


def test_closing_ends_a_load() -> None:
    async def scenario() -> None:
        desk = Desk(FullCache(reload_interval=60))
        desk.reader.gate = asyncio.Event()
        async with desk:
            await settle()

        assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    run(scenario())
