"""Starts and stops the containers of application masters through the node managers, whose interface is here.

Threading: `handle` runs on the handler thread and does the work there, or in a pool if nodes may be slow to answer. One
thread at a time works for an attempt, in the order of its events: a stop never overtakes a start, which would leave the
container running. The outcome is posted from the thread that did the work.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Protocol

from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.events.rmappattempt import RMAppAttemptEvent, RMAppAttemptEventType
from statemachines.resourcemanager.events.services import AMLauncherEvent, AMLauncherEventType
from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.virtual_time import Deadlines

log = logging.getLogger(__name__)


class NodeManagers(Protocol):
    """The nodes' daemons, as the resource manager calls them. They register and report through its tracker."""

    @property
    def deadlines(self) -> Deadlines | None:
        """Their deadlines on the resource manager's clock and handler thread; None: they have their own clocks."""
        return None

    def start_container(self, container: RMContainer) -> None:
        """Start an acquired container on its node. Raises an Exception if the node cannot.

        Called from the launcher's pool if it has one, otherwise on the handler thread.
        """

    def stop_container(self, container_id: str) -> None:
        """Stop a container, if it runs. Threads as for `start_container`."""


class ApplicationMasterLauncher:
    """YARN's ApplicationMasterLauncher."""

    def __init__(
        self, context: RMContext, node_managers: NodeManagers | None = None, pool: Executor | None = None
    ) -> None:
        """Without `node_managers` nothing is launched: the container expires unless its node reports it.

        `pool`: its threads wait for the nodes; its owner shuts it down. None: the handler thread waits.
        """
        self._context = context
        self._node_managers = node_managers  # handler thread only
        self._pool = pool
        self._lock = threading.Lock()  # leaf lock: nothing foreign is called while it is held
        # By attempt: the calls that wait behind the one in progress. Guarded by _lock.
        self._work: dict[str, deque[Callable[[], None]]] = {}

    def connect(self, node_managers: NodeManagers) -> None:
        """Launch through `node_managers` from now on. Handler thread, or before it starts."""
        self._node_managers = node_managers

    def handle(self, event: AMLauncherEvent) -> None:
        """Launch or clean up an attempt's master, unless it is unmanaged."""
        attempt_id, node_managers = event.entity, self._node_managers
        attempt = self._context.attempts.get(attempt_id)
        master = attempt.master_container if attempt is not None else None
        if master is None or node_managers is None:
            return
        if event.type is AMLauncherEventType.CLEANUP:
            self._do(attempt_id, lambda: self._clean_up(node_managers, attempt_id, master))
            return
        container = self._context.containers.get(master)
        if container is not None:  # otherwise it has ended, and CONTAINER_FINISHED follows
            self._do(attempt_id, lambda: self._launch(node_managers, attempt_id, container))

    def _launch(self, node_managers: NodeManagers, attempt_id: str, container: RMContainer) -> None:
        try:
            node_managers.start_container(container)
        except Exception as error:
            log.warning("%s: launch failed: %r", attempt_id, error)
            failed = RMAppAttemptEvent(RMAppAttemptEventType.LAUNCH_FAILED, attempt_id, f"launch failed: {error}")
            self._context.post(failed)
        else:
            self._context.post(RMAppAttemptEvent(RMAppAttemptEventType.LAUNCHED, attempt_id))

    def _clean_up(self, node_managers: NodeManagers, attempt_id: str, container_id: str) -> None:
        try:
            node_managers.stop_container(container_id)
        except Exception as error:
            # The node stops it as well with its next heartbeat: the application has ended, or the node is gone.
            log.warning("%s: clean-up of %s failed: %r", attempt_id, container_id, error)

    def _do(self, attempt_id: str, work: Callable[[], None]) -> None:
        if self._pool is None:
            work()
            return
        with self._lock:
            waiting = self._work.get(attempt_id)
            if waiting is not None:
                waiting.append(work)
                return
            self._work[attempt_id] = deque([work])
        try:
            self._pool.submit(self._work_off, attempt_id)
        except RuntimeError:  # the pool is shut down; the dispatcher counts and logs the error
            with self._lock:
                del self._work[attempt_id]
            raise

    def _work_off(self, attempt_id: str) -> None:
        """In the pool: make an attempt's calls until none is left."""
        while True:
            with self._lock:
                waiting = self._work[attempt_id]
                if not waiting:
                    del self._work[attempt_id]
                    return
                work = waiting.popleft()
            work()
