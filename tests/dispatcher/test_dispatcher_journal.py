"""What a dispatcher writes to its journal."""

from __future__ import annotations

import contextlib
import gc
import os
from pathlib import Path
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, Event, JournalError, JournalWriter, ServiceState
from dispatcher.journal import EVENTS, read_rows, verify
from dispatcher.testing import ManualClock

from ..kit import TIMEOUT_S, Numbered, Other, Work, in_threads, until


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
            dispatcher.post(event)

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
    assert "no handler for Other.DO. Call register(Other, handler) before posting." in rows[2]["error"]
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
        dispatcher.post(Numbered())

    (row,) = read_rows(tmp_path, EVENTS)
    assert row["enqueued_at"] == row["started_at"] == row["finished_at"] == 7_000_000
    assert row["queue_ns"] > 0
    assert row["handling_ns"] > 0


def test_an_idle_dispatcher_has_flushed_what_it_handled(tmp_path: Path) -> None:
    dispatcher = AsyncDispatcher(journal=JournalWriter(tmp_path))
    dispatcher.register(Work, lambda _: None)
    with dispatcher:
        dispatcher.post(Numbered())
        until(lambda: list(read_rows(tmp_path, EVENTS)), "the row in the open segment")


def test_a_journal_that_cannot_be_written_fails_the_dispatcher_with_a_clear_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = JournalWriter(tmp_path)
    dispatcher = AsyncDispatcher(journal=journal)
    dispatcher.register(Work, lambda _: None)

    def disk_full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", disk_full)
    dispatcher.start()
    dispatcher.post(Numbered())

    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
    assert dispatcher.state is ServiceState.STOPPED
    assert isinstance(dispatcher.failure_cause, JournalError)
    assert "cannot be written: No space left on device" in str(dispatcher.failure_cause)


def test_a_journal_has_one_dispatcher(tmp_path: Path) -> None:
    """Two dispatchers counted rows and numbered them each on its own: most rows were missing."""
    writer = JournalWriter(tmp_path)
    first = AsyncDispatcher(name="first", journal=writer)
    first.register(Work, lambda _: None)

    with pytest.raises(JournalError) as raised:
        AsyncDispatcher(name="second", journal=writer)
    with first:
        first.post(Numbered())

    assert str(raised.value) == (
        f"{tmp_path}: this JournalWriter belongs to the dispatcher first, so second cannot use it. Open one for each "
        "dispatcher, each in a folder of its own."
    )
    assert len(list(read_rows(tmp_path, EVENTS))) == 1
    with pytest.raises(JournalError, match="belongs to the dispatcher first"):  # though it has stopped
        AsyncDispatcher(name="second", journal=writer)
    del first, raised  # whose frames know it
    gc.collect()
    with pytest.raises(JournalError, match="is closed; open another JournalWriter"):
        AsyncDispatcher(name="second", journal=writer)


def test_of_dispatchers_made_at_the_same_time_one_gets_the_journal(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path)
    made: list[AsyncDispatcher] = []

    def make() -> None:
        with contextlib.suppress(JournalError):
            made.append(AsyncDispatcher(journal=writer))

    in_threads(*[make] * 4)

    assert len(made) == 1
    made[0].stop()


def test_a_constructor_that_fails_leaves_the_journal_to_another_dispatcher(tmp_path: Path) -> None:
    class Broken(AsyncDispatcher):
        def _default_handler(self) -> Any:
            raise RuntimeError("broken")

    class BrokenLater(AsyncDispatcher):
        def __init__(self, writer: JournalWriter) -> None:
            super().__init__(name="broken", journal=writer)
            raise RuntimeError("broken")

    writer = JournalWriter(tmp_path)

    with pytest.raises(RuntimeError):
        Broken(journal=writer)
    AsyncDispatcher(name="dropped", journal=writer)
    gc.collect()
    with contextlib.suppress(RuntimeError):
        BrokenLater(writer)
    gc.collect()
    dispatcher = AsyncDispatcher(journal=writer)

    dispatcher.stop()
    assert verify(tmp_path).problems == ()
