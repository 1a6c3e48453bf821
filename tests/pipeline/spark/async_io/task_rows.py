"""What a task does with rows, without Spark: it reads them from Arrow, checks results, and writes them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

from pipeline.spark.async_io.results import OutputColumns, ResultWriter
from pipeline.spark.async_io.rows import InputRows, read_rows, require_supported  # noqa: F401
from pipeline.spark.async_io.sizes import limited, size_of_rows  # noqa: F401
from pipeline.spark.async_io.spark_types import (  # noqa: F401
    inner_types,
    row_check,
    time_zone,
    usual_rows_first,
    values_of,
)
from pipeline.spark.async_io.structs import row_maker  # noqa: F401
from pipeline.spark.errors import (  # noqa: F401
    InputValueError,
    ResultSchemaError,
    UnknownColumnError,
    UnsupportedTypeError,
)

EMPTY = T.StructType([])


def schema_of(*fields: tuple[str, T.DataType], nullable: bool = True) -> T.StructType:
    return T.StructType([T.StructField(name, data_type, nullable) for name, data_type in fields])


def checker(schema: T.StructType, zone: dt.tzinfo = dt.UTC) -> Any:
    """As in a task, where usual values are spared the check."""
    return usual_rows_first(row_check(schema, zone), schema)


def batch_of(schema: T.StructType, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    """The rows, checked and written as in a task."""
    check = checker(schema)
    (batch,) = ResultWriter(OutputColumns(schema, EMPTY)).batches([[check(row) for row in rows]])
    return batch


def all_read(schema: T.StructType, batches: list[pa.RecordBatch], **slices: int) -> InputRows:
    """Rows that the writer of results looks up again, all of them given to calls."""
    source = InputRows(schema, batches, **slices)
    list(source)
    return source
