"""The seam between the resource manager and the daemons of its nodes."""

from __future__ import annotations

from typing import Protocol

from statemachines.resourcemanager.machines.rmcontainer import RMContainer


class NodeManagers(Protocol):
    """What the resource manager needs of the nodes' daemons. They register and report through its tracker.

    Daemons in this process act on the resource manager's clock and handler thread: it treats `next_deadline_ms` and
    `expire_due` as it treats its own monitors. Others have clocks of their own, and inherit both methods.
    """

    def start_container(self, container: RMContainer) -> None:
        """Start an acquired container on its node. Raises an Exception if the node cannot.

        Called from several threads if the launcher has a pool, otherwise on the handler thread.
        """

    def stop_container(self, container_id: str) -> None:
        """Stop a container wherever it runs; nothing if it does not run. Threads as for `start_container`."""

    def next_deadline_ms(self) -> int | None:
        """When they act by themselves next; None: not for the time being."""
        return None

    def expire_due(self) -> None:
        """Do all that is due now."""
