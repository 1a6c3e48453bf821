"""The names by which a cache finds a function's results again: functions that can give other results have others.

A function that its module has under the function's own name is named by the two: its code and its decorators change
with the module, and not from call to call. Any other function is examined for what it binds: the arguments of a
partial, the variables of a closure, defaults, the attributes of an instance or of a method's instance, what a decorator
holds. If all of it has a stable text, a digest of that is part of the name; the values themselves are not. Otherwise
there is no name, as for a lambda. A function of a program has the program's path and its own source in the digest. The
globals that a function reads are not examined.
"""

from __future__ import annotations

import datetime as dt
import enum
import functools
import hashlib
import inspect
import json
import logging
import re
import sys
import types
import uuid
import zoneinfo
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path, PurePath
from typing import Any, Final

from dispatcher.errors import InvalidValueError

log: logging.Logger = logging.getLogger(__name__)

_DIGITS: Final = 32
"""Of a digest, in hexadecimal."""
_PROGRAM: Final = frozenset(("__main__", "__mp_main__"))
"""A program's module; in a process that multiprocessing has spawned, it has the second name."""
_LOCAL: Final = "<locals>"
_SMALL: Final = 1 << 63
_BOUND_BY_AN_OBJECT: Final = (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)
_LRU_CACHE: Final[Any] = type(functools.lru_cache(int))
_SHOWN_AS_THEY_ARE: Final = (complex, range, slice, dt.timezone, type(...), type(NotImplemented))


def cache_name(function: Any) -> str:
    """The name of a function in a cache.

    Raises:
        ValueError: it has none, because something that it binds has no stable text. The message says what that is, and
            of which type, but not its value.
    """
    examined = _Examination()
    try:
        name = examined.name_of(function)
        text = json.dumps(examined.bound)
    except (_NoName, RecursionError) as error:
        why = error if isinstance(error, _NoName) else "what it binds is nested too deeply"
        raise InvalidValueError(
            f"the cache finds results again by the function's name, and {_shown(function)} has no name of its own: "
            f'{why}. Give the cache a name, as in SqliteResults(path, name="prices"), and another one for each '
            "function with other results."
        ) from None
    return f"{name}#{hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]}" if examined.bound else name


class _NoName(Exception):
    """Why a function has no name."""


