"""One container, after YARN's RMContainerImpl: reserved or allocated, fetched by its master, running, ended.

A container that has ended is forgotten; what still comes for it is for nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Any

from statemachines.factory import StateMachineFactory
from statemachines.resourcemanager.context import Entity, RMContext
from statemachines.resourcemanager.events.exit_status import EXIT_PREEMPTED
from statemachines.resourcemanager.events.records import ContainerRequest, ContainerStatus
from statemachines.resourcemanager.events.rmapp import RMAppEvent, RMAppEventType
from statemachines.resourcemanager.events.rmappattempt import RMAppAttemptEvent, RMAppAttemptEventType
from statemachines.resourcemanager.events.rmcontainer import (
    RMContainerEvent,
    RMContainerRecoverEvent,
    RMContainerReservedEvent,
    RMContainerResourceEvent,
)
from statemachines.resourcemanager.events.rmcontainer import RMContainerEventType as E
from statemachines.resourcemanager.events.rmnode import RMNodeEvent, RMNodeEventType
from statemachines.resourcemanager.resource import Resource


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


S = RMContainerState


class RMContainer(Entity):
    """A container; `entity` is its id. `gpu_devices` are the GPUs of its node that it has, or has a share of."""

    machine = "RMContainer"

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
        "reserved_node",
        "reserved_resource",
        "status",
    )

    def __init__(
        self,
        context: RMContext,
        container_id: str,
        application: str,
        attempt: str,
        node: str,
        request: ContainerRequest,
        gpu_devices: tuple[int, ...],
    ) -> None:
        super().__init__(context, container_id, FACTORY.make(self, listener=context.recorder))
        self.application = application
        self.attempt = attempt  # the scheduler changes it when the next attempt takes the container over
        self.maker = attempt  # the attempt that it was made for: hears of its end, and hands that on
        self.node = node
        self.request = request  # its resource is the size that the scheduler has booked
        self.gpu_devices = gpu_devices
        self.created_ms = context.now_ms()
        self.last_confirmed = request.resource  # the size that its node is known to give it
        self.reserved_node: str | None = None
        self.reserved_resource: Resource | None = None
        self.finish_ms: int | None = None
        self.status: ContainerStatus | None = None  # how it ended

    def payload(self) -> dict[str, Any]:
        """What the journal says of it."""
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


Hook = Callable[[RMContainer, RMContainerEvent], Any]


def _allocated(container: RMContainer, event: RMContainerEvent) -> None:
    container.context.post(RMAppAttemptEvent(RMAppAttemptEventType.CONTAINER_ALLOCATED, container.attempt))


def _reserve(container: RMContainer, event: RMContainerReservedEvent) -> None:
    container.reserved_node = event.node
    container.reserved_resource = event.resource


def _tell_app_where(container: RMContainer) -> None:
    container.context.post(RMAppEvent(RMAppEventType.APP_RUNNING_ON_NODE, container.application, node=container.node))


def _acquired(container: RMContainer, event: RMContainerEvent) -> None:
    container.context.container_allocation_expirer.register(container.entity)
    _tell_app_where(container)


def _recover(container: RMContainer, event: RMContainerRecoverEvent) -> RMContainerState:
    if event.report.status is not None:
        _ended(container, event)
        return S.COMPLETED
    _tell_app_where(container)
    return S.RUNNING


def _ended(container: RMContainer, event: RMContainerEvent) -> None:
    context, status = container.context, event.status
    # Also for what was registered after its node's last word: that it may grow.
    context.container_allocation_expirer.unregister(container.entity)
    finish_ms = context.now_ms()
    container.finish_ms = finish_ms
    container.status = status
    attempt = context.attempts.get(container.attempt)
    if attempt is not None:
        preempted = status is not None and status.exit_status == EXIT_PREEMPTED
        attempt.add_usage(container.request.resource, finish_ms - container.created_ms, preempted)
    context.post(
        RMAppAttemptEvent(RMAppAttemptEventType.CONTAINER_FINISHED, container.maker, status=status, node=container.node)
    )
    del context.containers[container.entity]
    container.state_machine.release()  # nobody sends it anything any more: millions of them are freed at once


def _stop(container: RMContainer, event: RMContainerEvent) -> None:
    container.context.post(RMNodeEvent(RMNodeEventType.CLEANUP_CONTAINER, container.node, container.entity))
    _ended(container, event)


def _forget(container: RMContainer, event: RMContainerEvent) -> None:
    """It ends before it was anything that its attempt could know of."""
    container.finish_ms = container.context.now_ms()
    container.status = event.status
    del container.context.containers[container.entity]
    container.state_machine.release()


# -- resizing ---------------------------------------------------------------------------------------------------------


def _covers(size: Resource, other: Resource) -> bool:
    """Whether `size` is at least `other` in each type."""
    return (
        size.memory_mb >= other.memory_mb
        and size.vcores_milli >= other.vcores_milli
        and size.gpu_milli_total >= other.gpu_milli_total
        and all(size.other(name) >= amount for name, amount in other.others)
    )


def _size_acquired(container: RMContainer, event: RMContainerResourceEvent) -> None:
    """The master knows the size to be. An increase that its node never confirms is taken back when this expires."""
    if not _covers(container.last_confirmed, event.resource):
        container.context.container_allocation_expirer.register(container.entity)


def _size_reported(container: RMContainer, event: RMContainerResourceEvent) -> None:
    context, container_id = container.context, container.entity
    on_node, booked = event.resource, container.request.resource
    if on_node == booked:
        container.last_confirmed = booked
        context.container_allocation_expirer.unregister(container_id)
    elif _covers(on_node, booked):
        # The increase has been taken back, or was followed by a decrease: the node is to follow, too.
        container.last_confirmed = booked
        context.container_allocation_expirer.unregister(container_id)
        context.post(RMNodeEvent(RMNodeEventType.UPDATE_CONTAINER, container.node, (container_id, booked)))
    elif _covers(booked, on_node):
        # The report of an increase that another has followed: the expirer goes on, for the last one.
        if _covers(on_node, container.last_confirmed):
            container.last_confirmed = on_node
    else:
        # Less of one type and more of another: no size that was ever asked for, so the node is not to be trusted.
        context.post(RMNodeEvent(RMNodeEventType.CLEANUP_CONTAINER, container.node, container_id))


def _build() -> StateMachineFactory[RMContainerState, RMContainer]:
    factory: StateMachineFactory[RMContainerState, RMContainer] = StateMachineFactory(S.NEW, "RMContainer")
    return (
        factory.add_transition(S.NEW, S.ALLOCATED, E.START, _allocated)
        .add_transition(S.NEW, S.KILLED, E.KILL, _forget)
        .add_transition(S.NEW, S.RESERVED, E.RESERVED, _reserve)
        .add_transition(S.NEW, S.ACQUIRED, E.ACQUIRED, _acquired)
        .add_transition(S.NEW, (S.RUNNING, S.COMPLETED), E.RECOVER, _recover)
        .add_transition(S.RESERVED, S.RESERVED, E.RESERVED, _reserve)
        .add_transition(S.RESERVED, S.ALLOCATED, E.START, _allocated)
        .add_transition(S.RESERVED, S.KILLED, E.KILL, _forget)
        .add_transition(S.RESERVED, S.RELEASED, E.RELEASED, _forget)
        .add_transition(S.ALLOCATED, S.ACQUIRED, E.ACQUIRED, _acquired)
        .add_transition(S.ALLOCATED, S.EXPIRED, E.EXPIRE, _ended)
        .add_transition(S.ALLOCATED, S.KILLED, E.KILL, _ended)
        .add_transition(S.ACQUIRED, S.RUNNING, E.LAUNCHED)
        .add_transition(S.ACQUIRED, S.ACQUIRED, E.ACQUIRED)
        .add_transition(S.ACQUIRED, S.COMPLETED, E.FINISHED, _ended)
        .add_transition(S.ACQUIRED, S.RELEASED, E.RELEASED, _stop)
        .add_transition(S.ACQUIRED, S.EXPIRED, E.EXPIRE, _stop)
        .add_transition(S.ACQUIRED, S.KILLED, E.KILL, _stop)
        .add_transition(S.RUNNING, S.COMPLETED, E.FINISHED, _ended)
        .add_transition(S.RUNNING, S.KILLED, E.KILL, _stop)
        .add_transition(S.RUNNING, S.RELEASED, E.RELEASED, _stop)
        .add_transition(S.RUNNING, S.RUNNING, E.ACQUIRED)
        .add_transition(S.RUNNING, S.RUNNING, E.RESERVED, _reserve)
        .add_transition(S.RUNNING, S.RUNNING, E.ACQUIRE_UPDATED_CONTAINER, _size_acquired)
        .add_transition(S.RUNNING, S.RUNNING, E.NM_DONE_CHANGE_RESOURCE, _size_reported)
        .add_transition(S.COMPLETED, S.COMPLETED, (E.EXPIRE, E.RELEASED, E.KILL))
        .add_transition(S.EXPIRED, S.EXPIRED, (E.RELEASED, E.KILL))
        .add_transition(S.RELEASED, S.RELEASED, (E.EXPIRE, E.RELEASED, E.KILL, E.FINISHED))
        .add_transition(S.KILLED, S.KILLED, (E.EXPIRE, E.RELEASED, E.KILL, E.ACQUIRED, E.FINISHED))
        .install_topology()
    )


FACTORY = _build()
