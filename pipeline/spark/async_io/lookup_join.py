"""Joins of a DataFrame with a table that lives elsewhere: each key is looked up when its row comes by.

Other than in a join with Spark's JDBC source, nothing of the table is read but the rows that are asked for (with a
full cache: all of them, once for each worker), and a streaming query sees the table as it is when a row comes.

Tables and caches are those of `pipeline.lookup`. Connections and the cache belong to one lookup_join in one Python
worker process: they are made by its first task there, kept for the tasks and micro-batches that follow, and gone
after `idle_timeout` seconds without one. So a job with n workers opens up to n times a table's connections, holds up
to n caches, and a row may be joined with what its worker's cache has, as old as that cache allows.
"""

from __future__ import annotations

import re
from typing import Any, Unpack

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pipeline.lookup.cache import LookupCache
from pipeline.lookup.errors import LookupTableError
from pipeline.lookup.function import How, LookupFunction, On, key_pairs
from pipeline.lookup.schema import Column, check_key_types
from pipeline.lookup.tables import LookupTable
from pipeline.spark.async_io.async_wait import ordered_wait, unordered_wait
from pipeline.streaming.options import CallOptions, takes_options


@takes_options(CallOptions, capacity=1_000, max_batch_size=100, linger_ms=5)
def lookup_join(
    df: DataFrame,
    table: LookupTable,
    on: On,
    how: How = "left",
    cache: LookupCache | str | None = None,
    *,
    suffix: str | None = None,
    ordered: bool = False,
    timeout: float = 180.0,
    max_retries: int = 3,
    retry_delay_s: float = 0.5,
    error_column: str = "error",
    metrics: Any = None,
    idle_timeout: float = 60.0,
    **options: Unpack[CallOptions],
) -> DataFrame:
    """Join each row with the table's rows of the same key, batch or streaming.

    In:  any DataFrame with the key's columns, which `on` names: a column, several, or {in df: in the table}.
    Out: the columns of `df`, then those of the table without its key, all nullable. With how="left" one row for each
         match, or one with nulls if there is none; with "inner" the matches only. A null in a key matches nothing.
         With on_error="capture" also `error_column`, as of `ordered_wait`.

    `table`: a SqliteTable, a PostgresTable, a FunctionTable, or another LookupTable. It is asked for its columns here
        and now. It travels to the workers pickled, with its password, unless its conninfo is a function.
    `cache`, `suffix`: as of LookupFunction.
    `ordered`: keep the order of the rows, so that one slow answer holds up those behind it.
    `max_retries`, `retry_delay_s`: how often a question to a database that is away is asked again, after the delay,
        then after twice that, and so on, within `timeout`. `retry` is for the errors of a user's function.
    `metrics`: as of `ordered_wait`; counts rows and their calls, including those that a cache answers.
    The other options are those of `pipeline.streaming.AsyncOptions`: the keys of a batch are looked up together, and
    while all connections are busy, more than `max_batch_size` of them.

    Raises:
        LookupTableError: a column, a type or an option does not fit. TableUnavailableError: the table cannot be asked.
    """
    on = _of_columns(df, on)
    function = LookupFunction(
        table,
        on,
        how=how,
        cache=cache,
        input_columns=df.columns,
        suffix=suffix,
        max_retries=max_retries,
        retry_delay_s=retry_delay_s,
    )
    key_types = [df.schema[name].dataType.simpleString() for name in function.input_keys]
    check_key_types(table.name, function.schema, function.input_keys, key_types)
    return (ordered_wait if ordered else unordered_wait)(
        df,
        function,
        T.StructType([*df.schema.fields, *_fields(df, function.output_columns)]),
        timeout=timeout,
        error_column=error_column,
        metrics=metrics,
        idle_timeout=idle_timeout,
        **options,
    )


def _of_columns(df: DataFrame, on: On) -> dict[str, str]:
    """The key by the names that `df` itself uses: Spark's names may be written in any case.

    Raises:
        LookupTableError: `df` has no such column, or more than one.
    """
    found = {}
    for name, table_name in zip(*key_pairs(on), strict=True):
        same = [column for column in df.columns if column == name]
        same = same or [column for column in df.columns if column.lower() == name.lower()]
        if len(same) != 1:
            number = "no column" if not same else f"{len(same)} columns"
            raise LookupTableError(f"the DataFrame has {number} {name!r}; it has {', '.join(df.columns)}.")
        found[same[0]] = table_name
    return found


def _fields(df: DataFrame, columns: tuple[Column, ...]) -> list[T.StructField]:
    """The columns as Spark has them. Spark itself reads their types, on the server with Spark Connect."""
    if not columns:
        return []  # columns=[]: with "inner", whether there is such a key is all that is asked
    names = [column.name.replace("`", "``") for column in columns]
    # What `timestamp` means is a setting of Spark's; what we mean is not.
    types = [re.sub(r"^(array<)?timestamp(>)?$", r"\1timestamp_ltz\2", column.type) for column in columns]
    ddl = ", ".join(f"`{name}` {type_name}" for name, type_name in zip(names, types, strict=True))
    schema: T.StructType = df.sparkSession.createDataFrame([], ddl).schema
    return schema.fields
