"""Devices that report what they measure: entities with data and timeouts, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from dispatcher import AsyncDispatcher, JournalConfig, JournalWriter
from dispatcher.mailbox import ManualClock
from statemachines import Entities, StateMachineFactory

TIMEOUT_S = 30
NOON_MS = 1_800_000_000_000


class State(Enum):
    NEW = 1
    ONLINE = 2
    SILENT = 3
    GONE = 4


class Type(Enum):
    CONNECTED = 1
    MEASURED = 2
    TIMED_OUT = 3
    REMOVED = 4
    BROKE = 5


@dataclass
class DeviceEvent:
    type: Type
    entity: str
    value: Any = None

    @property
    def lock_key(self) -> str:
        return self.entity


@dataclass
class DeviceData:
    measured: int = 0
    values: list[int] = field(default_factory=list)


class Device:
    machine = "Device"

    def __init__(self, entity: str, state: State | None = None) -> None:
        self.entity = entity
        self.made_in = state
        self.data: Any = DeviceData()

    def measure(self, event: DeviceEvent) -> None:
        self.data.measured += 1
        self.data.values.append(event.value)

    def break_down(self, event: DeviceEvent) -> None:
        self.data.measured = -1
        raise RuntimeError("broken")


S, E = State, Type
DEVICES: StateMachineFactory[State, Device] = (
    StateMachineFactory[State, Device](S.NEW, "Device")
    .add_transition({S.NEW, S.SILENT}, S.ONLINE, E.CONNECTED)
    .add_transition(S.ONLINE, S.ONLINE, E.MEASURED, Device.measure)
    .add_transition(S.ONLINE, S.SILENT, E.TIMED_OUT)
    .add_transition({S.ONLINE, S.SILENT}, S.GONE, E.REMOVED)
    .add_transition({S.NEW, S.ONLINE}, S.SILENT, E.BROKE, Device.break_down)
)


class Fleet:
    """Devices and their dispatcher on a write-ahead journal."""

    def __init__(self, path: Path, clock: ManualClock | None = None, **options: Any) -> None:
        self.journal = JournalWriter(path, JournalConfig(write_ahead=True))
        self.clock = ManualClock(NOON_MS) if clock is None else clock
        self.dispatcher = AsyncDispatcher(name="fleet", journal=self.journal, time_service=self.clock)
        options = {"data": DeviceData, "factory": DEVICES, "ends": {S.GONE}, **options}
        factory = options.pop("factory")
        if list(factory.timeouts()):
            options = {"dispatcher": self.dispatcher, "event": DeviceEvent, **options}
        self.devices: Entities[State, Device] = Entities(factory, Device, journal=self.journal, **options)
        self.dispatcher.register(Type, self.devices, events=DeviceEvent)

    def send(self, entity: str, type: Type, *values: Any) -> None:
        """Post an event, or one with each value, and wait until they are handled."""
        for value in values or (None,):
            self.dispatcher.post(DeviceEvent(type, entity, value))
        assert self.dispatcher.await_drained(TIMEOUT_S)

    def advance(self, seconds: float) -> None:
        self.clock.advance(round(seconds * 1000))
        assert self.dispatcher.await_drained(TIMEOUT_S)

    def data(self, entity: str) -> Any:
        device = self.devices.get(entity)
        return None if device is None else device.data

    def failed(self) -> int:
        return self.dispatcher.stats().failed


@contextmanager
def running(path: Path, clock: ManualClock | None = None, **options: Any) -> Iterator[Fleet]:
    """A fleet that has restored what the journal has."""
    fleet = Fleet(path, clock, **options)
    fleet.devices.restore()
    with fleet.dispatcher:
        assert fleet.dispatcher.await_drained(TIMEOUT_S)
        yield fleet
