"""A clock, a table and a reader for tests of lookups; all on one asyncio loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ParamSpec, TypeVar

from pipeline.lookup import Column, LookupTable
from pipeline.lookup.function import LookupFunction
from pipeline.lookup.schema import LookupKey, LookupRow, LookupSchema

from ...kit import TIMEOUT_S

P = ParamSpec("P")
T = TypeVar("T")

SCHEMA = LookupSchema((Column("node", "string"),), (Column("rack", "string"),))


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on its own loop, with a timeout."""

    async def bounded() -> T:
        async with asyncio.timeout(TIMEOUT_S):
            return await work

    return asyncio.run(bounded())


def in_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that is a coroutine, run on its own loop, with a timeout."""

    @functools.wraps(test)
    def run_test(*arguments: P.args, **options: P.kwargs) -> None:
        run(test(*arguments, **options))

    return run_test


def found(table: LookupTable, on: str | Sequence[str], keys: Iterable[Any], **options: Any) -> list[Any]:
    """For each key its rows, without the key's columns, or its error."""
    names = [on] if isinstance(on, str) else list(on)
    function = LookupFunction(table, on, how="inner", input_columns=names, **options)
    results = invoke(function, [key if isinstance(key, tuple) else (key,) for key in keys])
    return [each if isinstance(each, Exception) else [row[len(names) :] for row in each] for each in results]


def invoke(function: LookupFunction, values: Sequence[Any]) -> list[list[Any] | Exception]:
    """Open the function, call it with one batch, and close it."""

    async def scenario() -> list[list[Any] | Exception]:
        async with opened(function):
            return await function.async_invoke_batch(values)

    return run(scenario())


@asynccontextmanager
async def opened(function: LookupFunction) -> AsyncIterator[None]:
    await function.open()
    try:
        yield
    finally:
        await function.close()


async def settle() -> None:
    """Let every task run until it waits for something that only the test can cause."""
    for _ in range(20):
        await asyncio.sleep(0)


class HandClock:
    """A clock that the test advances. Loop thread only."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now_s(self) -> float:
        return self._now_s

    async def sleep(self, delay_s: float) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._now_s + delay_s, waiter))
        await waiter

    async def advance(self, seconds: float) -> None:
        await settle()
        self._now_s += seconds
        due = [waiter for at_s, waiter in self._sleepers if at_s <= self._now_s]
        self._sleepers = [sleeper for sleeper in self._sleepers if sleeper[0] > self._now_s]
        for waiter in due:
            if not waiter.done():
                waiter.set_result(None)
        await settle()


class FakeReader:
    """Answers from `rows`, records the queries, and waits for `gate` if it is set."""

    def __init__(self, rows: Mapping[str, Sequence[str]]) -> None:
        self.rows = {(node,): [(rack,) for rack in racks] for node, racks in rows.items()}
        self.queries: list[list[LookupKey]] = []
        self.scans = 0
        self.error: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.is_open = False
        self.parallelism: int | None = None

    async def open(self) -> None:
        self.is_open = True

    async def close(self) -> None:
        self.is_open = False

    async def lookup(self, keys: Sequence[LookupKey]) -> Mapping[LookupKey, Sequence[LookupRow] | Exception]:
        self.queries.append(list(keys))
        await self._answer()
        return {key: self.rows[key] for key in keys if key in self.rows}

    async def scan(self) -> AsyncIterator[Sequence[tuple[LookupKey, LookupRow]]]:
        self.scans += 1
        await self._answer()
        for key, rows in list(self.rows.items()):
            yield [(key, row) for row in rows]

    async def _answer(self) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error


class FakeTable:
    """A table read by one FakeReader."""

    name = "fake"
    can_scan = True

    def __init__(self, reader: FakeReader, schema: LookupSchema = SCHEMA) -> None:
        self._reader = reader
        self._schema = schema

    def read_schema(self, key_columns: Sequence[str]) -> LookupSchema:
        return self._schema

    def reader(self, schema: LookupSchema) -> FakeReader:
        return self._reader
