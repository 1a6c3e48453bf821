"""The data of entities comes back with their states. A copy of the journal's folder is what a kill -9 leaves."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, assert_type

import pytest
from pydantic import BaseModel

from dispatcher.journal import TRANSITIONS, entity_history, read_rows
from statemachines import Entities, EntityDataError

from ..kit.commands import run_here
from .devices import DEVICES, Device, DeviceData, DeviceEvent, E, Fleet, S, running


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def in_memory(**options: Any) -> Entities[Any, Device]:
    make = options.pop("make", Device)
    return Entities(options.pop("factory", DEVICES), make, **{"data": DeviceData, **options})


def send(entities: Entities[Any, Device], type: E, value: Any = None, entity: Any = "d1") -> Any:
    return entities.handle(DeviceEvent(type, entity, value))


def fields_in(path: Path) -> list[Any]:
    """Of each transition in the journal, the data it has."""
    rows = read_rows(path, TRANSITIONS)
    return [json.loads(row["data"])["data"] if "data" in row else None for row in rows]


# -- restoring -------------------------------------------------------------------------------------------------------


def test_only_a_transition_that_changed_the_data_writes_it(path: Path) -> None:
    factory = DEVICES.add_transition(S.ONLINE, S.ONLINE, E.CONNECTED)
    with running(path, factory=factory) as fleet:
        fleet.send("d1", E.CONNECTED)
        fleet.send("d1", E.CONNECTED)
        fleet.send("d1", E.MEASURED, 5)
        fleet.send("d1", E.CONNECTED)

    assert fields_in(path) == [{"measured": 0, "values": []}, None, {"measured": 1, "values": [5]}, None]


def test_data_of_a_journal_without_any_is_what_make_sets(path: Path) -> None:
    with running(path, data=None) as fleet:
        fleet.send("d1", E.CONNECTED)

    with running(path) as fleet:
        before = fleet.data("d1").measured
        fleet.send("d1", E.MEASURED, 3)

    assert before == 0
    assert fields_in(path) == [None, {"measured": 1, "values": [3]}]


# -- versions --------------------------------------------------------------------------------------------------------


class Version2(BaseModel):
    count: int
    values: list[int]


def to_version_2(version: int, fields: dict[str, Any]) -> dict[str, Any]:
    assert version == 1
    return {"count": fields["measured"], "values": fields["values"]}


class NewDevice(Device):
    def __init__(self, entity: str, state: Any = None) -> None:
        super().__init__(entity, state)
        self.data = Version2(count=0, values=[])


def open_version_2(path: Path, **options: Any) -> Any:
    fleet = Fleet(path)
    try:
        devices = Entities(DEVICES, NewDevice, journal=fleet.journal, data=Version2, data_version=2, **options)
        devices.restore()
    finally:
        fleet.journal.close()
    return devices.get("d1").data  # type: ignore[union-attr]


@pytest.mark.parametrize("upgrade", [to_version_2, lambda *old: Version2(**to_version_2(*old))])
def test_older_data_is_upgraded(path: Path, upgrade: Any) -> None:
    with running(path) as fleet:
        fleet.send("d1", E.CONNECTED)
        fleet.send("d1", E.MEASURED, 4)

    assert open_version_2(path, upgrade=upgrade) == Version2(count=1, values=[4])


def raising(version: int, fields: dict[str, Any]) -> dict[str, Any]:
    raise LookupError("no such field")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "its data is of version 1, and Version2 is of version 2. Pass upgrade="),
        ({"upgrade": raising}, "of version 1 does not fit Version2: LookupError: no such field"),
        ({"upgrade": lambda version, fields: fields}, "does not fit Version2: ValidationError"),
    ],
)
def test_older_data_that_cannot_be_read_names_its_entity(path: Path, options: Any, said: str) -> None:
    with running(path) as fleet:
        fleet.send("d1", E.CONNECTED)

    with pytest.raises(EntityDataError, match=f"^Device d1: .*{said}"):
        open_version_2(path, **options)


def test_data_of_a_later_version_is_refused(path: Path) -> None:
    with running(path, data_version=3) as fleet:
        fleet.send("d1", E.CONNECTED)

    said = "is of version 3, and this program knows DeviceData up to 1"
    with pytest.raises(EntityDataError, match=said), running(path):
        pass


# -- transitions that fail -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [object(), "text", 1.5, {1: 2}])
def test_data_that_the_journal_cannot_keep_fails_the_event_and_leaves_state_and_data(value: Any) -> None:
    entities = in_memory()
    send(entities, E.CONNECTED)
    send(entities, E.MEASURED, 1)

    with pytest.raises(EntityDataError, match=r"Device d1: its data .* cannot be kept in the journal"):
        send(entities, E.MEASURED, value)

    device = entities.get("d1")
    assert device is not None
    assert (device.data, entities.state("d1")) == (DeviceData(1, [1]), S.ONLINE)
    assert send(entities, E.MEASURED, 2) is S.ONLINE
    assert device.data == DeviceData(2, [1, 2])


# -- declarations ----------------------------------------------------------------------------------------------------


@dataclass
class Uncallable:
    call: Any = None
    hook: type[int] = int


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"data": dict}, "data= takes a pydantic model or a dataclass"),
        ({"data": Uncallable}, r"Uncallable\.hook cannot be kept in a journal"),
        ({"data_version": 0}, "data_version=0: must be at least 1"),
        ({"make": asyncio.sleep}, "make must be a plain function that returns the operand of an entity; .* runs later"),
    ],
)
def test_mistakes_are_told_when_the_entities_are_made(options: Any, said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        in_memory(**options)


def test_an_operand_without_its_data_is_named() -> None:
    class Bare(Device):
        def __init__(self, entity: str, state: Any = None) -> None:
            self.entity = entity

    entities = Entities(DEVICES, Bare, data=DeviceData)

    with pytest.raises(EntityDataError, match=r"Device d1: its data is None, not a DeviceData\. Set `data` where"):
        send(entities, E.CONNECTED)


# -- ids that are Enum members ---------------------------------------------------------------------------------------


class Place(Enum):
    ROOF = 1


class Region(str, Enum):  # noqa: UP042 - unlike a StrEnum's, the text of a member is not its value
    EU = "eu"


@pytest.mark.parametrize(("id", "text"), [(Place.ROOF, "Place.ROOF"), (Region.EU, "eu")])
def test_an_id_may_be_an_enum_member(id: Any, text: str) -> None:
    entities = in_memory()

    states = [send(entities, type, 1, id) for type in (E.CONNECTED, E.MEASURED)]

    assert (states, list(entities)) == ([S.ONLINE, S.ONLINE], [text])
    assert (entities.state(id), id in entities, entities.get(id) is entities.get(text)) == (S.ONLINE, True, True)


def test_handle_and_get_have_the_types_of_the_factory() -> None:
    entities = Entities(DEVICES, Device)

    assert_type(entities.handle(DeviceEvent(E.CONNECTED, "d1")), S)
    assert_type(entities.get("d1"), Device | None)


# -- where it is shown -----------------------------------------------------------------------------------------------


def test_the_history_and_the_replay_of_a_journal_show_the_data(path: Path) -> None:
    with running(path) as fleet:
        fleet.send("d1", E.CONNECTED)
        fleet.send("d1", E.MEASURED, 5)

    history = run_here("journal", "history", str(path), "d1")
    state = json.loads(run_here("journal", "state", path, "--format", "json").out)

    assert '{"measured":1,"values":[5]}' in history.out
    assert [each.data for each in entity_history(path, "d1").transitions] == [
        '{"version":1,"data":{"measured":1,"values":[5]}}',
        '{"version":1,"data":{"measured":0,"values":[]}}',
    ]
    assert [each["data"] for each in state["entities"]] == ['{"measured":1,"values":[5]}']


def test_the_entities_of_a_process_are_listed_with_their_data() -> None:
    entities = in_memory()
    send(entities, E.CONNECTED)

    [found] = entities.recorder.find_entity("d1")

    assert found.data == '{"measured":0,"values":[]}'
