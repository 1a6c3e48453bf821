"""Rows of a DataFrame on the way to Python, and names of columns that Arrow and `mapInArrow` can carry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql import types as T

from dispatcher.errors import InvalidValueError
from pipeline.spark.async_io.arrow_values import Reader
from pipeline.spark.async_io.spark_types import inner_types, is_supported, reader_of
from pipeline.spark.async_io.structs import row_maker
from pipeline.spark.errors import UnsupportedTypeError


def require_supported(schema: T.StructType, what: str) -> None:
    """Check every column of `schema`, which messages call `what`.

    Raises:
        UnsupportedTypeError: for the first column whose values cannot be carried. ValueError: there are no columns.
    """
    if not schema.fields:
        raise InvalidValueError(f"{what} has no columns; give it at least one")
    for field in schema.fields:
        if not is_supported(field.dataType):
            raise UnsupportedTypeError(what, field.name, field.dataType.simpleString())


def with_plain_names(df: DataFrame) -> DataFrame:
    """`df` with names that `mapInArrow` can resolve; unchanged if its own can be resolved.

    `mapInArrow` resolves each name as in a query: a dot leads into a struct, and a repeated name is ambiguous.
    """
    names = df.columns
    is_plain = len({name.lower() for name in names}) == len(names) and not any(
        "." in name or "`" in name for name in names
    )
    return df if is_plain else df.toDF(*(f"column{place}" for place in range(len(names))))


def require_distinct(struct: T.StructType, path: str = "") -> None:
    """Raise ValueError for a repeated name in `struct` or a struct within it: Spark cannot read those from Arrow."""
    for name, count in Counter(struct.names).items():
        if count > 1:
            raise InvalidValueError(
                f"the output would have {count} columns {path}{name}; rename them, so that it has one"
            )
    for field in struct.fields:
        for inner in _structs(field.dataType):
            require_distinct(inner, f"{path}{field.name}.")


def _structs(data_type: T.DataType) -> Iterator[T.StructType]:
    if isinstance(data_type, T.StructType):
        yield data_type
    else:
        for inner in inner_types(data_type):
            yield from _structs(inner)


def read_rows(
    schema: T.StructType, batches: Iterable[pa.RecordBatch], slice_rows: int = 500, slice_bytes: int = 1 << 20
) -> Iterator[list[Row]]:
    """The rows of batches of `schema`, in lists of at most `slice_rows`, fewer if rows are large; no list is empty.

    Each slice is converted on demand, so that a whole batch never occupies memory or the GIL at once.
    """
    readers: list[Reader] = []
    make_row = row_maker(schema.names)
    for batch in batches:
        readers = readers or [
            reader_of(column.type, field.dataType) for column, field in zip(batch.columns, schema.fields, strict=True)
        ]
        for part in slices(batch, slice_rows, slice_bytes):
            columns = [reader(part.column(i)) for i, reader in enumerate(readers)]
            yield list(map(make_row, zip(*columns, strict=True)))


def slices(batch: pa.RecordBatch, most_rows: int, most_bytes: int = 1 << 20) -> Iterator[pa.RecordBatch]:
    """A batch in parts of at most `most_rows`, fewer if rows are large; none is empty."""
    row_bytes = max(1.0, batch.nbytes / max(1, batch.num_rows))
    size = max(1, min(most_rows, int(most_bytes / row_bytes)))
    for start in range(0, batch.num_rows, size):
        yield batch.slice(start, size)
