"""JSON of a request's body, and the fields of its objects with their types. Errors name the key.

Hadoop's servers take numbers and booleans as texts, too (`"memory": "1024"`, `"unmanaged-AM": "false"`), and one object
where a list is meant. So does this; whatever else is of a wrong type is an error.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NoReturn

from dispatcher.util.terminal import one_line
from dispatcher.web.plain_answers import Refusal

MOST_LONG: Final = 2**53
"""Less than Java's long: beyond this, tools that read JSON numbers as doubles get others."""
_NUMBER: Final = re.compile(r"-?\d{1,20}", re.ASCII)
_BOOLEANS: Final = {"true": True, "false": False}


def bad(where: str, problem: str) -> NoReturn:
    raise Refusal(400, f"{one_line(where, 300)}: {problem}" if where else problem)


def object_of(body: bytes) -> Fields:
    """The object that is the body.

    Raises:
        Refusal: 400: it is not JSON as of RFC 8259 in UTF-8, is not an object, or has a key twice.
    """
    try:
        content = json.loads(
            body.decode("utf-8-sig"),
            object_pairs_hook=_without_duplicates,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except Refusal:
        raise
    except RecursionError:
        bad("", "the body is nested too deeply")
    except UnicodeDecodeError:
        bad("", "the body is not UTF-8")
    except ValueError as error:  # no JSON, or a number of thousands of digits
        bad("", f"the body is not JSON: {one_line(str(error), 300)}" if body.strip() else "the body is empty")
    if not isinstance(content, dict):
        bad("", f"the body is {_kind(content)}; expected an object")
    return Fields(content)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                bad(key, "this key is there twice")
            seen.add(key)
    return found


def _no_constant(name: str) -> NoReturn:
    bad("", f"{name} is not a number in JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        bad("", f"{one_line(text, 40)} is too large a number")
    return number


class Fields:
    """The fields of an object. Null stands for a field that is not there; further fields do not matter.

    Each method raises Refusal (400), which names the key, for a value of another type.
    """

    def __init__(self, content: Mapping[str, Any], path: str = "") -> None:
        self._content = content
        self._path = path

    def where(self, key: str) -> str:
        """The key with those of the objects around it, such as `resource.memory`."""
        return f"{self._path}.{key}" if self._path else key

    def has(self, key: str) -> bool:
        return self._content.get(key) is not None

    def text(self, key: str, default: str | None = None) -> str:
        """`default` None: the field is required."""
        value = self._content.get(key)
        if value is None:
            if default is None:
                bad(self.where(key), "is missing; expected a text")
            return default
        return checked_text(value, self.where(key))

    def optional_text(self, key: str) -> str | None:
        return self.text(key) if self.has(key) else None

    def number(self, key: str, default: int | None, least: int, most: int) -> int:
        """A whole number. `default` None: the field is required."""
        value, where = self._content.get(key), self.where(key)
        if value is None:
            if default is None:
                bad(where, "is missing; expected a whole number")
            return default
        if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            bad(where, f"is {_kind(value)}; expected a whole number")
        if not least <= value <= most:
            bad(where, f"is {_shown(value)}; expected a whole number from {least:,} to {most:,}")
        return value

    def flag(self, key: str) -> bool:
        """False if it is not there."""
        value = self._content.get(key)
        if value is None:
            return False
        if isinstance(value, str):
            value = _BOOLEANS.get(value.strip().lower(), value)
        if not isinstance(value, bool):
            bad(self.where(key), f"is {_kind(value)}; expected true or false")
        return value

    def choice(self, key: str, default: str, choices: tuple[str, ...]) -> str:
        """One of the names, in any case."""
        value = self.text(key, default)
        if value.upper() not in choices:
            bad(self.where(key), f"is {one_line(value, 100)!r}; expected one of {', '.join(choices)}")
        return value.upper()

    def fields(self, key: str) -> Fields:
        """An object; an empty one if it is not there."""
        value, where = self._content.get(key), self.where(key)
        if value is None:
            return Fields({}, where)
        if not isinstance(value, dict):
            bad(where, f"is {_kind(value)}; expected an object")
        return Fields(value, where)

    def texts(self, key: str, inner: str) -> tuple[str, ...]:
        """`{"inner": "text"}` or `{"inner": ["text", ...]}`, or what would stand in it."""
        value, where = self._content.get(key), self.where(key)
        if isinstance(value, dict):
            value, where = value.get(inner), f"{where}.{inner}"
        if value is None:
            return ()
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, list):
            bad(where, f"is {_kind(value)}; expected a text or a list of texts")
        return tuple(checked_text(each, f"{where}[{index}]") for index, each in enumerate(value))

    def objects(self, key: str) -> list[Fields]:
        """A list of objects, or one object."""
        value, where = self._content.get(key), self.where(key)
        if isinstance(value, dict):
            return [Fields(value, where)]
        if value is not None and not isinstance(value, list):
            bad(where, f"is {_kind(value)}; expected a list of objects")
        for index, each in enumerate(value or ()):
            if not isinstance(each, dict):
                bad(f"{where}[{index}]", f"is {_kind(each)}; expected an object")
        return [Fields(each, f"{where}[{index}]") for index, each in enumerate(value or ())]

    def entries(self, key: str) -> Iterator[tuple[str, Any, str]]:
        """Of a map, `{"entry": [{"key": ..., "value": ...}, ...]}`: each key, its value, and where that is.

        One object may stand in place of the list.
        """
        value = self._content.get(key)
        return _entries(value, self.where(key)) if value is not None else iter(())

    def own_entries(self) -> Iterator[tuple[str, Any, str]]:
        """The entries of this object, which is a map in the same form."""
        return _entries(self._content, self._path)

    def text_map(self, key: str) -> dict[str, str]:
        """A map with texts as values: null is the empty one, and numbers and booleans are taken as JSON writes them."""
        found = {}
        for name, value, where in self.entries(key):
            if isinstance(value, int) and abs(value) <= MOST_LONG:  # as JSON writes it; so do Hadoop's servers
                value = json.dumps(value)
            found[name] = "" if value is None else checked_text(value, where)
        return found


def _entries(value: Any, where: str) -> Iterator[tuple[str, Any, str]]:
    if not isinstance(value, dict) or (value and "entry" not in value):
        bad(where, f'is {_kind(value)}; expected {{"entry": [{{"key": ..., "value": ...}}, ...]}}')
    entries = value.get("entry")
    if isinstance(entries, dict):
        entries = [entries]
    if entries is not None and not isinstance(entries, list):
        bad(f"{where}.entry", f"is {_kind(entries)}; expected a list of objects")
    seen: set[str] = set()
    for index, entry in enumerate(entries or ()):
        at = f"{where}.entry[{index}]"
        if not isinstance(entry, dict):
            bad(at, f"is {_kind(entry)}; expected an object with key and value")
        name = Fields(entry, at).text("key")
        if name in seen:
            bad(at, f"the key {one_line(name, 100)!r} is there twice")
        seen.add(name)
        yield name, entry.get("value"), f"{at}.value"


def checked_text(value: Any, where: str) -> str:
    """A text that files, environments and other programs can hold.

    Raises:
        Refusal: 400: it is no text, or has a NUL or a lone surrogate.
    """
    if not isinstance(value, str):
        bad(where, f"is {_kind(value)}; expected a text")
    if "\0" in value:
        bad(where, "has a NUL character")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            bad(where, "has half of a surrogate pair, which is no character")
    return value


def _shown(number: int) -> str:
    return f"{number:,}" if abs(number) < 10**30 else "a huge number"


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}
    name = names.get(type(value), "something else")
    if isinstance(value, float):
        return f"{value!r}"
    return name
