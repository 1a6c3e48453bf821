"""Comparing an event with what its journal would give back: equal in value, and in type at every level.

No code of the values' classes is called: neither `__eq__` (for which 1, True and 1.0 are one value) nor `__hash__` or
`__repr__`. Classes of Python are compared by their attributes, built-in ones by their own rules. An object that can be
compared in neither way counts as changed. Any thread.
"""

from __future__ import annotations

import ipaddress
import operator
import pathlib
import re
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import cached_property, lru_cache
from types import MemberDescriptorType
from typing import Any, Final, Generic
from uuid import UUID

from pydantic_core import MultiHostUrl, TzInfo, Url

from dispatcher.util.foreign import text_of

_QUOTED_CHARACTERS: Final = 80
_HEAP_TYPE: Final = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement
_NOT_STATE: Final = frozenset(("__dict__", "__weakref__", "__pydantic_fields_set__"))
_MISSING: Final = object()

_HASHED: Final = frozenset((str, bytes, int, bool, type(None), date, UUID))
"""Classes whose values are compared by `==`, and found in a set by their hash."""

Found = tuple[str, str]
"""The place of a difference below the values compared, like `.a[0]`, and what is wrong there."""
Differ = Callable[[Any, Any], Found | None]
"""Where and how two values differ; None if they do not."""


def difference(given: Any, back: Any) -> str | None:
    """What differs between an event and the one read back, as "its field a.b[0] is ..."; None if nothing does.

    Raises:
        RecursionError: a value is nested too deeply.
    """
    if type(given) is not type(back):
        return f"it {_would_be(given, back)}"
    found = _states_differ(given, back)
    return None if found is None else f"its field {found[0].removeprefix('.')} {found[1]}"


def quoted(value: Any) -> str:
    """The start of a value's repr, whatever it raises."""
    return text_of(value, _QUOTED_CHARACTERS)


@lru_cache(maxsize=1024)
def slots_of(class_: type) -> tuple[str, ...]:
    """The names of all slots of a class and its bases that hold state."""
    names = []
    for base in class_.__mro__:
        declared = base.__dict__.get("__slots__", ())
        for name in (declared,) if isinstance(declared, str) else declared:
            if name not in _NOT_STATE:
                is_private = name.startswith("__") and not name.endswith("__")
                names.append(f"_{base.__name__.lstrip('_')}{name}" if is_private else name)
    return tuple(names)


def _differs(given: Any, back: Any) -> Found | None:
    kind = type(given)
    if kind is not type(back):
        return "", _would_be(given, back)
    are_same = _SAME.get(kind)
    if are_same is not None:
        return None if are_same(given, back) else ("", _would_be(given, back))
    differ = _CONTAINERS.get(kind)
    if differ is not None:
        return differ(given, back)
    if issubclass(kind, Enum):
        return None if given is back else ("", _would_be(given, back))
    for base in kind.__mro__:
        if base in _CONTAINERS:
            return _CONTAINERS[base](given, back) or _states_differ(given, back)
    if all(base in (object, Generic) or _shows_its_state(base) for base in kind.__mro__):
        return _states_differ(given, back)
    return "", f"is {quoted(given)}, and nothing tells whether {_a(kind)} comes back as it was"


def _states_differ(given: Any, back: Any) -> Found | None:
    given_state, back_state = _state(given), _state(back)
    names: Iterable[str] = given_state
    if given_state.keys() != back_state.keys():
        names = {**given_state, **back_state}
    for name in names:
        value, came_back = given_state.get(name, _MISSING), back_state.get(name, _MISSING)
        if type(value) is type(came_back) and type(value) in _HASHED and value == came_back:
            continue
        if value is _MISSING or came_back is _MISSING:
            default = _class_attribute(type(given), name)
            value = default if value is _MISSING else value
            came_back = default if came_back is _MISSING else came_back
        found = _differs(value, came_back)
        if found is None or isinstance(_class_attribute(type(given), name), cached_property):
            continue
        if came_back is _MISSING:
            return f".{name}", f"is {quoted(value)}, and would be lost"
        if value is _MISSING:
            return f".{name}", f"is not set, and would be {quoted(came_back)}"
        return f".{name}{found[0]}", found[1]
    return None


def _class_attribute(class_: type, name: str) -> Any:
    """What a class has under this name, like the default of a field; _MISSING if nothing, or a slot."""
    for base in class_.__mro__:
        if name in base.__dict__:
            found = base.__dict__[name]
            return _MISSING if isinstance(found, MemberDescriptorType) else found
    return _MISSING


def _shows_its_state(base: type) -> bool:
    """Whether all state of a class is in attributes: a class statement made it, not a library in C."""
    declares = "__slots__" in base.__dict__ or "__dict__" in base.__dict__ or base.__dictoffset__ != 0
    return bool(base.__flags__ & _HEAP_TYPE) and declares


