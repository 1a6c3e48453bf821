"""A user's function as a lookup table: called with a key, it returns the rows."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dispatcher.util.foreign import is_instance
from pipeline.lookup.errors import LookupTableError
from pipeline.lookup.schema import LookupKey, LookupRow, LookupSchema, check_distinct, choose, parse_columns
from pipeline.streaming.calls.functions import (
    AnyFunction,
    as_results,
    check_batch_results,
    is_batch_function,
    is_coroutine_function,
    name_of,
)
from pipeline.streaming.function_wrappers import as_called
from pipeline.streaming.number_checks import require_number

_DEFAULT_POOL_SIZE = 8


class FunctionTable:
    """Looks up by calling your function.

    `key`, `columns`: the key's columns and the others with their types, for example `key="node string"`, `columns="rack
        string, memory bigint"`.
    `function`: an AsyncFunction, a coroutine function, or a blocking function, which runs on up to `pool_size` threads.
        It's called with the key, a tuple if `key` has several columns, and returns one row or a list of rows ([] for no
        match). If its return type is an Iterator or an AsyncIterator, it can yield rows. A row is a dict by the names
        of `columns`, where a missing name is null, or a tuple in their order.

    A batch form, `async_invoke_batch`, takes a list of keys and returns one such result per key. An Exception in it
    fails only that key. Without a batch form, the keys of a batch are called concurrently. If your function raises, the
    error passes unchanged, so that retry predicates see it.
    """

    can_scan = False

    def __init__(
        self, function: AnyFunction[Any, Any], *, key: str, columns: str, pool_size: int = _DEFAULT_POOL_SIZE
    ) -> None:
        require_number("pool_size", pool_size, least=1, whole=True, error=LookupTableError)
        self.name: str = f"function {name_of(function)}"
        self._function = as_called(function)
        self._blocking = not is_coroutine_function(self._function)
        self._key = parse_columns(key)
        self._columns = parse_columns(columns)
        self._pool_size = pool_size
        check_distinct((column.name for column in (*self._key, *self._columns)), self.name)

    def read_schema(self, key_columns: Sequence[str]) -> LookupSchema:
        """Return the schema you passed."""
        declared = [column.name for column in self._key]
        if sorted(key_columns) != sorted(declared):
            raise LookupTableError(
                f"{self.name} looks up by {', '.join(declared)}, not by {', '.join(key_columns)}. Name its key in `on`."
            )
        present = {column.name: column for column in (*self._key, *self._columns)}
        return choose(self.name, present, key_columns, None)

    def reader(self, schema: LookupSchema) -> FunctionReader:
        """Return a reader that calls the function."""
        return FunctionReader(self, schema)

    def __repr__(self) -> str:
        return f"FunctionTable({name_of(self._function)})"


class _Raised:
    """What a call on a thread has raised."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class FunctionReader:
    """Calls the table's function. Loop thread only."""

    parallelism = None  # the user sets the batch size

    def __init__(self, table: FunctionTable, schema: LookupSchema) -> None:
        self._function: Any = table._function
        self._name = table.name
        self._order = [schema.key.index(column) for column in table._key]
        self._columns = tuple(column.name for column in schema.values)
        self._names = frozenset(self._columns)
        self._batch = is_batch_function(self._function)
        self._pool = ThreadPoolExecutor(table._pool_size, "lookup") if table._blocking else None

    async def open(self) -> None:
        await self._hook("open")

    async def lookup(self, keys: Sequence[LookupKey]) -> Mapping[LookupKey, Sequence[LookupRow] | Exception]:
        if self._batch:
            returned = await self._function.async_invoke_batch([self._argument(key) for key in keys])
            answers = check_batch_results(returned, len(keys))
        else:
            answers = await asyncio.gather(*(self._call(self._argument(key)) for key in keys), return_exceptions=True)
        return {key: self._rows(answer) for key, answer in zip(keys, answers, strict=True)}

    def scan(self) -> AsyncIterator[Sequence[tuple[LookupKey, LookupRow]]]:
        raise LookupTableError(f"{self._name} cannot be scanned.")

    async def close(self) -> None:
        try:
            await self._hook("close")
        finally:
            if self._pool is not None:
                # Do not wait: a call may hang, and ends with the process at the latest.
                self._pool.shutdown(wait=False, cancel_futures=True)

    async def _hook(self, name: str) -> None:
        # As in every asynchronous operator, the hooks count only if the function has both.
        if all(callable(getattr(self._function, each, None)) for each in ("open", "close")):
            answer = getattr(self._function, name)()
            if inspect.isawaitable(answer):
                await answer

    def _argument(self, key: LookupKey) -> object:
        return key[0] if len(self._order) == 1 else tuple(key[at] for at in self._order)

    def _call(self, argument: object) -> Awaitable[Any]:
        if self._pool is not None:
            return asyncio.get_running_loop().run_in_executor(self._pool, self._outcome, argument)
        called: Awaitable[Any] = getattr(self._function, "async_invoke", self._function)(argument)
        return called

    def _outcome(self, argument: object) -> Any:
        """A thread of the pool: what a call returns or raises. No future takes a StopIteration."""
        try:
            return self._function(argument)
        except BaseException as error:
            return _Raised(error)

    def _rows(self, answer: Any) -> Sequence[LookupRow] | Exception:
        if type(answer) is _Raised:
            answer = answer.error
        if is_instance(answer, Exception):
            return answer
        if is_instance(answer, BaseException):  # such as a cancellation: it ends the whole batch
            raise answer
        try:
            return [self._row(row) for row in as_results(answer)]
        except Exception as error:
            return error

    def _row(self, row: Any) -> LookupRow:
        if isinstance(row, Mapping):
            if not row.keys() <= self._names:
                raise LookupTableError(
                    f"{self._name} returned {', '.join(map(repr, row.keys() - self._names))}, which `columns` does not "
                    f"declare. It declares {', '.join(self._columns)}."
                )
            return tuple(row.get(name) for name in self._columns)
        if isinstance(row, tuple) and len(row) == len(self._columns):
            return tuple(row)
        raise LookupTableError(
            f"{self._name} returned {row!r} as a row. Return dicts or tuples of {', '.join(self._columns)}."
        )
