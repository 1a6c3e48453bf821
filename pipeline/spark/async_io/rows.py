"""Rows of a DataFrame on the way to Python, or past it to the output, and which types and names can be carried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, repeat
from operator import add
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import types as T

from dispatcher.errors import InvalidValueError
from pipeline.spark.async_io.arrow_values import Reader
from pipeline.spark.async_io.spark_types import inner_types, is_supported, reader_of
from pipeline.spark.async_io.structs import row_maker
from pipeline.spark.errors import InputValueError, UnsupportedTypeError
from pipeline.streaming.elements import UnreadableValue
from pipeline.streaming.errors import quoted

_MOST_PER_ROW: Final = 8
"""Rows of the input copied for each row of the output, at most."""


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


def require_hashable_keys(schema: T.StructType, what: str) -> None:
    """Raise UnsupportedTypeError for the first column of `schema` with a map whose keys no dict takes, as arrays."""
    for field in schema.fields:
        if not _has_hashable_keys(field.dataType):
            raise UnsupportedTypeError(what, field.name, field.dataType.simpleString())


def _has_hashable_keys(data_type: T.DataType) -> bool:
    if isinstance(data_type, T.MapType) and not is_key(data_type.keyType):
        return False
    return all(map(_has_hashable_keys, inner_types(data_type)))


def is_key(data_type: T.DataType) -> bool:
    """Whether values of the type compare and hash in Python as they do in Spark; of a user-defined type, its class."""
    if isinstance(data_type, T.UserDefinedType):
        return True
    is_unhashable = isinstance(data_type, T.ArrayType | T.MapType | T.VariantType)
    return not is_unhashable and all(map(is_key, inner_types(data_type)))


def name_form(spark: SparkSession) -> Callable[[str], str]:
    """What makes two names equal that Spark holds to be the same: a function, by `spark.sql.caseSensitive`."""
    return str if str(spark.conf.get("spark.sql.caseSensitive")).lower() == "true" else str.lower


def place_of(name: str, names: Sequence[str], form: Callable[[str], str]) -> int | None:
    """The place of the only one of `names` that `name` means; one of the same spelling comes first. None: no such."""
    if name in names:
        return names.index(name)
    found = [place for place, other in enumerate(names) if form(other) == form(name)]
    return found[0] if len(found) == 1 else None


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


class Piece:
    """Some rows of the input as Arrow has them, apart from the batch that they came in.

    Each row in flight refers to its piece, so that one slow row keeps this much in memory, and not a whole batch.
    """

    __slots__ = ("batch", "row_bytes")

    def __init__(self, part: pa.RecordBatch) -> None:
        self.batch = pa.concat_batches([part])  # copies it
        self.row_bytes = self.batch.nbytes / max(1, self.batch.num_rows)


Placed: TypeAlias = tuple[Any, Piece, int]
"""A row, or an UnreadableValue in its place, then the piece that has it, and its place there."""


def read_rows(
    schema: T.StructType, batches: Iterable[pa.RecordBatch], slice_rows: int = 500, slice_bytes: int = 1 << 20
) -> Iterator[list[Row | UnreadableValue]]:
    """The rows of batches of `schema`, in lists of at most `slice_rows`, fewer if rows are large; no list is empty.

    Each slice is converted on demand, so that a whole batch never occupies memory or the GIL at once. A row with a
    value that Python cannot hold is an UnreadableValue.
    """
    for _, rows in _read(schema, batches, slice_rows, slice_bytes):
        yield rows


def read_placed(
    schema: T.StructType, batches: Iterable[pa.RecordBatch], slice_rows: int = 500, slice_bytes: int = 1 << 18
) -> Iterator[list[Placed]]:
    """As `read_rows`, but each row with its place in a piece of the input."""
    for part, rows in _read(schema, batches, slice_rows, slice_bytes):
        yield list(zip(rows, repeat(Piece(part)), range(len(rows)), strict=False))


def _read(
    schema: T.StructType, batches: Iterable[pa.RecordBatch], slice_rows: int, slice_bytes: int
) -> Iterator[tuple[pa.RecordBatch, list[Row | UnreadableValue]]]:
    readers: list[Reader] = []
    make_row = row_maker(schema.names)
    what = [f"the column {name}" for name in schema.names]
    for batch in batches:
        readers = readers or [
            reader_of(column.type, field.dataType) for column, field in zip(batch.columns, schema.fields, strict=True)
        ]
        for part in slices(batch, slice_rows, slice_bytes):
            yield part, read_values(part.columns, readers, what, make_row)


def read_values(
    columns: Sequence[Any], readers: Sequence[Reader], what: Sequence[str], make_row: Callable[[tuple[Any, ...]], Any]
) -> list[Any]:
    """A row of each place of Arrow arrays, or an UnreadableValue. `what`: the columns in messages."""
    unreadable: dict[int, InputValueError] = {}
    values = []
    for array, reader, name in zip(columns, readers, what, strict=True):
        try:
            values.append(reader(array))
        except Exception:
            values.append(_read_each(array, reader, name, unreadable))
    rows = list(map(make_row, zip(*values, strict=True)))
    for place, error in unreadable.items():
        rows[place] = UnreadableValue(rows[place], error)
    return rows


def _read_each(array: Any, reader: Reader, what: str, unreadable: dict[int, InputValueError]) -> list[Any]:
    """The values of an array with some that cannot be read. Notes an error for the places of those."""
    values = []
    for place in range(len(array)):
        one = array.slice(place, 1)
        try:
            (value,) = reader(one)
        except Exception as error:
            value = Unread(_text_of(one))
            unreadable.setdefault(place, InputValueError(f"{what} is {quoted(value)}", error))
        values.append(value)
    return values


class Unread:
    """Stands in a row for a value that Python cannot hold."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return f"<{self._text}>"


