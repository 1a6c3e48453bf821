"""Daemons that run until a signal, a stop or a failure, and their exit codes: one contract of a plain function and of a
coroutine. pytest runs tests on the main thread."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dispatcher import (
    AsyncDispatcher,
    CompositeService,
    DispatcherConfig,
    Service,
    ServiceState,
    ServiceStateError,
    aio,
    run_until_signal,
)

from ...kit import TIMEOUT_S, Gate, Numbered, Work, until
from ...kit.services import Recorder, fail
from .conftest import send

pytestmark = pytest.mark.usefixtures("signals_are_restored")

Run = Callable[[Service], int]


def run_in_a_loop(service: Service) -> int:
    return asyncio.run(asyncio.wait_for(aio.run_until_signal(service), TIMEOUT_S))


@pytest.fixture(params=[run_until_signal, run_in_a_loop])
def run(request: pytest.FixtureRequest) -> Run:
    function: Run = request.param
    return function


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def once_started(service: Service, action: Any) -> None:
    until(lambda: not service.in_state(ServiceState.NOTINITED, ServiceState.INITED), f"{service.name} starts")
    action()


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_drains_and_stops_and_gives_the_shells_exit_code(
    run: Run, pool: ThreadPoolExecutor, number: int, exit_code: int
) -> None:
    dispatcher = AsyncDispatcher()
    dispatcher.register(Work, lambda _: None)

    def post_and_send() -> None:
        for _ in range(100):
            assert dispatcher.post(Numbered())
        send(number)

    helper = pool.submit(once_started, dispatcher, post_and_send)

    assert run(dispatcher) == exit_code
    helper.result(TIMEOUT_S)
    assert dispatcher.is_stopped()
    assert dispatcher.stats().handled == 100


def test_it_returns_0_if_another_thread_stops_the_service(run: Run, pool: ThreadPoolExecutor) -> None:
    dispatcher = AsyncDispatcher()
    helper = pool.submit(once_started, dispatcher, dispatcher.stop)

    assert run(dispatcher) == 0
    helper.result(TIMEOUT_S)


def test_stopped_by_a_handler_it_returns_0_once_all_is_handled(run: Run) -> None:
    dispatcher = AsyncDispatcher()
    dispatcher.register(Work, lambda _: dispatcher.stop())
    for _ in range(3):
        dispatcher.post(Numbered())

    assert run(dispatcher) == 0
    assert dispatcher.stats().handled == 3
    assert dispatcher.is_stopped()


def test_it_takes_a_service_that_runs_already(run: Run, pool: ThreadPoolExecutor) -> None:
    dispatcher = AsyncDispatcher()
    dispatcher.start()
    helper = pool.submit(dispatcher.stop)

    try:
        assert run(dispatcher) == 0
    except ServiceStateError:  # the stop came before the start, which is refused then
        assert dispatcher.is_stopped()
    helper.result(TIMEOUT_S)


def test_an_error_policy_that_stops_ends_the_wait_with_1(run: Run) -> None:
    dispatcher = AsyncDispatcher()
    dispatcher.register(Work, lambda _: fail(), on_error="stop")
    dispatcher.post(Numbered())

    assert run(dispatcher) == 1


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_handler_thread_that_fails_ends_the_whole_with_1(run: Run, pool: ThreadPoolExecutor, depth: int) -> None:
    dispatcher, sibling = AsyncDispatcher(), Recorder()
    daemon: Any = dispatcher
    for level in range(depth):
        whole = CompositeService(f"level {level}")
        whole.add_service(daemon)
        daemon = whole
    if depth:
        daemon.add_service(sibling)
    helper = pool.submit(once_started, dispatcher, lambda: dispatcher.mailbox_executor.execute(fail))

    assert run(daemon) == 1
    helper.result(TIMEOUT_S)
    assert isinstance(dispatcher.failure_cause, LookupError)
    assert daemon.state is ServiceState.STOPPED
    assert sibling.calls == (["init", "start", "stop"] if depth else [])


@pytest.mark.parametrize("hook", ["init", "start"])
def test_a_service_that_fails_to_start_is_stopped_and_its_error_raised(run: Run, hook: str) -> None:
    service = Recorder(**{hook: fail})

    with pytest.raises(LookupError, match="lost"):
        run(service)

    assert service.state is ServiceState.STOPPED


def test_a_second_signal_during_the_stop_changes_nothing(run: Run) -> None:
    service = Recorder(start=lambda: send(signal.SIGTERM), stop=lambda: send(signal.SIGINT))

    assert run(service) == 143
    assert service.calls == ["init", "start", "stop"]


def test_a_hanging_handler_does_not_keep_it_from_returning(run: Run, gate: Gate, pool: ThreadPoolExecutor) -> None:
    dispatcher = AsyncDispatcher(DispatcherConfig(drain_timeout_s=0.01))
    dispatcher.register(Work, gate)
    dispatcher.post(Numbered())

    def terminate() -> None:
        assert gate.entered.wait(TIMEOUT_S)
        send(signal.SIGTERM)
        until(lambda: dispatcher.in_state(ServiceState.STOPPED))
        # It waits a few seconds more for the end of the thread; that is not this test's subject.
        dispatcher._drain.finished.wait(0.1)
        gate.opened.set()

    helper = pool.submit(terminate)

    assert run(dispatcher) == 143
    helper.result(TIMEOUT_S)


def test_on_another_thread_it_is_refused_and_starts_nothing(run: Run, pool: ThreadPoolExecutor) -> None:
    service = Recorder()

    with pytest.raises(ValueError, match="main thread"):
        pool.submit(run, service).result(TIMEOUT_S)

    assert service.calls == []


DAEMON = """
import sys
from enum import Enum
from dispatcher import AsyncDispatcher, Event, run_until_signal
class Work(Enum):
    DO = 1
dispatcher = AsyncDispatcher()
dispatcher.register(Work, lambda event: print("ready", flush=True))
dispatcher.post(Event(Work.DO))
sys.exit(run_until_signal(dispatcher))
"""


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_daemon_ends_with_the_exit_code_and_without_a_traceback(number: int, exit_code: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", DAEMON], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as daemon:
        watchdog = threading.Timer(60, daemon.kill)
        watchdog.start()
        try:
            assert daemon.stdout is not None
            assert daemon.stdout.readline() == "ready\n"
            daemon.send_signal(number)
            _, errors = daemon.communicate(timeout=60)
        finally:
            watchdog.cancel()

    assert (daemon.returncode, errors) == (exit_code, "")
