"""on_error=Retry(...): a failed event comes again; what has failed for good is a dead letter."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher import (
    AsyncDispatcher,
    DeadLetter,
    DeadLetterType,
    DispatcherConfig,
    EventDiscardedError,
    JournalConfig,
    JournalWriter,
    Retry,
)
from dispatcher.aio import AsyncioHandler
from dispatcher.journal import EVENTS, read_rows, recover
from dispatcher.letter_target import read_letters
from dispatcher.mailbox import ManualClock

from ..kit import TIMEOUT_S, Gate, Numbered, OfEntity, Other, Work, assert_accounts_balance, tries, until
from ..kit.coroutines import Keyed, Latched, running_loop
from .journal.conftest import Job, Posted, after_a_crash

Make = Callable[..., AsyncDispatcher]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_800_000_000_000)


class Failing:
    """A handler that fails for the first `times` attempts at each event of these numbers, and notes all attempts."""

    def __init__(self, failures: dict[int, int], error: type[BaseException] = OSError) -> None:
        self.left = dict(failures)
        self.error = error
        self.seen: list[int] = []

    def handle(self, event: Any) -> int:
        self.seen.append(event.number)
        if self.left.get(event.number, 0):
            self.left[event.number] -= 1
            raise self.error(event.number)
        number: int = event.number
        return number


def stop_beside(dispatcher: AsyncDispatcher) -> threading.Thread:
    stop = threading.Thread(target=dispatcher.stop, daemon=True)
    stop.start()
    return stop


def settle(dispatcher: AsyncDispatcher, clock: ManualClock, ms: int, step_ms: int = 100) -> None:
    """Advance, and let the handler thread do what it can before and after each step."""

    def is_at_rest() -> bool:
        return not dispatcher.has_work() and dispatcher.stats().in_hand == 0

    until(is_at_rest, "nothing is left but what is retrying")
    for _ in range(ms // step_ms):
        clock.advance(step_ms)
        until(is_at_rest, "nothing is left but what is retrying")


def test_an_event_comes_again_after_its_delays_and_other_events_go_on(make: Make, clock: ManualClock) -> None:
    handler = Failing({1: 2})
    dispatcher = make(time_service=clock)
    dispatcher.register(Work, handler, on_error=Retry(attempts=3, delay_s=1, factor=2, jitter=0))

    dispatcher.post(Numbered(1))
    dispatcher.post(Numbered(2))
    settle(dispatcher, clock, 900)
    assert (handler.seen, dispatcher.stats().retrying, dispatcher.is_drained()) == ([1, 2], 1, False)
    settle(dispatcher, clock, 100)
    assert handler.seen == [1, 2, 1]
    settle(dispatcher, clock, 1900)
    assert handler.seen == [1, 2, 1]
    settle(dispatcher, clock, 100)

    assert handler.seen == [1, 2, 1, 1]
    assert dispatcher.await_drained(TIMEOUT_S)
    assert (dispatcher.stats().handled, dispatcher.stats().failed) == (2, 0)
    assert dispatcher.stats().retried_by_type == {("Work", "DO"): 2}
    assert_accounts_balance(dispatcher, 2)


def test_the_handler_knows_which_attempt_it_makes(make: Make, clock: ManualClock) -> None:
    attempts: list[int] = []
    dispatcher = make(time_service=clock)

    def fail(event: Keyed) -> None:
        attempts.append(dispatcher.attempt())
        raise OSError

    dispatcher.register(Work, fail, on_error=Retry(attempts=3, delay_s=0.1, factor=1, jitter=0))
    dispatcher.post(Keyed())
    settle(dispatcher, clock, 1000)

    assert attempts == [1, 2, 3]


def test_after_the_last_attempt_the_event_has_failed_and_is_a_dead_letter(make: Make, clock: ManualClock) -> None:
    letters: list[DeadLetter] = []
    dispatcher = make(time_service=clock, dead_letters=letters.append)
    dispatcher.register(Work, Failing({1: 9}), on_error=Retry(attempts=3, delay_s=0.1, jitter=0))
    event = Numbered(1)

    dispatcher.post(event)
    settle(dispatcher, clock, 1000)

    [letter] = letters
    assert (letter.event, letter.attempts, letter.dispatcher) == (event, 3, "AsyncDispatcher")
    assert isinstance(letter.error, OSError)
    assert "in handle" in letter.traceback
    assert dispatcher.stats().failed == 1
    assert_accounts_balance(dispatcher, 1)


@pytest.mark.parametrize(("then", "is_letter"), [("dead_letter", True), ("continue", False), ("stop", True)])
def test_then_says_what_follows_the_last_attempt(make: Make, then: Any, is_letter: bool) -> None:
    letters: list[DeadLetter] = []
    dispatcher = make(dead_letters=letters.append)
    dispatcher.register(Work, Failing({1: 9}), on_error=Retry(attempts=1, then=then))

    dispatcher.post(Numbered(1))

    if then == "stop":
        assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
    else:
        assert dispatcher.await_drained(TIMEOUT_S)
    assert bool(letters) == is_letter
    assert (dispatcher.failure_cause is not None) == (then == "stop")


def test_another_error_is_not_tried_again(make: Make) -> None:
    handler = Failing({1: 9}, ValueError)
    dispatcher = make()
    dispatcher.register(Work, handler, on_error=Retry(on=(OSError, TimeoutError)))

    dispatcher.post(Numbered(1))

    assert dispatcher.await_drained(TIMEOUT_S)
    assert handler.seen == [1]


def test_without_a_retry_every_failure_is_a_dead_letter(make: Make) -> None:
    letters: list[DeadLetter] = []
    dispatcher = make(dead_letters=letters.append, handler=Failing({1: 1}))

    dispatcher.post(Numbered(1))
    dispatcher.post(Numbered(0, type=Other.DO))  # type: ignore[arg-type]

    assert dispatcher.await_drained(TIMEOUT_S)
    assert [(type(letter.error).__name__, letter.attempts) for letter in letters] == [
        ("OSError", 1),
        ("UnregisteredEventTypeError", 1),
    ]


def test_a_function_decides_about_each_error(make: Make, clock: ManualClock) -> None:
    handler = Failing({1: 1, 2: 9, 3: 9})
    dispatcher = make(time_service=clock)

    def decide(event: Any, error: BaseException) -> Any:
        if event.number == 3:
            raise RuntimeError("cannot decide")
        return Retry(attempts=2, delay_s=0.1, jitter=0) if event.number == 1 else "stop"

    dispatcher.register(Work, handler, on_error=decide)
    for number in (1, 3):
        dispatcher.post(Numbered(number))
    settle(dispatcher, clock, 500)
    assert (handler.seen, dispatcher.stats().failed) == ([1, 3, 1], 1)
    dispatcher.post(Numbered(2))

    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)


def test_then_of_a_retry_that_a_function_returned_says_what_follows(make: Make) -> None:
    letters: list[DeadLetter] = []
    dispatcher = make(dead_letters=letters.append)
    ends: dict[int, Any] = {1: Retry(attempts=1, then="continue"), 2: Retry(attempts=1), 3: "continue"}
    dispatcher.register(Work, Failing({1: 1, 2: 1, 3: 1}), on_error=lambda event, error: ends[event.number])

    for number in ends:
        dispatcher.post(Numbered(number))

    assert dispatcher.await_drained(TIMEOUT_S)
    assert [letter.event.number for letter in letters] == [2, 3]


def test_the_answer_to_an_ask_comes_after_the_last_attempt(make: Make, clock: ManualClock) -> None:
    dispatcher = make(time_service=clock)
    dispatcher.register(Work, Failing({1: 1, 2: 9}), on_error=Retry(attempts=2, delay_s=0.1, jitter=0))

    works, fails = dispatcher.ask(Numbered(1)), dispatcher.ask(Numbered(2))
    until(lambda: dispatcher.stats().retrying == 2, "both have failed once")
    assert (works.done(), fails.done(), works.cancel()) == (False, False, False)
    settle(dispatcher, clock, 200)

    assert works.result(TIMEOUT_S) == 1
    assert isinstance(fails.exception(TIMEOUT_S), OSError)


def test_a_full_queue_does_not_lose_an_event_that_comes_again(make: Make, clock: ManualClock, gate: Gate) -> None:
    handler = Failing({1: 1})
    dispatcher = make(DispatcherConfig(queue_capacity=1, queue_full_policy="reject"), time_service=clock)
    dispatcher.register(Work, handler, on_error=Retry(delay_s=0.1, jitter=0))
    dispatcher.register(Other, gate)
    dispatcher.post(Numbered(1))
    until(lambda: dispatcher.stats().retrying == 1, "it has failed once")
    dispatcher.post(Numbered(type=Other.DO))  # type: ignore[arg-type]
    assert gate.entered.wait(TIMEOUT_S)
    assert dispatcher.post(Numbered(2))

    clock.advance(1000)
    assert dispatcher.stats().retrying == 1
    gate.opened.set()

    assert dispatcher.await_drained(TIMEOUT_S)
    assert handler.seen == [1, 2, 1]
    assert_accounts_balance(dispatcher, 3)


def test_a_stop_waits_for_attempts_that_fall_due_in_its_time(make: Make) -> None:
    handler = Failing({1: 1})
    dispatcher = make()
    dispatcher.register(Work, handler, on_error=Retry(delay_s=0.01, jitter=0))
    dispatcher.post(Numbered(1))
    until(lambda: dispatcher.stats().retried_by_type != {}, "it has failed once")

    dispatcher.stop()

    assert handler.seen == [1, 1]
    assert (dispatcher.stats().handled, dispatcher.stats().discarded) == (1, 0)


@pytest.mark.parametrize(
    ("ordered_by_key", "drain_timeout_s"),
    [pytest.param(True, 0.05, id="once it gives up"), pytest.param(False, 3000, id="at once if it comes too late")],
)
def test_a_stop_discards_what_is_retrying(
    make: Make, caplog: pytest.LogCaptureFixture, ordered_by_key: bool, drain_timeout_s: float
) -> None:
    dispatcher = make(DispatcherConfig(drain_timeout_s=drain_timeout_s))
    retry = Retry(delay_s=3600, max_delay_s=3600, jitter=0, ordered_by_key=ordered_by_key)
    dispatcher.register(Work, Failing({1: 9}), on_error=retry)
    asked = dispatcher.ask(Numbered(1))
    until(lambda: dispatcher.stats().retrying == 1, "it has failed once")

    stop = stop_beside(dispatcher)

    stop.join(TIMEOUT_S)
    assert isinstance(asked.exception(0), EventDiscardedError)
    assert dispatcher.stats().discarded_by_reason == {"stop": 1}
    assert "stop discarded 1 event that waited for its next attempt: 1 Work.DO" in caplog.text
    assert_accounts_balance(dispatcher, 1)


def test_an_event_that_fails_amid_a_stop_is_not_waited_for(make: Make, gate: Gate) -> None:
    dispatcher = make(DispatcherConfig(drain_timeout_s=3000))
    dispatcher.register(Other, gate)
    dispatcher.register(Work, Failing({1: 9}), on_error=Retry(delay_s=3600, max_delay_s=3600, jitter=0))
    dispatcher.post(Numbered(type=Other.DO))  # type: ignore[arg-type]
    assert gate.entered.wait(TIMEOUT_S)
    dispatcher.post(Numbered(1))
    stop = stop_beside(dispatcher)
    until(lambda: dispatcher.view.is_draining(), "the stop has begun")

    gate.opened.set()
    stop.join(TIMEOUT_S)

    assert not stop.is_alive()
    assert dispatcher.stats().discarded_by_reason == {"stop": 1}
    assert_accounts_balance(dispatcher, 2)


def test_a_coroutine_that_is_tried_again_holds_up_its_key_alone(make: Make, clock: ManualClock) -> None:
    """Events of its key that had left the queue waited in the lane, and went on before it."""
    with running_loop() as loop:
        dispatcher = AsyncDispatcher(loop=loop, time_service=clock)
        latched = Latched(loop)
        policy = Retry(delay_s=0.1, factor=1, jitter=0, ordered_by_key=True)
        dispatcher.register(Work, AsyncioHandler(latched, capacity=4), on_error=policy)
        dispatcher.init()
        dispatcher.start()
        for number, key in ((1, "a"), (2, "a"), (3, "b"), (4, "a")):
            dispatcher.post(Keyed(number, key))
        asked = dispatcher.ask(Keyed(5, "a"))
        for attempt in (1, 2):
            until(partial(_has_begun, latched, attempt), "the attempt has begun")
            latched.end(1, error=OSError())
            until(partial(_is_retrying, dispatcher, 4), "2, 4 and 5 wait behind 1")
            clock.advance(100)
        until(partial(_has_begun, latched, 3), "the last attempt has begun")
        latched.end(1, 2, 4, 5, 3)
        asked.result(TIMEOUT_S)
        dispatcher.stop()

    assert [number for number in latched.begun if number != 3] == [1, 1, 1, 2, 4, 5]
    assert_accounts_balance(dispatcher, 5)


def _has_begun(latched: Latched, attempts: int) -> bool:
    return latched.begun.count(1) == attempts


@pytest.mark.parametrize("options", [{"per_key": 2}, {"key": lambda event: event.number}])
def test_coroutines_that_may_overtake_each_other_cannot_be_ordered(make: Make, options: dict[str, Any]) -> None:
    with running_loop() as loop, pytest.raises(ValueError, match="needs an AsyncioHandler with per_key=1"):
        make(loop=loop).register(Work, AsyncioHandler(Latched(loop), **options), on_error=Retry(ordered_by_key=True))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"attempts": 0}, ValueError, "attempts must be a whole number"),
        ({"delay_s": -1}, ValueError, "delay_s must be a number, 0 or more"),
        ({"delay_s": 1e300}, ValueError, "delay_s must be a number, 0 or more, up to 3.15576e.09, not 1e.300"),
        ({"max_delay_s": 10**400}, ValueError, "max_delay_s must be a number"),
        ({"delay_s": "1"}, TypeError, "delay_s must be a number, not '1'"),
        ({"factor": 0.5}, ValueError, "factor must be a number, 1 or more"),
        ({"jitter": 2}, ValueError, "jitter is a part of the delay"),
        ({"then": "forget"}, ValueError, "then is one of dead_letter, continue, stop, exit"),
        ({"on": "OSError"}, TypeError, "on takes exception classes"),
    ],
)
def test_a_wrong_setting_is_named(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Retry(**arguments)


def test_a_delay_grows_to_its_most_and_jitters_both_ways() -> None:
    plain, jittered = Retry(delay_s=1, factor=3, max_delay_s=20, jitter=0), Retry(delay_s=1, factor=1, jitter=0.5)

    assert [plain.delay_ns(failures) / 1e9 for failures in (1, 2, 3, 4, 2000)] == [1, 3, 9, 20, 20]
    delays = [jittered.delay_ns(1) for _ in range(200)]
    assert min(delays) >= 5 * 10**8
    assert max(delays) <= 15 * 10**8
    assert min(delays) < 10**9 < max(delays)


@pytest.mark.parametrize("policy", [Retry(), lambda event, error: "continue"])
def test_a_policy_that_may_try_again_is_of_the_only_handler(make: Make, policy: Any) -> None:
    dispatcher = make()
    dispatcher.register(Work, print, on_error=policy)

    with pytest.raises(ValueError, match="is the only one of its Enum class"):
        dispatcher.register(Work, repr)


PLANS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()), min_size=1, max_size=12)


@settings(max_examples=tries(25), deadline=None)
@given(plan=PLANS, attempts=st.integers(1, 3), ordered=st.booleans(), is_async=st.booleans())
def test_each_event_is_tried_as_often_as_a_plain_list_says(
    plan: list[tuple[int, int, bool]], attempts: int, ordered: bool, is_async: bool
) -> None:
    """`plan`: the key of each event, how often it fails, and whether it is asked for."""
    clock, letters = ManualClock(0), []
    failures = {number: fails for number, (_, fails, _) in enumerate(plan)}
    handler = Failing(failures)
    policy = Retry(attempts=attempts, delay_s=0.01, factor=2, jitter=0.5, ordered_by_key=ordered)
    asks = {}

    async def handle(event: Keyed) -> int:
        await asyncio.sleep(0)
        return handler.handle(event)

    with running_loop() as loop:
        dispatcher = AsyncDispatcher(time_service=clock, dead_letters=letters.append, loop=loop)
        dispatcher.register(Work, handle if is_async else handler, on_error=policy)
        dispatcher.init()
        dispatcher.start()
        for number, (key, _, is_asked) in enumerate(plan):
            event = Keyed(number, key)
            if is_asked:
                asks[number] = dispatcher.ask(event)
            else:
                dispatcher.post(event)
        settle(dispatcher, clock, 2000, 10)
        assert dispatcher.is_drained()
        dispatcher.stop()

    assert {number: handler.seen.count(number) for number in failures} == {
        number: min(fails + 1, attempts) for number, fails in failures.items()
    }
    dead = [number for number, fails in failures.items() if fails >= attempts]
    assert sorted(letter.event.number for letter in letters) == dead
    for number, ask in asks.items():
        if number in dead:
            assert isinstance(ask.exception(0), OSError)
        else:
            assert ask.result(0) == number
    if ordered:
        for key in range(4):
            of_key = [number for number in handler.seen if plan[number][0] == key]
            assert of_key == sorted(of_key)
    assert_accounts_balance(dispatcher, len(plan))
    assert dispatcher.stats().failed == len(dead)


def advance_until_drained(dispatcher: AsyncDispatcher, clock: ManualClock) -> None:
    """In write-ahead mode, an attempt is scheduled only once its line is in the log."""

    def is_drained() -> bool:
        clock.advance(1000)
        return dispatcher.is_drained()

    until(is_drained, "all attempts are made")


class TestDurable:
    def start(self, journal: Path, clock: ManualClock, handler: Any, **options: Any) -> AsyncDispatcher:
        writer = JournalWriter(journal, JournalConfig(write_ahead=True))
        dispatcher = AsyncDispatcher(journal=writer, time_service=clock, **options)
        policy = Retry(attempts=3, delay_s=10, factor=2, jitter=0)
        dispatcher.register(Job, handler, events=Posted, on_error=policy)
        dispatcher.init()
        dispatcher.start()
        return dispatcher

    def test_attempts_and_delays_survive_a_crash(self, tmp_path: Path, clock: ManualClock) -> None:
        """The first run fails once and is killed; the second waits for the rest of the delay, and fails for good."""
        letters: list[DeadLetter] = []
        first, handler = self.start(tmp_path / "journal", clock, Failing({1: 9})), Failing({1: 9})
        first.post(Posted(Job.STARTED, 1))
        until(lambda: first.core.retries.next_attempt_s() > 0, "its next attempt is in the log")
        crashed = after_a_crash(tmp_path / "journal", tmp_path / "crashed")
        first.set_drain_events_on_stop(False)
        first.stop()

        later = ManualClock(clock.current_processing_time() + 4000)
        second = self.start(crashed, later, handler, dead_letters=letters.append)
        settle(second, later, 5900)
        assert (handler.seen, second.stats().retrying) == ([], 1)
        settle(second, later, 100)
        assert handler.seen == [1]
        settle(second, later, 20_000)
        second.stop()

        assert handler.seen == [1, 1]
        assert [letter.attempts for letter in letters] == [3]
        assert not recover(crashed).accepted

    def test_each_attempt_has_a_row(self, tmp_path: Path, clock: ManualClock) -> None:
        dispatcher = self.start(tmp_path, clock, Failing({1: 1}))
        dispatcher.post(Posted(Job.STARTED, 1))
        settle(dispatcher, clock, 10_000)
        assert dispatcher.await_drained(TIMEOUT_S)
        dispatcher.stop()

        assert [row["outcome"] for row in read_rows(tmp_path, EVENTS)] == ["retried", "handled"]

    def test_later_events_of_the_key_stay_behind_over_a_crash(self, tmp_path: Path, clock: ManualClock) -> None:
        policy = Retry(attempts=3, delay_s=10, factor=1, jitter=0, ordered_by_key=True)

        def start(journal: Path, time: ManualClock, handler: Any) -> AsyncDispatcher:
            dispatcher = AsyncDispatcher(
                journal=JournalWriter(journal, JournalConfig(write_ahead=True)), time_service=time
            )
            dispatcher.register(Job, handler, events=Posted, on_error=policy)
            dispatcher.init()
            dispatcher.start()
            return dispatcher

        first = start(tmp_path / "journal", clock, Failing({1: 1}))
        first.post(Posted(Job.STARTED, 1))
        until(lambda: first.core.retries.next_attempt_s() > 0, "its next attempt is in the log")
        first.post(Posted(Job.STARTED, 2))
        until(lambda: first.stats().retrying == 2, "the other one waits behind it")
        crashed = after_a_crash(tmp_path / "journal", tmp_path / "crashed")
        first.set_drain_events_on_stop(False)
        first.stop()

        handler, later = Failing({}), ManualClock(clock.current_processing_time())
        second = start(crashed, later, handler)
        settle(second, later, 10_000)
        assert second.await_drained(TIMEOUT_S)
        second.stop()

        assert handler.seen == [1, 2]


@dataclass
class OfOrder:
    type: Job
    number: int
    lock_key: str = "order-1"


class TestOrderOfRecovery:
    """Event 2 has failed once, and event 1 of its key, accepted before it, has no row yet: then the process dies."""

    @pytest.fixture
    def crashed(self, tmp_path: Path, clock: ManualClock) -> Path:
        with running_loop() as loop:
            handler = Latched(loop)
            journal = JournalWriter(tmp_path / "journal", JournalConfig(write_ahead=True))
            dispatcher = AsyncDispatcher(DispatcherConfig(drain_timeout_s=0.05), journal=journal, time_service=clock)
            policy = Retry(attempts=3, delay_s=10, factor=1, jitter=0)
            several = AsyncioHandler(handler, loop=loop, per_key=2)
            dispatcher.register(Job, several, events=OfOrder, on_error=policy)
            with dispatcher:
                for number in (1, 2, 3):
                    dispatcher.post(OfOrder(Job.STARTED, number))
                handler.await_begun(1, 2)
                handler.end(2, error=OSError())
                until(lambda: dispatcher.core.retries.next_attempt_s() > 0, "its next attempt is in the log")
                crashed = after_a_crash(tmp_path / "journal", tmp_path / "crashed")
                dispatcher.set_drain_events_on_stop(False)
        return crashed

    def start(self, journal: Path, clock: ManualClock, handler: Any, *, ordered: bool = True) -> AsyncDispatcher:
        dispatcher = AsyncDispatcher(
            journal=JournalWriter(journal, JournalConfig(write_ahead=True)), time_service=clock
        )
        policy = Retry(attempts=5, delay_s=10, factor=1, jitter=0, ordered_by_key=ordered)
        dispatcher.register(Job, handler, events=OfOrder, on_error=policy)
        dispatcher.init()
        dispatcher.start()
        return dispatcher

    @pytest.mark.parametrize("ordered", [False, True])
    def test_an_attempt_that_is_due_comes_behind_what_was_accepted_before_it(
        self, crashed: Path, clock: ManualClock, ordered: bool
    ) -> None:
        """Events that had failed came first: an order was paid before it was placed."""
        clock.advance(10_000)
        handler = Failing({})
        dispatcher = self.start(crashed, clock, handler, ordered=ordered)
        assert dispatcher.await_drained(TIMEOUT_S)
        dispatcher.stop()

        assert handler.seen == [1, 2, 3]

    @pytest.mark.parametrize("failures", [{}, {1: 1}, {1: 2, 2: 1}, {2: 2}, {1: 1, 3: 1}], ids=str)
    def test_an_attempt_that_is_not_due_lets_what_was_accepted_before_it_pass(
        self, crashed: Path, clock: ManualClock, failures: dict[int, int]
    ) -> None:
        handler = Failing(failures)
        dispatcher = self.start(crashed, clock, handler)
        until(lambda: dispatcher.stats().retrying >= 1 and not dispatcher.has_work(), "2 is not due")
        assert set(handler.seen) <= {1}
        advance_until_drained(dispatcher, clock)
        dispatcher.stop()

        assert handler.seen == sorted(handler.seen)
        assert [handler.seen.count(number) for number in (1, 2, 3)] == [
            failures.get(number, 0) + 1 for number in (1, 2, 3)
        ]

    def test_an_ask_that_is_withdrawn_behind_its_key_does_not_come_again(
        self, clock: ManualClock, tmp_path: Path
    ) -> None:
        first, handler = self.start(tmp_path / "journal", clock, Failing({1: 9})), Failing({})
        first.post(OfOrder(Job.STARTED, 1))
        asked = first.ask(OfOrder(Job.STARTED, 2))
        until(lambda: first.stats().retrying == 2, "2 waits behind 1, which has failed")

        assert asked.cancel()
        crashed = after_a_crash(tmp_path / "journal", tmp_path / "crashed")
        first.set_drain_events_on_stop(False)
        first.stop()
        second = self.start(crashed, clock, handler)
        advance_until_drained(second, clock)
        second.stop()

        assert handler.seen == [1]

    def test_an_attempt_keeps_its_place_over_further_crashes(
        self, crashed: Path, clock: ManualClock, tmp_path: Path
    ) -> None:
        for generation in range(2):
            clock.advance(10_000)
            dispatcher = self.start(crashed, clock, Failing({1: 9, 2: 9, 3: 9}), ordered=False)
            until(lambda dispatcher=dispatcher: dispatcher.stats().retrying == 3, "all have failed")
            until(lambda dispatcher=dispatcher: not dispatcher.core.queue.shutdown.under_way, "that is in the log")
            crashed = after_a_crash(crashed, tmp_path / f"crashed {generation}")
            dispatcher.set_drain_events_on_stop(False)
            dispatcher.stop()

        clock.advance(10_000)
        handler = Failing({})
        dispatcher = self.start(crashed, clock, handler)
        assert dispatcher.await_drained(TIMEOUT_S)
        dispatcher.stop()

        assert handler.seen == [1, 2, 3]


class TestRedelivering:
    @pytest.mark.parametrize("is_async", [False, True])
    def test_each_attempt_of_an_earlier_runs_event_is_redelivering(
        self, tmp_path: Path, clock: ManualClock, is_async: bool
    ) -> None:
        """From the second attempt on, and in coroutines, it described no event or another one."""
        gate = Gate()
        first = AsyncDispatcher(journal=JournalWriter(tmp_path / "journal", JournalConfig(write_ahead=True)))
        first.register(Job, gate.handle, events=Posted)
        with first:
            first.post(Posted(Job.STARTED, 1))
            assert gate.entered.wait(TIMEOUT_S)
            crashed = after_a_crash(tmp_path / "journal", tmp_path / "crashed")
            gate.opened.set()

        seen: list[tuple[int, bool]] = []

        def note(event: Posted) -> None:
            seen.append((second.attempt(), second.is_redelivering()))
            if second.attempt() < 3:
                raise OSError

        async def note_later(event: Posted) -> None:
            await asyncio.sleep(0)
            note(event)

        with running_loop() as loop:
            second = AsyncDispatcher(
                journal=JournalWriter(crashed, JournalConfig(write_ahead=True)), time_service=clock, loop=loop
            )
            policy = Retry(attempts=3, delay_s=1, factor=1, jitter=0)
            second.register(Job, note_later if is_async else note, events=Posted, on_error=policy)
            with second:
                advance_until_drained(second, clock)

        assert seen == [(1, True), (2, True), (3, True)]
        rows = [(row["outcome"], row["redelivered"]) for row in read_rows(crashed, EVENTS)]
        assert rows == [("retried", True), ("retried", True), ("handled", True)]

    def test_a_caller_that_handles_no_event_is_not_redelivering(self, make: Make) -> None:
        dispatcher = make(handler=Gate().handle)

        assert (dispatcher.attempt(), dispatcher.is_redelivering()) == (1, False)


class TestDeadLetters:
    def test_a_folder_keeps_the_event_its_error_and_its_attempts(self, make: Make, tmp_path: Path) -> None:
        for number in (1, 2):  # the second run continues the folder
            dispatcher = make(dead_letters=tmp_path)
            dispatcher.register(Job, Failing({1: 9, 2: 9}), on_error=Retry(attempts=1), events=Posted)
            dispatcher.post(Posted(Job.STARTED, number))
            assert dispatcher.await_drained(TIMEOUT_S)
            dispatcher.stop()

        letters = list(read_letters(recover(tmp_path).accepted, tmp_path))

        assert [letter.event["number"] for letter in letters] == [1, 2]
        assert [(letter.event_class, letter.event_type, letter.is_declared) for letter in letters] == [
            ("Job", "STARTED", True)
        ] * 2
        assert [(each.error, each.attempts) for each in letters] == [("OSError: 1", 1), ("OSError: 2", 1)]
        assert "in handle" in letters[0].traceback

    def test_an_event_that_was_not_declared_is_kept_as_text(self, make: Make, tmp_path: Path) -> None:
        dispatcher = make(dead_letters=tmp_path, handler=Failing({1: 1}))
        dispatcher.post(Numbered(1))
        assert dispatcher.await_drained(TIMEOUT_S)
        dispatcher.stop()

        [letter] = read_letters(recover(tmp_path).accepted, tmp_path)

        assert (letter.event, letter.is_declared) == ("<Numbered Work.DO>", False)

    def test_another_dispatcher_gets_them_as_events(self, make: Make) -> None:
        gate = Gate()
        gate.opened.set()
        other = AsyncDispatcher(name="undertaker")
        other.register(DeadLetterType, gate)
        with other:
            dispatcher = make(dead_letters=other, handler=Failing({1: 1}))
            dispatcher.post(Numbered(1))
            assert dispatcher.await_drained(TIMEOUT_S)
            assert other.await_drained(TIMEOUT_S)

        assert [letter.event.number for letter in gate.events] == [1]

    def test_a_handler_of_dead_letters_that_raises_loses_no_other_event(
        self, make: Make, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(letter: DeadLetter) -> None:
            raise SystemExit

        handler = Failing({1: 1})
        dispatcher = make(dead_letters=fail, handler=handler)
        dispatcher.post(Numbered(1))
        dispatcher.post(Numbered(2))

        assert dispatcher.await_drained(TIMEOUT_S)
        assert handler.seen == [1, 2]
        assert "the dead letter of <Numbered Work.DO> is lost" in caplog.text

    def test_what_is_none_of_them_is_named(self) -> None:
        with pytest.raises(TypeError, match="dead_letters must be a handler, a dispatcher or a folder, not 7"):
            AsyncDispatcher(dead_letters=7)  # type: ignore[arg-type]


def test_a_failure_amid_a_stop_from_the_handler_is_not_tried_for_ever(make: Make) -> None:
    """The handler stops the dispatcher without a drain, and fails: its event is discarded, and not left retrying."""
    dispatcher = make()
    stopped = threading.Event()

    def fail(event: Numbered) -> None:
        dispatcher.set_drain_events_on_stop(False)
        dispatcher.stop()
        stopped.set()
        raise OSError

    dispatcher.register(Work, fail, on_error=Retry(delay_s=3600, max_delay_s=3600))
    dispatcher.post(Numbered())

    assert stopped.wait(TIMEOUT_S)
    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
    assert dispatcher.stats().discarded_by_reason == {"stop": 1}


def _is_retrying(dispatcher: AsyncDispatcher, events: int) -> bool:
    return dispatcher.stats().retrying == events


class Incomparable:
    """A key whose comparison raises."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("incomparable")

    def __hash__(self) -> int:
        return 1


