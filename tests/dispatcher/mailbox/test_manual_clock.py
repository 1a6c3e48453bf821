"""Rules C6 of the reference, in time that stands still: examples of what test_timers_model.py compares with a model."""

from __future__ import annotations

import pytest

from dispatcher.mailbox import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100)


@pytest.fixture
def fired() -> list[tuple[str, int, int]]:
    """Name, the time that the callback was given, the time at which it ran."""
    return []


def register(clock: ManualClock, fired: list[tuple[str, int, int]], name: str, timestamp_ms: int) -> object:
    return clock.register_timer(timestamp_ms, lambda ms: fired.append((name, ms, clock.current_processing_time())))


def test_time_stands_still_until_it_is_advanced(clock: ManualClock) -> None:
    before_ms = clock.current_processing_time()
    clock.advance(25)

    assert before_ms == 100
    assert clock.current_processing_time() == 125
    assert clock.current_time_ns() == 125_000_000


def test_time_does_not_go_back(clock: ManualClock) -> None:
    with pytest.raises(ValueError, match="time goes forward only: cannot advance by -1 ms"):
        clock.advance(-1)

    assert clock.current_processing_time() == 100


def test_advance_fires_each_timer_at_its_own_time(clock: ManualClock, fired: list[tuple[str, int, int]]) -> None:
    for name, timestamp_ms in (("c", 130), ("a", 110), ("b", 120), ("late", 131)):
        register(clock, fired, name, timestamp_ms)

    clock.advance(30)

    assert fired == [("a", 110, 110), ("b", 120, 120), ("c", 130, 130)]
    assert clock.current_processing_time() == 130
    assert clock.pending_timers == 1


def test_a_callback_s_error_goes_to_its_future_and_to_the_caller_of_advance(
    clock: ManualClock, fired: list[tuple[str, int, int]]
) -> None:
    failing = clock.register_timer(110, lambda _: 1 / 0)
    register(clock, fired, "after", 120)

    with pytest.raises(ZeroDivisionError):
        clock.advance(30)
    stopped_at_ms = clock.current_processing_time()
    clock.advance(20)

    assert isinstance(failing.exception(0), ZeroDivisionError)
    assert stopped_at_ms == 110
    assert fired == [("after", 120, 120)]


def test_advance_to_next_timer_fires_all_timers_of_that_time(
    clock: ManualClock, fired: list[tuple[str, int, int]]
) -> None:
    for name, timestamp_ms in (("a", 110), ("b", 110), ("c", 150)):
        register(clock, fired, name, timestamp_ms)

    advanced = [clock.advance_to_next_timer(), clock.advance_to_next_timer(), clock.advance_to_next_timer()]

    assert advanced == [True, True, False]
    assert fired == [("a", 110, 110), ("b", 110, 110), ("c", 150, 150)]
    assert clock.current_processing_time() == 150
