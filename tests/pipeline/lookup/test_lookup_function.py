"""The join of rows with looked-up rows."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.lookup import Column, LookupTableError, SqliteTable
from pipeline.streaming import ordered_wait

from .fakes import SCHEMA, TIMEOUT_S, FakeReader, FakeTable, LookupFunction, LookupSchema, in_loop, invoke, opened

RACKS = {"a": ["r1"], "b": ["r2", "r3"]}


def table(schema: LookupSchema = SCHEMA) -> FakeTable:
    return FakeTable(FakeReader(RACKS), schema)


def test_a_left_join_keeps_rows_without_a_match_and_repeats_those_with_several() -> None:
    function = LookupFunction(table(), "node")

    assert invoke(function, [{"node": "a", "n": 1}, {"node": "b", "n": 2}, {"node": "c", "n": 3}]) == [
        [{"node": "a", "n": 1, "rack": "r1"}],
        [{"node": "b", "n": 2, "rack": "r2"}, {"node": "b", "n": 2, "rack": "r3"}],
        [{"node": "c", "n": 3, "rack": None}],
    ]


def test_tuples_get_the_table_s_columns_at_their_end() -> None:
    function = LookupFunction(table(), {"host": "node"}, input_columns=["n", "host"])

    assert invoke(function, [(1, "a"), (2, "c")]) == [[(1, "a", "r1")], [(2, "c", None)]]
    assert function.output_columns == (Column("rack", "string"),)


@in_loop
async def test_one_value_is_a_batch_of_one() -> None:
    reader = FakeReader(RACKS)
    function = LookupFunction(FakeTable(reader), "node", cache="partial")
    async with opened(function):
        assert await function.async_invoke({"node": "a"}) == [{"node": "a", "rack": "r1"}]
        reader.error = OSError("gone")
        with pytest.raises(OSError, match="gone"):
            await function.async_invoke({"node": "b"})


def test_a_suffix_tells_the_table_s_column_from_the_input_s() -> None:
    columns = ["node", "Rack"]

    with pytest.raises(LookupTableError, match=r"'rack' would duplicate 'rack'.*suffix=\"_right\""):
        LookupFunction(table(), "node", input_columns=columns)
    with pytest.raises(LookupTableError, match="duplicate 'rack_right'"):
        LookupFunction(table(), "node", input_columns=[*columns, "rack_right"], suffix="_right")
    renamed = LookupFunction(table(), "node", input_columns=columns, suffix="_right")

    assert [column.name for column in renamed.output_columns] == ["rack_right"]


def test_a_mapping_that_has_the_table_s_column_is_refused_rather_than_overwritten() -> None:
    function = LookupFunction(table(), "node")

    (result,) = invoke(function, [{"node": "a", "rack": "mine"}])

    assert isinstance(result, LookupTableError)
    assert "suffix" in str(result)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"on": "node", "how": "right"}, "how is 'right'"),
        ({"on": []}, "on is"),
        ({"on": ["node", "node"]}, "'node' is repeated"),
        ({"on": "node", "max_retries": -1}, "max_retries is -1"),
        ({"on": "node", "input_columns": ["host"]}, "the input has no column 'node'; it has host"),
    ],
)
def test_impossible_arguments_are_refused_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(LookupTableError, match=message):
        LookupFunction(table(), **arguments)


@pytest.fixture
def nodes(sqlite_file: Callable[..., Path]) -> SqliteTable:
    script = "CREATE TABLE nodes (node TEXT PRIMARY KEY, rack TEXT); INSERT INTO nodes VALUES ('a', 'r1'), ('b', 'r2')"
    return SqliteTable(sqlite_file(script), "nodes")


def test_a_function_pickles_and_each_copy_has_its_own_connections(nodes: SqliteTable) -> None:
    function = pickle.loads(pickle.dumps(LookupFunction(nodes, "node", cache="full")))

    assert invoke(function, [{"node": "a"}]) == [[{"node": "a", "rack": "r1"}]]
    assert function.metrics.loads == 1


@pytest.mark.parametrize("cache", ["none", "partial", "full"])
def test_it_runs_in_an_asynchronous_operator(nodes: SqliteTable, cache: str) -> None:
    function = LookupFunction(nodes, "node", input_columns=["n", "node"], cache=cache)
    values = [(number, "abc"[number % 3]) for number in range(1000)]

    results = list(ordered_wait(values, function, timeout=TIMEOUT_S, max_batch_size=50))

    assert results == [(number, node, {"a": "r1", "b": "r2"}.get(node)) for number, node in values]
    metrics = function.metrics
    assert metrics.hits + metrics.misses == 1000
    assert (metrics.hits > 0) == (cache != "none")
