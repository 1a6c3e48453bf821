"""Rows of many bytes: how batches of them end, and which are too large for Spark. No Spark runs."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from pipeline.streaming import CapturedError

from .task_rows import (
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


WIDE = ("x" * 1000,)
NESTED_ROW = ([[("key", (b"x" * 1000,))]],)
ERROR = CapturedError(WIDE, "ValueError", "bad", 1, 0.5)
OF_WIDE = OutputColumns(T.StructType().add("id", "long"), TEXT, keeps_input=True)


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        (OutputColumns(TEXT, TEXT), WIDE),
        (OutputColumns(NESTED, TEXT), NESTED_ROW),
        (OutputColumns(TEXT, TEXT, error_name="error"), (0, ERROR)),
        (OF_WIDE, (0, (1,))),
    ],
    ids=["texts", "nested values", "captured errors with their input", "kept input"],
)
def test_a_batch_ends_by_the_bytes_of_its_rows(columns: OutputColumns, row: Any) -> None:
    source = all_read(TEXT, [pa.RecordBatch.from_pydict({"text": list(WIDE)})]) if row[0] == 0 else None

    batches = list(ResultWriter(columns, source, max_bytes=5000).batches([[row] * 40]))

    assert sum(batch.num_rows for batch in batches) == 40
    assert max(batch.num_rows for batch in batches) <= 10


def test_large_answers_that_arrive_together_leave_in_batches_that_arrow_can_make() -> None:
    """A batch ended by its rows alone: 99 answers of 30 MB failed the task with "Cannot convert ChunkedArray"."""
    text = "x" * 30_000_000
    writer = ResultWriter(OutputColumns(TEXT, TEXT))

    first = next(writer.batches([[(text,)] * 99]))

    assert first.num_rows == 1


def test_large_row_among_small_ones_does_not_make_batches_of_one_row() -> None:
    rows = [("small",)] * 50 + [("x" * 5000,)] + [("small",)] * 49

    batches = list(ResultWriter(OutputColumns(TEXT, TEXT), max_bytes=2000).batches([rows]))

    assert [value for batch in batches for value in batch.column(0).to_pylist()] == [text for (text,) in rows]
    assert len(batches) < 15


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
