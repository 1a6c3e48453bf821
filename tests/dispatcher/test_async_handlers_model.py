"""`async def` handlers with any keys, capacities and failures: accounts balance, and the order of each key holds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher import AsyncDispatcher, DispatcherConfig, aio

from ..kit import TIMEOUT_S, Work, assert_accounts_balance, in_threads, until
from ..kit.coroutines import Keyed, Latched, running_loop


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    with running_loop() as loop:
        yield loop


class Turns:
    """An `async def` handler that gives way to others a number of times, and fails for some events."""

    def __init__(self, plan: list[tuple[int, int, bool]]) -> None:
        self.plan = plan
        self.under_way: dict[int, int] = {}  # the loop only, like the rest
        self.most = 0
        self.overlaps = 0
        self.ended: list[tuple[int, int]] = []

    async def handle(self, event: Keyed) -> None:
        key, turns, fails = self.plan[event.number]
        self.under_way[key] = self.under_way.get(key, 0) + 1
        self.overlaps += self.under_way[key] > 1
        self.most = max(self.most, sum(self.under_way.values()))
        try:
            for _ in range(turns):
                await asyncio.sleep(0)
        finally:
            self.under_way[key] -= 1
            self.ended.append((key, event.number))
        if fails:
            raise LookupError(event.number)


PLANS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()), min_size=1, max_size=24)


@settings(max_examples=60, deadline=None)
@given(
    plan=PLANS,
    capacity=st.integers(1, 5),
    max_waiting=st.integers(0, 3),
    queue_capacity=st.sampled_from([None, 1, 3]),
    producers=st.integers(1, 2),
    drains=st.booleans(),
)
def test_accounts_and_the_order_of_each_key(
    loop: asyncio.AbstractEventLoop,
    plan: list[tuple[int, int, bool]],
    capacity: int,
    max_waiting: int,
    queue_capacity: int | None,
    producers: int,
    drains: bool,
) -> None:
    handler = Turns(plan)
    dispatcher = AsyncDispatcher(DispatcherConfig(queue_capacity=queue_capacity, drain_events_on_stop=drains))
    dispatcher.register(Work, aio.AsyncioHandler(handler, loop=loop, capacity=capacity, max_waiting=max_waiting))

    def produce(first: int) -> None:
        # Each producer has keys of its own: across producers there is no order.
        for number, (key, _, _) in enumerate(plan):
            if key % producers == first:
                assert dispatcher.post(Keyed(number, key=key))

    with dispatcher:
        in_threads(*(partial(produce, number) for number in range(producers)))
        if drains:
            assert dispatcher.await_drained(TIMEOUT_S)

    assert_accounts_balance(dispatcher, accepted=len(plan))
    assert dispatcher.stats().in_hand == 0
    assert handler.overlaps == 0
    assert handler.most <= capacity
    for key in range(4):
        in_order = [number for number, (other, _, _) in enumerate(plan) if other == key]
        ended = [number for other, number in handler.ended if other == key]
        assert ended == in_order[: len(ended)]
    if drains:
        assert dispatcher.stats().failed == sum(fails for _, _, fails in plan)
        assert dispatcher.stats().handled == len(plan) - dispatcher.stats().failed


class Reference:
    """Which events are where, in plain lists."""

    def __init__(self, capacity: int, per_key: int, max_waiting: int) -> None:
        self.capacity, self.per_key, self.max_waiting = capacity, per_key, max_waiting
        self.queue: list[Keyed] = []
        self.waiting: list[Keyed] = []  # taken from the queue, not begun
        self.running: list[Keyed] = []
        self.begun: list[int] = []

    def post(self, event: Keyed) -> None:
        self.queue.append(event)
        self._settle()

    def end(self, event: Keyed) -> None:
        self.running.remove(event)
        self._settle()

    def _settle(self) -> None:
        while True:
            held_by_key = [event for event in self.waiting if not self._may_begin(event)]
            ready = [event for event in self.waiting if event not in held_by_key]
            if ready and len(self.running) < self.capacity:
                self.waiting.remove(ready[0])
                self.running.append(ready[0])
                self.begun.append(ready[0].number)
            elif self.queue and not ready and len(held_by_key) <= self.max_waiting:
                self.waiting.append(self.queue.pop(0))
            else:
                return

    def _may_begin(self, event: Keyed) -> bool:
        """Its key lets it begin, if there is a slot."""
        running = [other for other in self.running if other.lock_key == event.lock_key]
        first = next(other for other in self.waiting if other.lock_key == event.lock_key)
        return first is event and len(running) < (self.per_key if event.lock_key is not None else 1)


POSTS = st.sampled_from(["a", "a", "b", "c", None])  # the key of an event
ENDS = st.integers(0, 3)  # which one of the coroutines that run
STEPS = st.lists(st.one_of(POSTS, ENDS), min_size=6, max_size=30)


@settings(max_examples=100, deadline=None)
@given(steps=STEPS, capacity=st.integers(1, 3), per_key=st.integers(1, 2), max_waiting=st.integers(0, 3))
def test_the_events_that_run_are_those_of_the_reference_after_each_step(
    loop: asyncio.AbstractEventLoop, steps: list[str | int | None], capacity: int, per_key: int, max_waiting: int
) -> None:
    reference = Reference(capacity, per_key, max_waiting)
    handler = Latched(loop)
    options = {"capacity": capacity, "per_key": per_key, "max_waiting": max_waiting}
    dispatcher = AsyncDispatcher()
    dispatcher.register(Work, aio.AsyncioHandler(handler, loop=loop, **options))

    def end(event: Keyed) -> None:
        handler.end(event.number)
        reference.end(event)

    def is_as_the_reference() -> bool:
        stats, in_hand = dispatcher.stats(), len(reference.running) + len(reference.waiting)
        is_settled = (stats.queue_size, stats.in_hand) == (len(reference.queue), in_hand)
        return is_settled and len(handler.begun) == len(reference.begun)

    with dispatcher:
        posted = 0
        for step in steps:
            if not isinstance(step, int):
                event = Keyed(posted, step)
                posted += 1
                assert dispatcher.post(event)
                reference.post(event)
            elif reference.running:
                end(reference.running[step % len(reference.running)])
            until(is_as_the_reference, f"the state after {step!r}")
            assert handler.begun == reference.begun
        while reference.running:
            end(reference.running[0])
            until(is_as_the_reference, "the state at the end")
        assert dispatcher.await_drained(TIMEOUT_S)

    assert handler.begun == reference.begun
    assert sorted(handler.ended) == list(range(posted))
    assert_accounts_balance(dispatcher, accepted=posted)
