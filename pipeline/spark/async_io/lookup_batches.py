"""Lookup joins of whole Arrow batches: each call takes a batch of rows and returns a batch.

The columns of the DataFrame stay in Arrow. Each distinct key of a batch is looked up once, the rows found become Arrow
columns, and these are joined by their places. So a row costs a fraction of what it costs as a record of its own.
Options that treat rows one by one, such as `retry`, `rate_limit` or `metrics`, need `ordered_wait` or `unordered_wait`
instead.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pipeline.lookup.answers import Columns, LookupAnswer
from pipeline.lookup.errors import LookupTableError
from pipeline.lookup.function import LookupFunction
from pipeline.lookup.schema import LookupTable
from pipeline.spark.async_io.arrow_values import as_kind
from pipeline.spark.async_io.async_wait import require_free_names
from pipeline.spark.async_io.results import OutputColumns, ResultWriter, error_values
from pipeline.spark.async_io.rows import InputRows, name_form, read_rows, require_supported, slices, with_plain_names
from pipeline.spark.async_io.spark_types import TypeRules, reader_of, time_zone, values_of
from pipeline.spark.async_io.structs import Check, Misfit
from pipeline.spark.async_io.task import AsyncTask, CallFor, for_workers, zone_of_session
from pipeline.spark.errors import ResultSchemaError
from pipeline.streaming.calls.functions import AsyncFunction
from pipeline.streaming.elements import UnreadableValue
from pipeline.streaming.errors import AsyncOperatorError, CapturedError
from pipeline.streaming.options import AsyncOptions, CallOptions, OnError

_FIRST_ROWS: Final = 100
_MOST_ROWS: Final = 10_000
_MOST_BYTES: Final = 64 << 20
"""Of the rows that come out together, by their average size."""
_CAPACITY: Final = 20_000
"""Rows taken in, unless an option says it."""
_PLAIN: Final[dict[type[T.DataType], type]] = {
    **dict.fromkeys((T.ByteType, T.ShortType, T.IntegerType, T.LongType), int),
    T.DoubleType: float,
    T.StringType: str,
    T.BinaryType: bytes,
    T.BooleanType: bool,
    T.DateType: dt.date,
    T.DecimalType: Decimal,
}
"""Types whose values of this class Arrow takes as they are, or refuses."""


def takes_batches(table: LookupTable, options: CallOptions) -> bool:
    """Whether no option treats rows one by one, and the table takes any number of keys at once."""
    treats_rows = any(options.get(name) for name in ("retry", "rate_limit", "dead_letter"))
    is_named = options.get("on_error", "fail") in ("fail", "drop", "capture")
    return is_named and not treats_rows and getattr(table, "takes_many_keys", False)


def join_batches(
    df: DataFrame,
    function: LookupFunction,
    added: T.StructType,
    options: AsyncOptions,
    idle_s: float,
    error_column: str,
) -> DataFrame:
    """Join `df` with the table of `function`, whose output columns are `added`. Raises as `lookup_join`."""
    schema = T.StructType([*df.schema.fields, *added.fields])
    require_supported(df.schema, "the DataFrame")
    require_supported(schema, "the schema of the results")
    columns = OutputColumns(schema, df.schema, error_name=error_column if options.on_error == "capture" else None)
    require_free_names(columns, name_form(df.sparkSession))
    rows = options.max_batch_size or min(_MOST_ROWS, options.capacity or _MOST_ROWS)
    zone = zone_of_session(df.sparkSession)
    task = _BatchTask(
        operator=f"{options.output_mode}_wait({function.name})",
        function=BatchLookup(function, columns, added, zone, options.on_error),
        options=replace(
            options, capacity=max(1, (options.capacity or _CAPACITY) // rows), max_batch_size=None, linger_ms=None
        ),
        result_schema=schema,
        columns=columns,
        time_zone=zone,
        idle_s=idle_s,
    )

    def convert(call_for: CallFor, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return call_for(_parts(schema_in, batches, rows))

    schema_in = df.schema
    run = for_workers(task, df.sparkSession, df, convert)
    return with_plain_names(df).mapInArrow(run, task.columns.task_schema())


def _parts(schema: T.StructType, batches: Iterable[pa.RecordBatch], most: int) -> Iterator[list[RowBatch]]:
    """The input in parts of at most `most` rows. The first are small: a reader of a few rows needs no more lookups."""
    size = min(most, _FIRST_ROWS)
    for batch in batches:
        while batch.num_rows:
            part = next(slices(batch, size))
            yield [RowBatch(part, schema)]
            batch = batch.slice(part.num_rows)
            size = min(most, 2 * size)


class RowBatch:
    """Some rows of a DataFrame, which are looked up together."""

    def __init__(self, batch: pa.RecordBatch, schema: T.StructType) -> None:
        self.batch = batch
        self.taken_ns: int = time.perf_counter_ns()
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


class BatchLookup(AsyncFunction[RowBatch, pa.RecordBatch]):
    """Looks up the keys of a batch together. The host's loop thread."""

    def __init__(
        self, function: LookupFunction, columns: OutputColumns, added: T.StructType, zone: str, on_error: OnError
    ) -> None:
        self.name: str = function.name
        self._function = function
        self._schema = columns.input_schema
        self._columns = columns
        self._added = added
        self._zone = zone
        self._on_error = on_error
        self._keys = [self._schema.names.index(name) for name in function.input_keys]
        self._packing: _AsArrow = None  # type: ignore[assignment]  # made by `open`, as are the next two
        self._output: pa.Schema = None
        self._failures: _FailedRows = None  # type: ignore[assignment]

    async def open(self) -> None:
        self._packing = _AsArrow(self._added, TypeRules(time_zone(self._zone), refuses=True))
        self._output = _arrow_schema(self._columns)
        self._failures = _FailedRows(self._columns)
        await self._function.open(self._packing)

    async def close(self) -> None:
        await self._function.close()

    def own_retries(self) -> int:
        return self._function.own_retries()

    async def async_invoke(self, rows: RowBatch) -> list[pa.RecordBatch]:
        batch = rows.batch
        codes, keys = distinct_rows([batch.column(at) for at in self._keys])
        errors: dict[int, Exception] = {}
        columns = [_key_values(values, self._schema[at], errors) for at, values in zip(self._keys, keys, strict=True)]
        asked = np.bincount(codes[codes >= 0], minlength=len(columns[0]))
        answer = await self._function.answer(columns, asked.tolist())
        table = answer.columns
        errors.update(answer.errors)
        if not isinstance(table, pa.Table):
            table, unfit = self._packing.pack(table if answer.numbers else [()] * len(self._added.fields))
            for row, error in unfit.items():
                errors.setdefault(answer.numbers[row], error)
        failed = self._failed(rows, codes, errors)
        matches = _Matches(answer, codes, len(asked), failed, self._function.how == "left", self._on_error != "drop")
        row_bytes = batch.nbytes / max(1, batch.num_rows) + table.nbytes / max(1, table.num_rows)
        pieces = matches.in_pieces(max(1, min(_MOST_ROWS, int(_MOST_BYTES / max(1, row_bytes)))))
        return [self._joined(batch, table, failed, *some) for some in pieces]

    def _failed(self, rows: RowBatch, codes: Any, errors: Mapping[int, Exception]) -> dict[int, Any]:
        """For the place of each row whose key has failed, its value of the error column.

        Raises:
            _LookupError: of the first one, if errors are neither captured nor dropped.
        """
        if not errors:
            return {}
        failed = np.flatnonzero(np.isin(codes, list(errors))).tolist()
        if self._on_error == "fail" and failed:
            raise _LookupError(_row(rows.batch, failed[0], self._schema), errors[int(codes[failed[0]])])
        return {
            place: CapturedError.of(None, errors[code], 1, rows.taken_ns)
            for place, code in zip(failed, codes[failed].tolist(), strict=True)
        }

    def _joined(
        self, batch: pa.RecordBatch, table: pa.Table, failed: Mapping[int, CapturedError], places: Any, rows: Any
    ) -> pa.RecordBatch:
        """The rows of `batch` at `places`, each with the row of `table` at that place of `rows`, -1 for none."""
        kept = batch
        if failed or not np.array_equal(places, np.arange(batch.num_rows)):
            kept = batch.take(pa.array(places, mask=np.isin(places, list(failed))))
        types = self._output.types
        arrays = [as_kind(column, kind) for column, kind in zip(kept.columns, types, strict=False)]
        indices = pa.array(rows, mask=rows < 0)
        arrays += [column.take(indices).combine_chunks() for column in table.columns]
        if self._columns.error_name is not None:
            arrays.append(self._failures.column(batch, failed, places))
        return pa.RecordBatch.from_arrays(arrays, schema=self._output)