@pytest.mark.parametrize("key", [[], Incomparable()], ids=["unhashable", "incomparable"])
def test_a_key_that_cannot_be_compared_ends_no_dispatcher(make: Make, clock: ManualClock, key: Any) -> None:
    """Its error ended the handler thread; of events of other classes, too."""
    handler = Failing({1: 1})
    dispatcher = make(time_service=clock)
    dispatcher.register(Work, handler, on_error=Retry(delay_s=0.1, jitter=0, ordered_by_key=True))
    for number in (1, 2):
        dispatcher.post(Keyed(number, key))
    dispatcher.post(Keyed(3, "a"))
    settle(dispatcher, clock, 200)

    assert sorted(handler.seen) == [1, 1, 2, 3]
    assert_accounts_balance(dispatcher, 3)


def test_events_behind_one_that_was_dropped_go_on(make: Make, clock: ManualClock, gate: Gate) -> None:
    """They stayed retrying for ever, once the one they waited for was dropped as the oldest of a full queue."""
    handler = Failing({1: 9})
    dispatcher = make(DispatcherConfig(queue_capacity=1, queue_full_policy="drop_oldest"), time_service=clock)
    policy = Retry(delay_s=0.1, jitter=0, ordered_by_key=True)
    dispatcher.register(Work, handler, on_error=policy)
    dispatcher.register(Other, gate)
    for number in (1, 2):
        dispatcher.post(Keyed(number, "a"))
        until(partial(_is_retrying, dispatcher, number), "1 has failed, and 2 waits behind it")
    dispatcher.post(Numbered(type=Other.DO))  # type: ignore[arg-type]
    assert gate.entered.wait(TIMEOUT_S)
    clock.advance(1000)  # 1 is queued
    dispatcher.post(Numbered(3))

    gate.opened.set()

    assert dispatcher.await_drained(TIMEOUT_S)
    assert handler.seen == [1, 2, 3]
    assert dispatcher.stats().discarded_by_reason == {"drop_oldest": 1}


