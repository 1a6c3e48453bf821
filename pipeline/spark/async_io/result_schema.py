"""The schema of results, taken from the return type of a function or from a class; see `python_types` for the types.

Runs on the driver.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, get_args, get_origin

from pyspark.sql import types as T

from pipeline.spark.async_io.python_types import (
    ADVICE,
    MAPS,
    UnfitTypeError,
    element_of,
    is_list,
    joined_type,
    members_of,
    shown,
)
from pipeline.spark.errors import ResultTypeError
from pipeline.streaming.calls.functions import (
    AnyFunction,
    AsyncFunction,
    called_of,
    is_batch_function,
    name_of,
    unbound,
)
from pipeline.streaming.return_types import UnknownReturnTypeError, is_awaitable, is_iterator, return_type

SCALAR_COLUMN: Final = "value"
"""The column of results that are no rows, as PySpark calls it."""


@dataclass(frozen=True)
class ResultType:
    """What one result of a function is.

    `data_type`: a struct for a row, else the type of the one column. `is_nullable`: a result may be None.
    """

    data_type: T.DataType
    is_nullable: bool

    def schema(self) -> T.StructType:
        """The columns of the results. A result of None makes them all null, so that all are nullable."""
        if not isinstance(self.data_type, T.StructType):
            return T.StructType([T.StructField(SCALAR_COLUMN, self.data_type, self.is_nullable)])
        fields = self.data_type.fields
        return T.StructType(
            [T.StructField(each.name, each.dataType, each.nullable or self.is_nullable) for each in fields]
        )


def schema_of(function: AnyFunction[Any, Any]) -> T.StructType:
    """The columns of a function's results, from its return type; one column `value` if a result is not a row.

    Raises, as those below:
        ResultTypeError: it declares no return type, or one without a counterpart in Spark.
    """
    return result_type_of(function).schema()


def result_type_of(function: AnyFunction[Any, Any]) -> ResultType:
    """What one result is, where a returned list is a list of results.

    An AsyncFunction without a return type has that of its base, `AsyncFunction[In, Out]`: `Out`.
    """
    return _named(name_of(function), lambda: _result_type(_declared(function)))


def value_type_of(function: AnyFunction[Any, Any]) -> ResultType:
    """What one result is, where each call returns one value: a returned list is an array."""
    return _named(name_of(function), lambda: _joined(_declared(function)))


def schema_from(kind: Any) -> T.StructType:
    """The columns of the fields of a dataclass, a pydantic model, a TypedDict or a NamedTuple; `value` of a scalar."""
    return type_from(kind).schema()


def type_from(kind: Any) -> ResultType:
    """What one result of that type is; a list is an array."""
    return _named(getattr(kind, "__qualname__", str(kind)), lambda: _joined(members_of(kind)))


def accepts_none(function: AnyFunction[Any, Any]) -> bool:
    """Whether the function declares that a result may be None, which is then a null. False if it declares no type."""
    try:
        members = _declared(function)
    except UnfitTypeError:
        return False
    return type(None) in members and not any(map(_has_many, members))


def _named(name: str, result_type: Callable[[], ResultType]) -> ResultType:
    try:
        return result_type()
    except UnfitTypeError as unfit:
        raise ResultTypeError(name, unfit.path.removeprefix("."), unfit.reason) from None


# -- what a function declares ------------------------------------------------------------------------------------------


def _declared(function: AnyFunction[Any, Any]) -> list[Any]:
    """The types of what a call returns, one of them or a union; with the batch form, for one value."""
    function = unbound(function)
    is_batch = is_batch_function(function)
    declared = _return_type(called_of(function))
    if (declared is None or _has_variables(declared)) and isinstance(function, AsyncFunction):
        declared, is_batch = _declared_by_base(type(function)), False
    if declared is None or isinstance(declared, typing.TypeVar):
        raise UnfitTypeError("it declares no return type; annotate it, or give the schema, such as 'price double'")
    members = members_of(declared)
    if len(members) == 1 and is_awaitable(members[0]) and get_args(members[0]):
        members = members_of(get_args(members[0])[-1])  # of what is awaited
    return _of_one_value(members) if is_batch else members


def _return_type(function: Any) -> Any:
    try:
        return return_type(function)
    except UnknownReturnTypeError as unknown:
        raise UnfitTypeError(
            f"its return type {unknown.written!r} cannot be evaluated ({unknown.error}); define the types that it "
            "names in the module, or give the schema"
        ) from None


def _of_one_value(declared: list[Any]) -> list[Any]:
    """X and Y of a batch function's `list[X | Y | Exception]`."""
    lists = [member for member in declared if _has_many(member)]
    if len(lists) != 1 or not get_args(lists[0]):
        raise UnfitTypeError(
            "async_invoke_batch must declare a list with one list for each value, as list[list[Price]], or an "
            "AsyncIterator of such lists"
        )
    entries = members_of(get_args(lists[0])[0])
    return [entry for entry in entries if not (isinstance(entry, type) and issubclass(entry, BaseException))]


def _has_many(declared: Any) -> bool:
    """Whether what is returned has any number of results: a list, or what yields them."""
    return is_list(declared) or is_iterator(declared)


def _declared_by_base(kind: type) -> Any:
    """`Out` of the `AsyncFunction[In, Out]` that `kind` derives from, maybe through others; None if it does not say."""
    for base in kind.__dict__.get("__orig_bases__", kind.__bases__):
        parent, arguments = get_origin(base) or base, get_args(base)
        if parent is AsyncFunction:
            return arguments[1] if arguments else None
        if isinstance(parent, type) and issubclass(parent, AsyncFunction):
            out = _declared_by_base(parent)
            if arguments and _has_variables(out):
                given = dict(zip(getattr(parent, "__parameters__", ()), arguments, strict=True))
                return (
                    given[out] if isinstance(out, typing.TypeVar) else out[tuple(given[v] for v in out.__parameters__)]
                )
            return out
    return None


def _has_variables(declared: Any) -> bool:
    if isinstance(declared, type) and get_origin(declared) is None:
        return False
    return isinstance(declared, typing.TypeVar) or bool(getattr(declared, "__parameters__", ()))


# -- from the type to the columns --------------------------------------------------------------------------------------


def _result_type(declared: list[Any]) -> ResultType:
    """A list is a list of results, so that `X`, `list[X]`, `X | list[X]` and `Iterator[X]` mean the same."""
    if type(None) in declared and any(map(_has_many, declared)):
        raise UnfitTypeError("it may return a list or None; return [] for no result, or [None] for a null")
    members = [
        member
        for returned in declared
        for member in (members_of(element_of(returned)) if _has_many(returned) else [returned])
    ]
    if members == [type(None)]:
        raise UnfitTypeError("it returns None; return a result, or a list of them")
    for member in members:
        if get_origin(member) in MAPS or get_origin(member) is tuple:
            raise UnfitTypeError(f"{shown(member)} does not name the columns; {ADVICE}")
    return _joined(members)


def _joined(members: list[Any]) -> ResultType:
    return ResultType(*joined_type(members))
