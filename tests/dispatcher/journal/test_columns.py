"""The schema's columns in a frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.journal import EVENTS, TRANSITIONS, Column

from ...kit.segment_files import EventRow, Table, TransitionRow, decode_rows, encode_rows

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


# -- any rows ----------------------------------------------------------------------------------------------------------

KIND_NUMBERS = st.integers(0, 300)
TEXTS = st.text(max_size=5)
SHORT = st.sampled_from([0, 1, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**61, -5])
EVENT_ROWS = st.builds(
    EventRow, KIND_NUMBERS, st.none() | TEXTS, st.integers(0, 2**61), SHORT, SHORT,
    st.none() | TEXTS, st.none() | TEXTS, st.sampled_from([0, 0, 3, 2**40]), st.booleans(),
)  # fmt: skip
TRANSITION_ROWS = st.builds(TransitionRow, KIND_NUMBERS, st.integers(5, 10), TEXTS, st.integers(0, 2**61))


def event_dict(row: Any, seq: int, *, virtual: bool) -> dict[str, Any]:
    at = row.started_at
    found = {
        "seq": seq,
        "dispatcher": "d",
        "event_class": "Job",
        "event_type": f"E{row.kind}",
        "entity": row.entity,
        "enqueued_at": at if virtual else at - row.queue_ns,
        "started_at": at,
        "finished_at": at if virtual else at + row.handling_ns,
        "queue_ns": row.queue_ns,
        "handling_ns": row.handling_ns,
        "outcome": "handled",
        "error": row.error,
        "payload": row.payload,
        "accepted_seq": row.accepted_seq or None,
        "redelivered": row.redelivered,
    }
    return {name: value for name, value in found.items() if value is not None}


def transition_dict(row: Any) -> dict[str, Any]:
    return {
        "seq": row.seq,
        "machine": "Job",
        "entity": row.entity,
        "from_state": f"S{row.kind}",
        "event_type": "GO",
        "to_state": "DONE",
        "at": row.at,
        "valid": row.kind % 2 == 0,
    }


@given(
    events=st.lists(EVENT_ROWS, max_size=8),
    transitions=st.lists(TRANSITION_ROWS, max_size=8),
    virtual=st.booleans(),
    wanted=st.sets(st.integers(0, 7)),
)
def test_any_rows_come_back_all_together_and_some_alone(
    events: Sequence[Any], transitions: Sequence[Any], virtual: bool, wanted: set[int]
) -> None:
    kinds = [("d", "Job", f"E{number}", "handled") for number in range(301)]
    moves = [("Job", f"S{number}", "GO", "DONE", number % 2 == 0) for number in range(301)]

    payload = decode_rows(encode_rows(events, transitions, 5, kinds, moves, virtual=virtual).payload)

    expected = {
        EVENTS: [event_dict(row, seq, virtual=virtual) for seq, row in enumerate(events, 5)],
        TRANSITIONS: list(map(transition_dict, transitions)),
    }
    for table, rows in expected.items():
        assert list(payload.rows(table, 5)) == rows
        some = sorted(place for place in wanted if place < len(rows))
        assert list(payload.rows(table, 5, some)) == [rows[place] for place in some]
