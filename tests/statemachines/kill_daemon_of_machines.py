"""Daemons with machines and a write-ahead journal, killed at random moments; run as a program by the test beside it.

    kill_daemon_of_machines.py FOLDER JOURNALS KILLS SEED

Each daemon is a fork of this process, which has no threads. Its producers log each accepted event themselves. It first
restores its machines from the journal and checks them against the events that the journal has as handled. Prints the
accounts as a JSON object.
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
from collections import Counter, defaultdict
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from dispatcher import AsyncDispatcher, JournalConfig, JournalWriter, aio
from dispatcher.journal import EVENTS, TRANSITIONS, read_rows, verify
from statemachines import StateMachineFactory, TransitionRecorder
from statemachines.time_travel import states_at

TIMEOUT_S = 60.0
LONGEST_LIFE_S = 0.06
ENTITIES = 2
"""Of each way of handling; each has a producer of its own."""


class Plain(Enum):
    STEP = 1


class Way(Enum):
    """How an `async def` handler makes its transition."""

    ON_THE_LOOP = 1
    IN_A_TASK = 2
    IN_MAIL = 3
    IN_A_THREAD = 4


@dataclass
class Numbered:
    entity: str
    number: int

    @property
    def payload(self) -> dict[str, int]:
        return {"number": self.number}


@dataclass
class PlainEvent(Numbered):
    type: Plain


@dataclass
class WayEvent(Numbered):
    type: Way

    @property
    def lock_key(self) -> str:
        return self.entity


class State(Enum):
    ZERO = 0
    ONE = 1
    TWO = 2
    THREE = 3
    FOUR = 4


FACTORY: StateMachineFactory[State, Any] = StateMachineFactory(State.ZERO, "Counter")
for state in State:
    FACTORY = FACTORY.add_transition(state, State((state.value + 1) % len(State)), (*Plain, *Way))
TYPES = [*Plain, *Way]
NAMES = {f"{type.name}_{number}": type for type in TYPES for number in range(ENTITIES)}


class Counted:
    machine = "Counter"

    def __init__(self, entity: str, state: State, recorder: TransitionRecorder, recorded: Any) -> None:
        self.entity = entity
        self.steps = recorded.make(self, state, recorder)


def restore(path: Path) -> dict[str, State]:
    """The states of all entities in the journal, which are those that its handled events lead to."""
    handled = Counter(row["entity"] for row in read_rows(path, EVENTS) if row["outcome"] == "handled")
    travel = states_at(read_rows(path, TRANSITIONS), factories={"Counter": FACTORY})
    found = {each.entity: each.state for each in travel.entities()}
    expected = {entity: State(count % len(State)).name for entity, count in handled.items()}
    assert found == expected, f"{found} != {expected}"
    assert not travel.disagreements, travel.remarks
    return {entity: State[name] for entity, name in found.items()}


def live(folder: Path, life: int, ready: int, *, is_last: bool) -> None:
    """A daemon's life. The last one drains and stops."""
    path = folder / "journal"
    journal = JournalWriter(path, JournalConfig(write_ahead=True, segment_bytes=100_000))
    states = restore(path)
    recorder = TransitionRecorder(journal)
    # Half of the machines tell the recorder, and half count by themselves.
    tables = [FACTORY.install_topology(), recorder.recorded(FACTORY)]
    machines = {
        entity: Counted(entity, states.get(entity, State.ZERO), recorder, tables[number % 2])
        for number, entity in enumerate(NAMES)
    }

    def take_at_once(event: PlainEvent) -> None:
        machines[event.entity].steps.do_transition(event.type, event)

    async def take(event: WayEvent) -> None:
        step = machines[event.entity].steps.do_transition
        if event.number % 3:
            await asyncio.sleep(0)
        match event.type:
            case Way.ON_THE_LOOP:
                step(event.type, event)
            case Way.IN_A_TASK:

                async def move() -> None:
                    step(event.type, event)

                await asyncio.create_task(move())
            case Way.IN_MAIL:
                await aio.submit(dispatcher, lambda: step(event.type, event))
            case Way.IN_A_THREAD:
                await asyncio.to_thread(step, event.type, event)
        if event.number % 2:
            await asyncio.sleep(0)

    def produce(entity: str) -> None:
        kind = PlainEvent if isinstance(NAMES[entity], Plain) else WayEvent
        log = os.open(folder / f"{entity}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for number in range(20 if is_last else sys.maxsize):
            event = kind(entity, life * 1_000_000 + number, NAMES[entity])
            if dispatcher.event_handler.handle(event):
                os.write(log, f"{life * 1_000_000 + number}\n".encode())

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    dispatcher = AsyncDispatcher(name="counters", queue_capacity=50, journal=journal, loop=loop)
    dispatcher.register(Plain, take_at_once, events=PlainEvent)
    dispatcher.register(Way, take, events=WayEvent)
    producers = [threading.Thread(target=produce, args=(entity,), daemon=True) for entity in NAMES]
    with dispatcher:
        for producer in producers:
            producer.start()
        os.write(ready, b"1")
        for producer in producers:
            producer.join(TIMEOUT_S)
            assert not producer.is_alive()
        assert dispatcher.await_drained(TIMEOUT_S)
    assert (dispatcher.stats().failed, dispatcher.stats().discarded) == (0, 0)


def run(folder: Path, life: int, life_s: float | None) -> None:
    """Fork a daemon, and kill it once it has run that long; None: let it end."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            live(folder, life, writer, is_last=life_s is None)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(writer)
    assert select.select([reader], [], [], TIMEOUT_S)[0], "the daemon has not started in time"
    assert os.read(reader, 1) == b"1", "the daemon has failed"
    if life_s is not None:
        ended, _, _ = select.select([reader], [], [], life_s)  # readable once the daemon has ended
        assert not ended, "the daemon has ended by itself"
        os.kill(child, signal.SIGKILL)
    os.close(reader)
    _, status = os.waitpid(child, 0)
    assert status == (signal.SIGKILL if life_s is not None else 0), status


def audit(folder: Path, lives: int) -> Counter[str]:
    """Compare the producers' logs, the events and the transitions of a journal."""
    path = folder / "journal"
    assert verify(path).problems == ()
    restore(path)
    rows = {row["seq"]: row for row in read_rows(path, EVENTS)}
    handled: defaultdict[str, list[int]] = defaultdict(list)
    for row in rows.values():
        assert row["outcome"] == "handled"
        handled[row["entity"]].append(json.loads(row["payload"])["number"])
    transitions = list(read_rows(path, TRANSITIONS))
    assert len(transitions) == len(rows)
    for each in transitions:
        row = rows.pop(each["seq"])
        assert (each["entity"], each["event_type"]) == (row["entity"], row["event_type"])
    accounts = Counter(events=len(transitions))
    for entity in NAMES:
        numbers = handled[entity]
        logged = {int(line) for line in (folder / f"{entity}.log").read_text().split()}
        assert numbers == sorted(set(numbers)), f"{entity}: handled twice, or out of order"
        assert logged <= set(numbers), f"{entity}: lost {logged - set(numbers)}"
        accounts["logged"] += len(logged)
        unlogged = len(set(numbers) - logged)  # accepted, and then killed before the log
        assert unlogged <= lives
        accounts["unlogged"] += unlogged
    accounts["redelivered"] = sum(row["redelivered"] for row in read_rows(path, EVENTS))
    return accounts


def main() -> None:
    folder, journals, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    chance = random.Random(seed)
    accounts: Counter[str] = Counter(kills=journals * kills)
    for number in range(journals):
        place = folder / str(number)
        place.mkdir()
        for life in range(kills):
            run(place, life, chance.uniform(0, LONGEST_LIFE_S))
        run(place, kills, None)
        accounts += audit(place, kills + 1)
        print(json.dumps(accounts), file=sys.stderr)
    print(json.dumps(accounts))


if __name__ == "__main__":
    main()
