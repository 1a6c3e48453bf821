"""The page's sections about problems, events, state machines, and the comparison with another run."""

from __future__ import annotations

from dispatcher.util.figures import NOTHING, decimal, duration, percent
from pipeline.report.page.columns import (
    TableColumn,
    TableRow,
    columns,
    count_column,
    duration_column,
    elapsed_column,
    flag_column,
    problem_count_column,
    text_column,
)
from pipeline.report.page.page_data import PageData
from pipeline.report.page.page_views import GraphView, PlotView, Section, anchor, plot, table
from pipeline.report.plots import plots, plots_over_time
from pipeline.report.plots.plot_style import Rows, time_axis
from statemachines.drawing.state_graph import draw_graph

P95, P99 = "95\N{NO-BREAK SPACE}%", "99\N{NO-BREAK SPACE}%"
_PER_MS = 1e3
_PER_US = 1e6


def problems(data: PageData) -> Section:
    failures = [
        text_column("Of", "subject"),
        text_column("Result", "result", lambda row: True),
        *columns(text_column, {"Class": "event_class", "Event": "event_type"}),
        *columns(text_column, {"From state": "from_state", "Error": "error_class", "Reason": "reason"}),
        *columns(count_column, {"Count": "count", "First seq": "first_seq", "Last seq": "last_seq"}),
        *columns(text_column, {"An example": "example_entity", "Its message": "example_error"}),
    ]
    stuck = [
        *columns(text_column, {"Machine": "machine", "Entity": "entity", "State": "state"}),
        *columns(duration_column, {"Stay": "stay_s", "99 % of such stays below": "p99_s"}),
        elapsed_column("Entered after", "from_at", data.first_at),
        flag_column("Still there", "is_open", bad=True),
    ]
    causes = (
        "Events that failed or have no handler; applications and attempts that failed, were refused or were killed."
    )
    outliers = "Stays longer than 99 % in the same state, worst first; open stays last until the journal's end."
    unknown = "Transitions that the machine's table does not declare, or that the machine refused."
    tables = [
        table("Failures by cause", causes, failures, data.of("failures"), "failures"),
        table("Stuck and slow", outliers, stuck, data.of("stuck_entities"), "stuck_entities"),
        table("Unknown transitions", unknown, _KIND, data.of("unknown_transitions"), "unknown_transitions"),
    ]
    return Section("problems", "Problems", tables=tables)


_KIND = [
    *columns(text_column, {"Machine": "machine", "From": "from_state", "Event": "event_type", "To": "to_state"}),
    count_column("Count", "count"),
    *columns(flag_column, {"Valid": "valid", "Declared": "declared"}, False),
]


_TYPES = [
    *columns(text_column, {"Class": "event_class", "Type": "event_type"}),
    count_column("Events", "count"),
    *columns(problem_count_column, {"Failed": "failed", "Unregistered": "unregistered"}),
    *columns(duration_column, {"Queue mean": "queue_mean_us", f"Queue {P99}": "queue_p99_us"}, _PER_US),
    *columns(duration_column, {"Handler mean": "handling_mean_us", f"Handler {P99}": "handling_p99_us"}, _PER_US),
    duration_column("Handler total", "handling_total_ms", _PER_MS),
]


def events(data: PageData) -> Section:
    handlings = [
        count_column("Seq", "seq"),
        *columns(text_column, {"Class": "event_class", "Type": "event_type", "Entity": "entity"}),
        duration_column("Handling", "handling_ms", _PER_MS),
        elapsed_column("Started after", "at", data.first_at),
    ]
    described = "Wall-clock times, even if the run was in virtual time."
    tables = [
        table("Events by type", described, _TYPES, data.of("events_by_type"), "events_by_type"),
        table("Slowest handlers", "The longest first.", handlings, data.of("slowest_handlers"), "slowest_handlers"),
    ]
    return Section("events", "Events", _plots_of_events(data), tables=tables)


