"""The end of a worker's process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

TIMEOUT_S = 10.0

# Like pyspark.daemon between two tasks: restores the default handlers, then waits for the next task.
_WORKER = """
import os, signal, sys
from pipeline.spark.worker.process import call_at_worker_end

call_at_worker_end(lambda: os.write(1, b"closed "), 10.0)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
if {forks}:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
os.write(1, b"ready ")
{ending}
"""


def run_worker(ending: str, number: signal.Signals | None = None, forks: bool = False) -> tuple[str, int]:
    """The output and the exit code of a worker that ends with `ending` or by a signal."""
    with subprocess.Popen(
        [sys.executable, "-c", _WORKER.format(ending=ending, forks=forks)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as worker:
        start = worker.stdout.read(len("ready ")).decode()
        if number is not None:
            os.kill(worker.pid, number)
        rest = worker.stdout.read().decode()
        return start + rest, worker.wait(TIMEOUT_S)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_signal_to_an_idle_worker_calls_back_and_ends_it(number: signal.Signals) -> None:
    assert run_worker("sys.stdin.read()", number) == ("ready closed ", -number)


@pytest.mark.parametrize(("ending", "status"), [("os._exit(3)", 3), ("sys.exit(4)", 4), ("pass", 0)])
def test_worker_that_leaves_calls_back_once(ending: str, status: int) -> None:
    assert run_worker(ending) == ("ready closed ", status)


def test_child_of_a_worker_does_not_call_back() -> None:
    assert run_worker("os._exit(0)", forks=True) == ("ready closed ", 0)


def test_the_users_own_signal_handler_is_left_in_place() -> None:
    ending = "signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'mine ')); os.kill(os.getpid(), signal.SIGTERM)"

    assert run_worker(ending) == ("ready mine closed ", 0)
