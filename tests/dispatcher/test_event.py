"""Events, and what counts as a handler."""

from __future__ import annotations

import functools
from enum import Enum
from typing import Any

import pytest

from dispatcher import Event, EventHandler
from dispatcher.event import handling_callable


class Job(Enum):
    STARTED = 1
    ENDED = 2


class JobEvent(Event[Job]):
    """An event that says more than its type."""

    __slots__ = ("entity", "payload")

    def __init__(self, type: Job, job_id: str) -> None:
        super().__init__(type, 1.5)
        self.entity = job_id
        self.payload = {"exit_code": 0}


class Recorder:
    def __init__(self) -> None:
        self.events: list[Any] = []

    def handle(self, event: Any) -> None:
        self.events.append(event)


class CallableRecorder(Recorder):
    def __call__(self, event: Any) -> None:
        raise AssertionError("handle comes first")


class AsyncHandler:
    async def handle(self, event: Any) -> None: ...


class AsyncCallable:
    async def __call__(self, event: Any) -> None: ...


async def handle_async(event: Any) -> None: ...


def test_an_event_has_its_type_and_the_time_it_was_given() -> None:
    event = Event(Job.STARTED, 12.5)

    assert event.type is Job.STARTED
    assert event.timestamp == 12.5


def test_an_event_can_be_of_the_unix_epoch() -> None:
    assert Event(Job.STARTED, 0.0).timestamp == 0.0


def test_without_a_time_an_event_has_minus_one_as_in_hadoop() -> None:
    assert Event(Job.STARTED).timestamp == -1.0


def test_an_event_can_be_given_a_time_later() -> None:
    event = Event(Job.STARTED)

    event.timestamp = 12.5

    assert event.timestamp == 12.5


def test_a_plain_event_is_about_nothing() -> None:
    event = Event(Job.STARTED)

    assert event.entity is None
    assert event.payload is None


def test_a_subclass_says_what_it_is_about_in_slots() -> None:
    event = JobEvent(Job.ENDED, "job_1")

    assert (event.entity, event.payload) == ("job_1", {"exit_code": 0})
    assert not hasattr(event, "__dict__")


def test_the_repr_names_class_type_and_entity() -> None:
    assert repr(Event(Job.STARTED)) == "<Event Job.STARTED>"
    assert repr(JobEvent(Job.ENDED, "job_1")) == "<JobEvent Job.ENDED job_1>"


@pytest.mark.parametrize("recorder", [Recorder(), CallableRecorder()], ids=["handle", "handle and __call__"])
def test_an_object_handles_by_its_method(recorder: Recorder) -> None:
    handling_callable(recorder)("event")

    assert recorder.events == ["event"]
    assert isinstance(recorder, EventHandler)


def test_a_plain_callable_handles_itself() -> None:
    got: list[Any] = []

    assert handling_callable(got.append) == got.append
    assert not isinstance(got.append, EventHandler)


@pytest.mark.parametrize("handler", [None, 3, "handler", pytest.param(object(), id="object")], ids=repr)
def test_an_object_that_is_not_callable_is_no_handler(handler: Any) -> None:
    with pytest.raises(TypeError, match=r"a handler is a callable or has a method handle\(event\); .* is neither"):
        handling_callable(handler)


def test_an_attribute_handle_that_is_no_method_is_no_handler() -> None:
    class WithHandle:
        handle = 3

    with pytest.raises(TypeError, match="is neither"):
        handling_callable(WithHandle())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "handler",
    [handle_async, AsyncHandler(), AsyncCallable(), functools.partial(handle_async), AsyncHandler().handle],
    ids=["function", "method", "__call__", "partial", "bound method"],
)
def test_a_coroutine_function_is_refused_with_advice(handler: Any) -> None:
    with pytest.raises(
        TypeError, match=r"is an `async def` handler, and .* no event loop to run it\. Give the dispatcher your loop"
    ):
        handling_callable(handler)
