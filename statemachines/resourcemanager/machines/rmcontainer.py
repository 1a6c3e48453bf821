"""One container, after YARN's RMContainerImpl: reserved or allocated, acquired by its master, running, ended; with its
hooks and its table.

A container that has ended is forgotten; later events for it are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Final, Protocol

from dispatcher.journal import JsonText
from statemachines.resourcemanager.events.records import EXIT_PREEMPTED, ContainerRequest, ContainerStatus
from statemachines.resourcemanager.events.rmapp import RMAppRunningOnNodeEvent
from statemachines.resourcemanager.events.rmappattempt import RMAppAttemptEvent, RMAppAttemptEventType
from statemachines.resourcemanager.events.rmcontainer import (
    RMContainerEvent,
    RMContainerRecoverEvent,
    RMContainerReservedEvent,
    RMContainerResourceEvent,
)
from statemachines.resourcemanager.events.rmcontainer import RMContainerEventType as E
from statemachines.resourcemanager.events.rmnode import RMNodeEvent, RMNodeEventType
from statemachines.resourcemanager.machines.entity import Entity, EntityContext
from statemachines.resourcemanager.machines.liveliness import LivelinessMonitor
from statemachines.resourcemanager.records.resource import Resource
from statemachines.table import STAY, Row, from_table


class RMContainerState(Enum):
    """The states of containers, as YARN's RMContainerState."""

    NEW = auto()
    RESERVED = auto()
    ALLOCATED = auto()
    ACQUIRED = auto()
    RUNNING = auto()
    COMPLETED = auto()
    EXPIRED = auto()
    RELEASED = auto()
    KILLED = auto()


S = RMContainerState
# Bound once: to look a member up in its class takes as long as a call.
_CONTAINER_ALLOCATED: Final = RMAppAttemptEventType.CONTAINER_ALLOCATED
_CONTAINER_FINISHED: Final = RMAppAttemptEventType.CONTAINER_FINISHED
CONTAINER_FINAL_STATES = frozenset({S.COMPLETED, S.EXPIRED, S.RELEASED, S.KILLED})
"""The states of an ended container."""


class UsageAccount(Protocol):
    """An attempt, which sums up the usage of its ended containers."""

    @property
    def master_container(self) -> str | None: ...

    def add_usage(self, resource: Resource, ms: int, preempted: bool, is_master: bool) -> None: ...


class ContainerContext(EntityContext, Protocol):
    """What containers need of their resource manager."""

    containers: dict[str, RMContainer]
    container_allocation_expirer: LivelinessMonitor

    @property
    def attempts(self) -> Mapping[str, UsageAccount]: ...


