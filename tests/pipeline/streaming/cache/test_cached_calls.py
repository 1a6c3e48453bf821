"""Calls through a cache: which are made, by the service's own count."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import subprocess
import sys
import urllib.error
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dispatcher.aio import RateLimit
from pipeline.streaming import (
    AsyncFunction,
    AsyncOperatorError,
    CallMetrics,
    CapturedError,
    ResultCache,
    ResultCacheError,
    RetryStrategy,
    SqliteResults,
    UnknownOutcomeError,
    ordered_wait,
    unordered_wait,
)
from pipeline.streaming.cache.cached_function import cached_function

from ....kit import in_threads, until
from ...counting_server import CountingServer, ask

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("no_thread_is_left")]

TIMEOUT = 60.0
JOB = Path(__file__).with_name("cached_job.py")


@pytest.fixture
def cache(tmp_path: Path) -> Callable[..., SqliteResults]:
    return lambda **options: SqliteResults(tmp_path / "results.db", **{"name": "ask", **options})


def done(cache: ResultCache, *keys: int) -> bool:
    """Whether there are results of all these keys."""
    key_of = cache.keys_of("ask", "")
    with closing(cache.connect("")) as store:
        return all(entry.state == 1 for entry in store.read([key_of(key).digest for key in keys]).values())


class Asks(AsyncFunction[int, int]):
    """The service, asked from a loop."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def async_invoke(self, key: int) -> list[int]:
        return [await asyncio.to_thread(ask, self.url, key)]


class AsksForMany(AsyncFunction[int, int]):
    """The service, asked for many keys in one call."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.batches: list[list[int]] = []

    async def async_invoke_batch(self, keys: list[int]) -> list[list[int] | Exception]:
        self.batches.append(keys)
        return [await self.answer(key) for key in keys]

    async def answer(self, key: int) -> list[int] | Exception:
        try:
            return [await asyncio.to_thread(ask, self.url, key)]
        except urllib.error.HTTPError as error:
            return error


FORMS: list[Callable[[str], Any]] = [Asks, AsksForMany, lambda url: partial(ask, url)]
EACH_FORM = pytest.mark.parametrize("form", FORMS, ids=["coroutine", "batch", "blocking"])


# --- a job that runs again ---


@EACH_FORM
@pytest.mark.parametrize("wait", [ordered_wait, unordered_wait])
def test_a_job_that_runs_again_pays_for_new_rows_only(
    server: CountingServer, cache: Callable[..., SqliteResults], form: Callable[[str], Any], wait: Any
) -> None:
    first = list(wait(range(60), form(server.url), timeout=TIMEOUT, cache=cache()))
    metrics = CallMetrics()

    again = list(wait(range(70), form(server.url), timeout=TIMEOUT, cache=cache(), metrics=metrics))

    assert server.calls == {str(key): 1 for key in range(70)}
    assert sorted(first) == [2 * key for key in range(60)]
    assert sorted(again) == [2 * key for key in range(70)]
    assert (metrics.calls, metrics.remembered, metrics.completed, metrics.unknown) == (10, 60, 70, 0)
    if wait is ordered_wait:
        assert again == sorted(again)


def test_what_the_cache_has_waits_for_no_limit(server: CountingServer, cache: Callable[..., SqliteResults]) -> None:
    list(ordered_wait(range(50), Asks(server.url), timeout=TIMEOUT, cache=cache()))

    # One call in 28 hours.
    limit = RateLimit(0.00001)
    again = list(ordered_wait(range(50), Asks(server.url), timeout=TIMEOUT, cache=cache(), rate_limit=limit))

    assert again == [2 * key for key in range(50)]


@EACH_FORM
def test_records_of_one_key_share_a_call(
    server: CountingServer, cache: Callable[..., SqliteResults], form: Callable[[str], Any]
) -> None:
    found = list(ordered_wait([1, 2, 1, 1, 2, 3], form(server.url), timeout=TIMEOUT, cache=cache()))

    assert found == [2, 4, 2, 2, 4, 6]
    assert server.calls == {"1": 1, "2": 1, "3": 1}


def of_two_jobs(
    server: CountingServer,
    cache: Callable[..., SqliteResults],
    form: Callable[[str], Any],
    *keys: range,
    **options: Any,
) -> tuple[list[list[int]], list[CallMetrics]]:
    """The results and the counts of two jobs. No call is answered before both jobs wait for all of theirs."""
    server.hold_from(0)
    found: list[list[int]] = [[], []]
    metrics = [CallMetrics(), CallMetrics()]

    def run(place: int) -> None:
        counts = metrics[place]
        found[place] = list(
            ordered_wait(keys[place], form(server.url), timeout=TIMEOUT, cache=cache(), metrics=counts, **options)
        )

    def release() -> None:
        most = len(keys[0])
        until(lambda: server.held and all(each.in_flight == most for each in metrics), "the calls of both jobs")
        server.release()

    in_threads(partial(run, 0), partial(run, 1), release)
    return found, metrics


@EACH_FORM
def test_two_jobs_at_the_same_time_make_each_call_once_and_count_it_once(
    server: CountingServer, cache: Callable[..., SqliteResults], form: Callable[[str], Any]
) -> None:
    """The job that got the results of the other's call counted a call, too."""
    found, metrics = of_two_jobs(server, cache, form, range(20), range(20))

    assert found == [[2 * key for key in range(20)]] * 2
    assert server.calls == {str(key): 1 for key in range(20)}
    sums = [sum(getattr(each, name) for each in metrics) for name in ("calls", "remembered", "completed")]
    assert sums == [20, 20, 40]
    assert [(each.calls + each.remembered, each.in_flight) for each in metrics] == [(20, 0), (20, 0)]


