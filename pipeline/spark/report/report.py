"""The report over a journal: every job's table as Parquet, and one HTML page that presents them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from dispatcher.errors import DispatcherError
from dispatcher.journal import read_run_config
from dispatcher.journal.snapshot import look_at
from dispatcher.util.files import replace_file
from dispatcher.util.folders import drafts
from pipeline.journal.damage import quick_check
from pipeline.spark.report.digests.journal_digests import JournalDigests, journal_digests
from pipeline.spark.report.page.formats import count, duration
from pipeline.spark.report.page.page_sections import PageData, render_page
from pipeline.spark.report.page.page_views import Figure
from pipeline.spark.report.plots.plot_style import Rows
from pipeline.spark.report.tables.comparison import comparison
from pipeline.spark.report.tables.report_rows import row_count, rows_of_page, total
from pipeline.spark.report.tables.report_tables import write_tables
from pipeline.spark.shipping import is_remote, ship_packages
from pipeline.spark.source.journal import JournalTables, load_tables
from pipeline.spark.source.journal_source import local_path

_PAGE: Final = "report.html"


@dataclass(frozen=True, slots=True)
class Report:
    """A report's paths and headline figures."""

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
    """Number of transitions (not kinds) that no machine declares or that a machine refused."""
    first_at: int | None
    """Unix ns in the clock of the run; None if the journal is empty."""
    last_at: int | None
    refusals: Mapping[str, int] = field(default_factory=dict)
    """Number of refused applications by the scheduler's reason, for the most frequent reasons."""
    damage: Sequence[str] = ()
    """A line for each unreadable part of the journal that was skipped."""

    @property
    def span_s(self) -> float:
        """Length of the run in its own clock."""
        return 0.0 if self.first_at is None or self.last_at is None else (self.last_at - self.first_at) / 1e9


def write_report(
    spark: SparkSession,
    journal_path: str | Path,
    output: str | Path,
    *,
    declared: DataFrame | None = None,
    compare: str | Path | None = None,
    tables: JournalTables | None = None,
) -> Report:
    """Report on the journal at `journal_path`: Parquet below `output`/tables, and `output`/report.html.

    Blocks until everything is written. Replaces the tables and page of an earlier report at the end; until then, and if
    it fails or is interrupted, the earlier ones stay whole. Other files stay. Spark writes the tables and this process
    the page, so with a remote Spark both must see the same `output`.

    `declared`: the transitions that the machines declare, as for `transition_counts`; default: the resource manager's.
    `compare`: the journal of an earlier run; its tables go to `output`/before, and the page shows what has changed.
    `tables`: data to report on instead of the journal; `journal_path` is then only a name shown on the page.

    Raises:
        JournalError: `journal_path` or `compare` is not a journal.
        DispatcherError: `output` cannot be written.
    """
    ship_packages(spark)
    folder = Path(output).absolute()
    damage: Sequence[str] = ()
    config = digests = None
    if tables is None:
        # One snapshot, so that the whole report sees the same state of a journal that is being written.
        journal = look_at(local_path(str(journal_path)).absolute())
        damage = [problem.problem for problem in quick_check(journal)]
        config = read_run_config(journal.path)
        tables, digests = load_tables(spark, journal.path), None if is_remote(spark) else journal_digests(journal)
    before = None if compare is None else _before(spark, compare)
    if declared is None:
        declared = declared_by_resource_manager(spark)
    with drafts(folder, "tables", "before", _PAGE, what="report") as place:
        written = write_tables(spark, tables, place / "tables", declared, digests=digests)
        if before is not None:
            tables, digests = before
            compared = write_tables(spark, tables, place / "before", declared, digests=digests)
            changes = comparison(compared["key_figures"], written["key_figures"])
            changes.write.mode("overwrite").parquet(str(place / "tables" / "comparison"))
        before_name = None if compare is None else str(compare)
        report = write_page(place, str(journal_path), damage=damage, compared_with=before_name, config=config)
    return replace(report, page=folder / _PAGE, tables=folder / "tables")


def _before(spark: SparkSession, journal: str | Path) -> tuple[JournalTables, JournalDigests | None]:
    """An earlier journal's tables, and its digests unless only a remote Spark can read the journal."""
    folder = local_path(str(journal)).absolute()
    return load_tables(spark, folder), None if is_remote(spark) else journal_digests(look_at(folder))