def _arrow_schema(columns: OutputColumns) -> pa.Schema:
    return pa.schema([(field.name, values_of(field.dataType).arrow) for field in columns.task_schema().fields])


class _Matches:
    """Which rows come out of a batch, in its order, and with which rows of the table.

    `codes`: for each row of the batch the number of its key; -1: it has none. `failed`: places in the batch, which come
    out once if `keeps_failed`. `is_left`: so does a row without a match.
    """

    def __init__(
        self, answer: LookupAnswer, codes: Any, keys: int, failed: Iterable[int], is_left: bool, keeps_failed: bool
    ) -> None:
        numbers = np.asarray(answer.numbers, np.int64)
        self._rows = None if answer.rows is None else np.asarray(answer.rows, np.int64)
        counts = np.append(np.bincount(numbers, minlength=keys), 0)  # the last one: of rows without a key
        starts = np.cumsum(counts) - counts
        self._counts, self._starts = counts[codes], starts[codes]
        places = list(failed)
        self._counts[places] = 0
        self._outcomes = np.maximum(self._counts, 1) if is_left else self._counts.copy()
        self._outcomes[places] = int(keeps_failed)

    def in_pieces(self, most: int) -> Iterator[tuple[Any, Any]]:
        """For up to `most` rows at a time, their places in the batch, and those in the table, -1 for none."""
        ends = np.cumsum(self._outcomes)
        total = int(ends[-1]) if len(ends) else 0
        for begin in range(0, total, most):
            outcomes = np.arange(begin, min(begin + most, total))
            places = np.searchsorted(ends, outcomes, side="right")
            within = outcomes - (ends - self._outcomes)[places]
            found = self._counts[places] > 0
            rows = np.where(found, self._starts[places] + within, -1)
            if self._rows is not None and len(self._rows):
                rows = np.where(found, self._rows[rows], -1)
            yield places, rows


