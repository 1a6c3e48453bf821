"""Posting at a time: post_after, post_at and post_every."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher import (
    AsyncDispatcher,
    DispatcherConfig,
    EventRefusedError,
    JournalConfig,
    JournalWriter,
    MultiDispatcher,
)
from dispatcher.journal import recover
from dispatcher.mailbox import ManualClock
from dispatcher.queue import alarm as alarm_module
from dispatcher.queue import schedule as schedule_module

from ...kit import TIMEOUT_S, Gate, Numbered, Work, assert_accounts_balance, until
from ...kit.coroutines import Keyed
from ...kit.interrupting import at_each_place
from ..journal.conftest import Job, Posted, after_a_crash

Make = Callable[..., AsyncDispatcher]
NOON_MS = 1_800_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON_MS)


class Seen:
    """A handler that notes when it gets which event, in ms since noon."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.events: list[tuple[int, int]] = []

    def handle(self, event: Any) -> None:
        self.events.append((self.clock.current_processing_time() - NOON_MS, event.number))


def advance(dispatcher: AsyncDispatcher, clock: ManualClock, ms: int, step_ms: int = 100) -> None:
    for _ in range(ms // step_ms):
        clock.advance(step_ms)
        assert dispatcher.await_drained(TIMEOUT_S)


def test_an_event_is_posted_after_its_delay(make: Make, clock: ManualClock) -> None:
    seen = Seen(clock)
    dispatcher = make(time_service=clock, handler=seen)

    later = dispatcher.post_after(0.5, Numbered(1))
    assert (later.due, later.is_done(), dispatcher.stats().scheduled) == (NOON_MS / 1000 + 0.5, False, 1)
    advance(dispatcher, clock, 1000)

    assert seen.events == [(500, 1)]
    assert (later.due, later.is_done(), later.cancel()) == (None, True, False)
    stats = dispatcher.stats()
    assert (stats.scheduled, stats.scheduled_fired, stats.accepted) == (0, 1, 1)


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


def test_events_of_one_time_are_posted_in_the_order_of_the_calls(make: Make, clock: ManualClock) -> None:
    seen = Seen(clock)
    dispatcher = make(time_service=clock, handler=seen)

    for number in range(100):
        dispatcher.post_after(0.1, Numbered(number))
    advance(dispatcher, clock, 100)

    assert [number for _, number in seen.events] == list(range(100))


def test_real_time_follows_the_monotonic_clock_and_post_at_the_wall_clock(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_module, "_WALL_LOOK_NS", 1_000_000)
    gate = Gate()
    gate.opened.set()
    dispatcher = make(handler=gate)
    dispatcher.post_after(3600, Numbered(1))
    dispatcher.post_at(time.time() + 3600, Numbered(2))
    real = time.time_ns

    monkeypatch.setattr(alarm_module.time, "time_ns", lambda: real() + 3_601_000_000_000)

    assert gate.entered.wait(TIMEOUT_S)
    assert dispatcher.await_drained(TIMEOUT_S)
    assert [event.number for event in gate.events] == [2]


def test_a_period_keeps_its_grid_and_a_factory_makes_each_event(make: Make, clock: ManualClock) -> None:
    seen, numbers = Seen(clock), iter(range(100))
    dispatcher = make(time_service=clock, handler=seen)

    every = dispatcher.post_every(1, lambda: Numbered(next(numbers)), first=0.5)
    advance(dispatcher, clock, 3000)
    assert every.due == NOON_MS / 1000 + 3.5
    assert every.cancel()
    advance(dispatcher, clock, 3000)

    assert seen.events == [(500, 0), (1500, 1), (2500, 2)]
    assert every.is_done()


def test_a_period_whose_event_still_waits_is_skipped_and_counted(make: Make, clock: ManualClock, gate: Gate) -> None:
    dispatcher = make(time_service=clock, handler=gate)
    dispatcher.post(Numbered(0))
    assert gate.entered.wait(TIMEOUT_S)

    dispatcher.post_every(1, Numbered(7))
    clock.advance(5000)
    assert dispatcher.queue_size() == 1
    gate.opened.set()
    assert dispatcher.await_drained(TIMEOUT_S)
    advance(dispatcher, clock, 1000)

    assert [event.number for event in gate.events] == [0, 7, 7]
    assert dispatcher.stats().scheduled_skipped == 4


def test_a_factory_that_raises_ends_nothing(make: Make, clock: ManualClock) -> None:
    seen, made = Seen(clock), iter([1, 0, 1])
    dispatcher = make(time_service=clock, handler=seen)

    dispatcher.post_every(1, lambda: Numbered(1 // next(made)))
    advance(dispatcher, clock, 3000)

    assert seen.events == [(1000, 1), (3000, 1)]


def test_jitter_delays_a_firing_by_a_part_of_the_period_and_moves_no_later_one(make: Make, clock: ManualClock) -> None:
    seen = Seen(clock)
    dispatcher = make(time_service=clock, handler=seen)

    dispatcher.post_every(10, Numbered(), jitter=0.5)
    advance(dispatcher, clock, 100_000, 50)

    late = [at_ms - 10_000 * (place + 1) for place, (at_ms, _) in enumerate(seen.events)]
    assert len(late) == 9 or len(late) == 10
    assert all(0 <= each <= 5050 for each in late)
    assert len(set(late)) > 1


@pytest.mark.parametrize("policy", ["block", "reject", "drop_oldest"])
def test_a_full_queue_does_with_a_firing_what_it_does_with_a_post(
    make: Make, clock: ManualClock, gate: Gate, policy: Any
) -> None:
    config = DispatcherConfig(queue_capacity=1, queue_full_policy=policy)
    dispatcher = make(config, time_service=clock, handler=gate)
    dispatcher.post(Numbered(0))
    assert gate.entered.wait(TIMEOUT_S)
    dispatcher.post(Numbered(1))
    for number in (2, 3, 4):
        dispatcher.post_after(1, Numbered(number))

    clock.advance(1000)  # returns, although the queue is full
    waiting = dispatcher.stats().scheduled
    gate.opened.set()
    until(lambda: dispatcher.await_drained(TIMEOUT_S) and not dispatcher.stats().scheduled, "all are posted")

    handled = {"block": [0, 1, 2, 3, 4], "reject": [0, 1], "drop_oldest": [0, 4]}[policy]
    assert [event.number for event in gate.events] == handled
    assert waiting == (3 if policy == "block" else 0)
    assert_accounts_balance(dispatcher, 2 if policy == "reject" else 5)


def test_what_falls_due_while_a_stop_drains_is_handled_and_the_rest_is_left(
    make: Make, clock: ManualClock, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher = make(time_service=clock, handler=gate)
    dispatcher.post(Numbered(0))
    assert gate.entered.wait(TIMEOUT_S)
    in_time, late = dispatcher.post_after(1, Numbered(1)), dispatcher.post_after(2, Numbered(2))
    stopping = threading.Thread(target=dispatcher.stop)
    stopping.start()
    until(lambda: dispatcher.view.is_draining(), "the stop has begun")

    clock.advance(1000)
    with pytest.raises(EventRefusedError, match="draining"):
        dispatcher.post_after(1, Numbered(3))
    gate.opened.set()
    stopping.join(TIMEOUT_S)

    assert [event.number for event in gate.events] == [0, 1]
    assert (in_time.is_done(), late.is_done(), late.cancel(), late.due) == (True, True, False, None)
    assert "stop left 1 scheduled event; it is lost" in caplog.text
    assert clock.pending_timers == 0 or not clock.advance(5000)


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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda it: it.post_after(-1, Numbered()), "seconds must be a number of seconds, from 0 to .* not -1"),
        (lambda it: it.post_at(float("nan"), Numbered()), "unix_s must be a time in Unix seconds"),
        (lambda it: it.post_every(0, Numbered()), "seconds must be 0.001 or more, not 0"),
        (lambda it: it.post_every(1, Numbered(), jitter=2), "jitter is a part of the period"),
        (lambda it: it.post_every(1, Numbered(), first=-1), "first must be a number of seconds"),
    ],
)
def test_a_wrong_number_is_named(make: Make, call: Callable[[AsyncDispatcher], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(make())


def test_what_is_neither_an_event_nor_a_factory_is_named(make: Make) -> None:
    with pytest.raises(TypeError, match="takes an event or a callable that makes one, not 'garbage'"):
        make().post_every(1, "garbage")


@pytest.mark.parametrize("name", ["seconds", "first", "jitter", "unix_s"])
def test_what_is_no_number_is_named(make: Make, name: str) -> None:
    dispatcher, wrong = make(), cast(Any, "3")
    calls = {
        "seconds": lambda: dispatcher.post_after(wrong, Numbered()),
        "first": lambda: dispatcher.post_every(1, Numbered(), first=wrong),
        "jitter": lambda: dispatcher.post_every(1, Numbered(), jitter=wrong),
        "unix_s": lambda: dispatcher.post_at(wrong, Numbered()),
    }

    with pytest.raises(TypeError, match=f"^{name} must be a number, not '3'"):
        calls[name]()


def test_an_async_factory_is_refused_at_the_call(make: Make) -> None:
    async def an_event() -> Numbered:
        return Numbered()

    with pytest.raises(TypeError, match="the factory of post_every must be a plain function that makes an event"):
        make().post_every(1, cast(Any, an_event))


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
    clock = ManualClock(NOON_MS)
    seen = Seen(clock)
    dispatcher = AsyncDispatcher(time_service=clock)
    dispatcher.register(Work, seen)
    dispatcher.init()
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
                assert sorted(number for _, number in seen.events) == due
                seen.events.clear()
                for place in due:
                    at, period = model[place] or (0, 0)
                    model[place] = (at + period, period) if period else None
    try:
        assert dispatcher.stats().scheduled == sum(entry is not None for entry in model)
        assert [handle.is_done() for handle in handles] == [entry is None for entry in model]
    finally:
        dispatcher.stop()


class TestDurable:
    def start(self, journal: Path, clock: ManualClock, seen: Any, **options: Any) -> AsyncDispatcher:
        writer = JournalWriter(journal, JournalConfig(write_ahead=True))
        dispatcher = AsyncDispatcher(journal=writer, time_service=clock, **options)
        dispatcher.register(Job, seen, events=Posted)
        dispatcher.init()
        return dispatcher

    def test_after_a_crash_events_come_at_their_time_or_at_once(self, tmp_path: Path, clock: ManualClock) -> None:
        first = self.start(tmp_path / "journal", clock, print)
        first.start()
        first.post_after(1, Posted(Job.STARTED, 1))
        first.post_at(NOON_MS / 1000 + 3, Posted(Job.STARTED, 3))
        first.post_after(2, Posted(Job.STARTED, 2)).cancel()
        first.post(Posted(Job.STARTED, 0))
        assert first.await_drained(TIMEOUT_S)
        crashed = after_a_crash(tmp_path / "journal", tmp_path / "crashed")
        first.stop()

        clock, seen = ManualClock(NOON_MS + 2000), Seen(clock)
        seen.clock = clock
        second = self.start(crashed, clock, seen)
        second.start()
        until(lambda: any(number == 1 for _, number in seen.events), "the event that is overdue")
        advance(second, clock, 2000)
        second.stop()

        assert [entry for entry in seen.events if entry[1] in (1, 3)] == [(2000, 1), (3000, 3)]
        assert not recover(crashed).accepted

    def test_a_stop_leaves_what_is_scheduled_to_the_next_start(
        self, tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        seen = Seen(clock)
        with self.start(tmp_path, clock, seen) as first:
            first.post_after(1, Posted(Job.STARTED, 1))
        with self.start(tmp_path, clock, seen) as second:
            assert second.stats().scheduled == 1
            advance(second, clock, 1000)

        assert seen.events == [(1000, 1)]
        assert "handled first" not in caplog.text

    def test_a_key_keeps_its_rhythm_over_restarts(self, tmp_path: Path, clock: ManualClock) -> None:
        seen = Seen(clock)
        for pause_ms in (0, 300, 3000):
            clock.advance(pause_ms)
            with self.start(tmp_path, clock, seen) as dispatcher:
                dispatcher.post_every(
                    1, lambda: Posted(Job.STARTED, clock.current_processing_time() - NOON_MS), key="nightly", first=0.5
                )
                advance(dispatcher, clock, 1200)

        # It runs until 1200, from 1500 to 2700 and from 5700 on; of 3500, 4500 and 5500, which have passed, one comes.
        assert [at_ms for _, at_ms in seen.events] == [500, 1500, 2500, 5700, 6500]

    def test_a_firing_of_an_earlier_run_that_still_waits_is_the_only_one_of_its_key(
        self, tmp_path: Path, clock: ManualClock, gate: Gate
    ) -> None:
        first = self.start(tmp_path / "journal", clock, gate)
        first.start()
        first.post(Posted(Job.STARTED, 0))
        assert gate.entered.wait(TIMEOUT_S)
        first.post_every(1, Posted(Job.STARTED, 1), key="nightly")
        clock.advance(1000)
        crashed = after_a_crash(tmp_path / "journal", tmp_path / "crashed")
        gate.opened.set()
        first.stop()

        clock, gate = ManualClock(NOON_MS + 1500), Gate()
        with self.start(crashed, clock, gate) as second:
            assert gate.entered.wait(TIMEOUT_S)
            second.post_every(1, Posted(Job.STARTED, 1), key="nightly")
            clock.advance(500)
            assert (second.stats().queue_size, second.stats().scheduled_skipped) == (1, 1)
            gate.opened.set()
            assert second.await_drained(TIMEOUT_S)
            clock.advance(1000)
            assert second.await_drained(TIMEOUT_S)
            assert [event.number for event in gate.events] == [0, 1, 1]

    def test_a_newer_rhythm_takes_the_key(self, tmp_path: Path, clock: ManualClock) -> None:
        with self.start(tmp_path, clock, print) as dispatcher:
            every = dispatcher.post_every(1, Posted(Job.STARTED, 1), key="nightly")
            newer = dispatcher.post_every(2, Posted(Job.STARTED, 1), key="nightly")
            assert (every.is_done(), every.due, newer.due) == (True, None, NOON_MS / 1000 + 2)
            newer.cancel()

        assert not recover(tmp_path).accepted

    @pytest.mark.parametrize("appends", range(3))
    def test_no_time_of_a_key_is_posted_twice_whenever_it_crashes(
        self, tmp_path: Path, clock: ManualClock, appends: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A firing appends its event, and then the next time. A crash comes before, between or after the two."""
        journal, crashed = tmp_path / "journal", tmp_path / "crashed"
        gate = Gate()  # what is posted stays in hand, so no row settles it
        first = self.start(journal, clock, gate)
        first.start()
        first.post_every(1, lambda: Posted(Job.STARTED, 1), key="nightly")
        append, left = JournalWriter.append_accepted, appends

        def crash_or_append(*arguments: Any, **options: Any) -> int:
            nonlocal left
            if not left:
                after_a_crash(journal, crashed)
            left -= 1
            return append(*arguments, **options)

        monkeypatch.setattr(JournalWriter, "append_accepted", crash_or_append)
        clock.advance(1000)
        if not crashed.exists():
            after_a_crash(journal, crashed)
        monkeypatch.undo()
        gate.opened.set()
        first.stop()

        after = ManualClock(NOON_MS + 1000)
        seen = Seen(after)
        second = self.start(crashed, after, seen)
        second.post_every(1, lambda: Posted(Job.STARTED, 2), key="nightly")
        second.start()
        advance(second, after, 900)
        second.stop()

        assert [number for _, number in seen.events] == [2 if appends == 0 else 1]


def test_a_period_goes_on_after_its_event_could_not_be_posted(make: Make, clock: ManualClock) -> None:
    """Its event counted as queued for ever, so all later times were skipped."""
    keys = iter([lambda: 1 // 0])
    seen = Seen(clock)
    dispatcher = make(time_service=clock)
    dispatcher.register(Work, seen, coalesce_by=lambda event: next(keys, str)())

    dispatcher.post_every(1, Numbered())
    advance(dispatcher, clock, 3000)

    assert len(seen.events) == 2
    assert dispatcher.stats().scheduled_skipped == 0


def test_a_period_goes_on_after_an_event_that_waited_for_room_could_not_be_posted(
    make: Make, clock: ManualClock, gate: Gate
) -> None:
    """The thread that made room met the error, and the event counted as queued for ever."""
    config = DispatcherConfig(queue_capacity=1, queue_full_policy="block")
    dispatcher = make(config, time_service=clock)
    is_full = True

    def key_of(event: Any) -> None:
        if event.number == 2 and not is_full:
            raise ZeroDivisionError

    dispatcher.register(Work, gate, coalesce_by=key_of)
    dispatcher.post(Numbered(0))
    assert gate.entered.wait(TIMEOUT_S)
    dispatcher.post(Numbered(1))
    numbers = iter((2, 3))
    dispatcher.post_every(1, lambda: Numbered(next(numbers)))

    clock.advance(1000)  # it waits for room
    is_full = False
    gate.opened.set()
    until(lambda: dispatcher.await_drained(TIMEOUT_S) and dispatcher.stats().scheduled == 1, "it has failed")
    advance(dispatcher, clock, 1000)

    assert [event.number for event in gate.events] == [0, 1, 3]


def test_a_cancelled_period_posts_nothing_that_its_factory_is_making(make: Make, clock: ManualClock) -> None:
    seen = Seen(clock)
    dispatcher = make(time_service=clock, handler=seen)

    def make_event() -> Numbered:
        every.cancel()
        return Numbered()

    every = dispatcher.post_every(1, make_event)
    advance(dispatcher, clock, 3000)

    assert seen.events == []


def test_a_stop_amid_a_firing_ends_the_period(make: Make, clock: ManualClock) -> None:
    dispatcher = make(time_service=clock)
    every = dispatcher.post_every(1, lambda: dispatcher.stop())

    clock.advance(1000)
    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)

    assert (every.is_done(), every.due, dispatcher.stats().scheduled) == (True, None, 0)


def test_a_finalizer_may_schedule_while_its_thread_does(make: Make, clock: ManualClock) -> None:
    """It waited for the lock that its own thread held."""
    seen = Seen(clock)
    dispatcher = make(time_service=clock, handler=seen)
    with dispatcher.core.queue.lock:  # as during a call, which a signal handler or the collector interrupts
        dispatcher.post_after(1, Numbered(1))
    dispatcher.post_after(2, Numbered(2))
    advance(dispatcher, clock, 2000)

    assert [number for _, number in seen.events] == [1, 2]


def test_an_interrupted_call_leaves_the_others_to_fire(make: Make, clock: ManualClock) -> None:
    seen = Seen(clock)
    dispatcher = make(time_service=clock, handler=seen)
    dispatcher.post_after(2, Numbered(2))
    schedule, interrupts = clock.schedule_with_fixed_delay, [KeyboardInterrupt]

    def interrupted(*arguments: Any) -> Any:
        if interrupts:
            raise interrupts.pop()
        return schedule(*arguments)

    with patch.object(clock, "schedule_with_fixed_delay", interrupted), pytest.raises(KeyboardInterrupt):
        dispatcher.post_after(1, Numbered(1))
    dispatcher.post_after(3, Numbered(3))
    advance(dispatcher, clock, 3000)

    assert [number for _, number in seen.events] == [1, 2, 3]
