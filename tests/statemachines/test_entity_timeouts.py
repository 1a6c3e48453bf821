"""Timeouts of entities' states, on the timers of their dispatcher. A copy of the journal is what a kill -9 leaves."""

from __future__ import annotations

from pathlib import Path
from threading import Semaphore
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, JournalConfig, MultiDispatcher, PartitionedJournal, Retry
from dispatcher.journal import EVENTS, read_rows
from dispatcher.mailbox import ManualClock
from dispatcher.testing import InlineDispatcher
from statemachines import Entities, StateMachineFactory

from ..kit import until
from ..kit.journals import after_a_crash
from .devices import DEVICES, NOON_MS, TIMEOUT_S, Device, DeviceEvent, E, S, running

TIMED = DEVICES.timeout(S.ONLINE, 30, E.TIMED_OUT)
BEATING = TIMED.add_transition(S.ONLINE, S.ONLINE, E.MEASURED, Device.measure, reenter=True)
EXPIRING = TIMED.timeout(S.SILENT, 60, E.REMOVED)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


class Inline:
    """Devices on an InlineDispatcher, whose clock stands still."""

    def __init__(self, factory: StateMachineFactory[Any, Device] = TIMED, **options: Any) -> None:
        self.clock = ManualClock(NOON_MS)
        self.dispatcher = InlineDispatcher(clock=self.clock)
        options = {"dispatcher": self.dispatcher, "event": DeviceEvent, "ends": {S.GONE}, **options}
        self.devices = Entities(factory, Device, **options)
        self.dispatcher.register(E, self.devices)
        self.dispatcher.start()

    def send(self, *types: E, entity: str = "d1") -> None:
        for type in types:
            self.dispatcher.post(DeviceEvent(type, entity))

    def state_after(self, seconds: float) -> Any:
        self.clock.advance(round(seconds * 1000))
        return self.devices.state("d1")


# -- a run -----------------------------------------------------------------------------------------------------------


def test_an_entity_that_stays_in_its_state_gets_the_event_of_its_timeout() -> None:
    fleet = Inline()
    fleet.send(E.CONNECTED)

    assert (fleet.state_after(29.9), fleet.state_after(0.1)) == (S.ONLINE, S.SILENT)


def test_leaving_the_state_ends_its_timeout() -> None:
    fleet = Inline(TIMED.add_transition(S.ONLINE, S.SILENT, E.BROKE).add_transition(S.SILENT, S.NEW, E.TIMED_OUT))
    fleet.send(E.CONNECTED, E.BROKE)

    assert (fleet.state_after(100), dict(fleet.dispatcher.scheduled())) == (S.SILENT, {})


def test_an_event_that_stays_in_the_state_leaves_its_timeout_and_one_that_reenters_it_begins_it_anew() -> None:
    states = []
    for factory in (TIMED, BEATING):
        fleet = Inline(factory)
        fleet.send(E.CONNECTED)
        fleet.clock.advance(20_000)
        fleet.send(E.MEASURED)
        states.append((fleet.state_after(10), fleet.state_after(20)))

    assert states == [(S.SILENT, S.SILENT), (S.ONLINE, S.SILENT)]


def test_an_entity_that_begins_and_stays_in_its_first_state_has_its_timeout() -> None:
    factory = DEVICES.add_transition(S.NEW, S.NEW, E.MEASURED).add_transition(S.NEW, S.SILENT, E.TIMED_OUT)
    fleet = Inline(factory.timeout(S.NEW, 5, E.TIMED_OUT))
    fleet.send(E.MEASURED)
    fleet.clock.advance(3_000)
    fleet.send(E.MEASURED)

    assert (fleet.state_after(1.9), fleet.state_after(0.1)) == (S.NEW, S.SILENT)


