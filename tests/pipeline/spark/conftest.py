"""Small hand-made journals, and the comparison of a job's table with literal rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from dispatcher.journal import EVENTS, TRANSITIONS, Table
from dispatcher.journal.format.columns import encode_rows
from dispatcher.journal.format.schema import EventRow, Kind, TransitionRow
from dispatcher.journal.format.segments import Manifest, SegmentFile, Summary
from pipeline.spark import JournalTables, read_journal
from pipeline.spark.source.journal_source import table_schema

SECOND = 1_000_000_000


class JournalBuilder:
    """Builds a journal from events and transitions, added row by row in any order. Times are in seconds.

    `path` and `read` write it: one segment for each run of seqs without a gap.
    """

    def __init__(self, path: Path, spark: SparkSession) -> None:
        self._path = path
        self._spark = spark
        self._events: list[dict[str, Any]] = []
        self._transitions: list[dict[str, Any]] = []
        self._written: tuple[int, int] | None = None

    @property
    def path(self) -> Path:
        """The journal's folder, with all rows written."""
        if self._written != (len(self._events), len(self._transitions)):
            self._write()
            self._written = (len(self._events), len(self._transitions))
        return self._path

    def _write(self) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        for old in self._path.iterdir():
            old.unlink()
        last = 0
        for last, (events, transitions) in enumerate(self._runs(), start=1):
            first_seq = events[0]["seq"] if events else transitions[0]["seq"]
            segment = SegmentFile(self._path, last, Summary(first_seq))
            while events or transitions:
                # A frame is in virtual time as a whole or not at all, and holds its events' transitions.
                is_virtual = bool(events) and _is_virtual(events[0])
                size = next((i for i, row in enumerate(events) if _is_virtual(row) != is_virtual), len(events))
                upto = events[size]["seq"] if size < len(events) else first_seq + len(events) + 1
                of_frame = [row for row in transitions if row["seq"] < upto]
                _append(segment, events[:size], of_frame, is_virtual)
                events, transitions = events[size:], transitions[len(of_frame) :]
            segment.close(sync=False, recover_from=last + 1)
        Manifest(1, last, True).write(self._path, sync=False)

    def _runs(self) -> Iterator[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
        """Runs of events without a gap in their seqs, each with its transitions."""
        events = sorted(self._events, key=lambda row: row["seq"])
        transitions = sorted(self._transitions, key=lambda row: row["seq"])
        while events or transitions:
            seq = min(rows[0]["seq"] for rows in (events, transitions) if rows)
            size = next((i for i, row in enumerate(events) if row["seq"] != seq + i), len(events))
            of_run = [row for row in transitions if row["seq"] < seq + max(1, size)]
            yield events[:size], of_run
            events, transitions = events[size:], transitions[len(of_run) :]

    def event(
        self, seq: int, event_class: str, event_type: str, entity: str | None = None, at: int = 0, **columns: Any
    ) -> None:
        """Add an event. `columns`: payload as a dict, and any other column of the table."""
        payload = columns.pop("payload", None)
        row: dict[str, Any] = (
            dict.fromkeys(EVENTS.row_fields)
            | {
                "seq": seq,
                "kind": (columns.pop("dispatcher", "rm"), event_class, event_type, columns.pop("outcome", "handled")),
                "entity": entity,
                "payload": None if payload is None else json.dumps(payload),
                "started_at": at * SECOND,
                "redelivered": False,
                "enqueued_at": at * SECOND,
                "finished_at": at * SECOND,
            }
            | columns
        )
        waited, took = row["started_at"] - row["enqueued_at"], row["finished_at"] - row["started_at"]
        row |= {"queue_ns": columns.get("queue_ns", waited), "handling_ns": columns.get("handling_ns", took)}
        if not _is_virtual(row) and (row["queue_ns"], row["handling_ns"]) != (waited, took):
            raise ValueError("in real time, enqueued_at and finished_at must follow from the durations")
        self._events.append(row)

    def move(self, seq: int, machine: str, entity: str, transition: str, at: int = 0, valid: bool = True) -> None:
        """Add a transition, written as `FROM EVENT TO`."""
        from_state, event_type, to_state = transition.split()
        kind = (machine, from_state, event_type, to_state, valid)
        self._transitions.append({"seq": seq, "kind": kind, "entity": entity, "at": at * SECOND})

    def submit(self, seq: int, application: str, at: int = 0, *, name: str = "job", queue: str = "default") -> None:
        """Add an application's START."""
        payload = {"name": name, "user": "ann", "queue": queue}
        self.event(seq, "RMAppEventType", "START", application, at, payload=payload)
        self.move(seq, "RMApp", application, "NEW START NEW_SAVING", at)

    def allocate(
        self, seq: int, container: str, node: str, at: int = 0, *, application: str = "application_0_0001", **takes: Any
    ) -> None:
        """Add a container's START, which allocates it on `node`."""
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
        takes = {"memory_mb": memory_mb, "vcores_milli": vcores_milli, "gpus": gpus}
        payload = {"host": node.partition(":")[0], "rack": "/r1"} | takes
        self.event(seq, "RMNodeEventType", "STARTED", node, payload=payload)
        self.move(seq, "RMNode", node, "NEW STARTED RUNNING")

    def tables(self) -> JournalTables:
        """All rows in the order of seq, without writing them to disk, which takes a second."""
        events = [
            dict(zip(("dispatcher", "event_class", "event_type", "outcome"), row["kind"], strict=True)) | row
            for row in self._events
        ]
        transitions = [
            dict(zip(("machine", "from_state", "event_type", "to_state", "valid"), row["kind"], strict=True)) | row
            for row in self._transitions
        ]
        made = []
        for table, rows in ((EVENTS, events), (TRANSITIONS, transitions)):
            names = [column.name for column in table.columns]
            values = [tuple(row[name] for name in names) for row in sorted(rows, key=lambda row: row["seq"])]
            made.append(self._spark.createDataFrame(values, table_schema(table.name)))
        return JournalTables(*made)

    def read(self) -> JournalTables:
        """All rows, as Spark reads them from disk."""
        return read_journal(self._spark, self.path)


def _is_virtual(event: dict[str, Any]) -> bool:
    return bool(event["enqueued_at"] == event["started_at"] == event["finished_at"])


def _append(
    segment: SegmentFile, events: list[dict[str, Any]], transitions: list[dict[str, Any]], is_virtual: bool
) -> None:
    kinds: list[Kind] = list(dict.fromkeys(row["kind"] for row in events))
    transition_kinds: list[Kind] = list(dict.fromkeys(row["kind"] for row in transitions))
    event_rows = [EventRow(**_stored(EVENTS, row, kinds)) for row in events]
    transition_rows = [TransitionRow(**_stored(TRANSITIONS, row, transition_kinds)) for row in transitions]
    first_seq = segment.summary.next_seq
    segment.append_rows(
        encode_rows(event_rows, transition_rows, first_seq, kinds, transition_kinds, virtual=is_virtual)
    )


def _stored(table: Table, row: dict[str, Any], kinds: list[Kind]) -> dict[str, Any]:
    """The stored columns of a row."""
    stored = {column.name: row[column.name] for column in table.stored}
    numbers = {column.name: stored[column.name] or 0 for column in table.stored if column.encoding == "optional"}
    return {"kind": kinds.index(row["kind"]), **stored, **numbers}


@pytest.fixture
def journal(tmp_path: Path, spark: SparkSession) -> JournalBuilder:
    return JournalBuilder(tmp_path / "journal", spark)


@pytest.fixture(scope="module")
def module_journal(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> JournalBuilder:
    """A journal that the tests of a module share, because reading it takes seconds."""
    return JournalBuilder(tmp_path_factory.mktemp("module") / "journal", spark)


def _assert_table(table: DataFrame, schema: str, rows: list[tuple[Any, ...]]) -> None:
    found = [(field.name, field.dataType) for field in table.schema]
    declared = StructType.fromDDL(schema)
    assert isinstance(declared, StructType)
    assert found == [(field.name, field.dataType) for field in declared]
    assert sorted(map(tuple, table.collect()), key=repr) == sorted(rows, key=repr)


@pytest.fixture
def assert_table() -> Callable[[DataFrame, str, list[tuple[Any, ...]]], None]:
    """Compares a table's columns and types, and its rows in any order, with literal ones."""
    return _assert_table


@pytest.fixture(scope="module")
def connect(spark: SparkSession, connect_url: str) -> Iterator[Any]:
    """A session of Spark Connect, served by the classic session."""
    for package in ("grpc", "grpc_status", "google.rpc", "zstandard"):
        pytest.importorskip(package, reason="Spark Connect needs pyspark[connect]")
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    session = ConnectSession.builder.remote(connect_url).create()
    yield session
    session.stop()


@pytest.fixture
def connect_mode(connect: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The session `connect` in a process whose `pyspark.sql.functions` are made for Spark Connect."""
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    return connect
