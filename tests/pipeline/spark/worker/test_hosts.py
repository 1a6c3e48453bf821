from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pipeline.spark.worker.hosts import MOST_KEPT, MOST_KEPT_OF_PLACE, HostIdentity, WorkerHosts
from pipeline.streaming import AsyncFunction
from pipeline.streaming.calls.hosts.call_host import CallHost
from pipeline.streaming.calls.hosts.choice import make_host

TIMEOUT_S = 10.0
FOREVER_S = 3600.0


class ShownHosts(WorkerHosts):
    """Exposes the number of kept hosts."""

    def size(self) -> int:
        with self._lock:
            return len(self._kept)


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


def operator(name: str, place: str | None = None) -> HostIdentity:
    return HostIdentity(name, name if place is None else place)


def maker(connection: Connection) -> Callable[[], CallHost]:
    def make() -> CallHost:
        host = make_host(connection)
        host.start()
        return host

    return make


@pytest.fixture
def hosts() -> Iterator[ShownHosts]:
    hosts = ShownHosts(reuses_workers=True)
    yield hosts
    hosts.close()


@pytest.fixture
def connection() -> Connection:
    return Connection()


def never() -> CallHost:
    pytest.fail("a kept host was not reused")


def test_host_is_opened_once_and_kept_for_the_next_task(hosts: ShownHosts, connection: Connection) -> None:
    with hosts.lease(operator("a"), maker(connection), FOREVER_S) as first:
        pass

    with hosts.lease(operator("a"), never, FOREVER_S) as second:
        assert second is first

    assert connection.opened == 1
    assert not connection.closed.is_set()


def test_a_kept_host_that_has_ended_is_replaced(hosts: ShownHosts, connection: Connection) -> None:
    with hosts.lease(operator("a"), maker(connection), FOREVER_S) as first:
        pass
    assert first.stop(TIMEOUT_S)

    with hosts.lease(operator("a"), maker(connection), FOREVER_S) as second:
        assert not second.has_ended

    assert connection.opened == 2


def test_each_operator_has_its_own_host(hosts: ShownHosts) -> None:
    connections = Connection(), Connection()

    for key, connection in zip("ab", connections, strict=True):
        with hosts.lease(operator(key), maker(connection), FOREVER_S):
            pass

    assert [connection.opened for connection in connections] == [1, 1]
    assert hosts.size() == 2


def test_the_host_that_was_kept_longest_is_closed_when_there_are_too_many(hosts: ShownHosts) -> None:
    """A worker that ran one query after the other had a thread, and what the function refers to, of each."""
    connections = [Connection() for _ in range(MOST_KEPT + 1)]
    for number, connection in enumerate(connections[:-1]):
        with hosts.lease(operator(str(number)), maker(connection), FOREVER_S):
            pass
    with hosts.lease(operator("0"), never, FOREVER_S):
        pass

    with hosts.lease(operator("one more"), maker(connections[-1]), FOREVER_S):
        assert not any(connection.closed.is_set() for connection in connections)

    assert connections[1].closed.wait(TIMEOUT_S)
    assert not any(connection.closed.is_set() for connection in [connections[0], *connections[2:]])
    assert hosts.size() == MOST_KEPT


def test_few_hosts_are_kept_of_operators_that_one_line_builds_again_and_again(hosts: ShownHosts) -> None:
    """A function that pickled differently in each micro-batch had up to 16 sets of connections in each worker."""
    connections = [Connection() for _ in range(MOST_KEPT_OF_PLACE + 3)]
    with hosts.lease(operator("another"), maker(Connection()), FOREVER_S):
        pass

    for number, connection in enumerate(connections):
        with hosts.lease(operator(str(number), "job.py:7"), maker(connection), FOREVER_S):
            pass

    assert all(connection.closed.wait(TIMEOUT_S) for connection in connections[:3])
    assert not any(connection.closed.is_set() for connection in connections[3:])
    assert hosts.size() == MOST_KEPT_OF_PLACE + 1


def test_an_equal_operator_of_another_line_has_the_same_host(hosts: ShownHosts, connection: Connection) -> None:
    with hosts.lease(operator("a", "job.py:7"), maker(connection), FOREVER_S):
        pass

    with hosts.lease(operator("a", "job.py:8"), never, FOREVER_S):
        pass

    assert connection.opened == 1


