"""Posting, waiting and asking from an event loop that goes on meanwhile."""

from __future__ import annotations

import asyncio
import gc
import threading
import types
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher import (
    AsyncDispatcher,
    DispatcherConfig,
    JournalConfig,
    JournalWriter,
    MultiDispatcher,
    ServiceState,
    aio,
)
from dispatcher.mailbox import ManualClock, RejectedExecutionError
from dispatcher.testing import InlineDispatcher
from dispatcher.util import threads

from ..kit import TIMEOUT_S, Gate, Numbered, Work, assert_accounts_balance, until
from ..kit.coroutines import Keyed
from .journal.conftest import Job, Posted

Make = Callable[..., AsyncDispatcher]


class NoExecutor(ThreadPoolExecutor):
    """The default executor of a loop, all of whose threads users hold."""

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("nothing of the dispatcher's runs in the loop's default executor")


def run(main: Coroutine[Any, Any, Any]) -> Any:
    async def bounded() -> Any:
        asyncio.get_running_loop().set_default_executor(NoExecutor())
        return await asyncio.wait_for(main, TIMEOUT_S)

    return asyncio.run(bounded())


def waiting(dispatcher: AsyncDispatcher) -> int:
    """The number of producers that wait for room."""
    return len(dispatcher.core.queue.room.waiters)


@pytest.fixture
def full(make: Make, gate: Gate) -> Make:
    """Makes dispatchers whose handler is in event 0 and whose queue is full with event 1."""

    def full(**settings: Any) -> AsyncDispatcher:
        clock = settings.pop("time_service", None)
        dispatcher = make(DispatcherConfig(queue_capacity=1, **settings), handler=gate, time_service=clock)
        for number in range(2):
            assert dispatcher.event_handler.handle(Numbered(number))
            assert gate.entered.wait(TIMEOUT_S)
        return dispatcher

    return full