class _Examination:
    """Of one function. One thread."""

    def __init__(self, inside: tuple[Any, ...] = ()) -> None:
        self.bound: list[Any] = []
        """What it binds, in the order in which it is found, as values of JSON."""
        self._inside = inside  # being examined; it may contain itself

    def name_of(self, function: Any) -> str:
        """The name without what is bound, which is added to `bound`."""
        if isinstance(function, functools.partial):
            return self._name_of_partial(function)
        if isinstance(function, _BOUND_BY_AN_OBJECT) and not isinstance(function.__self__, types.ModuleType | None):
            return self._name_of_method(function, function.__self__)
        if _is_importable(function):
            return f"{function.__module__}.{function.__qualname__}"
        if isinstance(function, types.FunctionType):
            return self._name_of_function(function)
        if isinstance(function, _LRU_CACHE):
            return self.name_of(function.__wrapped__)
        if isinstance(function, type):
            return self._name_of_class(function)
        if isinstance(function, types.MethodDescriptorType | types.WrapperDescriptorType):
            return f"{self._name_of_class(function.__objclass__)}.{function.__name__}"
        return self._name_of_instance(function)

    def _name_of_partial(self, function: functools.partial[Any]) -> str:
        name = self.name_of(function.func)
        if function.args or function.keywords:
            arguments = [*enumerate(function.args, 1), *sorted(function.keywords.items())]
            self.bound.append(["partial", [[key, self._text(value, f"argument {key!r}")] for key, value in arguments]])
        return name

    def _name_of_method(self, method: Any, owner: Any) -> str:
        if isinstance(owner, type):
            return f"{self._name_of_class(owner)}.{method.__name__}"
        kind, called = type(owner), getattr(method, "__func__", None)
        name, own = method.__name__, inspect.getattr_static(kind, method.__name__, None)
        if called is not None and called is not own:
            # Decorated without the method's name, called by super(), or bound to an object of another class.
            self.bound.append(["method", self._text(called, "method")])
        if kind.__module__ != "builtins" and _scalar(owner) is None:
            return f"{self._name_of_instance(owner)}.{name}"
        self.bound.append(["object", self._text(owner, "object")])
        return f"{kind.__module__}.{kind.__qualname__}.{name}"

    def _name_of_function(self, function: types.FunctionType) -> str:
        # functools.wraps copies the names of another function; the code still has its own.
        name, module = function.__code__.co_qualname, str(function.__globals__.get("__name__"))
        if "<lambda>" in name:
            raise _NoName("a lambda does not have one")
        if module in _PROGRAM:
            module = self._in_program(function.__code__)
        elif _LOCAL not in name:
            raise _NoName(f"the module {module} has another object, or none, as {name}")
        if number := _number_among_equals(function.__code__, module):
            self.bound.append(["number", number])
        self._bind(function)
        return f"{module}.{name}"

    def _bind(self, function: types.FunctionType) -> None:
        """Add what a function has from elsewhere than its code."""
        inside = _Examination((*self._inside, function))
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if variable == "__class__":
                continue  # of a method that calls super(): its class, which is examined anyway
            try:
                value = cell.cell_contents
            except ValueError:
                raise _NoName(f"its variable {variable!r} has no value yet") from None
            inside.bound.append(["variable", variable, inside._text(value, f"variable {variable!r}")])
        named = function.__code__.co_varnames[: function.__code__.co_argcount]
        defaults = function.__defaults__ or ()
        by_position = zip(named[len(named) - len(defaults) :], defaults, strict=True)
        for parameter, value in [*by_position, *sorted((function.__kwdefaults__ or {}).items())]:
            inside.bound.append(["default", parameter, inside._text(value, f"default of {parameter!r}")])
        self.bound += inside.bound

    def _name_of_class(self, kind: type) -> str:
        """The name of a class. One that a function makes may bind what a closure does."""
        name, module = kind.__qualname__, kind.__module__
        if _is_importable(kind) or any(kind is each for each in self._inside):
            return f"{module}.{name}"
        is_local = _LOCAL in name
        if module in _PROGRAM:
            module = self._in_program(kind)
        elif not is_local:
            raise _NoName(f"the module {module} has another class, or none, as {name}")
        inside = _Examination((*self._inside, kind))
        for base in kind.__bases__:
            if not _is_importable(base):
                self.bound.append(["base", inside._text(base, f"base class {base.__qualname__}")])
        if is_local and not issubclass(kind, enum.Enum):
            for attribute, value in vars(kind).items():
                inside._bind_attribute(attribute, value)
            self.bound += inside.bound
        return f"{module}.{name}"

    def _bind_attribute(self, attribute: str, value: Any) -> None:
        """Add what an attribute of a local class binds."""
        for function in _functions_in(value):
            if not function.__code__.co_qualname.startswith("__create_fn__"):  # made by dataclass, of its fields
                self._bind(function)
                return
        is_ours = attribute.startswith("__") or attribute == "_abc_impl" or inspect.isdatadescriptor(value)
        if not (is_ours or isinstance(value, types.FunctionType)):
            self.bound.append(["attribute", attribute, self._text(value, f"attribute {attribute!r}")])

    def _name_of_instance(self, instance: Any) -> str:
        kind = type(instance)
        name = self._name_of_class(kind)
        if any(instance is each for each in self._inside):  # as of a method that is an attribute
            return name
        try:
            made, state, items, entries = _reduced(instance)
        except Exception:  # a foreign __getstate__ may raise anything
            raise _NoName(f"a {_type_name(kind)} has no stable text") from None
        inside = _Examination((*self._inside, instance))
        if isinstance(state, tuple) and len(state) == 2:  # with __slots__
            state = {**(state[0] or {}), **(state[1] or {})}
        if isinstance(state, dict):
            # Which fields of a pydantic model were given makes no difference.
            named = sorted((str(key), value) for key, value in state.items() if key != "__pydantic_fields_set__")
            for attribute, value in named:
                inside.bound.append(["attribute", attribute, inside._text(value, f"attribute {attribute!r}")])
        elif state is not None:
            inside.bound.append(["state", inside._text(state, "state")])
        for part, values in (("value", made), ("items", items), ("entries", entries)):
            if values:
                inside.bound.append([part, [inside._text(value, part) for value in values]])
        self.bound += inside.bound
        return name

    def _in_program(self, code: Any) -> str:
        """The module of a function or a class of the program, which is distinct from those in other programs."""
        program = sys.modules["__main__"]
        spec, file = getattr(program, "__spec__", None), getattr(program, "__file__", None)
        if spec is not None and spec.name not in _PROGRAM:
            return str(spec.name)  # python -m package.module
        if file is None:
            raise _NoName("it is defined in an interactive session, which is no file")
        try:
            source = inspect.getsource(code)
        except (OSError, TypeError):
            raise _NoName("its source is in no file") from None
        self.bound.append(["program", str(Path(file).resolve()), source])
        return "__main__"

    def _text(self, value: Any, what: str) -> Any:
        """The canonical text of a value that is bound, as a value of JSON. `what` names it in messages."""
        for depth, outer in enumerate(self._inside):
            if value is outer:
                return ["outer", depth]
        kind = type(value)
        if (scalar := _scalar(value)) is not None:
            return scalar
        inside = _Examination((*self._inside, value))
        try:
            if kind in (list, tuple):
                return [kind.__name__, [inside._text(each, "item") for each in value]]
            if kind in (set, frozenset):
                return [kind.__name__, sorted((inside._text(each, "item") for each in value), key=json.dumps)]
            if kind in (dict, types.MappingProxyType):
                entries = [[inside._text(key, "key"), inside._text(each, "entry")] for key, each in value.items()]
                return ["dict", sorted(entries, key=json.dumps)]
            inside = _Examination(self._inside)
            name = inside._name_of_class(kind) if isinstance(value, enum.Enum) else inside.name_of(value)
        except _NoName as why:
            raise _NoName(f"its {what} is a {_type_name(kind)}: {why}") from None
        if isinstance(value, enum.Enum):
            return ["enum", name, inside.bound, value.name, value.value if isinstance(value, enum.Flag) else None]
        return ["object", name, inside.bound]


