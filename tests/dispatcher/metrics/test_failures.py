"""The ring of the last failures."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable
from enum import Enum
from itertools import count
from typing import Any

import pytest

from dispatcher import AsyncDispatcher
from dispatcher.dispatching.recent_failures import RecentFailures

from ...kit import TIMEOUT_S, Numbered, OfEntity, Unreadable, Work, until

Make = Callable[..., AsyncDispatcher]


class Unknown(Enum):
    KIND = 1


class HostileError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def raised(error: BaseException, depth: int = 0) -> BaseException:
    """The error with the traceback of a raise `depth` calls down."""

    def fall(left: int) -> None:
        if left:
            fall(left - 1)
        raise error

    try:
        fall(depth)
    except BaseException as caught:
        return caught
    raise AssertionError


def test_a_failed_event_is_recorded_with_its_type_entity_error_and_frames(make: Make) -> None:
    def handle(event: OfEntity) -> None:
        raise KeyError(event.entity)

    dispatcher = make(handler=handle)
    dispatcher.post(OfEntity("app_17"))
    assert dispatcher.await_drained(TIMEOUT_S)

    (record,) = dispatcher.view.failures()

    assert (record.number, record.event_class, record.event_type, record.entity) == (1, "Work", "DO", "app_17")
    assert (record.error_class, record.message) == ("KeyError", "'app_17'")
    assert record.at > 1_600_000_000
    assert record.frames[-1].startswith(f'File "{__file__}", line ')
    assert record.frames[-1].endswith(".handle\n    raise KeyError(event.entity)")


def test_an_event_without_a_handler_is_recorded(make: Make) -> None:
    dispatcher = make(handler=lambda event: None)
    event = Numbered()
    event.type = Unknown.KIND  # type: ignore[assignment]
    dispatcher.post(event)
    assert dispatcher.await_drained(TIMEOUT_S)

    (record,) = dispatcher.view.failures()

    assert (record.event_class, record.event_type, record.entity) == ("Unknown", "KIND", None)
    assert record.error_class == "UnregisteredEventTypeError"


def test_the_last_100_are_kept_and_the_newest_comes_first() -> None:
    failures = RecentFailures(clock=lambda: 12.5)
    before = failures.last_number()

    for number in range(1, 251):
        failures.add(OfEntity(number), ValueError(number))

    records = failures.newest_first()
    assert [record.number for record in records] == list(range(250, 150, -1))
    assert [record.message for record in records[:2]] == ["250", "249"]
    assert {record.at for record in records} == {12.5}
    assert (before, failures.last_number()) == (0, 250)
    assert [[each.number for each in failures.newest_first(after=number)] for number in (247, 250)] == [
        [250, 249, 248],
        [],
    ]


def test_failures_of_one_type_and_error_class_are_a_group() -> None:
    now = 100.0
    failures = RecentFailures(clock=lambda: now)
    failures.add(OfEntity("a"), ValueError("first"))
    now = 150.0
    failures.add(OfEntity("b"), OSError("down"), is_retried=True)
    failures.add(OfEntity("c"), ValueError("second"))

    values, down = sorted(failures.groups(), key=lambda group: group.newest.error_class, reverse=True)

    assert (values.failed, values.retried, values.first_at, values.since_at) == (2, 0, 100.0, 100.0)
    assert (values.newest.entity, values.newest.message, values.newest.at) == ("c", "second", 150.0)
    assert (down.failed, down.retried) == (0, 1)
    assert [record.message for record in failures.newest_first()] == ["second", "first"], "an attempt is no failure"


@pytest.mark.parametrize("later", [161.0, 30.0], ids=["after a minute", "after the clock was set back"])
def test_a_group_that_has_not_failed_for_a_minute_begins_anew(later: float) -> None:
    now = 100.0
    failures = RecentFailures(clock=lambda: now)
    failures.add(Numbered(), ValueError())
    now = later
    failures.add(Numbered(), ValueError())

    (group,) = failures.groups()

    assert (group.failed, group.first_at, group.since_at) == (2, 100.0, later)


def test_the_last_100_groups_are_kept() -> None:
    times = count()
    failures = RecentFailures(clock=lambda: next(times))
    for number in range(150):
        failures.add(Numbered(), type(f"Error{number}", (Exception,), {})())

    groups = failures.groups()

    assert [group.newest.error_class for group in groups] == [f"Error{number}" for number in range(149, 49, -1)]


def test_long_messages_and_deep_tracebacks_are_cut() -> None:
    failures = RecentFailures()

    failures.add(Numbered(), raised(ValueError("x" * 10_000), depth=50))
    failures.add(Numbered(), ValueError("\ud800" * 499))

    escaped, long = failures.newest_first()
    assert long.message == "x" * 497 + "..."
    assert len(escaped.message) == 500
    assert len(long.frames) == 20
    assert all(".fall\n    " in frame for frame in long.frames)


def test_hostile_events_and_errors_are_recorded() -> None:
    failures = RecentFailures()

    failures.add(Unreadable(), HostileError())

    (record,) = failures.newest_first()
    assert (record.event_class, record.event_type, record.entity) == ("NoneType", "None", None)
    assert (record.error_class, record.frames) == ("HostileError", ())
    assert "RuntimeError" in record.message


def test_nothing_of_the_event_or_the_error_is_kept_alive(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "dispatcher.async_dispatcher")  # a captured record keeps its traceback

    class Broken(Exception):
        pass

    class Entity:
        def __str__(self) -> str:
            return "an entity"

    alive: list[weakref.ref[Any]] = []

    def handle(event: OfEntity) -> None:
        error = Broken(event)
        alive.extend([weakref.ref(event), weakref.ref(event.entity), weakref.ref(error)])
        raise error

    dispatcher = make(handler=handle)
    dispatcher.post(OfEntity(Entity()))
    dispatcher.post(OfEntity(Entity()))
    assert dispatcher.await_drained(TIMEOUT_S)
    dispatcher.mailbox_executor.submit(lambda: None).result(TIMEOUT_S)  # so the thread has left the batch

    assert [record.entity for record in dispatcher.view.failures()] == ["an entity"] * 2
    assert len(alive) == 6
    # Another thread may collect garbage at the same moment, and this one then does nothing.
    until(lambda: gc.collect() >= 0 and not any(ref() for ref in alive), "the release of events and errors")


def test_failures_of_a_flood_are_counted_where_they_are_counted(make: Make) -> None:
    def handle(event: Numbered) -> None:
        if event.number % 10 == 3:
            raise ValueError(event.number)

    dispatcher = make(handler=handle)
    for number in range(500):
        dispatcher.post(Numbered(number, type=Work.MORE))
    assert dispatcher.await_drained(TIMEOUT_S)

    records = dispatcher.view.failures()
    assert dispatcher.stats().failed == records[0].number == len(records) == 50
    assert [record.message for record in records[:2]] == ["493", "483"]