def started(action: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


def ended(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


def numbers(gate: Gate) -> list[int]:
    return [event.number for event in gate.events]


async def turn(turns: int = 10) -> None:
    """Let the loop go on for a while."""
    for _ in range(turns):
        await asyncio.sleep(0)


def test_a_post_is_handled_on_the_handler_thread(make: Make) -> None:
    threads: list[int] = []
    dispatcher = make(handler=lambda _: threads.append(threading.get_ident()))

    async def main() -> tuple[bool, bool]:
        return await aio.post(dispatcher, Numbered()), await aio.await_drained(dispatcher, TIMEOUT_S)

    assert run(main()) == (True, True)
    assert threads == [dispatcher._thread.ident]


def test_a_post_to_a_full_queue_waits_for_room_while_the_loop_goes_on(make: Make, gate: Gate) -> None:
    dispatcher = make(queue_capacity=1, handler=gate)

    async def main() -> bool:
        for number in range(2):
            await aio.post(dispatcher, Numbered(number))
            assert gate.entered.wait(TIMEOUT_S)
        late = asyncio.ensure_future(aio.post(dispatcher, Numbered(2)))
        while not waiting(dispatcher):
            await turn()  # with a blocked loop, nothing would run here
        assert not late.done()
        gate.opened.set()
        return await late

    assert run(main())
    assert dispatcher.await_drained(TIMEOUT_S)
    assert [event.number for event in gate.events] == [0, 1, 2]


def test_a_post_that_the_policy_refuses_says_so(make: Make, gate: Gate) -> None:
    dispatcher = make(DispatcherConfig(queue_capacity=1, queue_full_policy="reject"), handler=gate)

    async def main() -> list[bool]:
        answers = [await aio.post(dispatcher, Numbered(0))]
        assert gate.entered.wait(TIMEOUT_S)
        return answers + [await aio.post(dispatcher, Numbered(number)) for number in (1, 2)]

    assert run(main()) == [True, True, False]


def test_a_post_gives_up_after_the_queues_timeout(make: Make, gate: Gate) -> None:
    dispatcher = make(DispatcherConfig(queue_capacity=1, queue_full_timeout_s=0.001), handler=gate)

    async def main() -> bool:
        await aio.post(dispatcher, Numbered(0))
        assert gate.entered.wait(TIMEOUT_S)
        await aio.post(dispatcher, Numbered(1))
        return await aio.post(dispatcher, Numbered(2))

    assert not run(main())
    assert dispatcher.stats().rejected == {"timeout": 1}


def test_tasks_and_threads_get_room_in_the_order_in_which_they_came(make: Make) -> None:
    go_on, handled = threading.Semaphore(0), list[int]()

    def handle(event: Numbered) -> None:
        handled.append(event.number)
        assert go_on.acquire(timeout=TIMEOUT_S)

    dispatcher = make(queue_capacity=1, handler=handle)
    threads: list[threading.Thread] = []

    async def main() -> list[bool]:
        tasks = []
        for number in range(10):
            if number % 2:
                threads.append(started(lambda number=number: dispatcher.event_handler.handle(Numbered(number))))
            else:
                tasks.append(asyncio.ensure_future(aio.post(dispatcher, Numbered(number))))
            while not handled or dispatcher.queue_size() + waiting(dispatcher) < number:
                await turn()
        for number in range(1, 10):
            go_on.release()
            while len(handled) <= number or dispatcher.queue_size() < (number < 9):
                await turn()
        go_on.release()
        return await asyncio.gather(*tasks)

    assert run(main()) == [True] * 5

    ended(*threads)
    assert handled == list(range(10))
    assert dispatcher.await_drained(TIMEOUT_S)
    assert dispatcher.core.queue.room.remaining() == 1


def test_a_cancelled_wait_for_room_withdraws_the_event(full: Make, gate: Gate) -> None:
    dispatcher = full()

    async def main() -> bool:
        tasks = [asyncio.ensure_future(aio.post(dispatcher, Numbered(number))) for number in (2, 3)]
        while waiting(dispatcher) < 2:
            await turn()
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        assert tasks[0].cancelled()
        assert waiting(dispatcher) == 1
        gate.opened.set()
        return await tasks[1]

    assert run(main())
    assert dispatcher.await_drained(TIMEOUT_S)
    assert numbers(gate) == [0, 1, 3]
    assert dispatcher.core.queue.room.remaining() == 1
    assert_accounts_balance(dispatcher, accepted=3)


def test_a_task_that_is_cancelled_as_it_is_woken_wakes_the_next_producer(full: Make, gate: Gate) -> None:
    dispatcher = full()
    answers: list[bool] = []

    async def main() -> threading.Thread:
        task = asyncio.ensure_future(aio.post(dispatcher, Numbered(2)))
        while waiting(dispatcher) < 1:
            await turn()
        behind = started(lambda: answers.append(dispatcher.event_handler.handle(Numbered(3))))
        while waiting(dispatcher) < 2:
            await turn()
        gate.opened.set()
        until(lambda: waiting(dispatcher) == 1)  # the loop does not run meanwhile, so the task has not seen its turn
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        return behind

    ended(run(main()))

    assert answers == [True]
    assert dispatcher.await_drained(TIMEOUT_S)
    assert numbers(gate) == [0, 1, 3]


@pytest.mark.parametrize("end", ["stops", "is closed"])
def test_a_loop_that_no_longer_runs_holds_up_no_producer(full: Make, gate: Gate, end: str) -> None:
    dispatcher = full()
    answers: list[bool] = []
    loop = asyncio.new_event_loop()
    task = loop.create_task(aio.post(dispatcher, Numbered(2)))
    loop.run_until_complete(turn())
    behind = started(lambda: answers.append(dispatcher.event_handler.handle(Numbered(3))))
    until(lambda: waiting(dispatcher) == 2)
    if end == "is closed":
        loop.close()

    gate.opened.set()
    ended(behind)

    assert answers == [True]
    if end == "stops":
        assert loop.run_until_complete(task)
        loop.close()
    else:
        task.get_coro().close()
    assert dispatcher.await_drained(TIMEOUT_S)
    assert numbers(gate) == ([0, 1, 3] if end == "is closed" else [0, 1, 3, 2])
    assert dispatcher.core.queue.room.remaining() == 1
    assert waiting(dispatcher) == 0


def test_a_loop_that_stops_with_a_wake_up_holds_up_no_producer(full: Make, gate: Gate) -> None:
    clock = ManualClock()
    dispatcher = full(time_service=clock)
    answers: list[bool] = []

    class Unseen:
        def release(self) -> bool:
            return False  # the loop runs, and stops before the task looks

    dispatcher.core.queue.room.enter(Unseen())
    behind = started(lambda: answers.append(dispatcher.event_handler.handle(Numbered(2))))
    until(lambda: waiting(dispatcher) == 2)
    gate.opened.set()
    until(lambda: dispatcher.core.queue.room.remaining() == 1)
    assert behind.is_alive()
    clock.advance(1000)
    ended(behind)

    assert answers == [True]


def test_a_stop_ends_the_waits_of_tasks(full: Make, gate: Gate) -> None:
    dispatcher = full()

    async def main() -> list[bool]:
        posts = asyncio.gather(*(aio.post(dispatcher, Numbered(number)) for number in (2, 3)))
        while waiting(dispatcher) < 2:
            await turn()
        stopping = asyncio.ensure_future(aio.stop(dispatcher))
        answers = await posts
        gate.opened.set()
        await stopping
        return answers

    assert run(main()) == [False, False]
    assert dispatcher.stats().rejected == {"draining": 2}
    assert_accounts_balance(dispatcher, accepted=2)


def test_handlers_that_need_the_default_executor_get_it_however_many_posts_wait(make: Make) -> None:
    """The posts waited in that executor, and the handlers that would have made room waited for a thread of it."""
    ran: list[int] = []

    async def main() -> list[bool]:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))

        async def handle(event: Numbered) -> None:
            await asyncio.to_thread(ran.append, event.number)

        dispatcher = make(queue_capacity=2, loop=loop, handler=aio.AsyncioHandler(handle, key=id, capacity=2))
        answers = await asyncio.gather(*(aio.post(dispatcher, Numbered(number)) for number in range(50)))
        assert await aio.await_drained(dispatcher, TIMEOUT_S)
        await aio.stop(dispatcher)
        return answers

    assert run(main()) == [True] * 50
    assert sorted(ran) == list(range(50))


