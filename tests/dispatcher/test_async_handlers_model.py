"""`async def` handlers with any keys, capacities and failures: accounts balance, and the order of each key holds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher import AsyncDispatcher, DispatcherConfig, aio

from .conftest import TIMEOUT_S, Work, assert_accounts_balance
from .coroutines import Keyed, running_loop


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
    queue_capacity=st.sampled_from([None, 1, 3]),
    producers=st.integers(1, 2),
    drains=st.booleans(),
)
def test_accounts_and_the_order_of_each_key(
    loop: asyncio.AbstractEventLoop,
    plan: list[tuple[int, int, bool]],
    capacity: int,
    queue_capacity: int | None,
    producers: int,
    drains: bool,
) -> None:
    handler = Turns(plan)
    dispatcher = AsyncDispatcher(DispatcherConfig(queue_capacity=queue_capacity, drain_events_on_stop=drains))
    dispatcher.register(Work, aio.AsyncioHandler(handler, loop=loop, capacity=capacity))

    def produce(first: int) -> None:
        # Each producer has keys of its own: across producers there is no order.
        for number, (key, _, _) in enumerate(plan):
            if key % producers == first:
                assert dispatcher.event_handler.handle(Keyed(number, key=key))

    with dispatcher:
        threads = [threading.Thread(target=produce, args=(first,)) for first in range(producers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_S)
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
