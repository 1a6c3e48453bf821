"""`on`: handlers of single members of an Enum class."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from enum import Enum, IntEnum
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, Event, EventDispatcher, MultiDispatcher, UnregisteredEventTypeError
from dispatcher.aio import AsyncioHandler
from dispatcher.testing import InlineDispatcher

from ..kit import TIMEOUT_S, Gate, Numbered, Other, Work

Make = Callable[..., AsyncDispatcher]


class Step(IntEnum):
    ONE = 1


class Same(IntEnum):
    ONE = 1


class Mailer:
    """A handler object."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    def handle(self, event: Any) -> None:
        self.got.append(event.type)


@pytest.fixture
def inline() -> InlineDispatcher:
    return InlineDispatcher(name="inline")


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that runs on a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(TIMEOUT_S)
    loop.close()


def recorder(calls: list[tuple[str, Any]], name: str) -> Callable[[Any], None]:
    return lambda event: calls.append((name, event.type))


# -- which function gets which event ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [AsyncDispatcher, MultiDispatcher, InlineDispatcher])
def test_a_decorated_function_gets_the_events_of_its_members(kind: Any) -> None:
    calls: list[tuple[str, Any]] = []
    dispatcher = kind()
    dispatcher.on(Work.DO)(recorder(calls, "do"))
    dispatcher.on(Work.MORE, Other.DO)(recorder(calls, "more"))

    with dispatcher:
        for event_type in (Work.DO, Work.MORE, Other.DO):
            assert dispatcher.post(Event(event_type))

    assert calls == [("do", Work.DO), ("more", Work.MORE), ("more", Other.DO)]


@pytest.mark.parametrize("kind", [AsyncDispatcher, MultiDispatcher, InlineDispatcher])
def test_the_decorated_function_is_returned_unchanged(kind: Any) -> None:
    def function(event: Any) -> None: ...

    assert kind().on(Work)(function) is function
    assert kind().on(Work.DO)(function) is function


def test_a_decorated_function_of_a_class_gets_all_its_events(inline: InlineDispatcher) -> None:
    calls: list[tuple[str, Any]] = []
    inline.on(Work)(recorder(calls, "first"))
    inline.on(Work, Other)(recorder(calls, "second"))

    for event_type in (Work.DO, Other.DO):
        inline.post(Event(event_type))

    assert calls == [("first", Work.DO), ("second", Work.DO), ("second", Other.DO)]


@pytest.mark.parametrize("is_first", [True, False])
def test_the_handlers_of_the_class_get_the_events_of_the_other_members(
    inline: InlineDispatcher, is_first: bool
) -> None:
    calls: list[tuple[str, Any]] = []
    registrations = [
        lambda: inline.register(Work, recorder(calls, "class")),
        lambda: inline.on(Work.DO)(recorder(calls, "member")),
    ]
    for register in registrations if is_first else reversed(registrations):
        register()

    for event_type in Work:
        inline.post(Event(event_type))

    assert calls == [("member", Work.DO), ("class", Work.MORE)]


def test_an_event_of_a_member_without_a_function_fails_and_names_the_member(make: Make) -> None:
    dispatcher = make(name="mine")
    dispatcher.on(Work.DO)(lambda _: None)

    dispatcher.post(Numbered(type=Work.MORE))
    dispatcher.post(Numbered(type=Work.DO))
    assert dispatcher.await_drained(TIMEOUT_S)

    assert (dispatcher.stats().handled, dispatcher.stats().failed) == (1, 1)
    [failure] = dispatcher.view.failures()
    assert (failure.error_class, failure.event_type) == ("UnregisteredEventTypeError", "MORE")


def test_an_inline_dispatcher_raises_for_a_member_without_a_function(inline: InlineDispatcher) -> None:
    inline.on(Work.DO)(lambda _: None)

    with pytest.raises(UnregisteredEventTypeError, match=r"no handler for Work\.MORE"):
        inline.post(Numbered(type=Work.MORE))


def test_members_of_two_enums_that_are_equal_are_two(inline: InlineDispatcher) -> None:
    calls: list[tuple[str, Any]] = []
    inline.on(Step.ONE)(recorder(calls, "step"))
    inline.on(Same.ONE)(recorder(calls, "same"))

    inline.post(Event(Same.ONE))

    assert calls == [("same", Same.ONE)]


