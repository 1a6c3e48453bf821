"""A transition is recorded under the event whose handling makes it, or the machine raises before it changes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, DispatcherError, JournalWriter, MultiDispatcher, PartitionedJournal, aio
from dispatcher.journal import EVENTS, TRANSITIONS, read_rows, verify
from statemachines import (
    InvalidStateTransitionError,
    MultiStateTransitionListener,
    StateMachineFactory,
    TransitionRecorder,
)

from ..kit import TIMEOUT_S, Gate, Work, until
from ..kit.coroutines import running_loop


class Plain(Enum):
    RUN = 1


class Light(Enum):
    OFF = 1
    ON = 2


FACTORY: StateMachineFactory[Light, Any] = (
    StateMachineFactory[Light, Any](Light.OFF, "Lamp")
    .add_transition(Light.OFF, Light.ON, (Work.DO, Plain.RUN))
    .add_transition(Light.ON, Light.OFF, (Work.DO, Plain.RUN))
)


@dataclass
class Event:
    type: Enum
    entity: str

    @property
    def lock_key(self) -> str:
        return self.entity


class Lamp:
    machine = "Lamp"

    def __init__(self, recorder: TransitionRecorder, factory: StateMachineFactory[Light, Any], listener: Any) -> None:
        self.recorder, self.entity = recorder, ""
        self.light = factory.make(self, listener=listener)

    def take(self, event: Event) -> None:
        self.light.do_transition(event.type, event)


class Room:
    """A dispatcher with a journal; each event has a lamp of its own."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop, kind: str) -> None:
        self.path, self.loop = path, loop
        journal = JournalWriter(path)
        self.recorder = TransitionRecorder(journal)
        counts, listener = kind == "counts itself", self.recorder
        self._factory = self.recorder.recorded(FACTORY) if counts else FACTORY
        self._listener = MultiStateTransitionListener(listener) if kind == "tells a group" else listener
        self.dispatcher = AsyncDispatcher(name="room", journal=journal, loop=loop)
        self.dispatcher.register(Plain, self._take)
        self.lamps: dict[str, Lamp] = {}

    def lamp(self, entity: str) -> Lamp:
        lamp = self.lamps.get(entity)
        if lamp is None:
            lamp = self.lamps[entity] = Lamp(self.recorder, self._factory, self._listener)
            lamp.entity = entity
        return lamp

    def _take(self, event: Event) -> None:
        self.lamp(event.entity).take(event)

    def handle(self, handler: Callable[[Event], Awaitable[Any]]) -> None:
        self.dispatcher.register(Work, aio.AsyncioHandler(handler, key=lambda event: event.entity))

    @contextmanager
    def running(self) -> Iterator[AsyncDispatcher]:
        with self.dispatcher:
            yield self.dispatcher
            assert self.dispatcher.await_drained(TIMEOUT_S)

    def post(self, *entities: str) -> None:
        """An event for a coroutine, then a plain one, for each."""
        for entity in entities:
            self.dispatcher.post(Event(Work.DO, entity))
            self.dispatcher.post(Event(Plain.RUN, f"plain_{entity}"))

    def recorded(self) -> list[tuple[str, str]]:
        """The entities of each transition's event and of its machine."""
        entity_of = {row["seq"]: row.get("entity", row["event_class"]) for row in read_rows(self.path, EVENTS)}
        assert verify(self.path).problems == ()
        return [(entity_of[row["seq"]], row["entity"]) for row in read_rows(self.path, TRANSITIONS)]


@pytest.fixture(params=["counts itself", "tells its listener", "tells a group"])
def room(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Room]:
    with running_loop() as loop:
        yield Room(tmp_path / "journal", loop, request.param)


async def on_the_loop(room: Room, event: Event) -> None:
    room.lamp(event.entity).take(event)


async def in_a_task(room: Room, event: Event) -> None:
    await asyncio.create_task(on_the_loop(room, event))


async def in_mail(room: Room, event: Event) -> None:
    await aio.submit(room.dispatcher, lambda: room.lamp(event.entity).take(event))


async def in_mail_that_executes(room: Room, event: Event) -> None:
    done = asyncio.Event()

    def take() -> None:
        room.lamp(event.entity).take(event)
        room.loop.call_soon_threadsafe(done.set)

    room.dispatcher.mailbox_executor.execute(take, "take")
    await done.wait()


async def in_a_thread(room: Room, event: Event) -> None:
    await asyncio.to_thread(room.lamp(event.entity).take, event)


async def in_a_thread_with_its_context(room: Room, event: Event) -> None:
    context = copy_context()
    await room.loop.run_in_executor(None, context.run, room.lamp(event.entity).take, event)


