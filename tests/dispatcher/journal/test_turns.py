"""A gate that was opened once lets all producers of a batch pass, also where the process has no descriptor left."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

import pytest

from dispatcher.journal.turns import DescriptorGate, TurnGate, shared_gate

from ...kit import TIMEOUT_S, in_threads

linux = pytest.mark.skipif(sys.platform != "linux", reason="there is no eventfd")
both = pytest.mark.parametrize("make", [TurnGate, pytest.param(DescriptorGate, marks=linux)])


@both
def test_all_that_wait_pass_once_it_is_open_and_so_do_those_that_come_later(make: Callable[[], TurnGate]) -> None:
    gate = make()
    passed: list[int] = []
    entered = threading.Barrier(9)

    def wait(number: int) -> None:
        entered.wait(TIMEOUT_S)
        gate.wait()
        passed.append(number)

    threads = [threading.Thread(target=wait, args=(number,), daemon=True) for number in range(8)]
    for thread in threads:
        thread.start()
    entered.wait(TIMEOUT_S)
    assert not passed
    gate.open()

    for thread in threads:
        thread.join(TIMEOUT_S)
    in_threads(gate.wait)
    assert sorted(passed) == list(range(8))


@both
def test_it_may_be_opened_again_while_others_pass(make: Callable[[], TurnGate]) -> None:
    gate = make()
    assert not gate.is_open

    in_threads(*[gate.open, gate.wait] * 8)

    assert gate.is_open


def test_it_may_be_opened_again_between_the_two_steps_of_one_that_passes() -> None:
    gate = TurnGate()
    gate.open()
    lock = gate._lock

    class Reopening:
        """The lock of a gate that is opened again as soon as a thread has it."""

        release = staticmethod(lock.release)

        def acquire(self) -> None:
            lock.acquire()
            gate.open()

        def __enter__(self) -> None:
            self.acquire()

        def __exit__(self, *_: object) -> None:
            self.release()

    gate._lock = Reopening()  # type: ignore[assignment]

    gate.wait()

    assert not lock.locked()


@linux
def test_the_descriptor_is_closed_with_the_last_reference() -> None:
    gate = DescriptorGate()
    descriptor = gate._file.fileno()
    os.fstat(descriptor)

    del gate

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@linux
def test_without_a_descriptor_a_lock_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(shared_gate(), DescriptorGate)

    def refuse(*_: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "eventfd", refuse)

    assert type(shared_gate()) is TurnGate
