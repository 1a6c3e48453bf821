"""One contract for every function that hands an event to its handler and counts it.

They are written by hand for speed. Each pair of a loop and an outcome below gives the same counts, times and failures,
whether or not the queue is bounded.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dispatcher import (
    AsyncDispatcher,
    DispatcherConfig,
    DispatcherStats,
    Event,
    JournalWriter,
    Retry,
    UnregisteredEventTypeError,
)
from dispatcher.aio import AsyncioHandler
from dispatcher.journal import EVENTS, read_rows
from dispatcher.testing import DrainDispatcher, ManualClock

from ..kit import TIMEOUT_S, Numbered, Other, Work, until
from ..kit.coroutines import running_loop

CAPACITY = 10
SLOW_S = 0.001
ANSWER = "answer"

Post = Callable[[DrainDispatcher, ManualClock, list[Any]], None]


def rest(dispatcher: DrainDispatcher, clock: ManualClock) -> None:
    """Return once the handler thread waits with all done, what is tried again too. The clock stands still, so that no
    check of slow handlers cuts a batch short."""

    def is_drained() -> bool:
        clock.advance(0)
        return dispatcher.is_drained()

    until(is_drained)
    dispatcher.wait_for_event_thread_to_wait(TIMEOUT_S)


def post_alone(dispatcher: DrainDispatcher, clock: ManualClock, events: list[Any]) -> None:
    """Each while the handler thread waits for it."""
    for event in events:
        rest(dispatcher, clock)
        assert dispatcher.post(event)


def post_in_turn(dispatcher: DrainDispatcher, clock: ManualClock, events: list[Any]) -> None:
    """Each while the handler thread is awake, so that it makes a batch of its own."""
    for event in events:
        rest(dispatcher, clock)
        assert dispatcher.mailbox_executor.submit(partial(dispatcher.post, event)).result(TIMEOUT_S)


def post_together(dispatcher: DrainDispatcher, clock: ManualClock, events: list[Any]) -> None:
    """While the handler thread is busy with a mail, so that they make one batch."""
    rest(dispatcher, clock)
    assert all(dispatcher.mailbox_executor.submit(lambda: list(map(dispatcher.post, events))).result(TIMEOUT_S))


def ask_alone(dispatcher: DrainDispatcher, clock: ManualClock, events: list[Any]) -> None:
    for event in events:
        rest(dispatcher, clock)
        dispatcher.ask(event)


class Loop(NamedTuple):
    """A function that hands out events, and how to get an event to it."""

    function: str
    post: Post
    measure_times: str = "sampled"
    is_journaled: bool = False


LOOPS = {
    "lone": Loop("LoneEvents.dispatch", post_alone),
    "quick": Loop("BatchDispatching._dispatch_quickly", post_in_turn),
    "singly": Loop("BatchDispatching._dispatch_singly", post_together),
    "stamped": Loop("BatchDispatching._dispatch_singly", post_together, "all"),
    "stamped lone": Loop("LoneEvents.dispatch", post_alone, "all"),
    "asked": Loop("BatchDispatching._dispatch_entry", ask_alone),
    "journaled": Loop("JournaledDispatching.dispatch", post_together, is_journaled=True),
    "journaled lone": Loop("JournaledDispatching.dispatch", post_alone, is_journaled=True),
    "journaled delivery": Loop("JournaledDispatching.dispatch", ask_alone, is_journaled=True),
}


class Outcome(NamedTuple):
    """What becomes of the event in the middle of three."""

    error: BaseException | None = None
    """Raised by the first call of its handler."""
    counts_as: str = "failed"
    on_error: Any = "continue"
    event: Any = None
    """None: a Work.DO."""
    error_class: str = ""
    """Of the failure that is kept; empty: of `error`."""
    is_async: bool = False


NO_EVENT = object()
OUTCOMES = {
    "handled": Outcome(counts_as="handled"),
    "raised": Outcome(ValueError("broken")),
    "raised as by an empty queue": Outcome(IndexError("pop from an empty deque")),
    "raised as by the end of an iterator": Outcome(StopIteration()),
    "raised as by an exit": Outcome(SystemExit(3)),
    "raised as by Ctrl-C": Outcome(KeyboardInterrupt()),
    "raised as by a closed generator": Outcome(GeneratorExit()),
    "raised by a policy that goes on": Outcome(ValueError("broken"), on_error=lambda event, error: "continue"),
    "without a handler": Outcome(event=Event(Other.DO), error_class=UnregisteredEventTypeError.__name__),
    "without a type": Outcome(event=NO_EVENT, error_class=UnregisteredEventTypeError.__name__),
    "tried again": Outcome(ValueError("broken"), counts_as="handled", on_error=Retry(attempts=2, delay_s=0.0)),
    "tried in vain": Outcome(ValueError("broken"), on_error=Retry(attempts=1)),
    "taken by a coroutine": Outcome(counts_as="handled", is_async=True),
    "failed in a coroutine": Outcome(ValueError("broken"), is_async=True),
}


class Handling:
    """The handler of the three events. Notes what it sees while it has each in hand; handler thread or event loop."""

    def __init__(self, dispatcher: AsyncDispatcher, outcome: Outcome) -> None:
        self.dispatcher = dispatcher
        self.outcome = outcome
        self.calls: list[Any] = []
        self.loops: list[str] = []  # by which they came; none of a coroutine
        self.seen: list[DispatcherStats] = []

    def handle(self, event: Any) -> str:
        self.calls.append(event)
        self.loops += loops_on_stack()
        self.seen.append(self.dispatcher.stats())
        if event.type is Work.DO and self.outcome.error is not None and len(self.calls) == 2:
            raise self.outcome.error
        return ANSWER

    async def handle_async(self, event: Any) -> str:
        return self.handle(event)


def loops_on_stack() -> list[str]:
    """The innermost of the loops that have called the caller."""
    frame, functions = sys._getframe(), {loop.function for loop in LOOPS.values()}
    while frame.f_back is not None and frame.f_code.co_qualname not in functions:
        frame = frame.f_back
    return [name] if (name := frame.f_code.co_qualname) in functions else []


@contextmanager
def started(
    loop: Loop, outcome: Outcome, folder: Path, capacity: int | None = None, slow_s: float | None = None
) -> Iterator[tuple[DrainDispatcher, ManualClock, Handling]]:
    config = DispatcherConfig(
        measure_times=loop.measure_times,
        queue_capacity=capacity,
        handler_warn_after_s=slow_s,
    )
    clock = ManualClock()
    journal = JournalWriter(folder) if loop.is_journaled else None
    with running_loop() as event_loop:
        dispatcher = DrainDispatcher(config, journal=journal, time_service=clock)
        handling = Handling(dispatcher, outcome)
        handler = AsyncioHandler(handling.handle_async, loop=event_loop) if outcome.is_async else handling.handle
        dispatcher.register(Work, handler, on_error=outcome.on_error)
        with dispatcher:
            yield dispatcher, clock, handling


@pytest.mark.parametrize("capacity", [None, CAPACITY])
@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)
@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_each_loop_gives_an_event_the_same_end(
    loop: Loop, outcome: Outcome, capacity: int | None, tmp_path: Path
) -> None:
    events = [Numbered(0, type=Work.MORE), outcome.event or Numbered(1), Numbered(2, type=Work.MORE)]
    with started(loop, outcome, tmp_path, capacity) as (dispatcher, clock, handling):
        loop.post(dispatcher, clock, events)
        rest(dispatcher, clock)
        stats, room = dispatcher.stats(), dispatcher.core.queue.room.remaining()
        failures = dispatcher.view.failures()

    retried = int(outcome.counts_as == "handled" and outcome.error is not None)
    assert list(dict.fromkeys(handling.calls)) == [event for event in events if event is not outcome.event]
    assert len(handling.calls) == len(dict.fromkeys(handling.calls)) + retried
    # While an event is in hand, those before it have ended.
    for number, (event, function, seen) in enumerate(zip(handling.calls, handling.loops, handling.seen, strict=False)):
        if handling.calls.index(event) == number:  # the first attempt
            assert function == loop.function
        ended = seen.handled + seen.failed + sum(seen.retried_by_type.values())
        assert ended == number + (event is events[2] and outcome.event is not None)
        assert seen.in_hand == 1
        assert seen.accepted == seen.handled + seen.failed + seen.in_hand + seen.queue_size + seen.retrying
    # At the end each counts once, by its type, and is timed once for each time that a handler had it.
    failed = int(outcome.counts_as == "failed")
    assert (stats.handled, stats.failed, stats.accepted) == (3 - failed, failed, 3)
    assert stats.handled_by_type.get(("Work", "MORE")) == 2
    assert (stats.in_hand, stats.queue_size, stats.retrying, stats.discarded) == (0, 0, 0, 0)
    assert sum(stats.retried_by_type.values()) == retried
    assert stats.handling_time is not None
    assert sum(stats.handling_time.counts) == 3 + retried
    assert room == capacity
    wanted = outcome.error_class or type(outcome.error).__name__
    assert [failure.error_class for failure in failures] == [wanted] * failed
    if loop.is_journaled:
        ends = ["retried", "handled"] if retried else ["unregistered" if outcome.event else outcome.counts_as]
        assert Counter(row["outcome"] for row in read_rows(tmp_path, EVENTS)) == Counter(["handled", "handled", *ends])


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_each_loop_stops_on_the_error_of_a_class_that_says_so(loop: Loop, tmp_path: Path) -> None:
    error = ValueError("broken")
    with started(loop, Outcome(on_error="stop"), tmp_path) as (dispatcher, clock, _):

        def fail(event: Any) -> None:
            raise error

        dispatcher.register(Other, fail, on_error="stop")
        loop.post(dispatcher, clock, [Event(Other.DO)])
        assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)

    assert dispatcher.failure_cause is error
    assert dispatcher.is_stopped()
    assert (dispatcher.stats().failed, dispatcher.stats().in_hand) == (1, 0)


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_each_loop_counts_a_slow_event_by_its_type(loop: Loop, tmp_path: Path) -> None:
    def spin(event: Any) -> None:
        until_s = time.perf_counter() + 2 * SLOW_S
        while time.perf_counter() < until_s:
            pass

    with started(loop, OUTCOMES["handled"], tmp_path, slow_s=SLOW_S) as (dispatcher, clock, _):
        dispatcher.register(Other, spin)
        loop.post(dispatcher, clock, [Event(Other.DO)])
        assert dispatcher.await_drained(TIMEOUT_S)

    assert dispatcher.stats().slow_by_type[("Other", "DO")] == 1
    times = dispatcher.stats().handling_by_type[("Other", "DO")]
    assert times[1] >= 2 * SLOW_S or times[0] == 0  # a quick batch times its events together


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_each_loop_lets_mail_go_before_the_next_event(loop: Loop, tmp_path: Path) -> None:
    order: list[str] = []

    def handle(event: Any) -> None:
        order.append("event")
        dispatcher.mailbox_executor.execute(lambda: order.append("mail"))

    with started(loop, OUTCOMES["handled"], tmp_path) as (dispatcher, clock, _):
        dispatcher.register(Other, handle)
        loop.post(dispatcher, clock, [Event(Other.DO), Event(Other.DO)])
        assert dispatcher.await_drained(TIMEOUT_S)
        dispatcher.wait_for_event_thread_to_wait(TIMEOUT_S)

    assert order == ["event", "mail"] * 2
