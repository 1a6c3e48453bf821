"""Values in events."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from statemachines.resourcemanager.resource import Resource


class FinalApplicationStatus(Enum):
    """How an application ended, as its master reports when it unregisters."""

    UNDEFINED = auto()
    SUCCEEDED = auto()
    FAILED = auto()
    KILLED = auto()


class ContainerStatus(NamedTuple):
    """A node's report of an ended container. Exit status 0 is success; negative ones are YARN's."""

    container: str
    exit_status: int
    diagnostics: str = ""


class NMContainerStatus(NamedTuple):
    """A registering node's report of a container, from which the scheduler recovers it."""

    container: str
    resource: Resource
    priority: int = 0
    status: ContainerStatus | None = None
    """How it ended; None: it is running."""
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
    """Accepted GPU models; empty: any."""
    kind: str = "AM"
    tag: int = 0
    """Chosen by the master; returned with the container."""
    rack: str | None = None
    """Preferred rack; with a host, that host's rack."""
    relax_locality: bool = True
    """Whether another node is accepted after a delay; False: only the host or the rack."""
    node_label: str | None = None
    """Partition; None: the application's, or the queue's default."""
