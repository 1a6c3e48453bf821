"""What the pages of reports and sweeps consist of: headline figures, and sections with plots, graphs and tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from markupsafe import Markup

from pipeline.report.page.columns import TableColumn, TableRow, table_body

ROWS_SHOWN = 100
"""Maximum rows of a table on the page. Fetch one more row, so that the page can report that there are more."""


class Chart(Protocol):
    def draw(self, label: str) -> Markup: ...


class Figure(NamedTuple):
    """A headline figure: a sentence that begins with `value` and continues with `detail`, headed by `name`."""

    name: str
    value: str
    detail: str = ""
    mood: str = ""
    """How the page colours it: bad, warn or good; empty: not at all."""
    link: str = ""
    """The id of the element that shows the rest."""


class TableView(NamedTuple):
    anchor: str
    title: str
    text: str
    columns: Sequence[TableColumn]
    body: Markup
    """Its rows; empty if there are none."""
    note: str


class PlotView(NamedTuple):
    """`drawing`: HTML, or None if there is nothing to draw."""

    anchor: str
    title: str
    text: str
    drawing: Markup | None
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


class DamageView(NamedTuple):
    """`lines`: the parts of a journal that cannot be read; `left_out`: how many more there are, or empty."""

    text: str
    lines: Sequence[str]
    left_out: str


class Section(NamedTuple):
    anchor: str
    title: str
    plots: Sequence[PlotView] = ()
    graphs: Sequence[GraphView] = ()
    tables: Sequence[TableView] = ()
    texts: Sequence[TextView] = ()
    is_incomplete: bool = False
    """Rows that its figures would count cannot be read."""


def plot(title: str, text: str, chart: Chart | None, wide: bool = False) -> PlotView:
    return PlotView(anchor("plot", title), title, text, None if chart is None else chart.draw(title), wide)


def table(title: str, text: str, columns: Sequence[TableColumn], rows: Sequence[TableRow], name: str) -> TableView:
    """The first `ROWS_SHOWN` rows as a table. `name`: of the Parquet table."""
    cut = f"The first {ROWS_SHOWN} rows. " if len(rows) > ROWS_SHOWN else ""
    note = f"{cut}All rows: tables/{name} (Parquet)."
    return TableView(table_anchor(name), title, text, columns, table_body(columns, rows[:ROWS_SHOWN]), note)


def configuration(text: str) -> Section:
    about = "All keys of the run that wrote the journal, defaults too."
    return Section("configuration", "Configuration", texts=[TextView("Of the run", about, text)])


def anchor(*words: str) -> str:
    """An element's id: the same in each report, and free of markup."""
    return "-".join("".join(letter if letter.isalnum() else "-" for letter in word.lower()) for word in words)


def table_anchor(name: str) -> str:
    """The id of a table's element. `name`: of the Parquet table."""
    return anchor("table", name)
