"""Lookup tables: their columns, and the protocols of a table and of a reader.

The types of columns have Spark SQL's names (`bigint`, `decimal(10,2)`). They are text, equal to Spark's
`simpleString()`, so that nothing here needs Spark.

A table is a description that pickles, made on the driver and sent to the workers; it holds no connection. Its reader,
made in a worker, holds them. All of the reader's methods are called on the asyncio loop of the function's host, so it
needs no locks.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Protocol, TypeAlias

from pipeline.lookup.errors import LookupTableError

LookupKey: TypeAlias = tuple[object, ...]
"""The values of the key columns, in the order of `LookupSchema.key`."""

LookupRow: TypeAlias = tuple[object, ...]
"""The values of the other columns, in the order of `LookupSchema.values`."""

_ALIASES = {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint", "real": "float"}
_FAMILIES = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint", "decimal"), "number"),
    **dict.fromkeys(("float", "double"), "float"),
    **dict.fromkeys(("string", "varchar", "char"), "string"),
    **{name: name for name in ("boolean", "binary", "date", "timestamp", "timestamp_ntz")},
}
_NESTED = {"array", "map", "struct"}
_DECIMAL = re.compile(r"decimal(?:\((\d+)(?:,(\d+))?\))?")


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `native` is the database's name of its type, or empty."""

    name: str
    type: str
    native: str = ""


@dataclass(frozen=True, slots=True)
class LookupSchema:
    """The key columns of a lookup, and the other columns that it returns."""

    key: tuple[Column, ...]
    values: tuple[Column, ...]


class LookupReader(Protocol):
    """Reads one table, by one schema. Host's loop only.

    A reader that repeats queries itself may count them in an attribute `repeats`, an int. One that reads columns rather
    than rows is a `pipeline.lookup.answers.ColumnReader`.
    """

    @property
    def parallelism(self) -> int | None:
        """Maximum concurrent lookups; keys beyond it wait and are joined. None: each lookup starts at once."""

    async def open(self) -> None:
        """Prepare to read. An error keeps the task from starting."""

    async def lookup(self, keys: Sequence[LookupKey]) -> Mapping[LookupKey, Sequence[LookupRow] | Exception]:
        """The rows, or the error, of each of the distinct `keys`; a key without rows may be left out.

        Several lookups may run at once. Cancelling one releases its connection.

        Raises:
            TableUnavailableError: no key could be looked up; worth a retry. LookupTableError: a retry does not help.
        """

    def scan(self) -> AsyncIterator[Sequence[tuple[LookupKey, LookupRow]]]:
        """All rows of the table with their keys, in chunks; rows with a null in the key may be left out."""

    async def close(self) -> None:
        """Close the connections; running lookups fail. Called once, after the last lookup."""


class LookupTable(Protocol):
    """A table to look up in. It pickles, and its repr and errors never show a password.

    If your reader takes any number of keys at once, set `takes_many_keys = True`. `lookup_join` then asks for up to
    10,000 of them.
    """

    @property
    def name(self) -> str:
        """Its name in messages."""

    @property
    def can_scan(self) -> bool:
        """Whether a reader can `scan`, which a full cache needs."""

    def read_schema(self, key_columns: Sequence[str]) -> LookupSchema:
        """Read the table's columns, with `key_columns` as the key. Thread-safe. It blocks, on a new connection.

        Raises:
            LookupTableError: the table or a column doesn't exist, or a column's type is unknown.
            TableUnavailableError: the database can't be reached.
        """

    def reader(self, schema: LookupSchema) -> LookupReader:
        """Return a reader for the schema that `read_schema` returned. Opens nothing yet."""


def base_of(type_name: str) -> str:
    """A type's name without its parameters: `decimal` for `decimal(10,2)`."""
    return re.split(r"[(<\s]", type_name, maxsplit=1)[0].lower()


def family_of(type_name: str) -> str:
    """Key columns of one family can be compared; each nested type is its own family."""
    return _FAMILIES.get(base_of(type_name), type_name)


