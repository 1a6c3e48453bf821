"""Async I/O over anything that can be iterated: order, laziness, failures, early ends, and chunks."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dispatcher.aio import RateLimit
from dispatcher.mailbox import RejectedExecutionError
from pipeline.streaming import (
    AsyncFunction,
    AsyncOperatorError,
    AsyncOptions,
    CallMetrics,
    CapturedError,
    ForkedWaitError,
    ResultCacheError,
    RetryStrategy,
    ordered_wait,
    unordered_wait,
)
from pipeline.streaming.elements import UnreadableValue

from ...kit import TIMEOUT_S, until
from ...kit.forked import forks, in_child
from ...kit.switching import switching_often
from .calls.harness import make_host, wait_in_chunks

BOTH = pytest.mark.parametrize("wait", [ordered_wait, unordered_wait])
TIMEOUT = 180.0
pytestmark = [pytest.mark.usefixtures("no_thread_is_left"), *forks]


async def double(value: int) -> list[int]:
    for _ in range(value * 7919 % 5):
        await asyncio.sleep(0)
    return [2 * value]


class Service(AsyncFunction[int, int]):
    """Counts its hooks and its calls."""

    def __init__(self) -> None:
        self.opened = self.closed = self.calls = 0

    async def open(self) -> None:
        self.opened += 1

    async def close(self) -> None:
        self.closed += 1

    async def async_invoke(self, value: int) -> list[int]:
        self.calls += 1
        await asyncio.sleep(0)
        return [2 * value]


class Endless(Service):
    async def async_invoke(self, value: int) -> list[int]:
        self.calls += 1
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]


class InputError(Exception):
    pass


def failing_after(count: int) -> Iterator[int]:
    yield from range(count)
    raise InputError("the input is broken")


# --- one by one ---


@BOTH
@pytest.mark.parametrize("count", [0, 1000])
def test_each_value_has_its_results_and_ordered_ones_come_in_the_order_of_the_values(wait: Any, count: int) -> None:
    found = list(wait(range(count), double, timeout=TIMEOUT))

    assert (found if wait is ordered_wait else sorted(found)) == [2 * value for value in range(count)]


def test_unordered_results_come_as_the_calls_end() -> None:
    async def meet(value: str) -> list[str]:
        if value == "first":
            await others_done.wait()
        return [value]

    others_done = asyncio.Event()
    results: Iterator[str] = unordered_wait(["first", "second", "third"], meet, timeout=TIMEOUT)

    assert {next(results), next(results)} == {"second", "third"}
    results.close()  # type: ignore[attr-defined]


@BOTH
def test_blocking_functions_run_on_a_pool(wait: Any) -> None:
    def thread(value: int) -> threading.Thread:
        return threading.current_thread()

    threads = set(wait(range(200), thread, timeout=TIMEOUT, pool_size=3))

    assert 1 <= len(threads) <= 3
    assert threading.current_thread() not in threads


@BOTH
def test_an_endless_input_is_read_as_results_are_taken(wait: Any) -> None:
    def values() -> Iterator[int]:
        for value in itertools.count():
            read.append(value)
            yield value

    read: list[int] = []
    results = wait(values(), double, timeout=TIMEOUT, capacity=10)

    taken = list(itertools.islice(results, 50))
    results.close()

    assert len(taken) == 50
    assert len(read) < 5000


def test_nothing_starts_before_the_first_result_is_asked_for() -> None:
    service = Service()

    results: Iterator[int] = ordered_wait(iter(lambda: pytest.fail("read"), 0), service, timeout=TIMEOUT)
    del results

    assert service.opened == 0


@BOTH
def test_a_loop_that_is_left_early_gives_up_the_calls_and_closes_the_function(wait: Any) -> None:
    class FirstOnly(Endless):
        async def async_invoke(self, value: int) -> list[int]:
            return [value] if value == 0 else await super().async_invoke(value)

    service = FirstOnly()
    for result in wait(range(100), service, timeout=TIMEOUT):
        assert result == 0
        break

    until(lambda: (service.opened, service.closed) == (1, 1), "the function's close")


# --- failures ---


class Refusing(Service):
    async def open(self) -> None:
        raise ConnectionError("no route to host")


class BlockingRefusing:
    closed = 0

    def open(self) -> None:
        raise ConnectionError("no route to host")

    def close(self) -> None:
        self.closed += 1

    def __call__(self, value: int) -> int:
        return value


@BOTH
@pytest.mark.parametrize("kind", [Refusing, BlockingRefusing])
def test_an_open_that_fails_is_raised_and_the_function_is_not_closed(wait: Any, kind: Any) -> None:
    function = kind()

    with pytest.raises(ConnectionError, match="no route to host"):
        list(wait(range(10), function, timeout=TIMEOUT))

    assert function.closed == 0


# --- options ---


@BOTH
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": 0}, "timeout is 0; it must be a positive, finite number of seconds"),
        ({"timeout": -1.0}, "timeout is -1.0"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"timeout": float("inf")}, "timeout is inf"),
        ({"capacity": 0}, "capacity is 0"),
        ({"metrics": "m"}, "metrics is 'm'; give a CallMetrics"),
        ({"function": 3}, "3 is not callable"),
    ],
    ids=str,
)
def test_what_is_not_possible_is_refused_at_once(wait: Any, options: dict[str, Any], message: str) -> None:
    """With metrics that cannot count, the iteration never ended: the error had no thread to go to."""
    given = {"function": double, "timeout": 1, **options}

    with pytest.raises((ValueError, TypeError), match=message):
        wait([1], **given)


@BOTH
def test_options_reach_the_operator(wait: Any) -> None:
    """Retries, shared calls, a rate limit, concurrency, a dead letter, counts."""
    attempts: dict[int, int] = {}

    async def flaky(value: int) -> list[int]:
        attempts[value] = attempts.get(value, 0) + 1
        await asyncio.sleep(0)
        if value == 13:
            raise KeyError("unlucky")
        if attempts[value] == 1 and value % 3 == 0:
            raise ValueError("busy")
        return [value]

    def values() -> Iterator[int]:
        yield from range(30)
        until(lambda: sum(attempts.values()) == 40, "the retries")  # there are none after the end

    letters: list[CapturedError] = []
    metrics = CallMetrics()
    results = list(
        wait(
            values(),
            flaky,
            timeout=TIMEOUT,
            retry=RetryStrategy.fixed_delay(1, 1, retry_on_exception=ValueError),
            rate_limit=RateLimit(100_000),
            concurrency=5,
            dedupe_by=lambda value: value,
            remember=3,
            on_error="capture",
            dead_letter=letters.append,
            metrics=metrics,
        )
    )

    assert sorted(results) == [value for value in range(30) if value != 13]
    assert [letter.input for letter in letters] == [13]
    assert (metrics.completed, metrics.retried, metrics.captured, metrics.in_flight) == (29, 10, 1, 0)


@BOTH
def test_the_last_values_are_retried_like_any_other(wait: Any) -> None:
    """All of these have been read, and the input has ended, before the first call comes back."""
    attempts: dict[int, int] = {}

    async def busy_twice(value: int) -> list[int]:
        attempts[value] = attempts.get(value, 0) + 1
        await asyncio.sleep(0)
        if attempts[value] <= 2:
            raise ValueError("busy")
        return [value]

    retry = RetryStrategy.fixed_delay(2, 1, retry_on_exception=ValueError)

    assert sorted(wait(range(10), busy_twice, timeout=TIMEOUT, retry=retry)) == list(range(10))


def test_one_call_inside_another() -> None:
    """Each has threads of its own."""
    inner: Iterator[int] = ordered_wait(range(100), double, timeout=TIMEOUT)

    assert list(ordered_wait(inner, double, timeout=TIMEOUT)) == [4 * value for value in range(100)]


# --- chunks ---


def settings(**options: Any) -> AsyncOptions:
    return AsyncOptions(**({"timeout_ms": 60_000} | options))


def test_calls_go_on_across_chunks_of_which_some_are_empty() -> None:
    """The first call ends when one of another chunk has begun."""

    class Meeting(AsyncFunction[int, int]):
        async def open(self) -> None:
            self.other = asyncio.Event()

        async def async_invoke(self, value: int) -> list[int]:
            if value == 0:
                await self.other.wait()
            else:
                self.other.set()
            return [value]

    assert list(wait_in_chunks([[], [0], [], [], [1], []], Meeting(), settings(), max_chunk=10)) == [[0, 1]]


@pytest.mark.parametrize("mode", ["ordered", "unordered"])
def test_results_come_with_the_numbers_of_their_values(mode: Any) -> None:
    async def several(value: int) -> list[int]:
        return [value] * value

    settings = AsyncOptions(timeout_ms=60_000, output_mode=mode, dedupe_by=lambda value: value)
    values = [(0, 10), (2, 11), (1, 12), (2, 13)]
    without_results: deque[int] = deque()

    chunks = list(wait_in_chunks([values], several, settings, without_results=without_results))

    pairs = sorted(pair for chunk in chunks for pair in chunk)
    assert pairs == [(11, 2), (11, 2), (12, 1), (13, 2), (13, 2)]
    assert without_results == deque([10])


@BOTH
def test_a_value_that_could_not_be_made_fails_without_a_call(wait: Any) -> None:
    unreadable = UnreadableValue("what is known", ValueError("no value"))
    service = Service()
    metrics = CallMetrics()

    results = list(
        wait([1, unreadable, 2], service, timeout=TIMEOUT, on_error="capture", metrics=metrics, dedupe_by=abs)
    )

    (captured,) = [result for result in results if isinstance(result, CapturedError)]
    assert (captured.input, captured.message, captured.error) == ("what is known", "no value", unreadable.error)
    assert (len(results), service.calls, metrics.calls, metrics.failed, metrics.captured) == (3, 2, 2, 1, 1)
    with pytest.raises(AsyncOperatorError, match="no value") as failed:
        list(wait([unreadable], service, timeout=TIMEOUT))
    assert failed.value.value == "what is known"


def test_few_chunks_are_read_ahead_on_the_caller_s_thread() -> None:
    """No more than the calls in flight, the results that wait, and one chunk ahead take in."""

    def chunks() -> Iterator[list[int]]:
        for number in itertools.count():
            assert threading.current_thread() is reader
            read.append(number)
            yield [number]

    reader = threading.current_thread()
    read: list[int] = []
    lists: Iterator[list[Any]] = wait_in_chunks(chunks(), double, settings(capacity=5), max_chunk=1)
    for _ in range(10):
        next(lists)

    assert len(read) <= 10 + 5 + 2 + 3
    lists.close()  # type: ignore[attr-defined]


def test_chunks_that_cannot_be_read_leave_no_thread_behind() -> None:
    """The task's thread had already started and was left running, which the fixture noticed."""
    with pytest.raises(TypeError, match="not iterable"):
        next(wait_in_chunks(3, double, settings()))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_chunk is 0"):
        wait_in_chunks([[1]], double, settings(), max_chunk=0)


