"""`AsyncioHandler(rate=RateLimit(...))`: how fast the coroutines of a handler begin."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, DispatcherConfig, EventDiscardedError, MultiDispatcher, Retry, aio
from dispatcher.aio import AsyncioHandler, RateLimit
from dispatcher.dispatching.turns import RatedLane
from dispatcher.mailbox import ManualClock
from dispatcher.testing import InlineDispatcher
from pipeline.streaming import unordered_wait

from ..kit import TIMEOUT_S, Other, Work, assert_accounts_balance, until
from ..kit.coroutines import Keyed, running_loop

PER_S = RateLimit(1, burst=1)


class Begun:
    """An `async def` handler that notes what has begun."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.failing: set[int] = set()

    async def handle(self, event: Keyed) -> int:
        self.numbers.append(event.number)
        if event.number in self.failing:
            self.failing.remove(event.number)
            raise OSError(event.number)
        return event.number


@pytest.fixture
def begun() -> Begun:
    return Begun()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000)


Make = Callable[..., AsyncDispatcher]


@pytest.fixture
def make(begun: Begun, clock: ManualClock) -> Iterator[Make]:
    made: list[AsyncDispatcher] = []
    with running_loop() as loop:

        def make(rate: RateLimit = PER_S, *, config: DispatcherConfig | None = None, **options: Any) -> AsyncDispatcher:
            dispatcher = AsyncDispatcher(config, loop=loop, time_service=clock)
            on_error = options.pop("on_error", "continue")
            dispatcher.register(Work, AsyncioHandler(begun, rate=rate, **options), on_error=on_error)
            made.append(dispatcher)
            dispatcher.start()
            return dispatcher

        yield make
        for dispatcher in made:
            dispatcher.set_drain_events_on_stop(False)
            dispatcher.stop()
            assert_accounts_balance(dispatcher, dispatcher.stats().accepted)


def post(dispatcher: AsyncDispatcher, *keys: Any) -> None:
    for number, key in enumerate(keys):
        assert dispatcher.post(Keyed(number, key))


def settled(dispatcher: AsyncDispatcher) -> None:
    """Wait until the handler thread has taken what is queued, and has run the mail that waits."""
    until(lambda: not dispatcher.queue_size(), "the queue's end")
    dispatcher.mailbox_executor.submit(lambda: None, "a mail behind the others").result(TIMEOUT_S)


def pass_s(dispatcher: AsyncDispatcher, clock: ManualClock, begun: Begun, seconds: float, number: int) -> None:
    """Let time pass, until so many have begun."""
    clock.advance(round(seconds * 1000))
    until(lambda: len(begun.numbers) >= number, f"the coroutine {number}")
    settled(dispatcher)
    assert len(begun.numbers) == number


def test_coroutines_begin_at_the_rate_in_the_order_of_the_posts(make: Make, clock: ManualClock, begun: Begun) -> None:
    dispatcher = make(RateLimit(1, burst=2))

    post(dispatcher, "a", "b", "c", "d", "a")
    pass_s(dispatcher, clock, begun, 0, 2)
    for number in (3, 4, 5):
        clock.advance(999)
        settled(dispatcher)
        pass_s(dispatcher, clock, begun, 0.001, number)

    assert begun.numbers == [0, 1, 2, 3, 4]


def test_each_key_has_the_rate_to_itself_with_per_key(make: Make, clock: ManualClock, begun: Begun) -> None:
    dispatcher = make(RateLimit(1, burst=1, per_key=True))

    post(dispatcher, "a", "a", "b", None, "b", "a", None)

    pass_s(dispatcher, clock, begun, 0, 3)
    assert sorted(begun.numbers) == [0, 2, 3]
    pass_s(dispatcher, clock, begun, 1, 6)
    pass_s(dispatcher, clock, begun, 1, 7)
    assert begun.numbers[-1] == 5


