"""Async I/O inside Spark: each task calls a function that waits for a service for many rows concurrently.

`ordered_wait` and `unordered_wait` take a DataFrame, batch or streaming, and return one. Each task runs the operator of
`pipeline.streaming` on its own threads; the worker's main thread only reads and writes Arrow batches.

- Calls overlap across the input batches of a task, and all have ended when its partition ends. A failure abandons them.
  So does a `limit`, at the next output batch or after `timeout`.
- The function is pickled with the query. A worker's first task opens it, and later tasks and micro-batches in that
  worker reuse it. It is closed after `idle_timeout` seconds without a task, when its task fails, or when the worker
  ends. A worker that is killed closes nothing.
- A rate limit is the job's, and each task gets its share: see `pipeline.spark.async_io.job_limits`. With scope "worker"
  or "task" it is that of each worker or task.
- A task that Spark retries repeats its calls: no row is lost, but the service may see a row more than once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, TypeAlias, Unpack

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from dispatcher.errors import InvalidTypeError, InvalidValueError
from pipeline.spark.async_io.result_schema import SCALAR_COLUMN, accepts_none, schema_from, schema_of
from pipeline.spark.async_io.results import OutputColumns
from pipeline.spark.async_io.rows import (
    InputRows,
    is_key,
    name_form,
    place_of,
    read_rows,
    require_hashable_keys,
    require_supported,
    with_plain_names,
)
from pipeline.spark.async_io.spark_types import ExtraKeys, inner_types
from pipeline.spark.async_io.task import AsyncTask, CallFor, for_workers, zone_of_session
from pipeline.spark.observed_calls import METRICS_COLUMN, observe_calls
from pipeline.spark.result_caches import cache_of_rows
from pipeline.streaming.calls.functions import AnyFunction, name_of
from pipeline.streaming.function_wrappers import as_called
from pipeline.streaming.options import AsyncOptions, OutputMode, WaitOptions, takes_options, times_in_ms

ResultSchema: TypeAlias = T.DataType | str | type[Any] | None
"""A StructType, DDL, the type of the only column, or a class with fields; None: what the function declares."""
DedupeBy: TypeAlias = str | Sequence[str] | Callable[[Any], Any]


class DataFrameOptions(WaitOptions, total=False):
    """What `ordered_wait` and `unordered_wait` of a DataFrame take."""

    dedupe_by: DedupeBy | None
    extra: ExtraKeys
    keep_input: bool
    error_column: str
    metrics: Any
    idle_timeout: float


def _require_dataframe(called: str, df: Any) -> None:
    if not isinstance(df, DataFrame):
        name = called.rpartition(".")[2]
        raise InvalidTypeError(
            f"{called} takes a DataFrame of Spark, not a {type(df).__qualname__}; for an iterable, call "
            f"pipeline.streaming.{name}"
        )


_takes_options = takes_options(
    DataFrameOptions,
    check_first=_require_dataframe,
    extra="refuse",
    keep_input=False,
    error_column="error",
    metrics=None,
    idle_timeout=30.0,
)


@_takes_options
def ordered_wait(
    df: DataFrame,
    function: AnyFunction[Any, Any],
    schema: ResultSchema = None,
    *,
    timeout: float,
    deadline: float | None = None,
    **options: Unpack[DataFrameOptions],
) -> DataFrame:
    """Call `function` for each row, up to `concurrency` at a time in each task, and keep the order of the rows.

    In:  any DataFrame. `function` receives each row as a Row, with the values described in
         `pipeline.spark.async_io.spark_types`.
    Out: the columns of `schema`, one row per result. The function returns one result or a list or, if its return type
         is an Iterator or an AsyncIterator, yields results. A dict, a Row with names, a dataclass or a pydantic model
         is matched by name, any other tuple by position. Any other value fills the only column. A result that doesn't
         fit the schema fails its call. So does a row with a value that Python cannot hold, such as a date of the year
         10000, without a call. on_error="capture" adds the column `error_column`, which is null unless the
         row's call failed. Then it's a struct of input (the row), error_class string, message string, attempts int and
         time_spent_ms double, and the other columns, which all become nullable, are null. The rows where it isn't null
         are your dead letters. A stream keeps its watermark if the output has the watermark's column of the input, by
         `keep_input` or in a `schema` made of `df.schema`. Otherwise, set one on the output.

    `function`: your AsyncFunction, `async def`, or blocking function, which runs on `pool_size` threads.
    `schema`: a StructType, DDL, or a class: a dataclass, a pydantic model or a TypedDict. By default, the function's
        declared return type, see `pipeline.spark.async_io.result_schema`. A scalar is the column `value`. The function
        can return None, for a row of nulls, only if its return type is optional.
    `timeout`: seconds for a row, including all its attempts, from the start of its first call.
    `deadline`: seconds for a row from when its task takes it in, including waits for limits and free slots.
    `extra`: "refuse" fails the call if a result has a name missing in the schema, "ignore" drops such values.
    `dedupe_by`: a column, some columns or a function of the row. Rows with the same key share one call and its results,
        which must depend only on the key. `keep_input` still puts each row's own columns before them. Timestamps are
        the same key if they are the same instant, and all NaN are one. Arrays, maps and variants cannot be keys.
    `options`: see `pipeline.streaming.AsyncOptions`. A quarter of a task's calls is read ahead.
    `keep_input`: put the columns of the input row before the columns of `schema`, also if its call has failed.
    `metrics`: for batch queries an Observation, for streams the name of the metrics in the streaming progress. You can
        read them with `pipeline.spark.call_metrics`.

    Raises:
        ValueError, TypeError: an option, or a name or a type in a schema, is invalid, or `function` doesn't pickle,
            would block the loop, or yields without declaring it.
    """
    return _wait("ordered", df, function, schema, timeout, deadline, **options)


@_takes_options
def unordered_wait(
    df: DataFrame,
    function: AnyFunction[Any, Any],
    schema: ResultSchema = None,
    *,
    timeout: float,
    deadline: float | None = None,
    **options: Unpack[DataFrameOptions],
) -> DataFrame:
    """Call as `ordered_wait` does, but emit results as calls complete, so a slow call doesn't delay the others."""
    return _wait("unordered", df, function, schema, timeout, deadline, **options)


