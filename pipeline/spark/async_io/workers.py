"""The call hosts of one Python worker process: a connection is opened once per worker, not once per task.

A host is leased by a task and kept when the task has ended, for the next task of the same operator: the next partition,
or the next micro-batch. It is closed when nobody has leased it for a while, when its task fails (the worker ends then),
when the worker ends, and at once where Spark does not reuse workers.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pyspark import TaskContext

from pipeline.spark.async_io.worker_end import call_at_worker_end
from pipeline.streaming.calls.hosts.call_host import CallHost

log = logging.getLogger(__name__)

STOP_TIMEOUT_S: Final = 5.0
"""For the calls under way and `close`, before a worker goes on without them."""


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    host: CallHost
    timer: threading.Timer


class WorkerHosts:
    """The hosts that a process keeps. Any thread; `lease` blocks while a host opens."""

    def __init__(self, reuses_workers: bool) -> None:
        self._reuses_workers = reuses_workers  # never changes
        self._lock = threading.Lock()  # leaf lock
        self._kept: dict[str, _Kept] = {}  # guarded by _lock; hosts that nobody has leased
        self._leased: list[CallHost] = []  # guarded by _lock

    @contextmanager
    def lease(self, key: str, make: Callable[[], CallHost], idle_s: float) -> Iterator[CallHost]:
        """The host of `key`, or if none is kept a new one; afterwards it is kept for `idle_s` seconds.

        `make` gives a host that has been started. What it raises is raised.
        """
        host = self._take(key) or make()
        with self._lock:
            self._leased.append(host)
        keeps = False
        try:
            yield host
            # Spark ends a worker whose task has failed or was given up, and not always politely.
            keeps = self._reuses_workers
        finally:
            with self._lock:
                self._leased.remove(host)
            if not keeps or not self._keep(key, host, idle_s):
                host.stop(STOP_TIMEOUT_S)

    def close(self) -> None:
        """Stop all hosts, leased ones too, for the process ends. All have the same time to do so."""
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
        """False: there is one of that key already, as two tasks of one process had leased it at the same time."""
        timer = threading.Timer(idle_s, self._close_idle, (key, host))
        timer.daemon = True
        with self._lock:
            if key in self._kept:
                return False
            self._kept[key] = _Kept(host, timer)
            timer.start()
        return True

    def _close_idle(self, key: str, host: CallHost) -> None:
        """The timer's thread."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is None or kept.host is not host or kept.timer is not threading.current_thread():
                return  # leased again meanwhile
            del self._kept[key]
        log.debug("%s: closed, no task has used it for a while", host.name)
        host.stop(STOP_TIMEOUT_S)


_hosts: WorkerHosts | None = None  # of this process; made by the first task, on the worker's main thread


def worker_hosts() -> WorkerHosts:
    """The hosts of this process. The main thread of a worker."""
    global _hosts
    if _hosts is None:
        _hosts = WorkerHosts(reuses_workers=bool(os.environ.get("SPARK_REUSE_WORKER")))
        if TaskContext.get() is not None:
            call_at_worker_end(_hosts.close, STOP_TIMEOUT_S)
    return _hosts
