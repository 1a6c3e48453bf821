"""The event journal as Arrow batches, decoded column by column: for Spark, pandas, DuckDB and other users of Arrow.

Text columns are plain strings, because Spark does not accept dictionaries, unless a schema asks for codes. Times are
Unix ns as int64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatcher.errors import DispatcherError
from dispatcher.journal.format.columns import RowsPayload, decode_rows
from dispatcher.journal.format.frames import Header
from dispatcher.journal.format.schema import Column, ColumnType, Table

ARROW_TYPES: Final[dict[ColumnType, pa.DataType]] = {"long": pa.int64(), "string": pa.string(), "boolean": pa.bool_()}
_NUMPY_TYPES: Final = {"B": "u1", "H": "<u2", "I": "<u4", "i": "<i4", "q": "<i8"}

_BATCH_BYTES: Final = 1 << 25
"""The most bytes of payloads in a batch of several frames."""

Numbers = npt.NDArray[np.int64]
Place = TypeVar("Place")


class UnknownColumnError(DispatcherError, ValueError):
    """The journal's table lacks a requested column, or has it with another type."""


class DamagedFrameError(ValueError):
    """A frame passed its checksum but contradicts itself: this package's writer did not make it."""


def arrow_schema(table: Table, columns: Sequence[str] | None = None, *, coded: bool = False) -> pa.Schema:
    """A table's columns, by default all, in Arrow's types.

    `coded`: the `kind` columns as dictionaries, as which frames hold them. In a batch, all of them then share one array
    of indices, and a dictionary may repeat a value.

    Raises:
        UnknownColumnError: the table has no such column.
    """
    known = {column.name: column for column in table.columns}
    for name in columns or ():
        if name not in known:
            raise UnknownColumnError(
                f"the journal's table {table.name} has no column {name}; it has {', '.join(known)}"
            )

    def type_of(column: Column) -> pa.DataType:
        of_values = ARROW_TYPES[column.type]
        return pa.dictionary(pa.int32(), of_values) if coded and column.encoding == "kind" else of_values

    wanted = [known[name] for name in (known if columns is None else columns)]
    return pa.schema([pa.field(column.name, type_of(column), column.nullable) for column in wanted])


class OpenedFrame(NamedTuple, Generic[Place]):
    """A ROWS frame, split into columns but not decoded."""

    header: Header
    payload: RowsPayload
    place: Place
    """Where its reader has found it."""


def open_frame(header: Header, payload: bytes, place: Place) -> OpenedFrame[Place]:
    """
    Raises:
        DamagedFrameError: a column's length contradicts the header.
    """
    try:
        opened = decode_rows(payload)
        misfit = next(opened.misfits(header), None)
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFrameError(f"cannot be read: {type(error).__name__}: {error}") from error
    if misfit is not None:
        raise DamagedFrameError(misfit)
    return OpenedFrame(header, opened, place)


