"""Lookups through a cache. All of it runs on the asyncio loop of the function's host, so nothing needs a lock."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence

from pipeline.lookup.cache import FullCache, LookupCache, LruRows, PartialCache, seconds
from pipeline.lookup.errors import TableUnavailableError
from pipeline.lookup.queries import Found, Queries
from pipeline.lookup.schema import Key, Row

log = logging.getLogger(__name__)


class Lookups(ABC):
    """Lookups in a table by queries to its reader; owns both."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._metrics = queries.metrics
        self._clock = queries.clock
        self._tasks = queries.tasks

    async def open(self) -> None:
        await self._queries.reader.open()

    @abstractmethod
    async def lookup(self, keys: Sequence[Key]) -> Found:
        """The rows, or the error, of each of `keys`, which may repeat."""

    async def close(self) -> None:
        """Cancel the calls under way, wait for them up to a timeout, then close the reader."""
        await self._tasks.end()
        self._queries.close()
        await self._queries.reader.close()


class DirectLookups(Lookups):
    """No cache."""

    async def lookup(self, keys: Sequence[Key]) -> Found:
        self._metrics.misses += len(keys)
        return await self._queries.ask(list(dict.fromkeys(keys)))


class PartialLookups(Lookups):
    """Caches the rows of each lookup. Lookups of a key whose query is under way wait for that query.

    Each query runs in its own task. Cancelling the batch that started it does not cancel it, because other batches may
    wait for the same keys; it still fills the cache.
    """

    def __init__(self, queries: Queries, options: PartialCache) -> None:
        super().__init__(queries)
        self._cache = LruRows(options, queries.metrics)  # loop thread only
        self._under_way: dict[Key, asyncio.Task[Found]] = {}  # loop thread only; queries by key

    async def lookup(self, keys: Sequence[Key]) -> Found:
        now_s = self._clock.now_s()
        result: Found = {}
        missing: dict[Key, None] = {}
        waits: dict[Key, asyncio.Task[Found]] = {}
        for key in keys:
            rows = self._cache.get(key, now_s)
            if rows is not None:
                self._metrics.hits += 1
                result[key] = rows
                continue
            self._metrics.misses += 1
            task = self._under_way.get(key)
            if task is None:
                missing[key] = None
            else:
                waits[key] = task
        if missing:
            started = dict.fromkeys(missing, self._tasks.start(self._load(list(missing))))
            self._under_way.update(started)
            waits.update(started)
        if waits:
            await asyncio.wait(set(waits.values()))
            for key, task in waits.items():
                result[key] = _outcome(task, key)
        return result

    async def _load(self, keys: list[Key]) -> Found:
        try:
            found = await self._queries.ask(keys)
            now_s = self._clock.now_s()
            for key, rows in found.items():
                if not isinstance(rows, Exception):
                    self._cache.put(key, rows, now_s)
            return found
        finally:
            for key in keys:
                del self._under_way[key]


def _outcome(task: asyncio.Task[Found], key: Key) -> Sequence[Row] | Exception:
    if task.cancelled():  # only close() cancels it
        return TableUnavailableError("the lookup was closed while it waited for an answer")
    error = task.exception()
    if isinstance(error, Exception):
        return error
    return task.result()[key]


class FullLookups(Lookups):
    """Keeps the whole table in memory."""

    def __init__(self, queries: Queries, options: FullCache) -> None:
        super().__init__(queries)
        self._options = options
        self._content: Mapping[Key, Sequence[Row]] | None = None  # loop thread only; replaced, never changed
        self._loading: asyncio.Task[None] | None = None  # loop thread only

    async def open(self) -> None:
        await super().open()
        self._tasks.start(self._load_periodically())

    async def lookup(self, keys: Sequence[Key]) -> Found:
        known = self._content is not None
        while self._content is None:
            await self._load()
        content = self._content
        if known:
            self._metrics.hits += len(keys)
        else:
            self._metrics.misses += len(keys)
        return {key: content.get(key, ()) for key in keys}

    async def _load(self) -> None:
        """Wait for the load under way, or start one. Cancelling a waiter does not cancel the load."""
        if self._loading is None:
            self._loading = self._tasks.start(self._load_content())
        await asyncio.shield(self._loading)

    async def _load_content(self) -> None:
        try:
            content = await self._queries.load_by(self._read_all)
        finally:
            self._loading = None
        self._content = content
        self._metrics.cached_rows = sum(map(len, content.values()))

    async def _read_all(self) -> dict[Key, list[Row]]:
        content: defaultdict[Key, list[Row]] = defaultdict(list)
        async for piece in self._queries.reader.scan():
            for key, row in piece:
                content[key].append(row)
        return content

    async def _load_periodically(self) -> None:
        interval = self._options.reload_interval
        while True:
            started_s = self._clock.now_s()
            try:
                await self._load()
            except Exception as error:
                what = "first load failed" if self._content is None else "reload failed, the old content stays in use"
                log.warning("full cache: %s: %s", what, error)
            if interval is None:
                return
            taken_s = self._clock.now_s() - started_s if self._options.schedule_mode == "fixed_rate" else 0.0
            # A load that outlasts the interval is followed by one load at once; missed loads are not made up for.
            await self._clock.sleep(max(0.0, seconds(interval) - taken_s))


def lookups_of(queries: Queries, cache: LookupCache) -> Lookups:
    """Lookups through `cache`, not yet opened."""
    if isinstance(cache, PartialCache):
        return PartialLookups(queries, cache)
    if isinstance(cache, FullCache):
        return FullLookups(queries, cache)
    return DirectLookups(queries)
