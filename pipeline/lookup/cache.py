"""Caches of a lookup, with Flink's lookup options (`lookup.cache`, `lookup.partial-cache.*`, `lookup.full-cache.*`).

| Flink                                             | here                                                    |
| `lookup.cache` NONE, PARTIAL, FULL                | NoCache(), PartialCache(...), FullCache(...)            |
| `lookup.max-retries`                              | LookupFunction(max_retries=)                            |
| `lookup.partial-cache.max-rows`                   | PartialCache(max_rows=) (Flink's counts keys, this rows) |
| `lookup.partial-cache.expire-after-access`        | PartialCache(expire_after_access_s=)                      |
| `lookup.partial-cache.expire-after-write`         | PartialCache(expire_after_write_s=)                       |
| `lookup.partial-cache.cache-missing-key`          | PartialCache(cache_missing_key=)                        |
| `lookup.full-cache.periodic-reload.interval`      | FullCache(reload_interval_s=)                             |
| `lookup.full-cache.periodic-reload.schedule-mode` | FullCache(schedule_mode=)                               |

Each worker process has its own cache, so n workers hold up to n times `max_rows` rows and load a full cache n times. A
cache lives as long as the function's host. On Spark the host outlives a task, so the worker's next task reuses it.

Lookups through a cache all run on the asyncio loop of the function's host, so nothing needs a lock.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pipeline.lookup.errors import LookupTableError, TableUnavailableError
from pipeline.lookup.metrics import LookupMetrics
from pipeline.lookup.queries import Found, Queries
from pipeline.lookup.schema import LookupKey, LookupRow
from pipeline.streaming.number_checks import require_number

log = logging.getLogger(__name__)


_DEFAULT_MAX_ROWS = 10_000


@dataclass(frozen=True)
class NoCache:
    """Every key is looked up in the table, once per batch."""


@dataclass(frozen=True)
class PartialCache:
    """Keeps the rows of recent lookups and evicts the least recently used key. Set at least one bound.

    `max_rows`: maximum rows to keep. A key cached as missing counts as one.
    `expire_after_access_s`, `expire_after_write_s`: when a key expires after its last use, or after its load.
    `cache_missing_key`: also cache keys without rows.
    """

    max_rows: int | None = None
    expire_after_access_s: float | None = None
    expire_after_write_s: float | None = None
    cache_missing_key: bool = True

    def __post_init__(self) -> None:
        if self.max_rows is None and self.expire_after_access_s is None and self.expire_after_write_s is None:
            raise LookupTableError(
                "PartialCache() would grow without a bound. Give max_rows, expire_after_access_s or "
                "expire_after_write_s."
            )
        if self.max_rows is not None:
            require_number("PartialCache: max_rows", self.max_rows, least=1, whole=True, error=LookupTableError)
        _positive("PartialCache: expire_after_access_s", self.expire_after_access_s)
        _positive("PartialCache: expire_after_write_s", self.expire_after_write_s)


@dataclass(frozen=True)
class FullCache:
    """Loads the whole table and answers every lookup from memory. Keys are compared in Python, by exact equality.

    Lookups before the first load wait for it. `reload_interval_s` is the time to the next load from the end of a load
    (`schedule_mode="fixed_delay"`) or from its start ("fixed_rate"). By default it never reloads. During a reload, the
    old content answers, and both are in memory. After a failed reload, which is logged, it stays.
    """

    reload_interval_s: float | None = None
    schedule_mode: Literal["fixed_delay", "fixed_rate"] = "fixed_delay"

    def __post_init__(self) -> None:
        _positive("FullCache: reload_interval_s", self.reload_interval_s)
        if self.schedule_mode not in ("fixed_delay", "fixed_rate"):
            raise LookupTableError(
                f'FullCache: schedule_mode is {self.schedule_mode!r}; it is "fixed_delay" or "fixed_rate".'
            )


LookupCache: TypeAlias = NoCache | PartialCache | FullCache


def _positive(name: str, seconds: float | None) -> None:
    if seconds is not None:
        require_number(name, seconds, above=0, error=LookupTableError)


def cache_of(cache: LookupCache | str | None) -> LookupCache:
    """Resolve the option: None and "none" are NoCache(), "partial" keeps 10,000 rows, "full" is never reloaded."""
    if cache is None:
        return NoCache()
    if isinstance(cache, NoCache | PartialCache | FullCache):
        return cache
    named: dict[str, LookupCache] = {
        "none": NoCache(),
        "partial": PartialCache(max_rows=_DEFAULT_MAX_ROWS),
        "full": FullCache(),
    }
    found = named.get(cache.lower()) if isinstance(cache, str) else None
    if found is None:
        raise LookupTableError(
            f'cache is {cache!r}; it is "none", "partial" or "full", or a NoCache, PartialCache or FullCache.'
        )
    return found


@dataclass(slots=True)
class _Entry:
    rows: Sequence[LookupRow]
    weight: int
    written_s: float
    accessed_s: float


class LruRows:
    """The rows that a PartialCache keeps. Owner's thread only. Each call takes constant time, amortized.

    The caller passes the time, in seconds of any clock that never goes back.
    """

    def __init__(self, options: PartialCache, metrics: LookupMetrics) -> None:
        self._options = options
        self._metrics = metrics
        self._after_access_s = options.expire_after_access_s
        self._after_write_s = options.expire_after_write_s
        # The next key to expire is at the head of one of the two, which hold the same keys.
        self._entries: OrderedDict[LookupKey, _Entry] = OrderedDict()  # owner's thread only; by last use
        self._loads: OrderedDict[LookupKey, None] = OrderedDict()  # owner's thread only; by load
        self._rows = 0  # owner's thread only; == the sum of the entries' weights

    def get(self, key: LookupKey, now_s: float) -> Sequence[LookupRow] | None:
        """The rows of `key`: empty if it is cached as missing, None if it is not cached."""
        self._expire(now_s)
        entry = self._entries.get(key)
        if entry is None:
            return None
        entry.accessed_s = now_s
        self._entries.move_to_end(key)
        return entry.rows

    def put(self, key: LookupKey, rows: Sequence[LookupRow], now_s: float) -> None:
        """Cache the rows of `key`, unless they exceed `max_rows`, or are empty and missing keys are not cached."""
        self._expire(now_s)
        self._remove(key)
        max_rows = self._options.max_rows
        entry = _Entry(rows, max(1, len(rows)), now_s, now_s)
        if (rows or self._options.cache_missing_key) and (max_rows is None or entry.weight <= max_rows):
            self._entries[key] = entry
            self._loads[key] = None
            self._rows += entry.weight
            while max_rows is not None and self._rows > max_rows:
                self._evict(next(iter(self._entries)))
        self._metrics.cached_rows = self._rows

    def _expire(self, now_s: float) -> None:
        entries = self._entries
        if self._after_access_s is not None:
            while entries and now_s - entries[key := next(iter(entries))].accessed_s >= self._after_access_s:
                self._evict(key)
        if self._after_write_s is not None:
            while entries and now_s - entries[key := next(iter(self._loads))].written_s >= self._after_write_s:
                self._evict(key)

    def _evict(self, key: LookupKey) -> None:
        self._remove(key)
        self._metrics.evictions += 1
        self._metrics.cached_rows = self._rows

    def _remove(self, key: LookupKey) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            del self._loads[key]
            self._rows -= entry.weight


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
    async def lookup(self, keys: Sequence[LookupKey]) -> Found:
        """The rows, or the error, of each of `keys`, which may repeat."""

    async def close(self) -> None:
        """Cancel the calls in flight, wait for them up to a timeout, then close the reader."""
        await self._tasks.end()
        self._queries.close()
        await self._queries.reader.close()


class DirectLookups(Lookups):
    """No cache."""

    async def lookup(self, keys: Sequence[LookupKey]) -> Found:
        self._metrics.misses += len(keys)
        return await self._queries.ask(list(dict.fromkeys(keys)))


class PartialLookups(Lookups):
    """Caches the rows of each lookup. Lookups of a key whose query is running wait for that query.

    Each query runs in its own task. Cancelling the batch that started it does not cancel it, because other batches may
    wait for the same keys; it still fills the cache.
    """

    def __init__(self, queries: Queries, options: PartialCache) -> None:
        super().__init__(queries)
        self._cache = LruRows(options, queries.metrics)  # loop thread only
        self._under_way: dict[LookupKey, asyncio.Task[Found]] = {}  # loop thread only; queries by key

    async def lookup(self, keys: Sequence[LookupKey]) -> Found:
        now_s = self._clock.now_s()
        result: Found = {}
        missing: dict[LookupKey, None] = {}
        waits: dict[LookupKey, asyncio.Task[Found]] = {}
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

    async def _load(self, keys: list[LookupKey]) -> Found:
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


def _outcome(task: asyncio.Task[Found], key: LookupKey) -> Sequence[LookupRow] | Exception:
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
        # Loop thread only; replaced, never changed.
        self._content: Mapping[LookupKey, Sequence[LookupRow]] | None = None
        self._loading: asyncio.Task[None] | None = None  # loop thread only

    async def open(self) -> None:
        await super().open()
        self._tasks.start(self._load_periodically())

    async def lookup(self, keys: Sequence[LookupKey]) -> Found:
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
        """Wait for the running load, or start one. Cancelling a waiter does not cancel the load."""
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

    async def _read_all(self) -> dict[LookupKey, list[LookupRow]]:
        content: defaultdict[LookupKey, list[LookupRow]] = defaultdict(list)
        async for piece in self._queries.reader.scan():
            for key, row in piece:
                content[key].append(row)
        return content

    async def _load_periodically(self) -> None:
        interval = self._options.reload_interval_s
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
            await self._clock.sleep(max(0.0, interval - taken_s))


def lookups_of(queries: Queries, cache: LookupCache) -> Lookups:
    """Lookups through `cache`, not yet opened."""
    if isinstance(cache, PartialCache):
        return PartialLookups(queries, cache)
    if isinstance(cache, FullCache):
        return FullLookups(queries, cache)
    return DirectLookups(queries)
