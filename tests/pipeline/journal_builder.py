"""Small hand-made journals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from dispatcher.journal import EVENTS, TRANSITIONS
from pipeline.journal.arrow import arrow_schema

from ..kit.segment_files import EventRow, Kind, Manifest, SegmentFile, Summary, Table, TransitionRow, encode_rows

SECOND = 1_000_000_000


class JournalBuilder:
    """Builds a journal from events and transitions, added row by row in any order. Times are in seconds.

    `path` writes it: one segment for each run of seqs without a gap.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
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

    def move(self, seq: int, machine: str, entity: str, transition: str, at: int = 0, **columns: Any) -> None:
        """Add a transition, written as `FROM EVENT TO`. `columns`: valid, data."""
        from_state, event_type, to_state = transition.split()
        kind = (machine, from_state, event_type, to_state, columns.pop("valid", True))
        self._transitions.append(
            {"seq": seq, "kind": kind, "entity": entity, "at": at * SECOND, "data": None} | columns
        )

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

    def rows(self, table: Table) -> pa.Table:
        """All rows of a table in the order of seq, without writing them to disk."""
        kinds = self._events if table is EVENTS else self._transitions
        rows = [dict(zip(table.kind_columns, row["kind"], strict=True)) | row for row in kinds]
        return table_of(table, sorted(rows, key=lambda row: row["seq"]))


def batch_of(table: Table, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Rows as a journal is read; a column that a row lacks is null."""
    return pa.RecordBatch.from_pylist(rows, arrow_schema(table))


def table_of(table: Table, rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_batches([batch_of(table, rows)])


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