def _wait(
    mode: OutputMode,
    df: DataFrame,
    function: AnyFunction[Any, Any],
    schema: ResultSchema,
    timeout: float,
    deadline: float | None,
    *,
    dedupe_by: DedupeBy | None = None,
    extra: ExtraKeys,
    keep_input: bool,
    error_column: str,
    metrics: Any,
    idle_timeout: float,
    **more: Unpack[WaitOptions],
) -> DataFrame:
    called = as_called(function)
    form = name_form(df.sparkSession)
    key = dedupe_by
    if isinstance(key, str | Sequence):
        names = _resolved("dedupe_by", key, df, form)
        _require_keys("dedupe_by", df, names, is_key)
        key = itemgetter(*map(df.columns.index, names))
    options = AsyncOptions(**times_in_ms(timeout, deadline), output_mode=mode, dedupe_by=key, **more)
    if options.cache is not None and (columns_of_key := options.cache.key_columns):
        cache = replace(options.cache, key=_resolved("the cache's key", columns_of_key, df, form))
        options = replace(options, cache=cache)
    result_schema = _result_schema(df, function, schema)
    columns = OutputColumns(
        result_schema,
        df.schema,
        error_name=error_column if options.on_error == "capture" else None,
        keeps_input=keep_input,
        has_metrics=metrics is not None,
    )
    require_supported(df.schema, "the DataFrame")
    require_hashable_keys(df.schema, "the DataFrame")
    require_supported(result_schema, "the schema of the results")
    require_free_names(columns, form)
    options = replace(options, cache=cache_of_rows(df, options.cache, function))
    if options.cache is not None and not callable(options.cache.key):
        _require_keys("the cache's key", df, options.cache.key_columns or df.columns, _has_text)
    _require_metrics_of(df, metrics)
    task = AsyncTask(
        operator=f"{mode}_wait({name_of(function)})",
        function=called,
        options=options,
        result_schema=result_schema,
        extra=extra,
        none_is_row=accepts_none(function),
        columns=columns,
        time_zone=zone_of_session(df.sparkSession),
        idle_s=idle_timeout,
    )
    schema_in = df.schema

    def convert(call_for: CallFor, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return call_for((InputRows if columns.takes_input else read_rows)(schema_in, batches))

    run = for_workers(task, df.sparkSession, df, convert)
    results = with_plain_names(df).mapInArrow(run, columns.task_schema())
    return results if metrics is None else observe_calls(results, metrics)


def _result_schema(df: DataFrame, function: AnyFunction[Any, Any], schema: ResultSchema) -> T.StructType:
    if schema is None:
        return schema_of(function)
    if isinstance(schema, T.StructType):
        return schema
    if isinstance(schema, T.DataType):
        return T.StructType([T.StructField(SCALAR_COLUMN, schema)])
    if isinstance(schema, str):
        parsed: T.StructType = df.sparkSession.createDataFrame([], schema).schema
        return parsed
    return schema_from(schema)


def _require_metrics_of(df: DataFrame, metrics: Any) -> None:
    if metrics is not None and not isinstance(metrics, str) and df.isStreaming:
        raise InvalidValueError("metrics is an Observation, which only batch queries support; for a stream give a name")
    if isinstance(metrics, str) and not df.isStreaming:
        raise InvalidValueError(
            f"metrics is the name {metrics!r}, as for a stream; for a batch query give an Observation"
        )


def _resolved(option: str, key: str | Sequence[str], df: DataFrame, form: Callable[[str], str]) -> list[str]:
    """The names that `key` has, as `df` spells them."""
    names = df.columns
    places = {name: place_of(name, names, form) for name in ([key] if isinstance(key, str) else key)}
    if unknown := [name for name, place in places.items() if place is None]:
        raise InvalidValueError(f"{option} names {', '.join(unknown)}; the columns are {', '.join(names)}")
    return [names[place] for place in places.values() if place is not None]


def _require_keys(option: str, df: DataFrame, names: Sequence[str], suits: Callable[[T.DataType], bool]) -> None:
    """Raise TypeError for a column of `df` whose values cannot be compared as keys."""
    for name in names:
        data_type = df.schema[df.columns.index(name)].dataType
        if not suits(data_type):
            raise InvalidTypeError(
                f"{option} has the column {name}, whose type {data_type.simpleString()} cannot be compared as a key. "
                "Give a function of the row that returns strings, numbers or tuples of them"
            )


def _has_text(data_type: T.DataType) -> bool:
    return not isinstance(data_type, T.VariantType) and all(map(_has_text, inner_types(data_type)))


def require_free_names(columns: OutputColumns, form: Callable[[str], str]) -> None:
    """Raise ValueError for a name of the results that another column of the output also has."""
    results = [form(name) for name in columns.results.names]
    kept = [field.name for field in columns.kept]
    added = ([] if columns.error_name is None else [columns.error_name]) + [METRICS_COLUMN] * columns.has_metrics
    for name, same in zip(columns.results.names, results, strict=True):
        if results.count(same) > 1:
            raise InvalidValueError(f"the schema of the results has {results.count(same)} columns {name}; rename them")
        if same in map(form, kept):
            raise InvalidValueError(
                f"keep_input adds the columns of the DataFrame to the results' columns, and both have {name}"
            )
    for name in [*kept, *columns.results.names]:
        if form(name) in map(form, added):
            raise InvalidValueError(
                f"the schema of the results has a column {name}; rename it, or choose another error_column"
            )
