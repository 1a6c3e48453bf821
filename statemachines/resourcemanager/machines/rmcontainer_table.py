"""RMContainer's hooks and its table, row for row YARN's RMContainerImpl."""

from __future__ import annotations

from statemachines.factory import StateMachineFactory
from statemachines.resourcemanager.events.exit_status import EXIT_PREEMPTED
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
from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.machines.rmcontainer import RMContainerState as S
from statemachines.resourcemanager.resource import Resource


def allocated(container: RMContainer, event: RMContainerEvent) -> None:
    """Report the allocation to the attempt."""
    container.context.post(RMAppAttemptEvent(RMAppAttemptEventType.CONTAINER_ALLOCATED, container.attempt))


def reserve(container: RMContainer, event: RMContainerReservedEvent) -> None:
    """Keep the size that the scheduler has reserved."""
    container.reserved_resource = event.resource


def _app_running_on_node(container: RMContainer) -> None:
    container.context.post(RMAppEvent(RMAppEventType.APP_RUNNING_ON_NODE, container.application, node=container.node))


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
        attempt.add_usage(container.request.resource, finish_ms - container.created_ms, preempted)
    context.post(
        RMAppAttemptEvent(RMAppAttemptEventType.CONTAINER_FINISHED, container.maker, status=status, node=container.node)
    )
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


def _build() -> StateMachineFactory[S, RMContainer]:
    factory: StateMachineFactory[S, RMContainer] = StateMachineFactory(S.NEW, "RMContainer")
    return (
        factory.add_transition(S.NEW, S.ALLOCATED, E.START, allocated)
        .add_transition(S.NEW, S.KILLED, E.KILL, forget)
        .add_transition(S.NEW, S.RESERVED, E.RESERVED, reserve)
        .add_transition(S.NEW, S.ACQUIRED, E.ACQUIRED, acquired)
        .add_transition(S.NEW, (S.RUNNING, S.COMPLETED), E.RECOVER, recover)
        .add_transition(S.RESERVED, S.RESERVED, E.RESERVED, reserve)
        .add_transition(S.RESERVED, S.ALLOCATED, E.START, allocated)
        .add_transition(S.RESERVED, S.KILLED, E.KILL, forget)
        .add_transition(S.RESERVED, S.RELEASED, E.RELEASED, forget)
        .add_transition(S.ALLOCATED, S.ACQUIRED, E.ACQUIRED, acquired)
        .add_transition(S.ALLOCATED, S.EXPIRED, E.EXPIRE, ended)
        .add_transition(S.ALLOCATED, S.KILLED, E.KILL, ended)
        .add_transition(S.ACQUIRED, S.RUNNING, E.LAUNCHED)
        .add_transition(S.ACQUIRED, S.ACQUIRED, E.ACQUIRED)
        .add_transition(S.ACQUIRED, S.COMPLETED, E.FINISHED, ended)
        .add_transition(S.ACQUIRED, S.RELEASED, E.RELEASED, stop)
        .add_transition(S.ACQUIRED, S.EXPIRED, E.EXPIRE, stop)
        .add_transition(S.ACQUIRED, S.KILLED, E.KILL, stop)
        .add_transition(S.RUNNING, S.COMPLETED, E.FINISHED, ended)
        .add_transition(S.RUNNING, S.KILLED, E.KILL, stop)
        .add_transition(S.RUNNING, S.RELEASED, E.RELEASED, stop)
        .add_transition(S.RUNNING, S.RUNNING, E.ACQUIRED)
        .add_transition(S.RUNNING, S.RUNNING, E.RESERVED, reserve)
        .add_transition(S.RUNNING, S.RUNNING, E.ACQUIRE_UPDATED_CONTAINER, size_acquired)
        .add_transition(S.RUNNING, S.RUNNING, E.NM_DONE_CHANGE_RESOURCE, size_reported)
        .add_transition(S.COMPLETED, S.COMPLETED, (E.EXPIRE, E.RELEASED, E.KILL))
        .add_transition(S.EXPIRED, S.EXPIRED, (E.RELEASED, E.KILL))
        .add_transition(S.RELEASED, S.RELEASED, (E.EXPIRE, E.RELEASED, E.KILL, E.FINISHED))
        .add_transition(S.KILLED, S.KILLED, (E.EXPIRE, E.RELEASED, E.KILL, E.ACQUIRED, E.FINISHED))
        .install_topology()
    )


FACTORY: StateMachineFactory[S, RMContainer] = _build()
