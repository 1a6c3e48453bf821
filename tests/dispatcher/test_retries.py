"""on_error=Retry(...): a failed event comes again; what has failed for good is a dead letter."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher import (
    AsyncDispatcher,
    DeadLetter,
    DeadLetters,
    DeadLetterType,
    DispatcherConfig,
    EventDiscardedError,
    JournalConfig,
    JournalWriter,
    Retry,
)
from dispatcher.aio import AsyncioHandler
from dispatcher.journal import EVENTS, read_rows
from dispatcher.mailbox import ManualClock

from ..kit import TIMEOUT_S, Gate, Numbered, OfEntity, Other, Work, assert_accounts_balance, tries, until
from ..kit.coroutines import Keyed, Latched, running_loop
from ..kit.dispatchers import Make, hold, stopping
from ..kit.journals import Job, Posted, after_a_crash
from .stage import Rows, perform, scenarios

NOW_MS = 1_800_000_000_000
QUICK: dict[str, Any] = {"delay_s": 0.1, "jitter": 0}
IN_AN_HOUR: dict[str, Any] = {"delay_s": 3600, "max_delay_s": 3600, "jitter": 0}
ORDERED: dict[str, Any] = {**QUICK, "ordered_by_key": True}


ENDS: dict[int, Any] = {1: Retry(attempts=1, then="continue"), 2: Retry(attempts=1), 3: "continue"}
ORDERS = {1: Retry(**QUICK), 2: Retry(delay_s=1, jitter=0, ordered_by_key=True)}
STOPS = "post 1 | ended -> failure OSError 1 STARTED ; letters 1:1:OSError"
FULL: dict[str, Any] = {"fails": {1: 1}, "on_error": Retry(**QUICK), "queue_capacity": 1}


def decide(event: Any, error: BaseException) -> Any:
    if event.number == 3:
        raise RuntimeError("cannot decide")
    return Retry(attempts=2, **QUICK) if event.number == 1 else "continue"


ROWS: Rows = {
    "an event comes again after its delays, and other events go on": (
        "post 1 2 | +900 -> seen 1 2 ; retrying 1 | +100 -> seen 1 2 1 | +1900 -> seen 1 2 1"
        " | +100 -> seen 1 2 1 1 ; handled 2 ; failed 0 ; retried_by_type Work.DO:2 ; retrying 0",
        {"on_error": Retry(attempts=3, delay_s=1, factor=2, jitter=0), "fails": {1: 2}},
    ),
    "the handler knows its attempt, and after the last one the event has failed and is a dead letter": (
        "post 1 | +1000 -> attempts 1:1 1:2 1:3 ; failed 1 ; letters 1:3:OSError",
        {"on_error": Retry(attempts=3, **QUICK), "fails": {1: 9}},
    ),
    "a stop that follows the last attempt fails the dispatcher": (
        STOPS, {"on_error": Retry(attempts=1, then="stop"), "fails": {1: 9}},
    ),
    "a stop that a function decides does so too": (STOPS, {"on_error": lambda *_: "stop", "fails": {1: 9}}),
    "a stop waits for an attempt that falls due in its time": (
        "post 1 | +0 -> retrying 1 | begin stop | +100 | ended -> seen 1 1 ; handled 1 ; discarded 0",
        {"on_error": Retry(**QUICK), "fails": {1: 1}},
    ),
    "with the then continue it is no dead letter": (
        "post 1 2 | +0 -> seen 1 2 ; failed 1 ; letters",
        {"on_error": Retry(attempts=1, then="continue"), "fails": {1: 9}},
    ),
    "another error is not tried again": (
        "post 1 | +500 -> seen 1 ; failed 1", {"on_error": Retry(on=TimeoutError), "fails": {1: 9}},
    ),
    "without a retry every failure is a dead letter": ("post 1 | +0 -> letters 1:1:OSError", {"fails": {1: 1}}),
    "a function decides about each error": (
        "post 1 2 3 | +500 -> seen 1 2 3 1 ; failed 2", {"on_error": decide, "fails": {1: 1, 2: 9, 3: 9}},
    ),
    "then of a retry that a function returned says what follows": (
        "post 1 2 3 | +0 -> letters 2:1:OSError 3:1:OSError",
        {"on_error": lambda event, _: ENDS[event.number], "fails": {1: 1, 2: 1, 3: 1}},
    ),
    "the answer to an ask comes after the last attempt": (
        "ask 1 2 | +0 -> retrying 2 ; answers ... ... | cancel 1 -> cancelled False | +200 -> answers 1 OSError",
        {"on_error": Retry(attempts=2, **QUICK), "fails": {1: 1, 2: 9}},
    ),
    "an ask whose attempt waits behind another event is not withdrawn and answered": (
        "ask 1:a | post 2:a | +200 | cancel 1 -> cancelled False | +1000 -> answers 1 ; seen 1 2 2 1",
        {"on_error": lambda event, _: ORDERS[event.number], "fails": {1: 1, 2: 1}},
    ),
    "a full queue does not lose an event that comes again": (
        "post 1 | +0 -> retrying 1 | hold | post 2 | +1000 -> retrying 1 | release -> seen 1 2 1",
        FULL | {"queue_full_policy": "reject"},
    ),
    "events behind one that was dropped go on": (
        "post 1:a | +0 -> retrying 1 | post 2:a | +0 -> retrying 2 | hold 9 | +1000 | post 3 | release"
        " -> seen 1 9 2 3 ; discarded_by_reason drop_oldest:1",
        FULL | {"queue_full_policy": "drop_oldest", "on_error": Retry(**ORDERED)},
    ),
    "a stop without a drain ends while a retry waits for room": (
        "post 1 | +0 -> retrying 1 | hold | post 2 | +1000 | stop -> discarded_by_reason stop:2",
        FULL | {"drain_events_on_stop": False, "drain_timeout_s": 0.05},
    ),
    "the same if no post waits for room": (
        "post 1 | +0 -> retrying 1 | hold | post 2 | +1000 | stop -> discarded_by_reason stop:2",
        FULL | {"queue_full_policy": "reject", "drain_events_on_stop": False, "drain_timeout_s": 0.05},
    ),
}  # fmt: skip

IN_TEN_S = Retry(attempts=3, delay_s=10, factor=2, jitter=0)
DURABLE: Rows = {
    "attempts and delays survive a crash": (
        "post 1 | +4000 | crash | +5900 -> seen 1 ; retrying 1 | +100 -> seen 1 1 | +20000"
        " -> seen 1 1 1 ; letters 1:3:OSError | crash -> retrying 0 ; queue_size 0",
        {"on_error": IN_TEN_S, "fails": {1: 9}},
    ),
    "later events of the key stay behind over a crash": (
        "post 1:a 2:a | +0 -> retrying 2 | crash | +10000 -> seen 1 1 2",
        {"on_error": Retry(attempts=3, delay_s=10, factor=1, jitter=0, ordered_by_key=True), "fails": {1: 1}},
    ),
    "an ask that is withdrawn behind its key does not come again": (
        "post 1:a | ask 2:a | +0 -> retrying 2 | cancel 2 -> cancelled True | crash | +10000 -> seen 1 1",
        {"on_error": Retry(attempts=5, delay_s=10, factor=1, jitter=0, ordered_by_key=True), "fails": {1: 1}},
    ),
}  # fmt: skip


@scenarios(ROWS)
def test_scenario(script: str, options: dict[str, Any]) -> None:
    perform(script, **options)


@scenarios(DURABLE)
def test_durable(tmp_path: Path, script: str, options: dict[str, Any]) -> None:
    perform(script, journal=tmp_path / "journal", **options)


def test_a_stop_that_gives_up_says_that_it_discards_what_is_retrying(caplog: pytest.LogCaptureFixture) -> None:
    ordered = Retry(**IN_AN_HOUR, ordered_by_key=True)
    script = "ask 1 | +0 -> retrying 1 | stop -> answers EventDiscardedError:stop ; discarded_by_reason stop:1"
    perform(script, on_error=ordered, fails={1: 9}, drain_timeout_s=0.05)

    assert "stop discarded 1 event that waited for its next attempt: 1 Work.DO" in caplog.text


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


class Failing:
    """A handler that fails for the first `times` attempts at each event of these numbers, and notes all attempts."""

    def __init__(self, failures: dict[int, int]) -> None:
        self.left = dict(failures)
        self.seen: list[int] = []

    def handle(self, event: Any) -> int:
        self.seen.append(event.number)
        if self.left.get(event.number, 0):
            self.left[event.number] -= 1
            raise OSError(event.number)
        number: int = event.number
        return number


def await_rest(dispatcher: AsyncDispatcher) -> None:
    """Let the handler thread do what it can."""
    until(lambda: not dispatcher.has_work() and not dispatcher.stats().in_hand, "nothing is left but what is retrying")


def settle(dispatcher: AsyncDispatcher, clock: ManualClock, ms: int, step_ms: int = 100) -> None:
    """Advance, and let the handler thread do what it can before and after each step."""
    await_rest(dispatcher)
    for _ in range(ms // step_ms):
        clock.advance(step_ms)
        await_rest(dispatcher)


def test_a_stop_does_not_wait_for_attempts_that_come_too_late(make: Make, gate: Gate) -> None:
    """Neither of events that have failed, nor of one that fails amid the stop."""
    dispatcher = make(DispatcherConfig(drain_timeout_s=3000))
    dispatcher.register(Other, gate)
    dispatcher.register(Work, Failing({1: 9, 2: 9}), on_error=Retry(**IN_AN_HOUR))
    asked = dispatcher.ask(Numbered(1))
    until(lambda: dispatcher.stats().retrying == 1, "it has failed once")
    hold(dispatcher, gate, Numbered(type=Other.DO))  # type: ignore[arg-type]
    dispatcher.post(Numbered(2))

    with stopping(dispatcher):
        gate.opened.set()

    assert isinstance(asked.exception(0), EventDiscardedError)
    assert dispatcher.stats().discarded_by_reason == {"stop": 2}
    assert_accounts_balance(dispatcher, 3)


def test_a_dead_letter_has_the_event_and_where_it_failed(make: Make) -> None:
    letters: list[DeadLetter] = []
    event = Numbered(1)
    dispatcher = make(dead_letters=letters.append, handler=Failing({1: 9}))

    dispatcher.post(event)
    dispatcher.post(Numbered(type=Other.DO))  # type: ignore[arg-type]
    await_rest(dispatcher)

    letter, unregistered = letters
    assert (letter.event, letter.dispatcher) == (event, "AsyncDispatcher")
    assert "in handle" in letter.traceback
    assert type(unregistered.error).__name__ == "UnregisteredEventTypeError"


def test_events_behind_one_go_on_if_its_handler_was_replaced(make: Make, clock: ManualClock) -> None:
    first, second = Failing({1: 1}), Failing({})
    dispatcher = make(time_service=clock)
    dispatcher.register(Work, first, on_error=Retry(**ORDERED))
    for number in (1, 2):
        dispatcher.post(Keyed(number, "a"))
    until(lambda: dispatcher.stats().retrying == 2, "1 has failed, and 2 waits behind it")

    dispatcher.unregister(Work, first)
    dispatcher.register(Work, second)
    settle(dispatcher, clock, 200)

    assert dispatcher.is_drained()
    assert second.seen == [1, 2]


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
        if event.number % 2:
            await asyncio.sleep(0)
        return handler.handle(event)

    with running_loop() as loop:
        dispatcher = AsyncDispatcher(time_service=clock, dead_letters=letters.append, loop=loop)
        dispatcher.register(Work, handle if is_async else handler, on_error=policy)
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


# -- durable events ----------------------------------------------------------------------------------------------------


def durable(
    journal: Path, clock: ManualClock, handler: Any, policy: Any = "continue", *, events: Any = Posted, **options: Any
) -> AsyncDispatcher:
    """A dispatcher in write-ahead mode, not started."""
    writer = JournalWriter(journal, JournalConfig(write_ahead=True))
    dispatcher = AsyncDispatcher(journal=writer, time_service=clock, **options)
    dispatcher.register(Job, handler, events=events, on_error=policy)
    return dispatcher


def crash(dispatcher: AsyncDispatcher, journal: Path, copy: Path) -> Path:
    """A copy of the journal as a crash leaves it now; then the dispatcher stops, and handles nothing more."""
    crashed = after_a_crash(journal, copy)
    dispatcher.set_drain_events_on_stop(False)
    dispatcher.stop()
    return crashed


def advance_until_drained(dispatcher: AsyncDispatcher, clock: ManualClock) -> None:
    """In write-ahead mode, an attempt is scheduled only once its line is in the log."""
    until(lambda: clock.advance(1000) or dispatcher.is_drained(), "all attempts are made")


@dataclass
class OfOrder:
    type: Job
    number: int
    lock_key: str = "order-1"


class TestOrderOfRecovery:
    """Event 2 has failed once, and event 1 of its key, accepted before it, has no row yet: then the process dies."""

    @pytest.fixture
    def crashed(self, tmp_path: Path, clock: ManualClock) -> Path:
        policy = Retry(attempts=3, delay_s=10, factor=1, jitter=0)
        with running_loop() as loop:
            handler = Latched(loop)
            several = AsyncioHandler(handler, loop=loop, per_key=2)
            config = DispatcherConfig(drain_timeout_s=0.05)
            with durable(tmp_path / "journal", clock, several, policy, events=OfOrder, config=config) as dispatcher:
                for number in (1, 2, 3):
                    dispatcher.post(OfOrder(Job.STARTED, number))
                handler.await_begun(1, 2)
                handler.end(2, error=OSError())
                until(lambda: dispatcher.core.retries.next_attempt_s() > 0, "its next attempt is in the log")
                return crash(dispatcher, tmp_path / "journal", tmp_path / "crashed")

    def make(self, journal: Path, clock: ManualClock, handler: Any, *, ordered: bool = True) -> AsyncDispatcher:
        policy = Retry(attempts=5, delay_s=10, factor=1, jitter=0, ordered_by_key=ordered)
        return durable(journal, clock, handler, policy, events=OfOrder)

    @pytest.mark.parametrize("ordered", [False, True])
    def test_an_attempt_that_is_due_comes_behind_what_was_accepted_before_it(
        self, crashed: Path, clock: ManualClock, ordered: bool
    ) -> None:
        """Events that had failed came first: an order was paid before it was placed."""
        clock.advance(10_000)
        handler = Failing({})
        with self.make(crashed, clock, handler, ordered=ordered) as dispatcher:
            assert dispatcher.await_drained(TIMEOUT_S)

        assert handler.seen == [1, 2, 3]

    @pytest.mark.parametrize("failures", [{}, {1: 1}, {1: 2, 2: 1}, {2: 2}, {1: 1, 3: 1}], ids=str)
    def test_an_attempt_that_is_not_due_lets_what_was_accepted_before_it_pass(
        self, crashed: Path, clock: ManualClock, failures: dict[int, int]
    ) -> None:
        handler = Failing(failures)
        with self.make(crashed, clock, handler) as dispatcher:
            until(lambda: dispatcher.stats().retrying >= 1 and not dispatcher.has_work(), "2 is not due")
            assert set(handler.seen) <= {1}
            advance_until_drained(dispatcher, clock)

        assert handler.seen == sorted(handler.seen)
        assert [handler.seen.count(number) for number in (1, 2, 3)] == [
            failures.get(number, 0) + 1 for number in (1, 2, 3)
        ]

    def test_an_attempt_keeps_its_place_over_further_crashes(
        self, crashed: Path, clock: ManualClock, tmp_path: Path
    ) -> None:
        for generation in range(2):
            clock.advance(10_000)
            with self.make(crashed, clock, Failing({1: 9, 2: 9, 3: 9}), ordered=False) as dispatcher:
                until(lambda dispatcher=dispatcher: dispatcher.stats().retrying == 3, "all have failed")
                until(lambda dispatcher=dispatcher: not dispatcher.core.queue.shutdown.under_way, "that is in the log")
                crashed = crash(dispatcher, crashed, tmp_path / f"crashed {generation}")

        clock.advance(10_000)
        handler = Failing({})
        with self.make(crashed, clock, handler) as dispatcher:
            assert dispatcher.await_drained(TIMEOUT_S)

        assert handler.seen == [1, 2, 3]


class TestRedelivering:
    @pytest.mark.parametrize("is_async", [False, True])
    def test_each_attempt_of_an_earlier_runs_event_is_redelivering(
        self, tmp_path: Path, clock: ManualClock, is_async: bool
    ) -> None:
        """From the second attempt on, and in coroutines, it described no event or another one."""
        gate = Gate()
        with durable(tmp_path / "journal", clock, gate) as first:
            hold(first, gate, Posted(Job.STARTED, 1))
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
            policy = Retry(attempts=3, delay_s=1, factor=1, jitter=0)
            second = durable(crashed, clock, note_later if is_async else note, policy, loop=loop)
            with second:
                advance_until_drained(second, clock)

        assert seen == [(1, True), (2, True), (3, True)]
        rows = [(row["outcome"], row["redelivered"]) for row in read_rows(crashed, EVENTS)]
        assert rows == [("retried", True), ("retried", True), ("handled", True)]


class TestDeadLetters:
    def test_a_folder_is_continued_by_the_next_run(self, make: Make, tmp_path: Path) -> None:
        for number in (1, 2):
            dispatcher = make(dead_letters=tmp_path)
            dispatcher.register(Job, Failing({1: 9, 2: 9}), events=Posted)
            dispatcher.post(Posted(Job.STARTED, number))
            dispatcher.stop()

        assert [(each.event["number"], each.error, each.is_declared) for each in DeadLetters(tmp_path)] == [
            (1, "OSError: 1", True),
            (2, "OSError: 2", True),
        ]

    def test_an_event_that_was_not_declared_is_kept_as_text(self, make: Make, tmp_path: Path) -> None:
        dispatcher = make(dead_letters=tmp_path, handler=Failing({1: 1}))
        dispatcher.post(Numbered(1))
        assert dispatcher.await_drained(TIMEOUT_S)
        dispatcher.stop()

        [letter] = DeadLetters(tmp_path)

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
