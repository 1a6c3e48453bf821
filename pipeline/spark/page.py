"""The report's page: the rows of each table as text, the plots, and the template that holds them together.

The page loads nothing: Plotly's script is part of it, and a content security policy says so to the browser.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

import plotly.graph_objects as go
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from pipeline.spark import plots
from pipeline.spark.formats import NOTHING, count, decimal, duration, memory, moment, thousandths
from pipeline.spark.plots import Rows

ROWS_SHOWN = 50
"""Of each table at most; whoever fetches one more row than that lets the page say that there are more."""

NODES_DRAWN = 5000
"""In the plot at most; as for `ROWS_SHOWN`."""

_NS_PER_S = 1_000_000_000


class Figure(NamedTuple):
    """A headline figure. `mood`: good, bad or empty."""

    name: str
    value: str
    detail: str = ""
    mood: str = ""


class PageData(NamedTuple):
    """What the page shows: for each table of the report its first rows, under the table's name."""

    journal: str
    figures: Sequence[Figure]
    first_at: int | None
    last_at: int | None
    rows: Mapping[str, Rows]


class _Column(NamedTuple):
    title: str
    text: Callable[[Mapping[str, Any]], str]
    is_number: bool = True
    is_bad: Callable[[Mapping[str, Any]], bool] = lambda row: False


class _Cell(NamedTuple):
    text: str
    style: str


class _TableView(NamedTuple):
    title: str
    text: str
    columns: Sequence[_Column]
    rows: Sequence[Sequence[_Cell]]
    note: str


class _PlotView(NamedTuple):
    title: str
    text: str
    drawing: Markup | None
    wide: bool


class _Section(NamedTuple):
    anchor: str
    title: str
    plots: Sequence[_PlotView]
    tables: Sequence[_TableView]


def render_page(data: PageData) -> str:
    """The page as one HTML document that needs no other file and no network."""
    source = resources.files("pipeline.spark").joinpath("report.html").read_text(encoding="utf-8")
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(source)
    sections = [_applications(data), _cluster(data), _machines(data), _events(data)]
    return template.render(
        title="Resource manager report",
        subtitle=_subtitle(data),
        figures=data.figures,
        sections=sections,
        plotly_js=Markup(get_plotlyjs()),
    )


def _subtitle(data: PageData) -> str:
    if data.first_at is None or data.last_at is None:
        return f"Journal {data.journal}, which is empty."
    return f"Journal {data.journal}, from {moment(data.first_at)} to {moment(data.last_at)} in the clock of the run."


def _applications(data: PageData) -> _Section:
    states, queues = data.rows["applications_by_final_state"], data.rows["waiting_by_queue"]
    drawings = [
        _plot(
            "Applications by final state",
            "Of those that have not ended, the state that they are in.",
            plots.applications_plot(states),
        ),
        _plot("Waiting time per queue", "From submission to the first container.", plots.waiting_plot(queues)),
    ]
    waits = [
        _Column("Queue", _word("queue"), False),
        _Column("Applications", _count("applications")),
        _Column("Median wait", _seconds("p50_s")),
        _Column("95 %", _seconds("p95_s")),
        _Column("Longest", _seconds("max_s")),
        _Column("Never placed", _count("never_placed"), is_bad=lambda row: row["never_placed"] > 0),
    ]
    since_start = _since(data.first_at)
    applications = [
        _Column("Application", _word("id"), False),
        _Column("Name", _word("name"), False),
        _Column("User", _word("user"), False),
        _Column("Queue", _word("queue"), False),
        _Column("Final state", _word("final_state"), False),
        _Column("Submitted after", since_start("submitted_at")),
        _Column("First container after", since_start("first_container_at")),
        _Column("Ended after", since_start("ended_at")),
        _Column("Wait", _seconds("wait_s")),
    ]
    tables = [
        _table("Waiting per queue", "", waits, data.rows["waiting_by_queue"], "waiting_by_queue"),
        _table(
            "Applications",
            "Those that waited longest for their first container, before them those that never got one. "
            "Times count from the start of the run.",
            applications,
            data.rows["applications"],
            "applications",
        ),
    ]
    return _Section("applications", "Applications", drawings, tables)


def _cluster(data: PageData) -> _Section:
    over_time = plots.containers_plot(data.rows["containers_over_time"], data.first_at or 0)
    peaks = data.rows["node_peaks"]
    use = "The most that was taken at one time, in % of the capacity; above 100 % a node is oversubscribed."
    if len(peaks) > NODES_DRAWN:
        use += f" The {NODES_DRAWN:,} fullest nodes."
    drawings = [
        _plot("Containers over time", "In the whole cluster; of each part of the time the most.", over_time, wide=True),
        _plot(
            "Highest use of the nodes",
            use,
            plots.nodes_plot(peaks[:NODES_DRAWN]),
            wide=True,
        ),
    ]
    columns = [
        _Column("Node", _word("node"), False),
        _Column("Rack", _word("rack"), False),
        _Column("Memory", _of("peak_memory_mb", "memory_mb", memory), is_bad=_over("peak_memory_mb", "memory_mb")),
        _Column(
            "Virtual cores",
            _of("peak_vcores_milli", "vcores_milli", thousandths),
            is_bad=_over("peak_vcores_milli", "vcores_milli"),
        ),
        _Column("GPUs", _of("peak_gpu_milli", "gpu_milli", thousandths), is_bad=_over("peak_gpu_milli", "gpu_milli")),
        _Column(
            "Of one GPU",
            lambda row: thousandths(row["peak_gpu_device_milli"] or None),
            is_bad=lambda row: row["peak_gpu_device_milli"] > 1000,
        ),
        _Column("GPU model", _word("gpu_model"), False),
        _Column("Containers", _count("peak_containers")),
        _Column(
            "Oversubscribed",
            lambda row: "yes" if row["oversubscribed"] else "no",
            False,
            lambda row: row["oversubscribed"],
        ),
    ]
    text = "The most that was taken at one time, of the capacity; oversubscribed nodes first, then the fullest."
    return _Section("cluster", "Cluster", drawings, [_table("Nodes", text, columns, peaks, "node_peaks")])


