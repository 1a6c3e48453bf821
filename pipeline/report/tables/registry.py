"""All tables of the report, in an order in which each can be made of those before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from pipeline.report.digests.run import ReportRun
from pipeline.report.tables import (
    applications,
    comparison,
    containers,
    damage,
    events,
    failures,
    machines,
    utilisation,
)
from pipeline.report.tables.applications import PHASES

SQL_TYPES: Final = {
    "string": "VARCHAR",
    "int": "INTEGER",
    "long": "BIGINT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "array<int>": "INTEGER[]",
}
_UNITS: Final = {
    "at": "Unix ns",
    "us": "us",
    "ms": "ms",
    "s": "s",
    "mb": "MiB",
    "share": "fraction",
    "change": "fraction",
    "milli": "thousandths",
    "milli_total": "thousandths",
}
ALL: Final = 5000
"""Maximum rows that the page takes of a table that is expected to be short."""


class ReportColumn(NamedTuple):
    """A column; `type` is Spark's name for it."""

    name: str
    type: str
    nullable: bool

    @property
    def unit(self) -> str:
        """From the end of its name; empty for counts, positions, texts and flags."""
        return next((unit for end, unit in _UNITS.items() if f"_{self.name}".endswith(f"_{end}")), "")


def _columns(text: str) -> tuple[ReportColumn, ...]:
    """From a list such as "state string, p99_s double?"; a question mark: nullable."""
    columns = (column.split() for column in text.split(","))
    return tuple(ReportColumn(name, kind.removesuffix("?"), kind.endswith("?")) for name, kind in columns)


class Shown(NamedTuple):
    """Which rows the page shows or draws: the first `limit` by `keys`, in descending order for those with a minus.

    Nulls come last. `where`: SQL, only these rows; `also`: SQL, further columns, to order by.
    """

    keys: Sequence[str]
    limit: int
    where: str = "true"
    also: str = ""


_SHOWN: Final = 101
"""The rows of a table on the page, and one more, so that the page can report that there are more."""


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table of the report. `make`: its rows in SQL, from the digest's relations and from earlier tables."""

    name: str
    make: Callable[[ReportRun], str]
    columns: tuple[ReportColumn, ...]
    row: str
    """What a row is about."""
    says: str
    """What it tells about that, for docs/report.md."""
    shown: Shown | None = None
    """None: the page does not show it."""
    half: Literal["nodes", "entities", "both"] = "entities"
    """Two tasks share the work of a large journal: one makes the tables of nodes and containers, about half of the
    work. A table of "both" is made of tables of both, once these are done."""

    def select(self, run: ReportRun) -> str:
        casts = ", ".join(f'"{column.name}"::{SQL_TYPES[column.type]} AS "{column.name}"' for column in self.columns)
        return f"SELECT {casts} FROM ({self.make(run)})"


_PATH = "application string, final_state string, is_final boolean, submitted_at long, ended_at long?"
_TRANSITION = "machine string, from_state string, event_type string, to_state string"
_COUNTED = f"{_TRANSITION}, count long, valid boolean, declared boolean"
_BY_COUNT = ("-count", "machine", "from_state", "event_type", "to_state")
_WAITS = "applications long, p50_s double?, p95_s double?, max_s double?, never_placed long, begun_earlier long"
_SHARES = "bucket int, starts_at long, memory_share double?, vcores_share double?, gpu_share double?"
_AMOUNTS = "memory_mb long?, vcores_milli long?"
_NODES_DRAWN = 5000

