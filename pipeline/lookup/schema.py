"""Columns of a lookup table: names, and types by the names that Spark SQL gives them (`bigint`, `decimal(10,2)`).

Types are text, so that nothing here needs Spark; Spark's own `simpleString()` gives the same text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pipeline.lookup.errors import LookupTableError

Key: TypeAlias = tuple[object, ...]
"""The values of the key columns, in the order of `LookupSchema.key`."""

Row: TypeAlias = tuple[object, ...]
"""The values of the other columns, in the order of `LookupSchema.values`."""

_ALIASES = {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint", "real": "float"}
_FAMILIES = {
    "boolean": "boolean",
    "tinyint": "number",
    "smallint": "number",
    "int": "number",
    "bigint": "number",
    "decimal": "number",
    "float": "float",
    "double": "float",
    "string": "string",
    "varchar": "string",
    "char": "string",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
}
_NESTED = {"array", "map", "struct"}
_DECIMAL_ALONE = "decimal(10,0)"


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `native` is what the database calls its type; empty where it has no name of its own for it."""

    name: str
    type: str
    native: str = ""

    @property
    def family(self) -> str:
        """Columns of one family can be compared as keys; a nested type is a family of its own."""
        return family_of(self.type)


@dataclass(frozen=True, slots=True)
class LookupSchema:
    """What a lookup reads of a table: by which columns it looks up, and which others it returns."""

    key: tuple[Column, ...]
    values: tuple[Column, ...]


def base_of(type_name: str) -> str:
    """A type's name without its parameters: `decimal` of `decimal(10,2)`."""
    return re.split(r"[(<\s]", type_name, maxsplit=1)[0].lower()


def family_of(type_name: str) -> str:
    return _FAMILIES.get(base_of(type_name), type_name)


def canonical_type(type_name: str) -> str:
    """A type as Spark SQL writes it.

    Raises:
        LookupTableError: it is no type that we know.
    """
    text = type_name.strip()
    base = base_of(text)
    if base in _NESTED:
        return text  # the names of a struct's fields keep their case
    text = re.sub(r"\s+", "", text.lower())
    base_name = _ALIASES.get(base, base)
    if base_name not in _FAMILIES:
        known = ", ".join(sorted(_FAMILIES.keys() | _NESTED))
        raise LookupTableError(f"{type_name!r} is no type of a column. Known are: {known}.")
    if text == "decimal":
        return _DECIMAL_ALONE
    return base_name + text[len(base) :]


def parse_columns(ddl: str) -> tuple[Column, ...]:
    """The columns of `"node string, memory bigint, tags array<string>"`; a name may stand in backquotes.

    Raises:
        LookupTableError: that is not what it looks like, a type is unknown, or a name comes twice.
    """
    columns = []
    for part in _split(ddl):
        found = re.fullmatch(r"\s*(?:`(?P<quoted>[^`]+)`|(?P<plain>[^\s`:]+))\s*[\s:]\s*(?P<type>\S.*?)\s*", part, re.S)
        if found is None:
            raise LookupTableError(f'cannot read {part.strip()!r} in {ddl!r}. Write "name type, name type, ...".')
        columns.append(Column(found["quoted"] or found["plain"], canonical_type(found["type"])))
    check_distinct((column.name for column in columns), f"the columns {ddl!r}")
    return tuple(columns)


def _split(ddl: str) -> list[str]:
    """Cut at the commas that are in no bracket."""
    parts, depth, start = [], 0, 0
    for at, character in enumerate(ddl):
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            parts.append(ddl[start:at])
            start = at + 1
    return [*parts, ddl[start:]]


def check_distinct(names: Iterable[str], what: str) -> None:
    """Refuse names that come twice.

    Raises:
        LookupTableError: some do.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise LookupTableError(f"{what}: {name!r} comes twice. Name each column once.")
        seen.add(name)


def choose(
    table: str, present: Mapping[str, Column], key_columns: Sequence[str], wanted: Sequence[str] | None
) -> LookupSchema:
    """The schema of a lookup: the key's columns, and those `wanted` (None: all) of the others.

    Raises:
        LookupTableError: a column is not there; the message names those that are.
    """
    if not key_columns:
        raise LookupTableError(f"{table}: a lookup needs a key. Name one or more columns in `on`.")
    check_distinct(key_columns, f"{table}: the key")
    check_distinct(wanted or (), f"{table}: columns")
    for name in (*key_columns, *(wanted or ())):
        if name not in present:
            raise LookupTableError(f"{table} has no column {name!r}; it has {', '.join(present)}.")
    others = present if wanted is None else wanted
    return LookupSchema(
        tuple(present[name] for name in key_columns),
        tuple(present[name] for name in others if name not in key_columns),
    )


def check_key_types(table: str, schema: LookupSchema, names: Sequence[str], types: Sequence[str]) -> None:
    """Refuse keys of the input that cannot equal the table's. `names`, `types`: the input's, in the order of the key.

    Raises:
        LookupTableError: a pair of types does not fit.
    """
    for column, name, type_name in zip(schema.key, names, types, strict=True):
        if family_of(type_name) != column.family:
            raise LookupTableError(
                f"{table}: the key {name!r} of the input is {type_name}, but the table's column {column.name!r} is "
                f"{column.type}. Cast one of them, as in col({name!r}).cast({column.type!r})."
            )