def _text_of(one: Any) -> str:
    """The only value of an array as Arrow shows it, which knows more values than Python."""
    try:
        return str(one.cast(pa.string())[0].as_py())
    except (pa.ArrowException, ValueError):  # a nested value, or text that is no UTF-8
        return " ".join(one.to_string(skip_new_lines=True).split())


def taken(pieces: Sequence[Piece], places: Sequence[int]) -> pa.RecordBatch:
    """The rows at these places of these pieces, in this order."""
    batches = {piece: piece.batch for piece in dict.fromkeys(pieces)}
    if sum(batch.num_rows for batch in batches.values()) > _MOST_PER_ROW * len(places):
        # Few rows of many pieces, as behind slow calls: copy no more than these.
        used: dict[Piece, list[int]] = {piece: [] for piece in batches}
        copied = []
        for piece, place in zip(pieces, places, strict=True):
            copied.append(len(used[piece]))
            used[piece].append(place)
        places = copied
        batches = {piece: piece.batch.take(pa.array(places_in, pa.int64())) for piece, places_in in used.items()}
    starts = dict(zip(batches, accumulate((batch.num_rows for batch in batches.values()), initial=0), strict=False))
    whole = pa.concat_batches(batches.values()) if len(batches) > 1 else batches[pieces[0]]
    return _at(whole, list(map(add, map(starts.__getitem__, pieces), places)))


def _at(batch: pa.RecordBatch, places: list[int]) -> pa.RecordBatch:
    first, rows = places[0], len(places)
    if places == list(range(first, first + rows)):
        return batch.slice(first, rows)
    return batch.take(pa.array(places, pa.int64()))


def slices(batch: pa.RecordBatch, most_rows: int, most_bytes: int = 1 << 20) -> Iterator[pa.RecordBatch]:
    """A batch in parts of at most `most_rows`, fewer if rows are large; none is empty."""
    row_bytes = max(1.0, batch.nbytes / max(1, batch.num_rows))
    size = max(1, min(most_rows, int(most_bytes / row_bytes)))
    for start in range(0, batch.num_rows, size):
        yield batch.slice(start, size)
