"""Several handlers as one."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher import MultiListenerHandler


class Recorder:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log

    def handle(self, event: Any) -> None:
        self.log.append(f"{self.name} {event}")


@pytest.fixture
def log() -> list[str]:
    return []


def test_handlers_are_called_in_the_order_they_were_added(log: list[str]) -> None:
    handler = MultiListenerHandler(Recorder("a", log), Recorder("b", log))
    handler.add_handler(lambda event: log.append(f"c {event}"))

    handler.handle(1)

    assert log == ["a 1", "b 1", "c 1"]


def test_a_handler_s_error_keeps_the_event_from_the_handlers_after_it(log: list[str]) -> None:
    handler = MultiListenerHandler(Recorder("a", log), lambda _: 1 / 0, Recorder("c", log))

    with pytest.raises(ZeroDivisionError):
        handler.handle(1)

    assert log == ["a 1"]


def test_a_handler_that_was_added_twice_is_called_twice_and_once_when_it_was_removed(log: list[str]) -> None:
    """Though each look at a method makes a new object."""
    first, second = Recorder("a", log), Recorder("b", log)
    handler = MultiListenerHandler(first.handle, second, first.handle)
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


def test_an_object_that_is_no_handler_is_refused_and_not_kept() -> None:
    handler = MultiListenerHandler()

    with pytest.raises(TypeError, match="is neither"):
        handler.add_handler(3)  # type: ignore[arg-type]

    assert handler.handlers == ()
    handler.handle(1)
