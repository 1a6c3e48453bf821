"""What a dispatcher writes to its journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, Event, JournalError, JournalWriter, ServiceState
from dispatcher.journal import EVENTS, read_rows, verify
from dispatcher.journal.format import segments
from dispatcher.testing import ManualClock

from .conftest import TIMEOUT_S, Numbered, Other, Work
from .waiting import until


class About(Event[Work]):
    """An event with all that the journal takes."""

    entity = "entity_1"

    @property
    def payload(self) -> dict[str, Any]:
        return {"size": 3}


def test_each_event_makes_a_row_with_its_outcome(tmp_path: Path) -> None:
    def handle(event: Any) -> None:
        if event.type is Work.MORE:
            raise RuntimeError("broken")

    dispatcher = AsyncDispatcher(name="central", journal=JournalWriter(tmp_path))
    dispatcher.register(Work, handle)
    with dispatcher:
        for event in (About(Work.DO), Numbered(type=Work.MORE), Event(Other.DO)):
            dispatcher.event_handler.handle(event)

    rows = list(read_rows(tmp_path, EVENTS))
    assert [(row["seq"], row["event_class"], row["event_type"], row["outcome"]) for row in rows] == [
        (1, "Work", "DO", "handled"),
        (2, "Work", "MORE", "failed"),
        (3, "Other", "DO", "unregistered"),
    ]
    assert {row["dispatcher"] for row in rows} == {"central"}
    assert (rows[0]["entity"], rows[0]["payload"]) == ("entity_1", '{"size":3}')
    assert rows[1]["error"] == "RuntimeError: broken"
    assert "entity" not in rows[1]
    assert "no handler for Other.DO" in rows[2]["error"]
    for row in rows:
        assert row["enqueued_at"] <= row["started_at"] <= row["finished_at"]
        assert row["started_at"] - row["enqueued_at"] == row["queue_ns"]
        assert row["finished_at"] - row["started_at"] == row["handling_ns"]
    assert verify(tmp_path).problems == ()


def test_in_virtual_time_the_times_are_the_clocks_and_only_the_durations_real(tmp_path: Path) -> None:
    clock = ManualClock(start_ms=7)
    dispatcher = AsyncDispatcher(journal=JournalWriter(tmp_path), clock_ns=clock.current_time_ns)
    dispatcher.register(Work, lambda _: None)
    with dispatcher:
        dispatcher.event_handler.handle(Numbered())

    (row,) = read_rows(tmp_path, EVENTS)
    assert row["enqueued_at"] == row["started_at"] == row["finished_at"] == 7_000_000
    assert row["queue_ns"] > 0
    assert row["handling_ns"] > 0


def test_an_idle_dispatcher_has_flushed_what_it_handled(tmp_path: Path) -> None:
    dispatcher = AsyncDispatcher(journal=JournalWriter(tmp_path))
    dispatcher.register(Work, lambda _: None)
    with dispatcher:
        dispatcher.event_handler.handle(Numbered())
        until(lambda: list(read_rows(tmp_path, EVENTS)), "the row in the open segment")


def test_a_journal_that_cannot_be_written_fails_the_dispatcher_with_a_clear_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = JournalWriter(tmp_path)
    dispatcher = AsyncDispatcher(journal=journal)
    dispatcher.register(Work, lambda _: None)

    def disk_full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(segments.os, "write", disk_full)
    dispatcher.init()
    dispatcher.start()
    dispatcher.event_handler.handle(Numbered())

    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
    assert dispatcher.state is ServiceState.STOPPED
    assert isinstance(dispatcher.failure_cause, JournalError)
    assert "cannot be written: No space left on device" in str(dispatcher.failure_cause)
