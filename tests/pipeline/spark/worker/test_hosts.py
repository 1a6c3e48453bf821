"""The hosts that a worker keeps for the next task: when they are opened, reused and closed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from pipeline.spark.worker.hosts import MOST_KEPT, MOST_KEPT_OF_PLACE, HostIdentity, WorkerHosts
from pipeline.streaming import AsyncFunction

from ....kit.scenarios import play
from ...streaming.calls.harness import CallHost, make_host

TIMEOUT_S = 60.0
FOREVER_S = 3600.0


class Connection(AsyncFunction[Any, Any]):
    """Counts its openings, and sets `closed` when it is closed."""

    def __init__(self) -> None:
        self.opened = self.closings = 0
        self.closed = threading.Event()

    def open(self) -> None:
        self.opened += 1

    def close(self) -> None:
        self.closings += 1
        self.closed.set()

    async def async_invoke(self, value: Any) -> list[Any]:
        return [value]


class Worker(WorkerHosts):
    """Its tasks lease hosts of operators; `a:7` is the operator a, built in line 7. The first host of it is a1."""

    def __init__(self, *, reuses_workers: bool = True) -> None:
        super().__init__(reuses_workers=reuses_workers)
        self.made: dict[str, tuple[Connection, CallHost]] = {}
        self._tasks: dict[str, AbstractContextManager[CallHost]] = {}
        self._count: Counter[str] = Counter()

    def play(self, verb: str, *words: str) -> None:
        [name] = words or [""]
        match verb:
            case "task":
                self._end(self._begin(name))
            case "idle":  # no task comes for as long as a host is kept
                self._end(self._begin(name, 0.0))
                self._connection(name).closed.wait(TIMEOUT_S)
            case "begin":
                self._begin(name)
            case "end":
                self._end(name)
            case "fail":
                self._end(self._begin(name), ValueError("the task has failed"))
            case "cancel":
                self._end(self._begin(name), GeneratorExit())
            case "stop":
                assert self.made[name][1].stop(TIMEOUT_S)
            case "timer":  # fires just as the host is leased again
                self._close_idle(HostIdentity(name[:-1], name[:-1]), self.made[name][1])
            case "await":
                assert self.made[name][0].closed.wait(TIMEOUT_S)
            case "exit":
                self.close()
            case _:
                raise AssertionError(verb)

    def look(self, what: str) -> list[object]:
        if what == "kept":
            with self._lock:
                return [len(self._kept)]
        found = {name: connection for name, (connection, _) in self.made.items()}
        return [name for name, connection in found.items() if what == "opened" or connection.closed.is_set()]

    def _begin(self, operator: str, idle_s: float = FOREVER_S) -> str:
        name, _, line = operator.partition(":")
        task = self.lease(HostIdentity(name, line or name), lambda: self._make(name), idle_s)
        host = task.__enter__()
        assert not host.has_ended
        of_host = next(made for made, (_, each) in self.made.items() if each is host)
        self._tasks[of_host] = task
        return of_host

    def _end(self, host: str, error: BaseException | None = None) -> None:
        is_swallowed = self._tasks[host].__exit__(type(error) if error else None, error, None)
        assert not is_swallowed

    def _connection(self, operator: str) -> Connection:
        name = operator.partition(":")[0]
        return self.made[f"{name}{self._count[name]}"][0]

    def _make(self, operator: str) -> CallHost:
        connection = Connection()
        host = make_host(connection)
        host.start()
        self._count[operator] += 1
        self.made[f"{operator}{self._count[operator]}"] = connection, host
        return host


MANY = " | ".join(f"task op{number}-" for number in range(MOST_KEPT))
OF_LINE = " | ".join(f"task op{number}-:7" for number in range(MOST_KEPT_OF_PLACE + 3))
SCRIPTS = {
    "a host is opened once and kept for the next task": "task a | task a -> opened a1 ; closed ; kept 1",
    "a kept host that has ended is replaced": "task a | stop a1 | task a -> opened a1 a2",
    "each operator has a host of its own": "task a | task b -> opened a1 b1 ; kept 2",
    # A worker that ran one query after the other had a thread, and what the function refers to, of each.
    "the host that was kept longest is closed when there are too many": (
        f"{MANY} | task op0- | begin more -> closed | end more1 | await op1-1 -> closed op1-1 ; kept {MOST_KEPT}"
    ),
    # A function that pickled differently in each micro-batch had up to 16 sets of connections in each worker.
    "few hosts are kept of operators that one line builds again and again": (
        f"task other | {OF_LINE} | await op0-1 | await op1-1 | await op2-1 -> closed op0-1 op1-1 op2-1 ; "
        f"kept {MOST_KEPT_OF_PLACE + 1}"
    ),
    "an equal operator of another line has the same host": "task a:7 | task a:8 -> opened a1",
    "an idle host is closed": "idle a -> closed a1 ; kept 0",
    "a host in use is not idle": "task a | begin a | timer a1 -> closed | end a1",
    "a host is closed when its task fails": "fail a -> closed a1 ; kept 0",
    "a host is closed when its task is given up": "cancel a -> closed a1 ; kept 0",
    "two tasks of one process have a host each and one is kept": (
        "begin a | begin a -> opened a1 a2 | end a2 | end a1 -> closed a1 ; kept 1"
    ),
    "the end of the worker closes kept and leased hosts": "task a | begin b | exit -> closed a1 b1 ; kept 0 | end b1",
    "each open is followed by one close however the host ends": (
        f"fail a | idle b | {OF_LINE} | task op{MOST_KEPT_OF_PLACE + 2}-:7 | exit"
    ),
}


@pytest.fixture(autouse=True)
def _a_busy_machine_has_the_time_to_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.spark.worker.hosts.STOP_TIMEOUT_S", TIMEOUT_S)


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.close()


@pytest.mark.parametrize("promise", SCRIPTS)
def test_hosts_are_kept_for_the_next_task(worker: Worker, promise: str) -> None:
    play(worker, SCRIPTS[promise])

    worker.close()
    assert {(each.opened, each.closings) for each, _ in worker.made.values()} == {(1, 1)}


def test_a_host_is_closed_at_once_where_workers_are_not_reused() -> None:
    play(Worker(reuses_workers=False), "begin a -> closed | end a1 -> closed a1")


def test_the_end_of_the_worker_waits_for_a_host_that_is_being_closed(worker: Worker) -> None:
    """A host that was closed as one too many was cut off by the end of the process, during its close()."""
    closing, may_close = threading.Event(), threading.Event()

    class Slow(Connection):
        def close(self) -> None:
            closing.set()
            may_close.wait(TIMEOUT_S)
            super().close()

    slow = Slow()
    host = make_host(slow)
    host.start()
    with worker.lease(HostIdentity("a", "a"), lambda: host, 0.0):
        pass
    assert closing.wait(TIMEOUT_S)
    ending = threading.Thread(target=worker.close)

    ending.start()

    ending.join(0.05)
    assert ending.is_alive()
    may_close.set()
    ending.join(TIMEOUT_S)
    assert slow.closed.is_set()


def test_an_error_of_open_is_raised_and_no_host_is_kept(worker: Worker) -> None:
    def make() -> CallHost:
        raise ConnectionError("no")

    with pytest.raises(ConnectionError, match="no"), worker.lease(HostIdentity("a", "a"), make, FOREVER_S):
        pass

    assert worker.look("kept") == [0]
