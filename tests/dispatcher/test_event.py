"""Events, and how objects handle them, also several as one."""

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

    __slots__ = ("entity",)

    def __init__(self, type: Job, job_id: str) -> None:
        super().__init__(type, 1.5)
        self.entity = job_id


def test_a_plain_event_has_the_time_minus_one_as_in_hadoop_or_the_given_one_and_is_about_nothing() -> None:
    event = Event(Job.STARTED)

    assert (event.type, event.timestamp, event.entity, event.payload) == (Job.STARTED, -1.0, None, None)
    assert Event(Job.STARTED, 12.5).timestamp == 12.5


def test_the_repr_names_class_type_and_entity() -> None:
    assert repr(Event(Job.STARTED)) == "<Event Job.STARTED>"
    assert repr(JobEvent(Job.ENDED, "job_1")) == "<JobEvent Job.ENDED job_1>"
    assert not hasattr(JobEvent(Job.ENDED, "job_1"), "__dict__")  # a subclass may have slots


class Recorder:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log

    def handle(self, event: Any) -> None:
        self.log.append(f"{self.name} {event}")


class CallableRecorder(Recorder):
    def __call__(self, event: Any) -> None:
        raise AssertionError("handle comes first")


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.mark.parametrize("kind", [Recorder, CallableRecorder])
def test_an_object_handles_by_its_method(kind: type[Recorder], log: list[str]) -> None:
    recorder = kind("a", log)

    MultiListenerHandler(recorder).handle(1)

    assert log == ["a 1"]
    assert isinstance(recorder, EventHandler)
    assert not isinstance(log.append, EventHandler)


def test_a_handler_that_was_added_twice_is_called_twice_and_once_when_it_was_removed(log: list[str]) -> None:
    """Though each look at a method makes a new object."""
    first, second = Recorder("a", log), Recorder("b", log)
    handler = MultiListenerHandler(first.handle, second)
    handler.add_handler(first.handle)
    handler.handle(1)

    removed = [handler.remove_handler(each) for each in (first.handle, Recorder("b", log))]
    handler.handle(2)

    assert removed == [True, False]
    assert handler.handlers == (second, first.handle)
    assert log == ["a 1", "b 1", "a 1", "b 2", "a 2"]


def test_an_event_goes_to_the_handlers_it_found(log: list[str]) -> None:
    second = Recorder("second", log)

    def replace(event: Any) -> None:
        handler.remove_handler(second)
        handler.add_handler(Recorder("late", log))

    handler = MultiListenerHandler(replace, second)

    handler.handle(1)
    handler.handle(2)

    assert log == ["second 1", "late 2"]


def test_a_handler_s_error_keeps_the_event_from_the_handlers_after_it(log: list[str]) -> None:
    handler = MultiListenerHandler(Recorder("a", log), lambda _: 1 / 0, Recorder("c", log))

    with pytest.raises(ZeroDivisionError):
        handler.handle(1)

    assert log == ["a 1"]


def test_an_object_that_is_no_handler_is_refused_and_not_kept() -> None:
    handler = MultiListenerHandler()

    with pytest.raises(TypeError, match="is neither"):
        handler.add_handler(3)  # type: ignore[arg-type]

    assert handler.handlers == ()
    handler.handle(1)