def decode_frames(frames: Sequence[OpenedFrame[Any]], table: Table, schema: pa.Schema) -> pa.RecordBatch:
    """The table's rows in these frames, with the columns of `schema`, as from `arrow_schema`.

    Raises:
        DamagedFrameError: the columns contradict each other.
    """
    rows = _Rows(frames, table)
    columns = {column.name: column for column in table.columns}
    try:
        arrays = [rows.column(columns[field.name], field.type) for field in schema]
    except (pa.ArrowInvalid, IndexError, ValueError) as error:
        raise DamagedFrameError(f"cannot be read: {error}") from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class _Rows:
    """A table's rows in consecutive frames. A column is decoded when it is requested."""

    def __init__(self, frames: Sequence[OpenedFrame[Any]], table: Table) -> None:
        self.table = table
        self.frames = frames
        self.rows = np.fromiter((table.rows_in(frame.header) for frame in frames), np.int64, len(frames))
        self.total = int(self.rows.sum())
        self.starts = np.cumsum(self.rows) - self.rows
        self._kinds: tuple[list[Any], Any] | None = None

    def column(self, column: Column, of_type: pa.DataType) -> pa.Array:
        name = self.table.stored_name(column)
        match column.encoding:
            case "kind":
                return self._of_kind(column, of_type)
            case "text":
                return self.texts(name)
            case "sparse":
                return self.sparse_texts(name)
            case "optional":
                numbers = self._numbers_or_zeros(name, np.int64)
                return pa.nulls(self.total, pa.int64()) if numbers is None else pa.array(numbers, mask=numbers == 0)
            case "flag":
                flags = np.zeros(self.total, np.bool_)
                flags[self.sparse_rows(f"{name}.row")] = True
                return pa.array(flags)
            case "position":
                return pa.array(self.per_row(self._first_seqs() - self.starts) + np.arange(self.total))
            case "offset":
                return pa.array(self.numbers(name) + self.per_row(self._first_seqs()))
            case "before":
                return pa.array(self._times() - self._elapsed(column.span))
            case "after":
                return pa.array(self._times() + self._elapsed(column.span))
            case "number" | "duration":
                return pa.array(self.numbers(name))

    def _of_kind(self, column: Column, of_type: pa.DataType) -> pa.Array:
        kinds, indices = self._merged_kinds()
        place = self.table.kind_columns.index(column.name)
        values = [kind[place] for kind in kinds]
        if pa.types.is_dictionary(of_type):
            return pa.DictionaryArray.from_arrays(indices, pa.array(values, of_type.value_type))
        if not self.total or len(set(values)) > 1:
            return pa.array(values, ARROW_TYPES[column.type]).take(indices)
        return pa.repeat(values[0], self.total)

    def _merged_kinds(self) -> tuple[list[Any], Any]:
        """The distinct kinds of all frames, and each row's position among them."""
        if self._kinds is None:
            places: dict[tuple[Any, ...], int] = {}
            parts = []
            for frame in self.frames:
                kinds = frame.payload.kinds[self.table.name]
                of_frame = [places.setdefault(tuple(kind), len(places)) for kind in kinds]
                numbers = _numbers(frame.payload, f"{self.table.prefix}kind")
                parts.append(np.array(of_frame, np.int32)[numbers])
            indices = pa.array(np.concatenate(parts) if parts else np.empty(0, np.int32))
            self._kinds = list(places), indices
        return self._kinds

    def _first_seqs(self) -> Numbers:
        return np.array([frame.header.first_seq for frame in self.frames], np.int64)

    def _times(self) -> Numbers:
        return self.numbers(self.table.prefix + self.table.time)

    def _elapsed(self, name: str) -> Any:
        """The durations, as 0 in frames of virtual time, where no time passes."""
        virtual = [frame.payload.virtual for frame in self.frames]
        if all(virtual):
            return 0
        numbers = self.numbers(self.table.prefix + name)
        return numbers * self.per_row([not is_virtual for is_virtual in virtual]) if any(virtual) else numbers

    def _numbers_or_zeros(self, name: str, dtype: Any) -> npt.NDArray[Any] | None:
        """A column that frames may lack, 0 in those; None: all lack it."""
        if not any(name in frame.payload.columns for frame in self.frames):
            return None
        numbers = np.zeros(self.total, dtype)
        for frame, start in zip(self.frames, self.starts, strict=True):
            of_frame = _numbers(frame.payload, name)
            numbers[start : start + len(of_frame)] = of_frame
        return numbers

    def numbers(self, name: str) -> Numbers:
        """A column that every frame has."""
        parts = [_numbers(frame.payload, name) for frame in self.frames]
        return np.concatenate(parts, dtype=np.int64) if parts else np.empty(0, np.int64)

    def texts(self, name: str) -> pa.Array:
        lengths = self.numbers(f"{name}.length")
        nulls = self._numbers_or_zeros(f"{name}.null", np.bool_)
        return _strings(lengths, self._text(name), None if nulls is None else ~nulls)

    def sparse_texts(self, name: str) -> pa.Array:
        """A column that most rows lack."""
        if not any(f"{name}.row" in frame.payload.columns for frame in self.frames):
            return pa.nulls(self.total, pa.string())
        rows = self.sparse_rows(f"{name}.row")
        lengths = np.zeros(self.total, np.int64)
        lengths[rows] = self.numbers(f"{name}.length")
        valid = np.zeros(self.total, np.bool_)
        valid[rows] = True
        return _strings(lengths, self._text(name), valid)

    def sparse_rows(self, name: str) -> Numbers:
        parts = [
            _numbers(frame.payload, name).astype(np.int64) + start
            for frame, start in zip(self.frames, self.starts, strict=True)
        ]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def _text(self, name: str) -> bytes:
        found = [frame.payload.columns.get(f"{name}.text") for frame in self.frames]
        return b"".join([data for _, data in filter(None, found)])

    def per_row(self, values: Sequence[int] | Numbers) -> Numbers:
        """Repeat each frame's value for each of its rows."""
        return np.repeat(np.array(values, np.int64), self.rows)


