"""What the digests of Arrow batches share: large pieces of rows, codes for names, rows of one wide schema."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.spark.report.digests.buckets import Longs

_SMALL = 1 << 22
_TYPES = {"string": pa.string(), "int": pa.int32(), "long": pa.int64(), "boolean": pa.bool_()}


def schema_of(**columns: Iterable[str]) -> pa.Schema:
    """A schema of these columns, by Spark's names of their types: string, int, long and boolean."""
    return pa.schema([(name, _TYPES[kind]) for kind, names in columns.items() for name in names])


def ddl_of(schema: pa.Schema) -> str:
    """As `schema_of`'s result, for Spark."""
    kinds = {of_arrow: kind for kind, of_arrow in _TYPES.items()}
    return ", ".join(f"{field.name} {kinds[field.type]}" for field in schema)


def pieces(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """The batches' rows in order, as non-empty tables of at least `rows` rows, except the last."""
    held: list[pa.RecordBatch] = []
    number = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            number += batch.num_rows
        if number >= rows:
            yield pa.Table.from_batches(held).combine_chunks()
            held, number = [], 0
    if held:
        yield pa.Table.from_batches(held).combine_chunks()


def longs(table: pa.Table, name: str) -> Longs:
    """The values of a column without nulls."""
    values: Longs = table.column(name).combine_chunks().to_numpy(zero_copy_only=False)
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

    def numbers(self, table: pa.Table, columns: Sequence[str]) -> Longs:
        """For each row, the number of its combination of values in the columns."""
        mixed = np.zeros(table.num_rows, np.int64)
        dictionaries: list[list[Any]] = []
        size = 1
        for name in columns:
            encoded = table.column(name).combine_chunks().dictionary_encode()
            values = [*encoded.dictionary.to_pylist(), None]
            dictionaries.append(values)
            mixed *= len(values)
            mixed += encoded.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False)
            size *= len(values)
        if size <= _SMALL:
            present = np.flatnonzero(np.bincount(mixed, minlength=size))
            lookup = np.zeros(size, np.int64)
            lookup[present] = [self.number(_unmixed(int(one), dictionaries)) for one in present]
            return lookup[mixed]
        present, inverse = np.unique(mixed, return_inverse=True)
        return np.array([self.number(_unmixed(int(one), dictionaries)) for one in present], np.int64)[inverse]


def _unmixed(number: int, dictionaries: list[list[Any]]) -> tuple[Any, ...]:
    names = []
    for values in reversed(dictionaries):
        number, position = divmod(number, len(values))
        names.append(values[position])
    return tuple(reversed(names))


def codes(values: pa.ChunkedArray) -> Longs:
    """A code for each value, equal for equal values, from 0 and less than the number of values."""
    encoded = values.combine_chunks().dictionary_encode()
    result: Longs = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy(zero_copy_only=False)
    return result.astype(np.int64)


def wide(schema: pa.Schema, kind: str, columns: dict[str, Any]) -> pa.RecordBatch:
    """Rows of the schema with a constant column `kind`; fields that are not in `columns` are null."""
    length = len(next(iter(columns.values())))
    given = {"kind": pa.repeat(kind, length)} | columns
    arrays = []
    for field in schema:
        values = given.get(field.name)
        if values is None:
            values = pa.nulls(length, field.type)
        elif isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        else:
            values = pa.array(values)
        arrays.append(pc.cast(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
