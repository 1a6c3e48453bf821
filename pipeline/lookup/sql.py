"""Shared by the lookup tables of both databases: the queries, and how their answers become rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from pipeline.lookup.errors import LookupTableError
from pipeline.lookup.keys import KeyForm
from pipeline.lookup.schema import Column, LookupKey, LookupRow, LookupSchema
from pipeline.sql import Dialect

Converter: TypeAlias = Callable[[Any], object]
"""Takes a value that is not None to the column's type. ValueError, TypeError: it cannot be converted."""

KeyType: TypeAlias = Callable[[Column], str | None]
"""The type in which a column's keys are sent, as an array; None: as text, with which the column's text is compared."""

SCAN_ROWS = 5_000  # of one piece


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
    columns = ", ".join(["given.number", *(_read(dialect, column, is_text(column)) for column in schema.values)])
    same = " AND ".join(
        f"{_read(dialect, column, types[at] is None)} = given.k{at}" for at, column in enumerate(schema.key)
    )
    return f"{given} SELECT {columns} FROM given {dialect.driving_join} {dialect.quoted(*table)} AS t ON {same}"


def scan_query(
    dialect: Dialect,
    table: Sequence[str],
    schema: LookupSchema,
    is_text: Callable[[Column], bool] = lambda _: False,
) -> str:
    """A query for all rows: first their key columns, then the others."""
    columns = ", ".join(_read(dialect, column, is_text(column)) for column in (*schema.key, *schema.values))
    return f"SELECT {columns} FROM {dialect.quoted(*table)} AS t"


def _read(dialect: Dialect, column: Column, as_text: bool) -> str:
    return f"t.{dialect.quoted(column.name)}{'::text' if as_text else ''}"


class Answers:
    """Reads the answers to these queries. Any thread.

    `converter_of`: the converter of a column, if the driver's values need one. `plain_of`: the type of which the
    driver's values need none. `complaint`: the message for a value that cannot be converted.
    """

    def __init__(
        self,
        schema: LookupSchema,
        converter_of: Callable[[Column], Converter | None],
        complaint: Callable[[Column, object], str],
        plain_of: Callable[[Column], type | None] = lambda _: None,
    ) -> None:
        self._width = len(schema.key)
        self._key_form = KeyForm(schema.key)
        self._complaint = complaint
        self._key_converters = _converters(schema.key, converter_of)
        self._converters = _converters(schema.values, converter_of)
        # By the column's place in an answer, which begins with the number of the key.
        self._plain = [(at + 1, plain_of(each)) for at, each, _ in self._converters]  # never changes

    def found(
        self, keys: Sequence[LookupKey], answer: Sequence[Sequence[Any]]
    ) -> Mapping[LookupKey, Sequence[LookupRow] | Exception]:
        """The rows of each key of a lookup; an error in their place if one of them cannot be converted."""
        found: dict[LookupKey, list[LookupRow]] = {}
        failed: dict[LookupKey, Exception] = {}
        converts = not self._is_plain(answer)
        for cells in answer:
            key = keys[cells[0] - 1]
            row: LookupRow = tuple(cells[1:])
            if converts:
                try:
                    row = self._row(row, self._converters)
                except LookupTableError as error:
                    failed[key] = error
                    continue
            if key in found:
                found[key].append(row)
            else:
                found[key] = [row]
        return {**found, **failed} if failed else found

    def _is_plain(self, answer: Sequence[Sequence[Any]]) -> bool:
        """Whether no value needs a converter."""
        return all(
            plain is not None and {type(row[at]) for row in answer} <= {plain, type(None)} for at, plain in self._plain
        )

    def scanned(self, answer: Iterable[Sequence[Any]]) -> list[tuple[LookupKey, LookupRow]]:
        """The rows of a scan with their keys. Rows whose key cannot match any are left out."""
        piece = []
        for cells in answer:
            key = self._key_form.of(self._row(cells[: self._width], self._key_converters))
            if key is not None:
                piece.append((key, self._row(cells[self._width :], self._converters)))
        return piece

    def _row(self, cells: Sequence[Any], converters: Sequence[tuple[int, Column, Converter]]) -> LookupRow:
        if not converters:
            return tuple(cells)
        values = list(cells)
        for at, column, convert in converters:
            value = values[at]
            if value is not None:
                try:
                    values[at] = convert(value)
                except (TypeError, ValueError):
                    raise LookupTableError(self._complaint(column, value)) from None
        return tuple(values)


def _converters(
    columns: Sequence[Column], converter_of: Callable[[Column], Converter | None]
) -> list[tuple[int, Column, Converter]]:
    return [(at, each, convert) for at, each in enumerate(columns) if (convert := converter_of(each)) is not None]


def wanted(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """The option `columns` of a table. Raises LookupTableError for a single name."""
    if isinstance(columns, str):
        raise LookupTableError(f"columns is {columns!r}; give a list of names, or None for all.")
    return None if columns is None else tuple(columns)