@pytest.mark.parametrize("max_chunk", [1, 100])
def test_closing_early_ends_everything(max_chunk: int) -> None:
    service = Service()
    lists: Iterator[list[Any]] = wait_in_chunks(
        ([number] for number in itertools.count()), service, settings(), max_chunk=max_chunk
    )
    next(lists)

    lists.close()  # type: ignore[attr-defined]

    assert service.closed == 1


def test_a_host_keeps_running_from_one_iteration_to_the_next() -> None:
    service = Service()
    host = make_host(service)
    host.start()

    for _ in range(3):
        assert list(wait_in_chunks([[1], [2]], host, settings())) == [[2, 4]]

    assert (service.opened, service.closed) == (1, 0)
    assert host.stop(TIMEOUT_S)
    assert service.closed == 1


# --- under load ---


@pytest.mark.parametrize("mode", ["ordered", "unordered"])
@pytest.mark.parametrize("max_chunk", [1, 50])
def test_nothing_is_lost_or_doubled_when_threads_switch_often(mode: Any, max_chunk: int) -> None:
    with switching_often():
        chunks = (range(at, min(at + 37, 3000)) for at in range(0, 3000, 37))
        lists = wait_in_chunks(chunks, double, settings(output_mode=mode, capacity=50), max_chunk=max_chunk)
        values = [value for results in lists for value in results]

    assert (values if mode == "ordered" else sorted(values)) == [2 * value for value in range(3000)]


