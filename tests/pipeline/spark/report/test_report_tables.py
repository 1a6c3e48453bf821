"""All tables of the report from one journal: that they are there, agree with the jobs, and leave nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.spark.report.digests.transition_digest import Ends
from pipeline.spark.report.tables import jobs, lifecycles, usage
from pipeline.spark.report.tables.report_tables import write_tables
from pipeline.spark.source.journal import JournalTables

from .test_report import TABLES

APP_1, APP_2, ATTEMPT = "application_0_0001", "application_0_0002", "appattempt_0_0001_000001"
C1, C2 = "container_0_0001_01_000001", "container_0_0001_01_000002"


@pytest.fixture(scope="module")
def declared(spark: SparkSession) -> DataFrame:
    kinds = ["RMApp NEW START NEW_SAVING", "RMApp NEW_SAVING APP_SAVE_FAILED FAILED", "RMApp NEW_SAVING KILL FAILED"]
    kinds += ["RMContainer NEW START ALLOCATED", "RMContainer RUNNING FINISHED COMPLETED"]
    kinds += ["RMContainer ALLOCATED LAUNCHED RUNNING", "RMNode NEW STARTED RUNNING", "RMNode RUNNING EXPIRE LOST"]
    return spark.createDataFrame(
        [tuple(kind.split()) for kind in kinds], "machine string, from_state string, event_type string, to_state string"
    )


@pytest.fixture(scope="module")
def journal_tables(module_journal: Any) -> JournalTables:
    """Two applications, a node that comes back, a container that runs on, and one of each that went wrong."""
    module_journal.node(1, "h1:1", memory_mb=2048, gpus=2)
    module_journal.submit(2, APP_1, 1)
    module_journal.submit(3, APP_2, 2, queue="other")
    module_journal.allocate(4, C1, "h1:1", 4, gpus=1, gpu_milli=500, gpu_devices=[1])
    module_journal.allocate(5, C2, "h1:1", 6)
    module_journal.move(6, "RMContainer", C1, "ALLOCATED LAUNCHED RUNNING", at=7)
    module_journal.complete(7, C1, 8)
    module_journal.event(8, "RMAppEventType", "APP_SAVE_FAILED", APP_1, 9, outcome="failed", error="ValueError: x")
    module_journal.move(8, "RMApp", APP_1, "NEW_SAVING APP_SAVE_FAILED FAILED", at=9)
    module_journal.move(9, "RMNode", "h1:1", "RUNNING EXPIRE LOST", at=10)
    module_journal.move(10, "RMNode", "h1:1", "NEW STARTED RUNNING", at=12)
    module_journal.move(11, "RMApp", APP_1, "FAILED START FAILED", at=13, valid=False)
    module_journal.event(12, "XType", "X", None, 20, outcome="unregistered")
    tables: JournalTables = module_journal.tables()
    return tables


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def written(
    spark: SparkSession, journal_tables: JournalTables, folder: Path, declared: DataFrame
) -> Mapping[str, DataFrame]:
    return write_tables(spark, journal_tables, folder, declared)


def rows_of(table: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, table.collect()), key=repr)


def test_each_table_has_a_folder_and_nothing_else_is_left(written: Mapping[str, DataFrame], folder: Path) -> None:
    assert set(written) == TABLES
    assert {path.name for path in folder.iterdir()} == TABLES


def test_no_table_of_a_run_with_everything_is_empty(written: Mapping[str, DataFrame]) -> None:
    assert {name for name, table in written.items() if table.isEmpty()} == set()


def test_the_digests_give_the_same_tables_as_jobs_over_all_rows(
    spark: SparkSession, written: Mapping[str, DataFrame], journal_tables: JournalTables, declared: DataFrame
) -> None:
    events, transitions = (spark.createDataFrame(table.collect(), table.schema) for table in journal_tables)
    containers = usage.container_intervals(events, transitions)
    applications = jobs.applications(events, transitions, containers)
    ends = Ends.of(map(tuple, declared.collect()))
    stays = lifecycles.stay_groups(lifecycles.crossing_stays(lifecycles.stretches(transitions), ends))
    counts = jobs.transition_counts(transitions.withColumn("count", F.lit(1)), declared)

    assert rows_of(written["containers"]) == rows_of(containers)
    assert rows_of(written["applications"]) == rows_of(applications)
    assert rows_of(written["transition_counts"]) == rows_of(counts)
    assert rows_of(written["time_in_state"]) == rows_of(lifecycles.time_in_state(stays))


def test_the_digests_keep_enough_rows_for_failures_by_cause(written: Mapping[str, DataFrame]) -> None:
    found = [tuple(row)[:10] for row in written["failures"].collect()]

    assert sorted(found, key=repr) == [
        ("RMApp", "FAILED", None, "APP_SAVE_FAILED", "NEW_SAVING", None, None, 1, 8, 8),
        ("event", "failed", "RMAppEventType", "APP_SAVE_FAILED", None, "ValueError", None, 1, 8, 8),
        ("event", "unregistered", "XType", "X", None, None, None, 1, 12, 12),
    ]


def test_key_figures_are_those_of_the_tables(written: Mapping[str, DataFrame]) -> None:
    figures = {(row["subject"], row["metric"]): row["value"] for row in written["key_figures"].collect()}

    expected = {
        ("run", "events"): 8.0,
        ("run", "span"): 20.0,
        ("run", "applications"): 2.0,
        ("run", "failed"): 1.0,
        ("run", "wait_max"): 3.0,
        ("queue other", "never_placed"): 1.0,
        ("events XType.X", "count"): 1.0,
        ("stay RMNode.RUNNING", "max"): 10.0,
    }
    assert {key: figures[key] for key in expected} == expected


def test_a_journal_without_a_row_has_all_tables(
    spark: SparkSession, declared: DataFrame, journal: Any, tmp_path: Path
) -> None:
    written = write_tables(spark, journal.tables(), tmp_path / "report", declared)

    assert {name for name, table in written.items() if not table.isEmpty()} == {"run_totals", "key_figures"}
