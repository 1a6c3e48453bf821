"""Keys of scheduled posts, and what a cancel leaves in the journal. A copy of the folder is what a kill -9 leaves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from dispatcher import (
    AsyncDispatcher,
    EventNotDeclaredError,
    JournalConfig,
    JournalError,
    JournalWriter,
    MultiDispatcher,
    PartitionedJournal,
)
from dispatcher.journal import EVENTS, read_rows, recover
from dispatcher.mailbox import ManualClock
from dispatcher.testing import InlineDispatcher

from ...kit import TIMEOUT_S, Gate, Numbered, Work
from ...kit.commands import run_here
from ...kit.dispatchers import hold
from ...kit.journals import Job, Posted, after_a_crash
from ..stage import NOON_MS, Rows, perform, scenarios
from .conftest import OfKey, partitioned, running

YEARS_MS = 10 * 365 * 86_400_000

FOUR = "after 1000 1 | at 1000 2 | after 1000 3 key=three | every 1000 4 key=four | cancel 1 2 3 4"
TAKEN_AGAIN = (
    "after 1000 1 key=d1 | after 1000 2 key=d2 | after 2000 3 key=d1 -> due - 1000 2000 ; scheduled 2"
    " | crash 500 -> dues d2:1000 d1:2000 | {} | +2000 -> seen 2 | +7900 -> seen 2 | +100 -> seen 2 4"
)
SCENARIOS: Rows = {
    "a rhythm that has fired does not come back once it is cancelled": (
        "every 1000 1 key=nightly | +2000 | cancel 1 | crash -> keys", {},
    ),
    # A timer of an earlier run could not be found: a device that was alive expired.
    "the newest of a key holds over a crash": (TAKEN_AGAIN.format("after 10000 4 key=d1"), {}),
    "so does one at a time": (TAKEN_AGAIN.format("at 10500 4 key=d1"), {}),
    "and so it does over one more": ("after 1000 1 key=d1 | crash | after 2000 4 key=d1 | crash | +3000 -> seen 4", {}),
    "a key whose event has fired is free, and its event is not lost": (
        "hold 0 | after 1000 1 key=d1 | +1000 | drop d1 -> cancelled False | after 1000 2 key=d1"
        " | crash | +0 -> seen 0 1 | +1000 -> seen 0 1 2",
        {},
    ),
    "what was cancelled or replaced in a later run stays so": (
        "every 10000 1 key=cancelled | every 10000 2 key=changed | every 10000 3 key=once | restart | drop cancelled"
        " | every 20000 7 key=changed | after 30000 8 key=once | crash -> dues changed:20000 once:30000"
        " | +30000 -> seen 7 8",
        {},
    ),
    "a one-time event takes the place of a rhythm": ("every 1000 2 key=k | after 1000 1 key=k | +2000 -> seen 1", {}),
    "a rhythm takes the place of a one-time event": ("after 1000 1 key=k | every 1000 2 key=k | +2000 -> seen 2 2", {}),
    # A run that ended early, for another service had failed to start, forgot the rhythms of all keys.
    "a run that does not ask for a key does not forget it": (
        "every 10000 1.. key=nightly | restart -> dues nightly:10000 ; scheduled 0"
        " | restart -> dues nightly:10000 ; scheduled 0 | every 10000 1.. key=nightly first=1000 -> dues nightly:10000",
        {},
    ),
} | {
    f"{promise}, with durability {durability}": (script, {"writer": {"durability": durability}})
    for durability in ("none", "sync")
    for promise, script in {
        "what was cancelled does not come back after a crash": f"{FOUR} -> cancelled True True True True ; left 0",
        # It came back until the next row was written: while a handler ran, that could take for ever.
        "the same amid an event": f"hold 0 | {FOUR} -> cancelled True True True True ; left 1 | release -> seen 0",
        "a key of an earlier run is cancelled and stays so": (
            "after 1000 1 key=d1 | every 1000 2 key=nightly | restart | drop d1 nightly other"
            " -> cancelled True True False ; keys ; left 0 | drop d1 -> cancelled True True False False"
        ),
    }.items()
}  # fmt: skip


@scenarios(SCENARIOS)
def test_scenario(script: str, options: dict[str, Any], tmp_path: Path) -> None:
    perform(script, journal=tmp_path / "journal", **options)


def test_a_key_is_cancelled_and_replaced_before_the_start(tmp_path: Path) -> None:
    clock = ManualClock(NOON_MS)
    with running(tmp_path / "journal", clock) as dispatcher:
        for number, key in enumerate(("cancelled", "replaced", "kept")):
            dispatcher.post_after(1, Posted(Job.STARTED, number), key=key)
    seen: list[int] = []
    dispatcher = AsyncDispatcher(
        journal=JournalWriter(tmp_path / "journal", JournalConfig(write_ahead=True)), time_service=clock
    )
    dispatcher.register(Job, lambda event: seen.append(event.number), events=Posted)

    assert list(dispatcher.scheduled()) == ["cancelled", "kept", "replaced"]
    assert dispatcher.cancel("cancelled")
    dispatcher.post_after(1, Posted(Job.STARTED, 7), key="replaced")
    with dispatcher:
        clock.advance(1000)
        assert dispatcher.await_drained(TIMEOUT_S)

    assert sorted(seen) == [2, 7]
    assert not recover(tmp_path / "journal").accepted


def test_a_firing_of_an_earlier_run_that_still_waits_is_the_only_one_of_its_key(tmp_path: Path) -> None:
    clock, gate = ManualClock(NOON_MS), Gate()
    with running(tmp_path / "journal", clock, gate.handle) as first:
        hold(first, gate, Posted(Job.STARTED, 0))
        first.post_every(1, Posted(Job.STARTED, 1), key="nightly")
        clock.advance(1000)
        crashed = after_a_crash(tmp_path / "journal", tmp_path / "crashed")
        gate.opened.set()

    clock, gate = ManualClock(NOON_MS + 1500), Gate()
    with running(crashed, clock, gate.handle) as second:
        assert gate.entered.wait(TIMEOUT_S)
        second.post_every(1, Posted(Job.STARTED, 1), key="nightly")
        clock.advance(500)
        assert (second.stats().queue_size, second.stats().scheduled_skipped) == (1, 1)
        gate.opened.set()
        assert second.await_drained(TIMEOUT_S)
        clock.advance(1000)
        assert second.await_drained(TIMEOUT_S)

    assert [event.number for event in gate.events] == [0, 1, 1]


@contextmanager
def crashing(journal: Path, crashed: Path, appends: int) -> Iterator[None]:
    """Within, the journal is copied as a crash leaves it that comes before another append, or at the end."""
    append, left = JournalWriter.append_accepted, appends

    def crash_or_append(*arguments: Any, **options: Any) -> int:
        nonlocal left
        if not left:
            after_a_crash(journal, crashed)
        left -= 1
        return append(*arguments, **options)

    with patch.object(JournalWriter, "append_accepted", crash_or_append):
        yield
    if not crashed.exists():
        after_a_crash(journal, crashed)


@pytest.mark.parametrize("appends", range(3))
def test_no_time_of_a_key_is_posted_twice_whenever_it_crashes(tmp_path: Path, appends: int) -> None:
    """A firing appends its event, and then the next time. A crash comes before, between or after the two."""
    clock, gate = ManualClock(NOON_MS), Gate()  # what is posted stays in hand, so no row settles it
    journal, crashed = tmp_path / "journal", tmp_path / "crashed"
    with running(journal, clock, gate.handle) as first:
        first.post_every(1, lambda: Posted(Job.STARTED, 1), key="nightly")
        with crashing(journal, crashed, appends):
            clock.advance(1000)
        gate.opened.set()

    clock, seen = ManualClock(NOON_MS + 1000), []
    writer = JournalWriter(crashed, JournalConfig(write_ahead=True))
    second = AsyncDispatcher(journal=writer, time_service=clock)
    second.register(Job, lambda event: seen.append(event.number), events=Posted)
    second.post_every(1, lambda: Posted(Job.STARTED, 2), key="nightly")
    with second:
        for _ in range(9):
            clock.advance(100)
            assert second.await_drained(TIMEOUT_S)

    assert seen == [2 if appends == 0 else 1]


@pytest.mark.parametrize(("first", "expected"), [("post_after", [1000]), ("post_every", [1000, 2000, 3000])])
def test_an_event_that_cannot_be_kept_leaves_the_one_that_it_was_to_replace(
    tmp_path: Path, first: str, expected: list[int]
) -> None:
    """A rhythm was in the heap twice then, and fired early."""
    clock, seen = ManualClock(NOON_MS), []
    with running(tmp_path, clock, lambda event: seen.append(clock.current_processing_time() - NOON_MS)) as dispatcher:
        getattr(dispatcher, first)(1, Posted(Job.STARTED, 1), key="d1")
        with pytest.raises(EventNotDeclaredError):
            dispatcher.post_after(1, Numbered(2), key="d1")
        assert list(dispatcher.scheduled()) == ["d1"]
        for _ in range(3):
            clock.advance(1000)
            assert dispatcher.await_drained(TIMEOUT_S)

    assert seen == expected


def test_a_key_that_is_no_str_is_named_and_one_without_letters_holds_nothing() -> None:
    for dispatcher in (AsyncDispatcher(), MultiDispatcher(), InlineDispatcher()):
        for call in (
            lambda it: it.cancel(7),
            lambda it: it.post_after(1, Numbered(), key=7),
            lambda it: it.post_at(1, Numbered(), key=7),
            lambda it: it.post_every(1, Numbered(), key=7),
        ):
            with pytest.raises(TypeError, match="key must be a str, not 7"):
                call(dispatcher)
        assert not dispatcher.cancel("")


def test_an_inline_dispatcher_has_keys_too() -> None:
    seen: list[int] = []
    dispatcher = InlineDispatcher()
    dispatcher.register(Work, lambda event: seen.append(event.number))

    dispatcher.post_after(1, Numbered(1), key="d1")
    dispatcher.post_after(3, Numbered(2), key="d1")
    dispatcher.post_at(2, Numbered(3), key="d2")
    dispatcher.post_every(4, Numbered(4), key="e1")
    assert {key: one.due for key, one in dispatcher.scheduled("d").items()} == {"d2": 2, "d1": 3}
    assert list(dispatcher.scheduled()) == ["d2", "d1", "e1"]
    assert [dispatcher.cancel("e1"), dispatcher.cancel("e1")] == [True, False]
    dispatcher.clock.advance(5000)

    assert (seen, dispatcher.scheduled()) == ([3, 2], {})


class TestRhythms:
    @pytest.mark.parametrize("what", [Posted(Job.STARTED, 1), lambda: Posted(Job.STARTED, 1)])
    def test_a_rhythm_that_does_not_fire_keeps_no_old_segment(self, tmp_path: Path, what: Any) -> None:
        clock = ManualClock(NOON_MS)
        with running(tmp_path, clock) as dispatcher:
            dispatcher.post_every(10, what, key="nightly")

        with running(tmp_path, clock):
            pass

        [kept] = recover(tmp_path).accepted
        assert kept.segment == 2

    def test_the_command_lists_and_forgets_keys(self, tmp_path: Path) -> None:
        clock = ManualClock(NOON_MS)
        with running(tmp_path, clock) as dispatcher:
            dispatcher.post_every(10, Posted(Job.STARTED, 1), key="nightly")
            dispatcher.post_after(20, Posted(Job.STARTED, 1), key="d1")

        listed = run_here("journal", "scheduled", tmp_path)
        forgotten = run_here("journal", "scheduled", tmp_path, "--forget", "nightly", "--forget", "other")
        left = run_here("journal", "scheduled", tmp_path)

        assert [line.split()[1:] for line in listed.out.splitlines()[1:]] == [
            ["-", "nightly", "Job.STARTED", "every", "10", "s"],
            ["-", "d1", "Job.STARTED", "once"],
        ]
        assert (forgotten.code, forgotten.err) == (1, f"{tmp_path}: nothing is scheduled under other\n")
        assert [line.split()[2] for line in left.out.splitlines()[1:]] == ["d1"]

    def test_after_a_run_with_a_clock_years_ahead_it_waits_one_period(self, tmp_path: Path) -> None:
        """It waited for years. Runs shorter than a period do not begin it again."""
        ahead = ManualClock(NOON_MS + YEARS_MS)
        with running(tmp_path, ahead) as dispatcher:
            dispatcher.post_every(10, Posted(Job.STARTED, 1), key="nightly")
            ahead.advance(10_000)
            assert dispatcher.await_drained(TIMEOUT_S)

        clock, seen = ManualClock(NOON_MS), []
        for _ in range(3):
            with running(tmp_path, clock, lambda event: seen.append(clock.current_processing_time())) as dispatcher:
                dispatcher.post_every(10, Posted(Job.STARTED, 1), key="nightly")
                clock.advance(5000)
                assert dispatcher.await_drained(TIMEOUT_S)

        assert seen == [NOON_MS + 10_000]


class TestPartitions:
    @pytest.mark.parametrize(("lock_key", "after"), list(zip("abcdefgh", (4, 2, 1, 2, 4, 2, 1, 4), strict=True)))
    def test_no_time_of_a_key_is_posted_twice_by_another_number_of_partitions(
        self, tmp_path: Path, after: int, lock_key: str
    ) -> None:
        """After a crash between a firing's event and the next time, only the partition of the event knew of it."""
        clock, gate, crashed = ManualClock(NOON_MS), Gate(), tmp_path / "crashed"
        with partitioned(tmp_path / "journal", clock, gate.handle, 4) as dispatcher:
            dispatcher.post_every(10, OfKey(Job.STARTED, 1, lock_key), key="nightly")
            with crashing(tmp_path / "journal", crashed, 1):
                clock.advance(10_000)
            gate.opened.set()

        seen: list[int] = []
        clock = ManualClock(NOON_MS + 10_000)
        with partitioned(crashed, clock, lambda event: seen.append(event.number), after) as dispatcher:
            assert dispatcher.await_drained(TIMEOUT_S)
            dispatcher.post_every(10, OfKey(Job.STARTED, 1, lock_key), key="nightly")
            clock.advance(9000)
            assert dispatcher.await_drained(TIMEOUT_S)
            assert seen == [1]
            clock.advance(1000)
            assert dispatcher.await_drained(TIMEOUT_S)

        assert seen == [1, 1]

    def test_a_key_holds_one_event_in_all_partitions_over_restarts(self, tmp_path: Path) -> None:
        clock, seen = ManualClock(NOON_MS), []
        with partitioned(tmp_path / "journal", clock, print, 4) as dispatcher:
            for number, lock_key in enumerate("abcdefgh"):
                dispatcher.post_after(1, OfKey(Job.STARTED, number, lock_key), key="d1")
            assert len(dispatcher.scheduled()) == 1
            crashed = after_a_crash(tmp_path / "journal", tmp_path / "crashed")

        with partitioned(crashed, clock, lambda event: seen.append(event.number), 3) as dispatcher:
            assert list(dispatcher.scheduled()) == ["d1"]
            dispatcher.post_after(2, OfKey(Job.STARTED, 9, "c"), key="d1")
            dispatcher.post_after(2, OfKey(Job.STARTED, 10, "d"), key="d2")
            assert dispatcher.cancel("d2")
            crashed = after_a_crash(crashed, tmp_path / "crashed again")
        with partitioned(crashed, clock, lambda event: seen.append(event.number), 2) as dispatcher:
            clock.advance(2000)
            assert dispatcher.await_drained(TIMEOUT_S)

        assert seen == [9]

    def test_keys_are_there_once_it_has_started(self, tmp_path: Path) -> None:
        journals = PartitionedJournal(tmp_path, JournalConfig(write_ahead=True))
        dispatcher = MultiDispatcher(partitions=2, journal=journals)

        for call in (lambda: dispatcher.scheduled(), lambda: dispatcher.cancel("d1")):
            with pytest.raises(JournalError, match="not started"):
                call()
        with dispatcher:
            assert dispatcher.scheduled() == {}


