"""Logs of Hadoop's daemons as Spark tables."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from dispatcher import DispatcherError
from dispatcher.journal import EVENTS, TRANSITIONS
from pipeline.spark import conformance, read_yarn_log
from pipeline.spark.source.yarn_log import YarnLogTables, declared_for, not_in_table

from ....kit.commands import run_here
from ...journal_builder import table_of
from ...report.tables.at_hand import Tables, of_parts

AssertTable = Callable[[DataFrame, str, list[tuple[Any, ...]]], None]

# 2021-11-23 10:06:36.708 UTC
AT = 1_637_661_996_708_000_000
AHEAD = "2021-11-23 10:06:36,708"
CONTAINER = "container_1637633166384_0001_01_000001"
REFUSED = "a.InvalidStateTransitionException: Invalid event: START at NEW"
FILE_2 = 1 << 40

RM_LOG = f"""\
STARTUP_MSG: no record yet
{AHEAD} INFO a.AsyncDispatcher: Registering class a.RMAppEventType for class a.Dispatcher
{AHEAD} INFO a.RMAppImpl: application_1_0001 State change from NEW to RUNNING on event = START
{AHEAD} INFO a.RMContainerImpl: {CONTAINER} Container Transitioned from NEW to ALLOCATED
{AHEAD} INFO a.RMAuditLogger: USER=ann\tOPERATION=AM Allocated Container\tTARGET=Scheduler\tRESULT=SUCCESS
{AHEAD} ERROR a.RMNodeImpl: Can't handle this event at current state
{REFUSED}
\tat a.b(C.java:1)
{AHEAD} INFO a.AsyncDispatcher: Size of event-queue is 1000
{AHEAD} INFO a.AsyncDispatcher: Event type: NODE_UPDATE, Event record counter: 900
{AHEAD} INFO a.EventDispatcher: Very low remaining capacity on Schedulerevent queue: 7
{AHEAD} INFO a.RMContainerImpl: {CONTAINER} Container Transitioned from ALLOCATED to KILLED
"""
NM_LOG = f"""\
{AHEAD} INFO [Container Monitor] a.ContainerImpl: Container {CONTAINER} transitioned from NEW to DONE
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    (folder / "1-rm.log").write_text(RM_LOG)
    (folder / "2-nm.log").write_bytes(NM_LOG.encode() + b"\xff\r\n")
    return folder


