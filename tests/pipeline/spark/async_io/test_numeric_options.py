"""Every numeric option of Async I/O on Spark, and of lookups, refuses a text by name. No job runs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import pytest
from pyspark.sql import SparkSession

from pipeline.lookup import FullCache, FunctionTable, LookupTableError, PartialCache, PostgresTable, SqliteTable
from pipeline.spark import async_column, lookup_join, ordered_wait, register_async, unordered_wait
from pipeline.streaming import AsyncFunction

from ...lookup.fakes import LookupFunction

NEEDED: dict[str, Any] = {"dedupe_by": "id", "remember": 1}


class InBatches(AsyncFunction[Any, int]):
    """So that the options of the batch form are possible."""

    async def async_invoke_batch(self, values: list[Any]) -> list[list[int]]:
        return [[1] for _ in values]


def rack(node: int) -> tuple[str]:
    return (str(node),)


TABLE = FunctionTable(rack, key="id bigint", columns="rack string")


def numbers_of(function: Callable[..., Any]) -> list[str]:
    """The parameters that are numbers or durations, by the types that the signature shows."""
    parameters = inspect.signature(function).parameters
    return [name for name, parameter in parameters.items() if is_number(parameter.annotation)]


def is_number(hint: Any) -> bool:
    kinds = hint.split(" | ") if isinstance(hint, str) else get_args(hint) or (hint,)
    return any(kind in (int, float, "int", "float", "Duration") for kind in kinds)


def wait(function: Callable[..., Any], spark: SparkSession, options: dict[str, Any]) -> object:
    return function(spark.range(1), InBatches(), **{"timeout": 1, **NEEDED, **options})


def join(function: Callable[..., Any], spark: SparkSession, options: dict[str, Any]) -> object:
    return function(spark.range(1), TABLE, "id", **options)


def column(function: Callable[..., Any], spark: SparkSession, options: dict[str, Any]) -> object:
    return function(InBatches(), "id", **{"timeout": 1, **NEEDED, **options})


def register(function: Callable[..., Any], spark: SparkSession, options: dict[str, Any]) -> object:
    return function(spark, "in_batches", InBatches(), **{"timeout": 1, **NEEDED, "dedupe_by": "value", **options})


@pytest.mark.parametrize(
    ("call", "function"),
    [
        (wait, ordered_wait),
        (wait, unordered_wait),
        (join, lookup_join),
        (column, async_column),
        (register, register_async),
    ],
)
def test_a_text_for_a_number_is_refused_by_name(
    spark: SparkSession, call: Callable[..., object], function: Callable[..., Any]
) -> None:
    names = numbers_of(function)
    assert {"timeout", "capacity", "concurrency", "idle_timeout", "linger_ms"} <= set(names)

    for name in names:
        with pytest.raises((ValueError, LookupTableError), match=f"{name} is '10'; it must be"):
            call(function, spark, {name: "10"})


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (SqliteTable, ("file", "table")),
        (PostgresTable, ("host=h", "table")),
        (LookupFunction, (TABLE, "id")),
        (PartialCache, ()),
        (FullCache, ()),
        (partial(FunctionTable, key="id bigint", columns="rack string"), (rack,)),
    ],
)
@pytest.mark.parametrize("value", ["10", True], ids=repr)
def test_the_parts_of_a_lookup_refuse_what_is_no_number(
    make: Callable[..., Any], arguments: tuple[Any, ...], value: object
) -> None:
    names = numbers_of(make)
    assert names

    for name in names:
        with pytest.raises(LookupTableError, match=re.escape(f"{name} is {value!r}; it must be")):
            make(*arguments, **{name: value})
