"""What users write, and type checkers accept: see test_user_typing.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any, Literal, NamedTuple, assert_type

from pydantic import BaseModel

from dispatcher import Answered, AsyncDispatcher, Dispatcher, Event, EventDispatcher, HasType, MultiDispatcher, aio
from dispatcher.testing import InlineDispatcher
from statemachines import StateMachineFactory


class JobEventType(Enum):
    SUBMITTED = auto()
    FAILED = auto()


class OtherEventType(Enum):
    TICK = auto()


class JobEvent(Event[JobEventType]):
    user: str = ""


@dataclass(frozen=True)
class Tick:
    type: OtherEventType


class TickModel(BaseModel):
    type: Literal[OtherEventType.TICK] = OtherEventType.TICK


class TickTuple(NamedTuple):
    type: OtherEventType


class TickWithProperty:
    @property
    def type(self) -> OtherEventType:
        return OtherEventType.TICK


class TickOfClass:
    type = OtherEventType.TICK


def on_job(event: JobEvent) -> None: ...
def on_plain(event: Event[JobEventType]) -> None: ...
def on_protocol(event: HasType[JobEventType]) -> None: ...
def on_several(event: Event[JobEventType] | Event[OtherEventType]) -> None: ...
def on_every(event: Event[Enum]) -> None: ...
def on_anything(event: HasType[Enum]) -> None: ...
def on_object(event: object) -> None: ...
def on_unknown(event: Any) -> None: ...
def on_tick(event: Tick) -> None: ...
def with_context(context: int, event: JobEvent) -> None: ...
async def on_job_later(event: JobEvent) -> None: ...


class Handler:
    def handle(self, event: JobEvent) -> None: ...
    def on_job(self, event: JobEvent) -> None: ...


class Callee:
    def __call__(self, event: JobEvent) -> None: ...


jobs: list[JobEvent] = []
plain: list[Event[JobEventType]] = []
unknown: list[Any] = []
callback: Callable[[Any], Any] = on_job
some_class: type[Enum] = JobEventType

dispatcher = AsyncDispatcher()
dispatcher.register(JobEventType, on_job, on_error="stop", coalesce_by=lambda event: event.user)
dispatcher.register(JobEventType, on_plain)
dispatcher.register(JobEventType, on_protocol)
dispatcher.register(JobEventType, on_several)
dispatcher.register(JobEventType, on_every)
dispatcher.register(JobEventType, on_anything)
dispatcher.register(JobEventType, on_object)
dispatcher.register(JobEventType, on_unknown)
dispatcher.register(OtherEventType, on_tick)
dispatcher.register(OtherEventType, on_several)
dispatcher.register(JobEventType, partial(with_context, 3))
dispatcher.register(JobEventType, on_job_later)
dispatcher.register(JobEventType, aio.AsyncioHandler(on_job_later, key=lambda event: event.user))
dispatcher.register(JobEventType, Handler())
dispatcher.register(JobEventType, Handler().on_job)
dispatcher.register(JobEventType, Callee())
dispatcher.register(JobEventType, jobs.append)
dispatcher.register(JobEventType, plain.append)
dispatcher.register(JobEventType, unknown.append)
dispatcher.register(JobEventType, print)
dispatcher.register(JobEventType, callback)
dispatcher.register(some_class, on_job)
dispatcher.register(JobEventType, lambda _: None)
dispatcher.register(JobEventType, lambda event: event.user)
dispatcher.register(JobEventType, lambda event: on_job(event))
dispatcher.register(JobEventType, dispatcher.post)
dispatcher.unregister(JobEventType, on_job)


@dispatcher.on(JobEventType.SUBMITTED, OtherEventType.TICK, on_error="stop")
@dispatcher.on(JobEventType)
def decorated(event: JobEvent) -> int:
    return len(event.user)


length: int = decorated(event=JobEvent(JobEventType.FAILED))

dispatcher.post(JobEvent(JobEventType.SUBMITTED))
dispatcher.post(Tick(OtherEventType.TICK))
dispatcher.post(TickModel())
dispatcher.post(TickTuple(OtherEventType.TICK))
dispatcher.post(TickWithProperty())
dispatcher.post(TickOfClass())
dispatcher.event_handler.handle(TickModel())
dispatcher.post_nowait(Event(JobEventType.SUBMITTED))
dispatcher.post_later(Event(JobEventType.SUBMITTED))
asyncio.run(aio.post(dispatcher, Tick(OtherEventType.TICK)))
EventDispatcher(on_job).handle(JobEvent(JobEventType.SUBMITTED))

multi = MultiDispatcher()
multi.register(JobEventType, on_job)
multi.on(JobEventType.SUBMITTED)(on_job)
multi.post(JobEvent(JobEventType.SUBMITTED))

inline = InlineDispatcher()
inline.register(JobEventType, on_job)
inline.on(JobEventType.SUBMITTED)(on_job)
inline.post(JobEvent(JobEventType.SUBMITTED))


class Component:
    def __init__(self, dispatcher: Dispatcher) -> None:
        dispatcher.register(JobEventType, self.on_job, on_error="stop", coalesce_by=lambda event: event.user)
        dispatcher.on(JobEventType.SUBMITTED, context=True)(on_job)
        dispatcher.register(OtherEventType, on_tick, events=Tick)
        dispatcher.register(OtherEventType, on_tick, events=[Tick, TickModel], durable=False)
        dispatcher.unregister(JobEventType, self.on_job)
        dispatcher.post(Tick(OtherEventType.TICK))
        dispatcher.event_handler.handle(Tick(OtherEventType.TICK))
        dispatcher.post_nowait(Tick(OtherEventType.TICK))
        dispatcher.post_later(Tick(OtherEventType.TICK)).result()
        dispatcher.ask(Tick(OtherEventType.TICK)).result()
        dispatcher.post_at(2e9, Tick(OtherEventType.TICK)).cancel()
        self.is_over: bool = dispatcher.post_after(1, Tick(OtherEventType.TICK)).is_done()
        self.due: float | None = dispatcher.post_every(1, TickModel, first=0, jitter=0.1, key="tick").due
        self.name: str = dispatcher.name

    def on_job(self, event: JobEvent) -> None: ...


class Count(Event[JobEventType], Answered[int]):
    """An event whose handler answers with a number."""


@dataclass
class Name(Answered[str]):
    type: OtherEventType = OtherEventType.TICK


def answers(dispatcher: Dispatcher) -> None:
    assert_type(dispatcher.ask(Count(JobEventType.SUBMITTED)).result(), int)
    assert_type(AsyncDispatcher().ask(Name()).result(), str)
    assert_type(asyncio.run(aio.ask(MultiDispatcher(), Name())), str)
    assert_type(dispatcher.scope("a").ask(JobEvent(JobEventType.SUBMITTED)).result(), Any)


Component(AsyncDispatcher())
Component(MultiDispatcher())
Component(EventDispatcher(on_job))
Component(InlineDispatcher())


class State(Enum):
    NEW = auto()
    READY = auto()
    DONE = auto()


class Job:
    tasks = 0

    def count(self, event: JobEvent) -> None: ...


class SpecialJob(Job):
    pass


def choose(job: Job, event: JobEvent) -> State:
    return State.DONE if job.tasks else State.READY


MACHINES = (
    StateMachineFactory[State, SpecialJob](State.NEW)
    .add_transition(State.NEW, State.READY, JobEventType.SUBMITTED)
    .add_transition({State.NEW, State.READY}, State.DONE, [JobEventType.FAILED, OtherEventType.TICK], Job.count)
    .add_transition(frozenset({State.NEW}), {State.READY, State.DONE}, JobEventType.SUBMITTED, choose)
    .add_transition(State.NEW, State.DONE, JobEventType.FAILED, lambda job, event: print(job.tasks, event.type))
)
