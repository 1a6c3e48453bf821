"""The end of a worker's process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import NamedTuple

import pytest

TIMEOUT_S = 60.0

# Forks a worker for each case that it is given. Each is like pyspark.daemon between two tasks: it restores the default
# handlers, then waits for the next task.
_PROGRAM = """
import json, os, signal, sys
from pipeline.spark.worker.process import call_at_worker_end

def begin(forks):
    call_at_worker_end(lambda: os.write(1, b"closed "), 10.0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if forks:
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    os.write(1, b"ready ")

ended = []
for ending, number, forks in json.loads(sys.argv[1]):
    reader, writer = os.pipe()
    worker = os.fork()
    if worker == 0:
        os.dup2(writer, 1)
        os.close(writer)
        begin(forks)
        exec(ending)
        break
    os.close(writer)
    said = os.read(reader, len("ready "))
    if number:
        os.kill(worker, number)
    while more := os.read(reader, 100):
        said += more
    os.close(reader)
    ended.append([said.decode(), os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])])
else:
    print(json.dumps(ended))
"""


class Worker(NamedTuple):
    ending: str
    says: str
    status: int
    number: int = 0
    """The signal that it gets once it is ready; 0: none."""
    forks: bool = False


_OWN_HANDLER = "signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'mine ')); os.kill(os.getpid(), signal.SIGTERM)"
WORKERS = {
    **{
        f"{number.name} to an idle worker calls back and ends it": Worker(
            "signal.pause()", "ready closed ", -number, number
        )
        for number in (signal.SIGHUP, signal.SIGTERM)
    },
    **{
        f"a worker that leaves by {ending} calls back once": Worker(ending, "ready closed ", status)
        for ending, status in (("os._exit(3)", 3), ("sys.exit(4)", 4), ("pass", 0))
    },
    "a child of a worker does not call back": Worker("os._exit(0)", "ready closed ", 0, forks=True),
    "the user's own signal handler is left in place": Worker(_OWN_HANDLER, "ready mine closed ", 0),
}


@pytest.fixture(scope="module")
def ended() -> dict[str, tuple[str, int]]:
    """Each worker's output and exit code."""
    cases = [(worker.ending, worker.number, worker.forks) for worker in WORKERS.values()]
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, json.dumps(cases)], stdout=subprocess.PIPE, timeout=TIMEOUT_S, check=True
    )
    return dict(zip(WORKERS, map(tuple, json.loads(done.stdout)), strict=True))


@pytest.mark.parametrize("promise", WORKERS)
def test_the_end_of_a_worker(ended: dict[str, tuple[str, int]], promise: str) -> None:
    assert ended[promise] == (WORKERS[promise].says, WORKERS[promise].status)
