"""Event classes at their declaration: what JSON can never give back, and what it always does.

Both are read from the schema that pydantic makes of a class. `check_declaration` refuses fields that no value survives.
`lossless` tells, for classes of plain fields only, that an event comes back equal without reading it back. What lies in
between is left to a comparison of each event. Any thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from enum import Enum, Flag
from operator import attrgetter
from typing import Any, Final, get_type_hints

from pydantic import PydanticUserError, SecretBytes, SecretStr, TypeAdapter
from pydantic.dataclasses import is_pydantic_dataclass
from pydantic_core import to_json

from dispatcher.errors import InvalidTypeError
from dispatcher.journal.format.round_trip import quoted, slots_of

Schema = Mapping[str, Any]

_NEVER: Final = {
    "callable": "a callable",
    "generator": "an iterable, which is read once",
    "is-instance": "an instance of a class that pydantic does not know",
    "is-subclass": "a class",
}
_NO_KEYS: Final = frozenset(("tuple", "list", "set", "frozenset", "dict", "model", "dataclass", "typed-dict"))
_PLAIN: Final[dict[str, type]] = {"str": str, "int": int, "float": float, "bool": bool, "none": type(None)}
_HARMLESS: Final = frozenset(("title", "frozen", "validate_assignment", "hide_input_in_errors"))
"""Settings of a class that change neither what is written nor what is read."""
_FIELD: Final = frozenset(("type", "name", "schema", "metadata", "init", "kw_only", "frozen"))
_DEFAULT: Final = frozenset(("schema", "default", "default_factory", "copy_default"))
_ENUM: Final = frozenset(("cls", "members", "ref", "sub_type"))
_CONTAINERS: Final[dict[str, type]] = {"list": list, "set": set, "frozenset": frozenset}
_STR: Final = frozenset((str,))
LONGEST_LINE: Final = 4300
"""Characters. pydantic reads no number of more digits, and a shorter line has none."""


def adapter_of(class_: type) -> TypeAdapter[Any]:
    """What reads events of a class.

    Raises:
        TypeError: a field can never be kept; the message names it.
    """
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(class_)
        schema = adapter.core_schema
        schema["type"]  # raises if the class refers to one that is not defined
    except Exception as error:  # pydantic raises many kinds, all about the class's fields
        said = _first_line(error)
        if isinstance(error, PydanticUserError) and error.code == "class-not-fully-defined":
            said = "it refers to a class that is not defined yet. Register it once that class is"
        raise InvalidTypeError(f"{_culprit(class_)} cannot be kept in a journal: {said}") from error
    _Check(schema).check(schema, class_.__name__)
    return adapter


class Lossless:
    """Whether values of one class come back equal, judged by the types of what they hold. Any thread."""

    def __init__(self, class_: type, fields: Mapping[str, _Rule]) -> None:
        self.is_simple: bool = all(rule.is_simple for rule in fields.values())  # never changes
        """Pydantic's serializer of the class writes those values as `to_json` does, and in half the time."""
        self._allowed = [rule.types for rule in fields.values()]  # never changes
        self._kinds: set[tuple[type, ...]] = set()  # found allowed; any thread adds and looks, each with one call
        names = tuple(fields)
        self._get: Callable[[Any], tuple[Any, ...]] = (
            attrgetter(*names) if len(names) > 1 else lambda value: tuple(getattr(value, name) for name in names)
        )
        self._attributes = len(fields) if class_.__dictoffset__ else None  # None: slots only
        checks = [(index, rule.check) for index, rule in enumerate(fields.values()) if rule.check is not None]
        self._checks = checks  # never changes; by the index of their field

    def keeps(self, value: Any) -> bool:
        values = self._get(value)
        kinds = tuple(map(type, values))
        if kinds not in self._kinds and not self._learn(kinds):
            return False
        if self._attributes is not None and len(value.__dict__) != self._attributes:
            return False
        for index, check in self._checks:
            part = values[index]
            if part is not None and not check(part):
                return False
        return True

    def _learn(self, kinds: tuple[type, ...]) -> bool:
        if all(kind in allowed for kind, allowed in zip(kinds, self._allowed, strict=True)):
            self._kinds.add(kinds)
            return True
        return False


def lossless(class_: type, schema: Schema, *, needs: str | None = None) -> Lossless | None:
    """Which values of the class certainly come back equal from a line shorter than LONGEST_LINE.

    None if some field can be judged only after reading a value back, or there is no field of the name `needs`.
    """
    try:
        rules = _Rules(_definitions(schema)).fields_of_root(schema)
    except _UnknownError:
        return None
    return Lossless(class_, rules) if needs is None or needs in rules else None


