"""What /machines and /entities say: from sources, from the ring and from a journal."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from dispatcher import AsyncDispatcher, JournalConfig, JournalWriter, MultiDispatcher, PartitionedJournal
from dispatcher.metrics import EntityNow, EntityPage, MachineNow, register_entities
from dispatcher.ops import OpsConfig, ops_app

from ...journal_rows import begin, end
from ...kit.scenarios import play
from .client import Client, seeing
from .stage import NS_PER_S, keep, looked, told


class Things:
    """A source with the entities that a test gives it, by id: state and since."""

    last_event: str | None = None

    def __init__(self, machine: str, **entities: tuple[str, float]) -> None:
        self._machine = machine
        self.states = entities
        register_entities(self)

    def machine_numbers(self) -> list[MachineNow]:
        states = [state for state, _ in self.states.values()]
        return [MachineNow(self._machine, {state: states.count(state) for state in states}, 10, 1)]

    def entities(
        self, machine: str, *, state: str | None = None, prefix: str = "", after: str = "", limit: int = 100
    ) -> EntityPage:
        items = [
            EntityNow(machine, entity, found, since, last_event=self.last_event)
            for entity, (found, since) in sorted(self.states.items())
            if machine == self._machine and entity.startswith(prefix) and entity > after and state in (None, found)
        ]
        return EntityPage(items[:limit], len(items) > limit, len(items) if not (prefix or after) else None)

    def find_entity(self, entity: str, machine: str | None = None) -> list[EntityNow]:
        found = self.states.get(entity)
        is_meant = found is not None and machine in (None, self._machine)
        return [EntityNow(self._machine, entity, *found)] if found is not None and is_meant else []

    def initial_state(self, machine: str) -> str | None:
        return "NEW" if machine == self._machine else None


Add = Callable[..., None]


@pytest.fixture
def things(kept: list[object]) -> Add:
    """Adds a source to the process."""
    return lambda *args, **entities: kept.append(Things(*args, **entities))


class EntityStage:
    """Sources of entities, `source Job a=UP:1`, and the transitions that the process keeps, a second apart."""

    def __init__(self, client: Client, things: Add) -> None:
        self._client = client
        self._things = things
        self._now_s = 0
        keep()

    def play(self, verb: str, *words: str) -> None:
        if verb == "source":
            entities = [(each.rpartition("=")[0], each.rpartition("=")[2].split(":")) for each in words[1:]]
            self._things(words[0], **{id: (state, float(since)) for id, (state, since) in entities})
        elif verb == "ring":
            entity, from_state, event, to_state = words
            self._now_s += 1
            row = (entity, "Job", from_state, event, None if to_state == "-" else to_state)
            keep(row, since_s=self._now_s, most=None)
        else:
            keep(most=int(words[0]))

    def look(self, what: str) -> Iterable[object]:
        path, at, fields = what.partition("#@")
        if not at:
            return looked(self._client, what, "")
        return told(self._client.request("GET", path).json()["history"], fields)


SCENARIOS = {
    "kinds of machines are listed and added up": "source Job a=UP:1 b=DOWN:2 | source Job c=UP:1 | source Batch "
    "d=NEW:1 -> /machines#machine,transitions,invalid,entities Batch:10:1:{'NEW':_1} Job:20:2:{'UP':_2,_'DOWN':_1} ; "
    "/machines#total,next 2:None",
    "entities are listed by id in pages": "source Job a=UP:1.5 c=DOWN:2 | source Job b=UP:3 -> "
    "/machines/Job/entities?limit=2#id,state,since,last_event a:UP:1500:None b:UP:3000:None ; "
    "/machines/Job/entities?limit=2#next,total b:3 ; /machines/Job/entities?after=b#id c ; "
    "/machines/Job/entities?after=b#next None",
    "entities are chosen by state and prefix": "source Job a1=UP:1 a2=DOWN:1 b1=UP:1 -> "
    "/machines/Job/entities?state=UP#id a1 b1 ; /machines/Job/entities?prefix=a#id a1 a2 ; "
    "/machines/Job/entities?state=GONE#id",
    "an id may have slashes": "source Node rack/1:80=UP:1 -> /entities/rack%2F1:80#id rack/1:80",
    "an id of several machines has to be told apart": "source Job x=UP:1 | source Batch x=NEW:2 -> !/entities/x 400 ; "
    "/entities/x?machine=Batch#state NEW",
    "an entity has its history from the ring": "source Job job_1=UP:2 | ring job_1 NEW START UP | ring job_2 NEW "
    "START UP | ring job_1 UP START - -> /entities/job_1#id,machine,state,since,complete job_1:Job:UP:2000:True ; "
    "/entities/job_1#@at,from_state,event_type,to_state,valid 3000:UP:START:UP:False 1000:NEW:START:UP:True ; "
    "/entities/job_1?limit=1#@wait_s,handling_s,error,data None:None:None:None ; /entities/job_1#@next None",
    "a history whose beginning was forgotten is not complete": "source Job job_1=DOWN:3 | keep 2 | ring job_1 NEW "
    "START UP | ring job_1 UP STOP DOWN | ring job_2 NEW START UP -> /entities/job_1#@to_state DOWN ; "
    "/entities/job_1#complete False",
    "an entity that is gone has the state of its last transition": "ring job_9 NEW START UP | ring job_9 UP PING UP | "
    "ring job_9 UP STOP - -> /entities/job_9#machine,state,since,is_kept Job:UP:1000:False",
}


@pytest.mark.parametrize("script", SCENARIOS.values(), ids=SCENARIOS)
def test_the_api_says(client: Client, things: Add, script: str) -> None:
    play(EntityStage(client, things), script)


def test_who_may_see_few_entities_gets_short_pages_that_lead_to_them(
    things: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page looked at every entity, so one request could walk over a million of them."""
    monkeypatch.setattr("dispatcher.ops.entities._MOST_LOOKED", 2000)
    things("Job", **{f"job_{number:05}": ("UP", 1.0) for number in range(5000)})
    client = Client(ops_app(may_see=seeing(lambda entity: entity == "job_04711")))

    pages = [client.json("/machines/Job/entities")]
    while pages[-1]["next"] is not None:
        pages.append(client.json("/machines/Job/entities", after=pages[-1]["next"]))

    assert [[each["id"] for each in page["items"]] for page in pages] == [[], [], ["job_04711"]]
    assert [page["next"] for page in pages if "job_" in str(page["next"])] == [], "of an entity it may not see"
    assert client.error("/machines/Job/entities", after="job_00001")[0] == 400


