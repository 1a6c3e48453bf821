"""Values that events carry."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from statemachines.resourcemanager.resource import Resource


class FinalApplicationStatus(Enum):
    """What a master says of its application when it unregisters."""

    UNDEFINED = auto()
    SUCCEEDED = auto()
    FAILED = auto()
    KILLED = auto()


class ContainerStatus(NamedTuple):
    """What a node says of a container that ended. Exit status 0 is success, a negative one is YARN's own."""

    container: str
    exit_status: int
    diagnostics: str = ""


class NMContainerStatus(NamedTuple):
    """What a node that registers says of a container it has: enough to take it back into the books."""

    container: str
    resource: Resource
    priority: int = 0
    status: ContainerStatus | None = None
    """How it ended; None: it runs."""
    kind: str = "AM"
    gpu_devices: tuple[int, ...] = ()
    node_label: str = ""
    """The partition it was asked for."""


class ContainerRequest(NamedTuple):
    """What an application master asks for: one container."""

    resource: Resource
    priority: int = 0
    host: str | None = None
    """Preferred node."""
    gpu_models: frozenset[str] = frozenset()
    """Node models that will do; empty: any."""
    kind: str = "AM"
    tag: int = 0
    """The asker's own mark; comes back with the container."""
    rack: str | None = None
    """Preferred rack, where no host is; with a host, that of the host."""
    relax_locality: bool = True
    """Whether another node will do, after a delay; False: only the host, or only the rack."""
    node_label: str | None = None
    """Partition; None: that of the application, or the queue's default."""