# --- coroutines that do what they should not ---


class Blocking(AsyncFunction[int, str]):
    """Blocks the loop in the call for 1 until that is late."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.calls: list[int] = []

    async def async_invoke(self, value: int) -> str:
        self.calls.append(value)
        if value == 1:
            assert self.go_on.wait(TIMEOUT_S)
        return "in time"

    def timeout(self, value: int) -> list[str]:
        self.go_on.set()
        return ["late"]


@BOTH
@pytest.mark.parametrize(
    "bounds", [{"timeout": 0.05}, {"timeout": TIMEOUT, "deadline": 0.05}], ids=["timeout", "deadline"]
)
def test_a_call_that_blocks_the_loop_is_late_all_the_same(wait: Any, bounds: Any) -> None:
    """Its timer is the loop's own, which did not fire."""

    assert list(wait([1], Blocking(), **bounds)) == ["late"]
    assert len(list(wait(range(10), Blocking(), capacity=1, **bounds))) == 10  # the loop goes on


def test_a_blocked_loop_is_late_for_chunks_and_a_host_that_is_shared() -> None:
    host = make_host(Blocking())
    host.start()

    assert list(wait_in_chunks([[1]], host, settings(timeout_ms=50))) == [["late"]]
    assert list(wait_in_chunks([[2]], host, settings())) == [["in time"]]
    assert host.stop(TIMEOUT_S)


