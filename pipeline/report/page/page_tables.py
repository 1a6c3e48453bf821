"""The tables on the report's page: of each its Parquet table, its title, its text and its columns, by section."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from dispatcher.util.figures import NOTHING, thousandths
from pipeline.report.page.columns import (
    TableColumn,
    columns,
    count_column,
    duration_column,
    elapsed_column,
    flag_column,
    problem_count_column,
    text_column,
)
from pipeline.report.page.page_data import PageData
from pipeline.report.page.page_views import TableView, table
from pipeline.report.plots.plots import NODE_RESOURCES, NodeResource
from pipeline.report.tables.applications import PHASES

P95, P99 = "95\N{NO-BREAK SPACE}%", "99\N{NO-BREAK SPACE}%"
_PER_MS = 1e3
_PER_US = 1e6

Columns: TypeAlias = Sequence[TableColumn]


class PageTable(NamedTuple):
    """`name`: of the Parquet table. `columns`: or a function that chooses them by the data."""

    name: str
    title: str
    text: str
    columns: Columns | Callable[[PageData], Columns]

    def view(self, data: PageData) -> TableView:
        shown = self.columns(data) if callable(self.columns) else self.columns
        return table(self.title, self.text, shown, data.of(self.name), self.name)


def tables_of(section: str, data: PageData) -> list[TableView]:
    return [each.view(data) for each in _TABLES[section]]


def _use_column(resource: NodeResource) -> TableColumn:
    peak, capacity = resource.peak, resource.capacity
    return TableColumn(
        resource.title,
        lambda row: resource.use(row) if row[peak] or row[capacity] else NOTHING,
        lambda row: resource.share(row) if row[capacity] else None,
        is_bad=lambda row: row[capacity] is not None and row[peak] > row[capacity],
    )


def _waits(*of: TableColumn) -> Callable[[PageData], Columns]:
    """Columns `of` what, and its waits; if the journal is an excerpt, applications begun earlier as well."""
    waits = [
        *of,
        count_column("Applications", "applications"),
        *columns(duration_column, {"Median wait": "p50_s", P95: "p95_s", "Longest": "max_s"}),
        problem_count_column("Never placed", "never_placed"),
    ]

    def shown(data: PageData) -> Columns:
        is_excerpt = any(row["begun_earlier"] for row in data.of("waiting_by_queue"))
        return [*waits, count_column("Begun earlier", "begun_earlier")] if is_excerpt else waits

    return shown


_QUEUE = text_column("Queue", "queue")
_KIND = [
    *columns(text_column, {"Machine": "machine", "From": "from_state", "Event": "event_type", "To": "to_state"}),
    count_column("Count", "count"),
    *columns(flag_column, {"Valid": "valid", "Declared": "declared"}, False),
]

_TABLES: Final[Mapping[str, Sequence[PageTable]]] = {
    "problems": (
        PageTable(
            "failures",
            "Failures by cause",
            "Events that failed or have no handler; applications and attempts that failed, were rejected or were "
            "killed.",
            [
                text_column("Of", "subject"),
                text_column("Result", "result", lambda row: True),
                *columns(text_column, {"Class": "event_class", "Event": "event_type"}),
                *columns(text_column, {"From state": "from_state", "Error": "error_class", "Reason": "reason"}),
                *columns(count_column, {"Count": "count", "First seq": "first_seq", "Last seq": "last_seq"}),
                *columns(text_column, {"An example": "example_entity", "Its message": "example_error"}),
            ],
        ),
        PageTable(
            "stuck_entities",
            "Stuck and slow",
            "Stays longer than 99 % in the same state, worst first; open stays last until the journal's end.",
            lambda data: [
                *columns(text_column, {"Machine": "machine", "Entity": "entity", "State": "state"}),
                *columns(duration_column, {"Stay": "stay_s", "99 % of such stays below": "p99_s"}),
                elapsed_column("Entered after", "from_at", data.first_at),
                flag_column("Still there", "is_open", bad=True),
            ],
        ),
        PageTable(
            "unknown_transitions",
            "Unknown transitions",
            "Transitions that the machine's table does not declare, or that the machine rejected.",
            _KIND,
        ),
    ),
    "applications": (
        PageTable("waiting_by_queue", "Waiting per queue", "", _waits(_QUEUE)),
        PageTable("waiting_by_user", "Waiting per user", "", _waits(text_column("User", "user"), _QUEUE)),
        PageTable(
            "critical_paths",
            "Critical paths",
            "The applications that took the longest; unfinished ones are counted up to the end of the journal.",
            [
                *columns(text_column, {"Application": "application", "Final state": "final_state"}),
                duration_column("Total", "total_s"),
                *(duration_column(phase.capitalize(), f"{phase}_s") for phase in PHASES),
                text_column("Longest phase", "longest_phase"),
            ],
        ),
        PageTable(
            "applications",
            "Applications",
            "Applications that never got a container, then those that waited longest for their first one, then those "
            "whose submission is not in the journal. Times count from the start of the run.",
            lambda data: [
                *columns(text_column, {"Application": "id", "Name": "name", "User": "user", "Queue": "queue"}),
                text_column("Final state", "final_state"),
                elapsed_column("Submitted after", "submitted_at", data.first_at),
                elapsed_column("First container after", "first_container_at", data.first_at),
                elapsed_column("Ended after", "ended_at", data.first_at),
                duration_column("Wait", "wait_s"),
            ],
        ),
    ),
    "cluster": (
        PageTable(
            "node_peaks",
            "Nodes",
            "Peak use, out of the capacity; oversubscribed nodes first, then the fullest.",
            [
                *columns(text_column, {"Node": "node", "Rack": "rack"}),
                *map(_use_column, NODE_RESOURCES),
                TableColumn(
                    "Of one GPU",
                    lambda row: thousandths(row["peak_gpu_device_milli"] or None),
                    lambda row: row["peak_gpu_device_milli"] or None,
                    is_bad=lambda row: row["peak_gpu_device_milli"] > 1000,
                ),
                text_column("GPU model", "gpu_model"),
                count_column("Containers", "peak_containers"),
                flag_column("Oversubscribed", "oversubscribed", bad=True),
            ],
        ),
    ),
    "events": (
        PageTable(
            "events_by_type",
            "Events by type",
            "Wall-clock times, even if the run was in virtual time.",
            [
                *columns(text_column, {"Class": "event_class", "Type": "event_type"}),
                count_column("Events", "count"),
                *columns(problem_count_column, {"Failed": "failed", "Unregistered": "unregistered"}),
                *columns(duration_column, {"Queue mean": "queue_mean_us", f"Queue {P99}": "queue_p99_us"}, _PER_US),
                duration_column("Handler mean", "handling_mean_us", _PER_US),
                duration_column(f"Handler {P99}", "handling_p99_us", _PER_US),
                duration_column("Handler total", "handling_total_ms", _PER_MS),
            ],
        ),
        PageTable(
            "slowest_handlers",
            "Slowest handlers",
            "The longest first.",
            lambda data: [
                count_column("Seq", "seq"),
                *columns(text_column, {"Class": "event_class", "Type": "event_type", "Entity": "entity"}),
                duration_column("Handling", "handling_ms", _PER_MS),
                elapsed_column("Started after", "at", data.first_at),
            ],
        ),
    ),
    "machines": (
        PageTable(
            "time_in_state",
            "Time in state",
            "Completed stays.",
            [
                *columns(text_column, {"Machine": "machine", "State": "state"}),
                count_column("Stays", "count"),
                *columns(duration_column, {"Median": "p50_s", P95: "p95_s", P99: "p99_s", "Longest": "max_s"}),
            ],
        ),
        PageTable("mined_graph", "Transitions", "The most frequent first.", _KIND),
    ),
}