def _plots_of_events(data: PageData) -> list[PlotView]:
    axis, depth = time_axis(data.first_at, data.last_at), data.of("queue_depth")
    waited = any(row["greatest_depth"] for row in depth)
    clock = "" if waited else " In virtual time no event waits: the clock stands still while events are handled."
    return [
        plot(
            "Events in the queue over time",
            f"Events waiting to be handled, and the rates of arrivals and starts.{clock}",
            plots_over_time.queue_depth_plot(depth, axis),
            wide=True,
        ),
        plot(
            "Latency over time",
            "Wall-clock time in the queue and in handlers; the solid line is the 99th percentile, the dotted one the "
            "median. The event types with the most time in handlers.",
            plots_over_time.latency_plot(data.of("event_times"), axis),
            wide=True,
        ),
        plot(
            "Slowest handlers",
            "The longest single events, in wall-clock time, and when they ran.",
            plots_over_time.slowest_plot(data.of("slowest_handlers"), axis),
            wide=True,
        ),
        plot(
            "Time in handlers by type of event",
            "Total wall-clock time in handlers per event type; the types with the most.",
            plots.events_plot(data.of("events_by_type")),
            wide=True,
        ),
    ]


def machines(data: PageData) -> Section:
    stays, mined = data.of("time_in_state"), data.of("mined_graph")
    machines = list(dict.fromkeys(row["machine"] for row in mined))
    states = [
        *columns(text_column, {"Machine": "machine", "State": "state"}),
        count_column("Stays", "count"),
        *columns(duration_column, {"Median": "p50_s", P95: "p95_s", P99: "p99_s", "Longest": "max_s"}),
    ]
    tables = [
        table("Time in state", "Completed stays.", states, stays, "time_in_state"),
        table("Transitions", "The most frequent first.", _KIND, mined, "mined_graph"),
    ]
    spreads = list(plots.state_plots(stays).items())
    drawings = [
        plot(
            f"Time in state: {machine}",
            "From entering a state to leaving it.",
            figure,
            # The last one of an odd number would have nothing beside it.
            wide=position == len(spreads) and position % 2 == 1,
        )
        for position, (machine, figure) in enumerate(spreads, start=1)
    ]
    graphs = [_graph(machine, [row for row in mined if row["machine"] == machine]) for machine in machines]
    return Section("machines", "State machines", drawings, graphs, tables)


def _graph(machine: str, rows: Rows) -> GraphView:
    drawing = draw_graph(rows)
    text = (
        "Left: the machine's declared table. Right: the journal's transitions, with their counts; dashed edges were "
        "never taken, red ones are undeclared or were refused. Hover over an edge to see its events."
    )
    if drawing.states_left_out:
        text += f" The rarest {drawing.states_left_out:,} states are left out."
    return GraphView(anchor("graph", machine), f"State graph: {machine}", text, drawing.declared, drawing.taken)


def comparison(data: PageData) -> Section:
    # The whole run first, then what its users notice.
    metrics = sorted(data.of("comparison"), key=lambda row: _SUBJECTS.get(row["subject"].partition(" ")[0], 2))
    shown = [
        *columns(text_column, {"Of": "subject", "What": "metric"}),
        _measure("Before", "before"),
        _measure("After", "after"),
        TableColumn("Change", lambda row: _change(row["change"]), lambda row: row["change"]),
    ]
    text = f"Before is {data.compared_with}, after is {data.journal}."
    drawings = [plot("Largest changes", text, plots.changes_plot(metrics), wide=True)]
    tables = [table("Before and after", text, shown, metrics, "comparison")]
    return Section("comparison", "Comparison", drawings, tables=tables)


def _measure(title: str, key: str) -> TableColumn:
    def text(row: TableRow) -> str:
        value, per_second = row[key], _UNITS_PER_S.get(row["unit"])
        if row["metric"].endswith("_share"):
            return percent(value)
        if value is None or per_second is None:
            return decimal(value, 0 if value is None or float(value).is_integer() else 2)
        return duration(value / per_second)

    return TableColumn(title, text, lambda row: row[key])


_SUBJECTS = {"run": 0, "queue": 1}
_UNITS_PER_S = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


def _change(share: float | None) -> str:
    return NOTHING if share is None else f"{'+' if share >= 0.0005 else ''}{percent(share)}"
