"""The report: its tables, its page and its headline figures."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from dispatcher import DispatcherError
from pipeline.journal import Problem
from pipeline.spark import Report, read_journal, write_report
from pipeline.spark.report.report import write_page

from ....kit.commands import Ended, run_here
from ...journal_builder import JournalBuilder
from ...report.tables.at_hand import NAMES

SECOND = 1_000_000_000
NASTY = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def declared(spark: SparkSession) -> DataFrame:
    kinds = ["NEW START NEW_SAVING", "NEW_SAVING APP_SAVE_FAILED FAILED"]
    rows = [("RMApp", *kind.split()) for kind in kinds]
    rows += [("RMContainer", "NEW", "START", "ALLOCATED"), ("RMNode", "NEW", "STARTED", "RUNNING")]
    return spark.createDataFrame(rows, "machine string, from_state string, event_type string, to_state string")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two applications with nasty names, two nodes of which one is oversubscribed, and a refused transition."""
    journal = JournalBuilder(tmp_path_factory.mktemp("run") / "journal")
    journal.node(1, "h1:1", memory_mb=1024, gpus=2)
    journal.node(2, "h2:1")
    journal.submit(3, "application_0_0001", 1, name=NASTY, queue=f"</script>{NASTY}")
    journal.submit(4, "application_0_0002", 1)
    journal.allocate(5, "container_0_0001_01_000001", "h1:1", 3)
    journal.allocate(6, "container_0_0001_01_000002", "h1:1", 3, gpus=1, gpu_milli=500, gpu_devices=[1])
    journal.move(7, "RMApp", "application_0_0001", "NEW_SAVING APP_SAVE_FAILED FAILED", at=5)
    journal.move(8, "RMApp", "application_0_0001", "FAILED START FAILED", at=5, valid=False)
    journal.event(8, "RMAppEventType", "START", "application_0_0001", 9, outcome="failed", error="ValueError: x")
    return journal.path


@pytest.fixture(scope="module")
def report(spark: SparkSession, run: Path, declared: DataFrame) -> Report:
    return write_report(spark, run, run.parent / "written", declared=declared)


def test_refusals_for_one_reason_are_added_up_over_states(report: Report, tmp_path: Path) -> None:
    """Of the applications that were refused for one reason, only those of the last state were counted."""
    columns = pq.read_schema(next((report.tables / "failures").glob("*.parquet")))
    cause = {column.name: None for column in columns if column.type == pa.string()} | {"reason": "no queue q"}
    rows = [{**cause, "from_state": state, "count": count} for state, count in (("NEW_SAVING", 3), ("SUBMITTED", 2))]
    (tmp_path / "tables" / "failures").mkdir(parents=True)
    named = {"subject": "RMApp", "result": "FAILED", "event_type": "APP_REJECTED", "first_seq": 1, "last_seq": 9}
    found = pa.Table.from_pylist([row | named for row in rows])
    pq.write_table(found, tmp_path / "tables" / "failures" / "part-00000.parquet")

    assert write_page(tmp_path, "journal").refusals == {"no queue q": 5}


def test_headline_figures_are_those_of_the_journal(report: Report, run: Path) -> None:
    assert report == Report(
        page=run.parent / "written" / "report.html",
        tables=run.parent / "written" / "tables",
        events=7,
        failed_events=1,
        applications=2,
        applications_by_final_state={"FAILED": 1, "NEW_SAVING": 1},
        containers=2,
        nodes=2,
        oversubscribed_nodes=1,
        transitions=8,
        unknown_transitions=1,
        first_at=0,
        last_at=9 * SECOND,
    )
    assert report.span_s == 9.0


def test_spark_reads_the_tables_back(report: Report, spark: SparkSession) -> None:
    for name in ("containers", "waiting_by_user", "mined_graph"):
        assert spark.read.parquet(str(report.tables / name)).count() > 0


def test_the_page_shows_what_went_wrong_and_names_from_the_journal_as_text(report: Report) -> None:
    page = report.page.read_text(encoding="utf-8")

    assert NASTY not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    for figure in (
        "1 event failed, 1 application failed",
        "1 transition undeclared or rejected",
        "1 application never got a container",
        "1 of 2 nodes oversubscribed",
    ):
        assert f"<strong>{figure}" in page