def test_two_jobs_of_batches_make_each_call_once(server: CountingServer, cache: Callable[..., SqliteResults]) -> None:
    found, _ = of_two_jobs(server, cache, AsksForMany, range(12), range(11, -1, -1), max_batch_size=3)

    assert found == [[2 * key for key in order] for order in (range(12), range(11, -1, -1))]
    assert server.calls == {str(key): 1 for key in range(12)}


def test_batches_are_as_large_as_without_a_cache(server: CountingServer, cache: Callable[..., SqliteResults]) -> None:
    """On a busy machine, a batch was sent when its first member had lingered."""
    function = AsksForMany(server.url)
    sizes = {"max_batch_size": 10, "capacity": 30, "linger_ms": round(TIMEOUT * 1000)}

    list(ordered_wait(range(30), function, timeout=TIMEOUT, cache=cache(), **sizes))

    assert [len(batch) for batch in function.batches] == [10, 10, 10]


# --- what is kept ---


@EACH_FORM
def test_failures_are_not_kept(
    server: CountingServer, cache: Callable[..., SqliteResults], form: Callable[[str], Any]
) -> None:
    server.fail(3)
    failed = list(ordered_wait(range(5), form(server.url), timeout=TIMEOUT, cache=cache(), on_error="drop"))
    server.fail()

    found = list(ordered_wait(range(5), form(server.url), timeout=TIMEOUT, cache=cache()))

    assert (failed, found) == ([0, 2, 4, 8], [0, 2, 4, 6, 8])
    assert server.calls == {"0": 1, "1": 1, "2": 1, "3": 2, "4": 1}
    assert cache().unknown() == []


def test_results_that_are_retried_are_not_kept(cache: Callable[..., SqliteResults]) -> None:
    answers = iter([[], [], [7], [8]])
    retry = RetryStrategy.fixed_delay(1, 1, retry_on_result=lambda results: not results)

    async def answer(_: int) -> list[int]:
        return next(answers)

    found = [list(ordered_wait([1], answer, timeout=TIMEOUT, cache=cache(), retry=retry)) for _ in range(3)]

    assert found == [[], [7], [7]]


def test_a_result_that_cannot_be_kept_fails_its_call(cache: Callable[..., SqliteResults]) -> None:
    async def answer(_: int) -> object:
        return object()

    with pytest.raises(AsyncOperatorError, match="cannot be kept in a cache"):
        list(ordered_wait([1], answer, timeout=TIMEOUT, cache=cache()))


def test_the_key_says_what_the_results_depend_on(cache: Callable[..., SqliteResults]) -> None:
    asked: list[dict[str, int]] = []

    async def price(order: dict[str, int]) -> int:
        asked.append(order)
        return order["item"] * 10

    orders = [{"id": number, "item": number % 2} for number in range(4)]
    for key in ("item", ["item"], lambda order: order["item"]):
        assert list(ordered_wait(orders, price, timeout=TIMEOUT, cache=cache(key=key))) == [0, 10, 0, 10]

    # One column and a list of it are one kind of key, and a function's is another.
    assert asked == [orders[0], orders[1]] * 2


@pytest.mark.parametrize("change", [{"version": 2}, {"name": "other"}])
def test_another_version_or_function_has_its_own_results(
    server: CountingServer, cache: Callable[..., SqliteResults], change: dict[str, Any]
) -> None:
    for options in ({}, change, {}, change):
        assert list(ordered_wait([1], Asks(server.url), timeout=TIMEOUT, cache=cache(**options))) == [2]

    assert server.calls == {"1": 2}


# --- calls that were cut off ---