def test_an_event_of_a_timeout_that_cannot_be_made_fails_the_transition_into_the_state() -> None:
    def no_event(type: Any, entity: str) -> DeviceEvent:
        raise LookupError("no event")

    fleet = Inline(EXPIRING, event=lambda *of: no_event(*of) if of[0] is E.REMOVED else DeviceEvent(*of))
    fleet.send(E.CONNECTED)

    with pytest.raises(LookupError, match="no event"):
        fleet.devices.handle(DeviceEvent(E.TIMED_OUT, "d1"))

    assert fleet.devices.state("d1") is S.ONLINE


@pytest.mark.parametrize("ends", [set(), {S.SILENT}])
def test_a_timeout_that_was_queued_before_its_state_was_left_is_dropped(ends: set[Any]) -> None:
    """The entity had left the state, or had even come back to it, when the event came."""
    clock = ManualClock(NOON_MS)
    dispatcher = AsyncDispatcher(time_service=clock)

    def hold_up(device: Device, event: DeviceEvent) -> None:
        """The timeout, and what comes before it, are queued while a handler runs."""
        for type in (E.BROKE, E.CONNECTED):
            dispatcher.post(DeviceEvent(type, "d1"))
        clock.advance(30_000)

    factory = TIMED.add_transition(S.ONLINE, S.SILENT, E.BROKE)
    factory = factory.add_transition(S.ONLINE, S.ONLINE, E.MEASURED, hold_up)
    devices = Entities(factory, Device, dispatcher=dispatcher, event=DeviceEvent, ends=ends)
    dispatcher.register(E, devices)
    with dispatcher:
        for type in (E.CONNECTED, E.MEASURED):
            dispatcher.post(DeviceEvent(type, "d1"))
        assert dispatcher.await_drained(TIMEOUT_S)
        fired = dispatcher.stats().handled
        states = []
        for ms in (29_999, 1):
            clock.advance(ms)
            assert dispatcher.await_drained(TIMEOUT_S)
            states.append(devices.state("d1"))

    assert (states, fired, dispatcher.stats().failed) == ([S.ONLINE, None if ends else S.SILENT], 5, 0)


def test_a_timeout_that_failed_is_dropped_if_its_state_was_left_before_the_next_attempt() -> None:
    """The next attempt ended the state that the entity had entered since."""
    clock, attempts = ManualClock(NOON_MS), Semaphore(0)

    def fail(device: Device, event: DeviceEvent) -> None:
        attempts.release()
        raise RuntimeError("not now")

    factory = TIMED.add_transition(S.ONLINE, S.SILENT, E.TIMED_OUT, fail).add_transition(S.ONLINE, S.SILENT, E.BROKE)
    dispatcher = AsyncDispatcher(time_service=clock)
    devices = Entities(factory, Device, dispatcher=dispatcher, event=DeviceEvent)
    dispatcher.register(E, devices, on_error=Retry(delay_s=1, jitter=0))
    with dispatcher:
        dispatcher.post(DeviceEvent(E.CONNECTED, "d1"))
        assert dispatcher.await_drained(TIMEOUT_S)
        clock.advance(30_000)
        assert attempts.acquire(timeout=TIMEOUT_S)
        for type in (E.BROKE, E.CONNECTED):
            dispatcher.post(DeviceEvent(type, "d1"))
        until(lambda: dispatcher.stats().retrying == 1 and not dispatcher.stats().queue_size)
        clock.advance(1_000)
        until(lambda: dispatcher.stats().retrying == 0)
        assert dispatcher.await_drained(TIMEOUT_S)

    assert (devices.state("d1"), attempts.acquire(blocking=False), dispatcher.stats().failed) == (S.ONLINE, False, 0)


def test_a_factory_with_timeouts_needs_a_dispatcher_and_its_events() -> None:
    with pytest.raises(ValueError, match="Device: ONLINE has a timeout; pass the `dispatcher` whose timers it takes"):
        Entities(TIMED, Device, event=DeviceEvent)


# -- over restarts ---------------------------------------------------------------------------------------------------