def test_a_second_report_replaces_only_the_tables_and_the_page(
    report: Report, spark: SparkSession, run: Path, declared: DataFrame, tmp_path: Path
) -> None:
    (tmp_path / "tables" / "comparison").mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "report.html").write_text("old")

    again = write_report(spark, run, tmp_path, declared=declared)

    assert again == replace(report, page=tmp_path / "report.html", tables=tmp_path / "tables")
    assert again.page.read_text(encoding="utf-8") == report.page.read_text(encoding="utf-8")
    assert {table.name for table in again.tables.iterdir()} == set(NAMES)
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("table", ["events", pytest.param("transitions", marks=pytest.mark.slow)])
def test_a_journal_with_one_empty_table_is_reported(
    journal: JournalBuilder, spark: SparkSession, declared: DataFrame, tmp_path: Path, table: str
) -> None:
    if table == "transitions":
        journal.event(1, "AType", "A")
    else:
        journal.move(1, "RMContainer", "container_0_0001_01_000001", "NEW START ALLOCATED", at=1_700_000_000)

    report = write_report(spark, journal.path, tmp_path / "report", declared=declared)

    assert (report.events, report.transitions, report.span_s) == ((0, 1, 0.0) if table == "events" else (1, 0, 0.0))
    assert "No plot, for lack of rows" in report.page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_given_tables_are_checked_against_the_resource_managers_machines(
    journal: JournalBuilder, spark: SparkSession, tmp_path: Path
) -> None:
    journal.submit(1, "application_0_0001")
    journal.event(2, "RMAppEventType", "KILL", "application_0_0001")
    journal.move(2, "RMApp", "application_0_0001", "NEW_SAVING KILL KILLED")
    journal.event(3, "RMNodeEventType", "STARTED", "h1:1")
    journal.move(3, "RMNode", "h1:1", "NEW STARTED RUNNING")

    report = write_report(spark, "rm.log", tmp_path / "report", tables=read_journal(spark, journal.path))

    assert (report.transitions, report.unknown_transitions, report.damage) == (3, 1, ())
    assert "Journal rm.log, " in report.page.read_text(encoding="utf-8")


def test_the_report_compares_with_a_second_journal(
    journal: JournalBuilder, run: Path, spark: SparkSession, declared: DataFrame, tmp_path: Path
) -> None:
    journal.submit(1, "application_0_0001")

    compared = write_report(spark, run, tmp_path / "report", declared=declared, compare=journal.path)

    changes = spark.read.parquet(str(compared.tables / "comparison"))
    [applications] = changes.where("subject = 'run' and metric = 'applications'").collect()
    assert (applications["before"], applications["after"], applications["change"]) == (1.0, 2.0, 1.0)
    assert f"Before is {journal.path}, after is {run}." in compared.page.read_text(encoding="utf-8")
    assert (tmp_path / "report" / "before" / "key_figures").is_dir()


@pytest.mark.parametrize(
    ("journal_name", "output", "lacks", "message"),
    [
        ("nothing", "report", (), "no such journal folder"),
        ("journal", "report", ("duckdb",), r"needs the package duckdb.*pip install 'central-dispatcher\[spark\]'"),
        ("journal", "file", (), "/file: the report cannot be written here"),
    ],
)
def test_a_report_that_cannot_be_made_writes_nothing(
    run: Path,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    journal_name: str,
    output: str,
    lacks: tuple[str, ...],
    message: str,
) -> None:
    (tmp_path / "file").touch()
    for package in lacks:
        monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(DispatcherError, match=message):
        write_report(spark, run.parent / journal_name, tmp_path / output)

    assert not (tmp_path / "report").exists()


Command = Callable[..., Ended]


