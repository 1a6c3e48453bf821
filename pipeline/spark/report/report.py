"""The report over a journal: its tables as Parquet, and one HTML page that presents them."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from dispatcher.errors import DispatcherError
from dispatcher.journal.run_config import read_run_config
from dispatcher.util.figures import counted
from dispatcher.util.files import replace_file
from dispatcher.util.folders import drafts
from dispatcher.util.functions import path_of, require_methods
from pipeline.journal.damage import Problem, folder_problems
from pipeline.journal.whole import WholeJournal, look_at_whole
from pipeline.report.digests.digest import require_engine, write_problems
from pipeline.report.digests.transition_digest import Ends
from pipeline.report.page.page_data import PageData
from pipeline.report.page.page_sections import render_page
from pipeline.report.plots.plot_style import Rows
from pipeline.report.tables.damage import problems_in
from pipeline.report.tables.shown import row_count, rows_of_page, total
from pipeline.report.tables.writing import Finish
from pipeline.spark.report.digesting import digest_segments, digest_tables, finish
from pipeline.spark.shipping import is_remote, ship_packages
from pipeline.spark.source.journal import JournalTables, list_damage, load_tables
from pipeline.spark.source.journal_source import local_path

PAGE: Final = "report.html"
_DIGESTS: Final = "digests"


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
    """Number of transitions (not kinds) undeclared by any machine, or rejected."""
    first_at: int | None
    """Start of the run, in Unix ns of its clock, or None if the journal is empty."""
    last_at: int | None
    refusals: Mapping[str, int] = field(default_factory=dict)
    """Number of rejected applications by the scheduler's reason, for the most frequent reasons."""
    damage: Sequence[Problem] = ()
    """The parts of the journal that cannot be read, in order. None of the figures counts what was there."""
    damage_before: Sequence[Problem] = ()
    """The same for the journal of the earlier run that this one is compared with."""

    @property
    def span_s(self) -> float:
        """Length of the run, by its clock."""
        return 0.0 if self.first_at is None or self.last_at is None else (self.last_at - self.first_at) / 1e9

    def at(self, folder: Path) -> Report:
        """Return the same report, moved to this folder."""
        return replace(self, page=folder / PAGE, tables=folder / "tables")


def write_report(
    spark: SparkSession,
    journal_path: str | Path,
    output: str | Path,
    *,
    declared: DataFrame | None = None,
    compare: str | Path | None = None,
    tables: JournalTables | None = None,
    on_step: Callable[[str], None] = lambda what: None,
) -> Report:
    """Report on the journal at `journal_path`: Parquet below `output`/tables, and `output`/report.html.

    Blocks until everything is written. Replaces an earlier report at the end, and only if it's successful. Other files
    stay. Spark writes the tables and this process writes the page, so with a remote Spark both need access to the same
    `output`.

    `declared`: the transitions declared by the machines, with the string columns machine, from_state, event_type and
        to_state. By default, the resource manager's.
    `compare`: the journal of an earlier run. Its tables go to `output`/before, and the page shows the changes.
    `tables`: data to report on instead of the journal. `journal_path` is then only a name shown on the page.
    `on_step`: called before each step, on this thread, with a description to show to users.

    Raises:
        JournalError: `journal_path` or `compare` isn't a journal.
        DispatcherError: `output` can't be written, or DuckDB isn't installed.
    """
    require_engine()
    require_methods(spark, "spark", "a SparkSession", "createDataFrame")
    ship_packages(spark)
    folder = path_of(output, "output").absolute()
    config = snapshot = None
    if tables is None:
        # One snapshot, so that the whole report sees the same state of a journal that is being written.
        snapshot = look_at_whole(local_path(str(journal_path)).absolute())
        config = read_run_config(snapshot.path)
    before = None if compare is None else look_at_whole(local_path(str(compare)).absolute())
    rows = declared_by_resource_manager() if declared is None else [tuple(row) for row in declared.collect()]
    with drafts(folder, "tables", "before", PAGE, what="report") as place, removed(place / _DIGESTS) as digests:
        if before is not None:
            on_step(f"Reading the earlier journal: {_rows_in(before)}")
            parts = _digest(spark, before, None, digests / "before", rows)
            finish(spark, Finish(parts, place / "before", rows))
        on_step("Reading the tables" if snapshot is None else f"Reading the journal: {_rows_in(snapshot)}")
        parts = _digest(spark, snapshot, tables, digests / "run", rows)
        on_step("Making the tables")
        earlier = None if before is None else place / "before"
        finish(spark, Finish(parts, place / "tables", rows, earlier))
        on_step("Drawing the page")
        before_name = None if compare is None else str(compare)
        report = write_page(place, str(journal_path), compared_with=before_name, config=config)
    return report.at(folder)


