"""What stays in memory of `async def` handlers and their events, with the garbage collector off: nothing."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher import AsyncDispatcher, DispatcherConfig, aio

from ..kit import TIMEOUT_S, Gate, Other, Work, assert_accounts_balance, until, until_released
from ..kit.coroutines import Keyed, running_loop
from ..kit.dispatchers import Make

Handle = Callable[[Any], Coroutine[Any, Any, None]]


class Watched(Keyed):
    """A Keyed that can be referred to weakly."""

    __slots__ = ("__weakref__",)


@pytest.fixture(autouse=True)
def only_references_count(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No garbage collection, and no log record that keeps the traceback of an error."""
    monkeypatch.setattr(logging.getLogger("dispatcher.async_dispatcher"), "disabled", True)
    gc.disable()
    yield
    gc.enable()


def post_watched(dispatcher: AsyncDispatcher, number: int = 0, key: Any = None) -> weakref.ref[Watched]:
    event = Watched(number, key)
    assert dispatcher.post(event)
    return weakref.ref(event)


def register_watched(dispatcher: AsyncDispatcher, handle: Handle, kind: str = "function") -> weakref.ref[Any]:
    """Register a handler that calls `handle` and nothing else refers to. The reference dies with what it needs."""

    class Owner:
        async def handle(self, event: Any) -> None:
            await handle(event)

    owner = Owner()

    async def function(event: Any) -> None:
        await owner.handle(event)

    handlers: dict[str, Any] = {
        "function": function,
        "object": owner,
        "method": owner.handle,
        "declared": aio.AsyncioHandler(function),
    }
    dispatcher.register(Work, handlers[kind])
    registered.append((dispatcher, handlers[kind]))
    return weakref.ref(owner)


registered: list[tuple[AsyncDispatcher, Any]] = []


def unregister() -> None:
    dispatcher, handler = registered.pop()
    assert dispatcher.unregister(Work, handler)


# -- events ------------------------------------------------------------------------------------------------------------


async def return_(event: Any) -> None: ...


async def wait_and_return(event: Any) -> None:
    await asyncio.sleep(0)


async def raise_(event: Any) -> None:
    await asyncio.sleep(0)
    raise LookupError("lost")


async def cancel_itself(event: Any) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel("enough")
    await asyncio.sleep(0)


async def take_no_event() -> None: ...


async def fail_a_sub_task(event: Any) -> None:
    await asyncio.gather(raise_(event), wait_and_return(event))


async def wait_for_a_thread(event: Any) -> None:
    await asyncio.to_thread(repr, event)


@pytest.mark.parametrize("begins", ["later", "eagerly"])
@pytest.mark.parametrize(
    ("handle", "failed"),
    [
        (return_, 0),
        (wait_and_return, 0),
        (raise_, 5),
        (cancel_itself, 5),
        (take_no_event, 5),
        (fail_a_sub_task, 5),
        (wait_for_a_thread, 0),
    ],
)
def test_an_event_ends_and_is_freed_with_its_coroutine(
    make: Make, loop: asyncio.AbstractEventLoop, handle: Any, failed: int, begins: str
) -> None:
    if begins == "eagerly":
        if not hasattr(asyncio, "eager_task_factory"):
            pytest.skip("Python 3.11 has no eager tasks")
        loop.set_task_factory(asyncio.eager_task_factory)
    dispatcher = make(loop=loop, handler=handle)
    events = [post_watched(dispatcher, number) for number in range(5)]

    assert dispatcher.await_drained(TIMEOUT_S)
    until_released(lambda: not any(event() for event in events), "the end of the events")
    assert dispatcher.stats().failed == failed
    assert_accounts_balance(dispatcher, accepted=5)


def test_a_task_that_goes_on_does_not_keep_the_event_of_its_coroutine(
    make: Make, loop: asyncio.AbstractEventLoop, gate: Gate
) -> None:
    left: list[asyncio.Task[Any]] = []

    async def leave_tasks(event: Any) -> None:
        left.append(asyncio.create_task(asyncio.Event().wait()))
        left.append(asyncio.create_task(asyncio.to_thread(gate.handle, None)))

    dispatcher = make(loop=loop, handler=leave_tasks)
    event = post_watched(dispatcher)
    assert gate.entered.wait(TIMEOUT_S)
    until_released(lambda: event() is None, "the end of the event")
    assert not any(task.done() for task in left)


