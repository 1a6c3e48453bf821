"""Rows of many bytes: how batches of them end, and which are too large for Spark. No Spark runs."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from pipeline.streaming import CapturedError

from .task_rows import (
    InputRows,
    OutputColumns,
    ResultSchemaError,
    ResultWriter,
    all_read,
    limited,
    row_check,
    size_of_rows,
)

TEXT = T.StructType().add("text", "string")
NESTED = T.StructType().add("found", T.ArrayType(T.MapType(T.StringType(), T.StructType().add("body", "binary"))))


def batches_of(
    columns: OutputColumns, rows: list[Any], max_bytes: int = 4 << 20, source: InputRows | None = None
) -> list[pa.RecordBatch]:
    return list(ResultWriter(columns, source, max_bytes=max_bytes).batches([rows]))


def test_large_answers_that_arrive_together_leave_in_batches_that_arrow_can_make() -> None:
    """A batch ended by its rows alone: 99 answers of 30 MB failed the task with "Cannot convert ChunkedArray"."""
    text = "x" * 30_000_000
    writer = ResultWriter(OutputColumns(TEXT, TEXT))

    first = next(writer.batches([[(text,)] * 99]))

    assert first.num_rows == 1


def test_batch_ends_by_the_bytes_of_nested_values() -> None:
    row = ([[("key", (b"x" * 1000,))]],)

    batches = batches_of(OutputColumns(NESTED, TEXT), [row] * 40, max_bytes=5000)

    assert max(batch.nbytes for batch in batches) < 12_000
    assert sum(batch.num_rows for batch in batches) == 40


def test_large_row_among_small_ones_does_not_make_batches_of_one_row() -> None:
    rows = [("small",)] * 50 + [("x" * 5000,)] + [("small",)] * 49

    batches = batches_of(OutputColumns(TEXT, TEXT), rows, max_bytes=2000)

    assert [value for batch in batches for value in batch.column(0).to_pylist()] == [text for (text,) in rows]
    assert len(batches) < 15


def test_batch_of_captured_errors_ends_by_the_bytes_of_their_input() -> None:
    columns = OutputColumns(TEXT, TEXT, error_name="error")
    source = all_read(TEXT, [pa.RecordBatch.from_pydict({"text": ["x" * 1000]})])
    captured = CapturedError(("x" * 1000,), "ValueError", "bad", 1, 0.5)

    batches = batches_of(columns, [(0, captured)] * 40, max_bytes=5000, source=source)

    assert max(batch.num_rows for batch in batches) <= 10
    assert sum(batch.num_rows for batch in batches) == 40


@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        (T.BinaryType(), bytes(2**31)),
        (T.ArrayType(T.BinaryType()), [bytes(2**30)] * 2),
        (T.MapType(T.StringType(), T.BinaryType()), {"a": bytes(2**30), "b": bytes(2**30)}),
        (T.StructType().add("a", "binary").add("b", "binary"), (bytes(2**30), bytes(2**30))),
    ],
    ids=["binary", "array", "map", "struct"],
)
def test_row_of_two_gib_is_an_error_of_its_call(data_type: T.DataType, value: Any) -> None:
    """It failed the task, as the batch that it was in."""
    schema = T.StructType().add("id", "long").add("body", data_type)
    check = limited(row_check(schema, dt.UTC), schema)

    with pytest.raises(ResultSchemaError, match=r"column body .* it takes 2,147,483,\d+ bytes .* Return several rows"):
        check((7, value))


def test_bytes_of_a_row_are_those_of_its_text_in_utf8() -> None:
    schema = T.StructType().add("name", "string").add("text", "string")
    check = limited(row_check(schema, dt.UTC), schema, most_bytes=100)

    assert check(("a" * 50, "b" * 50)) == ("a" * 50, "b" * 50)
    assert check((None, "ä" * 46)) == (None, "ä" * 46)
    with pytest.raises(ResultSchemaError, match="it takes 102 bytes of the row's 110"):
        check((None, "ä" * 51))


def test_size_of_rows_counts_what_each_type_holds() -> None:
    schema = (
        T.StructType()
        .add("id", "long")
        .add("text", "string")
        .add("numbers", T.ArrayType(T.LongType()))
        .add("entries", T.MapType(T.StringType(), T.LongType()))
        .add("point", T.StructType().add("x", "double").add("name", "string"))
        .add("variant", T.VariantType())
    )
    rows = [(1, "four", [1, 2, 3], [("key", 1)], (0.5, "ab"), (b"12", b"3")), (2, None, None, None, None, None)]

    assert size_of_rows(schema)(rows) == 2 * 6 * 8 + 4 + 3 * 8 + (3 + 8) + (8 + 2) + 3
