"""Questions to a table: few at a time, each with many keys, asked again while the table is not available.

Everything here runs on the asyncio loop of the function's host, so nothing needs a lock.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from pipeline.lookup.errors import TableUnavailableError
from pipeline.lookup.metrics import LookupMetrics
from pipeline.lookup.schema import Key, Row
from pipeline.lookup.tables import LookupReader

log = logging.getLogger(__name__)

T = TypeVar("T")

Found = dict[Key, Sequence[Row] | Exception]
"""What a lookup found, by key; every key that was asked for is in it."""

_MOST_KEYS = 1_000  # of one question that is put together; a batch with more goes as it is
_CLOSE_TIMEOUT_S = 10.0


class LookupClock(Protocol):
    """The time of a cache."""

    def now_s(self) -> float:
        """Seconds since any moment; never goes back."""

    async def sleep(self, delay_s: float) -> None:
        """Return when so much time has passed."""


class MonotonicClock:
    """Real time."""

    def now_s(self) -> float:
        return time.monotonic()

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a question is asked again when the table is not available: after `delay_s`, then twice that, ..."""

    max_retries: int = 3
    delay_s: float = 0.5


class Tasks:
    """Tasks that end with their owner at the latest. Loop thread only."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    async def end(self) -> None:
        """Cancel them all, and wait for them a while."""
        running = list(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=_CLOSE_TIMEOUT_S)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # it is seen: who waits for the task gets it, and perhaps nobody does


class _Asked:
    """Keys that one caller wants to know. Loop thread only."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self.keys = keys
        self.answer: asyncio.Future[Found] = asyncio.get_running_loop().create_future()


class Questions:
    """Asks a reader. Where that takes few questions at a time, those that wait meanwhile go together in one.

    So a table gets as many keys at once as it needs to keep up, however small the batches that come. A question is
    cancelled when nobody waits for its answer any more.
    """

    def __init__(
        self, reader: LookupReader, retries: Retries, metrics: LookupMetrics, clock: LookupClock, tasks: Tasks
    ) -> None:
        self._reader = reader
        self._retries = retries
        self._metrics = metrics
        self._clock = clock
        self._tasks = tasks
        self._waiting: deque[_Asked] = deque()  # loop thread only
        self._askers = 0  # loop thread only; those that run, up to the reader's parallelism

    async def ask(self, keys: Sequence[Key]) -> Found:
        """What the table has for distinct keys."""
        parallelism = self._reader.parallelism
        if parallelism is None:
            return await self._load(keys)
        asked = _Asked(keys)
        self._waiting.append(asked)
        if self._askers < parallelism:
            self._askers += 1
            self._tasks.start(self._ask_those_who_wait())
        found = await asked.answer
        return {key: found[key] for key in keys}

    def close(self) -> None:
        """Answer those who still wait for their turn: it will not come."""
        while self._waiting:
            _refuse(self._waiting.popleft().answer)

    async def load_by(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask, and ask again while the table is not available; counts."""
        started_s = self._clock.now_s()
        try:
            answer = await self._ask_again(ask)
        except BaseException:
            self._metrics.load_failures += 1
            raise
        self._metrics.loads += 1
        self._metrics.latest_load_s = self._clock.now_s() - started_s
        return answer

    async def _ask_those_who_wait(self) -> None:
        try:
            while members := self._next_members():
                await self._answer(members)
        finally:
            self._askers -= 1

    def _next_members(self) -> list[_Asked]:
        members: list[_Asked] = []
        number = 0
        while self._waiting and (not members or number + len(self._waiting[0].keys) <= _MOST_KEYS):
            asked = self._waiting.popleft()
            if not asked.answer.done():  # given up while it waited
                members.append(asked)
                number += len(asked.keys)
        return members

    async def _answer(self, members: list[_Asked]) -> None:
        keys = (
            members[0].keys if len(members) == 1 else list(dict.fromkeys(key for each in members for key in each.keys))
        )
        question = self._tasks.start(self._load(keys))
        wanted = len(members)

        def given_up(answer: asyncio.Future[Found]) -> None:
            nonlocal wanted
            if answer.cancelled():
                wanted -= 1
                if wanted == 0:
                    question.cancel()

        for each in members:
            each.answer.add_done_callback(given_up)
        try:
            await asyncio.wait([question])
        finally:
            for each in members:
                _settle(each.answer, question)

    async def _load(self, keys: Sequence[Key]) -> Found:
        found = await self.load_by(lambda: self._reader.lookup(keys))
        return {key: found.get(key, ()) for key in keys}

    async def _ask_again(self, ask: Callable[[], Awaitable[T]]) -> T:
        most, delay_s = self._retries.max_retries, self._retries.delay_s
        for retry in range(most):
            try:
                return await ask()
            except TableUnavailableError as error:
                log.warning("%s (retry %d of %d follows in %g s)", error, retry + 1, most, delay_s)
            self._metrics.retries += 1
            await self._clock.sleep(delay_s)
            delay_s *= 2
        return await ask()


def _settle(answer: asyncio.Future[Found], question: asyncio.Task[Found]) -> None:
    """Give the question's outcome to one who asked, unless that one has given up."""
    if answer.done():
        return
    if not question.done() or question.cancelled():
        _refuse(answer)
    elif (error := question.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(question.result())


def _refuse(answer: asyncio.Future[Found]) -> None:
    if not answer.done():
        answer.set_exception(TableUnavailableError("the lookup was closed while it waited for an answer"))
