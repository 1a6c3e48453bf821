"""A dispatcher in write-ahead mode: it logs the events it accepts, and redelivers the unhandled ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from dispatcher import (
    AsyncDispatcher,
    DispatcherConfig,
    Event,
    EventNotDeclaredError,
    JournalConfig,
    JournalError,
    JournalWriter,
    ServiceState,
)
from dispatcher.journal import EVENTS, read_rows, verify

from ...kit import TIMEOUT_S, Gate, until
from ...kit.dispatchers import stopping
from ...kit.journals import Job as Job
from ...kit.journals import after_a_crash
from ..stage import Rows, perform, scenarios
from .conftest import numbers

Start = Callable[..., AsyncDispatcher]


@dataclass
class Plain:
    type: Job
    number: int
    key: str | None = None


@dataclass(frozen=True)
class Frozen:
    type: Job
    number: int
    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class Slotted:
    type: Job
    number: int


class Model(BaseModel):
    type: Job
    number: int
    name: str | None = None


class FrozenModel(BaseModel):
    model_config = ConfigDict(frozen=True)

    type: Job
    number: int


CLASSES = (Plain, Frozen, Slotted, Model, FrozenModel)


@pytest.fixture
def start(start: Start) -> Start:
    return partial(start, events=CLASSES)


def plain(count: int) -> list[Plain]:
    return [Plain(Job.STARTED, number) for number in range(count)]


def leave(start: Start, gate: Gate, events: Iterable[Any]) -> AsyncDispatcher:
    """A run that stops in the first of these events, and leaves the others to the next start."""
    dispatcher = start(gate.handle)
    for event in events:
        assert dispatcher.post(event)
    assert gate.entered.wait(TIMEOUT_S)
    dispatcher.set_drain_events_on_stop(False)
    with stopping(dispatcher):
        until(lambda: dispatcher.queue_size() == 0, "the queue's end")
        gate.opened.set()
    return dispatcher


def handled_by_the_next(start: Start, count: int, *path: Path) -> list[Any]:
    """What the next start hands to its handlers; `count` events."""
    events: list[Any] = []
    dispatcher = start(events.append, *path)
    assert dispatcher.await_drained(TIMEOUT_S)
    dispatcher.stop()
    assert len(events) == count
    return events


# -- what is kept ----------------------------------------------------------------------------------------------------


def test_events_of_each_declared_kind_come_back_as_they_were(start: Start, gate: Gate) -> None:
    given = [
        Plain(Job.STARTED, 0),
        Plain(Job.ENDED, 1, "größe ✓"),
        Frozen(Job.STARTED, 2, {"a": (1, 2)}),
        Slotted(Job.ENDED, 3),
        Model(type=Job.STARTED, number=4, name='"quoted"\n'),
        FrozenModel(type=Job.ENDED, number=5),
    ]

    leave(start, gate, given)

    assert numbers(gate.events) == [0]
    again = handled_by_the_next(start, 5)
    assert [type(event) for event in again] == [type(event) for event in given[1:]]
    assert again[0].key == "größe ✓"
    assert again[1].sizes == {"a": (1, 2)}
    assert again[3].name == '"quoted"\n'
    assert [event.type for event in again] == [event.type for event in given[1:]]
    assert not any(hasattr(event, "redelivered") for event in again)


def test_a_class_that_was_not_declared_is_refused_with_an_error(start: Start, journal: Path) -> None:
    dispatcher = start(lambda _: None, events=Plain)

    with pytest.raises(
        EventNotDeclaredError, match=r"Event is not declared for Job.*register\(Job, handler, events=Ev"
    ):
        dispatcher.post(Event(Job.STARTED))
    with pytest.raises(EventNotDeclaredError, match="object is not declared for NoneType"):
        dispatcher.post(object())
    dispatcher.stop()

    assert dispatcher.stats().accepted == 0
    assert verify(journal)[:3] == (0, 0, ())


@pytest.mark.parametrize("wrong", [int, Event, "Plain", [Plain, Job]])
def test_only_models_and_dataclasses_can_be_declared(wrong: Any) -> None:
    dispatcher = AsyncDispatcher()

    with pytest.raises(TypeError, match=r"events= takes pydantic models and dataclasses; .* is neither"):
        dispatcher.register(Job, lambda _: None, events=wrong)


# -- what comes again ------------------------------------------------------------------------------------------------


def test_events_left_by_a_stop_are_handled_first_by_the_next_start_in_order(
    start: Start, gate: Gate, journal: Path
) -> None:
    assert leave(start, gate, plain(5)).stats().discarded == 4

    marks: list[tuple[int, bool]] = []
    held = Gate()

    def handle(event: Plain) -> None:
        held.handle(event)
        marks.append((event.number, again.is_redelivering()))

    again = start(handle)
    held.opened.set()
    assert again.post(Plain(Job.STARTED, 5))
    again.stop()

    assert marks == [(1, True), (2, True), (3, True), (4, True), (5, False)]
    rows = list(read_rows(journal, EVENTS))
    assert [(row["accepted_seq"], row["redelivered"]) for row in rows] == [
        (1, False),
        *[(seq, True) for seq in (2, 3, 4, 5)],
        (6, False),
    ]
    assert verify(journal)[2:] == ((), (), ())
    assert handled_by_the_next(start, 0) == []


def test_an_unhandled_event_is_redelivered_after_each_crash_until_it_is_handled(
    start: Start, gate: Gate, journal: Path, tmp_path: Path
) -> None:
    """Several generations of crashes: each inherits what the one before did not handle."""
    dispatcher = start(gate.handle)
    for event in plain(3):
        assert dispatcher.post(event)
    assert gate.entered.wait(TIMEOUT_S)
    path = after_a_crash(journal, tmp_path / "crash 0")

    for generation in range(1, 4):
        held = Gate()
        again = start(held.handle, path)
        assert again.post(Plain(Job.STARTED, 100 * generation))
        assert held.entered.wait(TIMEOUT_S)
        path = after_a_crash(path, tmp_path / f"crash {generation}")
        held.opened.set()
        again.stop()
        assert numbers(held.events) == [0, 1, 2, *(100 * n for n in range(1, generation + 1))]

    assert numbers(handled_by_the_next(start, 6, path)) == [0, 1, 2, 100, 200, 300]
    assert [row["redelivered"] for row in read_rows(path, EVENTS)][-6:] == [True] * 6
    assert handled_by_the_next(start, 0, path) == []
    assert verify(path)[2:] == ((), (), ())


def test_posts_of_handlers_are_in_the_log_too(start: Start, journal: Path, tmp_path: Path) -> None:
    handled: list[int] = []
    crashed = []

    def handle(event: Plain) -> None:
        handled.append(event.number)
        if event.number == 1:
            for number in (2, 3):
                assert dispatcher.post(Plain(Job.STARTED, number))
            crashed.append(after_a_crash(journal, tmp_path / "crashed"))

    dispatcher = start(handle)
    assert dispatcher.post(Plain(Job.STARTED, 1))
    dispatcher.stop()

    assert handled == [1, 2, 3]
    assert numbers(handled_by_the_next(start, 3, crashed[0])) == [1, 2, 3]
    assert handled_by_the_next(start, 0) == []


# -- what does not come again ----------------------------------------------------------------------------------------


STOPS = "| begin stop | release | restart | +0 -> seen 0"
REJECTS = {"queue_capacity": 1, "queue_full_policy": "reject"}
BY_KEY = {"coalesce_by": lambda event: event.lock_key}
SCENARIOS: Rows = {
    "the events behind one whose error ends the handler thread come again": (
        "hold 0 | post 1 2 | release | ended -> failed 1 | restart | +0 -> seen 0 1 2",
        {"on_error": "stop", "fails": {0: 1}},
    ),
    "an event that failed was handled": ("post 1 | +0 -> failed 1 | restart | +0 -> seen 1", {"fails": {1: 1}}),
    "what was superseded does not come again, and the rest does in the order of acceptance": (
        f"hold 0 | post 1:a 2:b 3:a 4 5:a 6:b {STOPS} 4 5 6",
        BY_KEY,
    ),
    "what was dropped as the oldest does not come again": (
        f"hold 0 | post 1 2 3 4 5 {STOPS} 4 5",
        {"queue_capacity": 2, "queue_full_policy": "drop_oldest"},
    ),
    "what post_nowait found no room for does not come": (
        f"hold 0 | post 1 | nowait 2 -> posted True True QueueFullError {STOPS} 1",
        {"queue_capacity": 1},
    ),
    # The log had one with a key before its post was rejected by an error.
    "what post_nowait found no room for does not come, with a key": (
        f"hold 0 | post 1:a | nowait 2:b -> posted True True QueueFullError {STOPS} 1",
        {"queue_capacity": 1, **BY_KEY},
    ),
    "what a full queue rejected does not come": (
        f"hold 0 | post 1 2 -> posted True True False ; rejected full:1 {STOPS} 1",
        REJECTS,
    ),
    "what a full queue rejected does not come, with a key": (
        f"hold 0 | post 1:a 2:b -> posted True True False ; rejected full:1 {STOPS} 1",
        {**REJECTS, **BY_KEY},
    ),
    "what was posted to a draining or stopped dispatcher does not come": (
        "hold 0 | begin stop | post 9 | release | post 8 -> posted True False False ; rejected draining:1 stopped:1 "
        "| restart | +0 -> seen 0",
        {"drain_events_on_stop": True},
    ),
} | {
    f"an accepted event is in the log at once, with durability {durability}": (
        "hold 0 -> left 1 | post 1 -> left 2 | post 2 -> left 3",
        {"writer": {"durability": durability}},
    )
    for durability in ("none", "sync")
}


@scenarios(SCENARIOS)
def test_what_comes_again(script: str, options: dict[str, Any], tmp_path: Path) -> None:
    journal = {"journal": tmp_path / "journal", "writer": {"durability": "sync"}}

    perform(script, **{"drain_events_on_stop": False, **journal, **options})


def test_an_event_that_was_logged_as_the_dispatcher_stopped_is_accepted_and_comes_again(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The post was refused, but the closed journal did not record that: the next start still handled the event."""
    dispatcher = start(lambda _: None)
    accept = dispatcher.core.queue.write_ahead.accept

    def accept_and_stop(event: Any, *marks: Any) -> int:
        accepted_seq = accept(event, *marks)
        dispatcher.stop()
        assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
        return accepted_seq

    monkeypatch.setattr(dispatcher.core.queue.write_ahead, "accept", accept_and_stop)

    assert dispatcher.post(Plain(Job.STARTED, 1))

    assert (dispatcher.stats().accepted, dispatcher.stats().discarded, dispatcher.stats().rejected) == (1, 1, {})
    assert numbers(handled_by_the_next(start, 1)) == [1]


