"""The call hosts of one Python worker process: connections are opened once per worker, not once per task.

A task leases a host. When the task ends, the host is kept for the operator's next task: the next partition or
micro-batch. It is closed when no task has leased it for a while, when hosts of many other operators were kept since,
when its task fails (which ends the worker), when the worker ends, and right after its task if Spark does not reuse
workers. A worker that is killed closes nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pyspark import TaskContext

from pipeline.spark.worker.process import call_at_worker_end, reuses_workers
from pipeline.streaming.calls.hosts.call_host import CallHost

log = logging.getLogger(__name__)

STOP_TIMEOUT_S: Final = 5.0
"""How long a worker waits for the calls in flight and for `close`."""
MOST_KEPT: Final = 16
"""Hosts without a lease that a worker keeps: each has a thread, and what its function refers to."""


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    host: CallHost
    timer: threading.Timer


class WorkerHosts:
    """The hosts of a process. Any thread; `lease` blocks while a host opens."""

    def __init__(self, reuses_workers: bool) -> None:
        self._reuses_workers = reuses_workers  # never changes
        self._lock = threading.Lock()  # leaf lock
        self._kept: dict[str, _Kept] = {}  # guarded by _lock; hosts without a lease, the longest kept first
        self._leased: list[CallHost] = []  # guarded by _lock

    @contextmanager
    def lease(self, key: str, make: Callable[[], CallHost], idle_s: float) -> Iterator[CallHost]:
        """Lease the kept host of `key`, or a started one from `make`; then keep it for `idle_s` seconds."""
        host = self._take(key)
        if host is None or host.has_ended:
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
        stopping = [threading.Thread(target=host.stop, args=(STOP_TIMEOUT_S,), daemon=True) for host in hosts]
        for thread in stopping:
            thread.start()
        for thread in stopping:
            thread.join()

    def _take(self, key: str) -> CallHost | None:
        with self._lock:
            kept = self._kept.pop(key, None)
        if kept is None:
            return None
        kept.timer.cancel()
        return kept.host

    def _keep(self, key: str, host: CallHost, idle_s: float) -> bool:
        """False if `key` already has a kept host: two tasks of the process leased one at the same time."""
        timer = threading.Timer(idle_s, self._close_idle, (key, host))
        timer.daemon = True
        surplus: _Kept | None = None
        with self._lock:
            if key in self._kept:
                return False
            if len(self._kept) >= MOST_KEPT:
                surplus = self._kept.pop(next(iter(self._kept)))
            self._kept[key] = _Kept(host, timer)
            timer.start()
        if surplus is not None:
            surplus.timer.cancel()
            # On a thread: the task, which has ended, does not wait for another function's close().
            threading.Thread(target=surplus.host.stop, args=(STOP_TIMEOUT_S,), daemon=True).start()
        return True

    def _close_idle(self, key: str, host: CallHost) -> None:
        """Timer thread."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is None or kept.host is not host or kept.timer is not threading.current_thread():
                return  # leased again meanwhile
            del self._kept[key]
        log.debug("%s: closed after being idle", host.name)
        host.stop(STOP_TIMEOUT_S)


_hosts: WorkerHosts | None = None  # of this process; made by the first task, on the worker's main thread


def worker_hosts() -> WorkerHosts:
    """The hosts of this process. Main thread of a worker only."""
    global _hosts
    if _hosts is None:
        _hosts = WorkerHosts(reuses_workers=reuses_workers())
        if TaskContext.get() is not None:
            call_at_worker_end(_hosts.close, STOP_TIMEOUT_S)
    return _hosts
