"""`async def` handlers: an event is in hand until its coroutine has ended."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dispatcher import (
    AsyncDispatcher,
    DispatcherConfig,
    DispatcherError,
    DispatcherGroup,
    EventDispatcher,
    MultiDispatcher,
    Retry,
    aio,
)
from dispatcher.aio import AsyncioHandler, RateLimit
from dispatcher.testing import ManualClock
from pipeline.streaming import unordered_wait

from ..kit import TIMEOUT_S, Gate, Other, Work, assert_accounts_balance, until
from ..kit.coroutines import Keyed, Latched, running_loop
from ..kit.dispatchers import Make, stopping
from ..kit.scenarios import play
from .async_stage import AsyncStage, perform_async

SCENARIOS: dict[str, tuple[dict[str, Any], str]] = {
    "plain handlers and mail go on while coroutines run": (
        {}, "post 0 | other 9 -> others 9 ; is_drained False | finish 0 -> is_drained True",
    ),
    "a function gives the key": (
        {"key": lambda event: event.number % 2}, "post 0:a 1:b 2:c -> begun 0 1 | finish 0 -> begun 0 1 2",
    ),
    "a key that raises fails its event alone": (
        {"key": lambda event: 1 // event.number}, "post 0 1 2 -> failed 1 ; begun 1 2",
    ),
    "at capacity a bounded queue fills up": (
        {"capacity": 1, "config": {"queue_capacity": 2, "queue_full_policy": "reject"}},
        "post 0:a -> begun 0 | post 1:b -> queue_size 0 | post 2:c 3:d | refused 4:e | finish 0 1 2 3 -> handled 4",
    ),
    "coroutines are timed from their beginning to their end": (
        {"config": {"measure_times": "all"}}, "post 0:a 1:b 2:c -> timed 0 0 | finish 0 1 2 -> timed 3 3",
    ),
    "an event whose handler is unregistered meanwhile is handled": (
        {}, "post 0:a 1:b | unregister | finish 0 | fail 1 -> handled 1 ; failed 1",
    ),
    "stop as the error policy stops with the coroutine's error": (
        {"on_error": "stop"},
        "post 0:a 1:b 2:c | fail 1 | finish 0 2"
        " | ended -> failure LookupError lost STARTED ; handled 2 ; failed 1 | refused 9",
    ),
    "a stop waits for coroutines": (
        {"capacity": 2},
        "post 0:a 1:b 2:c 3:d | begin stop -> is_stopped False | refused 9 | finish 0 1 2 3 | end -> handled 4",
    ),
    "a stop without a drain waits for begun coroutines only": (  # one waits for its key, one for a slot, one is queued
        {"capacity": 1, "config": {"drain_events_on_stop": False}},
        "post 0:a 1:a 2:b 3:c -> begun 0 ; queue_size 1 | begin stop -> is_stopped False | finish 0 | end"
        " -> begun 0 ; discarded 3",
    ),
    "a stop that gives up cancels coroutines, and begins none": (
        {"config": {"drain_timeout_s": 0.02}},
        "post 0:a 1:a 2:b -> begun 0 2 | begin stop"
        " | ended -> discarded_by_reason stop:3 ; in_hand 0 ; begun 0 2 ; ended 0 2",
    ),
    "coroutines are given up when the handler thread fails": (
        {}, "post 0 | break_down | ended -> failure LookupError lost STARTED ; discarded_by_reason stop:1 ; ended 0",
    ),
    "an ask that waits behind its key can be withdrawn, as a timeout does": (
        {},
        "post 0:a | ask 1:a 2:a | give_up 1 | cancel 2 | finish 0"
        " -> begun 0 ; answers withdrawn withdrawn ; discarded_by_reason withdrawn:2",
    ),
    "a coroutine that is tried again holds up its key alone": (  # events of its key that had left the queue went on
        {"on_error": Retry(delay_s=0.1, factor=1, jitter=0, ordered_by_key=True), "capacity": 4},
        "post 1:a 2:a 3:b 4:a 5:a -> begun 1 3 | fail 1 -> retrying 4 | +100 | fail 1 -> retrying 4"
        " | +100 -> begun 1 3 1 1"
        " | finish 1 2 4 5 3 -> begun 1 3 1 1 2 4 5 ; handled 5",
    ),
}  # fmt: skip

PER_S = {"rate": RateLimit(1, burst=1)}
PER_KEY = {"rate": RateLimit(1, burst=1, per_key=True)}
RATES: dict[str, tuple[dict[str, Any], str]] = {
    "coroutines begin at the rate in the order of the posts": (
        {"rate": RateLimit(1, burst=2)},
        "post 0:a 1:b 2:c 3:d 4:a -> begun 0 1 | finish 0 | +999 -> begun 0 1 | +1 -> begun 0 1 2 | +999 -> begun 0 1 2"
        " | +1 -> begun 0 1 2 3 | +1000 -> begun 0 1 2 3 4",
    ),
    "each key has the rate to itself with per_key": (
        PER_KEY,
        "post 0:a 1:a 2:b 3 4:b 5:a 6 -> begun 0 2 3 | finish 0 2 3 -> begun 0 2 3 | +1000"
        " | finish 1 4 6 -> ended 0 1 2 3 4 6"
        " | +1000 | finish 5",
    ),
    "an event that waits for its turn takes no slot": (
        PER_KEY | {"capacity": 1},
        "post 0:a 1:a 2:a 3:b 4:c -> begun 0 | finish 0 -> begun 0 3 | finish 3 -> begun 0 3 4",
    ),
    "other classes go on while events wait for their turns": (
        PER_S, "post 0:a 1:b 2:c 3:d | other 9 -> begun 0 ; others 9",
    ),
    "beyond max_waiting events stay in the queue": (
        PER_S | {"max_waiting": 3},
        "post 0:a 1:b 2:c 3:d 4:e 5:f 6:g 7:h 8:i 9:j -> begun 0 ; queue_size 5 | +1000 -> begun 0 1 ; queue_size 4",
    ),
    "a withdrawn event leaves its turn to the next": (
        PER_S,
        "post 0:a | ask 1:b 2:c 3:d | cancel 1 2 | +1000 -> begun 0 3 ; discarded_by_reason withdrawn:2"
        " | finish 3 -> answers withdrawn withdrawn None",
    ),
    "each attempt takes a turn": (
        PER_S | {"on_error": Retry(attempts=2, delay_s=0)},
        "post 0:a 1:b -> begun 0 | fail 0 | +1000 -> begun 0 1 | +1000 -> begun 0 1 0",
    ),
    "the cost of an event counts": (
        {"rate": RateLimit(10, burst=10, cost=lambda event: 10 if event.number else 5)},
        "post 0:a 1:b -> begun 0 | +499 -> begun 0 | +1 -> begun 0 1",
    ),
    "a cost that raises fails the event alone": (
        {"rate": RateLimit(1, burst=9, cost=lambda event: 1 / event.number)}, "post 0:a 1:b -> begun 1 ; failed 1",
    ),
    "a drain keeps the rate": (
        PER_S,
        "post 0:a 1:b 2:c | begin stop -> begun 0 | +1000 -> begun 0 1 ; is_drained False | +1000 -> begun 0 1 2"
        " | finish 0 1 2 | end -> handled 3",
    ),
    "a stop that does not drain discards what waits": (
        PER_S | {"config": {"drain_events_on_stop": False}},
        "post 0:a 1:b 2:c | ask 3:d | begin stop | finish 0 | end"
        " -> begun 0 ; answers EventDiscardedError:stop ; discarded_by_reason stop:3",
    ),
    "a stop ends in its time though events wait for their turns": (
        PER_S | {"config": {"drain_timeout_s": 0.01}},
        "post 0:a 1:b 2:c | finish 0 | begin stop | ended -> begun 0 ; discarded_by_reason stop:2",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("options", "script"), (SCENARIOS | RATES).values(), ids=SCENARIOS | RATES)
def test_scenario(loop: asyncio.AbstractEventLoop, options: dict[str, Any], script: str) -> None:
    perform_async(loop, script, **options)


@pytest.fixture
def handler(loop: asyncio.AbstractEventLoop) -> Latched:
    return Latched(loop)


def post(dispatcher: AsyncDispatcher, *events: Any) -> None:
    assert all(dispatcher.post(event) for event in events)


def keys(count: int) -> list[Keyed]:
    """Events 0, 1, ... of as many keys."""
    return [Keyed(number, key=number) for number in range(count)]


def line_of(awaited: str) -> str:
    """The line of source that tells where a coroutine is: on a free-threaded 3.13, where its function begins."""
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    return awaited if has_gil or sys.version_info >= (3, 14) else "async def handle("


def in_handler_thread(dispatcher: AsyncDispatcher) -> None:
    """Wait until the handler thread has run what was sent to it so far."""
    dispatcher.mailbox_executor.submit(lambda: None).result(TIMEOUT_S)


def message_with(caplog: pytest.LogCaptureFixture, part: str) -> str:
    """The only line of the log that has this part."""
    [message] = [record.message for record in caplog.records if part in record.message]
    return message


# -- registration ------------------------------------------------------------------------------------------------------


async def do_nothing(event: Any) -> None: ...


REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (
        lambda: AsyncDispatcher().register(Work, AsyncioHandler(do_nothing)),
        TypeError,
        r"no event loop.*AsyncDispatcher\(loop=loop\).*aio\.AsyncioHandler",
    ),
    (lambda: AsyncioHandler(lambda event: None), TypeError, "takes an `async def` function"),
    (lambda: AsyncioHandler(do_nothing, capacity=0), ValueError, "capacity must be at least 1, not 0"),
    (lambda: AsyncioHandler(do_nothing, per_key=0), ValueError, "per_key must be at least 1, not 0"),
    (lambda: AsyncioHandler(do_nothing, max_waiting=-1), ValueError, "max_waiting must be at least 0, not -1"),
    (lambda: AsyncioHandler(do_nothing, key="entity"), TypeError, "key must be a callable"),  # type: ignore[arg-type]
    (
        lambda: AsyncioHandler(do_nothing, rate=10),  # type: ignore[arg-type]
        TypeError,
        r"rate is a RateLimit, for example RateLimit\(10\), not 10",
    ),
    (lambda: RateLimit(10, per_key=1), ValueError, "per_key is 1"),  # type: ignore[arg-type]
    (
        lambda: unordered_wait([1], do_nothing, timeout=1, rate_limit=RateLimit(10, per_key=True)),
        ValueError,
        "only an AsyncioHandler takes",
    ),
]


@pytest.mark.parametrize(("make_it", "error", "message"), REFUSED, ids=range(len(REFUSED)))
def test_a_wrong_registration_says_what_to_do(make_it: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make_it()


def test_an_event_dispatcher_runs_coroutines_on_its_loop(loop: asyncio.AbstractEventLoop) -> None:
    ran_on: list[asyncio.AbstractEventLoop] = []

    async def handle(event: Any) -> None:
        ran_on.append(asyncio.get_running_loop())

    with EventDispatcher(handle, loop=loop) as dispatcher:
        post(dispatcher, Keyed(1), Keyed(2))

    assert ran_on == [loop, loop]


@pytest.mark.long
def test_a_dispatcher_without_async_handlers_does_not_import_asyncio() -> None:
    program = "import sys; from dispatcher import AsyncDispatcher; AsyncDispatcher(); print('asyncio' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert ran.stdout.strip() == "False"


def test_handlers_have_loops_of_their_own(make: Make, handler: Latched) -> None:
    with running_loop() as other_loop:
        other = Latched(other_loop)
        dispatcher = make(loop=handler.loop, handler=handler)
        dispatcher.register(Other, AsyncioHandler(other, loop=other_loop, key=id))
        post(dispatcher, Keyed(0), Keyed(1, type=Other.DO), Keyed(2, type=Other.DO))  # type: ignore[arg-type]
        other.end(2, 1)
        handler.end(0)

        assert dispatcher.await_drained(TIMEOUT_S)
    assert_accounts_balance(dispatcher, accepted=3)


# -- the loop ends -----------------------------------------------------------------------------------------------------


@pytest.fixture
def idle_loop() -> asyncio.AbstractEventLoop:
    """A loop that does not run."""
    return asyncio.new_event_loop()


@pytest.mark.parametrize("begin_first", [False, True])
def test_events_that_a_loop_has_not_ended_fail_once_it_is_closed(
    make: Make, idle_loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture, begin_first: bool
) -> None:
    clock = ManualClock()
    dispatcher = make(loop=idle_loop, handler=do_nothing, time_service=clock)
    if begin_first:
        post(dispatcher, Keyed(0), Keyed(1))
        until(lambda: dispatcher.stats().in_hand == 2)
        in_handler_thread(dispatcher)
        assert not dispatcher.is_drained()
    idle_loop.close()
    if begin_first:
        clock.advance(1000)
    else:
        post(dispatcher, Keyed(0), Keyed(1))

    assert dispatcher.await_drained(TIMEOUT_S)
    assert dispatcher.stats().failed == 2
    errors = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert any(isinstance(each, DispatcherError) and "its event loop is closed" in str(each) for each in errors)


def test_a_loop_that_stops_and_runs_again_ends_its_events(make: Make, idle_loop: asyncio.AbstractEventLoop) -> None:
    dispatcher = make(loop=idle_loop, handler=do_nothing)
    post(dispatcher, Keyed(0))
    until(lambda: dispatcher.stats().in_hand == 1)
    idle_loop.run_until_complete(aio.await_drained(dispatcher, TIMEOUT_S))
    post(dispatcher, Keyed(1))
    idle_loop.run_until_complete(aio.await_drained(dispatcher, TIMEOUT_S))
    idle_loop.close()

    assert dispatcher.stats().handled == 2


def test_a_stop_says_that_the_loop_does_not_run(
    make: Make, idle_loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher = make(DispatcherConfig(drain_timeout_s=0.02), loop=idle_loop, handler=do_nothing)
    post(dispatcher, Keyed(0))
    until(lambda: dispatcher.stats().in_hand == 1)
    dispatcher.stop()
    idle_loop.close()

    assert "its event loop does not run" in caplog.text
    assert_accounts_balance(dispatcher, accepted=1)


# -- stop --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocks_its_loop", [False, True])
def test_a_stop_that_gives_up_says_where_a_coroutine_hangs(
    make: Make, gate: Gate, handler: Latched, caplog: pytest.LogCaptureFixture, blocks_its_loop: bool
) -> None:
    async def block_the_loop(event: Any) -> None:
        gate.handle(event)

    config = DispatcherConfig(drain_timeout_s=0.02)
    dispatcher = make(config, loop=handler.loop, handler=block_the_loop if blocks_its_loop else handler)
    post(dispatcher, Keyed(0))
    until(lambda: gate.entered.is_set() or handler.begun)
    dispatcher.stop()
    gate.opened.set()

    message = message_with(caplog, "cancels the coroutines of")
    where = ("gate.handle(event)", "kit/events.py") if blocks_its_loop else (line_of("await end"),)
    assert all(part in message for part in (*where, "in handle", "job_0"))


def in_context(function: Callable[[], Any]) -> threading.Thread:
    return threading.Thread(target=contextvars.copy_context().run, args=(function,))


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
@pytest.mark.parametrize("work", [None, of_a_task, asyncio.to_thread, of_a_thread_of_a_thread, of_an_executor])
def test_posts_of_a_coroutines_tasks_and_threads_are_accepted_while_its_group_drains(
    handler: Latched, work: Callable[[Callable[[], Any]], Any] | None, keeps_context: bool
) -> None:
    """And so are its own, to its dispatcher and to another one of the group, both of whose queues are full."""
    answers: list[bool] = []
    gate = threading.Event()
    first, second = AsyncDispatcher(queue_capacity=1, name="first"), AsyncDispatcher(queue_capacity=1, name="second")
    one_at_a_time = AsyncioHandler(handler, loop=handler.loop, max_waiting=0)
    first.register(Work, one_at_a_time, context=keeps_context)
    second.register(Work, lambda event: gate.wait(TIMEOUT_S))

    async def post_more(event: Keyed) -> None:
        if event.number == 0:
            for dispatcher in (first, second):
                if work is None:
                    answers.append(await aio.post(dispatcher, Keyed(8)) and dispatcher.post(Keyed(9)))
                else:
                    await work(lambda dispatcher=dispatcher: answers.append(dispatcher.post(Keyed(9))))
            gate.set()

    handler.then = post_more
    with DispatcherGroup([first, second], name="group") as group:
        post(first, Keyed(0))
        handler.await_begun(0)
        for number, dispatcher in ((1, first), (2, second)):
            post(dispatcher, Keyed(number))
            until(lambda dispatcher=dispatcher: dispatcher.queue_size() == 0)
            post(dispatcher, Keyed(number + 2))
        with stopping(group):
            handler.end(0, 1, 3, *([8] if work is None else []), 9)

    assert answers == [True, True]
    assert group.is_stopped()
    posts = 2 if work is None else 1
    assert_accounts_balance(first, accepted=3 + posts)
    assert_accounts_balance(second, accepted=2 + posts)


@pytest.mark.parametrize("is_task", [False, True], ids=["thread", "task"])
def test_a_thread_or_task_that_outlives_its_coroutine_is_outside(make: Make, handler: Latched, is_task: bool) -> None:
    answers: list[bool] = []
    released, loop_released = threading.Event(), asyncio.Event()
    left: list[Any] = []
    dispatcher = make(loop=handler.loop, handler=handler)

    def post_late() -> None:
        assert released.wait(TIMEOUT_S)
        answers.append(dispatcher.post(Keyed(9)))

    async def post_later() -> None:
        await loop_released.wait()
        post_late()

    async def leave_one(event: Keyed) -> None:
        if event.number == 0:
            left.append(asyncio.create_task(post_later()) if is_task else in_context(post_late))
            if not is_task:
                left[0].start()

    handler.then = leave_one
    post(dispatcher, Keyed(0, "a"), Keyed(1, "b"))
    handler.end(0)
    until(lambda: dispatcher.stats().handled == 1)
    with stopping(dispatcher):
        released.set()
        handler.loop.call_soon_threadsafe(loop_released.set)
        until(lambda: answers)
        handler.end(1)

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
        answers.append(dispatcher.post(Keyed(9)))

    async def handle(event: Keyed) -> None:
        if event.number == 0:
            await filled.wait()
            if start == "Thread":
                threading.Thread(target=post_late, name="poster_0").start()
            else:
                loop.run_in_executor(pool, post_late)
            await released.wait()

    with ThreadPoolExecutor(1, "poster") as pool:
        dispatcher = make(config, handler=AsyncioHandler(handle, loop=loop, max_waiting=0))
        for number in range(3):
            until(lambda: not dispatcher.queue_size(), "room, for which this thread does not wait")
            post(dispatcher, Keyed(number))
        loop.call_soon_threadsafe(filled.set)
        until(lambda: "for room in the full queue" in caplog.text, "the warning")
        loop.call_soon_threadsafe(released.set)
        until(lambda: answers, "the post")

    assert dispatcher.await_drained(TIMEOUT_S)
    assert answers == [True]
    message = message_with(caplog, "for room in the full queue")
    assert "thread poster_0 has waited 0.01 s or longer" in message
    assert line_of("await released.wait()") in message
    assert "under asyncio.to_thread" in message


def test_the_log_of_a_full_queue_says_what_the_events_in_hand_wait_for(
    make: Make, handler: Latched, caplog: pytest.LogCaptureFixture
) -> None:
    config = DispatcherConfig(queue_capacity=1, handler_warn_after_s=0.01)
    dispatcher = make(config, handler=AsyncioHandler(handler, loop=handler.loop, capacity=1))
    post(dispatcher, *(Keyed(number, key) for number, key in enumerate("aabc")))
    posting = threading.Thread(target=post, args=(dispatcher, Keyed(4, "d")))
    posting.start()
    until(lambda: "for room in the full queue" in caplog.text, "the warning")
    handler.end(0, 1, 2, 3, 4)
    posting.join(TIMEOUT_S)

    assert dispatcher.await_drained(TIMEOUT_S)
    message = message_with(caplog, "for room in the full queue")
    assert "job_1>, which waits for earlier events of its key" in message
    assert "job_2>, which waits for one of 1 coroutines to end" in message


def test_a_coroutine_may_stop_its_dispatcher(make: Make, handler: Latched) -> None:
    dispatcher = make(loop=handler.loop, handler=handler)
    handler.then = lambda event: dispatcher.stop() if event.number == 0 else aio.stop(dispatcher)
    post(dispatcher, *keys(2))
    handler.end(0, 1)

    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
    assert dispatcher.stats().handled == 2


def test_a_stop_by_a_coroutine_gives_up_on_another_one(make: Make, handler: Latched) -> None:
    dispatcher = make(DispatcherConfig(drain_timeout_s=0.02), loop=handler.loop, handler=handler)
    handler.then = lambda event: dispatcher.stop()
    post(dispatcher, *keys(2))
    handler.await_begun(0, 1)
    handler.end(0)

    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
    assert (dispatcher.stats().handled, dispatcher.stats().discarded) == (1, 1)


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
    asyncio.run_coroutine_threadsafe(wait_on_the_loop(), handler.loop).result(TIMEOUT_S)

    assert dispatcher.await_drained(TIMEOUT_S)
    assert dispatcher.stats().handled == 1


def test_a_coroutine_that_runs_long_is_logged_once_with_its_stack(
    make: Make, handler: Latched, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    config = DispatcherConfig(handler_warn_after_s=0.001)
    dispatcher = make(config, loop=handler.loop, handler=handler, time_service=clock)
    post(dispatcher, Keyed(0))
    handler.await_begun(0)
    in_handler_thread(dispatcher)

    until(lambda: clock.advance(10) or "a coroutine is at work on" in caplog.text)
    clock.advance(1000)

    assert line_of("await end") in message_with(caplog, "a coroutine is at work")
    handler.end(0)
    assert dispatcher.await_drained(TIMEOUT_S)


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
            answers.append(dispatcher.post(Keyed(1)))

    monkeypatch.setattr(shutdown, "take_last", take_last_of_a_late_producer)
    handler.then = post_more
    with stopping(dispatcher):
        handler.end(0, 1)

    assert answers == [True]
    assert handler.ended == [0, 1]
    assert_accounts_balance(dispatcher, accepted=2)


# -- rates -------------------------------------------------------------------------------------------------------------


def test_an_ask_that_times_out_withdraws_what_waits_for_its_turn(loop: asyncio.AbstractEventLoop) -> None:
    stage = AsyncStage(loop, **PER_S)
    play(stage, "post 0:a -> begun 0")
    with pytest.raises(TimeoutError):
        asyncio.run(aio.ask(stage.dispatcher, Keyed(1, "late"), timeout=0.01))
    play(stage, "post 2:b -> begun 0 ; discarded_by_reason withdrawn:1")
    stage.close()


def test_keys_are_forgotten_once_their_rate_has_recovered(make: Make, loop: asyncio.AbstractEventLoop) -> None:
    clock = ManualClock(1_000_000)
    declared = AsyncioHandler(do_nothing, loop=loop, capacity=10_000, **PER_KEY)
    dispatcher = make(handler=declared, time_service=clock)
    [lane] = dispatcher._coroutines._lanes.values()

    for _ in range(5):
        post(dispatcher, *(Keyed(0, object()) for _ in range(700)))
        assert dispatcher.await_drained(TIMEOUT_S)
        clock.advance(1001)

    assert 0 < len(lane._turn_lines) <= 1700


def test_partitions_share_a_rate(handler: Latched) -> None:
    dispatcher = MultiDispatcher(partitions=2, loop=handler.loop, time_service=ManualClock(1_000_000))
    dispatcher.register(Work, AsyncioHandler(handler, rate=RateLimit(1, burst=3)))
    with dispatcher:
        for number in range(8):
            dispatcher.post(Keyed(number, number))
        until(lambda: not dispatcher.queue_size() and len(handler.begun) >= 3, "three of them")
        for partition in dispatcher.partitions:
            in_handler_thread(partition)
        assert len(handler.begun) == 3
        dispatcher.set_drain_events_on_stop(False)
        handler.end(*handler.begun)


def test_in_real_time_the_rate_holds() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        begun: list[float] = []

        async def handle(event: Keyed) -> None:
            begun.append(loop.time())

        posted = loop.time()  # the first coroutine may begin late on a busy machine
        async with AsyncDispatcher(loop=loop) as dispatcher:
            dispatcher.register(Work, AsyncioHandler(handle, rate=RateLimit(100, burst=1)))
            post(dispatcher, *keys(11))
        return begun[-1] - posted

    assert asyncio.run(main()) > 0.095
