"""Mistakes that type checkers find: each line that ends with `# error`, and no other. See test_user_typing.py."""

from __future__ import annotations

import asyncio
from enum import Enum, auto

from dispatcher import AsyncDispatcher, Dispatcher, Event, EventDispatcher, MultiDispatcher, aio
from dispatcher.testing import InlineDispatcher
from statemachines import StateMachineFactory


class JobEventType(Enum):
    SUBMITTED = auto()


class OtherEventType(Enum):
    TICK = auto()


class JobEvent(Event[JobEventType]):
    pass


def on_plain(event: Event[JobEventType]) -> None: ...
def on_nothing() -> None: ...
def with_context(context: int, event: JobEvent) -> None: ...


class NoHandler:
    pass


events: list[Event[JobEventType]] = []

dispatcher = AsyncDispatcher()
dispatcher.register(OtherEventType, on_plain)  # error
dispatcher.register(OtherEventType, events.append)  # error
dispatcher.register(JobEventType, on_nothing)  # error
dispatcher.register(JobEventType, with_context)  # error
dispatcher.register(JobEventType, NoHandler())  # error
dispatcher.register("JobEventType", on_plain)  # error
dispatcher.register(JobEventType, on_plain, on_error="ignore")  # error
dispatcher.on(JobEventType.SUBMITTED)(with_context)  # error
dispatcher.on("SUBMITTED")(on_plain)  # error

dispatcher.post("garbage")  # error
dispatcher.post(JobEventType.SUBMITTED)  # error
dispatcher.event_handler.handle("garbage")  # error
dispatcher.post_nowait("garbage")  # error
dispatcher.post_later("garbage")  # error
dispatcher.ask("garbage")  # error
asyncio.run(aio.post(dispatcher, "garbage"))  # error
EventDispatcher(on_plain).handle("garbage")  # error

multi = MultiDispatcher()
multi.register(OtherEventType, on_plain)  # error
multi.post("garbage")  # error

inline = InlineDispatcher()
inline.register(OtherEventType, on_plain)  # error
inline.post("garbage")  # error


class Component:
    def __init__(self, dispatcher: Dispatcher) -> None:
        dispatcher.register(OtherEventType, on_plain)  # error
        dispatcher.on("SUBMITTED")(on_plain)  # error
        dispatcher.post("garbage")  # error
        dispatcher.post_later("garbage")  # error
        dispatcher.ask("garbage")  # error
        dispatcher.post_after(1, "garbage")  # error
        dispatcher.stop()  # error


Component(on_plain)  # error


class State(Enum):
    NEW = auto()
    DONE = auto()


class Job:
    def end(self, event: JobEvent) -> None: ...


class Node:
    def end(self, event: JobEvent) -> None: ...


JOBS = StateMachineFactory[State, Job](State.NEW)
JOBS.add_transition(State.NEW, State.DONE, JobEventType.SUBMITTED, Node.end)  # error
JOBS.add_transition(State.NEW, State.DONE, JobEventType.SUBMITTED, on_plain)  # error
JOBS.add_transition({State.NEW, "DONE"}, State.DONE, JobEventType.SUBMITTED)  # error
JOBS.add_transition(JobEventType.SUBMITTED, State.DONE, JobEventType.SUBMITTED)  # error
