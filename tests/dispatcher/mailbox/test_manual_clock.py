"""Rules C6 of the reference, in time that stands still."""

from __future__ import annotations

from concurrent.futures import CancelledError

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
    assert clock.pending_timers() == 1


def test_timers_of_one_time_fire_in_the_order_of_their_registration(
    clock: ManualClock, fired: list[tuple[str, int, int]]
) -> None:
    for name in "cab":
        register(clock, fired, name, 110)

    clock.advance(10)

    assert [name for name, _, _ in fired] == ["c", "a", "b"]


def test_a_timer_of_the_past_fires_with_the_next_advance_and_does_not_set_time_back(
    clock: ManualClock, fired: list[tuple[str, int, int]]
) -> None:
    register(clock, fired, "past", 50)

    clock.advance(0)

    assert fired == [("past", 50, 100)]
    assert clock.current_processing_time() == 100


def test_timers_that_callbacks_add_fire_on_the_way(clock: ManualClock, fired: list[tuple[str, int, int]]) -> None:
    clock.register_timer(110, lambda ms: register(clock, fired, "added", ms + 5))
    register(clock, fired, "b", 120)

    clock.advance(20)

    assert fired == [("added", 115, 115), ("b", 120, 120)]


def test_a_callback_that_advances_time_is_not_undone(clock: ManualClock) -> None:
    """The outer advance once set the time back to its own target."""
    clock.register_timer(110, lambda _: clock.advance(50))

    clock.advance(20)

    assert clock.current_processing_time() == 160


def test_timers_that_a_callback_adds_for_the_time_to_which_it_advanced_fire(
    clock: ManualClock, fired: list[tuple[str, int, int]]
) -> None:
    """Timers whose time had passed stayed pending until the next advance."""

    def jump(_: int) -> None:
        clock.advance(50)
        register(clock, fired, "added", 150)

    clock.register_timer(110, jump)
    clock.advance(20)

    assert fired == [("added", 150, 160)]


def test_a_cancelled_timer_does_not_fire(clock: ManualClock, fired: list[tuple[str, int, int]]) -> None:
    future = clock.register_timer(110, lambda _: fired.append(("cancelled", 0, 0)))

    assert future.cancel()
    clock.advance(10)

    assert fired == []
    with pytest.raises(CancelledError):
        future.result(0)


def test_a_timer_that_has_fired_is_done_and_cannot_be_cancelled(clock: ManualClock) -> None:
    future = clock.register_timer(110, lambda _: "ignored")

    clock.advance(10)

    assert future.result(0) is None
    assert not future.cancel()


def test_a_callback_can_cancel_a_timer_of_the_same_time(clock: ManualClock, fired: list[tuple[str, int, int]]) -> None:
    clock.register_timer(110, lambda _: second.cancel())
    second = clock.register_timer(110, lambda _: fired.append(("second", 0, 0)))

    clock.advance(10)

    assert fired == []


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


def test_advance_to_next_timer_skips_cancelled_timers(clock: ManualClock, fired: list[tuple[str, int, int]]) -> None:
    clock.register_timer(110, lambda _: None).cancel()
    register(clock, fired, "b", 120)

    assert clock.advance_to_next_timer()

    assert fired == [("b", 120, 120)]


def test_advance_to_next_timer_fires_what_a_callback_adds_for_the_same_time(
    clock: ManualClock, fired: list[tuple[str, int, int]]
) -> None:
    clock.register_timer(110, lambda ms: register(clock, fired, "added", ms))

    clock.advance_to_next_timer()

    assert fired == [("added", 110, 110)]


def test_two_runs_of_the_same_timers_are_the_same() -> None:
    def run() -> list[tuple[str, int, int]]:
        clock, fired = ManualClock(), list[tuple[str, int, int]]()
        for number in range(50):
            register(clock, fired, str(number), number * 7 % 10)
        while clock.advance_to_next_timer():
            pass
        return fired

    assert run() == run()


def test_next_timer_is_the_earliest_that_waits(clock: ManualClock) -> None:
    assert clock.next_timer_ms() is None

    late, early = clock.register_timer(30, lambda _: None), clock.register_timer(20, lambda _: None)
    assert clock.next_timer_ms() == 20
    early.cancel()
    assert clock.next_timer_ms() == 30
    late.cancel()

    assert clock.next_timer_ms() is None


def test_next_timer_may_be_in_the_past(clock: ManualClock) -> None:
    clock.advance(100)

    clock.register_timer(20, lambda _: None)

    assert clock.next_timer_ms() == 20