def _numbers(payload: RowsPayload, name: str) -> npt.NDArray[Any]:
    """A column's numbers without a copy, empty if the frame lacks the column."""
    if name not in payload.columns:
        return np.empty(0, np.uint8)
    code, data = payload.columns[name]
    return np.frombuffer(data, _NUMPY_TYPES[code])


def _strings(lengths: Numbers, text: bytes, valid: npt.NDArray[np.bool_] | None) -> pa.Array:
    """Texts that are concatenated in `text`."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if int(offsets[-1]) != len(text) or (lengths < 0).any():
        raise DamagedFrameError(f"has {len(text)} bytes of text, but the lengths add up to {int(offsets[-1])}")
    if len(text) > np.iinfo(np.int32).max:
        raise DamagedFrameError(f"has {len(text)} bytes of text in one column, more than an Arrow array can hold")
    bitmap = None
    nulls = 0
    if valid is not None:
        nulls = int(len(valid) - valid.sum())
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.StringArray.from_buffers(
        len(lengths), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(text), bitmap, nulls
    )


def join_frames(
    frames: Iterable[OpenedFrame[Place]],
    wanted: Sequence[tuple[Table, pa.Schema]],
    on_damage: Callable[[Header, Place, str], None],
    rows: int,
) -> Iterator[tuple[pa.RecordBatch, ...]]:
    """For some frames after the others, a batch of each wanted table: about `rows` rows, fewer if rows are large.

    Holds the frames of one step at a time. `on_damage` gets each frame that is skipped because it cannot be decoded:
    its header, its place, and what is wrong.
    """
    waiting: list[OpenedFrame[Place]] = []
    waiting_rows = waiting_bytes = 0
    for frame in frames:
        more = max(table.rows_in(frame.header) for table, _ in wanted)
        if waiting and (waiting_rows + more > rows or waiting_bytes + frame.header.length > _BATCH_BYTES):
            yield from _decoded(waiting, wanted, on_damage)
            waiting, waiting_rows, waiting_bytes = [], 0, 0
        waiting.append(frame)
        waiting_rows += more
        waiting_bytes += frame.header.length
    yield from _decoded(waiting, wanted, on_damage)


def _decoded(
    frames: list[OpenedFrame[Place]],
    wanted: Sequence[tuple[Table, pa.Schema]],
    on_damage: Callable[[Header, Place, str], None],
) -> Iterator[tuple[pa.RecordBatch, ...]]:
    if not frames:
        return
    try:
        yield tuple(decode_frames(frames, table, schema) for table, schema in wanted)
    except DamagedFrameError as error:
        if len(frames) == 1:
            on_damage(frames[0].header, frames[0].place, str(error))
            return
        for frame in frames:
            yield from _decoded([frame], wanted, on_damage)
