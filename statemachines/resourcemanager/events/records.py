"""What the events share: their base, the values in them, and YARN's exit statuses of containers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

from dispatcher.event import Event
from statemachines.resourcemanager.records.resource import Resource

EXIT_STATUS = "exit_status"
"""The key of an exit status in the payload of an event that ends a container."""
EXIT_SUCCESS = 0
EXIT_ABORTED = -100
"""The resource manager ended the container."""
EXIT_DISKS_FAILED = -101
"""The node lost its disks."""
EXIT_PREEMPTED = -102
"""The container was preempted for another queue."""
EXIT_KILLED_BY_RESOURCEMANAGER = -106
"""The node stopped the container on the resource manager's order."""
EXIT_KILLED_AFTER_APP_COMPLETION = -107
"""The node stopped the container because its application had ended."""


@dataclass(eq=False, repr=False, slots=True)
class RMEvent(Event[Any]):
    """The base of the events. `entity` is the id of the addressed entity: an RMAppEvent's application, for example.

    The journal records when an event was handled, so events have no timestamps.
    """

    type: Enum
    timestamp: float = field(default=-1.0, init=False)  # none, as in YARN's AbstractEvent
    entity: str = field()  # a field without a default, although Event has one


class FinalApplicationStatus(Enum):
    """How an application ended, as its master reports when it unregisters."""

    UNDEFINED = auto()
    SUCCEEDED = auto()
    FAILED = auto()
    KILLED = auto()


class ContainerStatus(NamedTuple):
    """A node's report of an ended container. Exit status 0 is success, and negative ones are YARN's."""

    container: str
    exit_status: int
    diagnostics: str = ""

    def payload(self) -> dict[str, Any] | None:
        """Return the end's payload in the journal, which is empty for a success, so that only failures pay for it."""
        if self.exit_status == EXIT_SUCCESS:
            return None
        return {EXIT_STATUS: self.exit_status, "diagnostics": self.diagnostics}


class NMContainerStatus(NamedTuple):
    """A registering node's report of a container, for the scheduler to recover it."""

    container: str
    resource: Resource
    priority: int = 0
    status: ContainerStatus | None = None
    """How it ended, or None while it's running."""
    kind: str = "AM"
    gpu_devices: tuple[int, ...] = ()
    node_label: str = ""
    """The requested partition."""


class ContainerRequest(NamedTuple):
    """A request for one container."""

    resource: Resource
    priority: int = 0
    host: str | None = None
    """Preferred node."""
    gpu_models: frozenset[str] = frozenset()
    """Accepted GPU models, or empty for any."""
    kind: str = "AM"
    tag: int = 0
    """Chosen by the master, and returned with the container."""
    rack: str | None = None
    """Preferred rack. With a host, that host's rack."""
    relax_locality: bool = True
    """Whether another node is accepted after a delay. If False, only the host or the rack is."""
    node_label: str | None = None
    """Partition. None is the application's, or the queue's default."""