def test_a_post_waits_for_room_in_the_partition_of_its_event(gate: Gate) -> None:
    dispatcher = MultiDispatcher(DispatcherConfig(queue_capacity=1), partitions=2)
    dispatcher.register(Work, gate)
    busy = dispatcher.partitions[1]

    async def main() -> list[bool]:
        answers = [await aio.post(dispatcher, Keyed(0, key=1))]
        assert gate.entered.wait(TIMEOUT_S)
        answers.append(await aio.post(dispatcher, Keyed(1, key=1)))
        late = asyncio.ensure_future(aio.post(dispatcher, Keyed(2, key=1)))
        while not waiting(busy):
            await turn()
        answers.append(await aio.post(dispatcher, Keyed(3, key=0)))
        gate.opened.set()
        return [*answers, await late, await aio.await_drained(dispatcher, TIMEOUT_S)]

    with dispatcher:
        assert run(main()) == [True] * 5
    assert sum(partition.stats().handled for partition in dispatcher.partitions) == 4


PLANS = st.lists(
    st.tuples(st.sampled_from(["task", "thread", "cancelled"]), st.integers(1, 6)), min_size=1, max_size=10
)


@settings(max_examples=25, deadline=None)
@given(plan=PLANS, capacity=st.integers(1, 3), timeout_s=st.sampled_from([None, None, 0.001]))
def test_tasks_and_threads_share_a_full_queue(
    plan: list[tuple[str, int]], capacity: int, timeout_s: float | None
) -> None:
    """Whoever waits, gives up or is cancelled: each answer is right, and all permits come back."""
    handled: list[int] = []
    answers: list[bool] = []
    config = DispatcherConfig(queue_capacity=capacity, queue_full_timeout_s=timeout_s)
    dispatcher = AsyncDispatcher(config)
    dispatcher.register(Work, lambda event: handled.append(event.number))

    def post_from_a_thread(first: int, count: int) -> None:
        answers.extend([dispatcher.event_handler.handle(Numbered(first + each)) for each in range(count)])

    async def post(first: int, count: int) -> None:
        for each in range(count):
            answers.append(await aio.post(dispatcher, Numbered(first + each)))

    async def main() -> None:
        threads, tasks, cancelled = [], [], []
        for place, (kind, count) in enumerate(plan):
            first = 100 * place
            if kind == "thread":
                threads.append(started(lambda first=first, count=count: post_from_a_thread(first, count)))
            else:
                task = asyncio.ensure_future(post(first, count))
                (tasks if kind == "task" else cancelled).append(task)
        await turn(1)
        for task in cancelled:
            task.cancel()
        await asyncio.gather(*tasks)
        await asyncio.gather(*cancelled, return_exceptions=True)
        while any(thread.is_alive() for thread in threads):
            await turn()
        assert await aio.await_drained(dispatcher, TIMEOUT_S)

    with dispatcher:
        run(main())

    assert len(handled) == len(set(handled)) == answers.count(True) == dispatcher.stats().accepted
    for place, _ in enumerate(plan):
        own = [number for number in handled if number // 100 == place]
        assert own == sorted(own)
    assert dispatcher.core.queue.room.remaining() == capacity
    assert waiting(dispatcher) == 0


def test_a_post_to_a_stopped_dispatcher_is_refused(make: Make) -> None:
    dispatcher = make(queue_capacity=1)
    dispatcher.stop()

    assert run(aio.post(dispatcher, Numbered())) is False


def test_posts_of_many_tasks_share_an_fsync_in_write_ahead_mode(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "journal", JournalConfig(write_ahead=True, durability="sync"))
    dispatcher = AsyncDispatcher(DispatcherConfig(queue_capacity=50), journal=writer)
    got: list[int] = []
    dispatcher.register(Job, lambda event: got.append(event.number), events=Posted)

    async def main() -> list[bool]:
        return await asyncio.gather(*(aio.post(dispatcher, Posted(Job.STARTED, number)) for number in range(200)))

    with dispatcher:
        assert run(main()) == [True] * 200
        assert dispatcher.await_drained(TIMEOUT_S)

    assert sorted(got) == list(range(200))
    assert writer.log.syncs < 200
    assert run(aio.post(dispatcher, Posted(Job.STARTED, 0))) is False


def test_a_post_in_write_ahead_mode_that_the_policy_refuses_says_so(tmp_path: Path, gate: Gate) -> None:
    writer = JournalWriter(tmp_path / "journal", JournalConfig(write_ahead=True))
    config = DispatcherConfig(queue_capacity=1, queue_full_policy="reject")
    dispatcher = AsyncDispatcher(config, journal=writer)
    dispatcher.register(Job, gate, events=Posted)

    async def main() -> list[bool]:
        answers = [await aio.post(dispatcher, Posted(Job.STARTED, 0))]
        assert gate.entered.wait(TIMEOUT_S)
        return answers + [await aio.post(dispatcher, Posted(Job.STARTED, number)) for number in (1, 2)]

    with dispatcher:
        assert run(main()) == [True, True, False]
        gate.opened.set()


def test_a_post_in_write_ahead_mode_waits_for_room(tmp_path: Path, gate: Gate) -> None:
    writer = JournalWriter(tmp_path / "journal", JournalConfig(write_ahead=True))
    dispatcher = AsyncDispatcher(DispatcherConfig(queue_capacity=1), journal=writer)
    dispatcher.register(Job, gate, events=Posted)

    async def main() -> list[bool]:
        answers = []
        for number in range(2):
            answers.append(await aio.post(dispatcher, Posted(Job.STARTED, number)))
            assert gate.entered.wait(TIMEOUT_S)
        tasks = [asyncio.ensure_future(aio.post(dispatcher, Posted(Job.STARTED, number))) for number in (2, 3, 4)]
        while waiting(dispatcher) < 3:
            await turn()
        tasks[1].cancel()
        gate.opened.set()
        return [*answers, await tasks[0], await tasks[2]]

    with dispatcher:
        assert run(main()) == [True] * 4
    assert numbers(gate) == [0, 1, 2, 4]
    assert dispatcher.stats().accepted == dispatcher.stats().handled == 4


def test_a_refused_post_in_write_ahead_mode_leaves_no_cycle(tmp_path: Path, gate: Gate) -> None:
    writer = JournalWriter(tmp_path / "journal", JournalConfig(write_ahead=True))
    config = DispatcherConfig(queue_capacity=1, queue_full_policy="reject")
    dispatcher = AsyncDispatcher(config, journal=writer)
    dispatcher.register(Job, gate, events=Posted)
    gc.collect()
    gc.disable()
    try:
        with dispatcher:
            assert run(aio.post(dispatcher, Posted(Job.STARTED, 0)))
            assert gate.entered.wait(TIMEOUT_S)
            assert run(aio.post(dispatcher, Posted(Job.STARTED, 1)))
            event = Posted(Job.STARTED, 2)
            refused = weakref.ref(event)
            assert not run(aio.post(dispatcher, event))
            del event
            assert refused() is None
            gate.opened.set()
    finally:
        gc.enable()


def test_await_drained_gives_up_after_its_timeout_and_can_be_called_again(make: Make, gate: Gate) -> None:
    dispatcher = make(handler=gate)
    dispatcher.event_handler.handle(Numbered())
    assert gate.entered.wait(TIMEOUT_S)

    async def main() -> list[bool]:
        early = [await aio.await_drained(dispatcher, 0.001), await aio.await_drained(dispatcher, 0)]
        late = asyncio.ensure_future(aio.await_drained(dispatcher))
        await turn()
        assert not late.done()
        gate.opened.set()
        return [*early, await late]

    assert run(main()) == [False, False, True]


def test_await_drained_of_a_dispatcher_that_stops_ends(make: Make, gate: Gate) -> None:
    dispatcher = make(DispatcherConfig(drain_events_on_stop=False), handler=gate)
    for number in range(3):
        dispatcher.event_handler.handle(Numbered(number))
    assert gate.entered.wait(TIMEOUT_S)

    async def main() -> bool:
        late = asyncio.ensure_future(aio.await_drained(dispatcher))
        await turn()
        stopping = asyncio.ensure_future(aio.stop(dispatcher))
        while not dispatcher.stats().discarded:
            await turn()
        gate.opened.set()
        await stopping
        return await late

    assert run(main()) in (True, False)


def test_waits_that_gave_up_leave_nothing_behind(make: Make, gate: Gate) -> None:
    dispatcher = make(handler=gate)
    dispatcher.event_handler.handle(Numbered())
    assert gate.entered.wait(TIMEOUT_S)

    async def main() -> None:
        for _ in range(50):
            assert not await aio.await_drained(dispatcher, 0)

    run(main())

    assert len(dispatcher._drain.waiters) <= 1


def test_submit_returns_the_result_from_the_handler_thread(make: Make) -> None:
    dispatcher = make()

    ran_on = run(aio.submit(dispatcher, threading.get_ident, "which thread, for %s", "a test"))

    assert ran_on == dispatcher._thread.ident


def test_submit_raises_what_the_command_raises_and_fails_nothing(make: Make) -> None:
    dispatcher = make()

    def fail() -> None:
        raise LookupError("lost")

    with pytest.raises(LookupError, match="lost"):
        run(aio.submit(dispatcher, fail))

    assert dispatcher.state is ServiceState.STARTED


def test_submit_to_a_stopped_dispatcher_is_rejected(make: Make) -> None:
    dispatcher = make()
    dispatcher.stop()

    with pytest.raises(RejectedExecutionError):
        run(aio.submit(dispatcher, lambda: None))


def test_a_submit_that_is_cancelled_before_its_turn_does_not_run(make: Make, gate: Gate) -> None:
    ran: list[int] = []
    dispatcher = make(handler=gate)
    dispatcher.event_handler.handle(Numbered())
    assert gate.entered.wait(TIMEOUT_S)

    async def main() -> None:
        task = asyncio.ensure_future(aio.submit(dispatcher, lambda: ran.append(1)))
        await turn()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.opened.set()
        await aio.submit(dispatcher, lambda: ran.append(2))

    run(main())

    assert ran == [2]


def test_a_stop_drains_while_the_loop_goes_on(make: Make, gate: Gate) -> None:
    dispatcher = make(handler=gate)
    for number in range(3):
        dispatcher.event_handler.handle(Numbered(number))
    assert gate.entered.wait(TIMEOUT_S)

    async def main() -> None:
        stopping = asyncio.ensure_future(aio.stop(dispatcher))
        while not dispatcher.in_state(ServiceState.STOPPED):
            await turn()
        gate.opened.set()
        await stopping

    run(main())

    assert dispatcher.is_stopped()
    assert len(gate.events) == 3


def test_a_stop_begins_and_ends_with_a_hung_handler(make: Make, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = make(DispatcherConfig(drain_timeout_s=0.02), handler=gate)
    dispatcher.event_handler.handle(Numbered())
    assert gate.entered.wait(TIMEOUT_S)

    run(aio.stop(dispatcher))

    assert dispatcher.in_state(ServiceState.STOPPED)
    assert "stop gave up after" in caplog.text


def test_a_stop_goes_on_where_no_thread_can_start(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher = make(handler=lambda _: None)
    dispatcher.event_handler.handle(Numbered())

    def cannot_start(**_: Any) -> Any:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "threading", types.SimpleNamespace(Thread=cannot_start))
    run(aio.stop(dispatcher))

    assert dispatcher.is_stopped()
    assert dispatcher.stats().handled == 1


def test_a_stop_whose_task_is_cancelled_goes_on(make: Make, gate: Gate) -> None:
    dispatcher = make(handler=gate)
    dispatcher.event_handler.handle(Numbered())
    assert gate.entered.wait(TIMEOUT_S)

    async def main() -> None:
        stopping = asyncio.ensure_future(aio.stop(dispatcher))
        while not dispatcher.in_state(ServiceState.STOPPED):
            await turn()
        stopping.cancel()
        await asyncio.wait([stopping])
        assert stopping.cancelled()

    run(main())
    assert not dispatcher.is_stopped()
    gate.opened.set()

    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
    assert dispatcher.stats().handled == 1


def test_await_drained_waits_for_what_partitions_post_to_each_other(gate: Gate) -> None:
    dispatcher = MultiDispatcher(partitions=2)
    handled: list[int] = []

    def handle(event: Keyed) -> None:
        if event.number == 0:
            gate.handle(event)
            assert dispatcher.event_handler.handle(Keyed(1, key=0))
        handled.append(event.number)

    dispatcher.register(Work, handle)

    async def main() -> list[bool]:
        await aio.post(dispatcher, Keyed(0, key=1))
        assert gate.entered.wait(TIMEOUT_S)
        early = await aio.await_drained(dispatcher, 0.001)
        late = asyncio.ensure_future(aio.await_drained(dispatcher))
        await turn()
        gate.opened.set()
        return [early, await late]

    with dispatcher:
        assert run(main()) == [False, True]
        assert sorted(handled) == [0, 1]


def test_a_handler_hands_a_result_to_the_loop(make: Make) -> None:
    dispatcher = make()

    async def main() -> int:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[int] = loop.create_future()
        dispatcher.register(Work, lambda event: loop.call_soon_threadsafe(answer.set_result, event.number))
        await aio.post(dispatcher, Numbered(7))
        return await answer

    assert run(main()) == 7


@pytest.mark.parametrize("function", [aio.post, aio.ask])
def test_an_inline_dispatcher_is_named_with_what_to_do(function: Any) -> None:
    inline = InlineDispatcher(name="mine")

    with pytest.raises(TypeError, match=r"not <InlineDispatcher mine .* `await asyncio.to_thread\(dispatcher.post"):
        asyncio.run(function(inline, Numbered()))
