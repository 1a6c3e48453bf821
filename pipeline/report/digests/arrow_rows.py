"""What the digests of Arrow batches share: large pieces of rows, codes for names, rows of a schema."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.report.digests.buckets import Longs

_SMALL = 1 << 22
_TYPES = {"string": pa.string(), "int": pa.int32(), "long": pa.int64(), "boolean": pa.bool_()}


def schema_of(columns: str) -> pa.Schema:
    """A schema of columns such as "machine string, seq long", by Spark's names of the types."""
    return pa.schema([(name, _TYPES[kind]) for name, kind in (column.split() for column in columns.split(","))])


def pieces(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The batches' rows in order, as non-empty batches of at least `rows` rows, except the last."""
    held: list[pa.RecordBatch] = []
    number = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            number += batch.num_rows
        if number >= rows:
            yield from _joined(held)
            held, number = [], 0
    yield from _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2:
        return batches
    joined: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


def longs(rows: pa.RecordBatch, name: str) -> Longs:
    """The values of a column without nulls."""
    values: Longs = rows.column(name).to_numpy(zero_copy_only=False)
    return values.astype(np.int64, copy=False)


class Names:
    """Numbers combinations of names from 0, in the order of their first use. Not thread-safe."""

    def __init__(self) -> None:
        self.known: list[tuple[Any, ...]] = []
        self._numbers: dict[tuple[Any, ...], int] = {}

    def number(self, names: tuple[Any, ...]) -> int:
        number = self._numbers.get(names)
        if number is None:
            number = self._numbers[names] = len(self.known)
            self.known.append(names)
        return number

    def column(self, position: int, numbers: Longs) -> pa.Array:
        """For each number, the name at `position` of its combination."""
        return pa.array([names[position] for names in self.known]).take(pa.array(numbers))

    def numbers(self, rows: pa.RecordBatch, columns: Sequence[str]) -> Longs:
        """For each row, the number of its combination of values in the columns."""
        encoded = [_encoded(rows.column(name)) for name in columns]
        if len({column.indices.buffers()[1].address for column in encoded}) == 1:
            # A journal's frames hold one index for all of these columns.
            kinds = zip(*(column.dictionary.to_pylist() for column in encoded), strict=True)
            lookup = np.array([self.number(kind) for kind in kinds], np.int64)
            numbers: Longs = lookup[encoded[0].indices.to_numpy(zero_copy_only=False)]
            return numbers
        return self._mixed(encoded, rows.num_rows)

    def _mixed(self, encoded: Sequence[pa.DictionaryArray], rows: int) -> Longs:
        mixed = np.zeros(rows, np.int64)
        dictionaries: list[list[Any]] = []
        size = 1
        for column in encoded:
            values = [*column.dictionary.to_pylist(), None]
            dictionaries.append(values)
            mixed *= len(values)
            mixed += column.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False)
            size *= len(values)
        if size <= _SMALL:
            present = np.flatnonzero(np.bincount(mixed, minlength=size))
            lookup = np.zeros(size, np.int64)
            lookup[present] = [self.number(_unmixed(int(one), dictionaries)) for one in present]
            return lookup[mixed]
        present, inverse = np.unique(mixed, return_inverse=True)
        return np.array([self.number(_unmixed(int(one), dictionaries)) for one in present], np.int64)[inverse]


def _encoded(values: pa.Array) -> pa.DictionaryArray:
    return values if pa.types.is_dictionary(values.type) else values.dictionary_encode()


def _unmixed(number: int, dictionaries: list[list[Any]]) -> tuple[Any, ...]:
    names = []
    for values in reversed(dictionaries):
        number, position = divmod(number, len(values))
        names.append(values[position])
    return tuple(reversed(names))


def codes(values: pa.Array) -> Longs:
    """A code for each value, equal for equal values, from 0 and at most the number of different values."""
    encoded = values.dictionary_encode()
    result: Longs = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy(zero_copy_only=False)
    return result.astype(np.int64)


def rows_of(schema: pa.Schema, columns: Mapping[str, Any] | pa.RecordBatch) -> pa.RecordBatch:
    """Rows of the schema from columns of Arrow or numpy."""
    arrays = [pc.cast(pa.array(columns[field.name]), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
