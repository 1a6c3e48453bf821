"""Small journals by hand, and the comparison of a job's table with literal rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pipeline.spark import JournalTables, read_journal

SECOND = 1_000_000_000


class JournalBuilder:
    """A journal folder to which events and transitions are added row by row. Times are in seconds."""

    def __init__(self, path: Path, spark: SparkSession) -> None:
        self.path = path
        self._spark = spark
        for table in ("events", "transitions"):
            (path / table).mkdir(parents=True)

    def line(self, table: str, text: str, segment: str = "00000001", prefix: str = "") -> None:
        """Append a line as it is to one of the table's segments."""
        with (self.path / table / f"{prefix}{table}-{segment}.jsonl").open("a", encoding="utf-8") as lines:
            lines.write(text + "\n")

    def event(
        self, seq: int, event_class: str, event_type: str, entity: str | None = None, at: int = 0, **columns: Any
    ) -> None:
        """Add an event. `columns`: payload as a dict, and any other column of the table."""
        row = {
            "seq": seq,
            "dispatcher": "rm",
            "event_class": event_class,
            "event_type": event_type,
            "entity": entity,
            "enqueued_at": at * SECOND,
            "started_at": at * SECOND,
            "finished_at": at * SECOND,
            "queue_ns": 0,
            "handling_ns": 0,
            "outcome": "handled",
        } | columns
        if "payload" in columns:
            row["payload"] = json.dumps(columns["payload"])
        self.line("events", json.dumps({key: value for key, value in row.items() if value is not None}))

    def move(self, seq: int, machine: str, entity: str, transition: str, at: int = 0, valid: bool = True) -> None:
        """Add a transition, written as `FROM EVENT TO`."""
        from_state, event_type, to_state = transition.split()
        row = {
            "seq": seq,
            "machine": machine,
            "entity": entity,
            "from_state": from_state,
            "event_type": event_type,
            "to_state": to_state,
            "at": at * SECOND,
            "valid": valid,
        }
        self.line("transitions", json.dumps(row))

    def submit(self, seq: int, application: str, at: int = 0, *, name: str = "job", queue: str = "default") -> None:
        """Add an application's START."""
        payload = {"name": name, "user": "ann", "queue": queue}
        self.event(seq, "RMAppEventType", "START", application, at, payload=payload)
        self.move(seq, "RMApp", application, "NEW START NEW_SAVING", at)

    def allocate(
        self, seq: int, container: str, node: str, at: int = 0, *, application: str = "application_0_0001", **takes: Any
    ) -> None:
        """Add a container's START, by which it is allocated on `node`."""
        payload = {
            "application": application,
            "attempt": "appattempt_0_0001_000001",
            "node": node,
            "memory_mb": 1024,
            "vcores_milli": 1000,
            "gpus": 0,
            "gpu_milli": 1000,
            "gpu_devices": [],
            "kind": "map",
        } | takes
        self.event(seq, "RMContainerEventType", "START", container, at, payload=payload)
        self.move(seq, "RMContainer", container, "NEW START ALLOCATED", at)

    def complete(self, seq: int, container: str, at: int = 0) -> None:
        """Add the end of a container."""
        self.event(seq, "RMContainerEventType", "FINISHED", container, at)
        self.move(seq, "RMContainer", container, "RUNNING FINISHED COMPLETED", at)

    def node(self, seq: int, node: str, *, memory_mb: int = 4096, vcores_milli: int = 4000, gpus: int = 0) -> None:
        """Add a node's registration."""
        payload = {
            "host": node.partition(":")[0],
            "rack": "/r1",
            "memory_mb": memory_mb,
            "vcores_milli": vcores_milli,
            "gpus": gpus,
        }
        self.event(seq, "RMNodeEventType", "STARTED", node, payload=payload)
        self.move(seq, "RMNode", node, "NEW STARTED RUNNING")

    def tables(self) -> JournalTables:
        """What has been added, as Spark reads it."""
        return read_journal(self._spark, self.path)


@pytest.fixture
def journal(tmp_path: Path, spark: SparkSession) -> JournalBuilder:
    return JournalBuilder(tmp_path / "journal", spark)


@pytest.fixture(scope="module")
def module_journal(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> JournalBuilder:
    """A journal that the tests of a module share: what they do with it takes seconds."""
    return JournalBuilder(tmp_path_factory.mktemp("module") / "journal", spark)


def _assert_table(table: DataFrame, schema: str, rows: list[tuple[Any, ...]]) -> None:
    found = [(field.name, field.dataType) for field in table.schema]
    assert found == [(field.name, field.dataType) for field in StructType.fromDDL(schema)]
    assert sorted(map(tuple, table.collect()), key=repr) == sorted(rows, key=repr)


@pytest.fixture
def assert_table() -> Callable[[DataFrame, str, list[tuple[Any, ...]]], None]:
    """Compares a table's columns and types, and its rows in any order, with literal ones."""
    return _assert_table
