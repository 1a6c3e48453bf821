"""Rows of a DataFrame on the way to Python, or past it to the output, and which types and names can be carried."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
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


class InputRows:
    """The rows of a task's input, and how Arrow has them, until what came of them was written.

    Iterating gives lists of rows with their numbers, from 0. A number is all that a row in flight carries: the garbage
    collector, which would look at each of many objects again and again, does not look at an int. One slow row keeps
    its piece of the input in memory, up to 500 rows or 256 KiB, and not the whole batch.

    The task's main thread.
    """

    def __init__(
        self, schema: T.StructType, batches: Iterable[pa.RecordBatch], slice_rows: int = 500, slice_bytes: int = 1 << 18
    ) -> None:
        self._reading = _read(schema, batches, slice_rows, slice_bytes)
        self._pieces: list[_Piece] = []  # by the numbers of their rows
        self._rows = 0  # read so far
        self._last = -1  # whose results were written last: more of them may follow
        self.without_results: deque[int] = deque()
        """Numbers of rows of which nothing comes. Any thread appends."""

    def __iter__(self) -> Iterator[list[tuple[Row | UnreadableValue, int]]]:
        for part, rows in self._reading:
            self._forget([])  # where nothing comes of any row, nothing is written
            first = self._rows
            self._rows += len(rows)
            self._pieces.append(_Piece(first, part))
            yield list(zip(rows, range(first, self._rows), strict=True))

    def take(self, numbers: Sequence[int]) -> pa.RecordBatch:
        """The rows of these numbers, in this order; there is at least one."""
        wanted = np.asarray(numbers, np.int64)
        of_piece = self._places(wanted)
        parts = [self._pieces[place].take(wanted[of_piece == place]) for place in np.unique(of_piece)]
        together = pa.concat_batches(parts) if len(parts) > 1 else parts[0]
        order = np.argsort(of_piece, kind="stable")
        if np.array_equal(order, np.arange(len(order))):
            return together
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        return together.take(pa.array(places))

    def bytes_of(self, numbers: Sequence[int]) -> float:
        """About how many bytes these rows take in Arrow."""
        row_bytes = np.array([piece.row_bytes for piece in self._pieces])
        return float(row_bytes[self._places(np.asarray(numbers, np.int64))].sum()) if len(numbers) else 0.0

    def end(self, numbers: Sequence[int]) -> None:
        """Forget these rows: their results were written, in this order. The last one's may go on."""
        written = np.concatenate(([self._last], np.asarray(numbers, np.int64)))
        ended = written[:-1][written[:-1] != written[1:]].tolist()
        self._last = int(written[-1])
        self._forget(ended)

    def _forget(self, ended: list[int]) -> None:
        """Let go the pieces of which all rows have ended: these ones, and those without results."""
        ended += [self.without_results.popleft() for _ in range(len(self.without_results))]
        of_piece = self._places(np.array([number for number in ended if number >= 0], np.int64))
        for place, count in enumerate(np.bincount(of_piece, minlength=len(self._pieces)).tolist()):
            self._pieces[place].rows_left -= count
        self._pieces = [piece for piece in self._pieces if piece.rows_left]

    def pieces(self) -> list[pa.RecordBatch]:
        """What is kept now."""
        return [piece.batch for piece in self._pieces]

    def _places(self, numbers: Any) -> Any:
        """The place in `_pieces` of each number's piece."""
        return np.searchsorted([piece.first for piece in self._pieces], numbers, side="right") - 1


class _Piece:
    """Some rows of the input, apart from the batch that they came in."""

    __slots__ = ("batch", "first", "row_bytes", "rows_left")

    def __init__(self, first: int, part: pa.RecordBatch) -> None:
        self.first = first
        self.batch = pa.concat_batches([part])  # copies it
        self.row_bytes = self.batch.nbytes / max(1, self.batch.num_rows)
        self.rows_left = self.batch.num_rows

    def take(self, numbers: Any) -> pa.RecordBatch:
        places = numbers - self.first
        if np.array_equal(places, np.arange(places[0], places[0] + len(places))):
            return self.batch.slice(int(places[0]), len(places))
        return self.batch.take(pa.array(places))


def read_rows(
    schema: T.StructType, batches: Iterable[pa.RecordBatch], slice_rows: int = 500, slice_bytes: int = 1 << 20
) -> Iterator[list[Row | UnreadableValue]]:
    """The rows of batches of `schema`, in lists of at most `slice_rows`, fewer if rows are large; no list is empty.

    Each slice is converted on demand, so that a whole batch never occupies memory or the GIL at once. A row with a
    value that Python cannot hold is an UnreadableValue.
    """
    for _, rows in _read(schema, batches, slice_rows, slice_bytes):
        yield rows


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


def slices(batch: pa.RecordBatch, most_rows: int, most_bytes: int = 1 << 20) -> Iterator[pa.RecordBatch]:
    """A batch in parts of at most `most_rows`, fewer if rows are large; none is empty."""
    row_bytes = max(1.0, batch.nbytes / max(1, batch.num_rows))
    size = max(1, min(most_rows, int(most_bytes / row_bytes)))
    for start in range(0, batch.num_rows, size):
        yield batch.slice(start, size)