def test_a_handler_object_is_taken_too(inline: InlineDispatcher) -> None:
    mailer = Mailer()
    inline.on(Work.DO)(mailer.handle)
    inline.on(Work.MORE)(mailer)  # type: ignore[type-var]

    for event_type in Work:
        inline.post(Event(event_type))

    assert mailer.got == [Work.DO, Work.MORE]


def test_a_consumer_of_its_own_gets_the_events_of_the_other_members() -> None:
    calls: list[tuple[str, Any]] = []
    with EventDispatcher(recorder(calls, "own")) as dispatcher:
        dispatcher.on(Work.DO)(recorder(calls, "member"))
        for event_type in Work:
            dispatcher.post(Event(event_type))

    assert calls == [("member", Work.DO), ("own", Work.MORE)]


def test_a_registration_while_running_takes_effect_with_the_next_event(make: Make) -> None:
    calls: list[tuple[str, Any]] = []
    dispatcher = make()
    dispatcher.register(Work, recorder(calls, "class"))
    dispatcher.post(Numbered())
    assert dispatcher.await_drained(TIMEOUT_S)

    dispatcher.on(Work.DO)(recorder(calls, "member"))
    dispatcher.post(Numbered())
    assert dispatcher.await_drained(TIMEOUT_S)

    assert calls == [("class", Work.DO), ("member", Work.DO)]


def test_unregister_removes_a_decorated_function_from_all_its_members(inline: InlineDispatcher) -> None:
    calls: list[tuple[str, Any]] = []
    function = inline.on(Work.DO, Work.MORE)(recorder(calls, "member"))
    inline.register(Work, recorder(calls, "class"))

    assert inline.unregister(Work, function)
    for event_type in Work:
        inline.post(Event(event_type))

    assert calls == [("class", Work.DO), ("class", Work.MORE)]
    assert not inline.unregister(Work, function)


def test_asking_returns_what_the_function_of_the_member_returns(make: Make) -> None:
    dispatcher = make()
    dispatcher.on(Work.DO)(lambda event: event.number + 1)
    dispatcher.on(Work.MORE)(lambda event: event.number + 2)

    answers = [dispatcher.ask(Numbered(10, type=event_type)) for event_type in Work]

    assert [answer.result(TIMEOUT_S) for answer in answers] == [11, 12]


# -- options ----------------------------------------------------------------------------------------------------------


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


def test_events_supersede_each_other_only_within_one_decoration(make: Make, gate: Gate) -> None:
    """Otherwise a heartbeat would supersede the event that a node is lost."""
    got: list[tuple[Any, int]] = []
    dispatcher = make()
    dispatcher.register(Other, gate)
    dispatcher.on(Work.DO, coalesce_by=lambda _: "key")(lambda event: got.append((event.type, event.number)))
    dispatcher.on(Work.MORE)(lambda event: got.append((event.type, event.number)))
    dispatcher.post(Event(Other.DO))
    assert gate.entered.wait(TIMEOUT_S)

    for number, event_type in enumerate([Work.DO, Work.MORE, Work.MORE, Work.DO]):
        dispatcher.post(Numbered(number, type=event_type))
    gate.opened.set()
    assert dispatcher.await_drained(TIMEOUT_S)

    assert got == [(Work.DO, 3), (Work.MORE, 1), (Work.MORE, 2)]


def test_the_key_of_the_class_holds_for_the_other_members(make: Make, gate: Gate) -> None:
    got: list[tuple[Any, int]] = []
    dispatcher = make()
    dispatcher.register(Other, gate)
    dispatcher.register(Work, lambda event: got.append((event.type, event.number)), coalesce_by=lambda _: "key")
    dispatcher.on(Work.MORE, coalesce_by=lambda _: "key")(lambda event: got.append((event.type, event.number)))
    dispatcher.post(Event(Other.DO))
    assert gate.entered.wait(TIMEOUT_S)

    for number, event_type in enumerate([Work.DO, Work.MORE, Work.MORE, Work.DO]):
        dispatcher.post(Numbered(number, type=event_type))
    gate.opened.set()
    assert dispatcher.await_drained(TIMEOUT_S)

    assert got == [(Work.DO, 3), (Work.MORE, 2)]


# -- async def --------------------------------------------------------------------------------------------------------


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


