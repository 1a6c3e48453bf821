"""Python's types as Spark's.

| Python | Spark |
| --- | --- |
| `bool`, `int`, `float`, `str`, `bytes` | boolean, long, double, string, binary |
| `Decimal` | decimal(38,18), as PySpark infers it |
| `date`, `datetime`, `timedelta`, `time` | date, timestamp, interval day to second, time (Spark 4.1) |
| `list[X]`, `Sequence[X]`, `tuple[X, ...]` | array |
| `dict[K, V]`, `Mapping[K, V]` | map |
| a dataclass, pydantic model, TypedDict or NamedTuple | struct |
| an Enum, a `Literal` | the type of its values |
| `Annotated[X, data_type]` | that type of Spark: `Annotated[Decimal, DecimalType(10, 2)]` |

A value that may be None, or that a TypedDict may leave out, is nullable; any other is required.
"""

from __future__ import annotations

import collections.abc as abc
import dataclasses
import enum
import types
import typing
from typing import Any, Final, get_args, get_origin

from pyspark.sql import Row
from pyspark.sql import types as T

from pipeline.spark.async_io.spark_types import PYTHON_TYPES
from pipeline.streaming.return_types import is_model

_WRAPPERS: Final = {typing.Required, typing.NotRequired, typing.Final, getattr(typing, "ReadOnly", typing.Final)}
_LISTS: Final = {list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable}
MAPS: Final = {dict, abc.Mapping, abc.MutableMapping}
ADVICE: Final = "use a dataclass, a pydantic model or a TypedDict, or give the schema"


class UnfitTypeError(Exception):
    """Internal: a type without a counterpart in Spark; each level of nesting adds its part of the path."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path


def spark_type(declared: Any, outer: tuple[Any, ...]) -> tuple[T.DataType, bool]:
    """The type, and whether it may be null. `outer`: the classes around it, which it must not contain."""
    return joined_type(members_of(declared), outer)


def joined_type(members: list[Any], outer: tuple[Any, ...] = ()) -> tuple[T.DataType, bool]:
    """The one type of all alternatives of a union, and whether None is among them."""
    some = [member for member in members if member is not type(None)]
    if not some:
        raise UnfitTypeError("it is always None")
    found = {_type_of_one(member, outer) for member in some}
    if found == {T.LongType(), T.DoubleType()}:
        found = {T.DoubleType()}
    if len(found) > 1:
        raise UnfitTypeError(f"{' | '.join(map(shown, some))} is more than one type; {ADVICE}")
    return found.pop(), type(None) in members


def members_of(declared: Any) -> list[Any]:
    """The alternatives of a union, without what Python's typing wraps around a type; one for any other type."""
    if _hinted(declared) is not None:
        return [declared, *([type(None)] if type(None) in members_of(get_args(declared)[0]) else [])]
    origin = get_origin(declared)
    if origin is typing.Annotated or origin in _WRAPPERS:
        return members_of(get_args(declared)[0])
    if origin in (typing.Union, types.UnionType):
        return [member for alternative in get_args(declared) for member in members_of(alternative)]
    if origin is typing.Literal:
        return [type(value) for value in get_args(declared)]
    if isinstance(declared, typing.NewType):
        return members_of(declared.__supertype__)
    if type(declared).__name__ == "TypeAliasType":
        return members_of(declared.__value__)
    return [type(None) if declared is None else declared]


def _hinted(declared: Any) -> T.DataType | None:
    """The type of Spark in `Annotated[X, data_type]`."""
    if get_origin(declared) is not typing.Annotated:
        return None
    return next((hint for hint in get_args(declared)[1:] if isinstance(hint, T.DataType)), None)


