"""`async def` handlers: an event is in hand until its coroutine has ended."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, DispatcherConfig, DispatcherGroup, EventDispatcher, MultiDispatcher, aio
from dispatcher.errors import EventLoopClosedError
from dispatcher.mailbox import ManualClock
from dispatcher.queue.flags import DRAINING
from dispatcher.util.frames import CAN_READ_FRAMES

from ..kit import TIMEOUT_S, Other, Work, assert_accounts_balance, until
from ..kit.coroutines import Keyed, Latched, running_loop

Make = Callable[..., AsyncDispatcher]


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    with running_loop() as loop:
        yield loop


@pytest.fixture
def handler(loop: asyncio.AbstractEventLoop) -> Latched:
    return Latched(loop)


def post(dispatcher: AsyncDispatcher, *events: Any) -> None:
    for event in events:
        assert dispatcher.event_handler.handle(event)


def keys(count: int) -> list[Keyed]:
    """Events 0, 1, ... of as many keys."""
    return [Keyed(number, key=number) for number in range(count)]


def line_of(awaited: str) -> str:
    """The line of source that tells where a coroutine is: on a free-threaded 3.13, where its function begins."""
    return awaited if CAN_READ_FRAMES else "async def handle("


def in_handler_thread(dispatcher: AsyncDispatcher) -> None:
    """Wait until the handler thread has run what was sent to it so far."""
    dispatcher.mailbox_executor.submit(lambda: None).result(TIMEOUT_S)


def run_on(loop: asyncio.AbstractEventLoop, coroutine: Any) -> Any:
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result(TIMEOUT_S)


# -- registration ------------------------------------------------------------------------------------------------------


def test_an_async_def_without_a_loop_is_refused_with_what_to_do() -> None:
    async def handle(event: Any) -> None: ...

    with pytest.raises(TypeError, match=r"no event loop.*AsyncDispatcher\(loop=loop\).*aio\.AsyncioHandler"):
        AsyncDispatcher().register(Work, handle)
    with pytest.raises(TypeError, match=r"no event loop.*AsyncDispatcher\(loop=loop\).*aio\.AsyncioHandler"):
        AsyncDispatcher().register(Work, aio.AsyncioHandler(handle))


def test_a_plain_function_is_no_asyncio_handler() -> None:
    with pytest.raises(TypeError, match="takes an `async def` function"):
        aio.AsyncioHandler(lambda event: None)


def test_numbers_that_are_too_small_and_a_key_that_is_no_function_are_refused() -> None:
    async def handle(event: Any) -> None: ...

    with pytest.raises(ValueError, match="capacity must be at least 1, not 0"):
        aio.AsyncioHandler(handle, capacity=0)
    with pytest.raises(ValueError, match="per_key must be at least 1, not 0"):
        aio.AsyncioHandler(handle, per_key=0)
    with pytest.raises(ValueError, match="max_waiting must be at least 0, not -1"):
        aio.AsyncioHandler(handle, max_waiting=-1)
    with pytest.raises(TypeError, match="key must be a callable"):
        aio.AsyncioHandler(handle, key="entity")  # type: ignore[arg-type]


def test_an_async_handler_is_the_only_one_of_its_class(loop: asyncio.AbstractEventLoop) -> None:
    async def handle(event: Any) -> None: ...

    dispatcher = AsyncDispatcher(loop=loop)
    dispatcher.register(Work, handle)
    with pytest.raises(ValueError, match="Work: an `async def` handler is the only one"):
        dispatcher.register(Work, print)
    assert dispatcher.unregister(Work, handle)
    dispatcher.register(Work, print)
    with pytest.raises(ValueError, match="Work: an `async def` handler is the only one"):
        dispatcher.register(Work, handle)


@pytest.mark.parametrize("kind", ["function", "object", "method", "declared"])
def test_coroutines_run_on_the_loop(make: Make, loop: asyncio.AbstractEventLoop, kind: str) -> None:
    ran_on: list[tuple[asyncio.AbstractEventLoop, int]] = []

    class Handler:
        async def handle(self, event: Any) -> None:
            ran_on.append((asyncio.get_running_loop(), event.number))

    async def function(event: Any) -> None:
        ran_on.append((asyncio.get_running_loop(), event.number))

    handlers: dict[str, Any] = {"function": function, "object": Handler(), "method": Handler().handle}
    if kind == "declared":
        dispatcher = make(handler=aio.AsyncioHandler(function, loop=loop))
    else:
        dispatcher = make(loop=loop, handler=handlers[kind])
    post(dispatcher, Keyed(1), Keyed(2))

    assert dispatcher.await_drained(TIMEOUT_S)
    assert ran_on == [(loop, 1), (loop, 2)]
    assert_accounts_balance(dispatcher, accepted=2)


def test_an_event_dispatcher_takes_an_async_handler(loop: asyncio.AbstractEventLoop) -> None:
    got: list[int] = []

    async def handle(event: Any) -> None:
        got.append(event.number)

    with EventDispatcher(handle, loop=loop) as dispatcher:
        dispatcher.handle(Keyed(1))
        assert dispatcher.await_drained(TIMEOUT_S)
    assert got == [1]


@pytest.mark.long
def test_a_dispatcher_without_async_handlers_does_not_import_asyncio() -> None:
    program = "import sys; from dispatcher import AsyncDispatcher; AsyncDispatcher(); print('asyncio' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert ran.stdout.strip() == "False"


# -- in hand -----------------------------------------------------------------------------------------------------------


def test_an_event_is_in_hand_until_its_coroutine_has_ended(make: Make, handler: Latched) -> None:
    dispatcher = make(loop=handler.loop, handler=handler)
    post(dispatcher, *keys(2))
    handler.await_begun(0, 1)
    in_handler_thread(dispatcher)

    stats = dispatcher.stats()
    assert (stats.accepted, stats.in_hand, stats.queue_size, stats.handled) == (2, 2, 0, 0)
    assert not dispatcher.is_drained()
    assert not dispatcher.await_drained(0)

    handler.end(0)
    until(lambda: dispatcher.stats().handled == 1)
    assert not dispatcher.is_drained()
    handler.end(1)
    assert dispatcher.await_drained(TIMEOUT_S)
    assert dispatcher.stats().handled_by_type == {("Work", "DO"): 2}
    assert_accounts_balance(dispatcher, accepted=2)


def test_plain_handlers_and_mail_go_on_while_coroutines_run(make: Make, handler: Latched) -> None:
    got: list[int] = []
    dispatcher = make(loop=handler.loop, handler=handler)
    dispatcher.register(Other, lambda event: got.append(event.number))
    plain = type("Plain", (), {"type": Other.DO, "number": 9})()
    post(dispatcher, Keyed(0), plain)

    until(lambda: got == [9])
    in_handler_thread(dispatcher)
    assert not dispatcher.is_drained()
    handler.end(0)
    assert dispatcher.await_drained(TIMEOUT_S)


def test_events_of_a_key_run_one_after_another_and_other_keys_meanwhile(make: Make, handler: Latched) -> None:
    dispatcher = make(loop=handler.loop, handler=handler)
    post(dispatcher, Keyed(0, "a"), Keyed(1, "a"), Keyed(2, "b"), Keyed(3, "a"))

    handler.await_begun(0, 2)
    in_handler_thread(dispatcher)
    assert handler.begun == [0, 2]
    handler.end(0)
    handler.await_begun(1)
    assert 3 not in handler.begun
    handler.end(1, 3, 2)

    assert dispatcher.await_drained(TIMEOUT_S)
    assert [number for number in handler.ended if number != 2] == [0, 1, 3]


def test_a_function_gives_the_key(make: Make, handler: Latched) -> None:
    by_parity = aio.AsyncioHandler(handler, loop=handler.loop, key=lambda event: event.number % 2)
    dispatcher = make(handler=by_parity)
    post(dispatcher, *keys(3))
    handler.await_begun(0, 1)
    in_handler_thread(dispatcher)

    assert handler.begun == [0, 1]
    handler.end(0, 1, 2)
    assert dispatcher.await_drained(TIMEOUT_S)


def test_a_key_that_raises_fails_its_event_alone(make: Make, handler: Latched) -> None:
    dispatcher = make(handler=aio.AsyncioHandler(handler, loop=handler.loop, key=lambda event: 1 // event.number))
    post(dispatcher, Keyed(0), Keyed(1), Keyed(1, type=Work.MORE))
    handler.end(1)

    until(lambda: dispatcher.stats().failed == 1)
    until(lambda: len(handler.begun) == 2)
    handler.end(1)
    assert dispatcher.await_drained(TIMEOUT_S)
    assert_accounts_balance(dispatcher, accepted=3)


def test_at_capacity_events_stay_in_the_queue_and_mail_runs(make: Make, handler: Latched) -> None:
    dispatcher = make(handler=aio.AsyncioHandler(handler, loop=handler.loop, capacity=2))
    post(dispatcher, *keys(5))
    handler.await_begun(0, 1)
    until(lambda: dispatcher.queue_size() == 2)  # the third is in hand, and does not begin
    in_handler_thread(dispatcher)

    assert handler.begun == [0, 1]
    assert dispatcher.stats().in_hand == 3
    handler.end(1)
    handler.await_begun(2)
    handler.end(0, 2, 3, 4)
    assert dispatcher.await_drained(TIMEOUT_S)
    assert handler.most == 2
    assert_accounts_balance(dispatcher, accepted=5)


def test_at_capacity_a_bounded_queue_fills_up(make: Make, handler: Latched) -> None:
    config = DispatcherConfig(queue_capacity=2, queue_full_policy="reject")
    dispatcher = make(config, handler=aio.AsyncioHandler(handler, loop=handler.loop, capacity=1))
    post(dispatcher, Keyed(0, 0))
    handler.await_begun(0)
    post(dispatcher, Keyed(1, 1))
    until(lambda: dispatcher.queue_size() == 0)
    in_handler_thread(dispatcher)
    post(dispatcher, Keyed(2, 2), Keyed(3, 3))

    assert not dispatcher.event_handler.handle(Keyed(4, 4))
    handler.end(0, 1, 2, 3)
    assert dispatcher.await_drained(TIMEOUT_S)
    assert_accounts_balance(dispatcher, accepted=4)


def test_each_partition_runs_coroutines_in_the_order_of_their_keys(handler: Latched) -> None:
    with MultiDispatcher(partitions=2, loop=handler.loop) as dispatcher:
        dispatcher.register(Work, handler)
        for number in range(4):
            assert dispatcher.event_handler.handle(Keyed(number, key=number % 2))
        handler.await_begun(0, 1)
        handler.end(0, 1, 2, 3)
        assert dispatcher.await_drained(TIMEOUT_S)
    assert [number for number in handler.ended if number % 2] == [1, 3]


# -- failures ----------------------------------------------------------------------------------------------------------


def test_a_coroutine_that_raises_fails_its_event_and_the_next_of_its_key_runs(
    make: Make, handler: Latched, caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher = make(loop=handler.loop, handler=handler)
    post(dispatcher, Keyed(0), Keyed(1))
    handler.end(0, error=LookupError("lost"))
    handler.end(1)

    assert dispatcher.await_drained(TIMEOUT_S)
    assert (dispatcher.stats().handled, dispatcher.stats().failed) == (1, 1)
    [record] = [record for record in caplog.records if "failed" in record.message]
    assert "Work.DO" in record.message
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], LookupError)


def test_a_coroutine_that_is_cancelled_fails_its_event(make: Make, handler: Latched) -> None:
    async def give_up() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    handler.then = lambda event: give_up()
    dispatcher = make(loop=handler.loop, handler=handler)
    post(dispatcher, Keyed(0))
    handler.end(0)

    assert dispatcher.await_drained(TIMEOUT_S)
    assert_accounts_balance(dispatcher, accepted=1)
    assert dispatcher.stats().failed == 1


def test_a_function_that_takes_other_arguments_fails_the_event(make: Make, loop: asyncio.AbstractEventLoop) -> None:
    async def handle() -> None: ...

    dispatcher = make(loop=loop, handler=handle)
    post(dispatcher, Keyed(0))

    assert dispatcher.await_drained(TIMEOUT_S)
    assert dispatcher.stats().failed == 1


def test_stop_as_the_error_policy_stops_with_the_coroutines_error(handler: Latched) -> None:
    dispatcher = AsyncDispatcher(loop=handler.loop)
    dispatcher.register(Work, handler, on_error="stop")
    dispatcher.init()
    dispatcher.start()
    post(dispatcher, *keys(3))
    handler.end(1, error=LookupError("lost"))
    handler.end(0, 2)

    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
    assert isinstance(dispatcher.failure_cause, LookupError)
    assert (dispatcher.stats().handled, dispatcher.stats().failed) == (2, 1)
    assert not dispatcher.event_handler.handle(Keyed(9))


def test_exit_as_the_error_policy_ends_the_process_with_255(handler: Latched) -> None:
    codes: list[int] = []
    exited = threading.Event()
    dispatcher = AsyncDispatcher(loop=handler.loop, exit_action=lambda code: (codes.append(code), exited.set()))
    dispatcher.register(Work, handler, on_error="exit")
    dispatcher.init()
    dispatcher.start()
    post(dispatcher, Keyed(0))
    handler.end(0, error=LookupError("lost"))

    assert exited.wait(TIMEOUT_S)
    assert codes == [-1]
    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)


def test_an_event_whose_handler_is_unregistered_meanwhile_is_handled(make: Make, handler: Latched) -> None:
    dispatcher = make(loop=handler.loop, handler=handler)
    post(dispatcher, *keys(2))
    handler.await_begun(0, 1)
    assert dispatcher.unregister(Work, handler)
    handler.end(0)
    handler.end(1, error=LookupError("lost"))

    assert dispatcher.await_drained(TIMEOUT_S)
    assert (dispatcher.stats().handled, dispatcher.stats().failed) == (1, 1)


# -- the loop ends -----------------------------------------------------------------------------------------------------


def test_events_for_a_closed_loop_fail(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    async def handle(event: Any) -> None: ...

    loop = asyncio.new_event_loop()
    loop.close()
    dispatcher = make(loop=loop, handler=handle)
    post(dispatcher, Keyed(0), Keyed(1))

    assert dispatcher.await_drained(TIMEOUT_S)
    assert dispatcher.stats().failed == 2
    assert any(isinstance(r.exc_info[1], EventLoopClosedError) for r in caplog.records if r.exc_info)


def test_events_that_a_loop_has_not_ended_fail_once_it_is_closed(make: Make) -> None:
    async def handle(event: Any) -> None: ...

    loop = asyncio.new_event_loop()  # does not run
    clock = ManualClock()
    dispatcher = make(loop=loop, handler=handle, time_service=clock)
    post(dispatcher, Keyed(0), Keyed(1))
    until(lambda: dispatcher.stats().in_hand == 2)
    in_handler_thread(dispatcher)
    assert not dispatcher.is_drained()
    loop.close()
    clock.advance(1000)

    assert dispatcher.await_drained(TIMEOUT_S)
    assert dispatcher.stats().failed == 2


def test_a_loop_that_stops_and_runs_again_ends_its_events(make: Make) -> None:
    async def handle(event: Any) -> None: ...

    loop = asyncio.new_event_loop()
    dispatcher = make(loop=loop, handler=handle)
    post(dispatcher, Keyed(0))
    until(lambda: dispatcher.stats().in_hand == 1)
    loop.run_until_complete(aio.await_drained(dispatcher, TIMEOUT_S))
    post(dispatcher, Keyed(1))
    loop.run_until_complete(aio.await_drained(dispatcher, TIMEOUT_S))
    loop.close()

    assert dispatcher.stats().handled == 2


# -- stop --------------------------------------------------------------------------------------------------------------


def test_a_stop_waits_for_coroutines(make: Make, handler: Latched) -> None:
    dispatcher = make(handler=aio.AsyncioHandler(handler, loop=handler.loop, capacity=2))
    post(dispatcher, *keys(4))
    handler.await_begun(0, 1)
    stopping = threading.Thread(target=dispatcher.stop)
    stopping.start()
    until(lambda: dispatcher.core.queue.phase >= DRAINING)
    assert not dispatcher.is_stopped()
    assert not dispatcher.event_handler.handle(Keyed(9))

    handler.end(0, 1, 2, 3)
    stopping.join(TIMEOUT_S)
    assert dispatcher.is_stopped()
    assert dispatcher.stats().handled == 4
    assert_accounts_balance(dispatcher, accepted=4)


def test_a_stop_gives_up_on_a_coroutine_and_says_where_it_hangs(
    handler: Latched, caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher = AsyncDispatcher(DispatcherConfig(drain_timeout_s=0.02), loop=handler.loop, name="jobs")
    dispatcher.register(Work, handler)
    dispatcher.init()
    dispatcher.start()
    post(dispatcher, Keyed(0, "a"), Keyed(1, "a"), Keyed(2, "b"))
    handler.await_begun(0, 2)
    dispatcher.stop()

    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
    [gave_up] = [record.message for record in caplog.records if "cancels the coroutines of" in record.message]
    assert "in handle" in gave_up
    assert line_of("await end") in gave_up
    assert "job_0" in gave_up
    assert dispatcher.stats().discarded_by_reason == {"stop": 3}
    assert dispatcher.stats().in_hand == 0
    assert_accounts_balance(dispatcher, accepted=3)
    handler.await_ended(0, 2)  # cancelled
    assert handler.begun == [0, 2]


def test_a_stop_names_a_coroutine_that_blocks_its_loop(
    loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    entered, opened = threading.Event(), threading.Event()

    async def block_the_loop(event: Any) -> None:
        entered.set()
        opened.wait(TIMEOUT_S)

    dispatcher = AsyncDispatcher(DispatcherConfig(drain_timeout_s=0.02), loop=loop)
    dispatcher.register(Work, block_the_loop)
    dispatcher.init()
    dispatcher.start()
    post(dispatcher, Keyed(0))
    assert entered.wait(TIMEOUT_S)
    dispatcher.stop()
    opened.set()

    [gave_up] = [record.message for record in caplog.records if "cancels the coroutines of" in record.message]
    assert "opened.wait(TIMEOUT_S)" in gave_up


def test_a_stop_says_that_the_loop_does_not_run(caplog: pytest.LogCaptureFixture) -> None:
    async def handle(event: Any) -> None: ...

    loop = asyncio.new_event_loop()
    dispatcher = AsyncDispatcher(DispatcherConfig(drain_timeout_s=0.02), loop=loop)
    dispatcher.register(Work, handle)
    dispatcher.init()
    dispatcher.start()
    post(dispatcher, Keyed(0))
    until(lambda: dispatcher.stats().in_hand == 1)
    dispatcher.stop()
    loop.close()

    assert "its event loop does not run" in caplog.text
    assert_accounts_balance(dispatcher, accepted=1)


def test_a_stop_without_a_drain_waits_for_begun_coroutines_only(make: Make, handler: Latched) -> None:
    dispatcher = make(
        DispatcherConfig(drain_events_on_stop=False),
        handler=aio.AsyncioHandler(handler, loop=handler.loop, capacity=1),
    )
    post(dispatcher, Keyed(0, "a"), Keyed(1, "a"), Keyed(2, "b"), Keyed(3, "c"))
    handler.await_begun(0)
    until(lambda: dispatcher.queue_size() == 1)  # one waits for its key, one for a slot, one in the queue
    stopping = threading.Thread(target=dispatcher.stop)
    stopping.start()
    until(lambda: dispatcher.stats().discarded == 3)
    handler.end(0)
    stopping.join(TIMEOUT_S)

    assert dispatcher.is_stopped()
    assert handler.begun == [0]
    assert_accounts_balance(dispatcher, accepted=4)


def test_a_coroutine_may_post_while_its_dispatcher_drains(make: Make, handler: Latched) -> None:
    answers: list[bool] = []
    dispatcher = make(DispatcherConfig(queue_capacity=1), loop=handler.loop, handler=handler)

    async def post_more(event: Keyed) -> None:
        if event.number == 0:
            in_thread = await asyncio.to_thread(dispatcher.event_handler.handle, Keyed(1))
            answers.extend((in_thread, await aio.post(dispatcher, Keyed(2))))

    handler.then = post_more
    post(dispatcher, Keyed(0))
    handler.await_begun(0)
    stopping = threading.Thread(target=dispatcher.stop)
    stopping.start()
    until(lambda: dispatcher.core.queue.phase >= DRAINING)
    handler.end(0, 1, 2)
    stopping.join(TIMEOUT_S)

    assert answers == [True, True]
    assert handler.ended == [0, 1, 2]
    assert_accounts_balance(dispatcher, accepted=3)


def in_context(function: Callable[[], Any]) -> threading.Thread:
    return threading.Thread(target=contextvars.copy_context().run, args=(function,))


@pytest.mark.parametrize("start", [asyncio.to_thread, in_context])
def test_a_thread_with_the_context_of_its_coroutine_never_waits_for_room(
    make: Make, loop: asyncio.AbstractEventLoop, start: Callable[[Callable[[], Any]], Any]
) -> None:
    answers: list[bool] = []

    async def handle(event: Keyed) -> None:
        if event.number == 0:
            for number in range(1, 4):
                posting = start(lambda number=number: answers.append(dispatcher.event_handler.handle(Keyed(number))))
                if isinstance(posting, threading.Thread):
                    posting.start()
                    posting.join(TIMEOUT_S)
                else:
                    await posting

    dispatcher = make(queue_capacity=1, handler=aio.AsyncioHandler(handle, loop=loop, max_waiting=0))
    post(dispatcher, Keyed(0))

    assert dispatcher.await_drained(TIMEOUT_S)
    assert answers == [True] * 3


async def of_a_task(function: Callable[[], Any]) -> None:
    async def call() -> None:
        function()

    await asyncio.create_task(call())


async def of_a_thread_of_a_thread(function: Callable[[], Any]) -> None:
    def start() -> None:
        inner = in_context(function)
        inner.start()
        inner.join(TIMEOUT_S)

    await asyncio.to_thread(start)


async def of_an_executor(function: Callable[[], Any]) -> None:
    with ThreadPoolExecutor(1) as pool:
        await asyncio.get_running_loop().run_in_executor(pool, contextvars.copy_context().run, function)


@pytest.mark.parametrize("keeps_context", [False, True])
@pytest.mark.parametrize("work", [of_a_task, asyncio.to_thread, of_a_thread_of_a_thread, of_an_executor])
def test_posts_of_a_coroutines_tasks_and_threads_are_accepted_while_its_group_drains(
    handler: Latched, work: Callable[[Callable[[], Any]], Any], keeps_context: bool
) -> None:
    """To its own dispatcher and to another one of the group, both of whose queues are full."""
    answers: list[bool] = []
    gate = threading.Event()
    first, second = AsyncDispatcher(queue_capacity=1, name="first"), AsyncDispatcher(queue_capacity=1, name="second")
    one_at_a_time = aio.AsyncioHandler(handler, loop=handler.loop, max_waiting=0)
    first.register(Work, one_at_a_time, context=keeps_context)
    second.register(Work, lambda event: gate.wait(TIMEOUT_S))
    group = DispatcherGroup([first, second], name="group")

    async def post_more(event: Keyed) -> None:
        if event.number == 0:
            for dispatcher in (first, second):
                await work(lambda dispatcher=dispatcher: answers.append(dispatcher.post(Keyed(9))))
            gate.set()

    handler.then = post_more
    group.init()
    group.start()
    post(first, Keyed(0))
    handler.await_begun(0)
    for number, dispatcher in ((1, first), (2, second)):
        post(dispatcher, Keyed(number))
        until(lambda dispatcher=dispatcher: dispatcher.queue_size() == 0)
        post(dispatcher, Keyed(number + 2))
    stopping = threading.Thread(target=group.stop)
    stopping.start()
    until(lambda: second.core.queue.phase >= DRAINING)
    assert first.core.queue.phase >= DRAINING
    handler.end(0, 1, 3, 9)
    stopping.join(TIMEOUT_S)

    assert answers == [True, True]
    assert group.is_stopped()
    assert_accounts_balance(first, accepted=4)
    assert_accounts_balance(second, accepted=3)


def test_a_thread_that_outlives_its_coroutine_is_outside(make: Make, handler: Latched) -> None:
    answers: list[bool] = []
    released = threading.Event()
    left: list[threading.Thread] = []
    dispatcher = make(loop=handler.loop, handler=handler)

    def post_late() -> None:
        assert released.wait(TIMEOUT_S)
        answers.append(dispatcher.post(Keyed(9)))

    def leave_a_thread(event: Keyed) -> None:
        if event.number == 0:
            left.append(in_context(post_late))
            left[0].start()

    handler.then = leave_a_thread
    post(dispatcher, Keyed(0, "a"), Keyed(1, "b"))
    handler.end(0)
    until(lambda: dispatcher.stats().handled == 1)
    stopping = threading.Thread(target=dispatcher.stop)
    stopping.start()
    until(lambda: dispatcher.core.queue.phase >= DRAINING)
    released.set()
    left[0].join(TIMEOUT_S)
    handler.end(1)
    stopping.join(TIMEOUT_S)

    assert answers == [False]
    assert_accounts_balance(dispatcher, accepted=2)


@pytest.mark.parametrize("start", ["run_in_executor", "Thread"])
def test_a_thread_without_the_context_that_waits_for_room_is_logged_with_what_it_waits_for(
    make: Make, loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture, start: str
) -> None:
    """The coroutine waits for the thread, which waits for the coroutine: they hung without a word."""
    filled, released = asyncio.Event(), asyncio.Event()
    answers: list[bool] = []
    config = DispatcherConfig(queue_capacity=1, handler_warn_after_s=0.01)

    def post_late() -> None:
        answers.append(dispatcher.event_handler.handle(Keyed(9)))

    async def handle(event: Keyed) -> None:
        if event.number == 0:
            await filled.wait()
            if start == "Thread":
                threading.Thread(target=post_late, name="poster_0").start()
            else:
                loop.run_in_executor(pool, post_late)
            await released.wait()

    with ThreadPoolExecutor(1, "poster") as pool:
        dispatcher = make(config, handler=aio.AsyncioHandler(handle, loop=loop, max_waiting=0))
        post(dispatcher, *(Keyed(number) for number in range(3)))
        loop.call_soon_threadsafe(filled.set)
        until(lambda: "for room in the full queue" in caplog.text, "the warning")
        loop.call_soon_threadsafe(released.set)
        until(lambda: answers, "the post")

    assert dispatcher.await_drained(TIMEOUT_S)
    assert answers == [True]
    [message] = [record.message for record in caplog.records if "for room in the full queue" in record.message]
    assert "thread poster_0 has waited 0.01 s or longer" in message
    assert line_of("await released.wait()") in message
    assert "under asyncio.to_thread" in message


def test_the_log_of_a_full_queue_says_what_the_events_in_hand_wait_for(
    make: Make, handler: Latched, caplog: pytest.LogCaptureFixture
) -> None:
    config = DispatcherConfig(queue_capacity=1, handler_warn_after_s=0.01)
    dispatcher = make(config, handler=aio.AsyncioHandler(handler, loop=handler.loop, capacity=1))
    post(dispatcher, *(Keyed(number, key) for number, key in enumerate("aabc")))
    posting = threading.Thread(target=post, args=(dispatcher, Keyed(4, "d")))
    posting.start()
    until(lambda: "for room in the full queue" in caplog.text, "the warning")
    handler.end(0, 1, 2, 3, 4)
    posting.join(TIMEOUT_S)

    assert dispatcher.await_drained(TIMEOUT_S)
    [message] = [record.message for record in caplog.records if "for room in the full queue" in record.message]
    assert "job_1>, which waits for earlier events of its key" in message
    assert "job_2>, which waits for one of 1 coroutines to end" in message


def test_a_task_that_outlives_its_coroutine_is_outside(make: Make, handler: Latched) -> None:
    answers: list[bool] = []
    released = asyncio.Event()
    left: list[asyncio.Task[None]] = []
    dispatcher = make(loop=handler.loop, handler=handler)

    async def post_late() -> None:
        await released.wait()
        answers.append(dispatcher.event_handler.handle(Keyed(9)))

    async def leave_a_task(event: Keyed) -> None:
        if event.number == 0:
            left.append(asyncio.create_task(post_late()))

    handler.then = leave_a_task
    post(dispatcher, Keyed(0, "a"), Keyed(1, "b"))
    handler.end(0)
    until(lambda: dispatcher.stats().handled == 1)
    stopping = threading.Thread(target=dispatcher.stop)
    stopping.start()
    until(lambda: dispatcher.core.queue.phase >= DRAINING)
    handler.loop.call_soon_threadsafe(released.set)
    until(lambda: answers)
    handler.end(1)
    stopping.join(TIMEOUT_S)

    assert answers == [False]
    assert_accounts_balance(dispatcher, accepted=2)


def test_a_coroutine_may_stop_its_dispatcher(handler: Latched) -> None:
    dispatcher = AsyncDispatcher(loop=handler.loop)
    dispatcher.register(Work, handler)
    dispatcher.init()
    dispatcher.start()
    handler.then = lambda event: dispatcher.stop() if event.number == 0 else aio.stop(dispatcher)
    post(dispatcher, *keys(2))
    handler.end(0, 1)

    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
    assert dispatcher.stats().handled == 2


def test_a_stop_by_a_coroutine_gives_up_on_another_one(handler: Latched) -> None:
    dispatcher = AsyncDispatcher(DispatcherConfig(drain_timeout_s=0.02), loop=handler.loop)
    dispatcher.register(Work, handler)
    dispatcher.init()
    dispatcher.start()
    handler.then = lambda event: dispatcher.stop()
    post(dispatcher, *keys(2))
    handler.await_begun(0, 1)
    handler.end(0)

    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
    assert (dispatcher.stats().handled, dispatcher.stats().discarded) == (1, 1)


def test_a_stop_on_the_thread_of_the_loop_goes_on_in_the_background(
    handler: Latched, caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher = AsyncDispatcher(loop=handler.loop)
    dispatcher.register(Work, handler)
    dispatcher.init()
    dispatcher.start()
    post(dispatcher, Keyed(0))
    handler.await_begun(0)

    async def stop() -> None:
        dispatcher.stop()

    run_on(handler.loop, stop())
    assert not dispatcher.is_stopped()
    handler.end(0)
    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
    assert dispatcher.stats().handled == 1
    assert "await aio.stop(dispatcher)" in caplog.text


def test_waits_that_would_block_the_loop_or_wait_for_themselves_are_refused(make: Make, handler: Latched) -> None:
    dispatcher = make(loop=handler.loop, handler=handler)

    async def wait_for_oneself(event: Keyed) -> None:
        with pytest.raises(RuntimeError, match="cannot wait until its own dispatcher"):
            dispatcher.await_drained()
        with pytest.raises(RuntimeError, match="cannot wait until its own dispatcher"):
            await aio.await_drained(dispatcher)

    async def wait_on_the_loop() -> None:
        with pytest.raises(RuntimeError, match=r"blocks its event loop; use `await aio\.await_drained"):
            dispatcher.await_drained(TIMEOUT_S)

    handler.then = wait_for_oneself
    post(dispatcher, Keyed(0))
    handler.end(0)
    run_on(handler.loop, wait_on_the_loop())

    assert dispatcher.await_drained(TIMEOUT_S)
    assert dispatcher.stats().handled == 1


def test_coroutines_are_given_up_when_the_handler_thread_fails(handler: Latched) -> None:
    dispatcher = AsyncDispatcher(loop=handler.loop)
    dispatcher.register(Work, handler)
    dispatcher.init()
    dispatcher.start()
    post(dispatcher, Keyed(0))
    handler.await_begun(0)

    def fail() -> None:
        raise LookupError("lost")

    dispatcher.mailbox_executor.execute(fail)
    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
    assert isinstance(dispatcher.failure_cause, LookupError)
    assert dispatcher.stats().discarded_by_reason == {"stop": 1}
    handler.await_ended(0)
    assert_accounts_balance(dispatcher, accepted=1)


def test_a_coroutine_that_runs_long_is_logged_once_with_its_stack(
    make: Make, handler: Latched, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    config = DispatcherConfig(handler_warn_after_s=0.001)
    dispatcher = make(config, loop=handler.loop, handler=handler, time_service=clock)
    post(dispatcher, Keyed(0))
    handler.await_begun(0)
    in_handler_thread(dispatcher)

    def is_logged() -> bool:
        clock.advance(10)
        return "a coroutine is at work on" in caplog.text

    until(is_logged)
    clock.advance(1000)
    [message] = [record.message for record in caplog.records if "a coroutine is at work" in record.message]
    assert line_of("await end") in message
    handler.end(0)
    assert dispatcher.await_drained(TIMEOUT_S)


def test_coroutines_are_timed_from_their_beginning_to_their_end(make: Make, handler: Latched) -> None:
    dispatcher = make(DispatcherConfig(measure_times="all"), loop=handler.loop, handler=handler)
    post(dispatcher, *keys(3))
    handler.await_begun(0, 1, 2)
    assert sum(dispatcher.stats().handling_time.counts) == 0
    handler.end(0, 1, 2)

    assert dispatcher.await_drained(TIMEOUT_S)
    assert sum(dispatcher.stats().handling_time.counts) == 3
    assert sum(dispatcher.stats().queue_time.counts) == 3


# -- the end of a queue, groups, other loops ---------------------------------------------------------------------------


def test_a_coroutine_that_begins_as_the_queue_ends_may_still_post(
    make: Make, handler: Latched, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[bool] = []
    dispatcher = make(loop=handler.loop, handler=handler)
    shutdown, late = dispatcher.core.queue.shutdown, [Keyed(0)]
    take_last = shutdown.take_last

    def take_last_of_a_late_producer(*args: Any, **kwargs: Any) -> Any:
        if late:  # it has looked at the phase long ago, and appends only now
            dispatcher.core.queue.entries.append(late.pop())
        return take_last(*args, **kwargs)

    def post_more(event: Keyed) -> None:
        if event.number == 0:
            answers.append(dispatcher.event_handler.handle(Keyed(1)))

    monkeypatch.setattr(shutdown, "take_last", take_last_of_a_late_producer)
    handler.then = post_more
    stopping = threading.Thread(target=dispatcher.stop)
    stopping.start()
    handler.end(0, 1)
    stopping.join(TIMEOUT_S)

    assert answers == [True]
    assert dispatcher.is_stopped()
    assert handler.ended == [0, 1]
    assert_accounts_balance(dispatcher, accepted=2)


def test_a_group_drains_what_its_coroutines_post_to_each_other(handler: Latched) -> None:
    got: list[int] = []
    first, second = AsyncDispatcher(name="first", loop=handler.loop), AsyncDispatcher(name="second")
    first.register(Work, handler)
    second.register(Work, lambda event: got.append(event.number))
    group = DispatcherGroup([first, second], name="group")
    group.init()
    group.start()
    handler.then = lambda event: second.event_handler.handle(Keyed(event.number + 10))
    post(first, *keys(2))
    handler.await_begun(0, 1)
    stopping = threading.Thread(target=group.stop)
    stopping.start()
    until(lambda: second.core.queue.phase >= DRAINING)
    assert not group.is_drained()
    handler.end(1, 0)
    stopping.join(TIMEOUT_S)

    assert group.is_stopped()
    assert sorted(got) == [10, 11]
    assert_accounts_balance(first, accepted=2)
    assert_accounts_balance(second, accepted=2)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="asyncio has no eager tasks")
def test_tasks_that_begin_eagerly_end_their_events(make: Make, handler: Latched) -> None:
    got: list[int] = []

    async def handle(event: Keyed) -> None:
        got.append(event.number)

    handler.loop.call_soon_threadsafe(
        handler.loop.set_task_factory,
        asyncio.eager_task_factory,  # type: ignore[attr-defined, unused-ignore]
    )
    dispatcher = make(loop=handler.loop, handler=handle)
    post(dispatcher, Keyed(0), Keyed(1))

    assert dispatcher.await_drained(TIMEOUT_S)
    assert got == [0, 1]


def test_handlers_have_loops_of_their_own(make: Make, handler: Latched) -> None:
    with running_loop() as other_loop:
        other = Latched(other_loop)
        dispatcher = make(loop=handler.loop, handler=handler)
        dispatcher.register(Other, aio.AsyncioHandler(other, loop=other_loop, key=id))
        post(dispatcher, Keyed(0), Keyed(1, type=Other.DO), Keyed(2, type=Other.DO))  # type: ignore[arg-type]
        other.end(2, 1)
        handler.end(0)

        assert dispatcher.await_drained(TIMEOUT_S)
    assert_accounts_balance(dispatcher, accepted=3)


def test_an_ask_that_waits_behind_its_key_can_be_withdrawn(
    make: Make, loop: asyncio.AbstractEventLoop, handler: Latched
) -> None:
    """It counted as begun once it had left the queue: the caller got a timeout, and the event was handled anyway."""
    dispatcher = make(handler=handler, loop=loop)
    post(dispatcher, Keyed(0, key="a"))
    handler.await_begun(0)
    late, cancelled = dispatcher.ask(Keyed(1, key="a")), dispatcher.ask(Keyed(2, key="a"))
    in_handler_thread(dispatcher)

    with pytest.raises(TimeoutError):
        late.result(0)
    assert cancelled.cancel()
    handler.end(0)

    assert dispatcher.await_drained(TIMEOUT_S)
    assert late.cancelled()
    assert handler.begun == [0]
    assert dispatcher.stats().discarded_by_reason == {"withdrawn": 2}
    assert_accounts_balance(dispatcher, 3)
