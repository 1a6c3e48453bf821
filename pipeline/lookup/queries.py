"""Queries to a table: a few at a time, each with many keys, retried while the table is unavailable.

All of it runs on the asyncio loop of the function's host, so nothing needs a lock.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, Protocol, TypeVar

from dispatcher.util.log_throttle import LogThrottle
from pipeline.lookup.answers import ColumnReader, LookupAnswer, joined
from pipeline.lookup.errors import FailedQueryError, TableUnavailableError
from pipeline.lookup.metrics import LookupMetrics
from pipeline.lookup.schema import LookupKey

log: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")

_MOST_KEYS = 1_000  # of a query that joins several batches; a single larger batch is not split
_MOST_PARTS = 256  # queries for parts of the keys of one that has failed
_CLOSE_TIMEOUT_S = 10.0
_WARN_EVERY_NS = 60_000_000_000


class LookupClock(Protocol):
    """The clock of a cache."""

    def now_s(self) -> float:
        """Seconds since an arbitrary moment; never goes back."""

    async def sleep(self, delay_s: float) -> None:
        """Return after `delay_s` seconds."""


class MonotonicClock:
    def now_s(self) -> float:
        return time.monotonic()

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


@dataclass(frozen=True, slots=True)
class QueryRetries:
    """How often to repeat a query that finds the table unavailable: after `delay_s`, then after twice that, ..."""

    max_retries: int = 3
    delay_s: float = 0.5


class Tasks:
    """Tasks that end with their owner at the latest. Loop thread only."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        # Not by create_task: a table's function may give the loop a task factory, such as one of eager tasks.
        task = asyncio.Task(work, loop=asyncio.get_running_loop())
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    async def end(self) -> None:
        """Cancel all tasks and wait for them up to a timeout."""
        running = list(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=_CLOSE_TIMEOUT_S)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # mark as retrieved: asyncio logs an error that no waiter has fetched


class _WaitingKeys:
    """The keys of one caller. Loop thread only."""

    def __init__(self, keys: Sequence[LookupKey]) -> None:
        self.keys = keys
        self.answer: asyncio.Future[LookupAnswer] = asyncio.get_running_loop().create_future()