@BOTH
def test_a_loop_that_is_blocked_for_a_while_without_a_timeout_costs_nothing(wait: Any) -> None:
    async def block(value: int) -> list[int]:
        if value % 10 == 0:
            assert read_on.wait(TIMEOUT_S)
        return [value]

    def values() -> Iterator[int]:
        yield from range(50)
        read_on.set()
        yield from range(50, 100)

    read_on = threading.Event()

    assert sorted(wait(values(), block, timeout=TIMEOUT)) == list(range(100))


@BOTH
def test_a_call_that_forks_costs_no_other_value(wait: Any) -> None:
    async def call(value: int) -> list[int]:
        await asyncio.sleep(0)
        if value % 50 == 7:
            assert in_child(lambda: "forked") == "forked"
        return [value]

    assert list(wait(range(200), call, timeout=TIMEOUT, capacity=1)) == list(range(200))


@BOTH
@pytest.mark.parametrize("place", ["a call", "a function among the options", "a thread of the pool"])
def test_the_garbage_collector_may_drop_an_iterator_on_its_own_loop(wait: Any, place: str) -> None:
    """The loop's thread waited for itself."""

    def collect(value: Any) -> Any:
        if value == 0:
            assert has_read.wait(TIMEOUT_S)
        else:
            assert is_dropped.wait(TIMEOUT_S)
            gc.collect()
            has_collected.set()
        return value

    async def call(value: int) -> int:
        if place == "a call" or value == 0:
            return collect(value)  # type: ignore[no-any-return]
        raise ValueError(value)

    def values() -> Iterator[int]:
        yield 0
        has_read.set()
        yield 1

    has_read, is_dropped, has_collected = threading.Event(), threading.Event(), threading.Event()
    function = collect if place == "a thread of the pool" else call
    results = wait(values(), function, timeout=TIMEOUT, capacity=1, on_error=collect)
    assert next(results) == 0
    cycle: list[Any] = [results]
    cycle.append(cycle)
    del results
    gc.disable()
    try:
        del cycle
        is_dropped.set()
        assert has_collected.wait(TIMEOUT_S)
    finally:
        gc.enable()


def test_a_host_that_is_stopped_amid_the_values_ends_the_iteration() -> None:
    def values() -> Iterator[list[int]]:
        yield [1]
        assert host.stop(TIMEOUT_S)
        yield [2]

    host = make_host(double)
    host.start()

    with pytest.raises((AsyncOperatorError, RejectedExecutionError), match="the call host has stopped"):
        list(wait_in_chunks(values(), host, settings()))


