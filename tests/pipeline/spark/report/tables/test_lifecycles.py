"""Jobs over the lives of entities: each against literal rows, and the one pass over transitions against the jobs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from pipeline.spark.report.digests import transition_digest
from pipeline.spark.report.digests.transition_digest import Ends, TransitionDigest, digest_transitions
from pipeline.spark.report.tables import lifecycles

SECOND = 1_000_000_000
APP_1, APP_2 = "application_0_0001", "application_0_0002"
DDL = (
    "seq long, machine string, entity string, from_state string, event_type string, to_state string, at long, "
    "valid boolean"
)
TIME_SCHEMA = "machine string, state string, count long, p50_s double, p95_s double, p99_s double, max_s double"
STUCK_SCHEMA = "machine string, entity string, state string, from_at long, stay_s double, p99_s double, is_open boolean"
STAY_SCHEMA = "machine string, entity string, state string, seq long, from_at long, stay_ns long"
DECLARED = [
    ("M", "NEW", "GO", "RUNNING"),
    ("M", "RUNNING", "WAIT", "WAITING"),
    ("M", "WAITING", "GO", "RUNNING"),
    ("M", "RUNNING", "END", "DONE"),
    ("M", "DONE", "END", "DONE"),
]
ENDS = Ends.of(DECLARED)


def move(seq: int, entity: str, what: str, at: int = 0, machine: str = "M", valid: bool = True) -> tuple[Any, ...]:
    from_state, event_type, to_state = what.split()
    return (seq, machine, entity, from_state, event_type, to_state, at * SECOND, valid)


def table(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame(list(rows), DDL)


def stays(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    return lifecycles.crossing_stays(lifecycles.stretches(table(spark, *rows)), ENDS)


def times(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    return lifecycles.time_in_state(lifecycles.stay_groups(stays(spark, *rows)))


def test_time_in_state_counts_what_was_entered_and_left(spark: SparkSession, assert_table: Any) -> None:
    found = times(
        spark,
        move(1, "a", "NEW GO RUNNING", at=0),
        move(2, "a", "RUNNING WAIT WAITING", at=4),
        move(3, "b", "NEW GO RUNNING", at=4),
        move(4, "b", "RUNNING PING RUNNING", at=5),
        move(5, "b", "RUNNING OOPS RUNNING", at=6, valid=False),
        move(6, "b", "RUNNING END DONE", at=14),
    )

    assert_table(found, TIME_SCHEMA, [("M", "RUNNING", 2, 4.0, 10.0, 10.0, 10.0)])


def test_stays_of_zero_length_are_ordered_by_seq(spark: SparkSession) -> None:
    found = times(
        spark,
        move(2, "a", "RUNNING WAIT WAITING", at=3),
        move(1, "a", "NEW GO RUNNING", at=3),
        move(3, "a", "WAITING GO RUNNING", at=3),
    )

    assert {(row["state"], row["max_s"]) for row in found.collect()} == {("RUNNING", 0.0), ("WAITING", 0.0)}


RETURNING = [
    move(1, "h1", "NEW GO RUNNING", at=0),
    move(2, "h1", "RUNNING END DONE", at=10),
    move(3, "h1", "NEW GO RUNNING", at=99),
]


def test_a_returning_entity_has_no_stay_in_new(spark: SparkSession) -> None:
    """The time since the old machine was lost is not time that the new one spent in NEW."""
    assert [(row["state"], row["max_s"]) for row in times(spark, *RETURNING).collect()] == [("RUNNING", 10.0)]


def test_without_transitions_there_are_no_stays(spark: SparkSession, assert_table: Any) -> None:
    assert_table(times(spark), TIME_SCHEMA, [])


def test_ends_are_the_states_that_no_transition_enters_or_leaves() -> None:
    assert Ends(frozenset({("M", "NEW")}), frozenset({("M", "DONE")})) == ENDS


def test_an_entity_that_is_in_no_final_state_has_an_open_stay(spark: SparkSession, assert_table: Any) -> None:
    rows = [
        *RETURNING,
        move(4, "b", "NEW GO RUNNING", at=20),
        move(5, "b", "RUNNING END DONE", at=30),
        move(6, "c", "NEW GO RUNNING", at=40),
        move(7, "c", "RUNNING WAIT WAITING", at=50),
        move(8, "c", "WAITING PING WAITING", at=60),
    ]

    found = lifecycles.open_stays(lifecycles.stretches(table(spark, *rows)), ENDS, 100 * SECOND)

    expected = [
        ("M", "h1", "RUNNING", 3, 99 * SECOND, 1 * SECOND),
        ("M", "c", "WAITING", 7, 50 * SECOND, 50 * SECOND),
    ]
    assert_table(found, STAY_SCHEMA, expected)


def test_a_stay_longer_than_nearly_all_others_is_stuck(spark: SparkSession, assert_table: Any) -> None:
    ended = spark.createDataFrame(
        [("M", "a", "RUNNING", 1, 0, 7 * SECOND), ("M", "b", "RUNNING", 2, 5, 5 * SECOND)], STAY_SCHEMA
    )
    still_open = spark.createDataFrame(
        [("M", "c", "RUNNING", 3, 9, 90 * SECOND), ("M", "d", "RUNNING", 4, 9, 6 * SECOND), ("M", "e", "X", 5, 9, 1)],
        STAY_SCHEMA,
    )
    limits = spark.createDataFrame([("M", "RUNNING", 100, 1.0, 2.0, 5.0, 7.0)], TIME_SCHEMA)

    found = lifecycles.stuck_entities(ended, still_open, limits, number=2)

    rows = [("M", "c", "RUNNING", 9, 90.0, 5.0, True), ("M", "a", "RUNNING", 0, 7.0, 5.0, False)]
    assert_table(found, STUCK_SCHEMA, rows)


def app(seq: int, entity: str, what: str, at: int) -> tuple[Any, ...]:
    return move(seq, entity, what, at, machine="RMApp")


ATTEMPT = "appattempt_0_0001_000001"
LIFE = [
    app(1, APP_1, "NEW START NEW_SAVING", 11),
    app(2, APP_1, "NEW_SAVING APP_NEW_SAVED SUBMITTED", 13),
    app(3, APP_1, "SUBMITTED APP_ACCEPTED ACCEPTED", 16),
    move(4, ATTEMPT, "NEW START SUBMITTED", 16, "RMAppAttempt"),
    move(5, ATTEMPT, "SUBMITTED ATTEMPT_ADDED SCHEDULED", 17, "RMAppAttempt"),
    move(6, ATTEMPT, "SCHEDULED CONTAINER_ALLOCATED ALLOCATED_SAVING", 26, "RMAppAttempt"),
    app(7, APP_1, "ACCEPTED ATTEMPT_LAUNCHED ACCEPTED", 29),
    app(8, APP_1, "ACCEPTED ATTEMPT_REGISTERED RUNNING", 31),
    app(9, APP_1, "RUNNING ATTEMPT_UNREGISTERED FINAL_SAVING", 51),
    app(10, APP_1, "FINAL_SAVING APP_UPDATE_SAVED FINISHING", 52),
    app(11, APP_1, "FINISHING ATTEMPT_FINISHED FINISHED", 53),
]
APPLICATIONS_DDL = "id string, final_state string, is_final boolean, submitted_at long, ended_at long"
PATH_SCHEMA = (
    "application string, final_state string, is_final boolean, submitted_at long, ended_at long, total_s double, "
    "saving_s double, admission_s double, scheduling_s double, launching_s double, running_s double, "
    "finishing_s double, longest_phase string"
)


def test_the_timeline_has_each_state_but_the_final_one(spark: SparkSession, assert_table: Any) -> None:
    second = [app(20, APP_2, "NEW START NEW_SAVING", 60), app(21, APP_2, "NEW_SAVING START NEW_SAVING", 61)]

    found = lifecycles.application_timeline(table(spark, *LIFE, *second))

    rows = [
        (APP_1, 1, "NEW_SAVING", 11, 13),
        (APP_1, 2, "SUBMITTED", 13, 16),
        (APP_1, 3, "ACCEPTED", 16, 31),
        (APP_1, 8, "RUNNING", 31, 51),
        (APP_1, 9, "FINAL_SAVING", 51, 52),
        (APP_1, 10, "FINISHING", 52, 53),
        (APP_2, 20, "NEW_SAVING", 60, None),
    ]
    assert_table(
        found,
        "application string, seq long, state string, from_at long, to_at long",
        [(*row[:3], row[3] * SECOND, None if row[4] is None else row[4] * SECOND) for row in rows],
    )


def test_every_second_from_submission_to_end_is_in_one_phase(spark: SparkSession, assert_table: Any) -> None:
    applications = spark.createDataFrame([(APP_1, "FINISHED", True, 10 * SECOND, 53 * SECOND)], APPLICATIONS_DDL)

    found = lifecycles.critical_paths(table(spark, *LIFE), applications, 100 * SECOND)

    row = (APP_1, "FINISHED", True, 10 * SECOND, 53 * SECOND, 43.0, 3.0, 3.0, 10.0, 5.0, 20.0, 2.0, "running")
    assert_table(found, PATH_SCHEMA, [row])


def test_the_path_of_an_open_application_goes_to_the_journals_end(spark: SparkSession, assert_table: Any) -> None:
    applications = spark.createDataFrame(
        [
            (APP_1, "ACCEPTED", False, 10 * SECOND, None),
            (APP_2, "NEW", False, 100 * SECOND, None),
            ("application_0_0003", "RUNNING", False, None, None),
        ],
        APPLICATIONS_DDL,
    )

    found = lifecycles.critical_paths(table(spark, *LIFE[:5]), applications, 100 * SECOND)

    rows = [
        (APP_1, "ACCEPTED", False, 10 * SECOND, None, 90.0, 3.0, 3.0, 84.0, 0.0, 0.0, 0.0, "scheduling"),
        (APP_2, "NEW", False, 100 * SECOND, None, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, None),
    ]
    assert_table(found, PATH_SCHEMA, rows)


# -- the one pass -----------------------------------------------------------------------------------------------------

MIXED = [
    *RETURNING,
    move(4, "b", "NEW GO RUNNING", at=100),
    move(5, "b", "RUNNING PING RUNNING", at=101),
    move(6, "c", "NEW GO RUNNING", at=101),
    move(7, "b", "RUNNING WAIT WAITING", at=104),
    move(8, "c", "RUNNING END DONE", at=105),
    move(9, "b", "WAITING GO RUNNING", at=114),
    move(10, "b", "RUNNING END RUNNING", at=115, valid=False),
    move(11, "b", "RUNNING END DONE", at=120),
    move(12, "h1", "RUNNING WAIT WAITING", at=130),
]


def batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    types = {"long": pa.int64(), "string": pa.string(), "boolean": pa.bool_()}
    schema = pa.schema([(name, types[ddl]) for name, ddl in (column.split() for column in DDL.split(", "))])
    return pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def digest(*parts: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Of the parts of a journal, each of them read apart."""
    return [row for rows in parts for out in TransitionDigest(ENDS).rows([batch(rows)]) for row in out.to_pylist()]


