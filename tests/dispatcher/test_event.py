"""Events, and how an object handles them."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

from dispatcher import Event, EventHandler, MultiListenerHandler


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


def test_a_plain_event_has_the_time_minus_one_as_in_hadoop_or_the_given_one_and_is_about_nothing() -> None:
    event = Event(Job.STARTED)

    assert (event.type, event.timestamp, event.entity, event.payload) == (Job.STARTED, -1.0, None, None)
    assert Event(Job.STARTED, 12.5).timestamp == 12.5


def test_a_subclass_says_what_it_is_about_in_slots() -> None:
    event = JobEvent(Job.ENDED, "job_1")

    assert (event.entity, event.payload) == ("job_1", {"exit_code": 0})
    assert not hasattr(event, "__dict__")


def test_the_repr_names_class_type_and_entity() -> None:
    assert repr(Event(Job.STARTED)) == "<Event Job.STARTED>"
    assert repr(JobEvent(Job.ENDED, "job_1")) == "<JobEvent Job.ENDED job_1>"


class Recorder:
    def __init__(self) -> None:
        self.events: list[Any] = []

    def handle(self, event: Any) -> None:
        self.events.append(event)


class CallableRecorder(Recorder):
    def __call__(self, event: Any) -> None:
        raise AssertionError("handle comes first")


@pytest.mark.parametrize("recorder", [Recorder(), CallableRecorder()], ids=["handle", "handle and __call__"])
def test_an_object_handles_by_its_method(recorder: Recorder) -> None:
    MultiListenerHandler(recorder).handle("event")

    assert recorder.events == ["event"]
    assert isinstance(recorder, EventHandler)
    assert not isinstance(recorder.events.append, EventHandler)