@BOTH
@pytest.mark.parametrize("function", [double, lambda value: 2 * value], ids=["loop", "pool"])
def test_a_thread_that_cannot_start_is_raised_and_leaves_nothing_behind(
    wait: Any, function: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for the thread's end hid the error."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    results = wait(range(10), function, timeout=TIMEOUT)
    monkeypatch.setattr(threading.Thread, "start", refuse)

    with pytest.raises(RuntimeError, match="can't start new thread") as failure:
        next(results)

    assert failure.value.__context__ is None


def test_a_cache_that_failed_for_an_earlier_iteration_ends_the_next_one_at_once() -> None:
    """Its mail came before there was an engine, and the iteration went on."""

    class FailedSession:
        key_of = staticmethod(lambda value: value)

        def on_failure(self, listener: Callable[[ResultCacheError], None]) -> None:
            listener(ResultCacheError("the cache has failed"))
            assert host.loop is not None
            has_turned = threading.Event()
            host.loop.call_soon_threadsafe(has_turned.set)
            has_turned.wait(0.2)  # the loop's thread may wait for this one

        def forget_listener(self, listener: Callable[[ResultCacheError], None]) -> None: ...

        def submit(self, request: Any) -> None: ...

    host: Any = make_host(double)
    host.start()
    host.result_session = FailedSession()

    with pytest.raises(ResultCacheError, match="the cache has failed"):
        next(wait_in_chunks(([number] for number in itertools.count()), host, settings()))

    assert host.stop(TIMEOUT_S)


# --- inputs that fail, and forks ---


@BOTH
@pytest.mark.parametrize("count", [0, 1, 7, 1000])
@pytest.mark.parametrize("read_ahead", [{}, {"rate_limit": RateLimit(1e6, burst=1000)}])
def test_if_the_input_fails_all_results_before_it_come_first(wait: Any, count: int, read_ahead: Any) -> None:
    """None of them came."""
    service = Service()
    results = wait(failing_after(count), service, timeout=TIMEOUT, **read_ahead)

    taken: deque[int] = deque()
    with pytest.raises(InputError, match="the input is broken"):
        taken.extend(results)

    assert sorted(taken) == [2 * value for value in range(count)]
    assert list(results) == []
    assert (service.opened, service.closed) == (1, 1)


@pytest.mark.parametrize("values", [lambda: failing_after(4), itertools.count], ids=["fails", "goes on"])
def test_a_call_that_fails_is_raised_after_the_results_before_it(values: Callable[[], Iterator[int]]) -> None:
    """Whatever the input does. The function is closed."""

    class Failing(Service):
        async def async_invoke(self, value: int) -> list[int]:
            if value == 2:
                raise ValueError("two")
            return [value]

    service = Failing()
    results = ordered_wait(values(), service, timeout=TIMEOUT)

    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(AsyncOperatorError, match="two") as failure:
        next(results)
    assert (failure.value.value, type(failure.value.__cause__)) == (2, ValueError)
    assert (service.opened, service.closed) == (1, 1)


def test_an_input_that_is_interrupted_ends_at_once() -> None:
    def values() -> Iterator[int]:
        yield 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(ordered_wait(values(), Endless(), timeout=TIMEOUT))


@BOTH
@pytest.mark.parametrize("function", [double, Service(), lambda value: [2 * value]], ids=["loop", "hooks", "pool"])
def test_an_iterator_of_the_parent_raises_in_a_forked_child(wait: Any, function: Any) -> None:
    """It hung: the threads that make its results are not there."""
    results = wait(range(1000), function, timeout=TIMEOUT)
    first = next(results)
    unused = wait(range(10), function, timeout=TIMEOUT)

    def check() -> None:
        with pytest.raises(ForkedWaitError, match="Call ordered_wait or unordered_wait in each process"):
            next(results)
        results.close()
        assert sorted(unused) == [2 * value for value in range(10)]

    assert in_child(check) is None
    assert in_child(results.close) is None  # as if it were dropped there

    assert sorted([first, *results]) == [2 * value for value in range(1000)]
