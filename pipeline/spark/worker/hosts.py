"""The call hosts of one Python worker process: connections are opened once per worker, not once per task.

A task leases a host. When the task ends, the host is kept for the next task of the operator, or of an equal one: the
next partition, or the next micro-batch, for which `foreachBatch` builds its operators again. It is closed when no task
has leased it for a while, when hosts of many other operators were kept since, when its task fails (which ends the
worker), when the worker ends, and right after its task if Spark does not reuse workers. A worker that is killed closes
nothing.

An operator whose function pickles differently each time has a host of its own in each micro-batch. So few hosts are
kept of the operators that one line of the user's code has built.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from pyspark import TaskContext

from pipeline.spark.worker.process import call_at_worker_end, reuses_workers
from pipeline.streaming.calls.hosts.call_host import CallHost

log: logging.Logger = logging.getLogger(__name__)

STOP_TIMEOUT_S: Final = 5.0
"""How long a worker waits for the calls in flight and for `close`."""
MOST_KEPT: Final = 16
"""Hosts without a lease that a worker keeps: each has a thread, and what its function refers to."""
MOST_KEPT_OF_PLACE: Final = 4
"""The same, of the operators built in one place. A few, because a user's helper can build several different joins."""


@dataclass(frozen=True, slots=True)
class HostIdentity:
    """Whose host it is. Equal operators have equal digests."""

    digest: str
    place: str = field(compare=False)
    """Where the operator is built: its name and the line of the user's code."""


@dataclass(frozen=True, slots=True, eq=False)
class _KeptHost:
    host: CallHost
    timer: threading.Timer


class WorkerHosts:
    """The hosts of a process. Any thread; `lease` blocks while a host opens."""

    def __init__(self, reuses_workers: bool) -> None:
        self._reuses_workers = reuses_workers  # never changes
        self._lock = threading.Lock()  # leaf lock
        # Guarded by _lock; hosts without a lease, the longest kept first:
        self._kept: dict[HostIdentity, _KeptHost] = {}
        self._leased: list[CallHost] = []  # guarded by _lock
        self._closing: list[threading.Thread] = []  # guarded by _lock; each stops a host that was kept

    @contextmanager
    def lease(self, key: HostIdentity, make: Callable[[], CallHost], idle_s: float) -> Iterator[CallHost]:
        """Lease the kept host of `key`, or a started one from `make`; then keep it for `idle_s` seconds."""
        host = self._take(key)
        if host is None or host.has_ended:
            self._close_older(key.place)
            host = make()
        with self._lock:
            self._leased.append(host)
        keeps = False
        try:
            yield host
            # Spark ends a worker whose task failed or was cancelled, possibly by a kill: then do not keep the host.
            keeps = self._reuses_workers
        finally:
            with self._lock:
                self._leased.remove(host)
            if not keeps or not self._keep(key, host, idle_s):
                host.stop(STOP_TIMEOUT_S)

    def close(self) -> None:
        """Stop all hosts, including leased ones, in parallel: the process is about to end."""
        with self._lock:
            hosts = [*self._leased, *(kept.host for kept in self._kept.values())]
            self._kept = {}
            closing = self._closing.copy()
        stopping = [threading.Thread(target=host.stop, args=(STOP_TIMEOUT_S,), daemon=True) for host in hosts]
        for thread in stopping:
            thread.start()
        for thread in [*stopping, *closing]:
            thread.join(STOP_TIMEOUT_S)

    def _take(self, key: HostIdentity) -> CallHost | None:
        with self._lock:
            kept = self._kept.pop(key, None)
        if kept is None:
            return None
        kept.timer.cancel()
        return kept.host

    def _keep(self, key: HostIdentity, host: CallHost, idle_s: float) -> bool:
        """False if `key` already has a kept host: two tasks of the process leased one at the same time."""
        timer = threading.Timer(idle_s, self._close_idle, (key, host))
        timer.daemon = True
        with self._lock:
            if key in self._kept:
                return False
            if len(self._kept) >= MOST_KEPT:
                self._close_aside(next(iter(self._kept)))
            self._kept[key] = _KeptHost(host, timer)
            timer.start()
        return True

    def _close_older(self, place: str) -> None:
        """Make room for a host of one more operator of `place`."""
        with self._lock:
            same = [key for key in self._kept if key.place == place]
            while len(same) >= MOST_KEPT_OF_PLACE:
                self._close_aside(same.pop(0))

    def _close_aside(self, key: HostIdentity) -> None:
        """Under the lock. On a thread of its own, so that no task waits for the close() of another's function."""
        kept = self._kept.pop(key)
        kept.timer.cancel()
        closing = threading.Thread(target=self._stop, args=(kept.host,), daemon=True)
        self._closing.append(closing)
        closing.start()

    def _stop(self, host: CallHost) -> None:
        """On a thread of `_closing`."""
        host.stop(STOP_TIMEOUT_S)
        with self._lock:
            self._closing.remove(threading.current_thread())

    def _close_idle(self, key: HostIdentity, host: CallHost) -> None:
        """Timer thread."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is None or kept.host is not host or kept.timer is not threading.current_thread():
                return  # leased again meanwhile
            del self._kept[key]
            self._closing.append(kept.timer)
        log.debug("%s: closed after being idle", host.name)
        self._stop(host)


_hosts: WorkerHosts | None = None  # of this process; made by the first task, on the worker's main thread


def worker_hosts() -> WorkerHosts:
    """The hosts of this process. Main thread of a worker only."""
    global _hosts
    if _hosts is None:
        _hosts = WorkerHosts(reuses_workers=reuses_workers())
        if TaskContext.get() is not None:
            call_at_worker_end(_hosts.close, STOP_TIMEOUT_S)
    return _hosts
