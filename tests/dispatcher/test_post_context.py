"""`register(..., context=True)`: handlers see the context variables of the post."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextvars import ContextVar, copy_context
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher import AsyncDispatcher, DispatcherConfig, JournalConfig, JournalWriter, aio
from dispatcher.mailbox import ManualClock

from ..kit import TIMEOUT_S, Gate, Numbered, Other, Work, assert_accounts_balance, in_threads
from ..kit.coroutines import Keyed, Latched, running_loop
from ..kit.dispatchers import stopping
from ..kit.holding import held
from ..kit.journals import Job, Posted

REQUEST: ContextVar[Any] = ContextVar("the request that is served", default=None)

MODES = ["all", "sampled", "none"]


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    with running_loop() as loop:
        yield loop


def within(request: Any, action: Callable[[], Any]) -> Any:
    """Call the action where REQUEST has this value."""

    def act() -> Any:
        REQUEST.set(request)
        return action()

    return copy_context().run(act)


class Seen:
    """A handler, plain or `async def`, that notes the number of each event and REQUEST, which it then changes."""

    def __init__(self) -> None:
        self.requests: dict[int, Any] = {}

    def handle(self, event: Any) -> None:
        self.requests[event.number] = REQUEST.get()
        REQUEST.set("changed by a handler")

    async def handle_later(self, event: Any) -> None:
        await asyncio.sleep(0)
        self.handle(event)


def handler_of(seen: Seen, loop: asyncio.AbstractEventLoop, kind: str) -> Any:
    return seen.handle if kind == "plain" else aio.AsyncioHandler(seen.handle_later, loop=loop)


kinds = pytest.mark.parametrize("kind", ["plain", "async"])


# -- what a handler sees -----------------------------------------------------------------------------------------------


@kinds
def test_a_class_without_contexts_next_to_one_with_them_gets_none_and_keeps_none(
    loop: asyncio.AbstractEventLoop, kind: str
) -> None:
    seen, plain, traced = Seen(), Keyed(0), Keyed(1, type=Other.DO)  # type: ignore[arg-type]
    dispatcher = AsyncDispatcher(DispatcherConfig(measure_times="none"))
    dispatcher.register(Other, lambda event: None, context=True)
    dispatcher.register(Work, handler_of(seen, loop, kind))
    within("request", lambda: [dispatcher.post(event) for event in (plain, traced)])
    bare, entry = dispatcher.core.queue.entries

    assert bare is plain
    assert (entry.event, entry.delivery.context[REQUEST]) == (traced, "request")
    with dispatcher:
        assert dispatcher.await_drained(TIMEOUT_S)
    assert seen.requests == {0: None}


def test_every_handler_of_the_class_sees_the_context_until_it_is_unregistered(make: Callable[..., Any]) -> None:
    first, second = Seen(), Seen()
    dispatcher = make()
    dispatcher.register(Work, first.handle)
    dispatcher.register(Work, second.handle, context=True)
    within("request", lambda: dispatcher.post(Numbered(0)))
    assert dispatcher.await_drained(TIMEOUT_S)
    dispatcher.unregister(Work, second.handle)
    within("request", lambda: dispatcher.post(Numbered(1)))

    assert dispatcher.await_drained(TIMEOUT_S)
    assert first.requests == {0: "request", 1: None}
    assert second.requests == {0: "changed by a handler"}  # by the first: one event, one context


@kinds
def test_an_event_that_was_posted_before_its_class_kept_contexts_has_an_empty_one(
    loop: asyncio.AbstractEventLoop, kind: str
) -> None:
    seen = Seen()
    dispatcher = AsyncDispatcher()
    within("request", lambda: [dispatcher.post(Keyed(number)) for number in range(2)])
    dispatcher.register(Work, handler_of(seen, loop, kind), context=True)
    with dispatcher:
        assert dispatcher.await_drained(TIMEOUT_S)

    assert seen.requests == {0: None, 1: None}


@pytest.mark.parametrize("is_again", [False, True], ids=["once", "again"])
def test_an_event_that_is_posted_at_a_time_has_the_context_of_the_call(is_again: bool) -> None:
    clock, seen = ManualClock(0), Seen()
    dispatcher = AsyncDispatcher(time_service=clock)
    dispatcher.register(Work, seen.handle, context=True)
    with dispatcher:
        post = dispatcher.post_every if is_again else dispatcher.post_after
        within("a", lambda: post(1, Keyed(1)))
        within("b", lambda: dispatcher.post_at(1, Keyed(2)))
        for _ in range(2):
            clock.advance(1000)
            assert dispatcher.await_drained(TIMEOUT_S)

    assert seen.requests == {1: "a", 2: "b"}


# -- ways to post ------------------------------------------------------------------------------------------------------


def write_ahead(path: Path, handler: Any, **options: Any) -> AsyncDispatcher:
    dispatcher = AsyncDispatcher(journal=JournalWriter(path, JournalConfig(write_ahead=True)))
    dispatcher.register(Job, handler, events=Posted, context=True, **options)
    return dispatcher


@kinds
@pytest.mark.parametrize("key", [None, "one"])
def test_a_logged_event_has_the_context_of_its_post_and_none_once_it_is_redelivered(
    loop: asyncio.AbstractEventLoop, tmp_path: Path, kind: str, key: str | None
) -> None:
    seen = Seen()
    options = {"coalesce_by": lambda event: key}
    dispatcher = write_ahead(tmp_path, handler_of(seen, loop, kind), **options)
    dispatcher.set_drain_events_on_stop(False)
    with dispatcher:
        within("post", lambda: dispatcher.post(Posted(Job.STARTED, 0)))
        assert dispatcher.await_drained(TIMEOUT_S)
        later = within("post_later", lambda: dispatcher.post_later(Posted(Job.STARTED, 1)))
        assert later.result(TIMEOUT_S)
        assert dispatcher.await_drained(TIMEOUT_S)
        with held(dispatcher.mailbox_executor.execute) as goes_on:
            within("lost", lambda: dispatcher.post(Posted(Job.STARTED, 2)))
            with stopping(dispatcher):
                goes_on.set()
    assert seen.requests == {0: "post", 1: "post_later"}

    with write_ahead(tmp_path, handler_of(seen, loop, kind), **options) as again:
        assert again.await_drained(TIMEOUT_S)
    assert seen.requests == {0: "post", 1: "post_later", 2: None}


def test_a_logged_post_of_a_task_that_waits_for_room_keeps_the_context_of_the_task(tmp_path: Path, gate: Gate) -> None:
    seen = Seen()

    def handle(event: Posted) -> None:
        gate.handle(event)
        seen.handle(event)

    journal = JournalWriter(tmp_path, JournalConfig(write_ahead=True))
    dispatcher = AsyncDispatcher(queue_capacity=1, journal=journal)
    dispatcher.register(Job, handle, events=Posted, context=True)

    async def post(number: int) -> None:
        REQUEST.set(f"request {number}")
        assert await aio.post(dispatcher, Posted(Job.STARTED, number))

    async def main() -> None:
        async with dispatcher:
            await asyncio.create_task(post(0))
            while not gate.entered.is_set():
                await asyncio.sleep(0)
            posts = [asyncio.create_task(post(number)) for number in (1, 2)]
            while not dispatcher.core.queue.room.waiters:
                await asyncio.sleep(0)
            gate.opened.set()
            await asyncio.gather(*posts)

    asyncio.run(asyncio.wait_for(main(), TIMEOUT_S))
    assert seen.requests == {number: f"request {number}" for number in range(3)}


# -- contexts of coroutines --------------------------------------------------------------------------------------------


def test_the_handler_of_an_event_that_a_coroutine_posted_is_no_part_of_that_coroutine(
    loop: asyncio.AbstractEventLoop,
) -> None:
    """In a copy of the coroutine's context, it counted as inside: its posts to the first dispatcher were accepted."""
    answers: list[bool] = []
    handler = Latched(loop)
    first, second = AsyncDispatcher(loop=loop), AsyncDispatcher()
    first.register(Work, handler)
    second.register(Work, lambda event: answers.append(first.post(Keyed(9))), context=True)

    async def post_and_wait(event: Keyed) -> None:
        second.post(Keyed(1))
        await aio.await_drained(second, TIMEOUT_S)

    handler.then = post_and_wait
    with first, second:
        first.post(Keyed(0))
        handler.await_begun(0)
        with stopping(first):
            handler.end(0)

    assert answers == [False]
    assert_accounts_balance(first, accepted=1)