def test_an_event_that_was_due_comes_behind_those_accepted_before_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delayed event came first, for its line is the older one."""
    gate, now_ms = Gate(), NOON_MS
    monkeypatch.setattr(time, "time_ns", lambda: now_ms * 1_000_000)
    writer = JournalWriter(tmp_path / "journal", JournalConfig(write_ahead=True))
    dispatcher = AsyncDispatcher(journal=writer)
    dispatcher.register(Job, gate.handle, events=Posted)
    with dispatcher:
        hold(dispatcher, gate, Posted(Job.STARTED, 0))
        dispatcher.post_after(0.5, Posted(Job.STARTED, 2))
        dispatcher.post(Posted(Job.STARTED, 1))
        now_ms += 1000  # it is due, and the handler thread is in a handler
        dispatcher.post(Posted(Job.STARTED, 3))
        crashed = after_a_crash(tmp_path / "journal", tmp_path / "crashed")
        gate.opened.set()

    again: list[int] = []
    dispatcher = AsyncDispatcher(journal=JournalWriter(crashed, JournalConfig(write_ahead=True)))
    dispatcher.register(Job, lambda event: again.append(event.number), events=Posted)
    with dispatcher:
        assert dispatcher.await_drained(TIMEOUT_S)

    assert again == [0, 1, 2, 3]
    assert [row["redelivered"] for row in read_rows(crashed, EVENTS)] == [True] * 4