def of_kind(rows: list[dict[str, Any]], kind: str, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in columns) for row in rows if row["kind"] == kind)


def test_the_digest_of_a_part_counts_the_stays_that_begin_and_end_in_it() -> None:
    rows = digest(MIXED)

    assert of_kind(rows, "stay", "from_state", "count", "total", "least", "greatest") == [
        ("RUNNING", 1, 6 * SECOND, 6 * SECOND, 6 * SECOND),
        ("RUNNING", 1, 10 * SECOND, 10 * SECOND, 10 * SECOND),
        ("RUNNING", 1, 31 * SECOND, 31 * SECOND, 31 * SECOND),
        ("RUNNING", 2, 8 * SECOND, 4 * SECOND, 4 * SECOND),
        ("WAITING", 1, 10 * SECOND, 10 * SECOND, 10 * SECOND),
    ]
    # b and c have begun and ended here; h1 has not ended.
    assert of_kind(rows, "stretch", "entity", "from_state", "seq", "to_state", "last_seq") == [
        ("h1", "NEW", 1, "WAITING", 12)
    ]


def test_the_digest_of_a_part_counts_kinds_of_transitions() -> None:
    assert of_kind(digest(MIXED), "count", "from_state", "event_type", "to_state", "valid", "count") == [
        ("NEW", "GO", "RUNNING", True, 4),
        ("RUNNING", "END", "DONE", True, 3),
        ("RUNNING", "END", "RUNNING", False, 1),
        ("RUNNING", "PING", "RUNNING", True, 1),
        ("RUNNING", "WAIT", "WAITING", True, 2),
        ("WAITING", "GO", "RUNNING", True, 1),
    ]