TABLES: Final = (
    ReportTable(
        "run_totals",
        events.run_totals,
        _columns("events long, failed_events long, transitions long, first_at long?, last_at long?"),
        "run",
        "numbers of events, failed events and transitions; first and last moment",
        Shown(["events"], 1),
    ),
    ReportTable(
        "damage",
        damage.damage,
        _columns("segment string, offset long?, length long?, problem string, events long?, transitions long?"),
        "damaged or missing part of the journal",
        "file, place and size in bytes, a line of text, and how many events and transitions are lost; null: unknown",
    ),
    ReportTable(
        "events_by_type",
        events.events_by_type,
        _columns(
            "event_class string, event_type string, count long, failed long, unregistered long, queue_mean_us double, "
            "queue_p99_us double, handling_mean_us double, handling_p99_us double, handling_total_ms double"
        ),
        "event type",
        "count, failures, queue and handling times",
        Shown(["-handling_total_ms", "event_class", "event_type"], ALL),  # the headlines add up all types
    ),
    ReportTable(
        "event_times",
        events.event_times,
        _columns(
            "bucket int, starts_at long, event_class string, event_type string, count long, "
            "queue_mean_us double, queue_p50_us double, queue_p99_us double, queue_max_us double, "
            "handling_mean_us double, handling_p50_us double, handling_p99_us double, handling_max_us double"
        ),
        "event type and part of the run",
        "the same over time",
        Shown(
            ["bucket", "event_class", "event_type"],
            ALL,
            "event_type IN (SELECT event_type FROM events_by_type ORDER BY handling_total_ms DESC, event_class, "
            "event_type LIMIT 5)",
        ),
    ),
    ReportTable(
        "queue_depth",
        events.queue_depth,
        _columns("bucket int, starts_at long, arrivals long, starts long, depth long, greatest_depth long"),
        "part of the run",
        "arrivals, starts, and the depth of the event queue: at the end of the part, and its maximum",
        Shown(["bucket"], ALL),
    ),
    ReportTable(
        "slowest_handlers",
        events.slowest_handlers,
        _columns("seq long, event_class string, event_type string, entity string?, handling_ms double, at long"),
        "event",
        "the events with the longest handling times",
        Shown(["-handling_ms", "seq"], _SHOWN),
    ),
    ReportTable(
        "transition_counts",
        machines.transition_counts,
        _columns(_COUNTED),
        "kind of transition",
        "count, whether it was accepted, whether a machine declares it",
    ),
    ReportTable(
        "unknown_transitions",
        machines.unknown_transitions,
        _columns(_COUNTED),
        "kind of transition",
        "those that no machine declares, or that a machine rejected",
        Shown(_BY_COUNT, _SHOWN),
    ),
    ReportTable(
        "mined_graph",
        machines.mined_graph,
        _columns(_COUNTED),
        "kind of transition",
        "`transition_counts` with the declared transitions that never happened",
        Shown(_BY_COUNT, ALL),
    ),
    ReportTable(
        "time_in_state",
        machines.time_in_state,
        _columns("machine string, state string, count long, p50_s double, p95_s double, p99_s double, max_s double"),
        "machine and state",
        "number of stays, 50th, 95th and 99th percentile, longest",
        Shown(["machine", "state"], ALL),
    ),
    ReportTable(
        "stuck_entities",
        machines.stuck_entities,
        _columns(
            "machine string, entity string, state string, from_at long, stay_s double, p99_s double, is_open boolean"
        ),
        "stay of an entity in a state",
        "stays longer than 99 % of those in the same state, ended or not",
        Shown(["-over_s", "machine", "entity"], _SHOWN, also="stay_s - p99_s AS over_s"),
    ),
    ReportTable(
        "failures",
        failures.failures,
        _columns(
            "subject string, result string, event_class string?, event_type string, from_state string?, "
            "error_class string?, reason string?, count long, first_seq long, last_seq long, example_entity string?, "
            "example_error string?"
        ),
        "cause",
        "how often, first and last `seq`, an example; the reason, if the scheduler rejected applications",
        Shown(["-count", "first_seq"], _SHOWN),
    ),
    ReportTable(
        "containers",
        containers.containers,
        _columns(
            "container string, application string?, attempt string?, node string?, kind string?, memory_mb long?, "
            "vcores_milli long?, gpus long?, gpu_milli long?, gpu_devices array<int>?, started_seq long, "
            "started_at long, ended_seq long?, ended_at long?, end_state string?"
        ),
        "container",
        "node, application, resources, start, end, end state",
        half="nodes",
    ),
    ReportTable(
        "containers_over_time",
        containers.containers_over_time,
        _columns("node string?, bucket int, starts_at long, containers long"),
        "node and part of the run",
        "maximum containers at once; a null node is the whole cluster",
        Shown(["bucket"], ALL, "node IS NULL"),
        half="nodes",
    ),
    ReportTable(
        "node_usage",
        containers.node_usage,
        _columns(f"node string, seq long, at long, containers long, {_AMOUNTS}, gpu_milli_total long?"),
        "node and change",
        "what its containers hold right after it",
        half="nodes",
    ),
    ReportTable(
        "gpu_device_peaks",
        containers.gpu_device_peaks,
        _columns("node string, device int, peak_milli long?"),
        "GPU that held a container",
        "its maximum use at once",
        half="nodes",
    ),
    ReportTable(
        "node_peaks",
        containers.node_peaks,
        _columns(
            "node string, rack string?, gpu_model string?, memory_mb long?, peak_memory_mb long, vcores_milli long?, "
            "peak_vcores_milli long, gpu_milli long?, peak_gpu_milli long, peak_gpu_device_milli long, "
            "peak_containers long, oversubscribed boolean"
        ),
        "node",
        "capacity and peak use; whether it was oversubscribed",
        Shown(
            ["-oversubscribed", "-fullness", "node"],
            _NODES_DRAWN + 1,
            also="greatest(peak_memory_mb / nullif(memory_mb, 0), peak_vcores_milli / nullif(vcores_milli, 0), "
            "peak_gpu_milli / nullif(gpu_milli, 0)) AS fullness",
        ),
        half="nodes",
    ),
    ReportTable(
        "node_utilisation",
        utilisation.node_utilisation,
        _columns(f"node string?, {_SHARES}"),
        "node and part of the run",
        "share of memory, cores and GPUs in use, weighted by time",
        half="nodes",
    ),
    ReportTable(
        "applications",
        applications.applications,
        _columns(
            "id string, name string?, user string?, queue string?, final_state string, is_final boolean, "
            "submitted_at long?, first_container_at long?, ended_at long?, wait_s double?"
        ),
        "application",
        "name, user, queue, final state, submission, first container, end, wait",
        Shown(
            ["-never_placed", "-wait_s", "submitted_at", "id"],
            _SHOWN,
            also="first_container_at IS NULL AND submitted_at IS NOT NULL AS never_placed",
        ),
    ),
    ReportTable(
        "applications_by_final_state",
        applications.applications_by_final_state,
        _columns("final_state string, is_final boolean, applications long"),
        "final state",
        "number of applications",
        Shown(["-applications", "final_state"], ALL),
    ),
    ReportTable(
        "waiting_by_queue",
        applications.waiting_by_queue,
        _columns(f"queue string?, {_WAITS}"),
        "queue",
        "median, 95th percentile and longest wait for the first container; never placed; begun earlier",
        Shown(["-applications", "queue"], ALL),  # the headlines look at all queues
    ),
    ReportTable(
        "waiting_by_user",
        applications.waiting_by_user,
        _columns(f"queue string?, user string?, {_WAITS}"),
        "queue and user",
        "the same",
        Shown(["-applications", "queue", "user"], _SHOWN),
    ),
    ReportTable(
        "application_timeline",
        applications.application_timeline,
        _columns("application string, seq long, state string, from_at long, to_at long?"),
        "stay of an application in a state",
        "from when to when",
    ),
    ReportTable(
        "critical_paths",
        applications.critical_paths,
        _columns(", ".join([_PATH, *(f"{name}_s double" for name in ("total", *PHASES)), "longest_phase string?"])),
        "application",
        "seconds of saving, admission, scheduling, launching, running and finishing",
        Shown(["-total_s", "application"], _SHOWN),
    ),
    ReportTable(
        "queue_utilisation",
        utilisation.queue_utilisation,
        _columns(f"queue string?, {_SHARES}"),
        "queue and part of the run",
        "share of the cluster that its containers held",
    ),
    ReportTable(
        "key_figures",
        comparison.key_figures,
        _columns("subject string, metric string, unit string, value double?"),
        "figure",
        "subject, metric, unit and value: what `--compare` compares",
        half="both",
    ),
)
COMPARISON: Final = ReportTable(
    "comparison",
    comparison.comparison,
    _columns("subject string, metric string, unit string, before double?, after double?, change double?"),
    "figure",
    "before, after and relative change; only with `--compare`",
    Shown(["subject", "metric"], ALL),
    half="both",
)
