"""The handler of Ctrl-C that cancels jobs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pipeline.spark.worker.interruption import cancel_jobs_on_interrupt


class Session:
    """Has what the handler uses of a session, and notes it."""

    def __init__(self, error: Exception | None = None) -> None:
        self.sparkContext = self._gateway = self._gateway_client = self
        self.cancelled_on: list[str] = []  # names of threads
        self.closed_on: list[str] = []
        self._error = error

    def get_thread_connection(self) -> Session:
        return self

    def close(self) -> None:
        self.closed_on.append(threading.current_thread().name)

    def cancelAllJobs(self) -> None:
        self.cancelled_on.append(threading.current_thread().name)
        if self._error is not None:
            raise self._error


@pytest.fixture(autouse=True)
def _handler_of_the_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # The jobs are cancelled first, on a busy machine too.
    monkeypatch.setattr("pipeline.spark.worker.interruption._CANCEL_TIMEOUT_S", 60.0)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def prepare(session: Any) -> None:
    cancel_jobs_on_interrupt(session)


def pyspark_handler() -> Callable[..., Any]:
    def signal_handler(number: int, frame: Any) -> None:
        pytest.fail("it was replaced")

    signal_handler.__module__ = "pyspark.core.context"
    return signal_handler


@pytest.mark.parametrize("handler", [signal.default_int_handler, pyspark_handler()])
def test_ctrl_c_cancels_the_jobs_from_another_thread(handler: Any) -> None:
    session = Session()
    signal.signal(signal.SIGINT, handler)

    prepare(session)

    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert session.cancelled_on == ["cancel jobs"]
    assert session.closed_on == ["MainThread"]  # or Py4J lets the JVM close all connections of the program


def test_a_context_that_cannot_be_reached_does_not_hide_the_interrupt() -> None:
    prepare(Session(OSError("the JVM is gone")))

    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_the_last_context_is_the_one_that_is_asked() -> None:
    first, second = Session(), Session()
    prepare(first)
    prepare(second)

    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert (len(first.cancelled_on), len(second.cancelled_on)) == (0, 1)


def test_the_handler_of_a_program_stays() -> None:
    def own(number: int, frame: Any) -> None: ...

    signal.signal(signal.SIGINT, own)

    prepare(Session())

    assert signal.getsignal(signal.SIGINT) is own


def test_other_threads_leave_the_handler_as_it_is() -> None:
    thread = threading.Thread(target=prepare, args=(Session(),))
    thread.start()
    thread.join(60)

    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