class Queries:
    """Queries a reader. If the reader limits its parallelism, requests that wait are joined into one query.

    So queries grow until the table keeps up, however small the incoming batches are. A query is cancelled once all its
    callers have given up. If the database fails a query for a value that it meets, each half of the keys is looked up
    by itself, and so on, until only the keys fail that cannot be looked up.
    """

    def __init__(self, reader: ColumnReader, retries: QueryRetries, metrics: LookupMetrics, clock: LookupClock) -> None:
        self.reader = reader
        self.metrics = metrics
        self.clock = clock
        self.tasks: Tasks = Tasks()
        self._retries = retries
        self._waiting: deque[_WaitingKeys] = deque()  # loop thread only
        self._repeats = 0  # loop thread only; of the reader, as counted
        self._warnings: LogThrottle[str] = LogThrottle(_WARN_EVERY_NS, lambda: int(clock.now_s() * 1e9))
        self._askers = 0  # loop thread only; running query tasks, at most the reader's parallelism

    async def ask(self, keys: Sequence[LookupKey]) -> LookupAnswer:
        """The rows, or the error, of each of the distinct `keys`."""
        parallelism = self.reader.parallelism
        if parallelism is None:
            return await self._load(keys)
        request = _WaitingKeys(keys)
        self._waiting.append(request)
        if self._askers < parallelism:
            self._askers += 1
            self.tasks.start(self._serve_waiting())
        return await request.answer

    def close(self) -> None:
        """Fail the requests that still wait."""
        while self._waiting:
            _refuse(self._waiting.popleft().answer)

    async def load_by(self, run: Callable[[], Awaitable[T]]) -> T:
        """Run a query with retries, and count it."""
        started_s = self.clock.now_s()
        try:
            answer = await self._retrying(run)
        except BaseException:
            self.metrics.load_failures += 1
            raise
        finally:
            self._count_repeats()
        self.metrics.loads += 1
        self.metrics.latest_load_s = self.clock.now_s() - started_s
        return answer

    def _count_repeats(self) -> None:
        """Count as retries the queries that the reader has repeated itself, on another connection."""
        before, self._repeats = self._repeats, getattr(self.reader, "repeats", 0)
        self.metrics.retries += self._repeats - before

    async def _serve_waiting(self) -> None:
        try:
            while members := self._next_members():
                await self._answer(members)
        finally:
            self._askers -= 1

    def _next_members(self) -> list[_WaitingKeys]:
        members: list[_WaitingKeys] = []
        number = 0
        while self._waiting and (not members or number + len(self._waiting[0].keys) <= _MOST_KEYS):
            request = self._waiting.popleft()
            if not request.answer.done():  # else its caller gave up
                members.append(request)
                number += len(request.keys)
        return members

    async def _answer(self, members: list[_WaitingKeys]) -> None:
        keys, places_of = members[0].keys, None
        if len(members) > 1:
            places_of = _places([key for each in members for key in each.keys])
            keys = list(places_of)
        query = self.tasks.start(self._load(keys))
        wanted = len(members)

        def count_given_up(answer: asyncio.Future[LookupAnswer]) -> None:
            nonlocal wanted
            if answer.cancelled():
                wanted -= 1
                if wanted == 0:
                    query.cancel()

        for each in members:
            each.answer.add_done_callback(count_given_up)
        try:
            await asyncio.wait([query])
        finally:
            for each in members:
                _settle(each.answer, query, None if places_of is None else [places_of[key] for key in each.keys])

    async def _load(self, keys: Sequence[LookupKey]) -> LookupAnswer:
        """The answer for `keys`; by halves, as long as a query fails for a value that it meets."""
        answers: list[tuple[int, LookupAnswer]] = []
        parts = deque([(0, len(keys))])
        queries = 0
        while parts:
            begin, end = parts.popleft()
            some = keys[begin:end]
            queries += 1
            try:
                answers.append((begin, await self.load_by(partial(self.reader.lookup_columns, some))))
            except FailedQueryError as error:
                if end - begin > 1 and queries + len(parts) + 2 <= _MOST_PARTS:
                    middle = (begin + end) // 2
                    parts += [(begin, middle), (middle, end)]
                else:
                    answers.append((begin, LookupAnswer((), (), errors=dict.fromkeys(range(end - begin), error))))
        return joined(sorted(answers, key=itemgetter(0)))

    async def _retrying(self, run: Callable[[], Awaitable[T]]) -> T:
        most, delay_s = self._retries.max_retries, self._retries.delay_s
        for retry in range(most):
            try:
                return await run()
            except TableUnavailableError as error:
                self._warnings.warn(log, "away", f"{error} (retry {retry + 1} of {most} in {delay_s:g} s)")
            self.metrics.retries += 1
            await self.clock.sleep(delay_s)
            delay_s *= 2
        return await run()


def _places(keys: Sequence[LookupKey]) -> dict[LookupKey, int]:
    return {key: place for place, key in enumerate(dict.fromkeys(keys))}


def _settle(
    answer: asyncio.Future[LookupAnswer], query: asyncio.Task[LookupAnswer], places: Sequence[int] | None
) -> None:
    """Pass the query's outcome to a caller, unless the caller gave up.

    `places`: of the caller's keys among the query's; None: they are the same.
    """
    if answer.done():
        return
    if not query.done() or query.cancelled():
        _refuse(answer)
    elif (error := query.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(query.result() if places is None else query.result().of_places(places))


def _refuse(answer: asyncio.Future[LookupAnswer]) -> None:
    if not answer.done():
        answer.set_exception(TableUnavailableError("the lookup was closed while it waited for an answer"))
