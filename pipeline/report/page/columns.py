"""Columns of the page's tables: how the values of a row read, and by what they sort."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from markupsafe import Markup

from dispatcher.util.figures import NOTHING, count, duration
from dispatcher.util.units import NS_PER_S

TableRow = Mapping[str, Any]
Test = Callable[[TableRow], bool]


class TableColumn(NamedTuple):
    """A column of a table. `text` is shown; rows are sorted by `value`, a number if `is_number`, with None last.

    `is_bad`, `is_best`: whether a row's cell stands out as bad or best; None: no cell does.
    """

    title: str
    text: Callable[[TableRow], str]
    value: Callable[[TableRow], Any]
    is_number: bool = True
    is_bad: Test | None = None
    is_best: Test | None = None


def table_body(columns: Sequence[TableColumn], rows: Sequence[TableRow]) -> Markup:
    """The rows as HTML. A cell carries its sort key if that differs from its text; the key of None is empty."""
    lines = []
    for row in rows:
        cells = "".join([_cell(column, row) for column in columns])
        lines.append(f"<tr>{cells}</tr>\n")
    return Markup("".join(lines))


def _cell(column: TableColumn, row: TableRow) -> str:
    text, value = column.text(row), column.value(row)
    styles = "number" if column.is_number else ""
    if column.is_bad is not None and column.is_bad(row):
        styles += " bad"
    if column.is_best is not None and column.is_best(row):
        styles += " best"
    style = f' class="{styles.strip()}"' if styles else ""
    key = "" if value is None else str(value)
    sort_key = "" if key == text else f' data-value="{escape(key)}"'
    return f"<td{style}{sort_key}>{escape(text)}</td>"


def columns(kind: Callable[..., TableColumn], keys: Mapping[str, str], *more: Any) -> list[TableColumn]:
    """A column of one kind for each title in `keys`, which has the key in the rows. `more`: further arguments."""
    return [kind(title, key, *more) for title, key in keys.items()]


def text_column(title: str, key: str, is_bad: Test | None = None) -> TableColumn:
    def text(row: TableRow) -> str:
        return NOTHING if row[key] is None else str(row[key])

    return TableColumn(title, text, lambda row: row[key], False, is_bad)


def count_column(title: str, key: str, is_bad: Test | None = None) -> TableColumn:
    return TableColumn(title, lambda row: count(row[key]), lambda row: row[key], True, is_bad)


def problem_count_column(title: str, key: str) -> TableColumn:
    """A column of counts that should be zero."""
    return count_column(title, key, lambda row: bool(row[key]))


def duration_column(title: str, key: str, per_second: float = 1.0) -> TableColumn:
    """A column of durations. `per_second`: how many of their unit make a second."""
    return TableColumn(
        title,
        lambda row: NOTHING if row[key] is None else duration(row[key] / per_second),
        lambda row: row[key],
    )


def elapsed_column(title: str, key: str, start_at: int | None) -> TableColumn:
    """A column of times (Unix ns), shown as durations since `start_at`."""

    def text(row: TableRow) -> str:
        return NOTHING if row[key] is None or start_at is None else duration((row[key] - start_at) / NS_PER_S)

    return TableColumn(title, text, lambda row: row[key])


def flag_column(title: str, key: str, bad: bool) -> TableColumn:
    """A column of booleans; `bad` is the value that indicates a problem."""
    return TableColumn(
        title,
        lambda row: "yes" if row[key] else "no",
        lambda row: int(bool(row[key])),
        False,
        lambda row: bool(row[key]) is bad,
    )
