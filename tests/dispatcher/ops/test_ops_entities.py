"""What /machines and /entities say: from sources, from the ring and from a journal."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra web is not installed")

from starlette.requests import Request

from dispatcher import AsyncDispatcher, JournalConfig, JournalWriter, MultiDispatcher, PartitionedJournal
from dispatcher.metrics import EntityNow, EntityPage, MachineNow, register_entities
from dispatcher.metrics.transition_ring import ring
from dispatcher.ops import OpsConfig, ops_app

from ...journal_rows import begin, end
from .client import Client

NS_PER_S = 1_000_000_000


class Things:
    """A source with the entities that a test gives it, by id: state and since."""

    def __init__(self, machine: str, **entities: tuple[str, float]) -> None:
        self._machine = machine
        self._entities = entities
        register_entities(self)

    def machine_numbers(self) -> list[MachineNow]:
        states = [state for state, _ in self._entities.values()]
        return [MachineNow(self._machine, {state: states.count(state) for state in states}, 10, 1)]

    def entities(
        self, machine: str, *, state: str | None = None, prefix: str = "", after: str = "", limit: int = 100
    ) -> EntityPage:
        items = [
            EntityNow(machine, entity, found, since)
            for entity, (found, since) in sorted(self._entities.items())
            if machine == self._machine and entity.startswith(prefix) and entity > after and state in (None, found)
        ]
        return EntityPage(items[:limit], len(items) > limit, len(items) if not (prefix or after) else None)

    def find_entity(self, entity: str, machine: str | None = None) -> list[EntityNow]:
        found = self._entities.get(entity)
        is_meant = found is not None and machine in (None, self._machine)
        return [EntityNow(self._machine, entity, *found)] if found is not None and is_meant else []

    def initial_state(self, machine: str) -> str | None:
        return "NEW" if machine == self._machine else None


@pytest.fixture
def client() -> Client:
    return Client(ops_app())


def keep(*rows: tuple[str, str, str, str, str | None]) -> int:
    """Add transitions (entity, machine, from, event, to) to the ring, a second apart; returns the first number."""
    ring.add([(*row, number * NS_PER_S) for number, row in enumerate(rows, 1)])
    return ring.history(rows[0][0]).transitions[-1].number


def test_kinds_of_machines_are_listed_and_added_up(client: Client) -> None:
    sources = [Things("Job", a=("UP", 1), b=("DOWN", 2)), Things("Job", c=("UP", 1)), Things("Batch", d=("NEW", 1))]

    found = client.json("/machines")

    assert found["items"] == [
        {"machine": "Batch", "entities": {"NEW": 1}, "transitions": 10, "invalid": 1},
        {"machine": "Job", "entities": {"UP": 2, "DOWN": 1}, "transitions": 20, "invalid": 2},
    ]
    assert (found["total"], found["next"], len(sources)) == (2, None, 3)


def test_entities_are_listed_by_id_in_pages(client: Client) -> None:
    sources = [Things("Job", a=("UP", 1.5), c=("DOWN", 2)), Things("Job", b=("UP", 3))]

    first = client.json("/machines/Job/entities", limit=2)
    second = client.json("/machines/Job/entities", limit=2, after=first["next"])

    assert first["items"] == [
        {"id": "a", "state": "UP", "since": 1500, "last_event": None},
        {"id": "b", "state": "UP", "since": 3000, "last_event": None},
    ]
    assert [each["id"] for each in second["items"]] == ["c"]
    assert (first["next"], first["total"], second["next"], len(sources)) == ("b", 3, None, 2)


def test_entities_are_chosen_by_state_and_prefix(client: Client) -> None:
    source = Things("Job", a1=("UP", 1), a2=("DOWN", 1), b1=("UP", 1))

    by_state = client.json("/machines/Job/entities", state="UP")["items"]
    by_prefix = client.json("/machines/Job/entities", prefix="a")["items"]

    assert [each["id"] for each in by_state] == ["a1", "b1"]
    assert [each["id"] for each in by_prefix] == ["a1", "a2"]
    assert client.json("/machines/Job/entities", state="GONE")["items"] == []
    assert source is not None


def test_who_may_see_few_entities_gets_short_pages_that_lead_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page looked at every entity, so one request could walk over a million of them."""
    monkeypatch.setattr("dispatcher.ops.entities._MOST_LOOKED", 2000)
    source = Things("Job", **{f"job_{number:05}": ("UP", 1.0) for number in range(5000)})

    async def may_see(_: Request) -> Callable[[str | None], bool]:
        return lambda entity: entity == "job_04711"

    client = Client(ops_app(may_see=may_see))
    pages = [client.json("/machines/Job/entities")]
    while pages[-1]["next"] is not None:
        pages.append(client.json("/machines/Job/entities", after=pages[-1]["next"]))

    assert [[each["id"] for each in page["items"]] for page in pages] == [[], [], ["job_04711"]]
    assert [page["next"] for page in pages if "job_" in str(page["next"])] == [], "of an entity it may not see"
    assert client.error("/machines/Job/entities", after="job_00001")[0] == 400
    assert source is not None