@pytest.fixture(scope="module")
def tables(spark: SparkSession, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> YarnLogTables:
    # Stored once: each test would start a Python worker to read two small files.
    return read_yarn_log(spark, folder).stored(spark, tmp_path_factory.mktemp("stored"))


def test_each_line_belongs_to_one_event_or_is_unparsed(
    tables: YarnLogTables, folder: Path, assert_table: AssertTable
) -> None:
    counted = [(row.file, row.line, row.line_count) for row in tables.events.orderBy("seq").collect()]

    rm, nm = str(folder / "1-rm.log"), str(folder / "2-nm.log")
    lines = [*((rm, line, 1) for line in (2, 3, 4, 5)), (rm, 6, 3), *((rm, line, 1) for line in (9, 10, 11, 12))]
    assert counted == [*lines, (nm, 1, 2)]
    assert_table(
        tables.unparsed, "seq long, file string, line long, text string", [(1, rm, 1, "STARTUP_MSG: no record yet")]
    )


def test_events_have_the_columns_of_the_journal_and_more(tables: YarnLogTables, folder: Path) -> None:
    names = [column.name for column in EVENTS.columns]
    more = ["kind", "file", "level", "thread", "logger", "text", "line", "line_count"]
    assert tables.events.columns == [*names, *(name for name in more if name not in names)]

    moved, refused = (tables.events.where(f"seq = {seq}").first() for seq in (FILE_2 + 1, 6))

    assert {name: value for name, value in moved.asDict().items() if value is not None} == {
        "seq": FILE_2 + 1,
        "dispatcher": "2-nm.log",
        "event_class": "ContainerEventType",
        "event_type": "",
        "entity": CONTAINER,
        **dict.fromkeys(("enqueued_at", "started_at", "finished_at"), AT),
        "outcome": "handled",
        "redelivered": False,
        "kind": "transition",
        "file": str(folder / "2-nm.log"),
        "level": "INFO",
        "thread": "Container Monitor",
        "logger": "a.ContainerImpl",
        "text": NM_LOG + "\ufffd",
        "line": 1,
        "line_count": 2,
    }
    assert (refused.event_class, refused.event_type, refused.entity) == ("RMNodeEventType", "START", None)
    assert (refused.outcome, refused.error) == ("failed", REFUSED)
    assert refused.text.endswith("\tat a.b(C.java:1)")


def test_transitions_have_the_columns_of_the_journal_and_the_line(
    tables: YarnLogTables, folder: Path, assert_table: AssertTable
) -> None:
    names = [column.name for column in TRANSITIONS.columns]
    assert tables.transitions.columns == [*names, "file", "line", "is_told"]
    rm, nm = str(folder / "1-rm.log"), str(folder / "2-nm.log")
    assert_table(
        tables.transitions,
        "seq long, machine string, entity string, from_state string, event_type string, to_state string, at long, "
        "valid boolean, data string, file string, line long, is_told boolean",
        [
            (3, "RMApp", "application_1_0001", "NEW", "START", "RUNNING", AT, True, None, rm, 3, True),
            (4, "RMContainer", CONTAINER, "NEW", "START", "ALLOCATED", AT, True, None, rm, 4, False),
            (6, "RMNode", "", "NEW", "START", "NEW", AT, False, None, rm, 6, True),
            (12, "RMContainer", CONTAINER, "ALLOCATED", "KILL", "KILLED", AT, True, None, rm, 12, False),
            (FILE_2 + 1, "NMContainer", CONTAINER, "NEW", "", "DONE", AT, True, None, nm, 1, False),
        ],
    )


def test_the_journal_of_a_log_has_the_columns_and_the_nulls_of_one(tables: YarnLogTables) -> None:
    for table, schema in zip(tables.journal, (EVENTS, TRANSITIONS), strict=True):
        never_null = [column.name for column in schema.columns if not column.nullable]

        assert table.columns == [column.name for column in schema.columns]
        assert all(None not in row for row in table.select(*never_null).collect())


def test_queues_registrations_and_audit_lines_have_tables_of_their_own(
    tables: YarnLogTables, folder: Path, assert_table: AssertTable
) -> None:
    rm = str(folder / "1-rm.log")
    assert_table(
        tables.queue_sizes,
        "seq long, at long, file string, line long, queue string, event_type string, size long, room_left long",
        [
            (9, AT, rm, 9, "AsyncDispatcher", None, 1000, None),
            (10, AT, rm, 10, "AsyncDispatcher", "NODE_UPDATE", 900, None),
            (11, AT, rm, 11, "Scheduler", None, None, 7),
        ],
    )
    assert_table(
        tables.registrations,
        "seq long, at long, file string, line long, event_class string, handler_class string",
        [(2, AT, rm, 2, "a.RMAppEventType", "a.Dispatcher")],
    )
    [audit] = tables.audit.collect()
    assert audit[:5] == (5, AT, rm, 5, "a.RMAuditLogger")
    fields = {name: value for name, value in audit.asDict().items() if value is not None}
    said = {"user": "ann", "operation": "AM Allocated Container", "target": "Scheduler", "result": "SUCCESS"}
    assert fields.items() >= said.items()
    assert "queuename" in tables.audit.columns
    assert "queuename" not in fields


def test_undeclared_transitions_are_listed_with_file_and_line(
    tables: YarnLogTables, folder: Path, assert_table: AssertTable
) -> None:
    rm = str(folder / "1-rm.log")
    why = "RMApp: START does not lead from NEW to RUNNING, only to NEW_SAVING, SUBMITTED"
    assert_table(
        not_in_table(tables.transitions),
        "file string, line long, machine string, entity string, from_state string, event_type string, "
        "to_state string, violation string, at long",
        [(rm, 3, "RMApp", "application_1_0001", "NEW", "START", "RUNNING", why, AT)],
    )
    checked = conformance(tables.transitions).orderBy("seq").collect()
    every = ["2.4", "2.7", "3"]
    assert [(row.machine, row.is_declared, row.releases) for row in checked] == [
        ("RMApp", True, []),
        ("RMContainer", True, every),
        ("RMNode", True, None),  # refused
        ("RMContainer", True, every),
        ("NMContainer", True, every),
    ]


OLDER = f"""\
{AHEAD} INFO a.ContainerImpl: Container {CONTAINER} transitioned from LOCALIZING to LOCALIZED
{AHEAD} INFO a.ContainerImpl: Container {CONTAINER} transitioned from SCHEDULED to RUNNING
{AHEAD} INFO b.OtherImpl: other_1 State change from NEW to OLD
2021-07-23 11:06:36,708 INFO a.RMAppImpl: application_1_0001 State change from SUBMITTED to FINAL_SAVING
2021-11-23T10:06:36,708Z INFO a.RMAppImpl: application_1_0001 State change from FINISHED to NEW
"""


def test_a_transition_is_held_against_any_release_or_the_one_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    """One without an event is declared if any event causes it. Times are of the zone, in summer too."""
    log = tmp_path / "nm.log"
    log.write_text(OLDER)
    transitions = read_yarn_log(spark, log, time_zone="Europe/Berlin").transitions.persist()

    for release, wrong, wrong_states in (("any", [5], {"NEW"}), ("2.7", [2, 5], {"RUNNING", "NEW"})):
        checked = conformance(transitions, release).orderBy("seq").collect()
        counts = counts_of(transitions, declared_for(spark, transitions, release))

        assert [row.releases for row in checked][:3] == [["2.4", "2.7"], ["3"], []]
        assert [row.line for row in checked if row.violation is not None] == wrong, release
        assert {row["to_state"] for row in counts if not row["declared"]} == wrong_states, release
        assert [(AT - row.at) / 3_600_000_000_000 for row in checked] == [1, 1, 1, 123 * 24 + 1, 0]
    assert [row.line for row in not_in_table(transitions, "2.7").collect()] == [2, 5]
    transitions.unpersist()


def test_a_release_without_tables_is_refused_at_once(spark: SparkSession, tables: YarnLogTables) -> None:
    with pytest.raises(DispatcherError, match="no tables of Hadoop '4'"):
        conformance(tables.transitions, "4")


def tables_of(journal: Any, declared: DataFrame | None = None) -> Tables:
    """The report's tables of a log."""
    kinds = [] if declared is None else [tuple(row) for row in declared.collect()]
    return of_parts([(journal.events.toArrow(), journal.transitions.toArrow())], kinds)


def counts_of(transitions: DataFrame, declared: DataFrame) -> list[dict[str, Any]]:
    """The rows of transition_counts."""
    kinds = [tuple(row) for row in declared.collect()]
    return of_parts([(table_of(EVENTS, []), transitions.select(*TRANSITIONS.names).toArrow())], kinds).dicts(
        "transition_counts"
    )


def test_the_jobs_of_the_report_run_on_a_log(spark: SparkSession, tables: YarnLogTables) -> None:
    found = tables_of(tables.journal, declared_for(spark, tables.transitions))
    [container] = found.dicts("containers")

    assert (container["container"], container["application"]) == (CONTAINER, "application_1637633166384_0001")
    assert (container["started_seq"], container["end_state"]) == (4, "KILLED")
    assert {(row["machine"], row["to_state"]): row["declared"] for row in found.dicts("transition_counts")} == {
        ("RMApp", "RUNNING"): False,
        ("RMContainer", "ALLOCATED"): True,
        ("RMContainer", "KILLED"): True,
        ("RMNode", "NEW"): False,
        ("NMContainer", "DONE"): True,
    }


def test_formats_and_lines_that_should_have_been_parsed_have_tables(
    spark: SparkSession, tmp_path: Path, assert_table: AssertTable
) -> None:
    moved = RM_LOG.splitlines()[2]
    in_container, empty = tmp_path / "1.log", tmp_path / "2.log"
    lines = [f"? {moved}", moved, f"?? {moved}", "\tat a.b(C.java:1)"]
    in_container.write_text("".join(f"2021-11-23T10:06:36.708Z stdout F {line}\n" for line in lines))
    empty.write_text("no log\n")

    tables = read_yarn_log(spark, tmp_path)

    assert_table(
        tables.formats,
        "file string, prefixes string, layout string",
        [(str(in_container), "Kubernetes (CRI)", "hadoop"), (str(empty), None, None)],
    )
    of_cri = "2021-11-23T10:06:36.708Z stdout F "
    assert_table(
        tables.missed,
        "file string, line long, text string",
        [(str(in_container), 1, f"{of_cri}? {moved}"), (str(in_container), 2, f"{of_cri}?? {moved}")],
    )
    assert [row.line_count for row in tables.transitions.join(tables.events, "seq").collect()] == [3]


EXCERPT = f"""\
{AHEAD} INFO a.RMAppImpl: application_1_0001 State change from ACCEPTED to RUNNING on event = ATTEMPT_REGISTERED
{AHEAD} INFO a.RMAuditLogger: USER=ann\tOPERATION=AM Allocated Container\tTARGET=SchedulerApp\tRESULT=SUCCESS\t\
APPID=application_1_0001\tCONTAINERID={CONTAINER}\tQUEUENAME=root.a
{AHEAD} INFO a.RMAuditLogger: USER=eve\tOPERATION=Kill Application Request\tTARGET=ClientRMService\t\
RESULT=SUCCESS\tAPPID=application_1_0001
{AHEAD} INFO a.RMAuditLogger: USER=bob\tIP=1.2.3.4\tOPERATION=Submit Application Request\tTARGET=ClientRMService\t\
RESULT=SUCCESS\tAPPID=application_1_0002\tQUEUENAME=root.b
{AHEAD} INFO a.RMAppImpl: application_1_0002 State change from NEW to NEW_SAVING on event = START
"""


def test_applications_have_the_users_and_queues_of_the_audit_lines(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "rm.log"
    log.write_text(EXCERPT)
    journal = read_yarn_log(spark, log).journal

    waits = tables_of(journal).dicts("waiting_by_user")

    assert sorted((row["user"], row["queue"], row["never_placed"], row["begun_earlier"]) for row in waits) == [
        ("ann", "root.a", 0, 1),
        ("bob", "root.b", 1, 0),
    ]


def test_a_missing_log_is_reported_at_once(spark: SparkSession, tmp_path: Path, folder: Path) -> None:
    with pytest.raises(DispatcherError, match="no such file or folder"):
        read_yarn_log(spark, tmp_path / "none.log")
    with pytest.raises(DispatcherError, match="'Mars' is not a time zone"):
        read_yarn_log(spark, folder, time_zone="Mars")


def test_the_command_reports_on_the_tables(
    spark: SparkSession,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported = []

    def write_report(_: SparkSession, named: Path, output: Path, *, declared: DataFrame, tables: Any) -> str:
        reported.append((named, output, declared.columns, tables.events.count(), tables.transitions.count()))
        return "report"

    monkeypatch.setattr("pipeline.spark.spark_session", lambda master, long_run: nullcontext(spark))
    monkeypatch.setattr("pipeline.spark.write_report", write_report)
    monkeypatch.setattr(
        "pipeline.cli.yarn_command.print_report", lambda report, console: console.print(f"The {report}")
    )

    done = run_here("yarn-log", folder, "--report", tmp_path)

    assert reported == [(folder, tmp_path, ["machine", "from_state", "event_type", "to_state"], 10, 5)]
    log, report = done.out.splitlines()[-2:]
    assert (log.partition(":")[0], report) == ("Log as tables", "The report")


def test_a_log_is_read_over_connect(connect_mode: Any, folder: Path, tmp_path: Path) -> None:
    tables = read_yarn_log(connect_mode, folder).stored(connect_mode, tmp_path)

    assert tables.unparsed.count() == 1
    assert [row.line for row in not_in_table(tables.transitions).collect()] == [3]
