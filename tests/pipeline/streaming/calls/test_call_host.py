"""Hosts: where calls run, how their answers come back, hooks, cancellation, and the end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from dispatcher.mailbox import MailboxExecutor, RejectedExecutionError, TaskMailbox
from pipeline.streaming import AsyncFunction, ordered_wait

from ....kit import TIMEOUT_S, in_threads, until
from ....kit.forked import forks, in_child
from ....kit.switching import switching_often
from .harness import AnswerBox, CallHost, HandFunction, Harness, HostCall, Parking, make_host

pytestmark = [pytest.mark.usefixtures("no_thread_is_left"), *forks]


class Desk:
    """Submits calls to a host from the test's thread, which is the mailbox thread, and collects the answers."""

    def __init__(self, host: CallHost) -> None:
        self.host: Any = host
        self.mailbox = TaskMailbox()
        self.mailbox.parking.lock = Parking(self.mailbox, None)  # type: ignore[assignment]
        self.executor = MailboxExecutor(self.mailbox, 0)
        self.box = AnswerBox(self.executor, self._fetch)
        self.answered: list[HostCall] = []
        self.mails = 0

    def submit(self, *values: Any) -> list[HostCall]:
        calls = [HostCall(value, self.box) for value in values]
        self.host.submit(calls)
        return calls

    def wait_for(self, number: int) -> list[HostCall]:
        """The first answers, once there are that many."""
        while len(self.answered) < number:
            self.executor.yield_()
        return self.answered

    def results(self, *values: Any) -> list[Any]:
        """What the function gives for the values, in their order; its errors as they are."""
        before = len(self.answered)
        calls = self.submit(*values)
        self.wait_for(before + len(calls))
        return [call.results if call.error is None else call.error for call in calls]

    def fetched(self) -> list[HostCall]:
        """The answers so far."""
        while self.executor.try_yield():
            pass
        return self.answered

    def _fetch(self) -> None:
        self.mails += 1
        self.box.is_notified = False
        while self.box.answers:
            self.answered.append(self.box.answers.popleft())


OpenDesk = Callable[..., Desk]


@pytest.fixture
def desk() -> Iterator[OpenDesk]:
    """Opens desks at hosts of functions, and stops the hosts at the end."""
    hosts: list[CallHost] = []

    def open_desk(function: Any, **options: Any) -> Desk:
        host = make_host(function, **options)
        hosts.append(host)
        host.start()
        return Desk(host)

    yield open_desk
    for host in hosts:
        assert host.stop(TIMEOUT_S)


async def double(value: int) -> list[int]:
    await asyncio.sleep(0)
    return [2 * value]


def blocking_double(value: int) -> list[int]:
    return [2 * value]


# --- threads ---


@pytest.mark.parametrize("pool_size", [2, 3, 4])
def test_answer_is_announced_although_all_threads_go_on_with_calls_that_hang(desk: OpenDesk, pool_size: int) -> None:
    """A thread leaves its announcement to one that is about to run, which must not forget it."""

    def hang(value: int) -> list[int]:
        assert value == 0 or released.wait(TIMEOUT_S)
        return [value]

    released = threading.Event()
    opened = desk(hang, pool_size=pool_size)
    opened.submit(*range(2 * pool_size))

    assert opened.wait_for(1)[0].value == 0
    released.set()
    opened.wait_for(2 * pool_size)


def test_a_pool_starts_no_threads_that_it_does_not_need(desk: OpenDesk) -> None:
    opened = desk(blocking_double, pool_size=50)
    before = threading.active_count()

    for value in range(20):
        opened.results(value)

    assert threading.active_count() - before <= 2