@pytest.mark.parametrize(
    "way",
    [on_the_loop, in_a_task, in_mail, in_mail_that_executes, in_a_thread, in_a_thread_with_its_context],
    ids=lambda way: way.__name__,
)
def test_a_transition_belongs_to_the_event_whose_coroutine_makes_it(
    room: Room, way: Callable[[Room, Event], Awaitable[None]]
) -> None:
    """All transitions of coroutines were recorded under the event that the handler thread had handled last."""

    async def handler(event: Event) -> None:
        await asyncio.sleep(0)
        await way(room, event)
        await asyncio.sleep(0)

    room.handle(handler)
    names = [f"lamp_{number}" for number in range(10)]
    with room.running():
        room.post(*names)

    recorded = room.recorded()
    assert sorted(recorded) == sorted((name, name) for each in names for name in (each, f"plain_{each}"))
    assert room.recorder.machines["Lamp"].transitions == {("OFF", "ON"): 20}


def test_several_transitions_of_an_event_are_recorded_in_order(room: Room) -> None:
    async def handler(event: Event) -> None:
        for way in (on_the_loop, in_a_thread, in_mail):
            await way(room, event)

    room.handle(handler)
    with room.running():
        room.post("a")

    rows = [row for row in read_rows(room.path, TRANSITIONS) if row["entity"] == "a"]
    assert [row["to_state"] for row in rows] == ["ON", "OFF", "ON"]
    assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)
    assert len({row["seq"] for row in rows}) == 1


async def in_a_thread_without_its_context(room: Room) -> None:
    await room.loop.run_in_executor(None, room.lamp("lost").take, Event(Work.DO, "lost"))


async def by_a_plain_handler_of_another_dispatcher(room: Room) -> None:
    with AsyncDispatcher(name="other") as other:
        failed: asyncio.Future[None] = room.loop.create_future()

        def take(event: Event) -> None:
            try:
                room.lamp("lost").take(event)
            except DispatcherError as error:
                room.loop.call_soon_threadsafe(failed.set_exception, error)

        other.register(Plain, take)
        other.post(Event(Plain.RUN, "lost"))
        await failed


@pytest.mark.parametrize(
    "way",
    [in_a_thread_without_its_context, by_a_plain_handler_of_another_dispatcher],
    ids=lambda way: way.__name__,
)
def test_a_machine_that_cannot_know_its_event_raises_and_stays(
    room: Room, way: Callable[[Room], Awaitable[None]]
) -> None:
    raised: list[BaseException] = []

    async def handler(event: Event) -> None:
        try:
            await way(room)
        except DispatcherError as error:
            raised.append(error)

    room.handle(handler)
    with room.running():
        room.post("a")

    assert ["handles none" in str(error) for error in raised] == [True]
    assert room.lamp("lost").light.current_state is Light.OFF
    assert room.recorded() == [("plain_a", "plain_a")]
    assert room.recorder.machines["Lamp"].transitions == {("OFF", "ON"): 1}


def test_a_thread_outside_of_any_event_raises(room: Room) -> None:
    with room.running(), pytest.raises(DispatcherError, match=r"room: .* MainThread handles none .* post an event"):
        room.lamp("lost").take(Event(Plain.RUN, "lost"))

    assert room.lamp("lost").light.current_state is Light.OFF


def test_a_task_that_goes_on_after_its_event_raises(room: Room) -> None:
    ended = threading.Event()
    tasks: list[asyncio.Task[None]] = []

    async def later(event: Event) -> None:
        while not ended.is_set():
            await asyncio.sleep(0)
        room.lamp(event.entity).take(event)

    async def handler(event: Event) -> None:
        tasks.append(asyncio.create_task(later(event)))

    room.handle(handler)
    with room.running():
        room.post("a")
        assert room.dispatcher.await_drained(TIMEOUT_S)
        ended.set()
        until(lambda: tasks[0].done())

    assert isinstance(error := tasks[0].exception(), DispatcherError)
    assert "the event of this task or thread has ended" in str(error)
    assert room.lamp("a").light.current_state is Light.OFF


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_thread_that_is_amid_a_transition_as_its_event_ends_is_recorded_under_it(
    tmp_path: Path, gate: Gate, is_refused: bool
) -> None:
    def hook(lamp: Lamp, event: Event) -> Light:
        gate.handle(event)
        return Light.OFF if is_refused else Light.ON

    factory = StateMachineFactory[Light, Any](Light.OFF, "Lamp").add_transition(Light.OFF, {Light.ON}, Work.DO, hook)
    with running_loop() as loop:
        room = Room(tmp_path / "journal", loop, "tells its listener")
        lamp = Lamp(room.recorder, factory, room.recorder)
        lamp.entity = "a"
        working: list[asyncio.Task[None]] = []

        async def handler(event: Event) -> None:
            working.append(asyncio.create_task(asyncio.to_thread(lamp.take, event)))
            while not gate.entered.is_set():
                await asyncio.sleep(0)

        room.handle(handler)
        with room.running():
            room.post("a")
            assert room.dispatcher.await_drained(TIMEOUT_S)
            gate.opened.set()
            until(lambda: working[0].done())
            assert room.dispatcher.mailbox_executor.submit(lambda: True).result(TIMEOUT_S)

    assert isinstance(working[0].exception(), InvalidStateTransitionError) is is_refused
    assert sorted(room.recorded()) == [("a", "a"), ("plain_a", "plain_a")]


