"""The agenda of simulated daemons: calls by time, and of the same time in the order of their insertion."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemachines.simulation.agenda import Agenda, ScheduledCall


@dataclass
class Day:
    """An agenda, the time, and what was called so far."""

    now_ms: int = 0
    called: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.agenda = Agenda(lambda: self.now_ms)

    def at(self, time_ms: int, about: Any) -> ScheduledCall:
        call = ScheduledCall(about)
        self.agenda.at(time_ms, self._note, call)
        return call

    def _note(self, call: ScheduledCall) -> None:
        self.called.append(call.about)


@pytest.fixture
def day() -> Day:
    return Day()


def test_calls_of_a_stopped_actor_are_skipped(day: Day) -> None:
    calls = [day.at(time_ms, time_ms) for time_ms in (1, 2, 2, 3)]
    for number in (0, 1, 3):
        calls[number].stopped = True

    assert day.agenda.next_deadline_ms() == 2
    day.now_ms = 3
    day.agenda.expire_due()
    assert (day.called, day.agenda.next_deadline_ms()) == ([2], None)


def test_an_action_may_stop_the_actor_of_a_later_call_of_its_time(day: Day) -> None:
    def stop(_: ScheduledCall) -> None:
        later.stopped = True

    day.agenda.at(1, stop, ScheduledCall(None))
    later = day.at(1, "stopped")
    day.now_ms = 1

    day.agenda.expire_due()

    assert day.called == []


def test_an_action_that_raises_is_not_repeated_and_the_others_follow(day: Day) -> None:
    def fail(_: ScheduledCall) -> None:
        raise ValueError("as an action may")

    day.at(1, "first")
    day.agenda.at(1, fail, ScheduledCall(None))
    day.at(1, "second")
    day.now_ms = 1
    with pytest.raises(ValueError, match="as an action may"):
        day.agenda.expire_due()

    day.agenda.expire_due()

    assert day.called == ["first", "second"]


@given(st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(0, 5), max_size=3)), max_size=12), st.integers(1, 4))
def test_any_calls_come_as_from_a_heap_of_all_of_them(planned: list[tuple[int, list[int]]], breath: int) -> None:
    """Each planned call schedules others, of times past, present and future; after each `breath`, all wait."""
    day, scheduled = Day(), 0
    heap: list[tuple[int, int, list[int]]] = []
    expected: list[int] = []

    def plan(time_ms: int, follow_ups: list[int]) -> None:
        nonlocal scheduled
        scheduled += 1
        day.agenda.at(time_ms, call, ScheduledCall((scheduled, follow_ups)))

    def call(planned: ScheduledCall) -> None:
        number, follow_ups = planned.about
        day.called.append(number)
        for time_ms in follow_ups:
            plan(time_ms, [])

    for order, (time_ms, follow_ups) in enumerate(planned, 1):
        plan(time_ms, follow_ups)
        heapq.heappush(heap, (time_ms, order, follow_ups))
    order, waits = len(planned), 0
    for day.now_ms in range(7):
        while heap and heap[0][0] <= day.now_ms:
            _, number, follow_ups = heapq.heappop(heap)
            expected.append(number)
            for time_ms in follow_ups:
                order += 1
                heapq.heappush(heap, (time_ms, order, []))

        def must_wait() -> bool:
            nonlocal waits
            waits += 1
            return waits % (breath + 1) == 0

        day.agenda.must_wait = must_wait
        while (deadline_ms := day.agenda.next_deadline_ms()) is not None and deadline_ms <= day.now_ms:
            day.agenda.expire_due()

    assert day.called == expected