@pytest.mark.parametrize("earlier", [0, 1], ids=["a new worker", "an idle worker"])
def test_call_submitted_on_the_loop_is_made_although_its_worker_is_cancelled_first(
    desk: OpenDesk, earlier: int
) -> None:
    def submit_and_cancel() -> None:
        opened.submit(7)
        for task in asyncio.all_tasks(loop):
            task.cancel()

    opened = desk(double)
    loop = opened.host.loop
    opened.results(*range(earlier))

    loop.call_soon_threadsafe(submit_and_cancel)

    assert opened.wait_for(earlier + 1)[-1].results == [14]


def test_a_call_that_never_waits_does_not_keep_others_from_their_turn(desk: OpenDesk) -> None:
    """A function that answers from a cache, with thousands of calls queued, and one that waits for I/O."""

    async def sometimes_wait(value: int) -> list[int]:
        if value == 0:
            assert all_are_queued.wait(TIMEOUT_S)
            for _ in range(5):
                await asyncio.sleep(0)
            ended_before.append(len(ended))
        ended.append(value)
        return [value]

    ended: list[int] = []
    ended_before: list[int] = []
    all_are_queued = threading.Event()
    opened = desk(sometimes_wait)
    opened.submit(*range(5000))
    all_are_queued.set()
    opened.wait_for(5000)

    assert ended_before[0] < 5000 - 1


# --- answers ---


def test_one_mail_tells_of_all_answers_not_yet_fetched(desk: OpenDesk) -> None:
    function = HandFunction()
    opened = desk(function)
    opened.submit(*range(100))
    until(lambda: len(function.calls) == 100, "100 calls")

    for call in list(function.calls):
        call.complete(call.value)
    until(lambda: len(opened.box.answers) == 100, "100 answers")
    opened.wait_for(100)

    assert opened.mails == 1
    assert opened.mailbox.size() == 0


def test_a_host_keeps_no_value_that_was_answered(desk: OpenDesk) -> None:
    """Else a big row lives until the next one comes, in each of many workers."""

    class Row:
        alive = 0

        def __init__(self) -> None:
            Row.alive += 1

        def __del__(self) -> None:
            Row.alive -= 1

    async def wait(row: Row) -> list[int]:
        await asyncio.sleep(0)
        return []

    def block(row: Row) -> list[int]:
        return []

    for function in (wait, block):
        opened = desk(function, pool_size=2)
        opened.results(*(Row() for _ in range(5)))
        opened.answered.clear()

        until(lambda: gc.collect() is not None and Row.alive == 0, "the rows' end")


# --- cancellation ---


@pytest.mark.parametrize("max_calls", [1, None], ids=["one worker", "several"])
@pytest.mark.parametrize("is_kept", [False, True], ids=["raised", "kept by the call"])
def test_a_worker_whose_call_was_cancelled_makes_the_next_ones(
    desk: OpenDesk, is_kept: bool, max_calls: int | None
) -> None:
    """With the cancellation undone: else the next timeout or TaskGroup of a function would take it for its own."""

    async def cancellations(value: int) -> list[int]:
        if value < 0:
            started.set()
            with contextlib.suppress(asyncio.CancelledError if is_kept else ()):
                await wait_for_ever()
        await asyncio.sleep(0)
        return [this_task().cancelling()]

    started = threading.Event()
    opened = desk(cancellations, max_calls=max_calls)
    for _ in range(5):
        started.clear()
        [call] = opened.submit(-1)
        assert started.wait(TIMEOUT_S)
        opened.host.cancel(call)
        until(lambda call=call: not is_kept or call in opened.fetched(), "the answer of a call that goes on")  # type: ignore[misc]

    calls = opened.submit(*range(20))
    while not all(call.ended_ns for call in calls):
        opened.wait_for(len(opened.answered) + 1)

    assert [call.results for call in calls] == [[0]] * 20


