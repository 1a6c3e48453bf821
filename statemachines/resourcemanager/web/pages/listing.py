"""Long lists in pages of 100 rows: filtered, sorted and cut here, by what the address says.

A cursor is the sort key of a row, so it stays right while rows come and go. Long work lets other requests run in
between. The loop's thread.
"""

from __future__ import annotations

import asyncio
import base64
import heapq
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Reversible
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar
from urllib.parse import urlencode

from starlette.requests import Request

from dispatcher.web.plain_answers import Refusal
from statemachines.resourcemanager.read.fields import NOWHERE, Field, ListColumn, Unit

T = TypeVar("T")

ROWS: Final = 100
LONGEST_TEXT: Final = 200
_PIECE: Final = 500
"""Items between two turns for other requests: one or two milliseconds."""

Key = tuple[Any, ...]


class ListedColumn(NamedTuple):
    """A column of a list. `value` is what rows are sorted by, a number or a text; None: it cannot be sorted by."""

    name: str
    title: str
    value: Callable[[Any], Any] | None = None
    style: str = ""
    is_number: bool = False
    field: Any = None
    """The field that it shows; None: it shows something else."""


def columns_of(fields: Iterable[Field[Any]]) -> tuple[ListedColumn, ...]:
    """The columns of the list of all entities with these fields."""
    shown = sorted(fields, key=lambda field: field.place or sys.maxsize)
    return tuple(_column(field, field.column) for field in shown if field.column is not None)


def _column(field: Field[Any], declared: ListColumn) -> ListedColumn:
    def value(item: Any) -> Any:
        found = field.get(item, NOWHERE)
        return str(found).lower()[:LONGEST_TEXT] if field.unit is Unit.TEXT else found

    sort = value if declared.sort is None and declared.is_sorted else declared.sort
    return ListedColumn(declared.name, declared.title, sort, declared.style, declared.is_number, field)


@dataclass(frozen=True, slots=True)
class Query:
    """What an address asks of a list."""

    path: str
    filters: Mapping[str, str]
    """Those that are set."""
    sort: str
    is_descending: bool
    after: Key | None = None
    before: Key | None = None

    def address(self, **changes: str | None) -> str:
        """The address of the same list with other parameters; None removes one. It begins at the first row."""
        query: dict[str, str | None] = {**self.filters, "sort": self.sort, "order": self.order, **changes}
        kept = {name: value for name, value in query.items() if value}
        return f"{self.path}?{urlencode(kept, errors='backslashreplace')}" if kept else self.path

    @property
    def order(self) -> str:
        return "desc" if self.is_descending else "asc"

    def sorted_by(self, column: ListedColumn) -> str:
        """The address of the list sorted by a column: numbers largest first, texts from A; then the other way round."""
        is_down = not self.is_descending if column.name == self.sort else column.is_number
        return self.address(sort=column.name, order="desc" if is_down else "asc")


class ListPage(NamedTuple, Generic[T]):
    """The rows that are shown."""

    items: list[T]
    first: int
    """The number of the first row, from 1."""
    total: int
    next: str | None
    """The cursor of the following page; None: it is the last one."""
    previous: str | None


def parse(request: Request, columns: Iterable[ListedColumn], filters: Iterable[str], sort: str, order: str) -> Query:
    """What the request asks; `sort` and `order` are the defaults. Raises Refusal (400)."""
    given = request.query_params
    sortable = [column.name for column in columns if column.value is not None]
    by = given.get("sort") or sort
    if by not in sortable:
        raise Refusal(400, f"sort={by[:LONGEST_TEXT]}: not one of {', '.join(sortable)}")
    towards = given.get("order") or (order if by == sort else "asc")
    if towards not in ("asc", "desc"):
        raise Refusal(400, f"order={towards[:LONGEST_TEXT]}: not one of asc, desc")
    wanted = {name: given[name].strip()[:LONGEST_TEXT] for name in filters if given.get(name, "").strip()}
    cursors = {name: _cursor(given[name]) for name in ("after", "before") if given.get(name)}
    return Query(request.url.path, wanted, by, towards == "desc", **cursors)


def sort_value(columns: Iterable[ListedColumn], query: Query) -> Callable[[Any], Any]:
    """What the rows of the query are sorted by."""
    return next(column.value for column in columns if column.name == query.sort and column.value is not None)


async def matching(items: Iterable[T], matches: Callable[[T], bool]) -> AsyncIterator[list[T]]:
    """The items that match, in pieces, with turns for other requests in between."""
    rest = iter(items)
    while piece := list(islice(rest, _PIECE)):
        yield [item for item in piece if matches(item)]
        await asyncio.sleep(0)


def first_page(items: dict[str, T], query: Query, key: Callable[[T], Key], rows: int = ROWS) -> ListPage[T]:
    """The first page of all items, which are in ascending order of the key already: it costs as much as its rows."""
    values = items.values()
    found = list(islice(reversed(values) if query.is_descending else values, rows))
    has_more = len(items) > len(found)
    return ListPage(found, 1 if found else 0, len(items), _text(key(found[-1])) if has_more else None, None)


async def page_of(
    items: Reversible[T],
    query: Query,
    value: Callable[[T], Any],
    tie: Callable[[T], Key],
    matches: Callable[[T], bool],
    rows: int = ROWS,
) -> ListPage[T]:
    """The page that the query asks for. `tie` is unique, and orders items of equal value."""
    is_back = query.before is not None
    cursor = query.before if is_back else query.after
    # Walking back, the rows nearest to the cursor are the first ones in the opposite order.
    is_largest_first = query.is_descending != is_back
    best: list[tuple[Key, T]] = []
    total = passed = 0
    pick = heapq.nlargest if is_largest_first else heapq.nsmallest
    try:
        # The items often are in the wanted order already: then nothing behind the first rows has to be ordered.
        async for piece in matching(reversed(items) if is_largest_first else items, matches):
            total += len(piece)
            keyed = [((value(item), *tie(item)), item) for item in piece]
            if cursor is not None:
                ahead = [each for each in keyed if (each[0] < cursor if is_largest_first else each[0] > cursor)]
                passed += len(keyed) - len(ahead)
                keyed = ahead
            if len(best) == rows:
                last = best[-1][0]
                keyed = [each for each in keyed if (each[0] > last if is_largest_first else each[0] < last)]
            if keyed:
                best = pick(rows, [*best, *keyed], key=itemgetter(0))
    except TypeError:
        raise Refusal(400, "the cursor is of another list") from None
    if is_back:
        best.reverse()
        first = total - passed - len(best)
    else:
        first = passed
    has_more = first + len(best) < total
    return ListPage(
        [item for _, item in best],
        first + 1 if best else 0,
        total,
        _text(best[-1][0]) if best and has_more else None,
        _text(best[0][0]) if best and first > 0 else None,
    )


def _text(key: Key) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


def _cursor(text: str) -> Key:
    try:
        found = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(each, str | int | float) for each in found):
        raise Refusal(400, "the cursor is not one of this list")
    return tuple(found)