def _is_importable(value: Any) -> bool:
    """Whether the value is what its module has under its name."""
    module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not (isinstance(module, str) and isinstance(path, str)) or module in _PROGRAM:
        return False
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    return found is value


def _number_among_equals(code: types.CodeType, module: str) -> int:
    """The place of a local function among others of the same name in the same outer function, from 0."""
    outer: Any = sys.modules.get(module)
    for name in code.co_qualname.partition(f".{_LOCAL}")[0].split("."):
        outer = getattr(outer, name, None)
    outer = getattr(inspect.unwrap(outer), "__code__", None) if callable(outer) else None
    equals = [] if outer is None else [each for each in _codes_in(outer) if each.co_qualname == code.co_qualname]
    return equals.index(code) if code in equals else 0


def _codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield each
            yield from _codes_in(each)


def _functions_in(value: Any) -> Iterator[types.FunctionType]:
    """The functions of an attribute of a class."""
    parts = (value.fget, value.fset, value.fdel) if isinstance(value, property) else (value,)
    for part in parts:
        part = getattr(part, "__func__", part) if isinstance(part, staticmethod | classmethod) else part
        if isinstance(part, types.FunctionType):
            yield part


def _reduced(instance: Any) -> tuple[Any, Any, Any, Any]:
    """What an instance is made of when it is unpickled: values, its state, a list's items, a dict's entries."""
    kind: Any = type(instance)
    if kind.__reduce__ is not object.__reduce__ or kind.__reduce_ex__ is not object.__reduce_ex__:
        raise _NoName("it pickles in a way of its own")
    reduced: Any = object.__reduce_ex__(instance, 2)
    _, (_, *made), state, items, entries = reduced
    return made, state, None if items is None else list(items), None if entries is None else list(entries)


def _scalar(value: Any) -> Any:
    """The text of a value without parts; None for another."""
    kind = type(value)
    if value is None:
        return ["None"]
    if kind is int:
        return value if -_SMALL < value < _SMALL else ["int", hex(value)]
    if kind in (bool, float, str):
        return value
    if kind in _SHOWN_AS_THEY_ARE:
        return [kind.__name__, repr(value)]
    match value:
        case bytes() | bytearray() if kind in (bytes, bytearray):
            return ["bytes", value.hex()]
        case Decimal() | dt.timedelta() | uuid.UUID() | zoneinfo.ZoneInfo():
            return [kind.__name__, str(value)]
        case dt.datetime() | dt.time():
            return [kind.__name__, value.isoformat(), value.fold, str(value.tzinfo)]
        case dt.date() | PurePath():
            return [kind.__name__, str(value)]
        case re.Pattern():
            return ["pattern", _scalar(value.pattern), value.flags]
        case types.ModuleType():
            return ["module", value.__name__]
        case logging.Logger():
            return ["logger", value.name]
    return None


def _type_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _shown(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)