def test_asking_returns_what_the_async_function_of_the_member_returns(
    make: Make, loop: asyncio.AbstractEventLoop
) -> None:
    dispatcher = make(loop=loop)

    @dispatcher.on(Work.DO)
    async def answer(event: Any) -> int:
        return int(event.number) + 1

    assert dispatcher.ask(Numbered(10)).result(TIMEOUT_S) == 11


def test_an_async_function_that_asks_for_an_event_behind_its_own_is_refused(
    make: Make, loop: asyncio.AbstractEventLoop
) -> None:
    dispatcher = make(loop=loop)

    @dispatcher.on(Work.MORE)
    async def second(event: Any) -> None: ...

    @dispatcher.on(Work.DO)
    async def first(event: Any) -> Any:
        return dispatcher.ask(Numbered(type=Work.MORE))

    error = dispatcher.ask(Numbered()).exception(TIMEOUT_S)

    assert isinstance(error, RuntimeError)


def test_an_async_function_without_a_loop_is_refused() -> None:
    async def function(event: Any) -> None: ...

    with pytest.raises(TypeError, match=r"`async def` handler, and there is no event loop"):
        AsyncDispatcher().on(Work.DO)(function)


# -- what is refused --------------------------------------------------------------------------------------------------


def test_a_second_function_for_a_member_is_refused_and_the_first_stays(inline: InlineDispatcher) -> None:
    calls: list[tuple[str, Any]] = []
    inline.on(Work.DO)(recorder(calls, "first"))

    with pytest.raises(ValueError, match=r"^Work\.DO has a function already"):
        inline.on(Work.MORE, Work.DO)(recorder(calls, "second"))

    inline.post(Event(Work.DO))
    assert calls == [("first", Work.DO)]
    with pytest.raises(UnregisteredEventTypeError):
        inline.post(Event(Work.MORE))


def test_a_member_named_twice_in_a_call_is_one(inline: InlineDispatcher) -> None:
    calls: list[tuple[str, Any]] = []

    inline.on(Work.DO, Work.DO, Other, Other)(recorder(calls, "once"))

    for event_type in (Work.DO, Other.DO):
        inline.post(Event(event_type))
    assert calls == [("once", Work.DO), ("once", Other.DO)]


@pytest.mark.parametrize("is_plain_first", [True, False])
def test_plain_and_async_functions_for_members_of_a_class_are_refused(
    loop: asyncio.AbstractEventLoop, is_plain_first: bool
) -> None:
    dispatcher = AsyncDispatcher(loop=loop)

    def plain(event: Any) -> None: ...
    async def coroutine(event: Any) -> None: ...

    first, second = (plain, coroutine) if is_plain_first else (coroutine, plain)
    dispatcher.on(Work.DO)(first)

    with pytest.raises(ValueError, match=r"^Work: the functions of its members are all `async def` or all plain"):
        dispatcher.on(Work.MORE)(second)


def test_an_async_handler_of_the_class_next_to_functions_of_members_is_refused(loop: asyncio.AbstractEventLoop) -> None:
    dispatcher = AsyncDispatcher(loop=loop)

    async def coroutine(event: Any) -> None: ...

    dispatcher.on(Work.DO)(coroutine)

    with pytest.raises(ValueError, match="the only one of its Enum class"):
        dispatcher.register(Work, coroutine)


def test_an_asyncio_handler_for_members_is_refused(loop: asyncio.AbstractEventLoop) -> None:
    async def coroutine(event: Any) -> None: ...

    with pytest.raises(TypeError, match=r"^Work\.DO: <AsyncioHandler .*> is for an Enum class"):
        AsyncDispatcher(loop=loop).on(Work.DO)(AsyncioHandler(coroutine))  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        *((AsyncDispatcher, arguments) for arguments in [(), (print,), ("DO",), (Work.DO, int)]),
        (MultiDispatcher, (print,)),
        (InlineDispatcher, (print,)),
    ],
)
def test_something_other_than_enum_classes_and_members_is_refused(kind: Any, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match="on takes Enum classes"):
        kind().on(*arguments)


def test_a_class_without_members_is_refused(inline: InlineDispatcher) -> None:
    with pytest.raises(TypeError, match="has none, so no event has a type"):
        inline.on(Enum)(print)


def test_a_generator_function_is_refused(inline: InlineDispatcher) -> None:
    def generate(event: Any) -> Iterator[None]:
        yield

    with pytest.raises(TypeError, match="is a generator function"):
        inline.on(Work.DO)(generate)
