"""One node, after YARN's RMNodeImpl: it registers, reports, becomes unhealthy, is decommissioned and leaves.

Nothing is sent to a node: what it is to do waits in lists until the answer to its next heartbeat takes them. A node
that has left is kept among the inactive ones; if it comes back, a new RMNode takes its place.

Threading: handler thread only (invariant 1), but for the news that waits for the scheduler, which may have a thread of
its own (`pull_updates`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, Protocol

from statemachines.resourcemanager.entity import Entity
from statemachines.resourcemanager.events.records import ContainerStatus
from statemachines.resourcemanager.machines.rmcontainer import ContainerContext
from statemachines.resourcemanager.node_spec import NodeSpec
from statemachines.resourcemanager.resource import Resource
from statemachines.resourcemanager.scheduling import Scheduler
from statemachines.resourcemanager.services.liveliness import LivelinessMonitor

log = logging.getLogger(__name__)


class RMNodeState(Enum):
    NEW = auto()
    RUNNING = auto()
    UNHEALTHY = auto()
    DECOMMISSIONING = auto()
    DECOMMISSIONED = auto()
    LOST = auto()
    REBOOTED = auto()
    SHUTDOWN = auto()


Launched = tuple[str, ...]
Finished = tuple[ContainerStatus, ...]
Report = tuple[Launched, Finished]
PORT = 45454
"""Port in a node's id where nothing else is known, as in YARN's examples."""
UNKNOWN_PORT = -1
"""Port of the placeholder for a host of which no node has ever registered."""


class NodeContext(ContainerContext, Protocol):
    """What nodes need of their resource manager."""

    scheduler: Scheduler
    nodes: dict[str, RMNode]
    inactive_nodes: dict[str, RMNode]
    nm_liveliness_monitor: LivelinessMonitor

    @property
    def apps(self) -> Mapping[str, Entity]: ...


class RMNode(Entity):
    """A node; `entity` is its id, `host:port`."""

    machine = "RMNode"
    context: NodeContext

    __slots__ = (
        "apps_to_clean",
        "capacity",
        "containers",
        "decommission_timeout_s",
        "health",
        "in_scheduler",
        "last_response",
        "next_heartbeat",
        "original_capacity",
        "response_id",
        "running_apps",
        "spec",
        "to_clean",
        "to_forget",
        "to_signal",
        "to_update",
        "untracked_since_ms",
        "updates",
    )

    def __init__(self, context: NodeContext, spec: NodeSpec) -> None:
        super().__init__(context, node_id(spec.host, spec.port))
        self.spec = spec
        self.capacity = spec.capacity  # now; may have been changed since it registered
        self.original_capacity: Resource | None = None  # while DECOMMISSIONING: what RECOMMISSION restores
        self.decommission_timeout_s: int | None = None  # of its graceful decommissioning; None: no timeout
        self.health = True  # as it last said
        self.in_scheduler = False  # whether the scheduler has been told of it
        self.containers: set[str] = set()  # those that the node has said to run
        self.running_apps: set[str] = set()  # those that have had containers here, and have not ended
        self.untracked_since_ms: int | None = None  # inactive, and its host is on no list
        # Of its last heartbeat, if its heartbeats have ids:
        self.response_id = 0
        self.last_response: Any = None  # to be sent again, if it got lost
        # Until the answer to the next heartbeat:
        self.to_clean: set[str] = set()  # containers to stop
        self.apps_to_clean: list[str] = []  # applications that have ended
        self.to_signal: list[tuple[str, str]] = []  # (container, name of the signal)
        self.to_update: dict[str, Resource] = {}  # containers to give another size
        self.to_forget: list[str] = []  # containers of which all is known that is to be known
        # News for the scheduler: (launched, finished) of each report. The handler thread appends and clears, the
        # scheduler's thread takes; each is one atomic operation.
        self.updates: deque[Report] = deque()
        self.next_heartbeat = True  # nothing is on its way to the scheduler; set by its thread, cleared by the handler

    def pull_updates(self) -> list[Report]:
        """What the node has reported since the scheduler last asked. The scheduler's thread."""
        # First the flag: what is appended after the last look below then has an event of its own.
        self.next_heartbeat = True
        taken, updates = [], self.updates
        try:
            while updates:
                taken.append(updates.popleft())
        except IndexError:  # the handler thread has dropped the rest
            pass
        return taken

    def payload(self) -> dict[str, Any]:
        """What the journal says of it."""
        capacity = self.capacity
        payload: dict[str, Any] = {
            "host": self.spec.host,
            "rack": self.spec.rack,
            "memory_mb": capacity.memory_mb,
            "vcores_milli": capacity.vcores_milli,
            "gpus": capacity.gpus,
        }
        if self.spec.gpu_model is not None:
            payload["gpu_model"] = self.spec.gpu_model
        return payload


def node_id(host: str, port: int = PORT) -> str:
    return f"{host}:{port}"