def test_events_behind_one_go_on_if_its_handler_was_replaced(make: Make, clock: ManualClock) -> None:
    first, second = Failing({1: 1}), Failing({})
    dispatcher = make(time_service=clock)
    dispatcher.register(Work, first, on_error=Retry(delay_s=0.1, jitter=0, ordered_by_key=True))
    for number in (1, 2):
        dispatcher.post(Keyed(number, "a"))
    until(lambda: dispatcher.stats().retrying == 2, "1 has failed, and 2 waits behind it")

    dispatcher.unregister(Work, first)
    dispatcher.register(Work, second)
    settle(dispatcher, clock, 200)

    assert dispatcher.is_drained()
    assert second.seen == [1, 2]


@pytest.mark.parametrize("policy", ["block", "reject"])
def test_a_stop_without_a_drain_ends_while_a_retry_waits_for_room(
    make: Make, clock: ManualClock, gate: Gate, policy: Any
) -> None:
    """The stop woke the retry, which found no room and waited again, without end."""
    config = DispatcherConfig(
        queue_capacity=1, queue_full_policy=policy, drain_events_on_stop=False, drain_timeout_s=0.05
    )
    dispatcher = make(config, time_service=clock)
    dispatcher.register(Work, Failing({1: 1}), on_error=Retry(delay_s=0.1, jitter=0))
    dispatcher.register(Other, gate)
    dispatcher.post(Numbered(1))
    until(lambda: dispatcher.stats().retrying == 1, "it has failed")
    dispatcher.post(Numbered(type=Other.DO))  # type: ignore[arg-type]
    assert gate.entered.wait(TIMEOUT_S)
    dispatcher.post(Numbered(2))
    clock.advance(1000)

    stopping = threading.Thread(target=dispatcher.stop, daemon=True)
    stopping.start()
    stopping.join(TIMEOUT_S)

    assert not stopping.is_alive()
    gate.opened.set()
    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
    assert dispatcher.stats().discarded_by_reason == {"stop": 2}