def test_an_entity_has_its_history_from_the_ring(client: Client) -> None:
    source = Things("Job", job_1=("UP", 2))
    first = keep(
        ("job_1", "Job", "NEW", "START", "UP"),
        ("job_2", "Job", "NEW", "START", "UP"),
        ("job_1", "Job", "UP", "START", None),
    )

    found = client.json("/entities/job_1")

    assert (found["id"], found["machine"], found["state"], found["since"]) == ("job_1", "Job", "UP", 2000)
    assert found["history"]["items"][0] == {
        "at": 3000,
        "seq": first + 2,
        "machine": "Job",
        "from_state": "UP",
        "event_type": "START",
        "to_state": "UP",
        "valid": False,
        "wait_s": None,
        "handling_s": None,
        "error": None,
        "data": None,
    }
    assert [each["valid"] for each in found["history"]["items"]] == [False, True]
    assert (found["complete"], found["history"]["next"]) == (True, None)
    assert source is not None


def test_a_history_comes_in_pages_and_says_where_it_begins(client: Client) -> None:
    source = Things("Job", job_1=("DOWN", 3))
    first = keep(
        ("job_1", "Job", "NEW", "START", "UP"),
        ("job_1", "Job", "UP", "STOP", "DOWN"),
        ("job_1", "Job", "DOWN", "START", "UP"),
    )

    newest = client.json("/entities/job_1", limit=2)
    oldest = client.json("/entities/job_1", limit=2, after=newest["history"]["next"])

    assert [each["seq"] for each in newest["history"]["items"]] == [first + 2, first + 1]
    assert [each["seq"] for each in oldest["history"]["items"]] == [first]
    assert (newest["complete"], oldest["complete"], oldest["history"]["next"]) == (False, True, None)
    assert source is not None


def test_a_history_whose_beginning_was_forgotten_is_not_complete(client: Client) -> None:
    source = Things("Job", job_1=("DOWN", 3))
    ring.resize(2)
    keep(("job_1", "Job", "NEW", "START", "UP"))
    keep(("job_1", "Job", "UP", "STOP", "DOWN"), ("job_2", "Job", "NEW", "START", "UP"))

    found = client.json("/entities/job_1")

    assert [each["to_state"] for each in found["history"]["items"]] == ["DOWN"]
    assert found["complete"] is False
    assert source is not None


def test_an_entity_that_is_gone_has_the_state_of_its_last_transition(client: Client) -> None:
    keep(
        ("job_9", "Job", "NEW", "START", "UP"),
        ("job_9", "Job", "UP", "PING", "UP"),
        ("job_9", "Job", "UP", "STOP", None),
    )

    found = client.json("/entities/job_9")

    assert (found["machine"], found["state"], found["since"], found["is_kept"]) == ("Job", "UP", 1000, False)


def test_an_id_of_several_machines_has_to_be_told_apart(client: Client) -> None:
    sources = [Things("Job", x=("UP", 1)), Things("Batch", x=("NEW", 2))]

    assert client.error("/entities/x") == (
        400,
        "several machines have an entity 'x'; choose machine=Batch or machine=Job",
    )
    assert client.json("/entities/x", machine="Batch")["state"] == "NEW"
    assert len(sources) == 2


