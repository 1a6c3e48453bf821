"""The report over a journal: every job's table as Parquet, and one HTML page of what they say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from dispatcher.errors import DispatcherError
from pipeline.spark import jobs, usage
from pipeline.spark.formats import count, duration
from pipeline.spark.journal import JournalTables, check_lines, read_lines
from pipeline.spark.page import NODES_DRAWN, ROWS_SHOWN, Figure, PageData, render_page

_DECLARED = "machine string, from_state string, event_type string, to_state string"
_MORE_THAN_ANY_HAS = 5000


@dataclass(frozen=True, slots=True)
class Report:
    """Where a report is, and its headline figures."""

    page: Path
    tables: Path
    events: int
    failed_events: int
    applications: int
    applications_by_final_state: Mapping[str, int]
    containers: int
    nodes: int
    oversubscribed_nodes: int
    transitions: int
    unknown_transitions: int
    """Transitions, not kinds of them, that no machine declares or that a machine refused."""
    first_at: int | None
    """Unix ns in the clock of the run; None where the journal is empty."""
    last_at: int | None

    @property
    def span_s(self) -> float:
        """Length of the run in its own clock."""
        return 0.0 if self.first_at is None or self.last_at is None else (self.last_at - self.first_at) / 1e9


def write_report(
    spark: SparkSession, journal_path: str | Path, output: str | Path, *, declared: DataFrame | None = None
) -> Report:
    """Report on the journal at `journal_path`: Parquet below `output`/tables, and `output`/report.html.

    Blocks until all is written. Tables and page of an earlier report are replaced, other files stay. Spark
    writes the tables and this process the page, so with a remote Spark both need to see the same `output`.

    `declared`: the transitions that the machines declare, as `transition_counts` takes them; by default those
    of the resource manager's machines.

    Raises:
        JournalError: there is no journal at `journal_path`, or it is damaged.
        DispatcherError: `output` cannot be written.
    """
    folder = Path(output).absolute()
    lines = read_lines(spark, journal_path)
    if declared is None:
        declared = _declared_by_resource_manager(spark)
    with _writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
    # Nearly every job reads both.
    cached = JournalTables(lines.events.persist(), lines.transitions.persist())
    try:
        check_lines(cached)
        tables = _Tables(spark, folder / "tables")
        totals = _one(jobs.run_totals(*cached))
        _write_tables(tables, cached, declared, totals)
        rows = _rows_of_page(tables)
        report = _summary(folder, tables, totals, rows)
    finally:
        cached.events.unpersist()
        cached.transitions.unpersist()
    page = PageData(str(journal_path), _headlines(report), report.first_at, report.last_at, rows)
    with _writing_to(report.page):
        report.page.write_text(render_page(page), encoding="utf-8")
    return report


class _Tables:
    """The report's tables. Each is computed once, when it is written; what needs it later reads it back."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._written: dict[str, DataFrame] = {}

    def write(self, name: str, table: DataFrame) -> DataFrame:
        path = str(self._folder / name)
        table.write.mode("overwrite").parquet(path)
        # With the schema at hand, Spark starts no job to look for one in the files.
        self._written[name] = self._spark.read.schema(table.schema).parquet(path)
        return self._written[name]

    def __getitem__(self, name: str) -> DataFrame:
        return self._written[name]


def _write_tables(tables: _Tables, journal: JournalTables, declared: DataFrame, totals: Mapping[str, Any]) -> None:
    events, transitions = journal
    containers = tables.write("containers", usage.container_intervals(events, transitions))
    applications = tables.write("applications", jobs.applications(events, transitions, containers))
    tables.write("applications_by_final_state", jobs.applications_by_final_state(applications))
    tables.write("waiting_by_queue", jobs.waiting_by_queue(applications))
    tables.write("time_in_state", jobs.time_in_state(transitions))
    counts = tables.write("transition_counts", jobs.transition_counts(transitions, declared))
    tables.write("unknown_transitions", jobs.unknown_transitions(counts))
    tables.write("events_by_type", jobs.events_by_type(events))
    node_usage = tables.write("node_usage", usage.node_usage(containers))
    devices = tables.write("gpu_device_peaks", usage.gpu_device_peaks(containers))
    tables.write("node_peaks", usage.node_peaks(node_usage, devices, usage.node_capacities(events)))
    start_at, end_at = totals["first_at"] or 0, totals["last_at"] or 0
    tables.write("containers_over_time", usage.containers_over_time(containers, start_at, end_at))