def test_an_event_that_waits_for_its_turn_takes_no_slot(make: Make, clock: ManualClock, begun: Begun) -> None:
    dispatcher = make(RateLimit(1, burst=1, per_key=True), capacity=1)

    post(dispatcher, "a", "a", "a", "b", "c")

    pass_s(dispatcher, clock, begun, 0, 3)
    assert begun.numbers == [0, 3, 4]


def test_other_classes_go_on_while_events_wait_for_their_turns(make: Make, begun: Begun) -> None:
    dispatcher = make()
    others: list[Any] = []
    dispatcher.register(Other, others.append)

    post(dispatcher, *range(10))
    dispatcher.post(Keyed(type=Other.DO))  # type: ignore[arg-type]
    settled(dispatcher)

    assert len(others) == 1
    until(lambda: begun.numbers == [0], "the first one")


def test_beyond_max_waiting_events_stay_in_the_queue(make: Make, clock: ManualClock, begun: Begun) -> None:
    dispatcher = make(max_waiting=3)

    post(dispatcher, *range(10))
    until(lambda: dispatcher.queue_size() == 5, "the queue's rest")  # one has begun, and four wait

    clock.advance(1000)
    until(lambda: dispatcher.queue_size() == 4, "the queue's rest")
    until(lambda: begun.numbers == [0, 1], "the second one")


def test_a_withdrawn_event_leaves_its_turn_to_the_next(make: Make, clock: ManualClock, begun: Begun) -> None:
    dispatcher = make()
    post(dispatcher, "first")
    asks = [dispatcher.ask(Keyed(number, number)) for number in (1, 2, 3)]
    settled(dispatcher)

    assert asks[0].cancel()
    assert asks[1].cancel()
    pass_s(dispatcher, clock, begun, 1, 2)

    assert asks[2].result(TIMEOUT_S) == 3
    assert begun.numbers == [0, 3]
    assert dispatcher.stats().discarded_by_reason == {"withdrawn": 2}


def test_an_ask_that_times_out_withdraws_what_waits_for_its_turn(make: Make, begun: Begun) -> None:
    dispatcher = make()
    post(dispatcher, "first")

    with pytest.raises(TimeoutError):
        asyncio.run(aio.ask(dispatcher, Keyed(1, "late"), timeout=0.01))

    assert dispatcher.stats().discarded_by_reason == {"withdrawn": 1}
    settled(dispatcher)
    assert begun.numbers == [0]


def test_each_attempt_takes_a_turn(make: Make, clock: ManualClock, begun: Begun) -> None:
    dispatcher = make(on_error=Retry(attempts=2, delay_s=0))
    begun.failing = {0}

    post(dispatcher, "a", "b")
    pass_s(dispatcher, clock, begun, 0, 1)
    pass_s(dispatcher, clock, begun, 1, 2)
    pass_s(dispatcher, clock, begun, 1, 3)

    assert begun.numbers == [0, 1, 0]


def test_the_cost_of_an_event_counts(make: Make, clock: ManualClock, begun: Begun) -> None:
    dispatcher = make(RateLimit(10, burst=10, cost=lambda event: 10 if event.number else 5))

    post(dispatcher, "a", "b")
    pass_s(dispatcher, clock, begun, 0, 1)
    clock.advance(499)
    settled(dispatcher)

    pass_s(dispatcher, clock, begun, 0.001, 2)


def test_a_cost_that_raises_fails_the_event_alone(make: Make, clock: ManualClock, begun: Begun) -> None:
    dispatcher = make(RateLimit(1, burst=9, cost=lambda event: 1 / event.number))

    post(dispatcher, "a", "b")
    assert dispatcher.await_drained(TIMEOUT_S)

    assert (begun.numbers, dispatcher.stats().failed) == ([1], 1)