def test_the_end_of_the_worker_waits_for_a_host_that_is_being_closed(hosts: ShownHosts) -> None:
    """A host that was closed as one too many was cut off by the end of the process, during its close()."""
    closing, may_close = threading.Event(), threading.Event()

    class Slow(Connection):
        def close(self) -> None:
            closing.set()
            may_close.wait(TIMEOUT_S)
            super().close()

    slow = Slow()
    with hosts.lease(operator("a"), maker(slow), 0.0):
        pass
    assert closing.wait(TIMEOUT_S)
    ending = threading.Thread(target=hosts.close)

    ending.start()

    ending.join(0.05)
    assert ending.is_alive()
    may_close.set()
    ending.join(TIMEOUT_S)
    assert slow.closed.is_set()


def test_idle_host_is_closed(hosts: ShownHosts, connection: Connection) -> None:
    with hosts.lease(operator("a"), maker(connection), 0.0):
        pass

    assert connection.closed.wait(TIMEOUT_S)
    assert hosts.size() == 0


def test_host_in_use_is_not_idle(hosts: ShownHosts, connection: Connection) -> None:
    """A timer that fires just as the host is leased again must not close it under the task."""
    with hosts.lease(operator("a"), maker(connection), FOREVER_S) as host:
        pass

    with hosts.lease(operator("a"), never, FOREVER_S):
        hosts._close_idle(operator("a"), host)

        assert not connection.closed.is_set()


def test_host_is_closed_at_once_where_workers_are_not_reused() -> None:
    connection = Connection()
    hosts = ShownHosts(reuses_workers=False)

    with hosts.lease(operator("a"), maker(connection), FOREVER_S):
        assert not connection.closed.is_set()

    assert connection.closed.is_set()


@pytest.mark.parametrize("ending", [ValueError("the task has failed"), GeneratorExit()])
def test_host_is_closed_when_its_task_fails_or_is_given_up(
    hosts: ShownHosts, connection: Connection, ending: BaseException
) -> None:
    with pytest.raises(type(ending)), hosts.lease(operator("a"), maker(connection), FOREVER_S):
        raise ending

    assert connection.closed.is_set()
    assert hosts.size() == 0


def test_an_error_of_open_is_raised_and_no_host_is_kept(hosts: ShownHosts) -> None:
    def make() -> CallHost:
        raise ConnectionError("no")

    with pytest.raises(ConnectionError, match="no"), hosts.lease(operator("a"), make, FOREVER_S):
        pass

    assert hosts.size() == 0


def test_two_tasks_of_one_process_have_a_host_each_and_one_is_kept(hosts: ShownHosts) -> None:
    connections = Connection(), Connection()

    with (
        hosts.lease(operator("a"), maker(connections[0]), FOREVER_S),
        hosts.lease(operator("a"), maker(connections[1]), FOREVER_S),
    ):
        pass

    assert [connection.closed.is_set() for connection in connections] == [True, False]
    assert hosts.size() == 1


def test_each_open_is_followed_by_one_close_however_the_host_ends(hosts: ShownHosts) -> None:
    connections = [Connection() for _ in range(MOST_KEPT_OF_PLACE + 4)]
    ends = iter(connections)
    with pytest.raises(ValueError, match="failed"), hosts.lease(operator("failing"), maker(next(ends)), FOREVER_S):
        raise ValueError("failed")
    with hosts.lease(operator("idle"), maker(next(ends)), 0.0):
        pass
    for number, connection in enumerate(ends):
        with hosts.lease(operator(str(number), "job.py:7"), maker(connection), FOREVER_S):
            pass
    with hosts.lease(operator(str(number), "job.py:7"), never, FOREVER_S):
        pass

    hosts.close()

    assert [(each.opened, each.closings) for each in connections] == [(1, 1)] * len(connections)


def test_close_closes_kept_and_leased_hosts(hosts: ShownHosts) -> None:
    connections = Connection(), Connection()
    with hosts.lease(operator("a"), maker(connections[0]), FOREVER_S):
        pass

    with hosts.lease(operator("b"), maker(connections[1]), FOREVER_S):
        hosts.close()

        assert all(connection.closed.is_set() for connection in connections)
        assert hosts.size() == 0
