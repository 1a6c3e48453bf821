"""What a function declares to return: its annotation, evaluated, and whether that is an iterator or an awaitable.

`inspect` knows coroutine functions and generators by their code. A wrapper around one, or a function that passes on
what another returns, only has its annotation.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import re
import sys
import types
import typing
from collections import abc
from typing import Any, Final, get_args, get_origin

ITERATORS: Final = frozenset({abc.Iterator, abc.Iterable, abc.Generator})
ASYNC_ITERATORS: Final = frozenset({abc.AsyncIterator, abc.AsyncIterable, abc.AsyncGenerator})
AWAITABLES: Final = frozenset({abc.Awaitable, abc.Coroutine, asyncio.Future, asyncio.Task})
_BY_NAME: Final[dict[str, Any]] = {kind.__name__: kind for kind in ITERATORS | ASYNC_ITERATORS | AWAITABLES}
_FIRST_NAME: Final = re.compile(r"\s*(?:\w+\.)*(\w+)\s*(?:\[|\||$)")


class UnknownReturnTypeError(Exception):
    """Internal: an annotation that cannot be evaluated here; `written` is what the code has."""

    def __init__(self, written: Any, error: Exception) -> None:
        super().__init__(written, error)
        self.written = written
        self.error = error


def return_type(function: Any) -> Any:
    """The annotation with its names resolved; None if there is no annotation, and `type(None)` if it is None.

    Raises:
        UnknownReturnTypeError: a name in it is not known.
    """
    inner = inspect.unwrap(function)
    inner = getattr(inner, "__func__", inner)
    written: Any = ""
    try:
        annotations = getattr(function, "__annotations__", {})
        if "return" not in annotations:
            return None
        written = annotations["return"]
        holder = types.SimpleNamespace(__annotations__={"return": written})
        names = getattr(inner, "__globals__", {}), _enclosed(inner)
        return typing.get_type_hints(holder, *names, include_extras=True)["return"]
    except Exception as error:  # of the annotation, which may be any expression
        raise UnknownReturnTypeError(written, error) from None


def kinds_returned(function: Any) -> set[Any]:
    """The classes of what the function declares to return, without their arguments: abc.Iterator of `Iterator[int]`.

    A union has the classes of all its alternatives. Types are often imported for type checkers only, so an annotation
    that cannot be evaluated is judged by its first name.
    """
    try:
        declared = return_type(function)
    except UnknownReturnTypeError as unknown:
        first = _FIRST_NAME.match(unknown.written) if isinstance(unknown.written, str) else None
        return {_BY_NAME[first[1]]} if first and first[1] in _BY_NAME else set()
    return set(_kinds(declared))


def is_iterator(declared: Any) -> bool:
    """Whether each element of what a call returns is a result of its own."""
    return _is_one_of(declared, ITERATORS | ASYNC_ITERATORS)


def is_record(kind: type) -> bool:
    """Whether it is a class of named fields, an instance of which is one result even if it can be iterated."""
    return dataclasses.is_dataclass(kind) or is_model(kind)


def is_model(kind: type) -> bool:
    """Whether `kind` is a pydantic model. Does not import pydantic: if a model exists, it is imported."""
    pydantic: Any = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(kind, pydantic.BaseModel)


def is_awaitable(declared: Any) -> bool:
    return _is_one_of(declared, AWAITABLES)


def _is_one_of(declared: Any, kinds: abc.Set[Any]) -> bool:
    kind = get_origin(declared) or declared
    return isinstance(kind, type) and kind in kinds


def _kinds(declared: Any) -> abc.Iterator[Any]:
    origin = get_origin(declared)
    if origin is typing.Annotated:
        yield from _kinds(get_args(declared)[0])
    elif origin in (typing.Union, types.UnionType):
        for alternative in get_args(declared):
            yield from _kinds(alternative)
    elif type(declared).__name__ == "TypeAliasType":
        yield from _kinds(declared.__value__)
    elif isinstance(kind := origin or declared, type):
        yield kind


def _enclosed(function: Any) -> dict[str, Any]:
    """The variables of the enclosing functions that this one uses, which may be local classes."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    found = {}
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found