def test_mail_from_outside_is_no_event_and_has_a_row_of_its_own(room: Room) -> None:
    """Its transitions were recorded under the event before it."""
    lamp = room.lamp("a")
    with room.running() as dispatcher:
        room.post()
        dispatcher.post(Event(Plain.RUN, "b"))
        assert dispatcher.await_drained(TIMEOUT_S)

        def twice() -> None:
            for _ in range(2):
                lamp.take(Event(Plain.RUN, "a"))

        dispatcher.mailbox_executor.submit(twice, "switch %s", "a").result(TIMEOUT_S)
        dispatcher.post(Event(Plain.RUN, "b"))

    assert room.recorded() == [("b", "b"), ("(mail)", "a"), ("(mail)", "a"), ("b", "b")]
    assert [row.get("payload") for row in read_rows(room.path, EVENTS)] == [None, '{"mail":"switch a"}', None]


def test_mail_to_which_a_handler_yields_is_no_part_of_its_event(room: Room) -> None:
    raised: list[BaseException | None] = []

    class Yielding(Enum):
        NOW = 1

    def yield_to_mail(event: Event) -> None:
        mail = room.dispatcher.mailbox_executor.submit(lambda: room.lamp("lost").take(event))
        while not mail.done():
            room.dispatcher.mailbox_executor.yield_()
        raised.append(mail.exception())
        room.lamp("own").take(Event(Plain.RUN, "own"))

    room.dispatcher.register(Yielding, yield_to_mail)
    with room.running() as dispatcher:
        dispatcher.post(Event(Yielding.NOW, "own"))

    assert isinstance(raised[0], DispatcherError)
    assert "this is mail, which runs while a handler yields" in str(raised[0])
    assert room.recorded() == [("own", "own")]


@pytest.mark.parametrize("is_counting", [True, False], ids=["recorded factory", "listener"])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_transition_is_recorded_in_the_journal_of_the_partition_whose_event_makes_it(
    tmp_path: Path, is_counting: bool, is_async: bool
) -> None:
    journal = PartitionedJournal(tmp_path / "journal")
    recorder = TransitionRecorder(journal)
    factory = recorder.recorded(FACTORY) if is_counting else FACTORY
    lamps = {str(number): Lamp(recorder, factory, recorder) for number in range(12)}

    def switch(event: Event) -> None:
        lamps[event.entity].entity = event.entity
        lamps[event.entity].take(event)

    async def switch_later(event: Event) -> None:
        switch(event)

    with running_loop() as loop:
        dispatcher = MultiDispatcher(partitions=3, journal=journal, loop=loop)
        dispatcher.register(Work, switch_later if is_async else switch)
        with dispatcher:
            assert all(dispatcher.post(Event(Work.DO, entity)) for _ in range(2) for entity in lamps)

    for folder in (tmp_path / "journal" / f"partition-{number}" for number in range(3)):
        entities = {row["seq"]: row["entity"] for row in read_rows(folder, EVENTS)}
        found = [(entities[row["seq"]], row["entity"]) for row in read_rows(folder, TRANSITIONS)]
        assert sorted(found) == sorted((entity, entity) for entity in entities.values())
        assert found


def test_a_transition_outside_of_all_partitions_is_prevented(tmp_path: Path) -> None:
    journal = PartitionedJournal(tmp_path / "journal")
    recorder = TransitionRecorder(journal)
    lamp = Lamp(recorder, recorder.recorded(FACTORY), recorder)
    with pytest.raises(DispatcherError, match="no dispatcher has this journal"):
        lamp.take(Event(Work.DO, ""))

    with MultiDispatcher(journal=journal), pytest.raises(DispatcherError, match="handles none of its events"):
        lamp.take(Event(Work.DO, ""))

    assert lamp.light.current_state is Light.OFF