class _UnknownError(Exception):
    """A schema has a part of which nothing is known."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Rule:
    """The values that certainly come back: of one of these types and, except None, passing the check."""

    types: frozenset[type]
    check: Callable[[Any], bool] | None = None
    is_simple: bool = False
    """There is one way to write them. A float, for example, may be written as null or as NaN."""


class _Rules:
    """The rules for the fields of classes. Raises _UnknownError for a field without a rule."""

    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions
        self._under_way: list[str] = []  # references being followed

    def fields_of_root(self, schema: Schema) -> dict[str, _Rule]:
        """The same for the whole schema of an event class. Raises _UnknownError if a validator is around the class."""
        if schema["type"] == "definitions":
            schema = schema["schema"]
        if schema["type"] == "definition-ref":
            schema = self._definitions[schema["schema_ref"]]
        return self.fields(schema)

    def fields(self, schema: Schema) -> dict[str, _Rule]:
        """The rule of each field of a model or dataclass."""
        if schema["type"] not in ("model", "dataclass"):
            raise _UnknownError
        class_, inner = schema["cls"], schema["schema"]
        names = frozenset(name for name, _ in _fields(inner))
        if not _is_plain_class(class_, schema, names):
            raise _UnknownError
        rules = {}
        for name, field in _fields(inner):
            if name.startswith("_") or field.keys() - _FIELD or not field.get("init", True):
                raise _UnknownError
            rules[name] = self._rule(field["schema"])
        return rules

    def _rule(self, schema: Schema) -> _Rule:
        kind, keys = schema["type"], schema.keys() - {"type", "metadata"}
        if kind == "definition-ref":
            return self._follow(schema["schema_ref"])
        if kind == "default" and keys <= _DEFAULT:
            return self._rule(schema["schema"])
        if kind == "nullable" and keys == {"schema"}:
            inner = self._rule(schema["schema"])
            return _Rule(inner.types | {type(None)}, inner.check, inner.is_simple)
        if kind in _PLAIN and not keys:
            return _Rule(frozenset((_PLAIN[kind],)), is_simple=kind != "float")
        if kind == "datetime" and keys <= {"microseconds_precision"}:
            return _Rule(frozenset((datetime,)), _is_plain_moment)
        if kind == "enum" and keys <= _ENUM and not issubclass(schema["cls"], Flag):
            return _Rule(frozenset((schema["cls"],)), is_simple=all(map(_is_simple_member, schema["cls"])))
        if kind in ("list", "set", "frozenset") and keys == {"items_schema"}:
            return _Rule(frozenset((_CONTAINERS[kind],)), _items_check(self._rule(schema["items_schema"])))
        if kind == "tuple" and keys == {"items_schema", "variadic_item_index"} and len(schema["items_schema"]) == 1:
            return _Rule(frozenset((tuple,)), _items_check(self._rule(schema["items_schema"][0])))
        if kind == "dict" and keys == {"keys_schema", "values_schema"} and schema["keys_schema"] == {"type": "str"}:
            return _Rule(frozenset((dict,)), _dict_check(_items_check(self._rule(schema["values_schema"]))))
        if kind in ("model", "dataclass"):
            return _Rule(frozenset((schema["cls"],)), Lossless(schema["cls"], self.fields(schema)).keeps)
        raise _UnknownError

    def _follow(self, reference: str) -> _Rule:
        if reference in self._under_way or reference not in self._definitions:
            raise _UnknownError  # a class that holds instances of itself
        self._under_way.append(reference)
        rule = self._rule(self._definitions[reference])
        self._under_way.pop()
        return rule


def _is_plain_class(class_: type, schema: Schema, names: frozenset[str]) -> bool:
    """Whether instances hold their fields and nothing else, and are written and read without code of the class."""
    inner = schema["schema"]
    if inner["type"] not in ("dataclass-args", "model-fields") or inner.get("computed_fields"):
        return False
    if any(schema.get(key) for key in ("custom_init", "root_model", "post_init")):
        return False
    if {"serialization", "extra_behavior", "extras_schema"} & (schema.keys() | inner.keys()):
        return False
    if schema.get("config", {}).keys() - _HARMLESS:
        return False
    if any(getattr(class_, name) is not getattr(object, name) for name in ("__new__", "__getattribute__")):
        return False
    if schema["type"] == "model":
        return not getattr(class_, "__private_attributes__", True)
    slots = frozenset(slots_of(class_))
    has_only_its_slots = not slots or (slots == names and class_.__dictoffset__ == 0)
    return has_only_its_slots and names == {field.name for field in dataclasses.fields(class_)}


def _is_simple_member(member: Enum) -> bool:
    return type(member._value_) in (str, int)


def _is_plain_moment(moment: datetime) -> bool:
    return not moment.fold and (moment.tzinfo is None or moment.tzinfo is UTC)


def _items_check(rule: _Rule) -> Callable[[Iterable[Any]], bool]:
    types, check = rule.types, rule.check
    if check is None:
        return lambda items: types.issuperset(map(type, items))
    return lambda items: all(type(item) in types and (item is None or check(item)) for item in items)


def _dict_check(values_check: Callable[[Iterable[Any]], bool]) -> Callable[[dict[Any, Any]], bool]:
    return lambda given: _STR.issuperset(map(type, given)) and values_check(given.values())


class _Check:
    """Refuses the fields of a schema that no value survives."""

    def __init__(self, schema: Schema) -> None:
        self._definitions = _definitions(schema)
        self._seen: set[str] = set()  # references followed

    def check(self, schema: Schema, path: str) -> None:
        kind = schema["type"]
        if kind == "definition-ref":
            if schema["schema_ref"] not in self._seen:
                self._seen.add(schema["schema_ref"])
                self.check(self._definitions[schema["schema_ref"]], path)
            return
        if "serialization" in schema or kind in ("function-plain", "function-wrap", "function-before"):
            if kind == "json-or-python" and _is_secret(schema["json_schema"].get("function", {}).get("function")):
                raise _refused(path, "a secret, of which asterisks are written")
            return  # the user's own code may bring back anything
        if kind in ("model", "dataclass"):
            self._check_fields(schema, schema["cls"])
        elif kind in _NEVER:
            raise _refused(path, _NEVER[kind])
        elif kind == "enum":
            _check_members(schema["cls"], path)
        elif kind == "dict" and schema.get("keys_schema", {}).get("type") in _NO_KEYS:
            raise _refused(path, f"a dict whose keys are of the kind {schema['keys_schema']['type']}")
        else:
            for part in _parts(schema):
                self.check(part, path)

    def _check_fields(self, schema: Schema, class_: type) -> None:
        is_standard = dataclasses.is_dataclass(class_) and not is_pydantic_dataclass(class_)
        for name, field in _fields(schema["schema"]):
            path = f"{class_.__name__}.{name}"
            if field["schema"]["type"] != "default" and field.get("init", True):
                if field.get("init_only"):
                    raise _refused(path, "an InitVar without a default, which is not written")
                if field.get("serialization_exclude") and not is_standard:
                    raise _refused(path, "a field that is excluded and has no default")
                written = name if is_standard else field.get("serialization_alias", name)
                read = field.get("validation_alias", name)
                if isinstance(read, str) and read != written and not _reads_by_name(schema):
                    raise _refused(path, f"a field that is written as {written} and read as {read}")
            self.check(field["schema"], path)


def _check_members(enum: type[Enum], path: str) -> None:
    adapter = TypeAdapter(enum)
    for member in enum:
        try:
            is_back = adapter.validate_json(to_json(member)) is member
        except Exception:
            is_back = False
        if not is_back:
            raise _refused(path, f"{enum.__name__}.{member._name_}, whose value is {quoted(member._value_)}")


def _refused(path: str, what: str) -> TypeError:
    return TypeError(
        f"{path} cannot be kept in a journal: JSON does not give back {what}. Give it a type that comes back from JSON."
    )


def _reads_by_name(schema: Schema) -> bool:
    config = schema.get("config", {})
    return bool(config.get("populate_by_name") or config.get("validate_by_name"))


def _is_secret(function: Any) -> bool:
    return isinstance(function, type) and issubclass(function, (SecretStr, SecretBytes))


def _fields(schema: Schema) -> Iterator[tuple[str, Schema]]:
    fields = schema.get("fields", ())  # a dict for a model, a list for a dataclass
    if isinstance(fields, Mapping):
        yield from fields.items()
    else:
        for field in fields:
            yield field["name"], field


def _parts(schema: Schema) -> Iterator[Schema]:
    """The schemas inside a schema that pydantic uses for JSON."""
    for key, value in schema.items():
        if key in ("python_schema", "strict_schema", "metadata", "definitions", "computed_fields"):
            continue
        for part in value if isinstance(value, list) else (value,):
            inner = part[0] if isinstance(part, tuple) and part else part  # the choices of a union may have labels
            if isinstance(inner, Mapping) and isinstance(inner.get("type"), str):
                yield inner


def _definitions(schema: Schema) -> dict[str, Schema]:
    return {inner["ref"]: inner for inner in schema.get("definitions", ()) if "ref" in inner}


def _culprit(class_: type) -> str:
    """The class, or its first field of which pydantic makes no schema."""
    try:
        hints = get_type_hints(class_, include_extras=True)
    except Exception:
        return class_.__name__
    for name, hint in hints.items():
        try:
            TypeAdapter(hint)
        except Exception:
            return f"{class_.__name__}.{name}"
    return class_.__name__


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
