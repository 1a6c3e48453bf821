"""Tables of what events cost and how many wait: each against literal rows."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.journal import EVENTS, TRANSITIONS

from ...journal_builder import table_of
from .at_hand import Tables, in_order, of_parts, of_relations

pytestmark = pytest.mark.long

US, MS = 1_000, 1_000_000
Event = dict[str, Any]


def event(seq: int, kind: str = "AType.A", *, came: int = 0, begun: int = 0, **columns: Any) -> Event:
    event_class, event_type = kind.split(".")
    times = {"enqueued_at": came, "started_at": begun, "finished_at": begun}
    measured = {"queue_ns": 0, "handling_ns": 0, "outcome": "handled"} | columns
    return {"seq": seq, "event_class": event_class, "event_type": event_type} | times | measured


def tables_of(*parts: list[Event]) -> Tables:
    """Of events, each part digested apart."""
    return of_parts([(table_of(EVENTS, rows), table_of(TRANSITIONS, [])) for rows in parts])


def test_events_are_summed_up_by_type() -> None:
    found = tables_of(
        [
            event(1, queue_ns=1 * US, handling_ns=2 * MS),
            event(2, queue_ns=3 * US, handling_ns=4 * MS, outcome="failed", error="ValueError: x", begun=50),
            event(3, "BType.B", outcome="unregistered"),
        ]
    )

    assert found["events_by_type"] == [
        ("AType", "A", 2, 1, 0, 2.0, 3.0, 3000.0, 4000.0, 6.0),
        ("BType", "B", 1, 0, 1, 0.0, 0.0, 0.0, 0.0, 0.0),
    ]


FOUR = [
    event(1, came=1024, begun=1030, queue_ns=2 * US, handling_ns=1 * US),
    event(2, came=1024, begun=1024, queue_ns=4 * US, handling_ns=3 * US),
    event(3, came=1024, begun=1032, queue_ns=6 * US, handling_ns=5 * US),
    event(4, came=1024, begun=1024 + 399, queue_ns=8 * US, handling_ns=7 * US),
]


@pytest.fixture
def row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A digest gets its rows one by one, and holds few groups."""
    monkeypatch.setattr("pipeline.report.digests.event_digest.ROWS_AT_ONCE", 1)
    monkeypatch.setattr("pipeline.report.digests.event_digest._GROUPS_HELD", 1)


BY_TIME = [
    (0, 1024, "AType", "A", 2, 3.0, 2.0, 4.0, 4.0, 2.0, 1.0, 3.0, 3.0),
    (1, 1032, "AType", "A", 1, 6.0, 6.0, 6.0, 6.0, 5.0, 5.0, 5.0, 5.0),
    (49, 1024 + 392, "AType", "A", 1, 8.0, 8.0, 8.0, 8.0, 7.0, 7.0, 7.0, 7.0),
]
"""50 intervals at most for 400 ns: 8 ns each. A part that saw less time has narrower ones."""


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_events_are_summed_up_by_type_and_time_however_they_are_cut(cut: int) -> None:
    assert tables_of(FOUR[:cut], FOUR[cut:])["event_times"] == in_order(BY_TIME)


@pytest.mark.usefixtures("row_by_row")
def test_intervals_widen_while_a_part_sees_more_time_and_groups_leave_it_when_they_are_many() -> None:
    assert tables_of(FOUR)["event_times"] == in_order(BY_TIME)
    assert len(tables_of([event(1), event(2)])["part_event_group"]) == 2 * 2


@pytest.mark.parametrize("at_once", [1, 100])
def test_a_part_has_its_span_and_its_failures_however_its_rows_come(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr("pipeline.report.digests.event_digest.ROWS_AT_ONCE", at_once)
    failed = {"outcome": "failed", "error": "ValueError: x"}
    rows = [event(3, came=7, begun=8), event(4, came=6, begun=10, **failed), event(5, came=8, begun=9, **failed)]

    [totals] = tables_of(rows).dicts("part_event_totals")

    assert totals == {"count": 3, "failed": 2, "first_seq": 3, "last_seq": 5, "first_at": 6, "last_at": 10}


def test_of_most_events_only_the_figures_are_kept() -> None:
    start = event(1, "RMAppEventType.START", entity="application_0_0001", payload='{"name":"sort"}')
    failed = event(2, outcome="failed", error="ValueError: x")

    kept = tables_of([start, failed, event(3, payload='{"a":1}')]).dicts("kept_event")

    found = [(row["seq"], row["entity"], row["error"], row["payload"]) for row in kept]
    assert found == [(1, "application_0_0001", None, '{"name":"sort"}'), (2, None, "ValueError: x", None)]


@pytest.mark.usefixtures("row_by_row")
def test_the_slowest_events_are_found_and_the_lowest_seq_wins_a_tie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.report.digests.event_digest.SLOWEST", 3)

    found = tables_of(
        [
            event(1, handling_ns=5 * MS, begun=10),
            event(4, "BType.B", handling_ns=9 * MS, begun=40, entity="b"),
            event(3, handling_ns=5 * MS, begun=30),
            event(2, handling_ns=5 * MS, begun=20, entity="a"),
        ]
    )

    assert found["slowest_handlers"] == [
        (1, "AType", "A", None, 5.0, 10),
        (2, "AType", "A", "a", 5.0, 20),
        (4, "BType", "B", "b", 9.0, 40),
    ]


def depth_of(width_ns: int, parts: int, *changes: tuple[int, int, int]) -> list[tuple[Any, ...]]:
    """Of parts' numbers, arrivals and starts, in 4 intervals."""
    rows = [
        {"bucket": bucket, "width_ns": width_ns // parts, "arrivals": arrivals, "starts": starts}
        for bucket, arrivals, starts in changes
    ]
    return of_relations(times=(0, width_ns, 4), parts=parts, depth=rows)["queue_depth"]


def test_the_queue_holds_the_events_that_arrived_and_were_not_started() -> None:
    found = depth_of(16, 1, (0, 3, 1), (1, 1, 1), (2, 0, 2))

    assert found == [(0, 0, 3, 1, 2, 2), (1, 16, 1, 1, 2, 2), (2, 32, 0, 2, 0, 2), (3, 48, 0, 0, 0, 0)]


def test_finer_parts_show_a_queue_that_fills_and_empties_within_a_bucket() -> None:
    found = depth_of(16, 2, (0, 2, 0), (1, 0, 2))

    assert found[:2] == [(0, 0, 2, 2, 0, 2), (1, 16, 0, 0, 0, 0)]


def test_in_virtual_time_the_queue_appears_empty() -> None:
    found = tables_of([event(seq, came=seq, begun=seq, queue_ns=7 * MS) for seq in range(1, 9)])

    assert {(row["depth"], row["greatest_depth"]) for row in found.dicts("queue_depth")} == {(0, 0)}
