"""One contract for all that is a `Dispatcher`: a component that is given one finds the same behavior in each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from enum import Enum, IntEnum
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher import AskError, AsyncDispatcher, Event, MultiDispatcher, ServiceState, UnregisteredEventTypeError
from dispatcher.aio import AsyncioHandler, RateLimit
from dispatcher.testing import DrainDispatcher, InlineDispatcher, ManualClock

from ..kit import TIMEOUT_S, Numbered, Other, Work


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=[AsyncDispatcher, DrainDispatcher, MultiDispatcher, InlineDispatcher])
def service(request: pytest.FixtureRequest, clock: ManualClock, loop: asyncio.AbstractEventLoop) -> Iterator[Any]:
    """A started dispatcher."""
    is_inline = request.param is InlineDispatcher
    options: dict[str, Any] = {"clock": clock} if is_inline else {"time_service": clock, "loop": loop}
    if request.param is MultiDispatcher:
        options["partitions"] = 2
    with request.param(name="whole", **options) as service:
        yield service


@pytest.fixture(params=[False, True], ids=["whole", "scope"])
def dispatcher(service: Any, request: pytest.FixtureRequest) -> Any:
    return service.scope("part") if request.param else service


@pytest.fixture
def settle(service: Any) -> Callable[[], None]:
    """Return once all is handled."""

    def settle() -> None:
        assert isinstance(service, InlineDispatcher) or service.await_drained(TIMEOUT_S)

    return settle


def test_events_reach_the_handler_of_their_class_in_the_order_of_posting(
    dispatcher: Any, settle: Callable[[], None]
) -> None:
    work: list[Any] = []
    other: list[Any] = []
    dispatcher.register(Work, work.append)
    dispatcher.register(Other, SimpleNamespace(handle=other.append))
    events = [*map(Numbered, range(100)), SimpleNamespace(type=Work.DO)]
    odd = Event(Other.DO)

    for event in events:
        assert dispatcher.post(event)
    later = dispatcher.post_later(events[0])
    answers = [
        post(odd) for post in (dispatcher.post_nowait, dispatcher.event_handler.handle, dispatcher.event_handler)
    ]
    settle()

    assert (later.result(TIMEOUT_S), answers) == (True, [True] * 3)
    assert (work, other) == ([*events, events[0]], [odd] * 3)


def test_the_handlers_of_a_class_are_called_in_their_order_until_they_are_unregistered(
    dispatcher: Any, settle: Callable[[], None]
) -> None:
    calls: list[str] = []
    first, second = (partial(lambda name, event: calls.append(name), name) for name in ("first", "second"))
    dispatcher.register(Work, first)
    dispatcher.register(Work, second)
    dispatcher.post(Numbered())
    settle()

    removed = [dispatcher.unregister(Work, first) for _ in range(2)]
    dispatcher.post(Numbered())
    settle()

    assert removed == [True, False]
    assert calls == ["first", "second", "second"]


class Step(IntEnum):
    ONE = 1


class Same(IntEnum):
    ONE = 1


class NoMembers(Enum):
    """Has no members: its subclasses do."""


class OfBase(NoMembers):
    ONE = 1


MEMBERS: dict[str, tuple[list[tuple[str, Any]], list[tuple[Enum, str]]]] = {
    "a function of members gets their events": (
        [("do", [Work.DO]), ("more", [Work.MORE, Other.DO])],
        [(Work.DO, "do"), (Work.MORE, "more"), (Other.DO, "more")],
    ),
    "a function of classes gets all their events, as other handlers do": (
        [("first", [Work]), ("second", [Work, Other])], [(Work.DO, "first second"), (Other.DO, "second")],
    ),
    "the class's handlers get the events of the other members": (
        [("class", Work), ("member", [Work.DO])], [(Work.DO, "member"), (Work.MORE, "class")],
    ),
    "the same if they come last": (
        [("member", [Work.DO]), ("class", Work)], [(Work.DO, "member"), (Work.MORE, "class")],
    ),
    "what is named twice is one": (
        [("once", [Work.DO, Work.DO, Other, Other])], [(Work.DO, "once"), (Other.DO, "once")],
    ),
    "a class with a base has events as others do": ([("class", OfBase)], [(OfBase.ONE, "class")]),
    "members of two classes that are equal are two": (
        [("step", [Step.ONE]), ("same", [Same.ONE])], [(Same.ONE, "same"), (Step.ONE, "step")],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("functions", "gets"), MEMBERS.values(), ids=MEMBERS)
def test_which_function_gets_which_event(
    dispatcher: Any, settle: Callable[[], None], functions: list[tuple[str, Any]], gets: list[tuple[Enum, str]]
) -> None:
    calls: list[str] = []
    for name, what in functions:
        function = partial(lambda name, event: calls.append(name), name)
        if isinstance(what, list):
            assert dispatcher.on(*what)(function) is function
        else:
            dispatcher.register(what, function)

    for event_type, names in gets:
        calls.clear()
        dispatcher.post(Event(event_type))
        settle()
        assert calls == names.split(), event_type


def test_unregister_removes_a_function_from_all_its_members(dispatcher: Any, settle: Callable[[], None]) -> None:
    calls: list[Enum] = []
    function = dispatcher.on(Work.DO, Work.MORE)(lambda event: calls.append(event.type))
    dispatcher.post(Event(Work.DO))
    settle()

    assert dispatcher.unregister(Work, function)
    dispatcher.register(Work, lambda event: None)
    for event_type in Work:
        dispatcher.post(Event(event_type))
    settle()

    assert calls == [Work.DO]
    assert not dispatcher.unregister(Work, function)


def test_a_second_function_for_a_member_is_refused_and_changes_nothing(dispatcher: Any) -> None:
    dispatcher.on(Work.DO)(lambda event: "first")

    with pytest.raises(ValueError, match=r"Work\.DO has a function already"):
        dispatcher.on(Work.MORE, Work.DO)(lambda event: "second")

    assert dispatcher.ask(Event(Work.DO)).result(TIMEOUT_S) == "first"
    assert isinstance(dispatcher.ask(Event(Work.MORE)).exception(TIMEOUT_S), UnregisteredEventTypeError)


# -- answers -----------------------------------------------------------------------------------------------------------


def answer(event: Numbered) -> int:
    if event.number < 0:
        raise ValueError(event.number)
    return event.number


async def answer_at_once(event: Numbered) -> int:
    return answer(event)


async def answer_later(event: Numbered) -> int:
    await asyncio.sleep(0)
    return answer(event)


HANDLERS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda dispatcher: dispatcher.register(Work, answer),
    "async": lambda dispatcher: dispatcher.register(Work, answer_later),
    "async without a wait": lambda dispatcher: dispatcher.register(Work, answer_at_once),
    "declared": lambda dispatcher: dispatcher.register(Work, AsyncioHandler(answer_later, rate=RateLimit(1e6))),
    "of a member": lambda dispatcher: dispatcher.on(Work.DO)(answer),
    "async of a member": lambda dispatcher: dispatcher.on(Work.DO)(answer_later),
}


@pytest.mark.parametrize("register", HANDLERS.values(), ids=HANDLERS)
def test_an_ask_has_what_the_handler_returns_or_raises(dispatcher: Any, register: Callable[[Any], Any]) -> None:
    register(dispatcher)

    assert dispatcher.ask(Numbered(7)).result(TIMEOUT_S) == 7
    assert repr(dispatcher.ask(Numbered(-3)).exception(TIMEOUT_S)) == "ValueError(-3)"


def test_an_ask_without_a_handler_has_an_error_and_with_several_raises(dispatcher: Any) -> None:
    assert isinstance(dispatcher.ask(Numbered()).exception(TIMEOUT_S), UnregisteredEventTypeError)

    dispatcher.register(Work, answer)
    dispatcher.register(Work, print)

    with pytest.raises(AskError, match="Work has 2 handlers"):
        dispatcher.ask(Numbered())


def test_outside_of_handlers_it_is_the_first_attempt_at_a_new_event(dispatcher: Any) -> None:
    assert (dispatcher.attempt(), dispatcher.is_redelivering()) == (1, False)


# -- mistakes ----------------------------------------------------------------------------------------------------------


def generator(event: Any) -> Iterator[Any]:
    yield event


MISTAKES: dict[str, tuple[Callable[[Any], Any], type[Exception], str | None]] = {
    "no Enum class": (lambda d: d.register(Work.DO, print), TypeError, "Enum class"),
    "an Enum class without members": (lambda d: d.register(NoMembers, print), TypeError, "NoMembers has none, so no"),
    "Enum": (lambda d: d.on(Enum)(print), TypeError, "has none, so no event has a type of this class"),
    "a generator": (lambda d: d.register(Work, generator), TypeError, "is a generator function"),
    "a policy that is none": (lambda d: d.register(Work, print, on_error="halt"), ValueError, "on_error is one of"),
    "an error for a policy": (lambda d: d.register(Work, print, on_error=OSError), ValueError, "on_error is one of"),
    "a misspelt option": (lambda d: d.on(Work, on_eror="stop")(print), TypeError, "on_eror"),
    "a key that is no function": (lambda d: d.register(Work, print, coalesce_by="order"), TypeError, "coalesce_by"),
    "no event class": (lambda d: d.on(Work, events=[int])(print), TypeError, None),
    "on nothing": (lambda d: d.on(), TypeError, "on takes Enum classes"),
    "on a function": (lambda d: d.on(print), TypeError, "on takes Enum classes"),
    "on another class": (lambda d: d.on(Work.DO, int), TypeError, "on takes Enum classes"),
    "an asyncio handler for a member": (
        lambda d: d.on(Work.DO)(AsyncioHandler(answer_later)),
        TypeError,
        r"Work\.DO: <AsyncioHandler .* an Enum class",
    ),
    "a time before now": (lambda d: d.post_after(-1, Numbered()), ValueError, None),
    "no time": (lambda d: d.post_at(float("nan"), Numbered()), ValueError, None),
    "no period": (lambda d: d.post_every(0, Numbered()), ValueError, None),
    "too much jitter": (lambda d: d.post_every(1, Numbered(), jitter=2), ValueError, None),
    "no event": (lambda d: d.post_every(1, "garbage"), TypeError, None),
}  # fmt: skip


@pytest.mark.parametrize(("make_it", "error", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_refused_by_name(
    dispatcher: Any, make_it: Callable[[Any], Any], error: type[Exception], message: str | None
) -> None:
    with pytest.raises(error, match=message):
        make_it(dispatcher)


# -- times -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def times(dispatcher: Any, clock: ManualClock) -> list[tuple[int, int]]:
    """When events were handled, in ms, and their numbers."""
    times: list[tuple[int, int]] = []
    dispatcher.register(Work, lambda event: times.append((clock.current_processing_time(), event.number)))
    return times


@pytest.fixture
def advance(clock: ManualClock, settle: Callable[[], None]) -> Callable[[int], None]:
    """Let time pass from ms to ms, and have all handled each time."""

    def advance(ms: int) -> None:
        clock.advance(0)
        settle()
        for _ in range(ms // 100):
            clock.advance(100)
            settle()

    return advance


def test_events_are_posted_at_their_times_and_not_before(
    dispatcher: Any, advance: Callable[[int], None], times: list[tuple[int, int]]
) -> None:
    late, early = dispatcher.post_at(0.2, Numbered(2)), dispatcher.post_after(0.1, Numbered(1))
    now = dispatcher.post_at(-5.0, Numbered(0))
    assert times == []
    assert (late.due, early.due, late.is_done()) == (0.2, 0.1, False)

    advance(1000)

    assert times == [(0, 0), (100, 1), (200, 2)]
    assert [(each.due, each.is_done(), each.cancel()) for each in (late, early, now)] == [(None, True, False)] * 3


def test_what_was_cancelled_does_not_fire(
    dispatcher: Any, advance: Callable[[int], None], times: list[tuple[int, int]]
) -> None:
    once, often = dispatcher.post_after(1, Numbered(1)), dispatcher.post_every(1, Numbered(2), first=0)
    keyed = dispatcher.post_after(1, Numbered(3), key="a")
    advance(0)

    cancelled = [once.cancel(), once.cancel(), often.cancel(), dispatcher.cancel("a"), dispatcher.cancel("b")]
    advance(5000)

    assert cancelled == [True, True, True, True, False]
    assert times == [(0, 2)]
    assert [(each.is_done(), each.due) for each in (once, often, keyed)] == [(True, None)] * 3


def test_a_factory_makes_each_event_and_a_handler_may_end_the_rhythm(
    dispatcher: Any, advance: Callable[[int], None], times: list[tuple[int, int]]
) -> None:
    numbers = iter(range(100))
    rhythm = dispatcher.post_every(0.5, lambda: Numbered(next(numbers)), first=0.1)
    dispatcher.register(Work, lambda event: event.number == 2 and rhythm.cancel())

    advance(5000)

    assert times == [(100, 0), (600, 1), (1100, 2)]
    assert rhythm.is_done()


def test_a_newer_rhythm_of_a_key_goes_on_with_an_equal_one_and_replaces_any_other(
    dispatcher: Any, advance: Callable[[int], None], times: list[tuple[int, int]]
) -> None:
    first = dispatcher.post_every(1, Numbered(), key="a")
    advance(700)
    second = dispatcher.post_every(1, Numbered(), key="a", misfire="all")
    advance(700)
    third = dispatcher.post_every(2, Numbered(), key="a")
    advance(2000)

    assert [each.is_done() for each in (first, second, third)] == [True, True, False]
    assert times == [(1000, 0), (3400, 0)]
    assert (third.last_fired, third.due) == (3.4, 5.4)
    assert list(dispatcher.scheduled()) == ["a"]


# -- a service ---------------------------------------------------------------------------------------------------------


def test_it_is_a_service(service: Any) -> None:
    assert service.state is ServiceState.STARTED

    service.stop()

    assert service.state is ServiceState.STOPPED
    if not isinstance(service, InlineDispatcher):
        assert not service.post(Numbered())