def write_page(
    folder: Path,
    journal: str,
    *,
    damage: Sequence[str] = (),
    compared_with: str | None = None,
    config: str | None = None,
) -> Report:
    """Write `folder`/report.html from the tables in `folder`/tables; absent tables appear empty.

    `journal` and `compared_with` are names to show, `config` is the text of the run's configuration. Uses bounded
    memory and no Spark.

    Raises:
        DispatcherError: the page cannot be written.
    """
    rows = rows_of_page(folder / "tables")
    if compared_with is None:
        rows.pop("comparison", None)
    report = _summary(folder, rows, damage)
    data = PageData(journal, report.first_at, report.last_at, rows, damage, compared_with, config)
    with _writing_to(report.page):
        text = render_page(data, _headlines(report, rows))
        replace_file(report.page, text.encode("utf-8"), draft=folder / f".{_PAGE}.new", sync=False)
    return report


def _summary(folder: Path, rows: Mapping[str, Rows], damage: Sequence[str]) -> Report:
    tables = folder / "tables"
    states = {row["final_state"]: row["applications"] for row in rows["applications_by_final_state"]}
    [totals] = rows["run_totals"] or [dict.fromkeys(_TOTALS, 0) | {"first_at": None, "last_at": None}]
    return Report(
        page=folder / _PAGE,
        tables=tables,
        applications=sum(states.values()),
        applications_by_final_state=states,
        containers=row_count(tables / "containers"),
        nodes=row_count(tables / "node_peaks"),
        oversubscribed_nodes=total(tables / "node_peaks", "oversubscribed"),
        unknown_transitions=total(tables / "unknown_transitions", "count"),
        refusals={row["reason"]: row["count"] for row in rows["failures"] if row.get("reason") is not None},
        damage=tuple(damage),
        **{name: totals[name] for name in _TOTALS},
    )


_TOTALS = ("events", "failed_events", "transitions", "first_at", "last_at")


def _headlines(report: Report, rows: Mapping[str, Rows]) -> list[Figure]:
    states = [f"{count(number)} {state}" for state, number in report.applications_by_final_state.items()]
    problems = {
        "Failed events": (report.failed_events, f"of {count(report.events)} events"),
        "Unknown transitions": (report.unknown_transitions, f"of {count(report.transitions)} transitions"),
        "Oversubscribed nodes": (report.oversubscribed_nodes, f"of {count(report.nodes)} nodes"),
    }
    return [
        Figure("Span of the run", duration(report.span_s), "in the clock of the run"),
        Figure("Applications", count(report.applications), ", ".join(states)),
        Figure("Containers", count(report.containers), f"on {count(report.nodes)} nodes"),
        *_longest_wait(rows["waiting_by_queue"]),
        *_never_placed(rows["waiting_by_queue"]),
        *_begun_earlier(rows["waiting_by_queue"]),
        *(
            Figure(name, count(number), whole, "bad" if number else "good")
            for name, (number, whole) in problems.items()
        ),
    ]


def _longest_wait(queues: Rows) -> list[Figure]:
    placed = [row for row in queues if row["p95_s"] is not None]
    if not placed:
        return []
    slowest = max(placed, key=lambda row: row["p95_s"])
    queue = "applications of unknown queue" if slowest["queue"] is None else f"queue {slowest['queue']}"
    detail = f"95 % of {queue}, the slowest, waited less for a container"
    return [Figure("Longest waits", duration(slowest["p95_s"]), detail)]


def _never_placed(queues: Rows) -> list[Figure]:
    waiting = sum(row["never_placed"] for row in queues)
    figure = Figure("Never placed", count(waiting), "applications without a container", "bad" if waiting else "good")
    return [figure] if queues else []


def _begun_earlier(queues: Rows) -> list[Figure]:
    """Says that the journal or log is an excerpt."""
    earlier = sum(row["begun_earlier"] for row in queues)
    detail = "applications of an excerpt: their submission is not in it, so that their waits are unknown"
    return [Figure("Begun earlier", count(earlier), detail)] if earlier else []


def declared_by_resource_manager(spark: SparkSession) -> DataFrame:
    """The transitions that the resource manager's machines declare: machine, from_state, event_type, to_state."""
    from pipeline.spark.source.yarn_log import DECLARED, transitions_of
    from statemachines.resourcemanager import FACTORIES

    return spark.createDataFrame(transitions_of(FACTORIES), DECLARED)


@contextmanager
def _writing_to(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DispatcherError(
            f"{path}: the report cannot be written here ({error.strerror}). Name another folder for it."
        ) from error