def distinct_rows(columns: Sequence[Any]) -> tuple[Any, list[Any]]:
    """For each row of these columns the number of the distinct row that it is, -1 if it has a null; and those rows."""
    codes, values = _distinct(columns[0])
    if len(columns) == 1:
        return codes, [values]
    parts = [(codes, values), *map(_distinct, columns[1:])]
    has_null = np.zeros(len(codes), bool)
    codes = np.zeros(len(codes), np.int64)
    for part, of_part in parts:
        has_null |= part < 0
        _, codes = np.unique(codes * (len(of_part) + 1) + part, return_inverse=True)
    codes[has_null] = -1
    _, firsts, again = np.unique(codes, return_index=True, return_inverse=True)
    has_nulls = int(has_null.any())
    firsts = firsts[has_nulls:]
    return again - has_nulls, [of_part.take(pa.array(part[firsts])) for part, of_part in parts]


def _distinct(column: Any) -> tuple[Any, Any]:
    """The codes and the values of one column."""
    if pa.types.is_integer(column.type) and not column.null_count:
        values, codes = np.unique(column.to_numpy(zero_copy_only=False), return_inverse=True)
        return codes, pa.array(values)  # in order, in which the database finds them faster
    encoded = column.dictionary_encode()
    return encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary


def _key_values(values: Any, field: T.StructField, errors: dict[int, Exception]) -> list[Any]:
    """The values of a key column in Python; None for one that Python does not have, whose error is added by place."""
    if pa.types.is_timestamp(values.type) and values.type.tz is not None:
        values = values.cast(pa.timestamp("us", "UTC"))
    read = reader_of(values.type, field.dataType)
    try:
        return read(values)
    except (OverflowError, ValueError):
        pass
    found: list[Any] = []
    for place in range(len(values)):
        try:
            found += read(values.slice(place, 1))
        except (OverflowError, ValueError):
            found.append(None)
            errors[place] = LookupTableError(
                f"the key column {field.name!r} is {field.dataType.simpleString()}, and a value of it is not of the "
                "years 1 to 9999 in UTC."
            )
    return found


