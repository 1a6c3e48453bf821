"""A coroutine that does not wait ends without a turn of the loop, but still runs as a task of its own."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, DispatcherConfig, Retry

from ..kit import TIMEOUT_S, Other, Work, assert_accounts_balance, until
from ..kit.coroutines import Keyed, Latched
from ..kit.dispatchers import Make
from ..kit.holding import held

VARIABLE = contextvars.ContextVar("a variable of the user's", default="nothing")


def post(dispatcher: AsyncDispatcher, count: int, key: Any = "one") -> None:
    for number in range(count):
        assert dispatcher.post(Keyed(number, key))


def post_at_once(dispatcher: AsyncDispatcher, loop: asyncio.AbstractEventLoop, count: int) -> None:
    """Events of one key, which all wait in the lane before the first of them begins."""
    with held(loop.call_soon_threadsafe):
        post(dispatcher, count)
        until(lambda: not dispatcher.queue_size())
        dispatcher.mailbox_executor.submit(lambda: None).result(TIMEOUT_S)


def test_each_coroutine_has_a_task_of_its_own_before_its_first_wait_and_after(
    make: Make, loop: asyncio.AbstractEventLoop
) -> None:
    tasks: list[tuple[Any, Any]] = []

    async def handle(event: Keyed) -> None:
        first = asyncio.current_task()
        if event.number % 2:
            await asyncio.sleep(0)
        tasks.append((first, asyncio.current_task()))

    dispatcher = make(loop=loop, handler=handle)
    post_at_once(dispatcher, loop, 6)

    assert dispatcher.await_drained(TIMEOUT_S)
    assert all(isinstance(first, asyncio.Task) and first is second for first, second in tasks)
    assert len({first for first, _ in tasks}) == 6


def test_timeouts_and_task_groups_work_before_the_first_wait(make: Make, loop: asyncio.AbstractEventLoop) -> None:
    outcomes: list[str] = []

    async def handle(event: Keyed) -> None:
        try:
            async with asyncio.timeout(0.001), asyncio.TaskGroup() as group:
                group.create_task(asyncio.Event().wait())
        except TimeoutError:
            outcomes.append("timeout")

    dispatcher = make(loop=loop, handler=handle)
    post(dispatcher, 2)

    assert dispatcher.await_drained(TIMEOUT_S)
    assert outcomes == ["timeout"] * 2
    assert_accounts_balance(dispatcher, accepted=2)


@pytest.mark.parametrize("keeps_context", [False, True])
def test_what_a_coroutine_sets_is_not_seen_by_the_next_one(
    make: Make, loop: asyncio.AbstractEventLoop, keeps_context: bool
) -> None:
    seen: list[str] = []

    async def handle(event: Keyed) -> None:
        seen.append(VARIABLE.get())
        VARIABLE.set("something")
        if event.number % 2:
            await asyncio.sleep(0)
        assert VARIABLE.get() == "something"

    dispatcher = make(loop=loop)
    dispatcher.register(Work, handle, context=keeps_context)
    post_at_once(dispatcher, loop, 4)

    assert dispatcher.await_drained(TIMEOUT_S)
    assert seen == ["nothing"] * 4
    assert VARIABLE.get() == "nothing"


def test_a_context_of_a_post_is_the_same_for_each_attempt(make: Make, loop: asyncio.AbstractEventLoop) -> None:
    seen: list[str] = []

    async def handle(event: Keyed) -> None:
        seen.append(VARIABLE.get())
        VARIABLE.set("something")
        if len(seen) == 1:
            raise LookupError("lost")

    dispatcher = make(loop=loop)
    dispatcher.register(Work, handle, context=True, on_error=Retry(attempts=2, delay_s=0))
    post(dispatcher, 1)

    until(lambda: dispatcher.stats().handled == 1)
    assert seen == ["nothing"] * 2


def test_the_loop_has_its_turns_during_a_flood_of_one_key(make: Make, loop: asyncio.AbstractEventLoop) -> None:
    handled_at_ticks: list[int] = []
    handled = 0

    async def handle(event: Keyed) -> None:
        nonlocal handled
        handled += 1

    async def tick() -> None:
        while handled < 1000:
            handled_at_ticks.append(handled)
            await asyncio.sleep(0)

    dispatcher = make(loop=loop, handler=handle)
    asyncio.run_coroutine_threadsafe(tick(), loop)
    post_at_once(dispatcher, loop, 1000)

    assert dispatcher.await_drained(TIMEOUT_S)
    assert len({count for count in handled_at_ticks if 0 < count < 1000}) > 0


def test_a_cancellation_right_after_the_first_step_reaches_what_the_coroutine_waits_for(
    make: Make, loop: asyncio.AbstractEventLoop
) -> None:
    inner: list[asyncio.Task[Any]] = []

    async def handle(event: Keyed) -> None:
        task = asyncio.current_task()
        assert task is not None
        inner.append(asyncio.ensure_future(asyncio.Event().wait()))
        loop.call_soon(task.cancel, "enough")
        await inner[0]

    dispatcher = make(loop=loop, handler=handle)
    post(dispatcher, 1)

    assert dispatcher.await_drained(TIMEOUT_S)
    assert inner[0].cancelled()
    assert dispatcher.stats().failed == 1


def test_a_coroutine_that_cancels_itself_and_returns_fails_its_event_alone(
    make: Make, loop: asyncio.AbstractEventLoop
) -> None:
    async def handle(event: Keyed) -> None:
        task = asyncio.current_task()
        assert task is not None
        if event.number == 1:
            task.cancel()

    dispatcher = make(loop=loop, handler=handle)
    post_at_once(dispatcher, loop, 3)

    assert dispatcher.await_drained(TIMEOUT_S)
    assert (dispatcher.stats().handled, dispatcher.stats().failed) == (2, 1)


def test_once_a_stop_does_not_wait_for_events_the_next_of_the_key_does_not_begin(
    make: Make, loop: asyncio.AbstractEventLoop
) -> None:
    begun: list[int] = []
    stopping = threading.Event()

    async def handle(event: Keyed) -> None:
        begun.append(event.number)
        stopping.set()
        until(lambda: dispatcher.core.queue.phase, "the stop")

    dispatcher = make(DispatcherConfig(drain_events_on_stop=False), loop=loop, handler=handle)
    post_at_once(dispatcher, loop, 5)
    assert stopping.wait(TIMEOUT_S)
    dispatcher.stop()

    assert begun == [0]
    assert_accounts_balance(dispatcher, accepted=5)


def test_an_event_before_a_long_handler_of_the_same_batch_begins_meanwhile(
    make: Make, loop: asyncio.AbstractEventLoop
) -> None:
    """The loop is woken once for several events in a row, but before another handler."""
    handler, began = Latched(loop), list[bool]()
    dispatcher = make(loop=loop, handler=handler)

    def wait_for_the_others(event: Any) -> None:
        handler.await_begun(0, 1)
        began.append(True)

    dispatcher.register(Other, wait_for_the_others)
    with held(dispatcher.mailbox_executor.execute):
        for event in (Keyed(0, 0), Keyed(1, 1), Keyed(2, type=Other.DO)):  # type: ignore[arg-type]
            assert dispatcher.post(event)
    until(lambda: began)
    handler.end(0, 1)

    assert dispatcher.await_drained(TIMEOUT_S)
