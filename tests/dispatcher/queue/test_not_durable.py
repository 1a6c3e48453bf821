"""Classes registered with `durable=False` on a dispatcher whose journal keeps accepted events.

A copy of the folder is what a kill -9 leaves.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from dispatcher import (
    AsyncDispatcher,
    DispatcherConfig,
    Event,
    JournalConfig,
    JournalError,
    JournalWriter,
    MultiDispatcher,
    PartitionedJournal,
    Retry,
    aio,
)
from dispatcher.journal import EVENTS, read_rows, recover
from dispatcher.mailbox import ManualClock

from ...kit import TIMEOUT_S, Gate, Work
from ...kit.dispatchers import hold
from ...kit.journals import Job, Posted, after_a_crash, no_room
from ...kit.scenarios import play
from ..stage import NOON_MS, Rows, Stage, scenarios


class Tick(Enum):
    PASSED = 1
    LATE = 2


@dataclass
class Ticked:
    type: Tick
    number: int


def tick(number: int) -> Ticked:
    return Ticked(Tick.PASSED, number)


def durable_dispatcher(journal: Path, **options: Any) -> AsyncDispatcher:
    config = JournalConfig(write_ahead=True, durability="sync", failure_policy="continue")
    return AsyncDispatcher(journal=JournalWriter(journal, config), **options)


@contextmanager
def running(journal: Path, handle: Any, *, durable: bool = False, **options: Any) -> Iterator[AsyncDispatcher]:
    dispatcher = durable_dispatcher(journal, **options)
    dispatcher.register(Job, handle, events=Posted)
    dispatcher.register(Tick, handle, events=Ticked, durable=durable)
    with dispatcher:
        yield dispatcher


def number_of(event: Any) -> int:
    return int(event.number)


def handled_from(crashed: Path, clock: ManualClock | None = None, ms: int = 0) -> list[int]:
    """The numbers that the next start hands out, at once and in these ms."""
    seen: list[int] = []
    with running(crashed, lambda event: seen.append(event.number), time_service=clock) as dispatcher:
        assert dispatcher.await_drained(TIMEOUT_S)
        if clock is not None:
            clock.advance(ms)
            assert dispatcher.await_drained(TIMEOUT_S)
    return seen


class NotDurable(Stage):
    """A Stage whose events are of a class with `durable=False`."""

    def _make(self) -> AsyncDispatcher:
        assert self._journal is not None
        writer = JournalWriter(self._journal, JournalConfig(write_ahead=True))
        dispatcher = AsyncDispatcher(self._config, journal=writer, **self._options)
        dispatcher.register(Work, self._handle, durable=False, **self._register)
        dispatcher.init()
        return dispatcher


SCENARIOS: Rows = {
    "a newer event of its key replaces a queued one": (
        "hold 0 | post 1:a 2:a 3:a | release -> seen 0 3",
        {"coalesce_by": lambda event: event.lock_key},
    ),
    "an event is tried again in memory and dies as any other": (
        "post 1 | +1000 -> attempts 1:1 1:2 1:3 ; letters 1:3:OSError ; left 0",
        {"fails": {1: 3}, "on_error": Retry(attempts=3, delay_s=0)},
    ),
    "a scheduled post is lost with its run": ("after 1000 1 | at 1000 2 key=two | crash -> keys | +1000 -> seen", {}),
    "a rhythm of its events begins again with each run": (
        "every 10000 1 key=rhythm | +10000 -> seen 1 ; left 0 | crash -> keys | +20000 -> seen 1",
        {},
    ),
}


@scenarios(SCENARIOS)
def test_scenario(script: str, options: dict[str, Any], tmp_path: Path) -> None:
    with closing(NotDurable(journal=tmp_path / "journal", **options)) as stage:
        play(stage, script)


# -- the registration ------------------------------------------------------------------------------------------------


def test_a_class_without_events_is_refused_at_its_registration(tmp_path: Path) -> None:
    dispatcher = durable_dispatcher(tmp_path)

    with pytest.raises(ValueError, match=r"Call register\(Job, handler, events=YourEvent\).*durable=False"):
        dispatcher.register(Job, print)

    assert not dispatcher.unregister(Job, print)
    dispatcher.register(Job, print, events=Posted)
    dispatcher.register(Job, print)  # its classes are declared


def test_the_handlers_of_a_class_are_all_durable_or_none_is(tmp_path: Path) -> None:
    dispatcher = durable_dispatcher(tmp_path)
    dispatcher.on(Tick.PASSED, durable=False)(print)

    with pytest.raises(ValueError, match=r"Tick: some handlers are registered with durable=False and others are not"):
        dispatcher.on(Tick.LATE, events=Ticked)(print)


def test_a_registration_may_change_it_once_the_other_is_gone(tmp_path: Path) -> None:
    with running(tmp_path, number_of) as dispatcher:
        dispatcher.unregister(Tick, number_of)
        dispatcher.register(Tick, number_of, events=Ticked)
        dispatcher.post(tick(1))
        assert dispatcher.await_drained(TIMEOUT_S)

    assert [row["accepted_seq"] for row in read_rows(tmp_path, EVENTS)] == [1]


# -- posts -----------------------------------------------------------------------------------------------------------


def test_no_post_is_accepted_into_the_journal_but_the_handled_events_have_rows(tmp_path: Path) -> None:
    gate = Gate()
    with running(tmp_path / "journal", gate.handle) as dispatcher:
        hold(dispatcher, gate, tick(0))
        assert dispatcher.post(tick(1))
        assert dispatcher.post_nowait(tick(2))
        assert dispatcher.post_later(tick(3)).result(0)
        asked = dispatcher.ask(tick(4))
        assert asyncio.run(aio.post(dispatcher, tick(5)))
        crashed = after_a_crash(tmp_path / "journal", tmp_path / "crashed")
        gate.opened.set()
        asked.result(TIMEOUT_S)

    assert recover(crashed).accepted == ()
    assert [event.number for event in gate.events] == list(range(6))
    rows = list(read_rows(tmp_path / "journal", EVENTS))
    assert [(row["event_class"], row.get("accepted_seq")) for row in rows] == [("Tick", None)] * 6


def test_after_a_kill_only_the_durable_events_come_back(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    killed = subprocess.run([sys.executable, "-m", f"{__package__}._killed_by_itself", journal], check=False)

    assert killed.returncode == -signal.SIGKILL
    assert handled_from(journal) == [0, 2]


def test_an_answer_waits_for_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path, number_of) as dispatcher:

        def flush(**_: Any) -> None:
            raise AssertionError("an answer of a class that is not durable waits for the disk")

        monkeypatch.setattr(dispatcher.core.journal, "flush_to_disk", flush)
        assert dispatcher.ask(tick(7)).result(TIMEOUT_S) == 7


def test_its_posts_go_on_after_the_disk_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    with running(tmp_path, seen.append) as dispatcher:
        assert dispatcher.core.journal is not None
        monkeypatch.setattr(dispatcher.core.journal.log, "append_accepted", no_room)

        assert not dispatcher.post(Posted(Job.STARTED, 1))
        assert dispatcher.post(tick(2))

    assert seen == [tick(2)]


def test_any_object_with_a_type_is_an_event_of_it(tmp_path: Path) -> None:
    seen: list[Any] = []
    dispatcher = durable_dispatcher(tmp_path)
    dispatcher.register(Tick, seen.append, durable=False)

    with dispatcher:
        assert dispatcher.post(Event(Tick.PASSED))

    assert len(seen) == 1


def test_a_multidispatcher_takes_them_before_its_start(tmp_path: Path) -> None:
    journal = PartitionedJournal(tmp_path, JournalConfig(write_ahead=True))
    dispatcher = MultiDispatcher(partitions=2, journal=journal, config=DispatcherConfig())
    seen: list[Any] = []
    dispatcher.register(Tick, seen.append, durable=False)
    dispatcher.register(Job, seen.append, events=Posted)

    assert dispatcher.post(tick(1))
    with pytest.raises(JournalError, match="not started"):
        dispatcher.post(Posted(Job.STARTED, 2))
    with dispatcher:
        assert dispatcher.await_drained(TIMEOUT_S)

    assert seen == [tick(1)]


def test_events_that_an_earlier_run_has_kept_are_handled_if_their_class_is_still_declared(tmp_path: Path) -> None:
    gate = Gate()
    with running(tmp_path / "journal", gate.handle, durable=True) as dispatcher:
        hold(dispatcher, gate, tick(1))
        crashed = after_a_crash(tmp_path / "journal", tmp_path / "crashed")
        gate.opened.set()

    assert handled_from(crashed) == [1]
    assert handled_from(crashed) == []


# -- scheduled posts -------------------------------------------------------------------------------------------------


def test_a_key_holds_one_schedule_whether_or_not_that_is_durable(tmp_path: Path) -> None:
    clock, journal = ManualClock(NOON_MS), tmp_path / "journal"
    seen: list[int] = []
    with running(journal, lambda event: seen.append(event.number), time_service=clock) as dispatcher:
        dispatcher.post_after(1, Posted(Job.STARTED, 1), key="k")
        dispatcher.post_after(1, tick(2), key="k")
        assert recover(after_a_crash(journal, tmp_path / "first")).accepted == ()
        dispatcher.post_after(1, Posted(Job.STARTED, 3), key="k")
        crashed = after_a_crash(journal, tmp_path / "crashed")
        clock.advance(1000)
        assert dispatcher.await_drained(TIMEOUT_S)

    assert seen == [3]
    assert handled_from(crashed, clock, 1000) == [3]


def test_a_factory_keeps_its_rhythm_and_only_the_durable_ones_of_its_events(tmp_path: Path) -> None:
    clock, journal, gate = ManualClock(NOON_MS), tmp_path / "journal", Gate()
    made = iter([tick(1), Posted(Job.STARTED, 2)])
    with running(journal, gate.handle, time_service=clock) as dispatcher:
        dispatcher.post_every(10, lambda: next(made), key="rhythm")
        clock.advance(10_000)
        assert gate.entered.wait(TIMEOUT_S)
        first = after_a_crash(journal, tmp_path / "first")
        gate.opened.set()
        assert dispatcher.await_drained(TIMEOUT_S)

    seen: list[int] = []
    with running(first, lambda event: seen.append(event.number), time_service=clock) as dispatcher:
        dispatcher.post_every(10, lambda: next(made), key="rhythm", first=3600)
        clock.advance(10_000)  # the rhythm goes on
        assert dispatcher.await_drained(TIMEOUT_S)

    assert gate.events == [tick(1)]
    assert seen == [2]


def test_a_rhythm_that_was_durable_ends_when_its_class_no_longer_is(tmp_path: Path) -> None:
    clock, journal = ManualClock(NOON_MS), tmp_path / "journal"
    with running(journal, number_of, durable=True, time_service=clock) as dispatcher:
        dispatcher.post_every(10, tick(1), key="rhythm")

    with running(journal, number_of, time_service=clock) as dispatcher:
        dispatcher.post_every(10, tick(1), key="rhythm")

    assert recover(journal).accepted == ()
