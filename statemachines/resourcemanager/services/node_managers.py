"""The interface between the resource manager and the daemons of its nodes."""

from __future__ import annotations

from typing import Protocol

from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.virtual_time import Deadlines


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
