"""Joins of a DataFrame with an external table: the key of each row is looked up when the row is processed.

Unlike a join with Spark's JDBC source, it reads only the rows that match a key (with a full cache: the whole table,
once per worker), and a streaming query sees the table as it is when a row is processed.

Tables and caches come from `pipeline.lookup`. Each lookup_join has its own connections and cache in each Python worker
process: its first task there makes them, later tasks and micro-batches reuse them, and they are closed after
`idle_timeout` seconds without a task. Equal calls share them, as in `foreachBatch`. So a job with n workers
opens up to n times a table's connections and holds up to n caches, and a row may be joined with cached rows as old as
the cache allows.
"""

from __future__ import annotations

import re
from typing import Any, Unpack, cast

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from dispatcher.util.functions import require_methods
from pipeline.lookup.cache import LookupCache
from pipeline.lookup.errors import LookupTableError
from pipeline.lookup.function import How, LookupFunction, On, key_pairs
from pipeline.lookup.schema import Column, LookupTable, check_key_types
from pipeline.spark.async_io.async_wait import ordered_wait, unordered_wait
from pipeline.spark.async_io.lookup_batches import join_batches, takes_batches
from pipeline.spark.async_io.rows import name_form
from pipeline.streaming.options import AsyncOptions, CallOptions, takes_options, times_in_ms


class LookupOptions(CallOptions, total=False):
    """What `lookup_join` takes besides its own arguments."""

    deadline: float | None


@takes_options(LookupOptions, deadline=None)
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
    **options: Unpack[LookupOptions],
) -> DataFrame:
    """Join each row with the table's rows of the same key, batch or streaming.

    In:  any DataFrame with the key's columns, which `on` names: a column, several, or {in df: in the table}.
    Out: the columns of `df`, then the table's columns without the key, all nullable. how="left" gives one row per
         match, or one with nulls for a row without a match. "inner" gives only the matches. A null in a key matches
         nothing. on_error="capture" adds `error_column`, as in `ordered_wait`. A row with an error has its
         values only there.

    `table`: a SqliteTable, a PostgresTable, a FunctionTable, or another LookupTable. This call reads its columns. The
        table is pickled to the workers, including its password unless you pass its conninfo as a function.
    `cache`, `suffix`: as in LookupFunction.
    `ordered`: keep the order of the rows. A slow answer then delays the rows after it.
    `max_retries`, `retry_delay_s`: how often to repeat a query to an unavailable database, after a delay that doubles
        each time, within `timeout`. For the errors of your function, use `retry`.
    `timeout`, `deadline`, `metrics`: as in `ordered_wait`. The metrics also count calls answered by a cache.

    `pipeline.streaming.AsyncOptions` describes the other options. The keys of a batch are looked up together. While all
    connections are busy, more than `max_batch_size` keys are joined into one query. Unless you set `max_batch_size`,
    the rows of a database's table are looked up in parts of Spark's batches, of up to 10,000 rows. Each row is a
    separate record where that matters: with a FunctionTable, `retry`, `rate_limit`, `metrics`, `dead_letter`, or a
    function as `on_error`. Then `capacity` is 1,000, `max_batch_size` 100 and `linger_ms` 5.

    Raises:
        LookupTableError: a column, a type or an option is invalid.
        TableUnavailableError: the table can't be reached.
    """
    require_methods(df, "df", "a DataFrame", "select")
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
    added = _fields(df, function.output_columns)
    if metrics is None and takes_batches(table, options):
        settings = AsyncOptions(
            **times_in_ms(timeout, options.get("deadline")),
            output_mode="ordered" if ordered else "unordered",
            capacity=options.get("capacity"),
            concurrency=options.get("concurrency"),
            max_batch_size=options.get("max_batch_size"),
            linger_ms=options.get("linger_ms"),
            on_error=options.get("on_error", "fail"),
        )
        return join_batches(df, function, T.StructType(added), settings, idle_timeout, error_column)
    return (ordered_wait if ordered else unordered_wait)(
        df,
        function,
        T.StructType([*df.schema.fields, *added]),
        timeout=timeout,
        error_column=error_column,
        metrics=metrics,
        idle_timeout=idle_timeout,
        **_for_rows(options),
    )


def _for_rows(options: LookupOptions) -> LookupOptions:
    """The options for rows that are records of their own."""
    defaults: LookupOptions = {"capacity": 1_000, "max_batch_size": 100, "linger_ms": 5}
    return {**defaults, **cast(LookupOptions, {name: each for name, each in options.items() if each is not None})}


def _of_columns(df: DataFrame, on: On) -> dict[str, str]:
    """The key by the names as `df` spells them. Raises LookupTableError unless each is unique."""
    found, form = {}, name_form(df.sparkSession)
    for name, table_name in zip(*key_pairs(on), strict=True):
        same = [column for column in df.columns if column == name]
        same = same or [column for column in df.columns if form(column) == form(name)]
        if len(same) != 1:
            number = "no column" if not same else f"{len(same)} columns"
            raise LookupTableError(f"the DataFrame has {number} {name!r}; it has {', '.join(df.columns)}.")
        found[same[0]] = table_name
    return found


def _fields(df: DataFrame, columns: tuple[Column, ...]) -> list[T.StructField]:
    """The columns in Spark's types. Spark parses the types, on the server with Spark Connect."""
    if not columns:
        return []  # columns=[]: the join only tests whether the key exists
    names = [column.name.replace("`", "``") for column in columns]
    # A setting of Spark decides what `timestamp` means; here it always has a time zone.
    types = [re.sub(r"^(array<)?timestamp(>)?$", r"\1timestamp_ltz\2", column.type) for column in columns]
    ddl = ", ".join(f"`{name}` {type_name}" for name, type_name in zip(names, types, strict=True))
    schema: T.StructType = df.sparkSession.createDataFrame([], ddl).schema
    return schema.fields
