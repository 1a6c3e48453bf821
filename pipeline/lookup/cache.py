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
import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, Literal, TypeAlias

from pipeline.lookup.answers import AsLists, LookupAnswer, Packing, answer_of
from pipeline.lookup.errors import LookupTableError, TableUnavailableError
from pipeline.lookup.metrics import LookupMetrics
from pipeline.lookup.queries import Queries
from pipeline.lookup.schema import LookupKey, LookupRow
from pipeline.streaming.number_checks import require_number
from pipeline.streaming.single_flight import SingleFlight

log: logging.Logger = logging.getLogger(__name__)


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

    A row with a value that cannot be read fails the lookups of its key only.

    Lookups before the first load wait for it. `reload_interval_s` is the time to the next load from the end of a load
    (`schedule_mode="fixed_delay"`) or from its start ("fixed_rate"). By default it never reloads. During a reload, the
    old content answers, and both are in memory. If a reload fails, that's logged, and the old content stays.
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


class LruRows:
    """The rows that a PartialCache keeps. Owner's thread only. Each call takes constant time, amortized.

    The caller passes the time, in seconds of any clock that never goes back.
    """

    def __init__(self, options: PartialCache, metrics: LookupMetrics) -> None:
        self._options = options
        self._max_rows = math.inf if options.max_rows is None else options.max_rows
        self._metrics = metrics
        # By last use, as `_used` is.
        self._entries: OrderedDict[LookupKey, Sequence[LookupRow]] = OrderedDict()  # owner's thread only
        # When each key was last used, and loaded; the next one to expire is first. Empty if no time expires it.
        self._used: OrderedDict[LookupKey, float] = OrderedDict()  # owner's thread only
        self._loaded: OrderedDict[LookupKey, float] = OrderedDict()  # owner's thread only
        bounds = ((self._used, options.expire_after_access_s), (self._loaded, options.expire_after_write_s))
        self._bounds = [(times, after_s) for times, after_s in bounds if after_s is not None]  # never changes
        self._rows = 0  # owner's thread only; == the sum of the entries' weights

    def get(self, key: LookupKey, now_s: float) -> Sequence[LookupRow] | None:
        """The rows of `key`: empty if it is cached as missing, None if it is not cached."""
        if self._bounds:
            self._expire(now_s)
        rows = self._entries.get(key)
        if rows is not None:
            self._entries.move_to_end(key)
            if self._options.expire_after_access_s is not None:
                self._used[key] = now_s
                self._used.move_to_end(key)
        return rows

    def put(self, key: LookupKey, rows: Sequence[LookupRow], now_s: float) -> None:
        """Cache the rows of `key`, unless they exceed `max_rows`, or are empty and missing keys are not cached."""
        if self._bounds:
            self._expire(now_s)
        if (old := self._entries.pop(key, None)) is not None:
            self._count_removed(key, old)
        weight = len(rows) or 1
        if weight <= self._max_rows and (rows or self._options.cache_missing_key):
            self._entries[key] = rows
            for times, _ in self._bounds:
                times[key] = now_s
            self._rows += weight
            while self._rows > self._max_rows:
                self._count_evicted(*self._entries.popitem(last=False))
        self._metrics.cached_rows = self._rows

    def _expire(self, now_s: float) -> None:
        for times, after_s in self._bounds:
            while times and now_s - times[key := next(iter(times))] >= after_s:
                self._evict(key)

    def _evict(self, key: LookupKey) -> None:
        self._count_evicted(key, self._entries.pop(key))
        self._metrics.cached_rows = self._rows

    def _count_evicted(self, key: LookupKey, rows: Sequence[LookupRow]) -> None:
        self._count_removed(key, rows)
        self._metrics.evictions += 1

    def _count_removed(self, key: LookupKey, rows: Sequence[LookupRow]) -> None:
        self._rows -= len(rows) or 1
        for times, _ in self._bounds:
            del times[key]


