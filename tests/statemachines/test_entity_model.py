"""A model of devices with data and timeouts: any events, times, failures, stops and kills leave what the model says."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dispatcher.mailbox import ManualClock

from ..kit import tries, until
from ..kit.journals import after_a_crash
from .devices import DEVICES, NOON_MS, Device, DeviceData, E, Fleet, S, running

TIMED = (
    DEVICES.timeout(S.ONLINE, 30, E.TIMED_OUT)
    .timeout(S.SILENT, 60, E.REMOVED)
    .add_transition(S.ONLINE, S.ONLINE, E.CONNECTED, reenter=True)
    .add_transition(
        S.ONLINE, S.ONLINE, E.MEASURED, Device.measure, guard=lambda device, event: device.data.measured < 5
    )
)
SECONDS = {S.ONLINE: 30, S.SILENT: 60}
NAMES = st.sampled_from(["d1", "d2"])


class Expected(NamedTuple):
    state: S
    data: DeviceData
    due_ms: int | None
    """When its state times out."""


def measured(data: DeviceData, value: int) -> DeviceData:
    return DeviceData(data.measured + 1, [*data.values, value])


class Devices(RuleBasedStateMachine):
    """Times are whole seconds, so that what is due at a time is due at a step."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.runs = 0
        self.clock = ManualClock(NOON_MS)
        self.now_ms = NOON_MS
        self.expected: dict[str, Expected] = {}
        self.failed = 0
        self.path = self.folder / "journal"
        self.begin_run()

    def begin_run(self) -> None:
        self.exit = ExitStack()
        self.clock = ManualClock(self.now_ms)
        options: dict[str, Any] = {"factory": TIMED, "snapshot_transitions": 3}
        self.fleet: Fleet = self.exit.enter_context(running(self.path, self.clock, **options))
        self.failed = 0

    def enter(self, name: str, state: S, data: DeviceData) -> None:
        seconds = SECONDS.get(state)
        self.expected[name] = Expected(state, data, None if seconds is None else self.now_ms + seconds * 1000)

    @rule(name=NAMES)
    def connect(self, name: str) -> None:
        self.fleet.send(name, E.CONNECTED)
        found = self.expected.get(name)
        self.enter(name, S.ONLINE, DeviceData() if found is None else found.data)

    @rule(name=NAMES, value=st.integers(0, 9))
    def measure(self, name: str, value: int) -> None:
        self.fleet.send(name, E.MEASURED, value)
        found = self.expected.get(name)
        if found is not None and found.state is S.ONLINE:  # beyond 5 the arc without a guard takes it
            self.expected[name] = found._replace(data=measured(found.data, value))
        else:
            self.failed += 1

    @rule(name=NAMES, type=st.sampled_from([E.BROKE, E.MEASURED]))
    def fail(self, name: str, type: E) -> None:
        """A hook that raises, or data that cannot be kept."""
        self.fleet.send(name, type, "no number")
        self.failed += 1

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        self.fleet.send(name, E.REMOVED)
        self.failed += self.expected.pop(name, None) is None

    @rule(seconds=st.integers(1, 40))
    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.fleet.advance(1)
            self.now_ms += 1000
            self.time_out()

    def time_out(self) -> None:
        for name, found in list(self.expected.items()):
            if found.due_ms is not None and found.due_ms <= self.now_ms:
                if found.state is S.ONLINE:
                    self.enter(name, S.SILENT, found.data)
                else:
                    del self.expected[name]

    @rule()
    def restart(self) -> None:
        self.exit.close()
        self.begin_run()

    @rule()
    def kill(self) -> None:
        """Once the rows of all events are written: the others would come again, and begin their timeouts again."""
        until(lambda: self.fleet.journal.outstanding == len(self.fleet.dispatcher.scheduled()))
        self.runs += 1
        crashed = after_a_crash(self.path, self.folder / f"journal_{self.runs}")
        self.exit.close()
        self.path = crashed
        self.begin_run()

    @invariant()
    def devices_are_as_the_model_says(self) -> None:
        devices = self.fleet.devices
        found = {name: (devices.state(name), self.fleet.data(name)) for name in devices}
        assert found == {name: (each.state, each.data) for name, each in self.expected.items()}
        dues = sorted(round(each.due * 1000) for each in self.fleet.dispatcher.scheduled().values() if each.due)
        assert dues == sorted(each.due_ms for each in self.expected.values() if each.due_ms is not None)
        assert self.fleet.failed() == self.failed

    def teardown(self) -> None:
        self.exit.close()
        shutil.rmtree(self.folder)


TestDevices = Devices.TestCase
TestDevices.settings = settings(max_examples=tries(6), stateful_step_count=25, deadline=None)
