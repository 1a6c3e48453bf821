"""Results as Arrow batches: the layout of output rows, and the size of batches.

The output has the columns of the input row if it keeps them, the columns of the user's schema, then the error column if
errors are captured, then the metrics column if there are metrics. A row has the input's columns, and values in exactly
one of the other parts. Columns of the input, also those in the error column, go from Arrow to Arrow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from pipeline.spark.async_io.arrow_values import as_kind
from pipeline.spark.async_io.rows import InputRows
from pipeline.spark.async_io.sizes import size_of_rows
from pipeline.spark.async_io.spark_types import values_of
from pipeline.spark.observed_calls import METRICS_COLUMN, METRICS_TYPE
from pipeline.streaming.errors import CapturedError
from pipeline.streaming.pace import ReaderPace


@dataclass(frozen=True)
class OutputColumns:
    """The columns of a task's output. Pickles.

    `results`: the columns of the results. `input_schema`: of the input rows, which the error column contains.
    `error_name`: the error column, None if errors are not captured. `keeps_input`: whether the output begins with the
    columns of the input rows. `has_metrics`: whether it ends with the column METRICS_COLUMN.
    """

    results: T.StructType
    input_schema: T.StructType
    error_name: str | None = None
    keeps_input: bool = False
    has_metrics: bool = False

    @property
    def takes_input(self) -> bool:
        """Whether the output has columns of the input rows."""
        return self.keeps_input or self.error_name is not None

    @property
    def kept(self) -> list[T.StructField]:
        """The columns that repeat the input row."""
        return self.input_schema.fields if self.keeps_input else []

    def task_schema(self) -> T.StructType:
        """The schema of a task's output. If errors are captured, the columns of the result are nullable."""
        captures = self.error_name is not None
        fields = [
            *self.kept,
            *(
                T.StructField(field.name, field.dataType, field.nullable or captures, field.metadata)
                for field in self.results.fields
            ),
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

    If `columns` takes columns of the input, each result comes in a pair, after the number of its row.

    One thread at a time. A batch has at most `max_rows` and about `max_bytes`.
    Without a `pace` it is emitted after `max_wait_s`, which is checked when chunks arrive and at the end of the input.
    """

    def __init__(
        self,
        columns: OutputColumns,
        source: InputRows | None = None,
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
        self._columns = columns
        self._input = source
        self._builders = [values_of(field.dataType).builder() for field in columns.results.fields]
        self._size_of_rows = size_of_rows(columns.results)
        first = len(columns.kept)
        self._no_values = tuple(map(_no_value, schema.fields[first : first + len(self._builders)]))
        nothing = [pa.nulls(0, field.type) for field in self._arrow_schema]
        self._empty = pa.RecordBatch.from_arrays(nothing, schema=self._arrow_schema)
        self._row_bytes = self._max_bytes / 100  # an estimate until the first batch
        self.results_in_batch: int = 0
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
        *fields, _ = self._columns.task_schema().fields
        arrays = [values_of(field.dataType).builder()([_no_value(field)] * len(metrics)) for field in fields]
        arrays.append(values_of(METRICS_TYPE).builder()(metrics))
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
        numbers: Any = ()
        if self._input is not None:
            numbers, results = zip(*results, strict=True)
            numbers = np.array(numbers, np.int64)
        parts = [(numbers, results)]
        while parts:
            numbers, results = parts.pop()
            if len(results) > 1 and self._bytes_of(numbers, results) > 2 * self._max_bytes:
                half = len(results) // 2
                parts += [(numbers[half:], results[half:]), (numbers[:half], results[:half])]
                continue
            batch = self._batch(numbers, results)
            if self._input is not None:
                self._input.end(numbers)
            self._row_bytes = batch.nbytes / batch.num_rows
            self.results_in_batch = batch.num_rows
            yield batch

    def _bytes_of(self, numbers: Any, results: Sequence[Any]) -> float:
        """About how many bytes the results take in Arrow, with the columns of the input that their rows have."""
        failed = self._failed(results)
        if failed:
            results = [result for result in results if type(result) is not CapturedError]
        if not self._columns.keeps_input:
            numbers = [numbers[at] for at in failed]
        return self._size_of_rows(results) + (0.0 if self._input is None else self._input.bytes_of(numbers))

    def _failed(self, results: Sequence[Any]) -> list[int]:
        """The places of captured errors."""
        if self._columns.error_name is None or CapturedError not in map(type, results):
            return []
        return [at for at, result in enumerate(results) if type(result) is CapturedError]

    def _batch(self, numbers: Any, results: Sequence[Any]) -> pa.RecordBatch:
        source = self._input
        failed = self._failed(results)
        captured = [results[at] for at in failed]
        if failed:
            results = [self._no_values if type(result) is CapturedError else result for result in results]
        kinds = self._arrow_schema.types
        arrays = []
        if source is not None and self._columns.keeps_input:
            arrays = [as_kind(array, kind) for array, kind in zip(source.take(numbers).columns, kinds, strict=False)]
        values = zip(*results, strict=True)
        arrays += [builder(column) for builder, column in zip(self._builders, values, strict=True)]
        if failed:
            assert source is not None  # errors are captured with their rows
            inputs = source.take([numbers[at] for at in failed])
            order: list[int | None] = [None] * len(results)
            for number, at in enumerate(failed):
                order[at] = number
            arrays.append(error_values(inputs, captured, kinds[len(arrays)]).take(pa.array(order, pa.int64())))
        arrays += [pa.nulls(len(results), kind) for kind in kinds[len(arrays) :]]
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow_schema)


def error_values(inputs: pa.RecordBatch, captured: Sequence[CapturedError], kind: pa.DataType) -> Any:
    """The values of the error column, which are of the type `kind`, for these rows of the input, which have failed."""
    input_type = kind.field("input").type
    arrays = [as_kind(array, field.type) for array, field in zip(inputs.columns, input_type, strict=True)]
    # The column cannot take a lone surrogate in the message.
    messages = [error.message.encode(errors="backslashreplace").decode() for error in captured]
    columns = [
        pa.StructArray.from_arrays(arrays, fields=list(input_type)),
        pa.array([error.error_class for error in captured], pa.string()),
        pa.array(messages, pa.string()),
        pa.array([error.attempts for error in captured], pa.int32()),
        pa.array([error.time_spent_ms for error in captured], pa.float64()),
    ]
    return pa.StructArray.from_arrays(columns, fields=list(kind))


def _no_value(field: T.StructField) -> Any:
    """What stands in a column of a row that has its values in others."""
    return None if field.nullable else values_of(field.dataType).filler