class RMContainer(Entity[ContainerContext]):
    """A container. `entity` is its id, `gpu_devices` are the GPUs of its node that it uses or shares."""

    machine = "RMContainer"

    __slots__ = (
        "application",
        "asked_ms",
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
        self.application: str = application
        self.attempt: str = attempt  # changed by the scheduler when the next attempt takes over
        self.maker: str = attempt  # the attempt that it was allocated to, which learns of its end
        self.node: str = node
        self.request: ContainerRequest = request  # its resource is the booked size
        self.gpu_devices: tuple[int, ...] = gpu_devices
        self.created_ms: int = context.now_ms()
        self.asked_ms: int = self.created_ms  # once allocated, when it was asked for
        self.last_confirmed: Resource = request.resource  # the size that its node has confirmed
        self.reserved_resource: Resource | None = None
        self.finish_ms: int | None = None
        self.status: ContainerStatus | None = None  # how it ended

    def payload(self) -> dict[str, Any]:
        """Return its payload in the journal."""
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

    def payload_text(self) -> JsonText:
        """Return `payload` as JSON, in a quarter of an encoder's time, since each container has one."""
        request, resource = self.request, self.request.resource
        devices = ",".join(map(str, self.gpu_devices))
        return JsonText(
            f'{{"application":{quoted(self.application)},"attempt":{quoted(self.attempt)},"node":{quoted(self.node)},'
            f'"memory_mb":{resource.memory_mb},"vcores_milli":{resource.vcores_milli},"gpus":{resource.gpus},'
            f'"gpu_milli":{resource.gpu_milli},"gpu_devices":[{devices}],"kind":{quoted(request.kind)}}}'
        )


# -- hooks ------------------------------------------------------------------------------------------------------------


def allocated(container: RMContainer, event: RMContainerEvent) -> None:
    """Report the allocation to the attempt."""
    container.context.post(RMAppAttemptEvent(_CONTAINER_ALLOCATED, container.attempt))


def reserve(container: RMContainer, event: RMContainerReservedEvent) -> None:
    """Keep the size that the scheduler has reserved."""
    container.reserved_resource = event.resource


def _app_running_on_node(container: RMContainer) -> None:
    container.context.post(RMAppRunningOnNodeEvent(container.application, container.node))


def acquired(container: RMContainer, event: RMContainerEvent) -> None:
    """Watch that the master starts the container in time, and tell the application which node it uses."""
    container.context.container_allocation_expirer.register(container.entity)
    _app_running_on_node(container)


def recover(container: RMContainer, event: RMContainerRecoverEvent) -> S:
    """Restore a container that its node reports when it registers."""
    if event.report.status is not None:
        ended(container, event)
        return S.COMPLETED
    _app_running_on_node(container)
    return S.RUNNING


def ended(container: RMContainer, event: RMContainerEvent) -> None:
    """Charge the attempt for the container, report its end there, and forget it."""
    context, status = container.context, event.status
    context.container_allocation_expirer.unregister(container.entity)  # registered if it waits for an increase
    finish_ms = context.now_ms()
    container.finish_ms = finish_ms
    container.status = status
    attempt = context.attempts.get(container.attempt)
    if attempt is not None:
        preempted = status is not None and status.exit_status == EXIT_PREEMPTED
        is_master = attempt.master_container == container.entity
        attempt.add_usage(container.request.resource, finish_ms - container.created_ms, preempted, is_master)
    context.post(RMAppAttemptEvent(_CONTAINER_FINISHED, container.maker, status=status, node=container.node))
    del context.containers[container.entity]
    container.state_machine.release()  # breaks the reference cycle: millions of containers are freed at once


def stop(container: RMContainer, event: RMContainerEvent) -> None:
    """Have the node stop the container, and end it."""
    container.context.post(RMNodeEvent(RMNodeEventType.CLEANUP_CONTAINER, container.node, container.entity))
    ended(container, event)


def forget(container: RMContainer, event: RMContainerEvent) -> None:
    """End a container that the attempt never saw."""
    container.finish_ms = container.context.now_ms()
    container.status = event.status
    del container.context.containers[container.entity]
    container.state_machine.release()


# -- resizing ---------------------------------------------------------------------------------------------------------


def _covers(size: Resource, other: Resource) -> bool:
    """Whether `size` is at least `other` in each resource type."""
    return (
        size.memory_mb >= other.memory_mb
        and size.vcores_milli >= other.vcores_milli
        and size.gpu_milli_total >= other.gpu_milli_total
        and all(size.other(name) >= amount for name, amount in other.others)
    )


def size_acquired(container: RMContainer, event: RMContainerResourceEvent) -> None:
    """Watch an increase that the master has acquired: if the node never confirms it, it is rolled back."""
    if not _covers(container.last_confirmed, event.resource):
        container.context.container_allocation_expirer.register(container.entity)


def size_reported(container: RMContainer, event: RMContainerResourceEvent) -> None:
    """Compare the size on the node with the size that the scheduler has booked."""
    context, container_id = container.context, container.entity
    on_node, booked = event.resource, container.request.resource
    if on_node == booked:
        container.last_confirmed = booked
        context.container_allocation_expirer.unregister(container_id)
    elif _covers(on_node, booked):
        # The increase was rolled back, or a decrease followed it: the node must shrink the container.
        container.last_confirmed = booked
        context.container_allocation_expirer.unregister(container_id)
        context.post(RMNodeEvent(RMNodeEventType.UPDATE_CONTAINER, container.node, (container_id, booked)))
    elif _covers(booked, on_node):
        # The node confirms an increase, and a later one is open: the expirer keeps watching that one.
        if _covers(on_node, container.last_confirmed):
            container.last_confirmed = on_node
    else:
        # Less of one type and more of another was never requested: the node cannot be trusted with the container.
        context.post(RMNodeEvent(RMNodeEventType.CLEANUP_CONTAINER, container.node, container_id))


# -- the table --------------------------------------------------------------------------------------------------------

_ROWS: tuple[Row[S], ...] = (
    (S.NEW, S.RESERVED, E.RESERVED, reserve),
    (S.NEW, S.ACQUIRED, E.ACQUIRED, acquired),
    (S.NEW, (S.RUNNING, S.COMPLETED), E.RECOVER, recover),
    ((S.NEW, S.RESERVED), S.ALLOCATED, E.START, allocated),
    ((S.NEW, S.RESERVED), S.KILLED, E.KILL, forget),
    (S.RESERVED, S.RELEASED, E.RELEASED, forget),
    ((S.RESERVED, S.RUNNING), STAY, E.RESERVED, reserve),
    (S.ALLOCATED, S.ACQUIRED, E.ACQUIRED, acquired),
    (S.ALLOCATED, S.EXPIRED, E.EXPIRE, ended),
    (S.ALLOCATED, S.KILLED, E.KILL, ended),
    (S.ACQUIRED, S.RUNNING, E.LAUNCHED),
    (S.ACQUIRED, S.EXPIRED, E.EXPIRE, stop),
    ((S.ACQUIRED, S.RUNNING), STAY, E.ACQUIRED),
    ((S.ACQUIRED, S.RUNNING), S.COMPLETED, E.FINISHED, ended),
    ((S.ACQUIRED, S.RUNNING), S.RELEASED, E.RELEASED, stop),
    ((S.ACQUIRED, S.RUNNING), S.KILLED, E.KILL, stop),
    (S.RUNNING, STAY, E.ACQUIRE_UPDATED_CONTAINER, size_acquired),
    (S.RUNNING, STAY, E.NM_DONE_CHANGE_RESOURCE, size_reported),
    (CONTAINER_FINAL_STATES, STAY, (E.RELEASED, E.KILL)),
    ((S.COMPLETED, S.RELEASED, S.KILLED), STAY, E.EXPIRE),
    ((S.RELEASED, S.KILLED), STAY, E.FINISHED),
    (S.KILLED, STAY, E.ACQUIRED),
)
FACTORY = from_table("RMContainer", S, _ROWS)
