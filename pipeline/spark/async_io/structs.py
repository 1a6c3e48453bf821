"""Structs in Python: rows of Spark as Rows, and rows or objects of a user's function as plain tuples."""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter, call, itemgetter
from typing import Any

from pyspark.sql import Row

from pipeline.spark.errors import UnknownColumnError
from pipeline.streaming.errors import quoted
from pipeline.streaming.return_types import is_model

Check = Callable[[Any], Any]
"""Returns the value in the one form that the Arrow writer takes, or raises Misfit."""


class Misfit(Exception):
    """A value that does not fit; each level of nesting adds its part of the path."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path


def shown(value: Any) -> str:
    """The value and its class, in the reason of a Misfit."""
    return f"{quoted(value)} ({type(value).__qualname__})"


def row_maker(names: list[str]) -> Callable[[tuple[Any, ...]], Row]:
    """A function that makes a Row with the fields `names` from a tuple of values.

    PySpark's own way to make a Row and to look up a field costs more than the rest of the conversion. So the rows
    belong to a subclass with a property per name. They pickle as plain Rows.
    """
    members: dict[str, Any] = {"__fields__": names, "__getattr__": _other_field, "__getitem__": _field}
    # A namedtuple's properties read the tuple without a call of __getitem__.
    fields: Any = namedtuple("fields", [f"column{place}" for place in range(len(names))])  # type: ignore[misc]
    for place, name in reversed(list(enumerate(names))):  # a Row gives the first of two columns of one name
        if name.isidentifier() and not hasattr(Row, name):
            members[name] = getattr(fields, f"column{place}")
    return partial(tuple.__new__, type("Row", (Row,), members))


def _other_field(row: Row, name: str) -> Any:
    """The field of a name that has no property. Python calls it last, so the usual names do not pay for it."""
    if name.startswith("__"):
        raise AttributeError(name)
    return _field(row, name)


def _field(row: Row, key: Any) -> Any:
    if isinstance(key, str):
        try:
            key = row.__fields__.index(key)
        except ValueError:
            raise UnknownColumnError(key, row.__fields__) from None
    return tuple.__getitem__(row, key)


def struct_check(names: list[str], checks: list[Check], *, refuses: bool, is_result: bool = False) -> Check:
    """A check that returns a plain tuple, one value for each of `names`, which pass `checks`.

    `refuses`: names that the struct lacks. `is_result`: it is the row itself, so its only column's value will do.
    """
    known = frozenset(names)
    count = len(checks)
    takes_value = is_result and count == 1
    values_in = values_reader(names)
    # The reader for each class; None if the class is no record. Any thread adds one; two threads may add equal ones.
    readers: dict[type, Check | None] = {}

    def check_struct(result: Any) -> tuple[Any, ...]:
        kind = type(result)
        if kind is dict and len(result) == count:
            try:
                result = values_in(result)
            except KeyError:
                result = by_name(result)
        elif kind is not tuple:
            result = in_order(result)
        elif len(result) != count:
            raise Misfit(f"{quoted(result)} has {len(result)} values; the columns are {', '.join(names)}")
        try:
            return tuple(map(call, checks, result))
        except Misfit:
            pass
        for name, check, value in zip(names, checks, result, strict=True):
            try:
                check(value)
            except Misfit as misfit:
                raise Misfit(misfit.reason, f".{name}{misfit.path}") from None
        raise AssertionError("a check is not deterministic")

    def in_order(result: Any) -> Any:
        if isinstance(result, tuple):
            fields = getattr(result, "__fields__", names)
            if fields != names:
                return by_name(dict(zip(fields, result, strict=False)))
            if len(result) != len(names):
                raise Misfit(f"{quoted(result)} has {len(result)} values; the columns are {', '.join(names)}")
            return result
        if isinstance(result, Mapping):
            return by_name(result)
        kind = type(result)
        if kind not in readers:
            readers[kind] = _record_reader(kind, names, by_name)
        if (read := readers[kind]) is not None:
            return read(result)
        if takes_value:
            return (result,)
        raise Misfit(
            f"{shown(result)} is not a row; return a Row, a dict, a tuple, a dataclass or a pydantic model, or a list "
            "of them"
        )

    def by_name(result: Mapping[str, Any]) -> tuple[Any, ...]:
        if refuses and (unknown := [str(name) for name in result if name not in known]):
            raise Misfit(
                f"the result names {', '.join(unknown)}; the columns are {', '.join(names)}. To leave out what the "
                'schema does not name, set extra="ignore"'
            )
        return tuple(result.get(name) for name in names)

    return check_struct


def values_reader(names: list[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """A function of a dict that has `names` that gives their values as a tuple."""
    if len(names) == 1:
        name = names[0]
        return lambda result: (result[name],)
    return itemgetter(*names) if names else lambda result: ()


def _record_reader(kind: Any, names: list[str], by_name: Check) -> Check | None:
    """A function of an instance that gives its values in the order of `names`; None if the class has no fields.

    A schema may name the computed fields of a pydantic model, but need not. A model that allows it has more in
    `model_extra`.
    """
    has_more = False
    computed: list[str] = []
    if dataclasses.is_dataclass(kind):
        fields = [field.name for field in dataclasses.fields(kind)]
    elif is_model(kind):
        fields, computed = list(kind.model_fields), list(kind.model_computed_fields)
        has_more = kind.model_config.get("extra") == "allow"
    else:
        return None
    if set(fields) <= set(names) <= {*fields, *computed} and len(names) > 1 and not has_more:
        return attrgetter(*names)
    wanted = dict.fromkeys([*fields, *(name for name in computed if name in names)])

    def read(record: Any) -> Any:
        values = {name: getattr(record, name) for name in wanted}
        return by_name(values | (record.model_extra or {}) if has_more else values)

    return read
