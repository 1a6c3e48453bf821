"""What a container does on its events: the hooks of RMContainer's table, named after what they do."""

from __future__ import annotations

from statemachines.resourcemanager.events.exit_status import EXIT_PREEMPTED
from statemachines.resourcemanager.events.rmapp import RMAppEvent, RMAppEventType
from statemachines.resourcemanager.events.rmappattempt import RMAppAttemptEvent, RMAppAttemptEventType
from statemachines.resourcemanager.events.rmcontainer import (
    RMContainerEvent,
    RMContainerRecoverEvent,
    RMContainerReservedEvent,
    RMContainerResourceEvent,
)
from statemachines.resourcemanager.events.rmnode import RMNodeEvent, RMNodeEventType
from statemachines.resourcemanager.machines.rmcontainer import RMContainer, RMContainerState
from statemachines.resourcemanager.machines.rmcontainer import RMContainerState as S
from statemachines.resourcemanager.resource import Resource


def allocated(container: RMContainer, event: RMContainerEvent) -> None:
    container.context.post(RMAppAttemptEvent(RMAppAttemptEventType.CONTAINER_ALLOCATED, container.attempt))


def reserve(container: RMContainer, event: RMContainerReservedEvent) -> None:
    container.reserved_node = event.node
    container.reserved_resource = event.resource


def _tell_app_where(container: RMContainer) -> None:
    container.context.post(RMAppEvent(RMAppEventType.APP_RUNNING_ON_NODE, container.application, node=container.node))


def acquired(container: RMContainer, event: RMContainerEvent) -> None:
    container.context.container_allocation_expirer.register(container.entity)
    _tell_app_where(container)


def recover(container: RMContainer, event: RMContainerRecoverEvent) -> RMContainerState:
    if event.report.status is not None:
        ended(container, event)
        return S.COMPLETED
    _tell_app_where(container)
    return S.RUNNING


def ended(container: RMContainer, event: RMContainerEvent) -> None:
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


def stop(container: RMContainer, event: RMContainerEvent) -> None:
    container.context.post(RMNodeEvent(RMNodeEventType.CLEANUP_CONTAINER, container.node, container.entity))
    ended(container, event)


def forget(container: RMContainer, event: RMContainerEvent) -> None:
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


def size_acquired(container: RMContainer, event: RMContainerResourceEvent) -> None:
    """The master knows the size to be. An increase that its node never confirms is taken back when this expires."""
    if not _covers(container.last_confirmed, event.resource):
        container.context.container_allocation_expirer.register(container.entity)


def size_reported(container: RMContainer, event: RMContainerResourceEvent) -> None:
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
