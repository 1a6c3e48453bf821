"""The user's function of an asynchronous column as a function of rows, with one row of one column as its result.

A plain function gets the arguments, and returns the value; a list is an array. The methods of an AsyncFunction get one
value, as always: a tuple if there are several arguments, unless `async_invoke` has as many parameters. The list that it
returns is a list of results; it must have one, or none for a null.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections import abc
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from pyspark.sql import types as T

from dispatcher.errors import InvalidTypeError
from pipeline.spark.async_io.column.arguments import Arguments
from pipeline.spark.errors import ResultSchemaError
from pipeline.streaming.calls.functions import (
    AsyncFunction,
    as_results,
    called_of,
    is_batch_function,
    method_of,
    name_of,
)
from pipeline.streaming.errors import CapturedError
from pipeline.streaming.function_forms import check_function, is_generator
from pipeline.streaming.function_wrappers import Converted, Inner, Wrapped
from pipeline.streaming.options import AsyncOptions
from pipeline.streaming.return_types import is_iterator, kinds_returned

RESULT: Final = "result"
ERROR: Final = "error"
"""The fields of a column that captures errors."""

AnyColumnFunction: TypeAlias = AsyncFunction[Any, Any] | Callable[..., Any]
"""An async or blocking function of a record; a plain one may have several parameters."""

ToRows = Callable[[Any], list[tuple[Any]]]


def column_type(returns: T.DataType, captures: bool) -> T.DataType:
    """The type of the column; if it captures errors, a struct whose `error` is null unless the call failed."""
    if not captures:
        return returns
    error = T.StructType().add("error_class", "string").add("message", "string")
    error = error.add("attempts", "integer").add("time_spent_ms", "double")
    return T.StructType([T.StructField(RESULT, returns), T.StructField(ERROR, error)])


def nullable(data_type: T.DataType) -> T.DataType:
    """The type with nulls allowed everywhere: a column of a function may be null, and so may what is in it."""
    if isinstance(data_type, T.StructType):
        fields = data_type.fields
        return T.StructType([T.StructField(each.name, nullable(each.dataType), True, each.metadata) for each in fields])
    if isinstance(data_type, T.ArrayType):
        return T.ArrayType(nullable(data_type.elementType), True)
    if isinstance(data_type, T.MapType):
        return T.MapType(nullable(data_type.keyType), nullable(data_type.valueType), True)
    return data_type


def column_function(function: AnyColumnFunction, captures: bool) -> Any:
    """`function` with its hooks, of the same kind, but called with the arguments of a row as a tuple."""
    is_method = is_async_function(function)

    def to_rows(returned: Any) -> list[tuple[Any]]:
        value = _only(returned) if is_method and isinstance(returned, list) else returned
        return [((value, None),)] if captures else [(value,)]

    return Wrapped(function, _OfArguments(to_rows, is_method))


def column_options(options: AsyncOptions) -> AsyncOptions:
    retry, on_error = options.retry, options.on_error
    captures = on_error == "capture"
    if captures:
        on_error = _captured
    elif callable(on_error):
        on_error = _value_of_error(on_error)
    if retry is not None and (judges := retry.retry_on_result) is not None:

        def retry_on_result(rows: Sequence[Any]) -> bool:
            return judges([value[0] if captures else value for (value,) in rows])

        retry = dataclasses.replace(retry, retry_on_result=retry_on_result)
    return dataclasses.replace(options, retry=retry, on_error=on_error)


def _captured(captured: CapturedError) -> list[tuple[Any]]:
    # The column cannot take a lone surrogate in the message.
    message = captured.message.encode(errors="backslashreplace").decode()
    return [((None, (captured.error_class, message, captured.attempts, captured.time_spent_ms)),)]


def _value_of_error(on_error: Callable[[CapturedError], Any]) -> Callable[[CapturedError], list[tuple[Any]]]:
    return lambda captured: [(on_error(captured),)]


def _only(results: list[Any]) -> Any:
    if len(results) > 1:
        raise ResultSchemaError(
            "", f"the call returned {len(results)} results, and a column has one value for each row. Return one."
        )
    return results[0] if results else None


class _OfArguments(Converted):
    """Calls the function with a row's arguments, in the form that it takes, and converts what it returns to rows."""

    def __init__(self, to_rows: ToRows, is_method: bool) -> None:
        super().__init__(to_rows)
        self._is_method = is_method

    def coroutine(self, inner: Inner) -> Inner:
        return super().coroutine(_with_arguments(inner) if self._is_method else lambda arguments: inner(*arguments))

    def batch(self, inner: Inner) -> Inner:
        return super().batch(lambda batch: inner([_one_value(arguments) for arguments in batch]))

    def blocking(self, inner: Inner) -> Inner:
        def call(arguments: Arguments) -> Any:
            returned = inner(*arguments)
            if returned is not None:
                as_results(returned)  # refuses an awaitable
            return returned

        return super().blocking(call)

    def timeout(self, inner: Inner) -> Inner:
        return super().timeout(_with_arguments(inner))


def check_column_function(function: AnyColumnFunction) -> None:
    """Refuse a function that cannot be called for a column.

    Raises:
        TypeError: it is one, or it yields several results for a row.
    """
    called = called_of(function)
    # A plain function that declares an Iterable may mean a list, which is an array here.
    if is_generator(called) or any(map(is_iterator, kinds_returned(called) - {abc.Iterable})):
        raise InvalidTypeError(
            f"{name_of(function)} yields any number of results, and a column has one value for each row. Return the "
            "value, or a list for an array; to make each yield a row, use ordered_wait with keep_input=True."
        )
    check_function(function)


def check_arguments(function: AnyColumnFunction, number: int) -> None:
    """Refuse a number of columns that the function cannot be called with.

    Raises:
        TypeError: it takes more or fewer arguments, or there is no argument: a row's values come from columns.
    """
    called = called_of(function)
    if number and is_async_function(function) and (is_batch_function(function) or len(parameters_of(called)) == 1):
        return  # several columns are one tuple
    try:
        signature = inspect.signature(called if is_async_function(function) else function)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return  # Python does not know it
    fits = number > 0
    try:
        signature.bind(*range(number))
    except TypeError:
        fits = False
    if not fits:
        parameters = ", ".join(signature.parameters)
        raise InvalidTypeError(
            f"{name_of(function)}({parameters}) can't be called with {number} column{'s' * (number != 1)}. Give one "
            "column for each parameter, in their order."
        )


def is_async_function(function: AnyColumnFunction) -> bool:
    """Whether it has the methods of an AsyncFunction, whether or not it derives from it."""
    return method_of(function) is not None


def parameters_of(function: AnyColumnFunction) -> list[str]:
    """The names of the positional parameters; none if Python does not know them."""
    try:
        parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return []
    return [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]


def _with_arguments(method: Callable[..., Any]) -> Callable[[Arguments], Any]:
    """A method of an AsyncFunction as a function of the tuple of arguments."""
    if len(parameters_of(method)) == 1:
        return lambda arguments: method(_one_value(arguments))
    return lambda arguments: method(*arguments)


def _one_value(arguments: Arguments) -> Any:
    return arguments[0] if len(arguments) == 1 else arguments
