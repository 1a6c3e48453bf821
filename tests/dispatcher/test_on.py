"""`on`: what the handlers of single members share with those of their class, and what they have to themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, Event, EventDispatcher

from ..kit import TIMEOUT_S, Gate, Numbered, Other, Work
from ..kit.dispatchers import Make, hold


def test_a_consumer_of_its_own_gets_the_events_of_the_other_members() -> None:
    own, of_member = Gate(), Gate()
    for each in (own, of_member):
        each.opened.set()
    with EventDispatcher(own) as dispatcher:
        dispatcher.on(Work.DO)(of_member)  # type: ignore[type-var]
        for event_type in Work:
            dispatcher.post(Event(event_type))

    assert [event.type for event in of_member.events] == [Work.DO]
    assert [event.type for event in own.events] == [Work.MORE]


def test_the_error_policy_holds_for_the_members_alone(make: Make) -> None:
    dispatcher = make()

    @dispatcher.on(Work.DO)
    @dispatcher.on(Work.MORE, on_error="stop")
    def fail(event: Any) -> None:
        raise RuntimeError(event.type.name)

    dispatcher.post(Numbered(type=Work.DO))
    assert dispatcher.await_drained(TIMEOUT_S)
    assert dispatcher.failure_cause is None

    dispatcher.post(Numbered(type=Work.MORE))
    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
    assert str(dispatcher.failure_cause) == "MORE"


def test_events_supersede_each_other_only_within_one_registration(make: Make, gate: Gate) -> None:
    """Otherwise a heartbeat would supersede the event that a node is lost."""
    got: list[tuple[Any, int]] = []
    dispatcher = make()
    dispatcher.register(Other, gate)

    def note(event: Numbered) -> None:
        got.append((event.type, event.number))

    dispatcher.register(Work, note, coalesce_by=lambda _: "key")  # holds for the members without a function
    dispatcher.on(Work.MORE, coalesce_by=lambda _: "key")(note)
    hold(dispatcher, gate, Event(Other.DO))

    for number, event_type in enumerate([Work.DO, Work.MORE, Work.MORE, Work.DO]):
        dispatcher.post(Numbered(number, type=event_type))
    gate.opened.set()
    assert dispatcher.await_drained(TIMEOUT_S)

    assert got == [(Work.DO, 3), (Work.MORE, 2)]


# -- async def --------------------------------------------------------------------------------------------------------


async def coroutine(event: Any) -> None: ...


def plain(event: Any) -> None: ...


def test_async_functions_of_members_keep_the_order_of_a_key(make: Make, loop: asyncio.AbstractEventLoop) -> None:
    steps: list[str] = []
    dispatcher = make(loop=loop)
    may_end = asyncio.Event()

    @dispatcher.on(Work.DO)
    async def first(event: Any) -> None:
        steps.append("first begins")
        await may_end.wait()
        steps.append("first ends")

    @dispatcher.on(Work.MORE)
    async def second(event: Any) -> None:
        steps.append("second")

    dispatcher.post(Numbered(type=Work.DO))
    dispatcher.post(Numbered(type=Work.MORE))
    loop.call_soon_threadsafe(may_end.set)
    assert dispatcher.await_drained(TIMEOUT_S)

    assert steps == ["first begins", "first ends", "second"]


def test_an_async_function_that_asks_for_an_event_behind_its_own_is_refused(
    make: Make, loop: asyncio.AbstractEventLoop
) -> None:
    dispatcher = make(loop=loop)
    dispatcher.on(Work.MORE)(coroutine)

    @dispatcher.on(Work.DO)
    async def first(event: Any) -> Any:
        return dispatcher.ask(Numbered(type=Work.MORE))

    assert isinstance(dispatcher.ask(Numbered()).exception(TIMEOUT_S), RuntimeError)


ALL_OR_NONE = "^Work: the functions of its members are all `async def` or all plain"
ALONE = "^Work: an `async def` handler is the only one of its Enum class"
CLASHES: dict[str, tuple[Any, Any, Callable[[AsyncDispatcher], Any], str]] = {
    "plain for another member": (Work.DO, coroutine, lambda each: each.on(Work.MORE)(plain), ALL_OR_NONE),
    "async for the class": (Work.DO, coroutine, lambda each: each.on(Work)(coroutine), ALONE),
    "async for another member": (Work.DO, plain, lambda each: each.on(Work.MORE)(coroutine), ALL_OR_NONE),
    "plain next to async": (Work, coroutine, lambda each: each.on(Work)(plain), ALONE),
    "async next to plain": (Work, plain, lambda each: each.on(Work)(coroutine), ALONE),
}


@pytest.mark.parametrize(("of", "first", "register", "message"), CLASHES.values(), ids=CLASHES)
def test_what_cannot_stand_next_to_the_first_function_is_refused_while_that_is_registered(
    loop: asyncio.AbstractEventLoop, of: Any, first: Any, register: Callable[[AsyncDispatcher], Any], message: str
) -> None:
    dispatcher = AsyncDispatcher(loop=loop)
    dispatcher.on(of)(first)

    with pytest.raises(ValueError, match=message):
        register(dispatcher)
    assert dispatcher.unregister(Work, first)
    register(dispatcher)