def test_a_failed_ask_keeps_no_event_alive(make: Make) -> None:
    """Its error's traceback led to the frames that led to the ask: a cycle."""

    def fail(event: Keyed) -> None:
        raise OSError

    dispatcher = make(handler=fail)
    event = OfEntity()
    gone = weakref.ref(event)
    logging.disable(logging.CRITICAL)  # pytest keeps the records, and their errors
    gc.disable()
    try:
        error = dispatcher.ask(event).exception(TIMEOUT_S)
        is_right = isinstance(error, OSError)
        del event, error
        assert dispatcher.await_drained(TIMEOUT_S)
        until(lambda: gone() is None, "the event is gone")
    finally:
        gc.enable()
        logging.disable(logging.NOTSET)
    assert is_right


def test_an_event_keeps_a_field_of_its_own_that_is_called_attempt(make: Make) -> None:
    """A field that happened to equal the number of the attempt was counted up."""

    @dataclass
    class Container:
        type: Work
        attempt: int

    seen: list[int] = []

    def fail(event: Container) -> None:
        seen.append(event.attempt)
        raise OSError

    dispatcher = make()
    dispatcher.register(Work, fail, on_error=Retry(attempts=3, delay_s=0))
    dispatcher.post(Container(Work.DO, 1))

    until(lambda: dispatcher.stats().failed == 1, "it has failed for good")
    assert seen == [1, 1, 1]