@pytest.mark.parametrize("is_blocking", [True, False], ids=["thread", "loop"])
def test_a_cancelled_call_that_waits_for_a_thread_or_the_loop_is_never_made(desk: OpenDesk, is_blocking: bool) -> None:
    def block(value: str) -> list[str]:
        made.append(value)
        if value == "a":
            started.set()
            assert go_on.wait(TIMEOUT_S)
        return [value]

    async def block_the_loop(value: str) -> list[str]:
        return block(value)

    made: list[str] = []
    started, go_on = threading.Event(), threading.Event()
    opened = desk(block if is_blocking else block_the_loop, pool_size=1)
    opened.submit("a")
    assert started.wait(TIMEOUT_S)
    second, _ = opened.submit("b", "c")
    opened.host.cancel(second)
    go_on.set()

    opened.wait_for(2)

    assert made == ["a", "c"]


def test_a_loop_without_room_for_another_call_rests(desk: OpenDesk) -> None:
    """It looked for room in each of its turns, all the time."""

    async def slow(value: int) -> list[int]:
        begun.release()
        await asyncio.get_running_loop().run_in_executor(None, go_on.wait, TIMEOUT_S)
        return [value]

    begun, go_on = threading.Semaphore(0), threading.Event()
    opened = desk(slow, max_calls=2)
    calls = opened.submit(1, 2, 3, 4)
    assert begun.acquire(timeout=TIMEOUT_S)
    assert begun.acquire(timeout=TIMEOUT_S)

    until(lambda: opened.host._is_resting, "the rest")
    go_on.set()
    opened.wait_for(4)

    assert opened.results(5) == [[5]]
    assert [call.results for call in calls] == [[1], [2], [3], [4]]


# --- hooks ---


