"""`InlineDispatcher` in place of an AsyncDispatcher: coroutines, answers, and posts at times of a clock."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from dispatcher import AskError, AsyncDispatcher, UnregisteredEventTypeError, aio
from dispatcher.testing import InlineDispatcher, ManualClock

from ..kit import Numbered, Other, Work


@pytest.fixture
def inline(inline_dispatcher: InlineDispatcher) -> InlineDispatcher:
    return inline_dispatcher


def number_of(event: Numbered) -> int:
    return event.number


async def number_later(event: Numbered) -> int:
    await asyncio.sleep(0)
    return event.number


def fail(event: Numbered) -> None:
    raise ValueError(event.number)


async def fail_later(event: Numbered) -> None:
    await asyncio.sleep(0)
    raise ValueError(event.number)


class TestOfCoroutines:
    def test_a_coroutine_has_ended_when_post_returns(self, inline: InlineDispatcher) -> None:
        steps: list[int] = []

        async def handle(event: Numbered) -> None:
            steps.append(event.number)
            if event.number == 0:
                inline.post(Numbered(1))
            await asyncio.sleep(0)
            steps.append(event.number)

        inline.register(Work, handle)

        assert inline.post(Numbered(0))

        assert steps == [0, 0, 1, 1]

    def test_one_loop_runs_all_coroutines(self, loops: list[asyncio.AbstractEventLoop]) -> None:
        inline = _noting(loops)
        inline.post(Numbered(0))
        inline.post(Numbered(1))

        assert loops[0] is loops[1]

    def test_an_asyncio_handler_runs_whichever_loop_it_names(self, inline: InlineDispatcher) -> None:
        loop = asyncio.new_event_loop()
        loop.close()
        inline.register(Work, aio.AsyncioHandler(number_later, loop=loop))

        assert inline.ask(Numbered(7)).result(0) == 7

    def test_the_functions_of_members_may_be_coroutines(self, inline: InlineDispatcher) -> None:
        inline.on(Work.DO)(number_later)

        assert inline.ask(Numbered(7)).result(0) == 7

    def test_its_error_goes_to_the_caller(self, inline: InlineDispatcher) -> None:
        inline.register(Work, fail_later)

        with pytest.raises(ValueError, match="3"):
            inline.post(Numbered(3))

    def test_where_a_loop_runs_a_post_raises_and_another_thread_can_post(self, inline: InlineDispatcher) -> None:
        handled: list[int] = []

        async def handle(event: Numbered) -> None:
            handled.append(event.number)

        inline.register(Work, handle)

        async def main() -> None:
            with pytest.raises(RuntimeError, match=r"InlineDispatcher: .*asyncio.to_thread\(dispatcher\.post"):
                inline.post(Numbered(1))
            assert await asyncio.to_thread(inline.post, Numbered(2))

        asyncio.run(main())

        assert handled == [2]

    def test_where_a_loop_runs_plain_handlers_run(self, inline: InlineDispatcher) -> None:
        inline.register(Work, number_of)

        async def main() -> Any:
            return inline.ask(Numbered(7)).result(0)

        assert asyncio.run(main()) == 7

    def test_a_stop_closes_its_loop(self, loops: list[asyncio.AbstractEventLoop]) -> None:
        with _noting(loops) as inline:
            inline.post(Numbered())

        assert loops[0].is_closed()

    def test_its_loop_is_closed_once_it_is_garbage(self, loops: list[asyncio.AbstractEventLoop]) -> None:
        _noting(loops).post(Numbered())

        gc.collect()

        assert loops[0].is_closed()


@pytest.fixture
def loops() -> list[asyncio.AbstractEventLoop]:
    """Of the coroutines of `_noting`."""
    return []


def _noting(loops: list[asyncio.AbstractEventLoop]) -> InlineDispatcher:
    inline = InlineDispatcher()

    async def handle(event: Numbered) -> None:
        loops.append(asyncio.get_running_loop())

    inline.register(Work, handle)
    return inline


class TestAsking:
    @pytest.mark.parametrize("handler", [number_of, number_later])
    def test_the_future_has_the_answer_on_return(self, inline: InlineDispatcher, handler: Any) -> None:
        inline.register(Work, handler)

        assert inline.ask(Numbered(7)).result(0) == 7
        assert [event.number for event in inline.events] == [7]

    @pytest.mark.parametrize("handler", [fail, fail_later])
    def test_the_future_has_the_error(self, inline: InlineDispatcher, handler: Any) -> None:
        inline.register(Work, handler)

        assert repr(inline.ask(Numbered(3)).exception(0)) == "ValueError(3)"

    def test_events_that_a_failed_one_has_posted_are_handled(self, inline: InlineDispatcher) -> None:
        others: list[Any] = []

        def post_and_fail(event: Numbered) -> None:
            inline.post(Numbered(type=Other.DO))  # type: ignore[arg-type]
            fail(event)

        inline.register(Work, post_and_fail)
        inline.register(Other, others.append)

        asked = inline.ask(Numbered(3))

        assert repr(asked.exception(0)) == "ValueError(3)"
        assert len(others) == 1

    def test_the_error_of_an_event_posted_meanwhile_goes_to_the_caller(self, inline: InlineDispatcher) -> None:
        inline.register(Work, lambda event: inline.post(Numbered(4, type=Other.DO)))  # type: ignore[arg-type]
        inline.register(Other, fail)

        with pytest.raises(ValueError, match="4"):
            inline.ask(Numbered(3))

    def test_an_event_without_a_handler_fails(self, inline: InlineDispatcher) -> None:
        assert isinstance(inline.ask(Numbered()).exception(0), UnregisteredEventTypeError)

    def test_a_class_with_several_handlers_is_not_asked(self, inline: InlineDispatcher) -> None:
        inline.register(Work, number_of)
        inline.register(Work, print)

        with pytest.raises(AskError, match="Work has 2 handlers"):
            inline.ask(Numbered())
        assert not inline.events

    def test_a_handler_cannot_ask(self, inline: InlineDispatcher) -> None:
        inline.register(Work, lambda event: inline.ask(Numbered(1)))

        with pytest.raises(AskError, match="a handler cannot ask its own dispatcher"):
            inline.ask(Numbered(0)).result(0)

    def test_an_interrupt_of_the_handler_is_not_kept_in_the_future(self, inline: InlineDispatcher) -> None:
        def interrupt(event: Numbered) -> None:
            raise KeyboardInterrupt

        inline.register(Work, interrupt)

        with pytest.raises(KeyboardInterrupt):
            inline.ask(Numbered())


def test_a_post_for_later_is_done_on_return(inline: InlineDispatcher) -> None:
    inline.register(Work, number_of)

    assert inline.post_later(Numbered(1)).result(0)
    assert inline.post_nowait(Numbered(2))
    assert [event.number for event in inline.events] == [1, 2]


class TestOfTime:
    @pytest.fixture
    def clock(self, manual_clock: ManualClock) -> ManualClock:
        return manual_clock

    @pytest.fixture
    def times(self, inline: InlineDispatcher, clock: ManualClock) -> list[int]:
        """When events were handled, in ms."""
        times: list[int] = []
        inline.register(Work, lambda event: times.append(clock.current_processing_time()))
        return times

    def test_nothing_fires_until_the_clock_is_advanced(
        self, inline: InlineDispatcher, clock: ManualClock, times: list[int]
    ) -> None:
        inline.post_after(0, Numbered())
        inline.post_at(-5.0, Numbered())
        assert times == []

        clock.advance(0)

        assert times == [0, 0]

    def test_events_are_posted_at_their_times_in_order(
        self, inline: InlineDispatcher, clock: ManualClock, times: list[int]
    ) -> None:
        inline.post_at(0.02, Numbered(2))
        inline.post_after(0.0101, Numbered(1))

        clock.advance(1000)

        assert times == [11, 20]
        assert [event.number for event in inline.events] == [1, 2]

    def test_a_handle_tells_when_it_is_due(
        self, inline: InlineDispatcher, clock: ManualClock, times: list[int]
    ) -> None:
        once, often = inline.post_after(1.5, Numbered()), inline.post_every(2, Numbered())
        assert (once.due, often.due, once.is_done()) == (1.5, 2.0, False)

        clock.advance(3000)

        assert (once.due, often.due) == (None, 4.0)
        assert (once.is_done(), once.cancel(), often.is_done()) == (True, False, False)

    def test_what_was_cancelled_does_not_fire(
        self, inline: InlineDispatcher, clock: ManualClock, times: list[int]
    ) -> None:
        once, often = inline.post_after(1, Numbered()), inline.post_every(1, Numbered(), first=0)
        clock.advance(0)

        assert once.cancel()
        assert once.cancel()
        assert often.cancel()
        clock.advance(10_000)

        assert times == [0]
        assert (once.is_done(), often.is_done(), often.due) == (True, True, None)

    def test_a_handler_may_cancel_its_own_rhythm(self, inline: InlineDispatcher, clock: ManualClock) -> None:
        inline.register(Work, lambda event: rhythm.cancel())
        rhythm = inline.post_every(1, Numbered)

        clock.advance(10_000)

        assert len(inline.events) == 1
        assert rhythm.is_done()

    def test_a_factory_makes_each_event(self, inline: InlineDispatcher, clock: ManualClock, times: list[int]) -> None:
        numbers = iter(range(100))
        inline.post_every(0.5, lambda: Numbered(next(numbers)), first=0.1, jitter=1.0)

        clock.advance(1100)

        assert times == [100, 600, 1100]
        assert [event.number for event in inline.events] == [0, 1, 2]

    def test_a_newer_rhythm_of_a_key_goes_on_with_an_equal_one_and_replaces_any_other(
        self, inline: InlineDispatcher, clock: ManualClock, times: list[int]
    ) -> None:
        first = inline.post_every(1, Numbered(), key="a")
        clock.advance(700)
        second = inline.post_every(1, Numbered(), key="a", misfire="all")
        clock.advance(700)
        third = inline.post_every(2, Numbered(), key="a")
        clock.advance(2000)

        assert [each.is_done() for each in (first, second, third)] == [True, True, False]
        assert times == [1000, 3400]
        assert (third.last_fired, third.due) == (3.4, 5.4)

    @pytest.mark.parametrize(
        ("post", "error"),
        [
            (lambda inline: inline.post_after(-1, Numbered()), ValueError),
            (lambda inline: inline.post_at(float("nan"), Numbered()), ValueError),
            (lambda inline: inline.post_every(0, Numbered()), ValueError),
            (lambda inline: inline.post_every(1, Numbered(), jitter=2), ValueError),
            (lambda inline: inline.post_every(1, "garbage"), TypeError),
        ],
    )
    def test_mistakes_are_those_of_a_dispatcher(
        self, inline: InlineDispatcher, post: Callable[[Any], Any], error: type[Exception]
    ) -> None:
        with pytest.raises(error):
            post(inline)

    def test_an_error_goes_to_the_thread_that_advances(self, inline: InlineDispatcher, clock: ManualClock) -> None:
        inline.register(Work, fail)
        inline.post_after(1, Numbered(3))

        with pytest.raises(ValueError, match="3"):
            clock.advance(1000)

    def test_coroutines_run_on_the_thread_that_advances(self, inline: InlineDispatcher, clock: ManualClock) -> None:
        threads: list[int] = []

        async def handle(event: Numbered) -> None:
            threads.append(threading.get_ident())

        inline.register(Work, handle)
        inline.post_after(1, Numbered())

        clock.advance(1000)

        assert threads == [threading.get_ident()]

    def test_without_a_clock_it_has_one(self) -> None:
        inline = InlineDispatcher()
        inline.register(Work, number_of)
        inline.post_after(1, Numbered())

        inline.clock.advance(1000)

        assert len(inline.events) == 1


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"on_eror": "stop"}, TypeError),
        ({"on_error": "halt"}, ValueError),
        ({"coalesce_by": "order"}, TypeError),
        ({"events": [int]}, TypeError),
    ],
)
def test_a_wrong_option_is_an_error_in_tests_as_it_is_in_a_daemon(
    options: dict[str, Any], error: type[Exception]
) -> None:
    for dispatcher in (InlineDispatcher(), AsyncDispatcher()):
        with pytest.raises(error):
            dispatcher.register(Work, print, **options)
        with pytest.raises(error):
            dispatcher.on(Work, **options)(print)