def test_a_drain_keeps_the_rate(make: Make, clock: ManualClock, begun: Begun) -> None:
    dispatcher = make()
    post(dispatcher, *range(3))
    pass_s(dispatcher, clock, begun, 0, 1)

    drained = asyncio.run(aio.await_drained(dispatcher, timeout=0))
    pass_s(dispatcher, clock, begun, 1, 2)
    pass_s(dispatcher, clock, begun, 1, 3)

    assert not drained
    assert dispatcher.await_drained(TIMEOUT_S)


def test_a_stop_that_does_not_drain_discards_what_waits(make: Make, begun: Begun) -> None:
    dispatcher = make()
    post(dispatcher, *range(5))
    asked = dispatcher.ask(Keyed(9, "asked"))
    settled(dispatcher)

    dispatcher.set_drain_events_on_stop(False)
    dispatcher.stop()

    assert begun.numbers == [0]
    assert isinstance(asked.exception(TIMEOUT_S), EventDiscardedError)
    assert dispatcher.stats().discarded_by_reason == {"stop": 5}


def test_a_stop_ends_in_its_time_though_events_wait_for_their_turns(make: Make, begun: Begun) -> None:
    dispatcher = make(config=DispatcherConfig(drain_timeout_s=0.01))
    post(dispatcher, *range(5))
    until(lambda: begun.numbers == [0], "the first one")

    dispatcher.stop()

    assert begun.numbers == [0]
    assert dispatcher.stats().discarded_by_reason == {"stop": 4}


def test_keys_are_forgotten_once_their_rate_has_recovered(make: Make, clock: ManualClock, begun: Begun) -> None:
    dispatcher = make(RateLimit(1, burst=1, per_key=True), capacity=10_000)
    [lane] = dispatcher._coroutines._lanes.values()
    assert isinstance(lane, RatedLane)

    for _ in range(5):
        post(dispatcher, *(object() for _ in range(700)))
        assert dispatcher.await_drained(TIMEOUT_S)
        clock.advance(1001)

    assert len(lane._turn_lines) <= 1700


def test_partitions_share_a_rate(clock: ManualClock, begun: Begun) -> None:
    with running_loop() as loop:
        dispatcher = MultiDispatcher(partitions=2, loop=loop, time_service=clock)
        dispatcher.register(Work, AsyncioHandler(begun, rate=RateLimit(1, burst=3)))
        with dispatcher:
            for number in range(8):
                dispatcher.post(Keyed(number, number))
            until(lambda: not dispatcher.queue_size() and len(begun.numbers) >= 3, "three of them")
            for partition in dispatcher.partitions:
                settled(partition)
            assert len(begun.numbers) == 3
            dispatcher.set_drain_events_on_stop(False)


def test_in_real_time_the_rate_holds() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        begun: list[float] = []

        async def handle(event: Keyed) -> None:
            begun.append(loop.time())

        async with AsyncDispatcher(loop=loop) as dispatcher:
            dispatcher.register(Work, AsyncioHandler(handle, rate=RateLimit(100, burst=1)))
            for number in range(11):
                dispatcher.post(Keyed(number, number))
        return begun[-1] - begun[0]

    assert asyncio.run(main()) > 0.095


def test_an_inline_dispatcher_waits_for_nothing(begun: Begun) -> None:
    dispatcher = InlineDispatcher()
    dispatcher.register(Work, AsyncioHandler(begun, rate=PER_S))

    for number in range(3):
        dispatcher.post(Keyed(number))

    assert begun.numbers == [0, 1, 2]


def test_what_is_no_rate_is_refused(begun: Begun) -> None:
    with pytest.raises(TypeError, match=r"rate is a RateLimit, for example RateLimit\(10\), not 10"):
        AsyncioHandler(begun, rate=10)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="per_key is 1"):
        RateLimit(10, per_key=1)  # type: ignore[arg-type]

    async def double(value: int) -> int:
        return 2 * value

    with pytest.raises(ValueError, match="only an AsyncioHandler takes"):
        unordered_wait([1], double, timeout=1, rate_limit=RateLimit(10, per_key=True))
