"""The digest of one part of a journal's transitions."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyarrow")

from dispatcher.journal import TRANSITIONS
from pipeline.report.digests.transition_digest import Ends, TransitionDigest

from ...journal_builder import SECOND, batch_of
from ..lives import MACHINE, MIXED, Move, move

APP_1 = "application_0_0001"
ENDS = Ends.of(MACHINE)


def app(seq: int, entity: str, what: str, at: int) -> Move:
    return move(seq, entity, what, at, machine="RMApp")


def digest(*batches: list[Move]) -> list[tuple[str, dict[str, Any]]]:
    """Rows with their kinds."""
    found = TransitionDigest(ENDS).rows(batch_of(TRANSITIONS, rows) for rows in batches)
    return [(kind, row) for kind, rows in found for row in rows.to_pylist()]


def of_kind(rows: list[tuple[str, dict[str, Any]]], wanted: str, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in columns) for kind, row in rows if kind == wanted)


def test_the_digest_of_a_part_counts_the_stays_that_begin_and_end_in_it() -> None:
    rows = digest(MIXED)

    assert of_kind(rows, "stay_group", "state", "count", "total", "least", "greatest") == [
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
    assert of_kind(digest(MIXED), "transition_count", "from_state", "event_type", "to_state", "valid", "count") == [
        ("NEW", "GO", "RUNNING", True, 4),
        ("RUNNING", "END", "DONE", True, 3),
        ("RUNNING", "END", "RUNNING", False, 1),
        ("RUNNING", "PING", "RUNNING", True, 1),
        ("RUNNING", "WAIT", "WAITING", True, 2),
        ("WAITING", "GO", "RUNNING", True, 1),
    ]


def test_the_digest_of_a_part_without_changes_of_state_has_only_counts() -> None:
    assert [kind for kind, _ in digest([move(1, "a", "RUNNING PING RUNNING")], [])] == [
        "transition_count",
        "transition_totals",
    ]


def test_the_longest_stays_of_each_state_are_kept(monkeypatch: Any) -> None:
    monkeypatch.setattr(f"{TransitionDigest.__module__}.LONGEST", 1)
    monkeypatch.setattr(f"{TransitionDigest.__module__}.ROWS_AT_ONCE", 1)
    first, second = MIXED[:8], MIXED[8:]

    kept = of_kind(digest(first, second), "long_stay", "entity", "state", "seq", "stay_ns")
    assert kept == [("h1", "RUNNING", 1, 10 * SECOND)]


def test_the_digest_of_a_part_keeps_the_transitions_that_other_tables_need() -> None:
    container = "container_0_0001_01_000001"
    rows = digest(
        [
            app(1, APP_1, "NEW START NEW_SAVING", 11),
            app(2, APP_1, "NEW_SAVING APP_NEW_SAVED SUBMITTED", 13),
            app(3, APP_1, "SUBMITTED APP_ACCEPTED ACCEPTED", 16),
            app(7, APP_1, "ACCEPTED ATTEMPT_LAUNCHED ACCEPTED", 29),
            app(8, APP_1, "ACCEPTED APP_RUNNING_ON_NODE ACCEPTED", 30),
            move(9, container, "NEW START ALLOCATED", 40, machine="RMContainer"),
            move(10, container, "ALLOCATED ACQUIRED ACQUIRED", 41, machine="RMContainer"),
            move(11, container, "ACQUIRED RELEASED RELEASED", 42, machine="RMContainer"),
            move(12, "h1:1", "NEW STARTED RUNNING", 43, machine="RMNode"),
        ]
    )

    assert of_kind(rows, "move", "seq") == [(1,), (2,), (3,), (8,), (9,), (11,)]


def test_ends_are_the_states_that_no_transition_enters_or_leaves() -> None:
    assert Ends(frozenset({("M", "NEW")}), frozenset({("M", "DONE")})) == ENDS


def test_the_digest_tells_the_span_of_its_part() -> None:
    assert of_kind(digest(MIXED), "transition_totals", "count", "first_at", "last_at") == [(12, 0, 130 * SECOND)]


def test_the_digest_of_no_transitions_is_empty() -> None:
    assert digest() == digest([]) == []
