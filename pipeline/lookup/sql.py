"""Shared by the lookup tables of both databases: the queries, and how their answers become columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

from pipeline.lookup.answers import LookupAnswer, Scanned, columns_of
from pipeline.lookup.errors import LookupTableError
from pipeline.lookup.keys import KeyForm
from pipeline.lookup.schema import Column, LookupKey, LookupSchema
from pipeline.sql import Dialect
from pipeline.streaming.errors import quoted

Converter: TypeAlias = Callable[[Any], object]
"""Takes a value that is not None to the column's type. ValueError, TypeError: it cannot be converted."""

KeyType: TypeAlias = Callable[[Column], str | None]
"""The type in which a column's keys are sent, as an array; None: as text, with which the column's text is compared."""

SCAN_ROWS = 20_000  # of one piece


def lookup_query(
    dialect: Dialect,
    table: Sequence[str],
    schema: LookupSchema,
    number: int,
    key_type: KeyType = lambda _: "",
    is_text: Callable[[Column], bool] = lambda _: False,
) -> str:
    """A query for the rows of `number` keys. Each row begins with the number of its key, from 1.

    The database compares keys by its own rules. `is_text`: whether the database has to send a column as text.
    """
    types = [key_type(column) for column in schema.key]
    given = dialect.given({f"k{at}": each or "text[]" for at, each in enumerate(types)}, number)
    columns = ", ".join(["given.number", *(_in_sql(dialect, column, is_text(column)) for column in schema.values)])
    same = " AND ".join(
        f"{_in_sql(dialect, column, types[at] is None)} = given.k{at}" for at, column in enumerate(schema.key)
    )
    return f"{given} SELECT {columns} FROM given {dialect.driving_join} {dialect.quoted(*table)} AS t ON {same}"


def scan_query(
    dialect: Dialect,
    table: Sequence[str],
    schema: LookupSchema,
    is_text: Callable[[Column], bool] = lambda _: False,
) -> str:
    """A query for all rows: first their key columns, then the others."""
    columns = ", ".join(_in_sql(dialect, column, is_text(column)) for column in (*schema.key, *schema.values))
    return f"SELECT {columns} FROM {dialect.quoted(*table)} AS t"


def _in_sql(dialect: Dialect, column: Column, as_text: bool) -> str:
    return f"t.{dialect.quoted(column.name)}{'::text' if as_text else ''}"


class AnswerReader:
    """Reads the answers to these queries, column by column. Any thread.

    `converter_of`: the converter of a column, if the driver's values need one. `plain_of`: the type of which the
    driver's values need none. `complaint`: the message for a value that cannot be converted, or is an Unreadable; it
    gets the row's key.
    """

    def __init__(
        self,
        schema: LookupSchema,
        converter_of: Callable[[Column], Converter | None],
        complaint: Callable[[Column, object, LookupKey], str],
        plain_of: Callable[[Column], type | None] = lambda _: None,
    ) -> None:
        self._width = len(schema.key)
        self._values = schema.values
        self._key_form = KeyForm(schema.key)
        self._complaint = complaint
        columns = (*schema.key, *schema.values)
        self._converters = [(converter_of(each), plain_of(each)) for each in columns]  # never changes

    def found(self, keys: Sequence[LookupKey], rows: list[Any]) -> LookupAnswer:
        """The answer to a lookup of `keys`, whose rows begin with the number of their key. Sorts the rows."""
        rows.sort(key=itemgetter(0))
        numbers, *cells = columns_of(rows, 1 + len(self._values))
        columns, errors = self._converted(cells, self._converters[self._width :])
        places = [number - 1 for number in numbers]
        if not errors:
            return LookupAnswer(places, columns)
        failed: dict[int, Exception] = {}
        for row in sorted(errors):
            failed.setdefault(places[row], self._error(errors[row], keys[places[row]]))
        kept = [row for row, place in enumerate(places) if place not in failed]
        return LookupAnswer([places[row] for row in kept], _some(columns, kept), errors=failed)

    def scanned(self, rows: Sequence[Sequence[Any]]) -> Scanned:
        """The rows of a scan, without those whose key matches none."""
        cells = columns_of(rows, self._width + len(self._values))
        key_cells, _ = self._converted(cells[: self._width], self._converters[: self._width])
        keys = self._key_form.of_columns(key_cells) if rows else []
        columns, errors = self._converted(cells[self._width :], self._converters[self._width :])
        if not errors and set(map(type, keys)) <= {tuple}:
            return Scanned(keys, columns, {})  # type: ignore[arg-type]
        matching = [row for row, key in enumerate(keys) if type(key) is tuple]
        kept = [row for row in matching if row not in errors]
        failed = {keys[row]: self._error(errors[row], keys[row]) for row in matching if row in errors}  # type: ignore
        return Scanned([keys[row] for row in kept], _some(columns, kept), failed)  # type: ignore[misc, arg-type]

    def _converted(
        self, columns: Sequence[Sequence[Any]], converters: Sequence[tuple[Converter | None, type | None]]
    ) -> tuple[list[Sequence[Any]], dict[int, tuple[int, object]]]:
        """The columns' values in their types, and for each row with one that has none: its column and that value."""
        converted: list[Sequence[Any]] = []
        errors: dict[int, tuple[int, object]] = {}
        for at, (values, (convert, plain)) in enumerate(zip(columns, converters, strict=True)):
            kinds = set(map(type, values))
            if (convert is None and Unreadable not in kinds) or (plain is not None and kinds <= {plain, type(None)}):
                converted.append(values)
            else:
                converted.append([])
                for row, value in enumerate(values):
                    try:
                        converted[-1].append(_read(convert, value))  # type: ignore[attr-defined]
                    except (TypeError, ValueError):
                        converted[-1].append(None)  # type: ignore[attr-defined]
                        errors.setdefault(row, (at, value))
        return converted, errors

    def _error(self, cell: tuple[int, object], key: LookupKey) -> LookupTableError:
        at, value = cell
        return LookupTableError(self._complaint(self._values[at], value, key))


class Unreadable:
    """A value that the driver cannot turn into Python."""

    def __init__(self, shown: str) -> None:
        self._shown = shown

    def __repr__(self) -> str:
        return self._shown


def _read(convert: Converter | None, value: object) -> object:
    if type(value) is Unreadable:
        raise TypeError
    return value if value is None or convert is None else convert(value)


def _some(columns: Sequence[Sequence[Any]], rows: Sequence[int]) -> list[Sequence[Any]]:
    return [[values[row] for row in rows] for values in columns]


def shown_key(columns: Sequence[Column], key: LookupKey) -> str:
    """The key of a row in messages."""
    return ", ".join(f"{column.name} = {quoted(value)}" for column, value in zip(columns, key, strict=True))


def wanted(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """The option `columns` of a table. Raises LookupTableError for a single name."""
    if isinstance(columns, str):
        raise LookupTableError(f"columns is {columns!r}; give a list of names, or None for all.")
    return None if columns is None else tuple(columns)
