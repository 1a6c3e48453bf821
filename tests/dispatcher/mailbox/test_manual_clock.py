"""Time that stands still: examples of what test_timers_model.py compares with a model."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dispatcher.mailbox import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100)


@pytest.fixture
def fired() -> list[tuple[str, int, int]]:
    """Name, the time that the callback was given, the time at which it ran."""
    return []


@pytest.fixture
def note(clock: ManualClock, fired: list[tuple[str, int, int]]) -> Callable[[str], Callable[[int], None]]:
    return lambda name: lambda ms: fired.append((name, ms, clock.current_processing_time()))


Note = Callable[[str], Callable[[int], None]]


def test_time_stands_still_until_it_is_advanced(clock: ManualClock) -> None:
    before_ms = clock.current_processing_time()
    clock.advance(25)

    assert (before_ms, clock.current_processing_time(), clock.current_time_ns()) == (100, 125, 125_000_000)


def test_time_does_not_go_back(clock: ManualClock) -> None:
    with pytest.raises(ValueError, match="time goes forward only: cannot advance by -1 ms"):
        clock.advance(-1)

    assert clock.current_processing_time() == 100


def test_advance_fires_each_timer_at_its_own_time(
    clock: ManualClock, note: Note, fired: list[tuple[str, int, int]]
) -> None:
    for name, timestamp_ms in (("c", 130), ("a", 110), ("b", 120), ("late", 131)):
        clock.register_timer(timestamp_ms, note(name))

    clock.advance(30)

    assert fired == [("a", 110, 110), ("b", 120, 120), ("c", 130, 130)]
    assert clock.current_processing_time() == 130
    assert clock.pending_timers == 1


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (ManualClock.schedule_at_fixed_rate, [("a", 110, 110), ("a", 115, 122), ("a", 120, 122)]),
        (ManualClock.schedule_with_fixed_delay, [("a", 110, 110)]),  # and then 127
    ],
)
def test_the_length_of_a_run_counts_with_a_fixed_delay_alone(
    clock: ManualClock,
    note: Note,
    fired: list[tuple[str, int, int]],
    schedule: Callable[..., object],
    expected: list[tuple[str, int, int]],
) -> None:
    def run(ms: int) -> None:
        note("a")(ms)
        if ms == 110:
            clock.advance(12)

    schedule(clock, run, 10, 5)
    clock.advance(15)

    assert fired == expected
    assert clock.next_timer_ms() == {3: 125, 1: 127}[len(expected)]


def test_a_callback_s_error_goes_to_the_caller_of_advance_which_goes_on_from_there(
    clock: ManualClock, note: Note, fired: list[tuple[str, int, int]]
) -> None:
    failing = clock.register_timer(110, lambda _: 1 / 0)
    clock.register_timer(120, note("after"))

    with pytest.raises(ZeroDivisionError):
        clock.advance(30)
    stopped_at_ms = clock.current_processing_time()
    clock.advance(20)

    assert isinstance(failing.exception(0), ZeroDivisionError)
    assert stopped_at_ms == 110
    assert fired == [("after", 120, 120)]


def test_advance_to_next_timer_fires_all_timers_of_that_time(
    clock: ManualClock, note: Note, fired: list[tuple[str, int, int]]
) -> None:
    for name, timestamp_ms in (("a", 110), ("b", 110), ("c", 150)):
        clock.register_timer(timestamp_ms, note(name))

    advanced = [clock.advance_to_next_timer() for _ in range(3)]

    assert advanced == [True, True, False]
    assert fired == [("a", 110, 110), ("b", 110, 110), ("c", 150, 150)]
    assert clock.current_processing_time() == 150