def canonical_type(type_name: str) -> str:
    """A type as Spark SQL writes it. Raises LookupTableError for an unknown one."""
    text = type_name.strip()
    base = base_of(text)
    if base in _NESTED:
        return text  # the names of a struct's fields keep their case
    text = re.sub(r"\s+", "", text.lower())
    base_name = _ALIASES.get(base, base)
    decimal = _DECIMAL.fullmatch(text)
    if base_name not in _FAMILIES or (base_name == "decimal" and decimal is None):
        known = ", ".join(sorted(_FAMILIES.keys() | _NESTED))
        raise LookupTableError(f"{type_name!r} is not a column type. Known types: {known}.")
    if decimal is not None:
        return f"decimal({decimal[1] or 10},{decimal[2] or 0})"
    return base_name + text[len(base) :]


def parse_columns(ddl: str) -> tuple[Column, ...]:
    """Parse columns such as `"node string, memory bigint, tags array<string>"`; a name may be in backquotes.

    Raises:
        LookupTableError: the text cannot be parsed, a type is unknown, or a name is repeated.
    """
    columns = []
    for part in _split(ddl):
        found = re.fullmatch(r"\s*(?:`(?P<quoted>[^`]+)`|(?P<plain>[^\s`:]+))\s*[\s:]\s*(?P<type>\S.*?)\s*", part, re.S)
        if found is None:
            raise LookupTableError(f'cannot parse {part.strip()!r} in {ddl!r}. Write "name type, name type, ...".')
        columns.append(Column(found["quoted"] or found["plain"], canonical_type(found["type"])))
    check_distinct((column.name for column in columns), f"the columns {ddl!r}")
    return tuple(columns)


def _split(ddl: str) -> list[str]:
    """Split at the commas outside brackets."""
    parts, depth, start = [], 0, 0
    for at, character in enumerate(ddl):
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            parts.append(ddl[start:at])
            start = at + 1
    return [*parts, ddl[start:]]


def check_distinct(names: Iterable[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise LookupTableError(f"{what}: {name!r} is repeated. Name each column once.")
        seen.add(name)


def choose(
    table: str, present: Mapping[str, Column], key_columns: Sequence[str], wanted: Sequence[str] | None
) -> LookupSchema:
    """The schema of a lookup: the key's columns, and the `wanted` (None: all) others.

    Raises:
        LookupTableError: a column does not exist; the message lists those that do.
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
    """Raise LookupTableError for an input key that cannot equal the table's. `names`, `types`: in the key's order."""
    for column, name, type_name in zip(schema.key, names, types, strict=True):
        if family_of(type_name) != family_of(column.type):
            raise LookupTableError(
                f"{table}: the key {name!r} of the input is {type_name}, but the table's column {column.name!r} is "
                f"{column.type}. Cast one of them, as in col({name!r}).cast({column.type!r})."
            )


class ToDecimal:
    """Rounds half up to the scale of a type such as `decimal(10,2)`; floats by their shortest text."""

    def __init__(self, type_name: str) -> None:
        precision, scale = map(int, re.findall(r"\d+", type_name))
        self._unit = Decimal(1).scaleb(-scale)
        self._bound = Decimal(1).scaleb(precision - scale)
        self._context = Context(prec=precision, rounding=ROUND_HALF_UP)

    def __call__(self, value: object) -> Decimal:
        """The decimal of a value that is not None.

        Raises:
            ValueError: not a finite number, or too many digits before the point. TypeError: another type.
        """
        if type(value) is Decimal and value.same_quantum(self._unit) and -self._bound < value < self._bound:
            return value
        if not isinstance(value, int | float | str | Decimal):
            raise TypeError(f"{value!r} is not a number")
        try:
            rounded = Decimal(str(value)).quantize(self._unit, context=self._context)
        except InvalidOperation:
            raise ValueError(f"{value!r} does not fit") from None
        if not rounded.is_finite():
            raise ValueError(f"{value!r} does not fit")
        return rounded