# -- the start -------------------------------------------------------------------------------------------------------


def test_a_bounded_queue_takes_all_that_comes_again(start: Start, gate: Gate) -> None:
    leave(start, gate, plain(6))

    held = Gate()
    again = start(held.handle, config=DispatcherConfig(queue_capacity=2, queue_full_policy="reject"))
    assert held.entered.wait(TIMEOUT_S)
    assert not again.post(Plain(Job.STARTED, 9))
    held.opened.set()
    assert again.await_drained(TIMEOUT_S)
    assert again.post(Plain(Job.STARTED, 10))
    again.stop()

    assert numbers(held.events) == [1, 2, 3, 4, 5, 10]


class ChangedJob(Enum):
    """Not the enum that wrote the log."""

    STARTED = 1


@dataclass
class NeedsMore:
    type: Job
    number: int
    added: str


NeedsMore.__name__ = "Plain"


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (Model, "an unhandled event of the class Plain for Job, which is not declared"),
        (NeedsMore, "an unhandled event of the journal no longer fits its class"),
    ],
    ids=["not declared", "changed"],
)
def test_a_class_that_does_not_fit_any_more_fails_the_start_which_stops_it_and_nothing_is_lost(
    start: Start, gate: Gate, journal: Path, events: type, message: str
) -> None:
    leave(start, gate, plain(3))
    handled: list[Any] = []
    again = AsyncDispatcher(journal=JournalWriter(journal, JournalConfig(write_ahead=True)))
    again.register(Job, handled.append, events=events)
    again.init()

    with pytest.raises(JournalError, match=message):
        again.start()

    assert handled == []
    assert again.state is ServiceState.STOPPED
    assert isinstance(again.failure_cause, JournalError)
    assert numbers(handled_by_the_next(start, 2)) == [1, 2]
    assert verify(journal)[2:] == ((), (), ())