def _type_of_one(declared: Any, outer: tuple[Any, ...]) -> T.DataType:
    if (hinted := _hinted(declared)) is not None:
        return hinted
    origin, arguments = get_origin(declared), get_args(declared)
    if is_list(declared) or (origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis):
        element, contains_null = _inside("[]", arguments[0] if arguments else None, declared, outer)
        return T.ArrayType(element, contains_null)
    if origin in MAPS and len(arguments) == 2:
        key, _ = _inside("[key]", arguments[0], declared, outer)
        value, contains_null = _inside("[value]", arguments[1], declared, outer)
        return T.MapType(key, value, contains_null)
    if isinstance(declared, type) and issubclass(declared, enum.Enum) and len(declared):
        return joined_type([type(each.value) for each in declared])[0]
    if (fields := _fields(declared)) is not None:
        return _struct(declared, fields, outer)
    if isinstance(declared, type) and not issubclass(declared, tuple):
        for base in declared.__mro__:
            if base in PYTHON_TYPES:
                return PYTHON_TYPES[base]
    if declared is Row:
        raise UnfitTypeError("a Row does not declare its columns; " + ADVICE)
    raise UnfitTypeError(f"{shown(declared)} has no counterpart in Spark; convert it, or give the schema")


def _inside(part: str, inner: Any, declared: Any, outer: tuple[Any, ...]) -> tuple[T.DataType, bool]:
    if inner is None:
        raise UnfitTypeError(f"{shown(declared)} does not say what it contains, as list[float] does")
    try:
        return spark_type(inner, outer)
    except UnfitTypeError as unfit:
        raise UnfitTypeError(unfit.reason, f"{part}{unfit.path}") from None


def _struct(declared: Any, fields: dict[str, Any], outer: tuple[Any, ...]) -> T.StructType:
    if declared in outer:
        raise UnfitTypeError(f"{shown(declared)} contains itself, which no type of Spark can; give the schema")
    struct = T.StructType()
    for name, field in fields.items():
        try:
            data_type, is_nullable = spark_type(field, (*outer, declared))
        except UnfitTypeError as unfit:
            raise UnfitTypeError(unfit.reason, f".{name}{unfit.path}") from None
        struct = struct.add(name, data_type, is_nullable or _may_be_missing(declared, name, field))
    return struct


def _fields(declared: Any) -> dict[str, Any] | None:
    """The fields of a class with named fields, by name; None for any other type."""
    if not isinstance(declared, type):
        return None
    if dataclasses.is_dataclass(declared):
        hints = _hints(declared)
        return {field.name: hints[field.name] for field in dataclasses.fields(declared)}
    if is_model(declared):
        return _model_fields(declared)
    if typing.is_typeddict(declared) or (issubclass(declared, tuple) and hasattr(declared, "_fields")):
        return _hints(declared)
    return None


def _model_fields(model: Any) -> dict[str, Any]:
    """The fields, then the computed ones, as in `model_dump`."""
    fields = {}
    for name, field in model.model_fields.items():
        hints = tuple(hint for hint in field.metadata if isinstance(hint, T.DataType))
        fields[name] = typing.Annotated[(field.annotation, *hints)] if hints else field.annotation
    return fields | {name: field.return_type for name, field in model.model_computed_fields.items()}


def _hints(declared: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(declared, include_extras=True)
    except Exception as error:  # of an annotation, which may be any expression
        raise UnfitTypeError(
            f"the types of the fields of {shown(declared)} cannot be evaluated ({error}); define them in the module, "
            "or give the schema"
        ) from None


def _may_be_missing(declared: Any, name: str, field: Any) -> bool:
    """Whether a TypedDict may leave the field out. In Python 3.11 the class knows no NotRequired inside a string."""
    if get_origin(field) in (typing.Required, typing.NotRequired):
        return get_origin(field) is typing.NotRequired
    return typing.is_typeddict(declared) and name in declared.__optional_keys__


def is_list(declared: Any) -> bool:
    """Whether it is `list[X]`, or an abstract type for it, such as `Sequence[X]`."""
    kind = get_origin(declared) or declared
    return isinstance(kind, type) and kind in _LISTS


def element_of(declared: Any) -> Any:
    if not (arguments := get_args(declared)):
        raise UnfitTypeError(f"{shown(declared)} does not say what it contains, as list[Price] does")
    return arguments[0]


def shown(declared: Any) -> str:
    return declared.__qualname__ if isinstance(declared, type) and not get_args(declared) else str(declared)