class BlockingHooks:
    """A blocking function with hooks."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.threads: set[threading.Thread] = set()  # of the hooks, and of a coroutine's calls

    def note(self, what: str) -> None:
        self.log.append(what)
        self.threads.add(threading.current_thread())

    def open(self) -> Any:
        self.note("open")

    def close(self) -> Any:
        self.note("close")

    def __call__(self, value: int) -> list[int]:
        self.log.append("call")
        return [value]


class Hooks(BlockingHooks, AsyncFunction[int, int]):  # type: ignore[misc]
    async def async_invoke(self, value: int) -> list[int]:
        self.note("call")
        return [value]


class AsyncHooks(Hooks):
    async def open(self) -> None:
        await asyncio.sleep(0)
        self.note("open")

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.note("close")
        raise ConnectionError("reset by peer")


@pytest.mark.parametrize("kind", [Hooks, AsyncHooks, BlockingHooks])
def test_hooks_are_called_once_around_all_calls(
    desk: OpenDesk, kind: type[BlockingHooks], caplog: pytest.LogCaptureFixture
) -> None:
    """On the thread of a loop. What `close` raises is logged."""
    function = kind()
    opened = desk(function)
    assert function.log == ["open"]
    with pytest.raises(RuntimeError, match="already started"):
        opened.host.start()
    opened.results(1, 2)

    for _ in range(2):
        assert opened.host.stop(TIMEOUT_S)

    assert function.log == ["open", "call", "call", "close"]
    assert kind is BlockingHooks or (len(function.threads) == 1 and threading.current_thread() not in function.threads)
    assert ("reset by peer" in caplog.text) == (kind is AsyncHooks)
    [error] = opened.results(3)
    assert isinstance(error, RejectedExecutionError)
    assert "has stopped" in str(error)


@pytest.mark.parametrize("kind", [AsyncHooks, BlockingHooks])
def test_a_function_that_was_never_opened_is_not_closed(kind: type[BlockingHooks]) -> None:
    function = kind()

    assert make_host(function).stop(TIMEOUT_S)

    assert function.log == []


# --- the end ---


@pytest.mark.parametrize(
    ("where", "said"),
    [("thread", "1 call did not return"), ("loop", "did not end"), ("close", "did not end")],
)
def test_stop_says_what_hangs(where: str, said: str, caplog: pytest.LogCaptureFixture) -> None:
    def hang(value: int) -> list[int]:
        started.set()
        if where != "close":
            go_on.wait(TIMEOUT_S)
        return [value]

    class OnLoop(AsyncFunction[int, int]):
        async def async_invoke(self, value: int) -> list[int]:
            return hang(value)

        async def close(self) -> None:
            if where == "close":
                go_on.wait(TIMEOUT_S)

    started, go_on = threading.Event(), threading.Event()
    host = make_host(hang if where == "thread" else OnLoop())
    host.start()
    Desk(host).submit(1)
    assert started.wait(TIMEOUT_S)

    assert not host.stop(timeout=0.01)

    assert said in caplog.text
    go_on.set()
    assert where == "thread" or host.stop(TIMEOUT_S)


@pytest.mark.parametrize("when_cancelled", ["raises", "cancels all tasks", "returns a result"])
@pytest.mark.parametrize("max_calls", [1, None])
def test_the_stop_ends_the_calls_in_flight_and_refuses_those_that_wait_before_it_closes(
    desk: OpenDesk, when_cancelled: str, max_calls: int | None
) -> None:
    """Without a timeout, an operator would wait for them for ever."""

    class Waiting(AsyncFunction[int, int]):
        async def async_invoke(self, value: int) -> list[int]:
            started.set()
            try:
                await wait_for_ever()
            except asyncio.CancelledError:
                log.append("call given up")
                if when_cancelled == "cancels all tasks":
                    for task in asyncio.all_tasks():
                        task.cancel()
                if when_cancelled != "returns a result":
                    raise
            return [value]

        async def close(self) -> None:
            log.append("close")

    started = threading.Event()
    log: list[str] = []
    opened = desk(Waiting(), max_calls=max_calls)
    opened.submit(1, 2)
    assert started.wait(TIMEOUT_S)

    assert opened.host.stop(TIMEOUT_S)

    kinds = {type(call.error) for call in opened.wait_for(2)}
    assert when_cancelled == "returns a result" or kinds == {RejectedExecutionError}
    assert log[0] == "call given up"
    assert when_cancelled == "cancels all tasks" or log[-1] == "close"


# --- what a function may do to its task and its loop ---


async def wait_for_ever() -> None:
    await asyncio.get_running_loop().create_future()


def this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def cancel_at_once() -> None:
    this_task().cancel()


async def cancel_and_catch() -> None:
    this_task().cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await wait_for_ever()


async def cancel_next_turn() -> None:
    asyncio.get_running_loop().call_soon(this_task().cancel)


async def cancel_from_a_task_left_behind() -> None:
    async def leave(task: asyncio.Task[Any]) -> None:
        await asyncio.sleep(0)
        task.cancel()

    left_behind.append(asyncio.ensure_future(leave(this_task())))


async def cancel_all_tasks() -> None:
    for task in asyncio.all_tasks():
        task.cancel()


async def cancel_all_tasks_soon() -> None:
    def cancel() -> None:
        for task in asyncio.all_tasks(loop):
            task.cancel()

    loop = asyncio.get_running_loop()
    for _ in range(3):
        loop.call_soon(cancel)


async def stop_the_loop() -> None:
    asyncio.get_running_loop().stop()


async def close_the_loop() -> None:
    asyncio.get_running_loop().close()


async def run_another_loop() -> None:
    coroutine = asyncio.sleep(0)
    try:
        asyncio.run(coroutine)
    finally:
        coroutine.close()


async def break_the_exception_handler() -> None:
    def fail(*_: object) -> None:
        raise SystemExit(3)

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(fail)
    loop.call_soon(lambda: 1 / 0)


async def set_a_task_factory() -> None:
    def fail(*_: object, **__: object) -> Any:
        raise RuntimeError("no tasks")

    asyncio.get_running_loop().set_task_factory(fail)


async def exit_in_a_callback() -> None:
    asyncio.get_running_loop().call_soon(sys.exit, 1)


async def exit_in_a_task() -> None:
    async def leave() -> None:
        raise SystemExit(1)

    left_behind.append(asyncio.ensure_future(leave()))
    await asyncio.sleep(0)


def raising(error: BaseException) -> Callable[[], Any]:
    async def fail() -> None:
        raise error

    fail.__name__ = f"raise_{type(error).__name__}"
    return fail


left_behind: list[asyncio.Future[Any]] = []

ODD = [
    *(cancel_at_once, cancel_and_catch, cancel_next_turn, cancel_from_a_task_left_behind, cancel_all_tasks),
    *(cancel_all_tasks_soon, stop_the_loop, close_the_loop, run_another_loop, break_the_exception_handler),
    *(set_a_task_factory, exit_in_a_callback, exit_in_a_task),
    *map(raising, (KeyboardInterrupt(), SystemExit(2), GeneratorExit(), asyncio.CancelledError(), BaseException())),
]


@pytest.mark.parametrize("max_calls", [1, 100])
@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd.__name__)
def test_whatever_a_function_does_to_its_task_or_loop_later_calls_are_made(
    desk: OpenDesk, odd: Callable[[], Any], max_calls: int
) -> None:
    """A cancelled worker ended, or left the one who would wake it with an error: no later call was made, ever."""

    async def call(value: int) -> list[int]:
        if value < 0:
            await odd()
        else:
            await asyncio.sleep(0)
        return [value]

    opened = desk(call, max_calls=max_calls)
    opened.results(*range(5))  # several workers, that are idle then
    for _ in range(3):
        [call_] = opened.submit(-1)
        until(lambda call_=call_: call_ in opened.fetched(), "the odd call's answer")  # type: ignore[misc]

        answers = opened.results(*range(10))

        if odd is not cancel_all_tasks_soon:  # which ends other calls on purpose
            assert answers == [[value] for value in range(10)]
        assert opened.results(*range(3)) == [[0], [1], [2]]
    for task in left_behind:
        if task.done() and not task.cancelled():
            task.exception()
    left_behind.clear()


def test_a_timer_that_cancels_its_call_too_late_hits_no_other_call(desk: OpenDesk) -> None:
    """A timeout made by hand and not taken back; it fires while another call runs, and again while none does."""

    async def call(value: int) -> list[int]:
        if value == 0:
            cancels.append(this_task().cancel)
        else:
            for cancel in cancels:
                asyncio.get_running_loop().call_soon(cancel)
            for _ in range(3):
                await asyncio.sleep(0)
            assert not this_task().cancelling()
        return [value]

    cancels: list[Callable[[], Any]] = []
    opened = desk(call, max_calls=1)

    assert opened.results(0, 1, 2, 0, 3) == [[0], [1], [2], [0], [3]]


def test_a_worker_goes_on_with_the_next_call_while_nothing_refers_to_its_task(desk: OpenDesk) -> None:
    """Starting a task for each call would cost more than all else."""

    async def call(value: int) -> list[int]:
        tasks.append(id(this_task()))
        async with asyncio.timeout(TIMEOUT_S), lock:
            await asyncio.wait_for(asyncio.sleep(0), TIMEOUT_S)
        return [value]

    tasks: list[int] = []
    lock = asyncio.Lock()
    opened = desk(call, max_calls=1)
    for value in range(20):
        assert opened.results(value) == [[value]]

    assert len(set(tasks)) == 1


@pytest.mark.parametrize("function", [double, blocking_double])
def test_a_host_of_the_parent_refuses_calls_in_a_forked_child(desk: OpenDesk, function: Any) -> None:
    opened = desk(function)
    opened.results(1)
    unused = make_host(function)

    def check() -> None:
        [error] = opened.results(2)
        assert "forked from" in str(error)
        assert opened.host.has_ended
        assert opened.host.stop(TIMEOUT_S)
        unused.start()
        assert Desk(unused).results(3) == [[6]]

    assert in_child(check) is None
    assert opened.results(4) == [[8]]


def test_tasks_that_a_function_left_behind_end_with_the_host() -> None:
    """As asyncio.run does it; else Python complains of tasks destroyed while they were pending."""

    async def leave_behind(value: int) -> list[int]:
        tasks.append(asyncio.create_task(background()))
        await asyncio.sleep(0)
        return [value]

    async def background() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(1)

    tasks: list[asyncio.Task[None]] = []
    ended: list[int] = []
    host = make_host(leave_behind)
    host.start()
    Desk(host).results(1)

    with warnings.catch_warnings(record=True):
        assert host.stop(TIMEOUT_S)

    assert ended == [1]
    assert all(task.done() for task in tasks)


def test_a_host_serves_several_operators_and_one_that_closes_gives_up_its_own_calls_only() -> None:
    function = HandFunction()
    host = make_host(function)
    host.start()
    with Harness(host) as staying:
        with Harness(host) as leaving:
            leaving.process("a")
            staying.process("b")
            until(lambda: len(function.calls) == 2, "two calls")
        calls = {call.value: call for call in function.calls}
        until(calls["a"].is_cancelled, "the cancellation")
        with Harness(host) as third:
            third.process("c")
            until(lambda: len(function.calls) == 3, "the third call")
            for value, call in (("b", calls["b"]), ("c", function.calls[2])):
                call.complete(value.upper())

            third.operator.end_input()
            staying.operator.end_input()

            assert (staying.values(), third.values()) == (["B"], ["C"])
    assert function.closed == 0
    assert host.stop(TIMEOUT_S)
    assert (function.opened, function.closed) == (1, 1)


# --- under load ---


@pytest.mark.parametrize("blocking", [False, True])
def test_every_call_is_answered_once_when_many_threads_submit(desk: OpenDesk, blocking: bool) -> None:
    async def wait(value: int) -> list[int]:
        for _ in range(value % 4):
            await asyncio.sleep(0)
        return [value]

    def block(value: int) -> list[int]:
        return [value]

    opened = desk(block if blocking else wait, pool_size=4)
    with switching_often():
        in_threads(*(functools.partial(opened.submit, *range(part, 2000, 4)) for part in range(4)))
        answers = opened.wait_for(2000)

    assert Counter(call.value for call in answers) == Counter(range(2000))
    assert all(call.results == [call.value] for call in answers)


def test_own_retries_of_the_function_are_given_to_one_operator_each() -> None:
    class Repeating(HandFunction):
        repeated = 5  # for an earlier host

        def own_retries(self) -> int:
            return self.repeated

    function = Repeating()
    host = make_host(function)
    before = host.take_own_retries()

    function.repeated += 3

    assert (before, host.has_own_retries) == (0, True)
    assert [host.take_own_retries() for _ in range(2)] == [3, 0]


def test_own_retries_that_tell_no_number_are_refused_at_once() -> None:
    class Repeating(HandFunction):
        own_retries = Mock()

    with pytest.raises(ValueError, match=r"Repeating: own_retries\(\) is <Mock .*; it must be a whole number"):
        make_host(Repeating())


def test_own_retries_that_fail_count_no_more_and_the_calls_go_on(caplog: pytest.LogCaptureFixture) -> None:
    """The iteration never ended: the end of its engine asked for the number again, and failed."""

    class Repeating(AsyncFunction[int, int]):
        asked = 0

        def own_retries(self) -> int:
            self.asked += 1
            return 1 // (self.asked % 2)

        async def async_invoke(self, value: int) -> int:
            return value

    assert list(ordered_wait([1, 2], Repeating(), timeout=TIMEOUT_S)) == [1, 2]
    assert [record.getMessage() for record in caplog.records] == [
        "test_own_retries_that_fail_count_no_more_and_the_calls_go_on.<locals>.Repeating: own_retries() failed, and "
        "counts no more"
    ]