def _machines(data: PageData) -> _Section:
    stays = data.rows["time_in_state"]
    drawings = [
        _plot(f"Time in state: {machine}", "From entering a state to leaving it.", figure)
        for machine, figure in plots.state_plots(stays).items()
    ]
    kind = [
        _Column("Machine", _word("machine"), False),
        _Column("From", _word("from_state"), False),
        _Column("Event", _word("event_type"), False),
        _Column("To", _word("to_state"), False),
        _Column("Count", _count("count")),
        _Column("Valid", lambda row: "yes" if row["valid"] else "no", False, lambda row: not row["valid"]),
        _Column("Declared", lambda row: "yes" if row["declared"] else "no", False, lambda row: not row["declared"]),
    ]
    states = [
        _Column("Machine", _word("machine"), False),
        _Column("State", _word("state"), False),
        _Column("Stays", _count("count")),
        _Column("Median", _seconds("p50_s")),
        _Column("95 %", _seconds("p95_s")),
        _Column("99 %", _seconds("p99_s")),
        _Column("Longest", _seconds("max_s")),
    ]
    unknown = "Made, though the machine's table does not declare them, or refused by the machine."
    tables = [
        _table("Unknown transitions", unknown, kind, data.rows["unknown_transitions"], "unknown_transitions"),
        _table("Time in state", "Stays that were entered and left again.", states, stays, "time_in_state"),
        _table("Transitions", "The most frequent first.", kind, data.rows["transition_counts"], "transition_counts"),
    ]
    return _Section("machines", "State machines", drawings, tables)


def _events(data: PageData) -> _Section:
    types = data.rows["events_by_type"]
    text = "Wall-clock time in handlers, all events of a type together; the types that took the most."
    drawings = [_plot("Time in handlers by type of event", text, plots.events_plot(types), wide=True)]
    columns = [
        _Column("Class", _word("event_class"), False),
        _Column("Type", _word("event_type"), False),
        _Column("Events", _count("count")),
        _Column("Failed", _count("failed"), is_bad=lambda row: row["failed"] > 0),
        _Column("Unregistered", _count("unregistered"), is_bad=lambda row: row["unregistered"] > 0),
        _Column("Queue mean µs", _decimal("queue_mean_us")),
        _Column("99 % µs", _decimal("queue_p99_us")),
        _Column("Handling mean µs", _decimal("handling_mean_us")),
        _Column("99 % µs", _decimal("handling_p99_us")),
        _Column("Total ms", _decimal("handling_total_ms")),
    ]
    described = "Wall-clock times, also where the run itself was in virtual time."
    return _Section(
        "events", "Events", drawings, [_table("Events by type", described, columns, types, "events_by_type")]
    )


def _plot(title: str, text: str, figure: go.Figure | None, wide: bool = False) -> _PlotView:
    if figure is None:
        return _PlotView(title, text, None, wide)
    drawing = figure.to_html(
        full_html=False,
        include_plotlyjs=False,
        # Without a name of its own the element gets a random one, and no two pages of a journal are the same.
        div_id="plot-" + "".join(letter if letter.isalnum() else "-" for letter in title.lower()),
        config={"responsive": True, "displaylogo": False, "displayModeBar": False},
    )
    return _PlotView(title, text, Markup(drawing), wide)


def _table(title: str, text: str, columns: Sequence[_Column], rows: Rows, name: str) -> _TableView:
    cells = [[_cell(column, row) for column in columns] for row in rows[:ROWS_SHOWN]]
    cut = f"The first {ROWS_SHOWN} rows. " if len(rows) > ROWS_SHOWN else ""
    return _TableView(title, text, columns, cells, f"{cut}All rows: tables/{name} (Parquet).")


def _cell(column: _Column, row: Mapping[str, Any]) -> _Cell:
    styles = ["number"] if column.is_number else []
    if column.is_bad(row):
        styles.append("bad")
    return _Cell(column.text(row), " ".join(styles))


def _word(key: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: NOTHING if row[key] is None else str(row[key])


def _count(key: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: count(row[key])


def _decimal(key: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: decimal(row[key])


def _seconds(key: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: duration(row[key])


def _since(start_at: int | None) -> Callable[[str], Callable[[Mapping[str, Any]], str]]:
    def offset(at: int | None) -> str:
        return NOTHING if at is None or start_at is None else duration((at - start_at) / _NS_PER_S)

    return lambda key: lambda row: offset(row[key])


def _of(peak: str, capacity: str, show: Callable[[int | None], str]) -> Callable[[Mapping[str, Any]], str]:
    def text(row: Mapping[str, Any]) -> str:
        return f"{show(row[peak])} of {show(row[capacity])}" if row[peak] or row[capacity] else NOTHING

    return text


def _over(peak: str, capacity: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda row: row[capacity] is not None and row[peak] > row[capacity]