def test_a_dead_letter_that_fails_makes_no_other_one() -> None:
    """A dispatcher that was given as its own dead letters' dispatcher made them until the stack was full."""

    def fail(event: Any) -> None:
        raise OSError

    dispatcher = AsyncDispatcher()
    letters: list[Any] = []

    class Forward:
        def post_nowait(self, event: Any) -> bool:
            letters.append(event)
            return dispatcher.post(event)

    dispatcher = AsyncDispatcher(dead_letters=Forward())
    dispatcher.register(Work, fail)
    dispatcher.register(DeadLetterType, fail)
    with dispatcher:
        dispatcher.post(Numbered())
        assert dispatcher.await_drained(TIMEOUT_S)

    assert len(letters) == 1
    assert dispatcher.stats().failed == 2


def test_a_failure_is_counted_once_its_dead_letter_exists(make: Make) -> None:
    """A reader of the counts found a failure without its letter."""
    counted: list[int] = []
    dispatcher = make(handler=Failing({1: 1}), dead_letters=lambda _: counted.append(dispatcher.stats().failed))

    dispatcher.post(Numbered(1))

    assert dispatcher.await_drained(TIMEOUT_S)
    assert (counted, dispatcher.stats().failed) == ([0], 1)


def test_an_ask_whose_attempt_waits_behind_another_event_is_not_withdrawn_and_answered(
    make: Make, clock: ManualClock
) -> None:
    """Its second attempt waited behind an event that kept the order: `cancel` returned True, and it was handled."""
    policies = {1: Retry(delay_s=0.1, jitter=0), 2: Retry(delay_s=1, jitter=0, ordered_by_key=True)}
    handler = Failing({1: 1, 2: 1})
    dispatcher = make(time_service=clock)
    dispatcher.register(Work, handler, on_error=lambda event, _: policies[event.number])
    asked = dispatcher.ask(Keyed(1, "a"))
    dispatcher.post(Keyed(2, "a"))
    settle(dispatcher, clock, 200)

    is_withdrawn = asked.cancel()
    settle(dispatcher, clock, 1000)

    assert (is_withdrawn, asked.result(TIMEOUT_S)) == (False, 1)
    assert handler.seen == [1, 2, 2, 1]
