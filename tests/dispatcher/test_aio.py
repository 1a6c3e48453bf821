"""Posting, waiting and asking from an event loop that goes on meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from dispatcher import (
    AsyncDispatcher,
    DispatcherConfig,
    EventDispatcher,
    JournalConfig,
    JournalWriter,
    MultiDispatcher,
    RejectedExecutionError,
    ServiceState,
    aio,
)

from .conftest import TIMEOUT_S, Gate, Numbered, Work, assert_accounts_balance
from .journal.conftest import Job, Posted

Make = Callable[..., AsyncDispatcher]


def run(main: Coroutine[Any, Any, Any]) -> Any:
    async def bounded() -> Any:
        return await asyncio.wait_for(main, TIMEOUT_S)

    return asyncio.run(bounded())


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
        waiting = asyncio.ensure_future(aio.post(dispatcher, Numbered(2)))
        while not dispatcher.queue.room.waiters:
            await turn()  # with a blocked loop, nothing would run here
        assert not waiting.done()
        gate.opened.set()
        return await waiting

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
    assert dispatcher.rejected == {"timeout": 1}


def test_posts_that_are_awaited_keep_their_order_in_a_full_queue(make: Make) -> None:
    got: list[int] = []
    dispatcher = make(queue_capacity=1, handler=lambda event: got.append(event.number))

    async def main() -> None:
        for number in range(200):
            assert await aio.post(dispatcher, Numbered(number))

    run(main())

    assert dispatcher.await_drained(TIMEOUT_S)
    assert got == list(range(200))


def test_posts_of_many_tasks_are_all_handled(make: Make) -> None:
    dispatcher = make(queue_capacity=2, handler=lambda _: None)

    async def main() -> list[bool]:
        return await asyncio.gather(*(aio.post(dispatcher, Numbered(number)) for number in range(100)))

    assert run(main()) == [True] * 100
    assert dispatcher.await_drained(TIMEOUT_S)
    assert_accounts_balance(dispatcher, accepted=100)


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
        waiting = asyncio.ensure_future(aio.await_drained(dispatcher))
        await turn()
        stopping = asyncio.ensure_future(aio.stop(dispatcher))
        while not dispatcher.discarded:
            await turn()
        gate.opened.set()
        await stopping
        return await waiting

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


def test_a_handler_hands_a_result_to_the_loop(make: Make) -> None:
    dispatcher = make()

    async def main() -> int:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[int] = loop.create_future()
        dispatcher.register(Work, lambda event: loop.call_soon_threadsafe(answer.set_result, event.number))
        await aio.post(dispatcher, Numbered(7))
        return await answer

    assert run(main()) == 7


def test_an_async_handler_is_refused_with_advice() -> None:
    class Handler:
        async def handle(self, event: Any) -> None: ...

    with pytest.raises(TypeError, match=r"async def.*AsyncDispatcher\(loop=loop\)"):
        EventDispatcher(Handler())
    with pytest.raises(TypeError, match=r"async def.*AsyncDispatcher\(loop=loop\)"):
        MultiDispatcher().register(Work, Handler())
