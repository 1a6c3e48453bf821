"""`InlineDispatcher`: what it does on the caller's thread, apart from the contract of all dispatchers."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest

from dispatcher import AskError, UnregisteredEventTypeError, aio
from dispatcher.testing import InlineDispatcher, ManualClock

from ..kit import Numbered, Other, Work


@pytest.fixture
def inline(inline_dispatcher: InlineDispatcher) -> InlineDispatcher:
    return inline_dispatcher


async def number_later(event: Numbered) -> int:
    await asyncio.sleep(0)
    return event.number


def fail(event: Numbered) -> None:
    raise ValueError(event.number)


async def fail_later(event: Numbered) -> None:
    await asyncio.sleep(0)
    fail(event)


def test_nested_posts_are_handled_on_the_callers_thread_breadth_first(inline: InlineDispatcher) -> None:
    order: list[int] = []

    def handle(event: Numbered) -> None:
        order.append(event.number)
        if event.number < 7:
            for child in (2 * event.number, 2 * event.number + 1):
                assert inline.post(Numbered(child))
        assert threading.current_thread() is threading.main_thread()

    inline.register(Work, handle)
    inline.post(Numbered(1))

    assert order == list(range(1, 14))
    assert [event.number for event in inline.events] == order


@pytest.mark.parametrize("handle", [fail, fail_later])
def test_an_error_goes_to_the_caller_and_drops_what_was_posted_before_it(inline: InlineDispatcher, handle: Any) -> None:
    def post_and_fail(event: Numbered) -> Any:
        inline.post(Numbered(9, type=Other.DO))  # type: ignore[arg-type]
        return handle(event)

    others: list[Any] = []
    inline.register(Work, handle if handle is fail_later else post_and_fail)
    inline.register(Other, others.append)

    with pytest.raises(ValueError, match="3"):
        inline.post(Numbered(3))
    inline.post(Numbered(4, type=Other.DO))  # type: ignore[arg-type]

    assert [event.number for event in others] == [4]


def test_an_event_without_a_handler_is_an_error_of_the_caller(inline: InlineDispatcher) -> None:
    inline.on(Work.DO)(lambda event: None)

    with pytest.raises(UnregisteredEventTypeError, match=r"no handler for Work\.MORE"):
        inline.post(Numbered(type=Work.MORE))
    assert not inline.events


def test_options_that_concern_waiting_have_no_effect(inline: InlineDispatcher) -> None:
    got: list[Any] = []
    inline.register(Work, got.append, on_error="stop", coalesce_by=lambda event: event.number)

    inline.post(Numbered())

    assert len(got) == 1


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

    def test_an_asyncio_handler_runs_whichever_loop_and_rate_it_names(self, inline: InlineDispatcher) -> None:
        loop = asyncio.new_event_loop()
        loop.close()
        rate = aio.RateLimit(1, burst=1)
        inline.register(Work, aio.AsyncioHandler(number_later, loop=loop, rate=rate))

        assert [inline.ask(Numbered(number)).result(0) for number in range(3)] == [0, 1, 2]

    def test_where_a_loop_runs_a_post_raises_and_another_thread_can_post(self, inline: InlineDispatcher) -> None:
        handled: list[int] = []

        async def handle(event: Numbered) -> None:
            handled.append(event.number)

        inline.register(Work, handle)
        inline.register(Other, lambda event: handled.append(event.number))

        async def main() -> None:
            with pytest.raises(RuntimeError, match=r"InlineDispatcher: .*asyncio.to_thread\(dispatcher\.post"):
                inline.post(Numbered(1))
            assert await asyncio.to_thread(inline.post, Numbered(2))
            inline.post(Numbered(3, type=Other.DO))  # type: ignore[arg-type]

        asyncio.run(main())

        assert handled == [2, 3]

    @pytest.mark.parametrize("is_stopped", [True, False], ids=["stopped", "garbage"])
    def test_one_loop_runs_all_coroutines_and_is_closed_with_it(self, is_stopped: bool) -> None:
        loops: list[asyncio.AbstractEventLoop] = []

        async def handle(event: Numbered) -> None:
            loops.append(asyncio.get_running_loop())

        inline = InlineDispatcher()
        inline.register(Work, handle)
        inline.post(Numbered(0))
        inline.post(Numbered(1))

        if is_stopped:
            inline.stop()
        else:
            del inline
            gc.collect()

        assert loops[0] is loops[1]
        assert loops[0].is_closed()


class TestAsking:
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


class TestOfTime:
    def test_an_error_goes_to_the_thread_that_advances(
        self, inline: InlineDispatcher, manual_clock: ManualClock
    ) -> None:
        inline.register(Work, fail)
        inline.post_after(1, Numbered(3))

        with pytest.raises(ValueError, match="3"):
            manual_clock.advance(1000)

    def test_coroutines_run_on_the_thread_that_advances_without_jitter(
        self, inline: InlineDispatcher, manual_clock: ManualClock
    ) -> None:
        seen: list[tuple[int, int]] = []

        async def handle(event: Numbered) -> None:
            seen.append((threading.get_ident(), manual_clock.current_processing_time()))

        inline.register(Work, handle)
        inline.post_every(0.5, Numbered(), first=0.1, jitter=1.0)

        manual_clock.advance(1100)

        assert seen == [(threading.get_ident(), ms) for ms in (100, 600, 1100)]

    def test_without_a_clock_it_has_one(self) -> None:
        inline = InlineDispatcher()
        inline.register(Work, lambda event: None)
        inline.post_after(1, Numbered())

        inline.clock.advance(1000)

        assert len(inline.events) == 1
