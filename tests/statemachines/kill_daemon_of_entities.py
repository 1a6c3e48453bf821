"""Daemons whose entities are restored, killed at random moments; run as a program by the test beside it.

    kill_daemon_of_entities.py FOLDER JOURNALS KILLS SEED MOST_PARTITIONS

With MOST_PARTITIONS 0, each daemon has an AsyncDispatcher; otherwise a MultiDispatcher of up to so many partitions, of
another number in each life. Each daemon is a fork of this process, which has no threads. Orders and crates have a plain
handler, parcels and pallets an `async def`, which makes its transitions in any way that one may. The table of all is a
straight line, so a transition that is lost or made twice refuses the next event. The data of orders and parcels has the
steps that they have made, and comes back with the state to which these have led; their machines tell a recorder of each
step. Those of crates and pallets, which have no data, count by themselves. Producers log each step of an entity that
was accepted, and a life goes on with the entities of the one before. In the end, a journal that keeps its rows has each
event once, with its transition. Prints the accounts as a JSON object.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import select
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from dispatcher import AsyncDispatcher, JournalConfig, JournalWriter, MultiDispatcher, PartitionedJournal, aio
from dispatcher.journal import EVENTS, TRANSITIONS, read_rows, verify
from statemachines import Entities, StateMachineFactory, TransitionRecorder

TIMEOUT_S = 60.0
LONGEST_LIFE_S = 0.08
LIVE = 5
"""Entities of each kind that a producer moves in turn."""


class State(Enum):
    NEW = 0
    ONE = 1
    TWO = 2
    THREE = 3
    ENDED = 4


class Order(Enum):
    STEP = 1


class Parcel(Enum):
    STEP = 1


class Crate(Enum):
    STEP = 1


class Pallet(Enum):
    STEP = 1


@dataclass
class StepEvent:
    entity: str

    @property
    def lock_key(self) -> str:
        return self.entity


@dataclass
class OrderEvent(StepEvent):
    type: Order


@dataclass
class ParcelEvent(StepEvent):
    type: Parcel


@dataclass
class CrateEvent(StepEvent):
    type: Crate


@dataclass
class PalletEvent(StepEvent):
    type: Pallet


KINDS: dict[str, Any] = {
    "Order": (Order, OrderEvent),
    "Parcel": (Parcel, ParcelEvent),
    "Crate": (Crate, CrateEvent),
    "Pallet": (Pallet, PalletEvent),
}
WITH_DATA = ("Order", "Parcel")
hooks = 0
"""Calls of hooks; the handler threads add."""


@dataclass
class Steps:
    made: int = 0


class Thing:
    def __init__(self, machine: str, entity: str) -> None:
        self.machine = machine
        self.entity = entity
        self.data = Steps()


def count(operand: Thing, event: Any) -> None:
    global hooks
    hooks += 1
    operand.data.made += 1


def entities_of(
    machine: str, recorder: TransitionRecorder, journal: JournalWriter | PartitionedJournal
) -> Entities[State, Thing]:
    factory: StateMachineFactory[State, Thing] = StateMachineFactory(State.NEW, machine)
    for state in list(State)[:-1]:
        factory = factory.add_transition(state, State(state.value + 1), KINDS[machine][0].STEP, count)
    return Entities(
        factory,
        lambda entity, _: Thing(machine, entity),
        recorder=recorder,
        journal=journal,
        ends={State.ENDED},
        begins={KINDS[machine][0].STEP},
        data=Steps if machine in WITH_DATA else None,
        snapshot_transitions=10 if isinstance(journal, PartitionedJournal) else 40,
    )


def logged_steps(folder: Path) -> Counter[str]:
    """Of each entity, the steps that were accepted."""
    lines = (folder / "accepted.log").read_text().splitlines() if (folder / "accepted.log").exists() else []
    return Counter(lines)


def compare_with_rows(path: Path, restored: dict[str, Entities[State, Thing]]) -> None:
    """Of a journal that keeps all its rows: the restored states are those to which the rows lead."""
    states: dict[str, str] = {}
    for row in read_rows(path, TRANSITIONS):
        assert row["valid"]
        states[row["entity"]] = row["to_state"]
    live = {entity: state for entity, state in states.items() if state != "ENDED"}
    found = {entity: each.state(entity).name for each in restored.values() for entity in each}
    assert found == live, f"{found} != {live}"


def compare_with_data(restored: dict[str, Entities[State, Thing]]) -> None:
    """Each entity has the data that its state belongs to."""
    for each in map(restored.__getitem__, WITH_DATA):
        for entity in each:
            made, state = each.get(entity).data.made, each.state(entity)
            assert made == state.value, f"{entity} has made {made} steps in its data, and is in {state}"


def compare_with_log(folder: Path, restored: dict[str, Entities[State, Thing]]) -> dict[str, int]:
    """Once all is handled again: each entity has made the steps that were accepted. Returns those of each live entity.

    A kill may have cut one post of each producer short, whose step is made but not logged.
    """
    logged, unlogged = logged_steps(folder), 0
    live = {entity: each.state(entity).value for each in restored.values() for entity in each}
    for entity, steps in logged.items():
        found = live.get(entity, len(State) - 1)
        assert steps <= found <= steps + 1, f"{entity}: {steps} steps were accepted, and {found} made"
    assert all(steps == 1 for entity, steps in live.items() if entity not in logged)
    with (folder / "accepted.log").open("a") as file:  # from here on, what was cut short counts as accepted
        for entity in {**logged, **live}:
            more = live.get(entity, len(State) - 1) - logged[entity]
            file.write(f"{entity}\n" * more)
            unlogged += more
    assert unlogged <= len(KINDS), unlogged
    return live


def dispatcher_on(
    path: Path, config: JournalConfig, partitions: int, loop: asyncio.AbstractEventLoop
) -> tuple[AsyncDispatcher | MultiDispatcher, JournalWriter | PartitionedJournal, Sequence[AsyncDispatcher]]:
    """A dispatcher, its journal and its parts that have counts."""
    options: dict[str, Any] = {"name": "shop", "queue_capacity": 50, "loop": loop}
    if partitions:
        journals = PartitionedJournal(path, config)
        multi = MultiDispatcher(partitions=partitions, journal=journals, **options)
        return multi, journals, multi.partitions
    journal = JournalWriter(path, config)
    dispatcher = AsyncDispatcher(journal=journal, **options)
    return dispatcher, journal, [dispatcher]


def live(folder: Path, life: int, ready: int, partitions: int, *, keeps_rows: bool, is_last: bool) -> None:
    """A daemon's life. The last one drains and stops."""
    path = folder / "journal"
    config = {"segment_bytes": 100_000} if keeps_rows else {"segment_bytes": 8_000, "retention_bytes": 1}
    loop = asyncio.new_event_loop()
    dispatcher, journal, parts = dispatcher_on(path, JournalConfig(write_ahead=True, **config), partitions, loop)
    recorder = TransitionRecorder(journal)
    entities = {machine: entities_of(machine, recorder, journal) for machine in KINDS}
    for each in entities.values():
        each.restore()
    assert hooks == 0, "a hook was called"
    compare_with_data(entities)
    if keeps_rows:
        compare_with_rows(path, entities)
    threading.Thread(target=loop.run_forever, daemon=True).start()

    def move(event: ParcelEvent | PalletEvent) -> None:
        entities[type(event.type).__name__].handle(event)

    async def move_in_task(event: ParcelEvent | PalletEvent) -> None:
        move(event)

    async def move_somehow(event: ParcelEvent | PalletEvent) -> None:
        ways = ["on the loop", "in a task", "in a thread", "in mail" if not partitions else "in a task"]
        if random.random() < 0.7:
            await asyncio.sleep(0)
        match random.choice(ways):
            case "on the loop":
                move(event)
            case "in a task":
                await asyncio.create_task(move_in_task(event))
            case "in a thread":
                await asyncio.to_thread(move, event)
            case "in mail":
                assert isinstance(dispatcher, AsyncDispatcher)
                await aio.submit(dispatcher, lambda: move(event))
        if random.random() < 0.5:
            await asyncio.sleep(0)

    dispatcher.register(Order, entities["Order"], events=OrderEvent)
    dispatcher.register(Crate, entities["Crate"], events=CrateEvent)
    dispatcher.register(Parcel, move_somehow, events=ParcelEvent)
    dispatcher.register(Pallet, move_somehow, events=PalletEvent)

    def produce(machine: str, begun: Iterable[tuple[str, int]]) -> None:
        kind, event_class = KINDS[machine]
        log = os.open(folder / "accepted.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        left, made, posts = dict(begun), 0, 0
        while not is_last or posts < 20:
            while len(left) < LIVE:
                made += 1
                left[f"{machine}_{life}_{made}"] = 0
            for entity in list(left):
                posts += 1
                if dispatcher.post(event_class(entity, kind.STEP)):
                    os.write(log, f"{entity}\n".encode())
                    left[entity] += 1
                    if left[entity] == len(State) - 1:
                        del left[entity]

    with dispatcher:
        assert dispatcher.await_drained(TIMEOUT_S)
        assert sum(part.stats().failed for part in parts) == 0, "a redelivered event was refused"
        begun = compare_with_log(folder, entities)
        producers = [
            threading.Thread(
                target=produce,
                args=(machine, [each for each in begun.items() if each[0].startswith(machine)]),
                daemon=True,
            )
            for machine in KINDS
        ]
        os.write(ready, b"1")
        for producer in producers:
            producer.start()
        for producer in producers:
            producer.join(TIMEOUT_S)
            assert not producer.is_alive()
        assert dispatcher.await_drained(TIMEOUT_S)
    assert [(part.stats().failed, part.stats().discarded) for part in parts] == [(0, 0)] * len(parts)
    compare_with_log(folder, entities)


def run(folder: Path, life: int, life_s: float | None, partitions: int, *, keeps_rows: bool) -> None:
    """Fork a daemon, and kill it once it has run that long; None: let it end."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            live(folder, life, writer, partitions, keeps_rows=keeps_rows, is_last=life_s is None)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(writer)
    if life_s is None or life % 3:  # every third life may be killed while it restores
        assert select.select([reader], [], [], TIMEOUT_S)[0], "the daemon has not started in time"
        assert os.read(reader, 1) == b"1", "the daemon has failed"
    if life_s is not None:
        ended, _, _ = select.select([reader], [], [], life_s)  # readable once the daemon has ended
        assert not ended or os.read(reader, 1) == b"1", "the daemon has ended by itself"
        os.kill(child, signal.SIGKILL)
    os.close(reader)
    _, status = os.waitpid(child, 0)
    assert status == (signal.SIGKILL if life_s is not None else 0), status


def audit(path: Path) -> int:
    """Each handled event has its transition, and no other; returns how many were redelivered."""
    events = list(read_rows(path, EVENTS))
    rows = {(row.get("partition"), row["seq"]): row for row in events}
    for each in read_rows(path, TRANSITIONS):
        row = rows.pop((each.get("partition"), each["seq"]))
        assert row["outcome"] == "handled"
        assert (each["entity"], each["event_type"], each["valid"]) == (row["entity"], row["event_type"], True)
    assert not rows, "events without their transitions"
    return sum(row["redelivered"] for row in events)


def main() -> None:
    folder, seed = Path(sys.argv[1]), sys.argv[4]
    journals, kills, most = map(int, (sys.argv[2], sys.argv[3], sys.argv[5]))
    chance = random.Random(seed)
    accounts: Counter[str] = Counter(kills=journals * kills)
    for number in range(journals):
        place, keeps_rows = folder / str(number), number % 2 == 0
        place.mkdir()
        for life in range(kills):
            partitions = chance.randint(1, most) if most else 0
            run(place, life, chance.uniform(0, LONGEST_LIFE_S), partitions, keeps_rows=keeps_rows)
        run(place, kills, None, most, keeps_rows=keeps_rows)
        assert verify(place / "journal").problems == ()
        if keeps_rows:
            accounts["redelivered"] += audit(place / "journal")
        accounts["steps"] += sum(logged_steps(place).values())
        print(json.dumps(accounts), file=sys.stderr)
    print(json.dumps(accounts))


if __name__ == "__main__":
    main()