def test_a_timeout_that_came_while_nothing_ran_is_handled_at_the_start(path: Path) -> None:
    with running(path, factory=TIMED) as fleet:
        fleet.send("d1", E.CONNECTED)

    with running(path, ManualClock(NOON_MS + 40_000), factory=TIMED) as fleet:
        assert (fleet.devices.state("d1"), fleet.failed()) == (S.SILENT, 0)


def test_a_timeout_that_the_table_has_got_since_begins_with_the_restart(path: Path) -> None:
    with running(path) as fleet:
        fleet.send("d1", E.CONNECTED)

    with running(path, factory=TIMED) as fleet:
        fleet.advance(29.9)
        before = fleet.devices.state("d1")
        fleet.advance(0.1)
        assert (before, fleet.devices.state("d1")) == (S.ONLINE, S.SILENT)


def test_a_timeout_that_the_table_no_longer_has_is_cancelled_by_the_restart(path: Path) -> None:
    with running(path, factory=EXPIRING) as fleet:
        fleet.send("d1", E.CONNECTED)
        fleet.dispatcher.post_after(10, DeviceEvent(E.MEASURED, "d1", 1), key="timeout")

    with running(path, factory=DEVICES.timeout(S.SILENT, 60, E.REMOVED)) as fleet:
        assert list(fleet.dispatcher.scheduled()) == ["timeout"]


def test_a_redelivered_timeout_of_a_state_that_a_redelivered_event_has_left_is_dropped(
    path: Path, tmp_path: Path
) -> None:
    """Killed with both in the queue: the timeout found the entity in a state that does not accept it."""
    crashed = tmp_path / "crashed"

    def hold_up(device: Device, event: DeviceEvent) -> None:
        if not crashed.exists():
            fleet.dispatcher.post(DeviceEvent(E.BROKE, "d1"))
            fleet.dispatcher.post(DeviceEvent(E.CONNECTED, "d1"))
            fleet.clock.advance(30_000)
            after_a_crash(path, crashed)

    factory = TIMED.add_transition(S.ONLINE, S.SILENT, E.BROKE)
    factory = factory.add_transition(S.ONLINE, S.ONLINE, E.MEASURED, hold_up)
    with running(path, factory=factory) as fleet:
        fleet.send("d1", E.CONNECTED)
        until(lambda: list(read_rows(path, EVENTS)), "the row of CONNECTED is written")
        fleet.send("d1", E.MEASURED)

    with running(crashed, ManualClock(NOON_MS + 30_000), factory=factory) as fleet:
        assert (fleet.devices.state("d1"), fleet.failed()) == (S.ONLINE, 0)
        fleet.advance(30)
        assert (fleet.devices.state("d1"), fleet.failed()) == (S.SILENT, 0)


def test_timeouts_come_back_in_another_number_of_partitions(path: Path) -> None:
    names = [f"d{number}" for number in range(10)]
    for run, number in enumerate((2, 3)):
        clock = ManualClock(NOON_MS + 20_000 * run)
        journal = PartitionedJournal(path, JournalConfig(write_ahead=True))
        dispatcher = MultiDispatcher(partitions=number, journal=journal, time_service=clock)
        devices = Entities(TIMED, Device, journal=journal, dispatcher=dispatcher, event=DeviceEvent)
        dispatcher.register(E, devices, events=DeviceEvent)
        devices.restore()
        with dispatcher:
            for name in names if not run else ():
                dispatcher.post(DeviceEvent(E.CONNECTED, name))
            assert dispatcher.await_drained(TIMEOUT_S)
            for ms in (9_900, 100):
                clock.advance(ms)
                assert dispatcher.await_drained(TIMEOUT_S)
            states = {devices.state(name) for name in names}
            assert states == {S.SILENT if run else S.ONLINE}
        assert [part.stats().failed for part in dispatcher.partitions] == [0] * number
