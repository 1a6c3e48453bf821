"""What a table answers to a lookup, column by column. Keys are known by their places among those that were asked for.

Any thread. Nothing here changes once it is made.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, Protocol

from pipeline.lookup.schema import LookupKey, LookupReader, LookupRow

Columns = Sequence[Sequence[object]]
"""The values of some columns, each with one value for each row."""


class Packing(Protocol):
    """How a full cache stores the columns of a table."""

    def pack(self, columns: Columns) -> tuple[Any, Mapping[int, Exception]]:
        """These columns as they are stored, and the errors of rows that cannot be, by their places."""

    def join(self, pieces: Sequence[Any]) -> Any:
        """One for several pieces in a row, of which there is at least one."""


class AsLists:
    """Stores each column as a list."""

    def pack(self, columns: Columns) -> tuple[Columns, Mapping[int, Exception]]:
        return columns, {}

    def join(self, pieces: Sequence[Columns]) -> Columns:
        return [list(chain.from_iterable(parts)) for parts in zip(*pieces, strict=True)]


@dataclass(frozen=True, slots=True)
class LookupAnswer:
    """The rows of some keys.

    `numbers`: for each row found, the place of its key; ascending.
    `columns`: the values of the schema's columns, or what a Packing made of them; without rows maybe none.
    `rows`: for each row found, its place in `columns`; None: the places are 0, 1, 2, ...
    `errors`: by the place of the key; such a key has no rows.
    """

    numbers: Sequence[int]
    columns: Any
    rows: Sequence[int] | None = None
    errors: Mapping[int, Exception] = field(default_factory=dict)

    def by_place(self, keys: int) -> list[Sequence[LookupRow] | Exception]:
        """The rows of each of that many keys, or its error. Needs columns that are not packed."""
        found: list[Any] = [()] * keys
        for number, row in zip(self.numbers, self._cells(), strict=True):
            if found[number]:
                found[number].append(row)
            else:
                found[number] = [row]
        for number, error in self.errors.items():
            found[number] = error
        return found

    def of_places(self, places: Sequence[int]) -> LookupAnswer:
        """The same for other keys, each of which is the one at a place here."""
        spans: dict[int, Sequence[int]] = {}
        begin = 0
        for number, same in groupby(self.numbers):
            end = begin + sum(1 for _ in same)
            spans[number] = range(begin, end) if self.rows is None else self.rows[begin:end]
            begin = end
        found = [spans.get(place, ()) for place in places]
        return LookupAnswer(
            [number for number, rows in enumerate(found) for _ in rows],
            self.columns,
            list(chain.from_iterable(found)),
            {number: self.errors[place] for number, place in enumerate(places) if place in self.errors},
        )

    def _cells(self) -> Sequence[LookupRow]:
        if self.rows is None:
            return rows_of(self.columns, len(self.numbers))
        return [tuple([column[row] for column in self.columns]) for row in self.rows]


def answer_of(found: Sequence[Sequence[LookupRow] | Exception], width: int) -> LookupAnswer:
    """The answer that gives these rows, of `width` columns, or errors, by the place of their key."""
    numbers: list[int] = []
    rows: list[LookupRow] = []
    errors: dict[int, Exception] = {}
    for number, each in enumerate(found):
        if isinstance(each, Exception):
            errors[number] = each
        elif each:
            rows += each
            numbers += [number] * len(each)
    return LookupAnswer(numbers, columns_of(rows, width), errors=errors)


def columns_of(rows: Sequence[Sequence[Any]], width: int) -> list[list[Any]]:
    """The columns of these rows, of which each has `width` values."""
    # Not by zip(*rows), which makes an iterator for each row.
    return [list(map(itemgetter(at), rows)) for at in range(width)]


def rows_of(columns: Columns, number: int) -> list[LookupRow]:
    """So many rows of these columns."""
    return list(zip(*columns, strict=True)) if columns else [()] * number


def joined(answers: Sequence[tuple[int, LookupAnswer]]) -> LookupAnswer:
    """One for several answers, each with the place of its first key; none has `rows`."""
    if len(answers) == 1 and answers[0][0] == 0:
        return answers[0][1]
    pieces = [each.columns for _, each in answers if each.numbers]
    return LookupAnswer(
        [first + number for first, each in answers for number in each.numbers],
        AsLists().join(pieces) if pieces else (),
        errors={first + number: error for first, each in answers for number, error in each.errors.items()},
    )


@dataclass(frozen=True, slots=True)
class Scanned:
    """Some rows of a table: their keys, and the values of the schema's other columns.

    `errors`: keys with a row that cannot be read; that row is not among the others.
    """

    keys: Sequence[LookupKey]
    columns: Columns
    errors: Mapping[LookupKey, Exception]


class ColumnReader(Protocol):
    """Reads one table as a LookupReader does, but gives columns in place of rows."""

    @property
    def parallelism(self) -> int | None: ...

    async def open(self) -> None: ...

    async def lookup_columns(self, keys: Sequence[LookupKey]) -> LookupAnswer:
        """The rows, or the error, of each of the distinct `keys`.

        Raises:
            TableUnavailableError: no key could be looked up; worth a retry. FailedQueryError: fewer keys may succeed.
            LookupTableError: a retry does not help.
        """

    def scan_columns(self) -> AsyncIterator[Scanned]:
        """All rows of the table, in pieces; rows whose key matches none may be left out."""

    async def close(self) -> None: ...


class RowsAsColumns:
    """The columns of a LookupReader."""

    def __init__(self, reader: LookupReader, width: int) -> None:
        self._reader = reader
        self._width = width
        self.open, self.close = reader.open, reader.close

    @property
    def parallelism(self) -> int | None:
        return self._reader.parallelism

    @property
    def repeats(self) -> int:
        return getattr(self._reader, "repeats", 0)

    async def lookup_columns(self, keys: Sequence[LookupKey]) -> LookupAnswer:
        found = await self._reader.lookup(keys)
        return answer_of([found.get(key, ()) for key in keys], self._width)

    async def scan_columns(self) -> AsyncIterator[Scanned]:
        async for piece in self._reader.scan():
            if piece:
                keys, rows = zip(*piece, strict=True)
                yield Scanned(keys, columns_of(rows, self._width), {})
