"""Results as Arrow batches: the layout of output rows, and the size of batches.

The output has the columns of the user's schema, then the error column if errors are captured, then the metrics column
if there are metrics. A row has values in exactly one of these parts, with one exception: if the first columns repeat
the input row, a row with an error has them as well.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

from pipeline.spark.async_io.sizes import size_of_rows
from pipeline.spark.async_io.spark_types import row_check, values_of
from pipeline.spark.async_io.structs import Check
from pipeline.spark.call_metrics import METRICS_COLUMN, METRICS_TYPE
from pipeline.streaming.calls.room import approximate_bytes
from pipeline.streaming.errors import CapturedError
from pipeline.streaming.pace import ReaderPace


@dataclass(frozen=True)
class OutputColumns:
    """The columns of a task's output. Pickles.

    `input_schema`: of the input rows, which the error column contains. `error_name`: the error column, None if errors
    are not captured. `keeps_input`: whether `schema` begins with the columns of the input rows. `has_metrics`: whether
    the output ends with the column METRICS_COLUMN.
    """

    schema: T.StructType
    input_schema: T.StructType
    error_name: str | None = None
    keeps_input: bool = False
    has_metrics: bool = False

    @property
    def kept(self) -> int:
        """The number of columns that repeat the input row, before the columns of the result."""
        return len(self.input_schema.fields) if self.keeps_input else 0

    def task_schema(self) -> T.StructType:
        """The schema of a task's output. If errors are captured, the columns of the result are nullable."""
        captures = self.error_name is not None
        fields = [
            T.StructField(
                field.name, field.dataType, field.nullable or (captures and place >= self.kept), field.metadata
            )
            for place, field in enumerate(self.schema.fields)
        ]
        if self.error_name is not None:
            fields.append(T.StructField(self.error_name, self.error_type()))
        if self.has_metrics:
            fields.append(T.StructField(METRICS_COLUMN, METRICS_TYPE))
        return T.StructType(fields)

    def error_type(self) -> T.StructType:
        """The error column: the row whose call failed, and the fields of a CapturedError."""
        error = T.StructType().add("input", self.input_schema).add("error_class", "string").add("message", "string")
        return error.add("attempts", "integer").add("time_spent_ms", "double")


