"""SIGINT and SIGTERM as something the main thread waits for. pytest runs tests on the main thread."""

from __future__ import annotations

import fcntl
import gc
import os
import resource
import select
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dispatcher import StopSignals

from ...kit import TIMEOUT_S, until
from .conftest import send

pytestmark = pytest.mark.usefixtures("signals_are_restored")


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_interrupts_nothing_and_is_seen_by_the_wait(number: int, exit_code: int) -> None:
    with StopSignals() as stop:
        send(number)

        assert stop.wait(TIMEOUT_S)

    assert stop.received == number
    assert stop.exit_code == exit_code


def test_a_signal_that_another_thread_takes_ends_a_wait_that_has_begun() -> None:
    """The wait went on for ever, because Python's handler ran only once the main thread woke for another reason."""
    main_thread = threading.get_ident()

    def take_signal() -> None:
        until(lambda: sys._current_frames()[main_thread].f_code is StopSignals.wait.__code__)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    gc.disable()  # CPython 3.11 can hang if it collects garbage while it reads all frames (python/cpython#106883)
    try:
        for _ in range(20):  # the main thread may be in `wait`, and not in the system's call yet
            with StopSignals() as stop, ThreadPoolExecutor(1) as pool:
                taken = pool.submit(take_signal)

                assert stop.wait(TIMEOUT_S)

                taken.result(TIMEOUT_S)
    finally:
        gc.enable()


def test_the_first_signal_counts_and_every_wait_sees_it() -> None:
    with StopSignals() as stop:
        send(signal.SIGTERM)
        waited = [stop.wait(TIMEOUT_S)]
        send(signal.SIGINT)
        waited += [stop.wait(TIMEOUT_S), stop.wait(0)]

    assert waited == [True, True, True]
    assert stop.received == signal.SIGTERM


def test_notifications_end_one_wait_and_not_the_next() -> None:
    with StopSignals() as stop:
        stop.notify()
        stop.notify()
        stop.wait(TIMEOUT_S)

        left, _, _ = select.select([stop._read_end], [], [], 0)

    assert left == []


def test_notify_never_blocks_however_often_it_is_called() -> None:
    with StopSignals() as stop:
        for _ in range(70_000):  # more than a pipe holds
            stop.notify()

        assert not stop.wait(TIMEOUT_S)
    assert (stop.received, stop.exit_code) == (None, 0)


def test_all_is_restored_also_after_an_error() -> None:
    with pytest.raises(LookupError), StopSignals():
        raise LookupError


def test_notify_before_and_after_the_block_does_nothing() -> None:
    """It raised AttributeError, because the pipe did not exist yet."""
    stop = StopSignals()

    stop.notify()
    with stop:
        notified_before = stop.wait(0)
    stop.notify()

    assert not notified_before


def test_it_can_be_entered_again() -> None:
    stop = StopSignals()
    with stop:
        pass

    with stop:
        send(signal.SIGINT)
        assert stop.wait(TIMEOUT_S)


def test_on_another_thread_it_is_refused_and_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipe stayed open."""
    pipes: list[tuple[int, int]] = []
    pipe = os.pipe
    monkeypatch.setattr(os, "pipe", lambda: pipes.append(pipe()) or pipes[-1])

    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="main thread"):
        pool.submit(StopSignals().__enter__).result(TIMEOUT_S)

    assert not any(is_open(end) for ends in pipes for end in ends)


def test_the_pipe_is_not_closed_under_a_notify(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notify that had read the descriptor could write to another file that had been given it meanwhile."""
    writing, leaving = threading.Event(), threading.Event()
    still_open: list[bool] = []
    closed: list[int] = []

    class PausingOs:
        """The window: between the look at the descriptor and the write."""

        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def write(self, descriptor: int, data: bytes) -> int:
            writing.set()
            leaving.wait(0.05)  # not set while the lock is held: then the write goes first
            still_open.append(is_open(descriptor))
            return len(data)

        def close(self, descriptor: int) -> None:
            os.close(descriptor)
            closed.append(descriptor)
            if len(closed) == 2:  # both ends
                leaving.set()

    monkeypatch.setattr("dispatcher.supervision.signals.os", PausingOs())
    with ThreadPoolExecutor(1) as pool:
        with StopSignals() as stop:
            notified = pool.submit(stop.notify)
            assert writing.wait(TIMEOUT_S)
        notified.result(TIMEOUT_S)

    assert still_open == [True]


def test_a_process_with_many_open_files_waits_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """`select` refuses descriptors from 1024 on."""
    pipe = os.pipe

    def high_pipe() -> tuple[int, int]:
        low = pipe()
        high = fcntl.fcntl(low[0], fcntl.F_DUPFD_CLOEXEC, 1024), fcntl.fcntl(low[1], fcntl.F_DUPFD_CLOEXEC, 1024)
        for end in low:
            os.close(end)
        return high

    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 1100:
        pytest.skip("a process may not open 1,100 files here")
    monkeypatch.setattr(os, "pipe", high_pipe)

    with StopSignals() as stop:
        stop.notify()
        assert not stop.wait(TIMEOUT_S)
        assert not stop.wait(0.001)
