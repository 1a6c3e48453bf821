"""Jobs over applications, states, transitions and events: each against literal rows."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.spark.report.tables import jobs, usage

SECOND = 1_000_000_000
APP_1, APP_2 = "application_0_0001", "application_0_0002"
KIND = "machine string, from_state string, event_type string, to_state string"
APPLICATION_SCHEMA = (
    "id string, name string, user string, queue string, final_state string, is_final boolean, submitted_at long, "
    "first_container_at long, ended_at long, wait_s double"
)


def applications(journal: Any) -> DataFrame:
    events, transitions = journal.tables()
    return jobs.applications(events, transitions, usage.container_intervals(events, transitions))


def test_a_finished_application_has_its_times(journal: Any, assert_table: Any) -> None:
    journal.submit(1, APP_1, 10, name="sort", queue="prod")
    journal.allocate(2, "container_0_0001_01_000002", "h1:1", 15)
    journal.allocate(3, "container_0_0001_01_000001", "h1:1", 13)
    journal.move(4, "RMApp", APP_1, "RUNNING ATTEMPT_FINISHED FINISHED", at=20)
    journal.move(5, "RMApp", APP_1, "FINISHED KILL FINISHED", at=30)

    row = (APP_1, "sort", "ann", "prod", "FINISHED", True, 10 * SECOND, 13 * SECOND, 20 * SECOND, 3.0)
    assert_table(applications(journal), APPLICATION_SCHEMA, [row])


def test_an_application_never_placed_and_not_ended_has_nulls(journal: Any, assert_table: Any) -> None:
    journal.submit(1, APP_1, 10)
    journal.move(2, "RMApp", APP_1, "NEW_SAVING APP_NEW_SAVED SUBMITTED", at=10)

    row = (APP_1, "job", "ann", "default", "SUBMITTED", False, 10 * SECOND, None, None, None)
    assert_table(applications(journal), APPLICATION_SCHEMA, [row])


def test_the_last_state_goes_by_seq_where_times_are_equal(journal: Any) -> None:
    journal.submit(1, APP_1)
    journal.move(3, "RMApp", APP_1, "SUBMITTED APP_ACCEPTED ACCEPTED")
    journal.move(2, "RMApp", APP_1, "NEW_SAVING APP_NEW_SAVED SUBMITTED")

    assert applications(journal).first()["final_state"] == "ACCEPTED"


def test_a_refused_transition_does_not_change_the_final_state(journal: Any) -> None:
    journal.submit(1, APP_1)
    journal.move(2, "RMApp", APP_1, "NEW_SAVING APP_UPDATE_SAVED NEW_SAVING", valid=False)
    journal.move(3, "RMApp", APP_1, "FINISHED START FINISHED", valid=False)

    assert applications(journal).first()["final_state"] == "NEW_SAVING"


def test_an_application_without_its_start_keeps_its_row(journal: Any, assert_table: Any) -> None:
    journal.move(2, "RMApp", APP_1, "RUNNING KILL KILLING", at=5)
    journal.move(3, "RMApp", APP_1, "KILLING ATTEMPT_FINISHED FINISHED", at=6)

    row = (APP_1, None, None, None, "FINISHED", True, None, None, 6 * SECOND, None)
    assert_table(applications(journal), APPLICATION_SCHEMA, [row])


def test_an_application_whose_start_failed_is_still_new(journal: Any) -> None:
    journal.event(1, "RMAppEventType", "START", APP_1, outcome="failed", payload={"name": "sort"})

    assert applications(journal).first()["final_state"] == "NEW"


def test_a_second_start_adds_no_row(journal: Any) -> None:
    journal.submit(1, APP_1, name="first")
    journal.event(2, "RMAppEventType", "START", APP_1, payload={"name": "second"})

    assert [row["name"] for row in applications(journal).collect()] == ["first"]


def test_applications_are_counted_by_final_state(journal: Any, assert_table: Any) -> None:
    journal.submit(1, APP_1)
    journal.submit(2, APP_2)
    journal.submit(3, "application_0_0003")
    journal.move(4, "RMApp", APP_2, "NEW_SAVING APP_SAVE_FAILED FAILED")

    assert_table(
        jobs.applications_by_final_state(applications(journal)),
        "final_state string, is_final boolean, applications long",
        [("NEW_SAVING", False, 2), ("FAILED", True, 1)],
    )


def test_waiting_is_summed_up_per_queue(journal: Any, assert_table: Any) -> None:
    for number, (queue, wait_s) in enumerate([("a", 1), ("a", 3), ("a", None), ("b", None)], start=1):
        application = f"application_0_000{number}"
        journal.submit(2 * number, application, 100, queue=queue)
        if wait_s is not None:
            container = f"container_0_000{number}_01_000001"
            journal.allocate(2 * number + 1, container, "h1:1", 100 + wait_s, application=application)

    assert_table(
        jobs.waiting(applications(journal), "queue"),
        "queue string, applications long, p50_s double, p95_s double, max_s double, never_placed long, "
        "begun_earlier long",
        [("a", 3, 2.0, 2.9, 3.0, 1, 0), ("b", 1, None, None, None, 1, 0)],
    )


def test_waiting_is_summed_up_per_user_of_a_queue(spark: SparkSession, assert_table: Any) -> None:
    rows = [
        ("a", "ann", 0, 1, 1.0),
        ("a", "bob", 0, 5, 5.0),
        ("b", "ann", 0, None, None),
        ("b", "ann", None, 7, None),
        (None, None, None, None, None),
    ]
    applied = spark.createDataFrame(
        rows, "queue string, user string, submitted_at long, first_container_at long, wait_s double"
    )

    assert_table(
        jobs.waiting(applied, "queue", "user"),
        "queue string, user string, applications long, p50_s double, p95_s double, max_s double, never_placed long, "
        "begun_earlier long",
        [
            ("a", "ann", 1, 1.0, 1.0, 1.0, 0, 0),
            ("a", "bob", 1, 5.0, 5.0, 5.0, 0, 0),
            ("b", "ann", 2, None, None, None, 1, 1),
            (None, None, 1, None, None, None, 0, 1),
        ],
    )


def test_the_first_of_two_starts_counts_if_one_was_redelivered(spark: SparkSession) -> None:
    rows = [(3, "AType", "START", APP_1, 30, "{}"), (2, "RMAppEventType", "START", APP_1, 20, '{"name":"first"}')]
    rows += [(5, "RMAppEventType", "START", APP_1, 50, '{"name":"again"}')]
    ddl = "seq long, event_class string, event_type string, entity string, enqueued_at long, payload string"

    [row] = jobs.first_payload(spark.createDataFrame(rows, ddl), "RMAppEventType", "START").collect()

    assert (row["entity"], row["enqueued_at"], row["payload"]["name"]) == (APP_1, 20, "first")


@pytest.fixture
def declared(spark: SparkSession) -> DataFrame:
    kinds = ["NEW START NEW_SAVING", "NEW START NEW_SAVING", "KILLED KILL KILLED"]
    rows = [("RMApp", *kind.split()) for kind in kinds]
    return spark.createDataFrame(rows, KIND)


def transition_counts(journal: Any, declared: DataFrame) -> DataFrame:
    return jobs.transition_counts(journal.tables().transitions.withColumn("count", F.lit(1)), declared)


def test_undeclared_and_refused_transitions_are_unknown(journal: Any, declared: DataFrame, assert_table: Any) -> None:
    journal.move(1, "RMApp", APP_1, "NEW START NEW_SAVING")
    journal.move(2, "RMApp", APP_2, "NEW START NEW_SAVING")
    journal.move(3, "RMApp", APP_1, "NEW_SAVING KILL KILLED")
    journal.move(4, "RMApp", APP_1, "KILLED START KILLED", valid=False)
    journal.move(5, "RMApp", APP_1, "KILLED KILL KILLED", valid=False)

    counts = transition_counts(journal, declared)

    schema = f"{KIND}, count long, valid boolean, declared boolean"
    unknown = [
        ("RMApp", "NEW_SAVING", "KILL", "KILLED", 1, True, False),
        ("RMApp", "KILLED", "START", "KILLED", 1, False, False),
        ("RMApp", "KILLED", "KILL", "KILLED", 1, False, True),
    ]
    assert_table(counts, schema, [("RMApp", "NEW", "START", "NEW_SAVING", 2, True, True), *unknown])
    assert_table(jobs.unknown_transitions(counts), schema, unknown)


def test_no_transitions_give_no_counts(journal: Any, declared: DataFrame, assert_table: Any) -> None:
    journal.event(1, "AType", "A")

    counts = transition_counts(journal, declared)

    assert_table(counts, f"{KIND}, count long, valid boolean, declared boolean", [])


def test_the_mined_graph_includes_declared_transitions_that_were_never_made(
    journal: Any, declared: DataFrame, assert_table: Any, spark: SparkSession
) -> None:
    journal.move(1, "RMApp", APP_1, "NEW START NEW_SAVING")
    journal.move(2, "RMApp", APP_1, "KILLED KILL KILLED", valid=False)
    journal.move(3, "RMApp", APP_1, "NEW_SAVING KILL KILLED")
    other = spark.createDataFrame([("MRJob", "NEW", "JOB_INIT", "INITED")], KIND)
    known = declared.unionAll(other)

    graph = jobs.mined_graph(transition_counts(journal, known), known)

    rows = [
        ("RMApp", "NEW", "START", "NEW_SAVING", 1, True, True),
        ("RMApp", "KILLED", "KILL", "KILLED", 1, False, True),
        ("RMApp", "KILLED", "KILL", "KILLED", 0, True, True),
        ("RMApp", "NEW_SAVING", "KILL", "KILLED", 1, True, False),
    ]
    assert_table(graph, f"{KIND}, count long, valid boolean, declared boolean", rows)


TOTALS_SCHEMA = "events long, failed_events long, transitions long, first_at long, last_at long"


def run_totals(journal: Any) -> DataFrame:
    events, transitions = journal.tables()
    return jobs.run_totals(jobs.event_totals(events), jobs.transition_totals(transitions))


def test_totals_cover_the_run_from_first_arrival_to_last_end(journal: Any, assert_table: Any) -> None:
    journal.event(1, "AType", "A", at=5, enqueued_at=4 * SECOND)
    journal.event(2, "AType", "A", at=6, finished_at=9 * SECOND, outcome="failed")
    journal.move(1, "RMApp", APP_1, "NEW START NEW_SAVING", at=5)

    assert_table(run_totals(journal), TOTALS_SCHEMA, [(2, 1, 1, 4 * SECOND, 9 * SECOND)])


def test_totals_hold_transitions_beyond_the_last_closed_segment_of_events(journal: Any, assert_table: Any) -> None:
    journal.event(1, "AType", "A", at=5)
    journal.move(1, "RMApp", APP_1, "NEW START NEW_SAVING", at=5)
    journal.move(2, "RMApp", APP_1, "NEW_SAVING KILL FINAL_SAVING", at=7)

    assert_table(run_totals(journal), TOTALS_SCHEMA, [(1, 0, 2, 5 * SECOND, 7 * SECOND)])


def test_totals_of_an_empty_journal_have_no_times(journal: Any, assert_table: Any) -> None:
    assert_table(run_totals(journal), TOTALS_SCHEMA, [(0, 0, 0, None, None)])
