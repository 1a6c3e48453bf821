"""The seam between the resource manager and the daemons of its nodes."""

from __future__ import annotations

from typing import Protocol

from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.virtual_time import Deadlines


class NodeManagers(Protocol):
    """What the resource manager needs of the nodes' daemons. They register and report through its tracker."""

    @property
    def deadlines(self) -> Deadlines | None:
        """What they do by themselves on the resource manager's clock and handler thread, as its own monitors do.

        None, unless overridden: they have clocks of their own.
        """
        return None

    def start_container(self, container: RMContainer) -> None:
        """Start an acquired container on its node. Raises an Exception if the node cannot.

        Called from several threads if the launcher has a pool, otherwise on the handler thread.
        """

    def stop_container(self, container_id: str) -> None:
        """Stop a container wherever it runs; nothing if it does not run. Threads as for `start_container`."""
