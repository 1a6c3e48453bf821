"""Posting at a time: post_after, post_at and post_every."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher import AsyncDispatcher, MultiDispatcher
from dispatcher.testing import ManualClock

from ...kit import TIMEOUT_S, Gate, Numbered, Work
from ...kit.coroutines import Keyed
from ...kit.interrupting import at_each_place
from ...kit.scenarios import play
from ..stage import NOON_MS, Rows, Stage, item, perform, scenarios

Make = Callable[..., AsyncDispatcher]
THREE_AT_ONCE = "hold 0 | post 1 | after 1000 2 | after 1000 3 | after 1000 4"

SCENARIOS: Rows = {
    "an event is posted after its delay": (
        "after 500 1 -> due 500 ; scheduled 1 | +1000 -> seen_at 500:1 ; due - ; scheduled 0 ; scheduled_fired 1 "
        "| cancel 1 -> cancelled False",
        {},
    ),
    "events of one time are posted in the order of the calls": (
        "after 100 2 | after 100 1 | after 100 3 | +100 -> seen 2 1 3",
        {},
    ),
    "a time is skipped and counted while the event of the last one waits": (
        "hold 0 | every 1000 7 | +5000 -> queue_size 1 ; scheduled_skipped 4 | release | +1000 -> seen 0 7 7",
        {},
    ),
    "unless all times are wanted": (
        "hold 0 | every 1000 1 | every 1000 2 misfire=all | +3000 | release -> seen 0 1 2 2 2",
        {},
    ),
    "events that are due wait for room, and time goes on": (
        f"{THREE_AT_ONCE} | +1000 -> scheduled 3 | release -> seen 0 1 2 3 4 ; scheduled 0 ; accepted 5",
        {"queue_capacity": 1},
    ),
    "a full queue that rejects posts rejects what is due": (
        f"{THREE_AT_ONCE} | +1000 -> scheduled 0 | release -> seen 0 1 ; accepted 2",
        {"queue_capacity": 1, "queue_full_policy": "reject"},
    ),
    "a full queue that drops the oldest takes what is due": (
        f"{THREE_AT_ONCE} | +1000 -> scheduled 0 | release -> seen 0 4 ; accepted 5",
        {"queue_capacity": 1, "queue_full_policy": "drop_oldest"},
    ),
}
DURABLE: Rows = {
    "after a crash events come at their time, or at once": (
        "after 1000 1 | at 3000 3 | after 2000 2 | cancel 2 | crash 2000 | +0 -> seen_at 2000:1 "
        "| +2000 -> seen_at 2000:1 3000:3 | stop -> left 0",
        {},
    ),
    "a key keeps its rhythm over restarts, and of the times that have passed one comes": (
        "every 1000 1 key=a first=500 | +1200 | restart 300 | every 1000 1 key=a first=500 | +1200 "
        "| restart 3000 | every 1000 1 key=a first=500 | +1200 -> seen_at 500:1 1500:1 2500:1 5700:1 6500:1",
        {},
    ),
}


@scenarios(SCENARIOS)
def test_scenario(script: str, options: dict[str, Any]) -> None:
    perform(script, **options)


@scenarios(DURABLE)
def test_scenario_over_starts(script: str, options: dict[str, Any], tmp_path: Path) -> None:
    perform(script, journal=tmp_path / "journal", **options)


def test_what_falls_due_while_a_stop_drains_is_handled_and_the_rest_is_left(caplog: pytest.LogCaptureFixture) -> None:
    perform(
        "hold 0 | after 1000 1 | after 2000 2 | begin stop | +1000 "
        "| after 1000 3 -> due - 2000 EventRefusedError:draining "
        "| release -> seen 0 1 ; due - - EventRefusedError:draining | cancel 2 -> cancelled False | +5000 -> seen 0 1"
    )

    assert "stop left 1 scheduled event; it is lost" in caplog.text


def test_a_stop_leaves_what_is_scheduled_to_the_next_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    perform("after 1000 1 | restart -> scheduled 1 | +1000 -> seen_at 1000:1", journal=tmp_path / "journal")

    assert "handled first" not in caplog.text


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON_MS)


@pytest.mark.parametrize("look", ["scheduled", "cancel", "drain"])
def test_an_event_that_a_signal_handler_schedules_amid_any_call_is_posted(clock: ManualClock, look: str) -> None:
    """It was put into the heap, and no thread armed the timer: the interrupted call was one that only looked."""
    dispatcher = AsyncDispatcher(time_service=clock)
    dispatcher.register(Work, lambda _: None)
    scheduled: list[Any] = []
    with dispatcher:
        for _ in range(3):
            dispatcher.post_after(3600, Numbered(0))
        calls: dict[str, Callable[[], Any]] = {
            "scheduled": lambda: dispatcher.view.scheduled(10),
            "cancel": lambda: dispatcher.post_after(3600, Numbered(0)).cancel(),
            "drain": lambda: dispatcher.core.retries.drain_for(10),
        }

        def is_posted() -> None:
            clock.advance(1000)
            assert dispatcher.await_drained(TIMEOUT_S)
            assert all(each.is_done() for each in scheduled)

        handler = lambda: scheduled.append(dispatcher.post_after(0.5, Numbered(1)))  # noqa: E731
        places = at_each_place(calls[look], handler, before=is_posted)
        is_posted()
        dispatcher.set_drain_events_on_stop(False)

    assert places == len(scheduled) > 3


def test_real_time_follows_the_monotonic_clock_and_post_at_the_wall_clock(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.queue.schedule._WALL_LOOK_NS", 1_000_000)
    gate = Gate()
    gate.opened.set()
    dispatcher = make(handler=gate)
    dispatcher.post_after(3600, Numbered(1))
    dispatcher.post_at(time.time() + 3600, Numbered(2))
    real = time.time_ns

    monkeypatch.setattr(time, "time_ns", lambda: real() + 3_601_000_000_000)

    assert gate.entered.wait(TIMEOUT_S)
    assert dispatcher.await_drained(TIMEOUT_S)
    assert [event.number for event in gate.events] == [2]


def test_a_factory_that_raises_ends_nothing() -> None:
    made = iter([1, 0, 1])
    with closing(Stage()) as stage:
        stage.dispatcher.post_every(1, lambda: item(str(1 // next(made))))

        play(stage, "+3000 -> seen_at 1000:1 3000:1")


def test_jitter_delays_a_firing_by_a_part_of_the_period_and_moves_no_later_one() -> None:
    with closing(Stage()) as stage:
        stage.dispatcher.post_every(1, item("0"), jitter=0.5)
        stage.advance(10_200, 20)

        late = [int(at.split(":")[0]) - 1000 * place for place, at in enumerate(stage.look("seen_at"), 1)]

    assert len(late) in (9, 10)
    assert all(0 <= each <= 520 for each in late)
    assert len(set(late)) > 1


def test_a_partition_posts_the_events_of_its_keys(clock: ManualClock) -> None:
    seen = []
    with MultiDispatcher(partitions=3, time_service=clock) as dispatcher:
        dispatcher.register(Work, lambda event: seen.append((event.lock_key, threading.current_thread().name)))
        for key in range(3):
            dispatcher.post_after(1, Keyed(0, key))
            dispatcher.post_at(NOON_MS / 1000 + 1, Keyed(0, key))
        keys = iter(range(3))
        dispatcher.post_every(1, lambda: Keyed(0, next(keys)))
        for _ in range(3):
            clock.advance(1000)
            assert dispatcher.await_drained(TIMEOUT_S)

    assert sorted(seen) == [(key, f"MultiDispatcher-{key}") for key in range(3) for _ in range(3)]


def test_a_key_holds_one_rhythm_in_all_partitions(clock: ManualClock) -> None:
    seen: list[int] = []
    with MultiDispatcher(partitions=3, time_service=clock) as dispatcher:
        dispatcher.register(Work, lambda event: seen.append(event.lock_key))
        first = dispatcher.post_every(1, Keyed(0, 1), key="nightly")
        second = dispatcher.post_every(1, Keyed(0, 2), key="nightly")
        clock.advance(1000)
        assert dispatcher.await_drained(TIMEOUT_S)

    assert seen == [2]
    assert (first.cancel(), second.is_done()) == (True, True)


async def an_event() -> Numbered:
    return Numbered()


WRONG = cast(Any, "3")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda it: it.post_after(-1, Numbered()),
            ValueError,
            "seconds must be a number of seconds, from 0 to .* not -1",
        ),
        (lambda it: it.post_at(float("nan"), Numbered()), ValueError, "unix_s must be a time in Unix seconds"),
        (lambda it: it.post_every(0, Numbered()), ValueError, "seconds must be 0.001 or more, not 0"),
        (lambda it: it.post_every(1, Numbered(), jitter=2), ValueError, "jitter is a part of the period"),
        (lambda it: it.post_every(1, Numbered(), first=-1), ValueError, "first must be a number of seconds"),
        (lambda it: it.post_after(WRONG, Numbered()), TypeError, "^seconds must be a number, not '3'"),
        (lambda it: it.post_every(1, Numbered(), first=WRONG), TypeError, "^first must be a number, not '3'"),
        (lambda it: it.post_every(1, Numbered(), jitter=WRONG), TypeError, "^jitter must be a number, not '3'"),
        (lambda it: it.post_at(WRONG, Numbered()), TypeError, "^unix_s must be a number, not '3'"),
        (lambda it: it.post_every(1, WRONG), TypeError, "takes an event or a callable that makes one, not '3'"),
        (lambda it: it.post_every(1, an_event), TypeError, "the factory of post_every must be a plain function that"),
    ],
)
def test_a_wrong_argument_is_named(
    call: Callable[[AsyncDispatcher], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call(AsyncDispatcher())


CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("after"), st.integers(0, 50)),
        st.tuples(st.just("at"), st.integers(-20, 200)),
        st.tuples(st.just("every"), st.integers(1, 40)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("advance"), st.integers(0, 60)),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(calls=CALLS)
def test_a_schedule_fires_what_a_plain_list_says(calls: list[tuple[str, int]]) -> None:
    """The handler keeps up: it is drained after each ms."""
    clock, seen = ManualClock(NOON_MS), []
    dispatcher = AsyncDispatcher(time_service=clock)
    dispatcher.register(Work, lambda event: seen.append(event.number))
    dispatcher.start()
    handles: list[Any] = []
    model: list[tuple[int, int] | None] = []  # due and period of each; None: done
    cancelled: set[int] = set()
    now = 0
    for what, value in calls:
        number = len(handles)
        if what == "after":
            handles.append(dispatcher.post_after(value / 1000, Numbered(number)))
            model.append((now + value, 0))
        elif what == "at":
            handles.append(dispatcher.post_at((NOON_MS + value) / 1000, Numbered(number)))
            model.append((value, 0))
        elif what == "every":
            handles.append(dispatcher.post_every(value / 1000, Numbered(number)))
            model.append((now + value, value))
        elif what == "cancel" and value < len(handles):
            is_there = model[value] is not None
            assert handles[value].cancel() == (is_there or value in cancelled)
            cancelled |= {value} if is_there else set()
            model[value] = None
        elif what == "advance":
            for _ in range(value):
                clock.advance(1)
                now += 1
                assert dispatcher.await_drained(TIMEOUT_S)
                due = [place for place, entry in enumerate(model) if entry is not None and entry[0] <= now]
                assert sorted(seen) == due
                seen.clear()
                for place in due:
                    at, period = model[place] or (0, 0)
                    model[place] = (at + period, period) if period else None
    try:
        assert dispatcher.stats().scheduled == sum(entry is not None for entry in model)
        assert [handle.is_done() for handle in handles] == [entry is None for entry in model]
    finally:
        dispatcher.stop()


def test_a_period_goes_on_after_its_event_could_not_be_posted() -> None:
    """Its event counted as queued for ever, so all later times were skipped."""
    keys = iter([lambda: 1 // 0])

    perform("every 1000 1 | +3000 -> seen 1 1 ; scheduled_skipped 0", coalesce_by=lambda _: next(keys, str)())


def test_a_period_goes_on_after_an_event_that_waited_for_room_could_not_be_posted() -> None:
    """The thread that made room met the error, and the event counted as queued for ever."""
    is_full = True

    def key_of(event: Any) -> None:
        if event.number == 2 and not is_full:
            raise ZeroDivisionError

    with closing(Stage(queue_capacity=1, coalesce_by=key_of)) as stage:
        play(stage, "hold 0 | post 1 | every 1000 2.. | +1000 -> seen")
        is_full = False
        play(stage, "release -> scheduled 1 | +1000 -> seen 0 1 3")


def test_a_cancelled_period_posts_nothing_that_its_factory_is_making() -> None:
    with closing(Stage()) as stage:
        every = stage.dispatcher.post_every(1, lambda: item(str(int(every.cancel()))))

        play(stage, "+3000 -> seen ; accepted 0")


def test_a_stop_amid_a_firing_ends_the_period() -> None:
    with closing(Stage()) as stage:
        every = stage.dispatcher.post_every(1, lambda: stage.dispatcher.stop())
        stage.clock.advance(1000)
        assert stage.dispatcher.wait_for_service_to_stop(TIMEOUT_S)

        assert (every.is_done(), every.due, stage.dispatcher.stats().scheduled) == (True, None, 0)


def test_a_finalizer_may_schedule_while_its_thread_does() -> None:
    """It waited for the lock that its own thread held."""
    with closing(Stage()) as stage:
        with stage.dispatcher.core.queue.lock:  # as during a call, which a signal handler or the collector interrupts
            stage.after("1000", "1")

        play(stage, "after 2000 2 | +2000 -> seen 1 2")


def test_an_interrupted_call_leaves_the_others_to_fire() -> None:
    with closing(Stage()) as stage:
        play(stage, "after 2000 2")
        with (
            patch.object(stage.clock, "schedule_with_fixed_delay", side_effect=KeyboardInterrupt),
            pytest.raises(KeyboardInterrupt),
        ):
            stage.after("1000", "1")

        play(stage, "after 3000 3 | +3000 -> seen 1 2 3")