# -- any mixture -------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    plan=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["post", "later", "aio"])), min_size=1, max_size=20),
    measure_times=st.sampled_from(MODES),
    queue_capacity=st.sampled_from([None, 1, 3]),
    coalesces=st.booleans(),
    is_async=st.booleans(),
    producers=st.integers(1, 2),
)
def test_each_handled_event_has_the_context_of_its_own_post(
    loop: asyncio.AbstractEventLoop,
    plan: list[tuple[int, str]],
    measure_times: Any,
    queue_capacity: int | None,
    coalesces: bool,
    is_async: bool,
    producers: int,
) -> None:
    seen = Seen()
    config = DispatcherConfig(measure_times=measure_times, queue_capacity=queue_capacity)
    dispatcher = AsyncDispatcher(config)
    # A key of 0 coalesces with nothing.
    coalesce_by = (lambda event: event.lock_key or None) if coalesces else None
    handler = handler_of(seen, loop, "async" if is_async else "plain")
    dispatcher.register(Work, handler, coalesce_by=coalesce_by, context=True)

    def post(way: str, event: Keyed) -> None:
        if way == "aio":
            assert asyncio.run(aio.post(dispatcher, event))
        elif way == "later":
            assert dispatcher.post_later(event).result(TIMEOUT_S)
        else:
            assert dispatcher.post(event)

    def produce(producer: int) -> None:
        for number, (key, way) in enumerate(plan):
            if number % producers == producer:
                within(number, partial(post, way, Keyed(number, key)))

    with dispatcher:
        in_threads(*(partial(produce, number) for number in range(producers)))
        assert dispatcher.await_drained(TIMEOUT_S)

    assert seen.requests == {number: number for number in seen.requests}
    assert len(seen.requests) == dispatcher.stats().handled
    assert_accounts_balance(dispatcher, accepted=len(plan))
    if not coalesces:
        assert len(seen.requests) == len(plan)