class ResultWriter:
    """Makes batches of the results of one task, which are checked tuples and CapturedErrors.

    One thread at a time. `time_zone` applies to naive datetimes. A batch has at most `max_rows` and about `max_bytes`.
    Without a `pace` it is emitted after `max_wait_s`, which is checked when chunks arrive and at the end of the input.
    """

    def __init__(
        self,
        columns: OutputColumns,
        time_zone: dt.tzinfo,
        *,
        max_rows: int = 1000,
        max_bytes: int = 4 << 20,
        max_wait_s: float = 0.2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_rows, self._max_bytes, self._max_wait_s = max_rows, max_bytes, max_wait_s
        self._clock = clock
        schema = columns.task_schema()
        self._arrow_schema = pa.schema([(field.name, values_of(field.dataType).arrow) for field in schema.fields])
        values = [values_of(field.dataType) for field in columns.schema.fields]
        self._builders = [each.builder() for each in values]
        self._size_of_rows = size_of_rows(columns.schema)
        self._captures = columns.error_name is not None
        self._error_check: Check = row_check(columns.error_type(), time_zone)
        self._error_builder = values_of(columns.error_type()).builder()
        self._metrics_builder = values_of(METRICS_TYPE).builder()
        self._no_values = tuple(
            None if field.nullable else each.filler for field, each in zip(schema.fields, values, strict=False)
        )
        self._kept = columns.kept
        nothing = [pa.nulls(0, field.type) for field in self._arrow_schema]
        self._empty = pa.RecordBatch.from_arrays(nothing, schema=self._arrow_schema)
        self._row_bytes = self._max_bytes / 100  # an estimate until the first batch
        self.results_in_batch = 0
        """How many results the batch that came last has."""

    def batches(self, chunks: Iterable[Sequence[Any]], pace: ReaderPace | None = None) -> Iterator[pa.RecordBatch]:
        """The results of all `chunks`, in order; small chunks are joined into one batch.

        `pace` decides when a batch is emitted, and how many rows it has; it is asked at each chunk, an empty one, too.
        """
        waiting: list[Any] = []
        since = 0.0
        for chunk in chunks:
            now = self._clock()
            if chunk:
                if not waiting:
                    since = now
                waiting.extend(chunk)
            while size := self._rows_due(len(waiting), now - since, pace):
                yield from self._bounded(waiting[:size])
                del waiting[:size]
                since = now
            if pace is not None and pace.is_probe_due():
                self.results_in_batch = 0
                yield self._empty
        while waiting:
            size = self._batch_rows()
            yield from self._bounded(waiting[:size])
            del waiting[:size]

    def metrics_batch(self, metrics: Sequence[Sequence[int | None]]) -> pa.RecordBatch:
        """Rows with metrics only: values of METRICS_TYPE."""
        columns = zip(self._builders, self._no_values, strict=True)
        arrays = [builder([value] * len(metrics)) for builder, value in columns]
        if self._captures:
            arrays.append(self._error_builder([None] * len(metrics)))
        arrays.append(self._metrics_builder(metrics))
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow_schema)

    def _rows_due(self, waiting: int, waited_s: float, pace: ReaderPace | None) -> int:
        most = self._batch_rows()
        if pace is not None:
            return pace.rows_due(waiting, waited_s, most)
        return min(waiting, most) if waiting >= most or waited_s >= self._max_wait_s else 0

    def _batch_rows(self) -> int:
        return max(1, min(self._max_rows, int(self._max_bytes / max(1.0, self._row_bytes))))

    def _bounded(self, results: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        """One batch, or several if these rows are larger than the earlier rows suggested.

        Arrow's arrays are made of few enough rows: of 2 GiB of strings it would make several.
        """
        parts = [results]
        while parts:
            part = parts.pop()
            if len(part) > 1 and self._bytes_of(part) > 2 * self._max_bytes:
                half = len(part) // 2
                parts += [part[half:], part[:half]]
                continue
            batch = self._batch(part)
            self._row_bytes = batch.nbytes / batch.num_rows
            self.results_in_batch = batch.num_rows
            yield batch

    def _bytes_of(self, results: Sequence[Any]) -> int:
        """About how many bytes the results take in Arrow."""
        if not self._captures:
            return self._size_of_rows(results)
        errors = [result for result in results if type(result) is CapturedError]
        rows = [result for result in results if type(result) is not CapturedError] if errors else results
        return self._size_of_rows(rows) + sum(approximate_bytes(error.input) for error in errors)

    def _batch(self, results: Sequence[Any]) -> pa.RecordBatch:
        errors: list[Any] | None = None
        if self._captures and any(type(result) is CapturedError for result in results):
            errors = [self._error_row(result) if type(result) is CapturedError else None for result in results]
            results = [
                result if error is None else self._values_beside(error)
                for result, error in zip(results, errors, strict=True)
            ]
        columns = zip(*results, strict=True)
        arrays = [builder(column) for builder, column in zip(self._builders, columns, strict=True)]
        for place in range(len(arrays), len(self._arrow_schema)):
            is_error = errors is not None and place == len(self._builders)
            kind = self._arrow_schema.field(place).type
            arrays.append(self._error_builder(errors or ()) if is_error else pa.nulls(len(results), kind))
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow_schema)

    def _values_beside(self, error: Sequence[Any]) -> tuple[Any, ...]:
        """The user's columns of a row with this value of the error column."""
        return (*error[0][: self._kept], *self._no_values[self._kept :])

    def _error_row(self, captured: CapturedError) -> Any:
        return self._error_check(
            (
                captured.input,
                captured.error_class,
                # The column cannot take a lone surrogate in the message.
                captured.message.encode(errors="backslashreplace").decode(),
                captured.attempts,
                captured.time_spent_ms,
            )
        )