def test_a_history_comes_in_pages_and_says_where_it_begins(client: Client, things: Add) -> None:
    things("Job", job_1=("DOWN", 3))
    keep(
        ("job_1", "Job", "NEW", "START", "UP"),
        ("job_1", "Job", "UP", "STOP", "DOWN"),
        ("job_1", "Job", "DOWN", "START", "UP"),
    )

    newest = client.json("/entities/job_1", limit=2)
    oldest = client.json("/entities/job_1", limit=2, after=newest["history"]["next"])

    [first] = [each["seq"] for each in oldest["history"]["items"]]
    assert [each["seq"] for each in newest["history"]["items"]] == [first + 2, first + 1]
    assert (newest["complete"], oldest["complete"], oldest["history"]["next"]) == (False, True, None)


@pytest.mark.parametrize(("kept", "status"), [(0, 404), (5, 200)])
def test_the_ring_can_be_switched_off(kept: int, status: int) -> None:
    client = Client(ops_app(OpsConfig(transitions_kept=kept)))

    keep(("a", "Job", "NEW", "START", "UP"), most=None)

    assert client.get("/entities/a").status_code == status


def test_the_history_of_an_entity_spans_the_partitions_of_a_journal_in_pages(
    client: Client, kept: list[object], tmp_path: Path
) -> None:
    earlier = PartitionedJournal(tmp_path, JournalConfig(write_ahead=True))
    for writer, at in zip(earlier.open(3), (1, 4, 2), strict=True):
        begin(writer, at * NS_PER_S)
        for _ in range(2):
            writer.add_transition("Lamp", "lamp", "ON", "PRESSED", "ON", valid=True)
        end(writer, "lamps", "Switch", "PRESSED", "handled")
    earlier.close()
    with closing(PartitionedJournal(tmp_path, JournalConfig(write_ahead=True))) as later:
        kept.append(MultiDispatcher(partitions=1, journal=later))

        pages = [client.json("/entities/lamp", limit=4)]
        pages.append(client.json("/entities/lamp", limit=4, after=pages[0]["history"]["next"]))

    assert [[item["at"] // 1000 for item in page["history"]["items"]] for page in pages] == [[4, 4, 2, 2], [1, 1]]
    assert [(page["history"]["next"], page["complete"]) for page in pages] == [("4", False), (None, True)]


def test_a_journal_that_is_gone_or_cannot_be_read_takes_no_other_history_with_it(
    client: Client, kept: list[object], things: Add, tmp_path: Path
) -> None:
    for name in ("gone", "a file"):
        stopped = AsyncDispatcher(name=name, journal=JournalWriter(tmp_path / name))
        with stopped:
            pass
        kept.append(stopped)
        shutil.rmtree(tmp_path / name)
    things("Job", job_1=("UP", 2))
    keep(("job_1", "Job", "NEW", "START", "UP"))

    unknown = client.get("/entities/nobody")
    (tmp_path / "a file").write_text("not a journal")
    known, unreadable = client.json("/entities/job_1"), client.get("/entities/nobody")

    assert unknown.status_code == 404
    assert len(known["history"]["items"]) == 1
    assert (unreadable.status_code, "a file" in unreadable.json()["error"]) == (503, True)
    (tmp_path / "a file").unlink()


class Keeping(Things):
    """A source whose entities keep data."""

    def find_entity(self, entity: str, machine: str | None = None) -> list[EntityNow]:
        return [replace(each, data='{"battery":7}') for each in super().find_entity(entity, machine)]


def test_an_entity_and_its_history_have_the_data_that_it_keeps(
    client: Client, kept: list[object], tmp_path: Path
) -> None:
    writer = JournalWriter(tmp_path / "journal")
    kept.append(AsyncDispatcher(name="lamps", journal=writer))
    for to_state, data in (("ON", '{"version":1,"data":{"battery":9}}'), ("ON", None)):
        begin(writer, NS_PER_S)
        writer.add_transition("Lamp", "lamp", "OFF", "PRESSED", to_state, valid=True, data=data)
        end(writer, "lamps", "Switch", "PRESSED", "handled")
    writer.flush()

    gone = client.json("/entities/lamp")
    kept.append(Keeping("Lamp", lamp=("ON", 1)))
    live = client.json("/entities/lamp")

    assert (gone["data"], live["data"]) == ({"battery": 9}, {"battery": 7})
    assert [item["data"] for item in live["history"]["items"]] == [None, {"battery": 9}]
