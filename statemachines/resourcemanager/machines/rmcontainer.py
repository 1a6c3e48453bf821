"""One container, after YARN's RMContainerImpl: reserved or allocated, acquired by its master, running, ended.

A container that has ended is forgotten; later events for it are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, Protocol

from statemachines.resourcemanager.entity import Entity, EntityContext
from statemachines.resourcemanager.events.records import ContainerRequest, ContainerStatus
from statemachines.resourcemanager.resource import Resource
from statemachines.resourcemanager.services.liveliness import LivelinessMonitor


class RMContainerState(Enum):
    NEW = auto()
    RESERVED = auto()
    ALLOCATED = auto()
    ACQUIRED = auto()
    RUNNING = auto()
    COMPLETED = auto()
    EXPIRED = auto()
    RELEASED = auto()
    KILLED = auto()


CONTAINER_FINAL_STATES = frozenset(
    {RMContainerState.COMPLETED, RMContainerState.EXPIRED, RMContainerState.RELEASED, RMContainerState.KILLED}
)
"""The states of an ended container."""


class UsageAccount(Protocol):
    """An attempt, which sums up the usage of its ended containers."""

    def add_usage(self, resource: Resource, ms: int, preempted: bool) -> None: ...


class ContainerContext(EntityContext, Protocol):
    """What containers need of their resource manager."""

    containers: dict[str, RMContainer]
    container_allocation_expirer: LivelinessMonitor

    @property
    def attempts(self) -> Mapping[str, UsageAccount]: ...


class RMContainer(Entity):
    """A container; `entity` is its id. `gpu_devices` are the GPUs of its node that it uses or shares."""

    machine = "RMContainer"
    context: ContainerContext

    __slots__ = (
        "application",
        "attempt",
        "created_ms",
        "finish_ms",
        "gpu_devices",
        "last_confirmed",
        "maker",
        "node",
        "request",
        "reserved_resource",
        "status",
    )

    def __init__(
        self,
        context: ContainerContext,
        container_id: str,
        application: str,
        attempt: str,
        node: str,
        request: ContainerRequest,
        gpu_devices: tuple[int, ...],
    ) -> None:
        super().__init__(context, container_id)
        self.application = application
        self.attempt = attempt  # changed by the scheduler when the next attempt takes over
        self.maker = attempt  # the attempt that it was allocated to, which learns of its end
        self.node = node
        self.request = request  # its resource is the booked size
        self.gpu_devices = gpu_devices
        self.created_ms = context.now_ms()
        self.last_confirmed = request.resource  # the size that its node has confirmed
        self.reserved_resource: Resource | None = None
        self.finish_ms: int | None = None
        self.status: ContainerStatus | None = None  # how it ended

    def payload(self) -> dict[str, Any]:
        """Its payload in the journal."""
        resource = self.request.resource
        return {
            "application": self.application,
            "attempt": self.attempt,
            "node": self.node,
            "memory_mb": resource.memory_mb,
            "vcores_milli": resource.vcores_milli,
            "gpus": resource.gpus,
            "gpu_milli": resource.gpu_milli,
            "gpu_devices": self.gpu_devices,
            "kind": self.request.kind,
        }
