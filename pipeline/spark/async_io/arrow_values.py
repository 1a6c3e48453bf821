"""Lists, maps and structs: how they are checked, and how their Arrow arrays are built from and read into Python values.

Each function takes the checks, builders or readers of the inner types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipeline.spark.async_io.structs import Check, Misfit, row_maker, shown
from pipeline.streaming.errors import quoted

Reader = Callable[[Any], list[Any]]
"""Takes a pyarrow Array, returns one Python value per element."""
Builder = Callable[[Sequence[Any]], Any]
"""Takes checked values, returns a pyarrow Array."""


def list_check(element: Check) -> Check:
    def check_list(values: Any) -> list[Any]:
        if not isinstance(values, list | tuple):
            as_list = getattr(values, "tolist", None)  # arrays of numpy and of the module array
            if not callable(as_list) or not isinstance(values := as_list(), list):
                raise Misfit(f"{shown(values)} is not a list")
        checked = []
        for place, value in enumerate(values):
            try:
                checked.append(element(value))
            except Misfit as misfit:
                raise Misfit(misfit.reason, f"[{place}]{misfit.path}") from None
        return checked

    return check_list


def map_check(key_check: Check, value_check: Check) -> Check:
    def check_map(entries: Any) -> list[tuple[Any, Any]]:
        if not isinstance(entries, Mapping):
            raise Misfit(f"{shown(entries)} is not a dict")
        checked = []
        for key, value in entries.items():
            try:
                checked.append((key_check(key), value_check(value)))
            except Misfit as misfit:
                raise Misfit(misfit.reason, f"[{quoted(key)}]{misfit.path}") from None
        return checked

    return check_map


def build_structs(kind: Any, builders: list[Builder], under_null: tuple[Any, ...], values: Sequence[Any]) -> Any:
    """`under_null`: the fields of a null struct. Arrow needs a value in each required one, even there."""
    mask = None
    if None in values:
        mask = pa.array([value is None for value in values], pa.bool_())
        values = [under_null if value is None else value for value in values]
    columns = list(zip(*values, strict=True)) if values else [()] * len(builders)
    if not builders:
        return pa.array([{}] * len(values), kind) if mask is None else pa.array([None] * len(values), kind)
    arrays = [builder(column) for builder, column in zip(builders, columns, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=mask)


def build_lists(element: Builder, values: Sequence[Any]) -> Any:
    offsets, inner = _flattened(values)
    return pa.ListArray.from_arrays(offsets, element(inner))


def build_maps(kind: Any, key: Builder, value: Builder, values: Sequence[Any]) -> Any:
    offsets, entries = _flattened(values)
    keys, items = zip(*entries, strict=True) if entries else ((), ())
    return pa.MapArray.from_arrays(offsets, key(keys), value(items), type=kind)


def _flattened(values: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Arrow's offsets, null for a null list, and the concatenated entries of all lists."""
    offsets: list[int | None] = []
    inner: list[Any] = []
    for value in values:
        offsets.append(None if value is None else len(inner))
        inner.extend(value or ())
    return pa.array([*offsets, len(inner)], pa.int32()), inner


def structs_reader(names: list[str], readers: list[Reader]) -> Reader:
    make_row = row_maker(names)

    def read_structs(array: Any) -> list[Any]:
        if not readers:
            return [make_row(()) if valid else None for valid in array.is_valid().to_pylist()]
        # flatten applies the struct's own offset and nulls to its fields
        columns = [reader(child) for reader, child in zip(readers, array.flatten(), strict=True)]
        rows = map(make_row, zip(*columns, strict=True))
        if not array.null_count:
            return list(rows)
        return [row if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]

    return read_structs


def read_lists(element: Reader, array: Any) -> list[Any]:
    offsets = array.offsets.to_pylist()
    values = element(array.values.slice(offsets[0], offsets[-1] - offsets[0])) if len(array) else []
    return [None if span is None else values[span] for span in _spans(array, offsets)]


def read_maps(key: Reader, value: Reader, array: Any) -> list[Any]:
    offsets = array.offsets.to_pylist()
    if not len(array):
        return []
    start, length = offsets[0], offsets[-1] - offsets[0]
    keys = key(array.keys.slice(start, length))
    values = value(array.items.slice(start, length))
    return [
        None if span is None else dict(zip(keys[span], values[span], strict=True)) for span in _spans(array, offsets)
    ]


def _spans(array: Any, offsets: list[int]) -> Iterator[slice | None]:
    """The slice of each list's entries in the flat values; None for a null."""
    valid = array.is_valid().to_pylist() if array.null_count else None
    first = offsets[0]
    for place in range(len(array)):
        if valid is not None and not valid[place]:
            yield None
        else:
            yield slice(offsets[place] - first, offsets[place + 1] - first)


def as_kind(array: Any, kind: pa.DataType) -> Any:
    """An array from Spark, converted to `kind`, the type of its column in the result.

    Where a struct or variant is null, Spark writes nulls into its required fields, and Arrow refuses to cast them. So
    the array is cast to `kind` with all fields nullable, and then relabelled as `kind`, which has the same layout.
    """
    loose = _loose(kind)
    return array.cast(kind) if loose == kind else pa.array(_Declared(array.cast(loose), kind))


class _Declared:
    """An array under another type of the same layout. Arrow's PyCapsule interface imports it unchecked."""

    def __init__(self, array: Any, kind: pa.DataType) -> None:
        self._array = array
        self._kind = kind

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._kind.__arrow_c_schema__(), self._array.__arrow_c_array__()[1]


def _loose(kind: pa.DataType) -> pa.DataType:
    """The type with all nested fields nullable, except the keys of maps, which are never null."""
    if pa.types.is_struct(kind):
        return pa.struct([_loose_field(kind.field(place)) for place in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return pa.list_(_loose_field(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field.with_type(_loose(kind.key_type)), _loose_field(kind.item_field))
    return kind


def _loose_field(field: pa.Field) -> pa.Field:
    return field.with_type(_loose(field.type)).with_nullable(True)