def test_an_id_may_have_slashes(client: Client) -> None:
    source = Things("Node", **{"rack/1:80": ("UP", 1)})

    assert client.json("/entities/rack%2F1:80")["id"] == "rack/1:80"
    assert source is not None


def test_the_ring_can_be_switched_off(client: Client) -> None:
    Client(ops_app(OpsConfig(transitions_kept=0)))

    ring.add([("a", "Job", "NEW", "START", "UP", 1)])

    assert (ring.most, ring.size()) == (0, 0)


def test_the_history_of_an_entity_spans_the_partitions_of_a_journal_in_pages(client: Client, tmp_path: Path) -> None:
    earlier = PartitionedJournal(tmp_path, JournalConfig(write_ahead=True))
    for writer, at in zip(earlier.open(3), (1, 4, 2), strict=True):
        begin(writer, at * NS_PER_S)
        for _ in range(2):
            writer.add_transition("Lamp", "lamp", "ON", "PRESSED", "ON", valid=True)
        end(writer, "lamps", "Switch", "PRESSED", "handled")
    earlier.close()
    later = PartitionedJournal(tmp_path, JournalConfig(write_ahead=True))
    dispatcher = MultiDispatcher(partitions=1, journal=later)

    pages = [client.json("/entities/lamp", limit=4)]
    pages.append(client.json("/entities/lamp", limit=4, after=pages[0]["history"]["next"]))

    assert [[item["at"] // 1000 for item in page["history"]["items"]] for page in pages] == [[4, 4, 2, 2], [1, 1]]
    assert [(page["history"]["next"], page["complete"]) for page in pages] == [("4", False), (None, True)]
    assert dispatcher.journal is later
    later.close()


def test_a_journal_that_is_gone_or_cannot_be_read_takes_no_other_history_with_it(
    client: Client, tmp_path: Path
) -> None:
    writers = [JournalWriter(tmp_path / name) for name in ("gone", "a file")]
    stopped = [AsyncDispatcher(name=writer.path.name, journal=writer) for writer in writers]
    for each in stopped:
        with each:
            pass
        shutil.rmtree(tmp_path / each.name)
    source = Things("Job", job_1=("UP", 2))
    keep(("job_1", "Job", "NEW", "START", "UP"))

    unknown = client.get("/entities/nobody")
    (tmp_path / "a file").write_text("not a journal")
    known, unreadable = client.json("/entities/job_1"), client.get("/entities/nobody")

    assert unknown.status_code == 404
    assert len(known["history"]["items"]) == 1
    assert (unreadable.status_code, "a file" in unreadable.json()["error"]) == (503, True)
    (tmp_path / "a file").unlink()
    assert len(stopped) == 2
    assert source is not None


class Keeping(Things):
    """A source whose entities keep data."""

    def find_entity(self, entity: str, machine: str | None = None) -> list[EntityNow]:
        return [replace(each, data='{"battery":7}') for each in super().find_entity(entity, machine)]


def test_an_entity_and_its_history_have_the_data_that_it_keeps(client: Client, tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "journal")
    dispatcher = AsyncDispatcher(name="lamps", journal=writer)
    for to_state, data in (("ON", '{"version":1,"data":{"battery":9}}'), ("ON", None)):
        begin(writer, NS_PER_S)
        writer.add_transition("Lamp", "lamp", "OFF", "PRESSED", to_state, valid=True, data=data)
        end(writer, "lamps", "Switch", "PRESSED", "handled")
    writer.flush()

    gone = client.json("/entities/lamp")
    source = Keeping("Lamp", lamp=("ON", 1))
    live = client.json("/entities/lamp")

    assert (gone["data"], live["data"]) == ({"battery": 9}, {"battery": 7})
    assert [item["data"] for item in live["history"]["items"]] == [None, {"battery": 9}]
    assert (dispatcher.name, source is not None) == ("lamps", True)