@pytest.fixture
def command(run: Path, spark: SparkSession, asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> Command:
    """`dispatcher report` of the run, with the Spark of the tests, which it would stop, and a report that is given."""

    def call(*args: object, made: Report | None = None) -> Ended:
        def spark_session(master: str, **_: object) -> Any:
            asked.append(master)
            return nullcontext(spark)

        def write(_: SparkSession, *paths: Path, **more: object) -> Report | None:
            asked.append((paths, more))
            return made

        monkeypatch.setattr("pipeline.spark.spark_session", spark_session)
        monkeypatch.setattr("pipeline.spark.write_report", write)
        return run_here("report", run, *args)

    return call


@pytest.fixture
def asked() -> list[Any]:
    """The Spark master, and the arguments of the call that writes the report."""
    return []


SUMMARY = Report(
    page=Path("/", "long/" * 40, "report.html"),
    tables=Path("/some/folder/tables"),
    events=150_000,
    failed_events=2,
    applications=1_000,
    applications_by_final_state={"FINISHED": 990, "FAILED": 10},
    containers=11_000,
    nodes=40,
    oversubscribed_nodes=0,
    transitions=90_000,
    unknown_transitions=3,
    first_at=0,
    last_at=90 * SECOND,
)


def test_the_summary_has_the_figures_and_the_page(command: Command) -> None:
    lines = [" ".join(line.split()) for line in command(made=SUMMARY).out.splitlines()]

    assert lines == [
        "Applications 1,000",
        "FINISHED 990",
        "FAILED 10",
        "Containers 11,000 on 40 nodes",
        "Events 150,000 in 1 min 30 s of the run's clock",
        "Failed events 2 of 150,000",
        "Unknown transitions 3 of 90,000",
        "Oversubscribed nodes 0 of 40",
        "Tables: /some/folder/tables",
        f"Page: {SUMMARY.page}",  # in one line
    ]


def test_damage_is_told_below_the_figures_with_its_first_lines(command: Command) -> None:
    damage = [Problem(f"segment-{number}", 8, 9, f"segment-{number}: cut", 2, 1) for number in range(1, 13)]

    lines = [" ".join(line.split()) for line in command(made=replace(SUMMARY, damage=damage)).out.splitlines()]

    assert lines[4] == "Events at least 150,000 in 1 min 30 s of the run's clock"
    assert lines[8] == "The journal is damaged. Missing from its figures: 24 events and 12 transitions."
    assert lines[9:19] == [f"segment-{number}: cut; 2 events and 1 transition lost" for number in range(1, 11)]
    assert lines[19] == "and 2 more: see the page, or the table damage"


@pytest.mark.parametrize(("output", "folder"), [(None, "report"), ("elsewhere", "elsewhere")])
def test_the_command_writes_beside_the_journal_unless_told_otherwise(
    run: Path, command: Command, asked: list[Any], output: str | None, folder: str
) -> None:
    options = ("--output", run.parent / output, "--compare", run) if output else ()

    done = command("--master", "local[7]", *options, made=SUMMARY)

    assert asked[0] == "local[7]"
    paths, more = asked[1]
    assert (paths, more["compare"]) == ((run, run.parent / folder), run if output else None)
    assert (done.code or 0, "Oversubscribed nodes" in done.out) == (0, True)


def test_a_journal_cannot_be_compared_while_it_is_followed(run: Path, command: Command) -> None:
    done = command("--compare", run, "--follow")

    assert done.code == 2
    assert "--follow and --compare: choose one" in done.err


class _Follower:
    """A journal that grows twice and is interrupted then."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.events = iter([1, 1, 5])
        self.written = 0
        self.is_stopped = False

    def progress(self) -> Any:
        return SimpleNamespace(events=next(self.events), transitions=0, missing=0)

    def wait(self, timeout_s: float) -> bool:
        return False

    def write(self, journal: str, **_: object) -> Report:
        self.written += 1
        if self.written == 2:
            signal.raise_signal(signal.SIGINT)
            self.events = iter([5])
        return self.report

    def __enter__(self) -> _Follower:
        return self

    def __exit__(self, *exc: object) -> None:
        self.is_stopped = True


def test_following_writes_the_report_when_there_is_more_and_ends_with_a_signal(
    run: Path, report: Report, spark: SparkSession, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower, followed = _Follower(report), []
    monkeypatch.setattr(
        "pipeline.spark.report.follow.follow_journal", lambda *args, **more: followed.append(args) or follower
    )
    monkeypatch.setattr("pipeline.cli.report_command.FOLLOW_INTERVAL_S", 0.001)

    done = command("--output", report.page.parent, "--follow")

    assert done.code == 128 + signal.SIGINT
    assert followed == [(spark, run, report.page.parent)]
    assert (follower.written, follower.is_stopped) == (2, True)
    lines = done.out.splitlines()
    assert [line for line in lines if "report written" in line] == [
        "1 event, 0 transitions: report written",
        "5 events, 0 transitions: report written",
    ]
    assert any(line.startswith("Page: ") for line in lines)
