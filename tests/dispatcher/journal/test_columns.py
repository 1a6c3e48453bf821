"""The schema's columns in a frame."""

from __future__ import annotations

import pytest

from dispatcher.journal import EVENTS, TABLES, Column, Table
from dispatcher.journal.format.columns import decode_rows, encode_rows
from dispatcher.journal.format.schema import EventRow, TransitionRow

KINDS = [("central", "Job", "STARTED", "handled")]
TRANSITION_KINDS = [("Job", "NEW", "STARTED", "RUNNING", True)]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (Column("added", "string", True, "a text", "sparse"), None),
        (Column("added", "long", True, "a number", "optional"), None),
        (Column("added", "boolean", False, "a flag", "flag"), False),
    ],
    ids=lambda given: getattr(given, "encoding", ""),
)
def test_frames_that_were_written_before_a_column_was_added_are_read(column: Column, value: object) -> None:
    payload = decode_rows(encode_rows([EventRow(kind=0), EventRow(kind=0)], [], 1, KINDS, []).payload)
    later = Table(EVENTS.name, (*EVENTS.columns, column), EVENTS.time)

    assert [row.get("added") for row in payload.rows(later, 1)] == [value, value]


def test_a_frame_knows_its_rows_its_times_and_what_it_settles() -> None:
    events = [
        EventRow(kind=0, started_at=100, queue_ns=30, handling_ns=5, accepted_seq=7),
        EventRow(kind=0, started_at=110, queue_ns=1, handling_ns=40, accepted_seq=-1),
        EventRow(kind=0, started_at=120),
    ]
    transitions = [TransitionRow(kind=0, seq=1, entity="job_1", at=100)]

    rows = encode_rows(events, transitions, 1, KINDS, TRANSITION_KINDS, settled=[4])
    virtual = encode_rows(events, transitions, 1, KINDS, TRANSITION_KINDS, virtual=True)

    assert (rows.events, rows.transitions, rows.min_at, rows.max_at) == (3, 1, 70, 150)
    assert (virtual.min_at, virtual.max_at) == (100, 120)
    assert sorted(rows.settled) == [4, 7]
    assert list(decode_rows(rows.payload).no_longer_outstanding()) == [7, -1, 0, 4]


def test_every_column_has_a_place_in_a_row_or_follows_from_those_that_have() -> None:
    for table in TABLES:
        names = {column.name: column.encoding for column in table.columns}
        assert set(table.row_fields[1:]) == {
            name for name, encoding in names.items() if encoding not in ("position", "kind", "before", "after")
        }
        assert all(names[column.span] == "duration" for column in table.columns if column.span)
        assert names[table.time] == "number"