class _AsArrow:
    """The table's columns in Arrow, whose values have passed Spark's checks."""

    def __init__(self, added: T.StructType, rules: TypeRules) -> None:
        values = [values_of(field.dataType) for field in added.fields]
        self._schema = pa.schema([(field.name, each.arrow) for field, each in zip(added.fields, values, strict=True)])
        self._plain = [_PLAIN.get(type(field.dataType)) for field in added.fields]
        self._checks = [each.check(rules, nullable=True) for each in values]
        self._builders = [each.builder() for each in values]

    def pack(self, columns: Columns) -> tuple[pa.Table, Mapping[int, Exception]]:
        errors: dict[int, Exception] = {}
        parts = zip(self._schema.names, self._plain, self._checks, self._builders, columns, strict=True)
        arrays = [self._array(*part, errors) for part in parts]
        return pa.Table.from_arrays(arrays, schema=self._schema), errors

    def join(self, pieces: Sequence[pa.Table]) -> pa.Table:
        # In one array for each column, if it has less than 2 GiB.
        return pa.concat_tables(pieces).combine_chunks()

    def _array(
        self,
        name: str,
        plain: type | None,
        check: Check,
        build: Any,
        values: Sequence[Any],
        errors: dict[int, Exception],
    ) -> Any:
        if plain is not None and set(map(type, values)) <= {plain, type(None)}:
            with suppress(pa.ArrowException, ValueError, OverflowError):
                return build(values)
        checked = []
        for row, value in enumerate(values):
            try:
                checked.append(check(value))
            except Misfit as misfit:
                checked.append(None)
                errors.setdefault(row, ResultSchemaError(f"{name}{misfit.path}", misfit.reason))
        return build(checked)


class _FailedRows:
    """The error column."""

    def __init__(self, columns: OutputColumns) -> None:
        self._kind = values_of(columns.error_type()).arrow

    def column(self, batch: pa.RecordBatch, failed: Mapping[int, CapturedError], places: Any) -> Any:
        """Its values for the rows of `batch` at `places`."""
        if not failed:
            return pa.nulls(len(places), self._kind)
        errors = error_values(batch.take(pa.array(list(failed), pa.int64())), list(failed.values()), self._kind)
        of_place = {place: number for number, place in enumerate(failed)}
        return errors.take(pa.array([of_place.get(place) for place in places.tolist()], pa.int64()))


def _row(batch: pa.RecordBatch, place: int, schema: T.StructType) -> Any:
    """The row at that place."""
    ((read,),) = read_rows(schema, [batch.slice(place, 1)])
    return read.value if type(read) is UnreadableValue else read


class _BatchWriter(ResultWriter):
    """Joins batches. A captured error stands for all rows of its batch."""

    def __init__(self, columns: OutputColumns) -> None:
        super().__init__(columns, max_rows=1)
        self._output = _arrow_schema(columns)
        self._failures = _FailedRows(columns)

    def _bounded(self, results: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        batches = [self._of_error(each) if type(each) is CapturedError else each for each in results]
        batch = pa.concat_batches(batches)
        self._row_bytes = batch.nbytes / len(results)
        self.results_in_batch = len(results)
        yield batch

    def _of_error(self, captured: CapturedError) -> pa.RecordBatch:
        batch: pa.RecordBatch = captured.input.batch  # type: ignore[attr-defined]
        number = batch.num_rows
        failed = dict.fromkeys(range(number), captured)
        arrays = [pa.nulls(number, kind) for kind in self._output.types[:-1]]
        arrays.append(self._failures.column(batch, failed, np.arange(number)))
        return pa.RecordBatch.from_arrays(arrays, schema=self._output)


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

    def writer(self, source: InputRows | None) -> ResultWriter:
        return _BatchWriter(self.columns)


def _as_it_is(result: Any) -> Any:
    return result
