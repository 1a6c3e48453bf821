"""Lookups through the caches: which queries reach the table, and when.

The partial cache is compared with a model that searches all its keys on every call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.lookup import FullCache, LookupMetrics, LookupTableError, PartialCache, TableUnavailableError
from pipeline.lookup.cache import LookupCache, LruRows, NoCache, cache_of

from ...kit.scenarios import play
from .fakes import FakeReader, FakeTable, HandClock, LookupFunction, LookupKey, LookupRow, in_loop, settle

Found = dict[LookupKey, list[LookupRow] | Exception]

A, B, C = ("a",), ("b",), ("c",)
RACKS = {"a": ["r1"], "b": ["r2", "r3"]}


class Setup:
    """A LookupFunction over a FakeReader, open within `async with`."""

    def __init__(self, cache: LookupCache) -> None:
        self.reader = FakeReader(RACKS)
        self.clock = HandClock()
        options: dict[str, Any] = {"how": "inner", "input_columns": ["node"], "max_retries": 2, "retry_delay_s": 1.0}
        self.function = LookupFunction(FakeTable(self.reader), "node", cache=cache, clock=self.clock, **options)

    async def __aenter__(self) -> Setup:
        await self.function.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.function.close()
        assert not self.reader.is_open

    def begin(self, *keys: tuple[str]) -> asyncio.Task[Found]:
        return asyncio.get_running_loop().create_task(self._ask(keys))

    async def _ask(self, keys: Sequence[tuple[str]]) -> Found:
        results = await self.function.async_invoke_batch(keys)
        rows = [each if isinstance(each, Exception) else [row[1:] for row in each] for each in results]
        return dict(zip(keys, rows, strict=True))


ERRORS = {"up": None, "down": OSError("down"), "away": TableUnavailableError("away")}


class Stage(Setup):
    """Plays scenarios of lookups: `ask a b` asks for two keys at once, `each a b` twice at the same moment.

    The table is `down`, `away` or `up`; it holds its answers from `hold` to `go`; `move a r9` changes a row. `+1`: a
    second passes. `ask1` is what the first question has got: `a:r1 b:r2,r3 c:`, an error, `cancelled`, or `...`.
    """

    def __init__(self, cache: LookupCache, parallelism: int | None = None) -> None:
        super().__init__(cache)
        self.reader.parallelism = parallelism
        self.runner = asyncio.Runner()
        self.asked: list[asyncio.Task[Found]] = []
        self.is_open = False

    def play(self, verb: str, *words: str) -> None:
        self.runner.run(self._play(verb, words))

    async def _play(self, verb: str, words: tuple[str, ...]) -> None:
        if verb in ERRORS:
            self.reader.error = ERRORS[verb]
            return
        if verb == "hold":
            self.reader.gate = asyncio.Event()
            return
        if not self.is_open:
            self.is_open = True
            await self.function.open()
        match verb:
            case "ask":
                self.asked.append(self.begin(*((key,) for key in words)))
            case "each":
                self.asked += [self.begin((key,)) for key in words]
            case "cancel":
                for number in words:
                    self.asked[int(number) - 1].cancel()
            case "move":
                self.reader.rows = {(words[0],): [(words[1],)]}
            case "go":
                assert self.reader.gate is not None
                self.reader.gate.set()
            case "close":
                await self.function.close()
            case _:
                await self.clock.advance(float(verb))
        await settle()

    def look(self, what: str) -> Iterable[object]:
        match what:
            case "queries":
                return [",".join(key for (key,) in query) for query in self.reader.queries]
            case "scans":
                return [self.reader.scans]
            case "tasks":
                return asyncio.all_tasks(self.runner.get_loop())
        if what.startswith("ask"):
            return answer_of(self.asked[int(what.removeprefix("ask")) - 1])
        return [getattr(self.function.metrics, what)]

    def end(self) -> None:
        self.runner.run(self.function.close())
        self.runner.close()
        assert not self.reader.is_open


def answer_of(asked: asyncio.Task[Found]) -> list[str]:
    if not asked.done():
        return ["..."]
    if asked.cancelled():
        return ["cancelled"]
    if (error := asked.exception()) is not None:
        return [type(error).__name__]
    return [
        f"{key}:{type(rows).__name__ if isinstance(rows, Exception) else ','.join(rack for (rack,) in rows)}"
        for (key,), rows in sorted(asked.result().items())
    ]


ONE_AT_A_TIME: dict[str, Any] = {"cache": NoCache(), "parallelism": 1}
NONE: dict[str, Any] = {"cache": NoCache()}
PARTIAL: dict[str, Any] = {"cache": PartialCache(max_rows=10)}
FULL: dict[str, Any] = {"cache": FullCache()}
EVERY_MINUTE: dict[str, Any] = {"cache": FullCache(reload_interval_s=60)}
RETRIED = "away | ask a | +1 | +1 -> ask1 ... | up | +1 -> ask1 a:r1 ; retries 2 ; loads 1 ; load_failures 0"

SCENARIOS: dict[str, tuple[dict[str, Any], str]] = {
    "without a cache each batch queries each of its keys once": (
        NONE, "ask a c a b | ask a -> ask1 a:r1 b:r2,r3 c: ; queries a,c,b a ; hits 0 ; misses 5 ; loads 2",
    ),
    "keys that wait for a connection are joined": (
        ONE_AT_A_TIME,
        "hold | ask a | ask b | ask c a | ask b | go"
        " -> ask1 a:r1 ; ask2 b:r2,r3 ; ask3 a:r1 c: ; ask4 b:r2,r3 ; queries a b,c,a",
    ),
    "a query is cancelled once all its callers gave up": (
        ONE_AT_A_TIME,
        "hold | each a b | each c b | cancel 1 4 -> queries a,b | cancel 2 -> queries a,b c | go -> ask3 c:",
    ),
    "an error reaches all callers of a joined query": (
        ONE_AT_A_TIME, "down | each a b -> ask1 OSError ; ask2 OSError ; queries a,b | up | ask a -> ask3 a:r1",
    ),
    "a partial cache queries a key once": (
        PARTIAL,
        "ask a c | ask a b c"
        " -> ask1 a:r1 c: ; ask2 a:r1 b:r2,r3 c: ; queries a,c b ; hits 2 ; misses 3 ; cached_rows 4",
    ),
    "an expired key is queried again": (
        {"cache": PartialCache(expire_after_write_s=60)},
        "ask a | move a moved | +59 | ask a -> ask2 a:r1 | +1 | ask a -> ask3 a:moved",
    ),
    "batches share a query in flight": (
        PARTIAL, "hold | ask a b | ask b c | go -> ask1 a:r1 b:r2,r3 ; ask2 b:r2,r3 c: ; queries a,b c",
    ),
    "a query outlives the batch that started it": (
        PARTIAL, "hold | ask a | ask a | cancel 1 | go -> ask1 cancelled ; ask2 a:r1 ; queries a",
    ),
    "a failure fails its keys only and is not cached": (
        PARTIAL, "ask a | down | ask a b -> ask2 a:r1 b:OSError | up | ask b -> ask3 b:r2,r3 ; load_failures 1",
    ),
    "an unavailable table is retried with growing delays": (NONE, RETRIED),
    "an unavailable table is retried for a partial cache": (PARTIAL, RETRIED),
    "an unavailable table is retried for a full cache": (FULL, RETRIED),
    "a table that stays unavailable fails the lookup": (
        NONE, "away | ask a | +1 | +2 -> ask1 TableUnavailableError ; queries a a a ; load_failures 1",
    ),
    "lookups before the first full load wait for it": (
        FULL,
        "hold | ask a | ask b c -> ask1 ... ; ask2 ... | go -> ask1 a:r1 ; ask2 b:r2,r3 c:"
        " | ask a -> ask3 a:r1 ; scans 1 ; queries ; hits 1 ; misses 3 ; cached_rows 3",
    ),
    "a failed first load fails its waiters and the next lookup retries": (
        FULL, "hold | down | ask a | go -> ask1 OSError | up | ask a -> ask2 a:r1 ; loads 1 ; load_failures 1",
    ),
    "a full cache is reloaded while the old content answers": (
        EVERY_MINUTE,
        "ask a -> ask1 a:r1 | move a moved | +59 | ask a -> ask2 a:r1 | hold | +1 | ask a -> ask3 a:r1"
        " | go | ask a b -> ask4 a:moved b: ; cached_rows 1",
    ),
    "an interval between loads counts from the end of one": (
        {"cache": FullCache(reload_interval_s=60, schedule_mode="fixed_delay")},
        "hold | +10 | go | +59 -> scans 1 | +1 -> scans 2",
    ),
    "an interval of a fixed rate counts from the beginning of a load": (
        {"cache": FullCache(reload_interval_s=60, schedule_mode="fixed_rate")},
        "hold | +10 | go | +49 -> scans 1 | +1 -> scans 2",
    ),
    "closing ends a load": (EVERY_MINUTE, "hold | +0 -> scans 1 | close -> tasks"),
}  # fmt: skip


@pytest.mark.parametrize(("options", "script"), SCENARIOS.values(), ids=SCENARIOS)
def test_scenario(options: dict[str, Any], script: str) -> None:
    stage = Stage(**options)
    play(stage, script)
    stage.end()


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
    assert setup.function.metrics.retries == 20


@in_loop
async def test_a_failed_reload_is_logged_and_keeps_the_old_content(caplog: pytest.LogCaptureFixture) -> None:
    async with Setup(FullCache(reload_interval_s=60)) as setup:
        await setup.begin(A)
        setup.reader.error = OSError("down")
        with caplog.at_level(logging.WARNING):
            await setup.clock.advance(60)
        assert await setup.begin(A) == {A: [("r1",)]}
        assert "reload failed, the old content stays in use: down" in caplog.text
        setup.reader.error, setup.reader.rows = None, {A: [("moved",)]}
        await setup.clock.advance(60)

        assert await setup.begin(A) == {A: [("moved",)]}


# -- the partial cache ------------------------------------------------------------------------------------------------


class ShownRows(LruRows):
    """Exposes its content."""

    def rows(self) -> int:
        return self._rows

    def keys(self) -> list[LookupKey]:
        """From the least to the most recently used, including expired keys not evicted yet."""
        return list(self._entries)


@dataclass
class Kept:
    rows: list[LookupRow]
    written_s: float
    accessed_s: float
    used: int

    @property
    def weight(self) -> int:
        return max(1, len(self.rows))


class Model:
    """A partial cache that searches all its keys on every call."""

    def __init__(self, options: PartialCache) -> None:
        self.options = options
        self.kept: dict[int, Kept] = {}
        self.uses = self.evictions = 0

    def expire(self, now_s: float) -> None:
        access, write = self.options.expire_after_access_s, self.options.expire_after_write_s
        for key, kept in list(self.kept.items()):
            if (access is not None and now_s - kept.accessed_s >= access) or (
                write is not None and now_s - kept.written_s >= write
            ):
                self.evict(key)

    def evict(self, key: int) -> None:
        del self.kept[key]
        self.evictions += 1

    def get(self, key: int, now_s: float) -> list[LookupRow] | None:
        self.expire(now_s)
        kept = self.kept.get(key)
        if kept is None:
            return None
        self.uses += 1
        kept.accessed_s, kept.used = now_s, self.uses
        return kept.rows

    def put(self, key: int, rows: list[LookupRow], now_s: float) -> None:
        self.expire(now_s)
        self.kept.pop(key, None)
        self.uses += 1
        kept = Kept(rows, now_s, now_s, self.uses)
        most = self.options.max_rows
        if (not rows and not self.options.cache_missing_key) or (most is not None and kept.weight > most):
            return
        self.kept[key] = kept
        while most is not None and sum(each.weight for each in self.kept.values()) > most:
            self.evict(min(self.kept, key=lambda each: self.kept[each].used))


BOUND = st.none() | st.integers(1, 5)
OPTIONS = st.builds(
    lambda rows, access, write, missing: PartialCache(
        max_rows=rows if rows or access or write else 3,
        expire_after_access_s=access,
        expire_after_write_s=write,
        cache_missing_key=missing,
    ),
    BOUND,
    BOUND,
    BOUND,
    st.booleans(),
)
STEPS = st.lists(
    st.tuples(st.just("get"), st.integers(0, 5))
    | st.tuples(st.just("put"), st.integers(0, 5), st.integers(0, 4))
    | st.tuples(st.just("wait"), st.integers(1, 3)),
    max_size=60,
)


@given(options=OPTIONS, steps=STEPS)
@example(PartialCache(expire_after_write_s=1), [("put", 0, 1), ("put", 1, 1), ("put", 2, 1), ("wait", 1), ("get", 3)])
@example(PartialCache(expire_after_access_s=1), [("put", 0, 1), ("put", 1, 1), ("put", 2, 1), ("wait", 1), ("get", 3)])
def test_every_answer_equals_the_model(options: PartialCache, steps: list[tuple[str, int, int]]) -> None:
    metrics = LookupMetrics()
    cache, model, now_s = ShownRows(options, metrics), Model(options), 0.0

    for version, (what, *numbers) in enumerate(steps):
        if what == "wait":
            now_s += numbers[0]
        elif what == "get":
            assert cache.get((numbers[0],), now_s) == model.get(numbers[0], now_s)
        else:
            rows: list[LookupRow] = [(version, at) for at in range(numbers[1])]
            cache.put((numbers[0],), rows, now_s)
            model.put(numbers[0], rows, now_s)
        model.expire(now_s)
        assert options.max_rows is None or cache.rows() <= options.max_rows
        if what != "wait":
            assert cache.keys() == [(key,) for key in sorted(model.kept, key=lambda each: model.kept[each].used)]
            assert metrics.cached_rows == cache.rows() == sum(kept.weight for kept in model.kept.values())
            assert metrics.evictions == model.evictions


@pytest.mark.parametrize(
    ("cache", "arguments", "message"),
    [
        (PartialCache, {}, "without a bound"),
        (PartialCache, {"max_rows": 0}, "max_rows is 0"),
        (PartialCache, {"expire_after_access_s": 0}, "expire_after_access_s is 0"),
        (PartialCache, {"expire_after_write_s": -1}, "expire_after_write_s is -1"),
        (FullCache, {"reload_interval_s": 0}, "reload_interval_s is 0"),
        (FullCache, {"schedule_mode": "hourly"}, "schedule_mode is 'hourly'"),
    ],
)
def test_an_impossible_cache_is_refused(cache: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(LookupTableError, match=message):
        cache(**arguments)


def test_a_cache_may_be_named() -> None:
    assert cache_of(None) == cache_of("none") == cache_of("NONE") == NoCache()
    assert cache_of("partial") == PartialCache(max_rows=10_000)
    assert cache_of("full") == FullCache()
    assert cache_of(PartialCache(max_rows=1)) == PartialCache(max_rows=1)
    with pytest.raises(LookupTableError, match="cache is 'lru'"):
        cache_of("lru")