def _state(value: Any) -> dict[str, Any]:
    """All attributes of an object by name, without properties and class attributes."""
    kind = type(value)
    attributes: dict[str, Any] = object.__getattribute__(value, "__dict__") if kind.__dictoffset__ else {}
    slots = slots_of(kind)  # type: ignore[arg-type]  # mypy: a type would not be hashable
    if not slots:
        return attributes
    state = dict(attributes)
    for name in slots:
        with suppress(AttributeError):  # not set
            state[name] = object.__getattribute__(value, name)
    return state


def _items_differ(items: Callable[[Any], Iterable[Any]]) -> Differ:
    def differ(given: Any, back: Any) -> Found | None:
        ours, theirs = list(items(given)), list(items(back))
        if len(ours) != len(theirs) or (isinstance(given, deque) and given.maxlen != back.maxlen):
            return "", _would_be(given, back)
        for index, (value, came_back) in enumerate(zip(ours, theirs, strict=True)):
            if type(value) is type(came_back) and type(value) in _HASHED and value == came_back:
                continue
            found = _differs(value, came_back)
            if found is not None:
                return f"[{index}]{found[0]}", found[1]
        return None

    return differ


def _dicts_differ(given: dict[Any, Any], back: dict[Any, Any]) -> Found | None:
    # In order, which JSON keeps: so no key is looked up, which would call its __hash__ and __eq__.
    ours, theirs = list(dict.items(given)), list(dict.items(back))
    if len(ours) != len(theirs):
        return "", _would_be(given, back)
    if isinstance(given, defaultdict) and given.default_factory is not back.default_factory:  # type: ignore[attr-defined]
        return "", _would_be(given, back)
    for (key, value), (back_key, came_back) in zip(ours, theirs, strict=True):
        if not (type(key) is type(back_key) is str and key == back_key) and _differs(key, back_key) is not None:
            return "", f"has the key {_would_be(key, back_key, verb='')}"
        found = _differs(value, came_back)
        if found is not None:
            return f"[{quoted(key)}]{found[0]}", found[1]
    return None


def _sets_differ(given: Any, back: Any) -> Found | None:
    base = set if isinstance(given, set) else frozenset
    ours, theirs = list(base.__iter__(given)), list(base.__iter__(back))
    if len(ours) != len(theirs):
        return "", _would_be(given, back)
    if all(type(item) in _HASHED for item in ours):
        known = {(type(item), item) for item in theirs if type(item) in _HASHED}
        return None if all((type(item), item) in known for item in ours) else ("", _would_be(given, back))
    for item in ours:  # the order of a set means nothing: each is looked for among all that are left
        for index, candidate in enumerate(theirs):
            if _differs(item, candidate) is None:
                del theirs[index]
                break
        else:
            return "", f"holds {quoted(item)}, which would be lost or changed"
    return None


def _same_float(given: float, back: float) -> bool:
    return struct.pack("<d", given) == struct.pack("<d", back) or (given != given and back != back)


def _same_moment(given: datetime | time, back: datetime | time) -> bool:
    """Fields, fold and offset; a zone of which only the present offset would come back is not the same."""
    if given.replace(tzinfo=None) != back.replace(tzinfo=None) or given.fold != back.fold:
        return False
    zone, zone_back = given.tzinfo, back.tzinfo
    if zone is None or zone_back is None:
        return zone is zone_back
    offset = zone.utcoffset(None)
    return offset is not None and offset == zone_back.utcoffset(None)


def _would_be(given: Any, back: Any, verb: str = "is ") -> str:
    ours, theirs = quoted(given), quoted(back)
    if ours == theirs or type(given) is not type(back):
        ours, theirs = f"{ours} ({_a(type(given))})", f"{theirs} ({_a(type(back))})"
    return f"{verb}{ours}, and would come back as {theirs}"


def _a(kind: type) -> str:
    return f"{'an' if kind.__name__[:1] in 'aeiouAEIOU' else 'a'} {kind.__name__}"


_INTERCHANGEABLE: Final[tuple[type, ...]] = (
    *(str, bytes, bytearray, int, bool, type(None), type(...), range, date, timedelta, timezone),
    *(UUID, Fraction, re.Pattern, TzInfo, Url, MultiHostUrl),
    *(kind for kind in (*vars(ipaddress).values(), *vars(pathlib).values()) if isinstance(kind, type)),
)
"""Built-in classes of which two equal instances are interchangeable."""
_SAME: Final[dict[type, Callable[[Any, Any], bool]]] = {
    **dict.fromkeys(_INTERCHANGEABLE, operator.eq),
    float: _same_float,
    complex: lambda given, back: _same_float(given.real, back.real) and _same_float(given.imag, back.imag),
    Decimal: lambda given, back: given.as_tuple() == back.as_tuple(),
    **dict.fromkeys((datetime, time), _same_moment),
}
"""Whether two values of a built-in class without parts are the same."""
_CONTAINERS: Final[dict[type, Differ]] = {
    **{kind: _items_differ(kind.__iter__) for kind in (list, tuple, deque)},
    **dict.fromkeys((dict, Counter, defaultdict, OrderedDict), _dicts_differ),
    **dict.fromkeys((set, frozenset), _sets_differ),
}
"""How to compare the parts of two containers. Subclasses may have attributes as well."""