def test_the_digest_of_a_part_without_changes_of_state_has_only_counts() -> None:
    assert [row["kind"] for row in digest([move(1, "a", "RUNNING PING RUNNING")], [])] == ["count"]


@pytest.mark.parametrize("cuts", [(3,), (4, 9), tuple(range(1, 12))])
def test_cutting_a_journal_anywhere_leaves_its_stays_the_same(spark: SparkSession, cuts: tuple[int, ...]) -> None:
    whole = sorted(map(tuple, stays(spark, *MIXED).select("state", "stay_ns").collect()))
    parts = [MIXED[start:end] for start, end in zip((0, *cuts), (*cuts, len(MIXED)), strict=True)]

    rows = digest(*parts)
    stretches = spark.createDataFrame(
        of_kind(rows, "stretch", "machine", "entity", "from_state", "seq", "at", "to_state", "last_seq", "last_at"),
        "machine string, entity string, from_state string, seq long, at long, to_state string, last_seq long, "
        "last_at long",
    )
    crossing = lifecycles.crossing_stays(stretches, ENDS).select("state", "stay_ns").collect()
    inside = of_kind(rows, "long_stay", "from_state", "stay_ns")

    assert sorted([*map(tuple, crossing), *inside]) == whole
    assert [row["entity"] for row in lifecycles.open_stays(stretches, ENDS, 0).collect()] == ["h1"]