def test_events_that_a_stop_gives_up_are_freed(loop: asyncio.AbstractEventLoop) -> None:
    begun = threading.Event()

    async def hang(event: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    dispatcher = AsyncDispatcher(DispatcherConfig(drain_timeout_s=0.02), loop=loop)
    dispatcher.register(Work, hang)
    with dispatcher:
        events = [post_watched(dispatcher, number, key="one") for number in range(3)]
        assert begun.wait(TIMEOUT_S)

    assert dispatcher.stats().discarded == 3
    until_released(lambda: not any(event() for event in events), "the end of the events")


# -- handlers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["function", "object", "method", "declared"])
def test_an_unregistered_handler_is_freed(make: Make, loop: asyncio.AbstractEventLoop, kind: str) -> None:
    dispatcher = make(loop=loop)
    handler = register_watched(dispatcher, wait_and_return, kind)
    for number in range(3):
        post_watched(dispatcher, number)
    assert dispatcher.await_drained(TIMEOUT_S)
    assert dispatcher.stats().handled == 3
    assert handler() is not None

    unregister()

    until_released(lambda: handler() is None, "the end of the handler")


def test_a_warning_of_a_slow_coroutine_keeps_nothing(make: Make, loop: asyncio.AbstractEventLoop) -> None:
    go_on = asyncio.Event()

    async def handle(event: Any) -> None:
        await go_on.wait()

    dispatcher = make(DispatcherConfig(handler_warn_after_s=0.001), loop=loop)
    handler = register_watched(dispatcher, handle)
    event = post_watched(dispatcher)
    until(lambda: dispatcher._coroutines._warned_of_ns, "the warning")
    loop.call_soon_threadsafe(go_on.set)
    assert dispatcher.await_drained(TIMEOUT_S)
    unregister()

    until_released(lambda: event() is None and handler() is None, "the end of event and handler")


STEPS = st.lists(st.sampled_from(["register", "register again", "unregister", "post", "go on"]), max_size=25)


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_whatever_is_registered_and_posted_ends_and_is_freed(steps: list[str]) -> None:
    """Events of a handler that is registered again keep their order."""
    handled: list[list[int]] = []  # by each handler
    events: list[weakref.ref[Any]] = []
    handlers: list[weakref.ref[Any]] = []
    current: Any = None
    with running_loop() as loop:
        go_on = asyncio.Semaphore(0)

        def make_handler() -> Any:
            numbers: list[int] = []
            handled.append(numbers)

            async def handle(event: Any) -> None:
                await go_on.acquire()
                numbers.append(event.number)

            return handle

        with AsyncDispatcher(loop=loop) as dispatcher:
            for step in [*steps, "unregister"]:
                if step == "register" and current is None:
                    current = make_handler()
                    handlers.append(weakref.ref(current))
                    dispatcher.register(Work, current)
                    dispatcher.register(Other, current)
                elif step == "register again" and current is not None:
                    dispatcher.unregister(Work, current)
                    dispatcher.register(Work, current)
                elif step == "unregister" and current is not None:
                    assert dispatcher.unregister(Work, current)
                    assert dispatcher.unregister(Other, current)
                    current = None
                elif step == "post":
                    events.append(post_watched(dispatcher, len(events)))
                elif step == "go on":
                    loop.call_soon_threadsafe(go_on.release)
            for _ in events:
                loop.call_soon_threadsafe(go_on.release)
            assert dispatcher.await_drained(TIMEOUT_S)
            until_released(lambda: not any(each() for each in (*events, *handlers)), "the end of events and handlers")

    assert sum(map(len, handled)) == dispatcher.stats().handled
    assert handled == [sorted(numbers) for numbers in handled]
    assert_accounts_balance(dispatcher, accepted=len(events))
