"""Starts and stops the containers of application masters through the node managers, whose interface is here.

Threading: handler thread only, which waits for the nodes.
"""

from __future__ import annotations

import logging
from typing import Protocol

from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.events.rmappattempt import LAUNCH_FAILED, RMAppAttemptEvent, RMAppAttemptEventType
from statemachines.resourcemanager.events.services import AMLauncherEvent, AMLauncherEventType
from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.services.virtual_time import Deadlines

log: logging.Logger = logging.getLogger(__name__)


class NodeManagers(Protocol):
    """The nodes' daemons, as the resource manager calls them. They register and report through its tracker."""

    @property
    def deadlines(self) -> Deadlines | None:
        """Their deadlines on the resource manager's clock and handler thread; None: they have their own clocks."""
        return None

    def start_container(self, container: RMContainer) -> None:
        """Start an acquired container on its node. Raises an Exception if the node cannot. Handler thread."""

    def stop_container(self, container_id: str) -> None:
        """Stop a container, if it runs. Handler thread."""


class ApplicationMasterLauncher:
    """YARN's ApplicationMasterLauncher."""

    def __init__(self, context: RMContext) -> None:
        self._context = context
        self.node_managers: NodeManagers | None = None
        """None: nothing is launched, and the container expires unless its node reports it."""

    def handle(self, event: AMLauncherEvent) -> None:
        """Launch or clean up an attempt's master, unless it is unmanaged."""
        attempt_id, node_managers = event.entity, self.node_managers
        attempt = self._context.attempts.get(attempt_id)
        master = attempt.master_container if attempt is not None else None
        if master is None or node_managers is None:
            return
        if event.type is AMLauncherEventType.CLEANUP:
            self._clean_up(node_managers, attempt_id, master)
            return
        container = self._context.containers.get(master)
        if container is not None:  # otherwise it has ended, and CONTAINER_FINISHED follows
            self._launch(node_managers, attempt_id, container)

    def _launch(self, node_managers: NodeManagers, attempt_id: str, container: RMContainer) -> None:
        try:
            node_managers.start_container(container)
        except Exception as error:
            log.warning("%s: launch failed: %r", attempt_id, error)
            failed = RMAppAttemptEvent(RMAppAttemptEventType.LAUNCH_FAILED, attempt_id, f"{LAUNCH_FAILED}: {error}")
            self._context.post(failed)
        else:
            self._context.post(RMAppAttemptEvent(RMAppAttemptEventType.LAUNCHED, attempt_id))

    def _clean_up(self, node_managers: NodeManagers, attempt_id: str, container_id: str) -> None:
        try:
            node_managers.stop_container(container_id)
        except Exception as error:
            # The node stops it as well with its next heartbeat: the application has ended, or the node is gone.
            log.warning("%s: clean-up of %s failed: %r", attempt_id, container_id, error)
