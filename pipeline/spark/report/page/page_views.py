"""The page of a report or a sweep, and its elements: headline figures, sections, plots, graphs and tables.

The page is one self-contained HTML document that needs no network. A content security policy allows two scripts by
their hashes, Plotly's and the page's own, and forbids loading anything. So a name from a journal cannot run as a
script, even if it ended up as markup.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

import plotly.graph_objects as go
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from dispatcher.util.units import NS_PER_S
from pipeline.spark.report.page.formats import NOTHING, count, duration

ROWS_SHOWN = 100
"""Most rows of a table on the page. Fetch one more row, so that the page can report that there are more."""

Row = Mapping[str, Any]
Test = Callable[[Row], bool]


class Figure(NamedTuple):
    """A headline figure. `mood`: good, bad or empty."""

    name: str
    value: str
    detail: str = ""
    mood: str = ""


class TableColumn(NamedTuple):
    """A column of a table. `text` is shown; rows are sorted by `value`, a number if `is_number`, with None last."""

    title: str
    text: Callable[[Row], str]
    value: Callable[[Row], Any]
    is_number: bool = True
    is_bad: Test = lambda row: False
    is_best: Test = lambda row: False


class Cell(NamedTuple):
    text: str
    style: str
    value: str
    """Sort key; empty for an unknown value."""


class TableView(NamedTuple):
    anchor: str
    title: str
    text: str
    columns: Sequence[TableColumn]
    rows: Sequence[Sequence[Cell]]
    note: str


class PlotView(NamedTuple):
    """`drawing`: Plotly's JSON, or None if there is nothing to draw."""

    anchor: str
    title: str
    text: str
    drawing: Markup | None
    height: int
    wide: bool


class GraphView(NamedTuple):
    anchor: str
    title: str
    text: str
    declared: Markup
    taken: Markup


class TextView(NamedTuple):
    """`lines`: a text to show as it is."""

    title: str
    text: str
    lines: str


class Section(NamedTuple):
    anchor: str
    title: str
    plots: Sequence[PlotView] = ()
    graphs: Sequence[GraphView] = ()
    tables: Sequence[TableView] = ()
    texts: Sequence[TextView] = ()


def plot(title: str, text: str, figure: go.Figure | None, wide: bool = False) -> PlotView:
    if figure is None:
        return PlotView(anchor("plot", title), title, text, None, 0, wide)
    # Plotly escapes < and > in its JSON, so that no name can close the surrounding script element.
    return PlotView(anchor("plot", title), title, text, Markup(figure.to_json()), figure.layout.height, wide)


def table(title: str, text: str, columns: Sequence[TableColumn], rows: Sequence[Row], name: str) -> TableView:
    """The first `ROWS_SHOWN` rows as a table. `name`: of the Parquet table."""
    cut = f"The first {ROWS_SHOWN} rows. " if len(rows) > ROWS_SHOWN else ""
    note = f"{cut}All rows: tables/{name} (Parquet)."
    return TableView(anchor("table", name), title, text, columns, cells(columns, rows[:ROWS_SHOWN]), note)


def configuration(text: str) -> Section:
    """The section that shows a run's configuration."""
    about = "All keys of the run that wrote the journal, defaults too."
    return Section("configuration", "Configuration", texts=[TextView("Of the run", about, text)])


def cells(columns: Sequence[TableColumn], rows: Sequence[Row]) -> list[list[Cell]]:
    return [[_cell(column, row) for column in columns] for row in rows]


def _cell(column: TableColumn, row: Row) -> Cell:
    named = {"number": column.is_number, "bad": column.is_bad(row), "best": column.is_best(row)}
    value = column.value(row)
    styles = " ".join(name for name, holds in named.items() if holds)
    return Cell(column.text(row), styles, "" if value is None else str(value))


def anchor(*words: str) -> str:
    """An element's id: the same in each report, and free of markup."""
    return "-".join("".join(letter if letter.isalnum() else "-" for letter in word.lower()) for word in words)


def columns(kind: Callable[..., TableColumn], keys: Mapping[str, str], *more: Any) -> list[TableColumn]:
    """Columns of one kind; `keys`: by title, `more`: further arguments of each."""
    return [kind(title, key, *more) for title, key in keys.items()]


def text_column(title: str, key: str, is_bad: Test = lambda row: False) -> TableColumn:
    def text(row: Row) -> str:
        return NOTHING if row[key] is None else str(row[key])

    return TableColumn(title, text, lambda row: row[key], False, is_bad)


def count_column(title: str, key: str, is_bad: Test = lambda row: False) -> TableColumn:
    return TableColumn(title, lambda row: count(row[key]), lambda row: row[key], True, is_bad)


def problem_count_column(title: str, key: str) -> TableColumn:
    """A column of counts that should be zero."""
    return count_column(title, key, lambda row: bool(row[key]))


def duration_column(title: str, key: str, per_second: float = 1.0) -> TableColumn:
    """A column of durations, in a unit of which a second has `per_second`."""
    return TableColumn(
        title,
        lambda row: NOTHING if row[key] is None else duration(row[key] / per_second),
        lambda row: row[key],
    )


def elapsed_column(title: str, key: str, start_at: int | None) -> TableColumn:
    """A column of times (Unix ns), shown as durations since `start_at`."""

    def text(row: Row) -> str:
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


def render(
    title: str,
    subtitle: str,
    figures: Sequence[Figure],
    sections: Sequence[Section],
    *,
    damage: Sequence[str] = (),
    damage_left_out: str = "",
    why_empty: str = "",
) -> str:
    """Render the page as text, to be written in UTF-8. `why_empty`: shown in place of an empty plot."""
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.filters["hash_source"] = _hash_source
    return environment.from_string(_text("page.html")).render(
        title=title,
        subtitle=subtitle,
        figures=figures,
        sections=sections,
        damage=damage,
        damage_left_out=damage_left_out,
        why_empty=why_empty,
        style_sheet=Markup(resources.files("statemachines.drawing").joinpath("style.css").read_text(encoding="utf-8")),
        page_script=Markup(_text("page.js")),
        # Browsers normalize line ends to \n before they hash a script.
        plotly_js=Markup(get_plotlyjs().replace("\r\n", "\n").replace("\r", "\n")),
    )


def _text(name: str) -> str:
    return resources.files("pipeline.spark.report.page").joinpath(name).read_text(encoding="utf-8")


def _hash_source(script: str) -> Markup:
    """The script's hash as a source in a content security policy."""
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    return Markup("'sha256-{}'").format(base64.b64encode(digest).decode("ascii"))