class TableLookups(ABC):
    """Lookups in a table by queries to its reader; owns both."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._metrics = queries.metrics
        self._clock = queries.clock
        self._tasks = queries.tasks

    async def open(self) -> None:
        await self._queries.reader.open()

    @abstractmethod
    async def answer(self, keys: Sequence[LookupKey], counts: Sequence[int]) -> LookupAnswer:
        """The rows, or the error, of each of the distinct `keys`. `counts`: how many lookups each stands for."""

    async def close(self) -> None:
        """Cancel the calls in flight, wait for them up to a timeout, then close the reader."""
        await self._tasks.end()
        self._queries.close()
        await self._queries.reader.close()


class DirectLookups(TableLookups):
    """No cache."""

    async def answer(self, keys: Sequence[LookupKey], counts: Sequence[int]) -> LookupAnswer:
        self._metrics.misses += sum(counts)
        return await self._queries.ask(keys) if keys else LookupAnswer((), ())


class PartialLookups(TableLookups):
    """Caches the rows of each lookup. Lookups of a key whose query is running wait for that query.

    Each query runs in its own task. Cancelling the batch that started it does not cancel it, because other batches may
    wait for the same keys; it still fills the cache.
    """

    def __init__(self, queries: Queries, options: PartialCache, width: int) -> None:
        super().__init__(queries)
        self._width = width
        self._cache = LruRows(options, queries.metrics)  # loop thread only
        # Loop thread only; the leader of a key is its query, with the place among the keys of that. No key has
        # followers: any number of batches can wait for a task.
        self._flights: SingleFlight[LookupKey, tuple[asyncio.Task[_Loaded], int]] = SingleFlight()

    async def answer(self, keys: Sequence[LookupKey], counts: Sequence[int]) -> LookupAnswer:
        now_s = self._clock.now_s()
        found: Any = [self._cache.get(key, now_s) for key in keys]
        unknown = [place for place, rows in enumerate(found) if rows is None]
        misses = sum([counts[place] for place in unknown])
        self._metrics.misses += misses
        self._metrics.hits += sum(counts) - misses
        if unknown:
            running = self._flights.leaders
            if missing := [key for place in unknown if (key := keys[place]) not in running]:
                task = self._tasks.start(self._load(missing))
                self._flights.lead(missing, zip(repeat(task), range(len(missing)), strict=False))
                if len(missing) == len(keys):
                    await asyncio.wait([task])
                    if (error := _error_of(task)) is None:
                        return task.result().answer
                    raise error
            waits = [(place, *running[keys[place]]) for place in unknown]
            await asyncio.wait({task for _, task, _ in waits})
            for place, task, number in waits:
                error = _error_of(task)
                found[place] = task.result().found[number] if error is None else error
        return answer_of(found, self._width)

    async def _load(self, keys: list[LookupKey]) -> _Loaded:
        try:
            answer = await self._queries.ask(keys)
            found = answer.by_place(len(keys))
            now_s = self._clock.now_s()
            for key, rows in zip(keys, found, strict=True):
                if not isinstance(rows, Exception):
                    self._cache.put(key, rows, now_s)
            return _Loaded(answer, found)
        finally:
            self._flights.end_all(keys)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What a query has found, in columns and by key."""

    answer: LookupAnswer
    found: Sequence[Sequence[LookupRow] | Exception]


def _error_of(task: asyncio.Task[_Loaded]) -> BaseException | None:
    if task.cancelled():  # only close() cancels it
        return TableUnavailableError("the lookup was closed while it waited for an answer")
    return task.exception()


@dataclass(frozen=True, slots=True)
class _Content:
    """A whole table. `rows`: by key, the place of its row in `columns`, or their places if there are several."""

    rows: Mapping[LookupKey, int | Sequence[int]]
    columns: Any
    errors: Mapping[LookupKey, Exception]
    number: int

    def answer(self, keys: Sequence[LookupKey]) -> LookupAnswer:
        found = list(map(self.rows.get, keys))
        errors: dict[int, Exception] = {}
        if self.errors:
            errors = {place: self.errors[key] for place, key in enumerate(keys) if key in self.errors}
        if len(self.rows) == self.number:
            places = [place for place, row in enumerate(found) if row is not None]
            return LookupAnswer(places, self.columns, [found[place] for place in places], errors)  # type: ignore[misc]
        several = [() if row is None else (row,) if isinstance(row, int) else row for row in found]
        numbers = [place for place, rows in enumerate(several) for _ in rows]
        return LookupAnswer(numbers, self.columns, list(chain.from_iterable(several)), errors)


class FullLookups(TableLookups):
    """Keeps the whole table in memory."""

    def __init__(self, queries: Queries, options: FullCache, packing: Packing) -> None:
        super().__init__(queries)
        self._options = options
        self._packing = packing
        self._content: _Content | None = None  # loop thread only; replaced, never changed
        self._loading: asyncio.Task[None] | None = None  # loop thread only

    async def open(self) -> None:
        await super().open()
        self._tasks.start(self._load_periodically())

    async def answer(self, keys: Sequence[LookupKey], counts: Sequence[int]) -> LookupAnswer:
        known = self._content is not None
        while self._content is None:
            await self._load()
        content = self._content
        if known:
            self._metrics.hits += sum(counts)
        else:
            self._metrics.misses += sum(counts)
        return content.answer(keys)

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
        self._metrics.cached_rows = content.number

    async def _read_all(self) -> _Content:
        keys: list[LookupKey] = []
        pieces: list[Any] = []
        errors: dict[LookupKey, Exception] = {}
        async for piece in self._queries.reader.scan_columns():
            packed, unfit = self._packing.pack(piece.columns)
            errors.update(piece.errors)
            errors.update({piece.keys[row]: error for row, error in unfit.items()})
            keys += piece.keys
            pieces.append(packed)
        rows = _rows_by_key(keys)
        for key in errors:
            rows.pop(key, None)
        number = len(rows)
        if number + len(errors) < len(keys):
            number = sum(1 if isinstance(row, int) else len(row) for row in rows.values())
        return _Content(rows, self._packing.join(pieces) if pieces else (), errors, number)

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


def _rows_by_key(keys: Sequence[LookupKey]) -> dict[LookupKey, int | Sequence[int]]:
    rows: dict[LookupKey, Any] = dict(zip(keys, range(len(keys)), strict=True))
    if len(rows) < len(keys):
        rows = {}
        for row, key in enumerate(keys):
            before = rows.setdefault(key, row)
            if type(before) is list:
                before.append(row)
            elif before != row:
                rows[key] = [before, row]
    return rows


def lookups_of(queries: Queries, cache: LookupCache, width: int, packing: Packing | None = None) -> TableLookups:
    """Lookups through `cache`, not yet opened. `width`: the number of columns. `packing`: of a full cache."""
    if isinstance(cache, PartialCache):
        return PartialLookups(queries, cache, width)
    if isinstance(cache, FullCache):
        return FullLookups(queries, cache, packing or AsLists())
    return DirectLookups(queries)
