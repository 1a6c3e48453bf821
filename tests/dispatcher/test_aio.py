"""Posting, waiting and asking from an event loop that goes on meanwhile."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
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
from dispatcher.mailbox import ManualClock
from dispatcher.testing import InlineDispatcher

from ..kit import TIMEOUT_S, Gate, Numbered, Work, tries, until
from ..kit.coroutines import Keyed
from ..kit.dispatchers import Make, hold
from ..kit.journals import Job, Posted
from ..kit.scenarios import play
from .stage import Rows, Stage, item, scenarios


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


def post(dispatcher: AsyncDispatcher, number: int) -> Coroutine[Any, Any, bool]:
    return aio.post(dispatcher, Posted(Job.STARTED, number))


@pytest.fixture(params=[False, True], ids=["memory", "write-ahead"])
def full(request: pytest.FixtureRequest, tmp_path: Path, gate: Gate) -> Iterator[Make]:
    """Makes dispatchers whose handler is in event 0 and whose queue is full with event 1."""
    made: list[AsyncDispatcher] = []

    def full(**settings: Any) -> AsyncDispatcher:
        clock = settings.pop("time_service", None)
        journal = JournalWriter(tmp_path / "journal", JournalConfig(write_ahead=True)) if request.param else None
        config = DispatcherConfig(queue_capacity=1, **settings)
        dispatcher = AsyncDispatcher(config, journal=journal, time_service=clock)
        dispatcher.register(Job, gate, events=Posted)
        dispatcher.start()
        made.append(dispatcher)
        for number in range(2):
            hold(dispatcher, gate, Posted(Job.STARTED, number))
        return dispatcher

    yield full
    gate.opened.set()
    for dispatcher in made:
        dispatcher.stop()


def started(action: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


def ended(thread: threading.Thread) -> None:
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


def numbers(gate: Gate) -> list[int]:
    return [event.number for event in gate.events]


async def turn(turns: int = 10) -> None:
    """Let the loop go on for a while."""
    for _ in range(turns):
        await asyncio.sleep(0)


class AioStage(Stage):
    """A Stage with an event loop on a thread of its own. More verbs, which add futures to `later`:

    aio EVENT... (a post), drained NUMBER [S], submit NUMBER (a command that notes it as seen), halt NUMBER (a stop);
    the NUMBER is for `cancel`. Each goes on until it waits or has ended. `settled`: wait until all have ended.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, **options: Any) -> None:
        self.loop = loop
        loop.call_soon_threadsafe(loop.set_default_executor, NoExecutor())
        super().__init__(**options)

    def _await(self, number: int, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._handles[number] = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        self.results["later"].append(self._handles[number])
        self._turn()

    def _turn(self) -> None:
        asyncio.run_coroutine_threadsafe(turn(), self.loop).result(TIMEOUT_S)

    def aio(self, *events: str) -> None:
        for event in map(item, events):
            before = waiting(self.dispatcher)
            self._await(event.number, aio.post(self.dispatcher, event))
            until(
                lambda event=event, before=before: (
                    self._handles[event.number].done() or waiting(self.dispatcher) > before
                )
            )

    def drained(self, number: str, timeout_s: str | None = None) -> None:
        self._await(int(number), aio.await_drained(self.dispatcher, timeout_s and float(timeout_s)))
        until(lambda: timeout_s is None or self._handles[int(number)].done())

    def submit(self, number: str) -> None:
        self._await(int(number), aio.submit(self.dispatcher, lambda: self.seen.append(int(number))))

    def halt(self, number: str) -> None:
        self._await(int(number), aio.stop(self.dispatcher))
        until(lambda: self.dispatcher.core.queue.phase)

    def cancel(self, *numbers: str) -> None:
        super().cancel(*numbers)
        self._turn()

    def settled(self) -> None:
        until(lambda: all(each.done() for each in self.results["later"]), "the end of all that was awaited")

    def _rest(self) -> None:
        with suppress(CancelledError):  # it has stopped
            super()._rest()

    def release(self) -> None:
        super().release()
        self.settled()
        self._rest()


FULL = {"queue_capacity": 1}
ROWS: Rows = {
    "a cancelled wait for room withdraws the event": (
        "hold 0 | post 1 | aio 2 3 -> waiting 2 | cancel 2 -> cancelled True ; waiting 1 | release"
        " -> seen 0 1 3 ; later withdrawn True ; remaining 1 ; accepted 3",
        FULL,
    ),
    "a stop ends the waits of tasks": (
        "hold 0 | post 1 | aio 2 3 | begin stop | settled -> later False False ; rejected draining:2 | release", FULL,
    ),
    "a post that the policy rejects says so": (
        "hold 0 | post 1 | aio 2 -> later False ; rejected full:1", FULL | {"queue_full_policy": "reject"},
    ),
    "a post gives up after the queue's timeout": (
        "hold 0 | post 1 | aio 2 | settled -> later False ; rejected timeout:1", FULL | {"queue_full_timeout_s": 0.001},
    ),
    "a post to a stopped dispatcher is refused, and a command rejected": (
        "stop | aio 1 | submit 2 | settled -> later False RejectedExecutionError", {},
    ),
    "await_drained gives up after its timeout, and can be called again": (
        "hold 0 | drained 1 0.001 | drained 2 0 | drained 3 -> later False False ..."
        " | release -> later False False True",
        {},
    ),
    "await_drained without time says whether it is": ("drained 1 0 -> later True", {}),
    "await_drained of a dispatcher that stops ends": (
        "hold 0 | post 1 2 | drained 3 | halt 4 | release -> discarded 2", {"drain_events_on_stop": False},
    ),
    "a command that is cancelled before its turn does not run": (
        "hold 0 | submit 1 | cancel 1 | submit 2 | release -> seen 0 2 ; later withdrawn None", {},
    ),
    "a stop drains": ("hold 0 | post 1 2 | halt 3 -> later ... | release -> seen 0 1 2 ; later None", {}),
    "a stop whose task is cancelled goes on": (
        "hold 0 | post 1 | halt 2 | cancel 2 | release -> seen 0 1 ; later withdrawn", {},
    ),
    "a stop begins and ends with a hung handler": (
        "hold 0 | halt 1 | settled -> later None", {"drain_timeout_s": 0.02},
    ),
}  # fmt: skip


@pytest.mark.parametrize("is_logged", [False, True], ids=["memory", "write-ahead"])
@scenarios(ROWS)
def test_scenario(
    loop: asyncio.AbstractEventLoop, tmp_path: Path, script: str, options: dict[str, Any], is_logged: bool
) -> None:
    stage = AioStage(loop, journal=tmp_path / "journal" if is_logged else None, **options)
    try:
        play(stage, script)
    finally:
        stage.close()


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
                threads.append(started(lambda number=number: dispatcher.post(Numbered(number))))
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

    for thread in threads:
        ended(thread)
    assert handled == list(range(10))
    assert dispatcher.await_drained(TIMEOUT_S)
    assert dispatcher.core.queue.room.remaining() == 1


def test_a_task_that_is_cancelled_as_it_is_woken_wakes_the_next_producer(full: Make, gate: Gate) -> None:
    dispatcher = full()
    answers: list[bool] = []

    async def main() -> threading.Thread:
        task = asyncio.ensure_future(post(dispatcher, 2))
        while waiting(dispatcher) < 1:
            await turn()
        behind = started(lambda: answers.append(dispatcher.post(Posted(Job.STARTED, 3))))
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
    task = loop.create_task(post(dispatcher, 2))
    loop.run_until_complete(turn())
    behind = started(lambda: answers.append(dispatcher.post(Posted(Job.STARTED, 3))))
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
    behind = started(lambda: answers.append(dispatcher.post(Posted(Job.STARTED, 2))))
    until(lambda: waiting(dispatcher) == 2)
    gate.opened.set()
    until(lambda: dispatcher.core.queue.room.remaining() == 1)
    assert behind.is_alive()
    clock.advance(1000)
    ended(behind)

    assert answers == [True]


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


@settings(max_examples=tries(20), deadline=None)
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
        answers.extend([dispatcher.post(Numbered(first + each)) for each in range(count)])

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


def test_a_refused_post_leaves_no_cycle(full: Make) -> None:
    dispatcher = full(queue_full_policy="reject")
    gc.collect()
    gc.disable()
    try:
        event = Posted(Job.STARTED, 2)
        refused = weakref.ref(event)
        assert not run(aio.post(dispatcher, event))
        del event
        assert refused() is None
    finally:
        gc.enable()


def test_waits_that_gave_up_leave_nothing_behind(make: Make, gate: Gate) -> None:
    dispatcher = make(handler=gate)
    hold(dispatcher, gate)

    async def main() -> None:
        for _ in range(50):
            assert not await aio.await_drained(dispatcher, 0)

    run(main())

    assert len(dispatcher._drain.waiters) <= 1


def test_other_tasks_run_while_a_drained_dispatcher_is_awaited_again_and_again(make: Make) -> None:
    dispatcher = make(handler=lambda _: None)

    async def main() -> bool:
        other = asyncio.ensure_future(asyncio.sleep(0))
        for _ in range(10):
            assert await aio.await_drained(dispatcher)
        return other.done()

    assert run(main())


def test_submit_ends_as_its_command_does_on_the_handler_thread(make: Make) -> None:
    dispatcher = make()

    def fail() -> None:
        raise LookupError("lost")

    ran_on = run(aio.submit(dispatcher, threading.get_ident, "which thread, for %s", "a test"))
    with pytest.raises(LookupError, match="lost"):
        run(aio.submit(dispatcher, fail))

    assert ran_on == dispatcher._thread.ident
    assert dispatcher.state is ServiceState.STARTED


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()], ids=repr)
def test_a_stop_goes_on_where_no_thread_can_start(
    make: Make, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    dispatcher = make(handler=lambda _: None)
    dispatcher.post(Numbered())

    def cannot_start(_: threading.Thread) -> None:
        raise error

    async def main() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", cannot_start)
            await aio.stop(dispatcher)

    run(main())

    assert dispatcher.is_stopped()
    assert dispatcher.stats().handled == 1


@pytest.mark.parametrize("function", [aio.post, aio.ask])
def test_an_inline_dispatcher_is_named_with_what_to_do(function: Any) -> None:
    inline = InlineDispatcher(name="mine")

    with pytest.raises(TypeError, match=r"not <InlineDispatcher mine .* `await asyncio.to_thread\(dispatcher.post"):
        asyncio.run(function(inline, Numbered()))
