"""The digest of one part of a journal's events."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyarrow")

from dispatcher.journal import EVENTS
from pipeline.report.digests import event_digest

from ...journal_builder import batch_of

Row = tuple[str, dict[str, Any]]


def event(seq: int, kind: str = "AType.A", *, at: int = 0, **columns: Any) -> dict[str, Any]:
    event_class, event_type = kind.split(".")
    times = dict.fromkeys(("enqueued_at", "started_at", "finished_at"), at)
    measured = {"queue_ns": 0, "handling_ns": 0, "outcome": "handled"} | columns
    return {"seq": seq, "event_class": event_class, "event_type": event_type} | times | measured


def digest(*batches: list[dict[str, Any]], span: tuple[int, int] | None = (0, 99)) -> list[Row]:
    """Rows with their kinds, of one part that comes in these batches."""
    found = event_digest.EventDigest(span).rows(batch_of(EVENTS, rows) for rows in batches)
    return [(kind, row) for kind, rows in found for row in rows.to_pylist()]


def of_kind(rows: list[Row], wanted: str) -> list[dict[str, Any]]:
    return [row for kind, row in rows if kind == wanted]


def test_the_digest_keeps_the_events_that_other_tables_need() -> None:
    start = event(1, "RMAppEventType.START", entity="application_0_0001", payload='{"name":"sort"}')
    failed = event(2, outcome="failed", error="ValueError: x")
    plain = event(3, payload='{"a":1}', handling_ns=5)

    rows = digest([start, failed], [plain])

    kept = [(row["seq"], row["entity"], row["error"], row["payload"]) for row in of_kind(rows, "kept_event")]
    assert kept == [(1, "application_0_0001", None, '{"name":"sort"}'), (2, None, "ValueError: x", None)]
    assert [row["seq"] for row in of_kind(rows, "slow_event")] == [3, 1, 2]


def test_the_digest_keeps_the_given_number_of_slowest_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_digest, "ROWS_AT_ONCE", 1)
    monkeypatch.setattr(event_digest, "SLOWEST", 2)

    rows = digest(
        *[[event(seq, handling_ns=ns), event(seq + 1, handling_ns=1)] for seq, ns in ((1, 5), (3, 7), (5, 5))]
    )

    assert [(row["seq"], row["handling_ns"]) for row in of_kind(rows, "slow_event")] == [(3, 7), (1, 5)]


def test_the_digest_tells_the_span_of_its_part() -> None:
    [totals] = of_kind(digest([event(3, at=7), event(4, at=9, outcome="failed")]), "event_totals")

    assert totals == {"count": 2, "failed": 1, "first_seq": 3, "last_seq": 4, "first_at": 7, "last_at": 9}


def test_the_digest_of_no_events_is_empty() -> None:
    assert digest() == digest([]) == []


def test_groups_are_emitted_early_when_they_take_too_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_digest, "ROWS_AT_ONCE", 1)
    monkeypatch.setattr(event_digest, "_GROUPS_HELD", 1)

    rows = digest([event(1, queue_ns=5)], [event(2, queue_ns=5)])

    found = [(row["measure"], row["count"], row["total"]) for row in of_kind(rows, "event_group")]
    assert sorted(found) == 2 * [("handling_ns", 1, 0)] + 2 * [("queue_ns", 1, 5)]


def test_intervals_widen_while_the_digest_sees_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_digest, "ROWS_AT_ONCE", 1)

    rows = digest([event(1, at=64)], [event(2, at=65)], [event(3, at=64 + 99)], span=None)

    queued = [row for row in of_kind(rows, "event_group") if row["measure"] == "queue_ns"]
    found = [(row["bucket"] * row["width_ns"], row["width_ns"], row["count"]) for row in queued]
    assert found == [(64, 1, 1), (65, 1, 1), (162, 2, 1)]