def killed_job(server: CountingServer, cache: SqliteResults, answered: int, end: int) -> set[str]:
    """Kill a process while calls are in flight; return their keys. Those below `answered` are answered and stored."""
    server.hold_from(answered)
    command = [sys.executable, str(JOB), str(cache.path), server.url, "0", str(end)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        for _ in range(answered):
            job.stdout.readline()
        under_way = server.await_held(8)  # a call on each of the job's threads
        until(lambda: done(cache, *range(answered)), "the storing of the results")
        job.kill()
    server.release()
    return under_way


def test_after_a_kill_only_what_was_under_way_is_called_again(
    server: CountingServer, cache: Callable[..., SqliteResults], caplog: pytest.LogCaptureFixture
) -> None:
    under_way = killed_job(server, cache(), answered=20, end=50)
    unknown = cache().unknown()
    metrics = CallMetrics()

    found = list(ordered_wait(range(50), partial(ask, server.url), timeout=TIMEOUT, cache=cache(), metrics=metrics))

    assert found == [2 * key for key in range(50)]
    assert {key for key, calls in server.calls.items() if calls == 2} == under_way
    assert sum(server.calls.values()) == 50 + len(under_way)
    assert {each.key for each in unknown} == under_way
    assert metrics.unknown == len(under_way) == 8
    # How many calls a line counts depends on how many were claimed at once.
    assert re.search(r"ask is unknown, since .* cut off in flight; .* made again", caplog.text)
    assert cache().unknown() == []


def test_a_call_of_unknown_outcome_can_be_captured_instead(
    server: CountingServer, cache: Callable[..., SqliteResults]
) -> None:
    under_way = killed_job(server, cache(), answered=10, end=30)
    careful = cache(on_unknown="capture")
    asks = partial(ask, server.url)

    found = list(ordered_wait(range(30), asks, timeout=TIMEOUT, cache=careful, on_error="capture"))
    captured = [each for each in found if isinstance(each, CapturedError)]
    forgotten = careful.forget_unknown()
    again = list(ordered_wait(range(30), asks, timeout=TIMEOUT, cache=careful))

    assert {str(each.input) for each in captured} == under_way
    assert all(isinstance(each.error, UnknownOutcomeError) for each in captured)
    assert "begun at 20" in captured[0].message
    assert forgotten == len(under_way)
    assert again == [2 * key for key in range(30)]
    assert {key for key, calls in server.calls.items() if calls == 2} == under_way


def test_a_call_that_timed_out_is_of_unknown_outcome(cache: Callable[..., SqliteResults]) -> None:
    begun: list[int] = []

    async def hang(value: int) -> int:
        begun.append(value)
        await asyncio.Event().wait()
        return 0

    for timeout in (0.05, 1, 30):  # on a busy machine, the claim of the key is late, before there is a call
        if not begun:
            assert list(ordered_wait([5], hang, timeout=timeout, cache=cache(), on_error="drop")) == []

    assert [each.key for each in cache().unknown()] == ["5"]


def test_a_cancelled_wait_leaves_its_calls_unknown_and_no_other(cache: Callable[..., SqliteResults]) -> None:
    async def answer(value: int) -> int:
        if value:
            await asyncio.Event().wait()
        return value

    results = ordered_wait([0, 1], answer, timeout=TIMEOUT, cache=cache())
    next(results)
    results.close()  # type: ignore[attr-defined]

    assert {each.key for each in cache().unknown()} <= {"1"}
    assert done(cache(), 0)


def test_a_call_that_is_cancelled_while_it_claims_its_key_leaves_the_key_free(
    cache: Callable[..., SqliteResults],
) -> None:
    given = cache(busy_timeout_s=0.01)
    calls: list[int] = []

    async def answer(value: int) -> list[int]:
        calls.append(value)
        return [2 * value]

    async def scenario() -> list[list[int]]:
        function = cached_function(answer, given, None)
        await function.open()
        try:
            with closing(sqlite3.connect(given.path, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                cancelled = [asyncio.create_task(function.async_invoke(value)) for value in range(3)]
                await asyncio.sleep(0)
                for task in cancelled:
                    task.cancel()
                await asyncio.wait(cancelled)
                other.execute("COMMIT")
            return [await function.async_invoke(value) for value in range(3)]
        finally:
            await function.close()

    assert asyncio.run(scenario()) == [[0], [2], [4]]
    assert calls == [0, 1, 2]
    assert given.unknown() == []


def test_repetitions_that_the_function_makes_itself_are_counted(
    server: CountingServer, cache: Callable[..., SqliteResults]
) -> None:
    """A function behind a cache lost them."""

    class Repeats(Asks):
        repeated = 0

        async def async_invoke(self, key: int) -> list[int]:
            self.repeated += 2
            return await super().async_invoke(key)

        def own_retries(self) -> int:
            return self.repeated

    metrics = CallMetrics()
    list(ordered_wait(range(5), Repeats(server.url), timeout=TIMEOUT, cache=cache(), metrics=metrics))

    assert (metrics.calls, metrics.retried) == (15, 10)


# --- a cache that fails ---


@pytest.mark.parametrize("on_error", ["fail", "drop", "capture"])
def test_a_cache_that_fails_fails_the_task_whatever_on_error_says(
    cache: Callable[..., SqliteResults], on_error: Any
) -> None:
    given = cache()

    def break_it(value: int) -> int:
        if value == 3:
            with closing(sqlite3.connect(given.path)) as other:
                other.execute("DROP TABLE results")
        return value

    with pytest.raises(ResultCacheError, match=r"results\.db: no such table"):
        list(ordered_wait(range(10), break_it, timeout=TIMEOUT, cache=given, on_error=on_error, pool_size=1))


def test_a_cache_that_cannot_be_opened_fails_the_start(tmp_path: Path) -> None:
    cache = SqliteResults(tmp_path / "missing" / "results.db", name="ask")

    with pytest.raises(ResultCacheError, match=r"folder .*missing does not exist"):
        list(ordered_wait([1], str, timeout=TIMEOUT, cache=cache))