def _digest(
    spark: SparkSession,
    snapshot: WholeJournal | None,
    tables: JournalTables | None,
    folder: Path,
    declared: Sequence[tuple[str, ...]],
) -> list[Path]:
    """Write the digests of the tables, or of the journal in the snapshot, with its damage; returns their folders."""
    rows, problems = folder / "rows", folder / "problems"
    rows.mkdir(parents=True)
    ends = Ends.of(declared)
    if tables is not None:
        digest_tables(tables, rows, ends)
        return [rows]
    assert snapshot is not None, "a journal or its tables"
    if is_remote(spark):
        digest_tables(load_tables(spark, snapshot.path), rows, ends)
        write_problems(list_damage(spark, snapshot.path), problems)
    else:
        write_problems(folder_problems(snapshot), problems)
        digest_segments(spark, snapshot.path, snapshot.summarized, rows, ends)
    return [rows, problems]


def _rows_in(journal: WholeJournal) -> str:
    """How many rows there are, in words for a user; from the segments' summaries."""
    known = [segment.summary for segment in journal.summarized if segment.summary is not None]
    events, transitions = sum(one.events for one in known), sum(one.transitions for one in known)
    return f"{counted(events, 'event')}, {counted(transitions, 'transition')}"


@contextmanager
def removed(folder: Path) -> Iterator[Path]:
    """The folder, which is removed at the end."""
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_page(
    folder: Path,
    journal: str,
    *,
    compared_with: str | None = None,
    config: str | None = None,
    is_live: bool = False,
) -> Report:
    """Write `folder`/report.html from the tables in `folder`/tables; absent tables appear empty.

    `journal` and `compared_with` are names to show, `config` is the text of the run's configuration. `is_live`:
    the page reloads itself. Uses bounded memory and no Spark.

    Raises:
        DispatcherError: the page cannot be written.
    """
    rows = rows_of_page(folder / "tables")
    if compared_with is None:
        rows.pop("comparison", None)
    report = _summary(folder, rows)
    totals = {name: getattr(report, name) for name in _PAGE_TOTALS}
    data = PageData(
        journal,
        report.first_at,
        report.last_at,
        rows,
        report.damage,
        compared_with,
        config,
        is_live,
        totals,
        report.damage_before,
    )
    with _writing_to(report.page):
        text = render_page(data)
        replace_file(report.page, text.encode("utf-8"), draft=folder / f".{PAGE}.new", sync=False)
    return report


def _summary(folder: Path, rows: Mapping[str, Rows]) -> Report:
    tables = folder / "tables"
    states = {row["final_state"]: row["applications"] for row in rows["applications_by_final_state"]}
    [totals] = rows["run_totals"] or [dict.fromkeys(_TOTALS, 0) | {"first_at": None, "last_at": None}]
    return Report(
        page=folder / PAGE,
        tables=tables,
        applications=sum(states.values()),
        applications_by_final_state=states,
        containers=row_count(tables / "containers"),
        nodes=row_count(tables / "node_peaks"),
        oversubscribed_nodes=total(tables / "node_peaks", "oversubscribed"),
        unknown_transitions=total(tables / "unknown_transitions", "count"),
        refusals=_refusals(rows["failures"]),
        damage=tuple(problems_in(tables / "damage")),
        damage_before=tuple(problems_in(folder / "before" / "damage")),
        **{name: totals[name] for name in _TOTALS},
    )


def _refusals(failures: Rows) -> Mapping[str, int]:
    """Refused applications by reason, whichever state they were in."""
    refusals: Counter[str] = Counter()
    for row in failures:
        if row.get("reason") is not None:
            refusals[row["reason"]] += row["count"]
    return refusals


_TOTALS = ("events", "failed_events", "transitions", "first_at", "last_at")
_PAGE_TOTALS = ("containers", "nodes", "oversubscribed_nodes", "unknown_transitions")


def declared_by_resource_manager() -> list[tuple[str, ...]]:
    """The transitions that the resource manager's machines declare: machine, from_state, event_type, to_state."""
    from pipeline.spark.source.yarn_log import transitions_of
    from statemachines.resourcemanager.context import FACTORIES

    return [tuple(row) for row in transitions_of(FACTORIES)]


@contextmanager
def _writing_to(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DispatcherError(
            f"{path}: the report cannot be written here ({error.strerror}). Name another folder for it."
        ) from error
