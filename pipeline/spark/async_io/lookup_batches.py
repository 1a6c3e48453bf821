"""Lookup joins of whole Arrow batches: each call takes a batch of rows and returns a batch.

The columns of the DataFrame stay in Arrow; only its keys and the table's rows pass through Python. So a row costs a
fraction of what it costs as a record of its own. Options that treat rows one by one, such as `retry`, `on_error` or
`metrics`, need `ordered_wait` or `unordered_wait` instead.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pipeline.lookup.function import LookupFunction
from pipeline.lookup.schema import LookupRow, LookupTable
from pipeline.spark.async_io.results import OutputColumns, ResultWriter
from pipeline.spark.async_io.rows import read_rows, require_supported, slices, with_plain_names
from pipeline.spark.async_io.spark_types import Rules, reader_of, time_zone, values_of
from pipeline.spark.async_io.structs import Check, Misfit
from pipeline.spark.async_io.task import AsyncTask, CallFor, for_workers, zone_of_session
from pipeline.spark.errors import ResultSchemaError
from pipeline.streaming.calls.functions import AsyncFunction
from pipeline.streaming.errors import AsyncOperatorError
from pipeline.streaming.options import AsyncOptions, CallOptions

_FIRST_ROWS: Final = 100
_MOST_ROWS: Final = 10_000
_CAPACITY: Final = 20_000
"""Rows taken in, unless an option says it."""


def takes_batches(table: LookupTable, options: CallOptions) -> bool:
    """Whether no option treats rows one by one, and the table takes any number of keys at once."""
    is_plain = options.get("on_error", "fail") == "fail" and not options.get("retry") and not options.get("rate_limit")
    return is_plain and getattr(table, "takes_many_keys", False)


def join_batches(
    df: DataFrame, function: LookupFunction, added: T.StructType, options: AsyncOptions, idle_s: float
) -> DataFrame:
    """Join `df` with the table of `function`, whose output columns are `added`. Raises as `lookup_join`."""
    schema = T.StructType([*df.schema.fields, *added.fields])
    require_supported(df.schema, "the DataFrame")
    require_supported(schema, "the schema of the results")
    rows = options.max_batch_size or min(_MOST_ROWS, options.capacity or _MOST_ROWS)
    zone = zone_of_session(df.sparkSession)
    task = _BatchTask(
        operator=f"{options.output_mode}_wait({function.name})",
        function=_BatchLookup(function, df.schema, added, zone),
        options=replace(
            options, capacity=max(1, (options.capacity or _CAPACITY) // rows), max_batch_size=None, linger_ms=None
        ),
        result_schema=schema,
        columns=OutputColumns(schema, df.schema),
        time_zone=zone,
        idle_s=idle_s,
    )

    def convert(call_for: CallFor, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return call_for(_parts(schema_in, batches, rows))

    schema_in = df.schema
    run = for_workers(task, df.sparkSession, df, convert)
    return with_plain_names(df).mapInArrow(run, task.columns.task_schema())


def _parts(schema: T.StructType, batches: Iterable[pa.RecordBatch], most: int) -> Iterator[list[_Rows]]:
    """The input in parts of at most `most` rows. The first are small: a reader of a few rows needs no more lookups."""
    size = min(most, _FIRST_ROWS)
    for batch in batches:
        while batch.num_rows:
            part = next(slices(batch, size))
            yield [_Rows(part, schema)]
            batch = batch.slice(part.num_rows)
            size = min(most, 2 * size)


class _Rows:
    def __init__(self, batch: pa.RecordBatch, schema: T.StructType) -> None:
        self.batch = batch
        self._schema = schema

    def __repr__(self) -> str:
        first, more = _row(self.batch, 0, self._schema), self.batch.num_rows - 1
        return f"{first!r}, or one of the {more} after it," if more else repr(first)


class _LookupError(Exception):
    """The lookup of one row has failed, for the reason `cause`."""

    def __init__(self, row: Any, cause: Exception) -> None:
        super().__init__(row, cause)
        self.row = row
        self.cause = cause


class _BatchLookup(AsyncFunction[_Rows, pa.RecordBatch]):
    """Looks up the keys of a batch together. The host's loop thread."""

    def __init__(self, function: LookupFunction, schema: T.StructType, added: T.StructType, zone: str) -> None:
        self.name = function.name
        self._function = function
        self._schema = schema
        self._added = added
        self._zone = zone
        self._keys = [schema.names.index(name) for name in function.input_keys]
        self._output: pa.Schema = None  # made by `open`, as are the next two
        self._checks: list[Check] = []
        self._builders: list[Any] = []

    async def open(self) -> None:
        rules = Rules(time_zone(self._zone), refuses=True)
        values = [values_of(field.dataType) for field in self._added.fields]
        self._checks = [each.check(rules, nullable=True) for each in values]
        self._builders = [each.builder() for each in values]
        fields = [*self._schema.fields, *self._added.fields]
        self._output = pa.schema([(field.name, values_of(field.dataType).arrow) for field in fields])
        await self._function.open()

    async def close(self) -> None:
        await self._function.close()

    def own_retries(self) -> int:
        return self._function.own_retries()

    async def async_invoke(self, rows: _Rows) -> list[pa.RecordBatch]:
        batch = rows.batch
        keys = [reader_of(batch.column(at).type, self._schema[at].dataType)(batch.column(at)) for at in self._keys]
        matches = await self._function.matches(keys)
        for place, match in enumerate(matches):
            if isinstance(match, Exception):
                raise _LookupError(_row(batch, place, self._schema), match)
        return [self._joined(batch, some) for some in _in_pieces(matches)]  # type: ignore[arg-type]

    def _joined(self, batch: pa.RecordBatch, matches: Mapping[int, Sequence[LookupRow]]) -> pa.RecordBatch:
        """The rows of `batch` that have these matches, by their place, each as often as it has some."""
        if len(matches) != batch.num_rows or any(len(rows) != 1 for rows in matches.values()):
            batch = batch.take(pa.array([place for place, rows in matches.items() for _ in rows], pa.int64()))
        types = self._output.types
        arrays = [column.cast(kind) for column, kind in zip(batch.columns, types, strict=False)]
        added = zip(*chain.from_iterable(matches.values()), strict=True)
        for field, check, build, values in zip(self._added.fields, self._checks, self._builders, added, strict=True):
            try:
                arrays.append(build([check(value) for value in values]))
            except Misfit as misfit:
                raise ResultSchemaError(f"{field.name}{misfit.path}", misfit.reason) from None
        return pa.RecordBatch.from_arrays(arrays, schema=self._output)