def _rows_of_page(tables: _Tables) -> dict[str, list[dict[str, Any]]]:
    """For each table on the page its first rows: as many as are shown or drawn.

    With a limit on each, for a sort of everything is two jobs and the first rows are one.
    """
    fullness = F.greatest(
        F.try_divide("peak_memory_mb", "memory_mb"),
        F.try_divide("peak_vcores_milli", "vcores_milli"),
        F.try_divide("peak_gpu_milli", "gpu_milli"),
    )
    kind = [F.asc("machine"), F.asc("from_state"), F.asc("event_type"), F.asc("to_state")]
    shown = ROWS_SHOWN + 1
    wanted: dict[str, tuple[int, list[Column]]] = {
        "applications_by_final_state": (_MORE_THAN_ANY_HAS, [F.desc("applications"), F.asc("final_state")]),
        "waiting_by_queue": (shown, [F.desc("applications"), F.asc("queue")]),
        "applications": (shown, [F.desc_nulls_first("wait_s"), F.asc("submitted_at"), F.asc("id")]),
        "time_in_state": (_MORE_THAN_ANY_HAS, [F.asc("machine"), F.asc("state")]),
        "unknown_transitions": (shown, [F.desc("count"), *kind]),
        "transition_counts": (shown, [F.desc("count"), *kind]),
        "events_by_type": (shown, [F.desc("handling_total_ms"), F.asc("event_class"), F.asc("event_type")]),
        "node_peaks": (NODES_DRAWN + 1, [F.desc("oversubscribed"), fullness.desc_nulls_last(), F.asc("node")]),
        "containers_over_time": (_MORE_THAN_ANY_HAS, [F.asc("bucket")]),
    }
    of_page = {name: tables[name] for name in wanted}
    of_page["containers_over_time"] = of_page["containers_over_time"].where(F.col("node").isNull())
    return {
        name: [row.asDict() for row in of_page[name].orderBy(*order).limit(limit).collect()]
        for name, (limit, order) in wanted.items()
    }


def _summary(folder: Path, tables: _Tables, totals: Mapping[str, Any], rows: Mapping[str, Any]) -> Report:
    # Three tables of one row each.
    sums = _one(
        tables["containers"]
        .agg(F.count("*").alias("containers"))
        .join(
            tables["node_peaks"].agg(
                F.count("*").alias("nodes"), F.count_if("oversubscribed").alias("oversubscribed_nodes")
            ),
            how="cross",
        )
        .join(
            tables["unknown_transitions"].agg(F.coalesce(F.sum("count"), F.lit(0)).alias("unknown_transitions")),
            how="cross",
        )
    )
    states = {row["final_state"]: row["applications"] for row in rows["applications_by_final_state"]}
    return Report(
        page=folder / "report.html",
        tables=folder / "tables",
        applications=sum(states.values()),
        applications_by_final_state=states,
        **totals,
        **sums,
    )


def _one(table: DataFrame) -> dict[str, Any]:
    [row] = table.collect()
    return row.asDict()


def _headlines(report: Report) -> list[Figure]:
    states = [f"{count(number)} {state}" for state, number in report.applications_by_final_state.items()]
    problems = {
        "Failed events": (report.failed_events, f"of {count(report.events)} events"),
        "Oversubscribed nodes": (report.oversubscribed_nodes, f"of {count(report.nodes)} nodes"),
        "Unknown transitions": (report.unknown_transitions, f"of {count(report.transitions)} transitions"),
    }
    return [
        Figure("Span of the run", duration(report.span_s), "in the clock of the run"),
        Figure("Applications", count(report.applications), ", ".join(states)),
        Figure("Containers", count(report.containers), f"on {count(report.nodes)} nodes"),
        *(
            Figure(name, count(number), whole, "bad" if number else "good")
            for name, (number, whole) in problems.items()
        ),
    ]


def _declared_by_resource_manager(spark: SparkSession) -> DataFrame:
    from statemachines.resourcemanager import FACTORIES

    kinds = {
        (machine, _name(from_state), _name(event), _name(to_state))
        for machine, factory in FACTORIES.items()
        for from_state, event, to_states, _ in factory.transitions()
        for to_state in to_states
    }
    return spark.createDataFrame(sorted(kinds), _DECLARED)


def _name(member: object) -> str:
    return str(getattr(member, "name", member))


@contextmanager
def _writing_to(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DispatcherError(
            f"{path}: the report cannot be written here ({error.strerror}). Name another folder for it."
        ) from error
