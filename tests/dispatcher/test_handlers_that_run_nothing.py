"""A handler whose call runs nothing is refused by name when it is registered.

Generator functions, async generator functions and classes were taken: their events counted as handled, and no line of
the handler ran.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial, partialmethod, wraps
from pathlib import Path
from typing import Any

import pytest

from dispatcher import (
    AsyncDispatcher,
    EventDispatcher,
    JournalWriter,
    MultiListenerHandler,
    Service,
    aio,
    register_check,
)
from dispatcher.journal import EVENTS, entity_history, read_rows
from dispatcher.mailbox import MailboxProcessor, ManualClock, SystemProcessingTimeService

from ..kit import TIMEOUT_S, Numbered, Work
from ..kit.dispatchers import Make


def generator(event: Any) -> Iterator[Any]:
    yield event


async def async_generator(event: Any) -> AsyncIterator[Any]:
    yield event


async def coroutine(event: Any) -> None: ...


class Owner:
    """Has a handler of each shape of the function that it is made with, as a method with two arguments."""

    def __init_subclass__(cls, function: Callable[..., Any]) -> None:
        cls.handle = lambda self, event: None  # type: ignore[attr-defined]
        cls.method = function  # type: ignore[attr-defined]
        cls.kept = partialmethod(function)  # type: ignore[attr-defined]


def shapes(function: Callable[..., Any]) -> dict[str, Any]:
    """Handlers that all end in a call of `function`, which gets an argument before the event."""

    class Methods(Owner, function=function): ...

    class Callable_:
        __call__ = function

    class Handling:
        handle = function

    class HandlingByCallable:
        handle = Callable_()

    return {
        "partial": partial(function, 1),
        "bound method": Methods().method,  # type: ignore[attr-defined]
        "partial of a bound method": partial(Methods().method),  # type: ignore[attr-defined]
        "partialmethod": Methods().kept,  # type: ignore[attr-defined]
        "callable object": Callable_(),
        "partial of a callable object": partial(Callable_()),
        "method handle": Handling(),
        "handle that is a callable object": HandlingByCallable(),
    }


def generator_of_two(first: Any, event: Any) -> Iterator[Any]:
    yield event


async def async_generator_of_two(first: Any, event: Any) -> AsyncIterator[Any]:
    yield event


async def coroutine_of_two(first: Any, event: Any) -> None: ...


class Calls:
    def __call__(self, event: Any) -> None: ...


REFUSED: dict[str, tuple[Any, str]] = {
    **{f"{name} of a generator": (each, "is a generator function") for name, each in shapes(generator_of_two).items()},
    **{
        f"{name} of an async generator": (each, "is an async generator function")
        for name, each in shapes(async_generator_of_two).items()
    },
    **{
        f"{name} of a coroutine": (each, "`async def` handler, and .* no event loop")
        for name, each in shapes(coroutine_of_two).items()
    },
    "class of callables": (Calls, r"Calls.* is a class: .*Register an instance, Calls\(\.\.\.\)"),
    "partial of a class": (partial(Calls), r"Calls.* is a class"),
    "class whose method is a coroutine": (type("Late", (), {"handle": coroutine_of_two}), "Late.* is a class"),
    "nothing": (None, r"a handler is a callable or has a method handle\(event\); .* is neither"),
    "attribute handle that is no method": (type("Odd", (), {"handle": 3})(), "is neither"),
}


def register(handler: Any) -> None:
    AsyncDispatcher().register(Work, handler)


OTHER_DOORS: dict[str, Callable[[Any], Any]] = {
    "EventDispatcher": lambda handler: EventDispatcher(handler),
    "MultiListenerHandler": lambda handler: MultiListenerHandler(handler),
}


@pytest.mark.parametrize(("handler", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_it_is_refused_by_name(handler: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        register(handler)


@pytest.mark.parametrize("door", OTHER_DOORS.values(), ids=OTHER_DOORS.keys())
def test_every_other_door_refuses_the_same(door: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"generator.* is a generator function"):
        door(generator)
    with pytest.raises(TypeError, match="`async def` handler"):
        door(coroutine)


@pytest.mark.parametrize("handler", [generator, async_generator, Calls, partial(Calls)])
def test_asyncio_handlers_refuse_it_too(handler: Any) -> None:
    with pytest.raises(TypeError, match=r"AsyncioHandler takes an `async def`|is a class"):
        aio.AsyncioHandler(handler)


@pytest.mark.parametrize("handler", shapes(coroutine_of_two).values(), ids=shapes(coroutine_of_two).keys())
def test_every_shape_of_a_coroutine_is_taken_for_the_loop(handler: Any) -> None:
    with closing(asyncio.new_event_loop()) as loop:
        dispatcher = AsyncDispatcher(loop=loop)

        dispatcher.register(Work, handler)

        with pytest.raises(ValueError, match="the only one of its Enum class"):
            dispatcher.register(Work, print)


def test_a_class_that_handles_without_an_instance_is_a_handler(make: Make) -> None:
    got: list[Any] = []

    class OfClass:
        @classmethod
        def handle(cls, event: Any) -> None:
            got.append(cls)

    class Static:
        @staticmethod
        def handle(event: Any) -> None:
            got.append(event)

    dispatcher = make(handler=OfClass)
    dispatcher.register(Work, Static)
    event = Numbered()

    dispatcher.post(event)

    assert dispatcher.await_drained(TIMEOUT_S)
    assert got == [OfClass, event]


def _logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def logged(*args: Any) -> Any:
        return function(*args)

    return logged


@pytest.mark.parametrize(
    "handler",
    [_logged(generator), _logged(async_generator), _logged(coroutine), contextmanager(generator)],
    ids=["generator", "async generator", "coroutine", "context manager"],
)
def test_an_event_fails_whose_decorated_handler_has_run_nothing(
    make: Make, caplog: pytest.LogCaptureFixture, handler: Any
) -> None:
    dispatcher = make(handler=handler)

    dispatcher.post(Numbered())

    assert dispatcher.await_drained(TIMEOUT_S)
    assert (dispatcher.stats().handled, dispatcher.stats().failed) == (0, 1)
    assert "and ran nothing: it decorates" in caplog.text


def test_a_decorator_may_run_the_generator_itself(make: Make) -> None:
    got: list[Any] = []

    @wraps(generator)
    def run(event: Any) -> None:
        got.extend(generator(event))

    dispatcher = make(handler=run)
    event = Numbered()

    dispatcher.post(event)

    assert dispatcher.await_drained(TIMEOUT_S)
    assert (got, dispatcher.stats().handled) == ([event], 1)


OTHER_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "coalesce_by": lambda function: AsyncDispatcher().register(Work, print, coalesce_by=function),
    "on_error": lambda function: AsyncDispatcher().register(Work, print, on_error=function),
    "key": lambda function: aio.AsyncioHandler(coroutine, key=function),
    "dead_letters": lambda function: AsyncDispatcher(dead_letters=function),
    "idle_action": lambda function: AsyncDispatcher(idle_action=function),
    "exit_action": lambda function: AsyncDispatcher(exit_action=function),
    "clock_ns": lambda function: AsyncDispatcher(clock_ns=function),
    "the factory of post_every": lambda function: AsyncDispatcher().post_every(1, function),
    "a service listener": lambda function: Service("shop").register_service_listener(function),
    "check db": lambda function: register_check("db", function),
    "the callback of a timer": lambda function: ManualClock().register_timer(1, function),
    "on_error of timers": lambda function: SystemProcessingTimeService("timers", on_error=function),
    "default_action": lambda function: MailboxProcessor(function),
    "on_slow": lambda function: MailboxProcessor(print, on_slow=function),
    "on_damage": lambda function: entity_history("no journal", "order_1", on_damage=function),
    "on_damage of rows": lambda function: next(read_rows("no journal", EVENTS, on_damage=function)),
}


@pytest.mark.parametrize("function", [generator, async_generator, coroutine], ids=lambda each: each.__name__)
@pytest.mark.parametrize("name", OTHER_FUNCTIONS)
def test_any_other_function_whose_call_runs_nothing_is_refused_by_name(name: str, function: Any) -> None:
    """An `async def` for dead letters was taken, and lost every letter; for the idle action it kept the thread busy."""
    with pytest.raises(TypeError, match=rf"{name.split(' of ')[0]}.* must be a plain function that .* runs later"):
        OTHER_FUNCTIONS[name](function)


def test_an_on_failure_that_runs_nothing_is_refused_by_name(tmp_path: Path) -> None:
    with closing(JournalWriter(tmp_path)) as journal, pytest.raises(TypeError, match="on_failure must be a plain"):
        journal.attach(on_failure=coroutine)


def test_an_idle_action_that_only_returns_a_coroutine_ends_its_dispatcher_with_a_reason(make: Make) -> None:
    """The coroutine counted as true, so as work that was made, and the handler thread asked for more at once."""
    dispatcher = make(idle_action=lambda: coroutine(None))

    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
    assert "returned a coroutine and ran nothing" in str(dispatcher.failure_cause)


def test_a_dead_letter_counts_as_lost_if_its_handler_only_returns_a_coroutine(make: Make) -> None:
    dispatcher = make(handler=lambda event: int("no"), dead_letters=lambda letter: coroutine(letter))

    dispatcher.post(Numbered())

    assert dispatcher.await_drained(TIMEOUT_S)
    assert (dispatcher.stats().dead_letters, dispatcher.stats().dead_letters_lost) == (1, 1)


def test_a_mail_that_runs_nothing_ends_its_loop_with_a_reason(make: Make) -> None:
    dispatcher = make()

    dispatcher.mailbox_executor.execute(partial(coroutine, None))

    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
    assert "calling it ran nothing" in str(dispatcher.failure_cause)