def _in_pieces(matches: Iterable[Sequence[LookupRow]]) -> Iterator[dict[int, Sequence[LookupRow]]]:
    """The matches by their place, without empty ones, in pieces of about `_MOST_ROWS` rows."""
    piece: dict[int, Sequence[LookupRow]] = {}
    rows = 0
    for place, match in enumerate(matches):
        if match:
            piece[place] = match
            rows += len(match)
            if rows >= _MOST_ROWS:
                yield piece
                piece, rows = {}, 0
    if piece:
        yield piece


def _row(batch: pa.RecordBatch, place: int, schema: T.StructType) -> Any:
    ((row,),) = read_rows(schema, [batch.slice(place, 1)])
    return row


class _BatchWriter(ResultWriter):
    """Joins batches."""

    def _bounded(self, results: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        batch = pa.concat_batches(results)
        self._row_bytes = batch.nbytes / len(results)
        self.results_in_batch = len(results)
        yield batch


@dataclass(frozen=True, kw_only=True)
class _BatchTask(AsyncTask):
    """A task whose records and results are batches."""

    def check(self, zone: dt.tzinfo) -> Check:
        return _as_it_is

    def of_row(self, error: AsyncOperatorError) -> AsyncOperatorError:
        cause = error.cause
        if not isinstance(cause, _LookupError):
            return error
        return AsyncOperatorError(error.operator, cause.row, cause.cause, error.attempts)

    def writer(self) -> ResultWriter:
        return _BatchWriter(self.columns, max_rows=1)


def _as_it_is(result: Any) -> Any:
    return result
