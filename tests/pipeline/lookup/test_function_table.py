"""A user's function as a table."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from pipeline.lookup import FunctionTable, LookupTableError
from pipeline.streaming import AsyncFunction

from .fakes import TIMEOUT_S, LookupFunction, found

RACKS = {"a": ("r1", 1), "b": ("r2", None)}
COLUMNS = "rack string, memory int"


def rows_of(table: FunctionTable, keys: Sequence[Any], on: Any = "node", **options: Any) -> list[Any]:
    return found(table, on, keys, **options)


class Batches(AsyncFunction[str, Any]):
    """The batch form; records its calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    async def open(self) -> None:
        self.calls.append("open")

    async def close(self) -> None:
        self.calls.append("close")

    async def async_invoke_batch(self, values: list[str]) -> list[Any]:
        self.calls.append(values)
        return [[RACKS[value]] if value in RACKS else KeyError(value) if value == "bad" else [] for value in values]


class Singles(AsyncFunction[str, Any]):
    """The single form; no call returns before all calls of a batch are in flight."""

    def __init__(self, number: int) -> None:
        self._number = number

    def open(self) -> None:
        self._all = asyncio.Barrier(self._number)

    async def async_invoke(self, value: str) -> list[Any]:
        await self._all.wait()
        if value == "bad":
            raise KeyError(value)
        return [RACKS[value]] if value in RACKS else []


def test_the_batch_form_is_called_once_for_many_keys() -> None:
    function = Batches()

    found = rows_of(FunctionTable(function, key="node string", columns=COLUMNS), ["a", "b", "a", "c", "bad"])

    assert found[:4] == [[("r1", 1)], [("r2", None)], [("r1", 1)], []]
    assert isinstance(found[4], KeyError)
    assert function.calls == ["open", ["a", "b", "c", "bad"], "close"]


def test_the_single_form_is_called_for_all_keys_of_a_batch_at_the_same_time() -> None:
    found = rows_of(FunctionTable(Singles(3), key="node string", columns=COLUMNS), ["a", "c", "bad"])

    assert found[:2] == [[("r1", 1)], []]
    assert isinstance(found[2], KeyError)


def test_a_plain_coroutine_function_may_return_dicts_or_a_single_row() -> None:
    async def find(node: str) -> Any:
        return {"memory": 5, "rack": node} if node == "a" else [{"rack": "x"}, ("y", 2)]

    found = rows_of(FunctionTable(find, key="node string", columns=COLUMNS), ["a", "b"])

    assert found == [[("a", 5)], [("x", None), ("y", 2)]]


def test_a_blocking_function_is_called_on_threads() -> None:
    both = threading.Barrier(2)

    def find(node: str) -> list[tuple[str, int]]:
        both.wait(TIMEOUT_S)
        return [(node, 1)]

    found = rows_of(FunctionTable(find, key="node string", columns=COLUMNS, pool_size=2), ["a", "b"])

    assert found == [[("a", 1)], [("b", 1)]]


def test_a_key_of_several_columns_is_a_tuple_in_the_declared_order() -> None:
    async def find(key: tuple[str, int]) -> Any:
        return (f"{key[0]}-{key[1]}", None)

    table = FunctionTable(find, key="node string, port int", columns=COLUMNS)

    assert rows_of(table, [(1, "a")], on=["port", "node"]) == [[("a-1", None)]]


@pytest.mark.parametrize("row", [("only",), ("a", 1, 2), "text", 5, {"rack": "a", "raak": "b"}, None])
def test_the_error_for_a_row_of_another_form_names_the_declared_columns(row: Any) -> None:
    async def find(node: str) -> Any:
        return None if row is None else [row]

    (found,) = rows_of(FunctionTable(find, key="node string", columns=COLUMNS), ["a"])

    assert isinstance(found, LookupTableError if row is not None else TypeError)
    assert ("rack, memory" in str(found)) == (row is not None)


def test_a_partial_cache_saves_calls_and_a_full_one_is_refused() -> None:
    function = Batches()
    table = FunctionTable(function, key="node string", columns=COLUMNS)

    with pytest.raises(LookupTableError, match="cannot be scanned, which a full cache requires"):
        LookupFunction(table, "node", cache="full")
    rows_of(table, ["a", "a", "b"], cache="partial")

    assert function.calls == ["open", ["a", "b"], "close"]


def test_a_task_factory_of_the_function_makes_no_tasks_of_the_lookup() -> None:
    """With a factory of eager tasks, a partial cache kept the first answers for ever."""

    class Factory(Batches):
        async def open(self) -> None:
            asyncio.get_running_loop().set_task_factory(lambda *_, **__: pytest.fail("a task"))

        async def close(self) -> None:
            asyncio.get_running_loop().set_task_factory(None)

    table = FunctionTable(Factory(), key="node string", columns=COLUMNS)

    assert rows_of(table, ["a", "c"], cache="partial") == [[("r1", 1)], []]


def test_another_key_than_the_declared_one_is_refused() -> None:
    async def find(node: str) -> Any:
        return []

    with pytest.raises(LookupTableError, match="looks up by node, not by host"):
        LookupFunction(FunctionTable(find, key="node string", columns=COLUMNS), "host")