def test_the_longest_stays_of_each_state_are_kept(monkeypatch: Any) -> None:
    monkeypatch.setattr(transition_digest, "LONGEST", 1)
    monkeypatch.setattr(transition_digest, "_ROWS_AT_ONCE", 1)
    first, second = MIXED[:8], MIXED[8:]

    rows = [row for out in TransitionDigest(ENDS).rows([batch(first), batch(second)]) for row in out.to_pylist()]

    kept = of_kind(rows, "long_stay", "entity", "from_state", "seq", "stay_ns")
    assert kept == [("h1", "RUNNING", 1, 10 * SECOND)]


def test_the_digest_of_a_part_keeps_the_transitions_that_other_tables_need() -> None:
    container = "container_0_0001_01_000001"
    rows = digest(
        [
            *LIFE[:3],
            app(7, APP_1, "ACCEPTED ATTEMPT_LAUNCHED ACCEPTED", 29),
            app(8, APP_1, "ACCEPTED APP_RUNNING_ON_NODE ACCEPTED", 30),
            move(9, container, "NEW START ALLOCATED", 40, "RMContainer"),
            move(10, container, "ALLOCATED ACQUIRED ACQUIRED", 41, "RMContainer"),
            move(11, container, "ACQUIRED RELEASED RELEASED", 42, "RMContainer"),
            move(12, "h1:1", "NEW STARTED RUNNING", 43, "RMNode"),
        ]
    )

    assert of_kind(rows, "move", "seq") == [(1,), (2,), (3,), (8,), (9,), (11,)]


def test_the_digest_runs_in_sparks_tasks(spark: SparkSession) -> None:
    found = digest_transitions(table(spark, *MIXED).coalesce(1), ENDS)

    assert found.where("kind = 'stay'").count() == 5
