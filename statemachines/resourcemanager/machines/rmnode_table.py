"""The states of a node and what leads from one to another, row for row those of YARN's RMNodeImpl."""

from __future__ import annotations

from statemachines.factory import StateMachineFactory
from statemachines.resourcemanager.events.rmnode import RMNodeEventType as E
from statemachines.resourcemanager.machines import rmnode_hooks as hooks
from statemachines.resourcemanager.machines.rmnode import RMNode, RMNodeState
from statemachines.resourcemanager.machines.rmnode import RMNodeState as S


def _build() -> StateMachineFactory[RMNodeState, RMNode]:
    factory: StateMachineFactory[RMNodeState, RMNode] = StateMachineFactory(S.NEW, "RMNode")
    return (
        factory.add_transition(S.NEW, (S.RUNNING, S.UNHEALTHY), E.STARTED, hooks.start)
        .add_transition(S.NEW, S.NEW, E.RESOURCE_UPDATE, hooks.set_capacity)
        .add_transition(S.NEW, S.DECOMMISSIONED, E.DECOMMISSION, hooks.deactivate)
        .add_transition(S.NEW, S.LOST, E.EXPIRE, hooks.deactivate)
        .add_transition(S.NEW, S.NEW, E.FINISHED_CONTAINERS_PULLED_BY_AM, hooks.list_to_forget)
        .add_transition(S.RUNNING, (S.RUNNING, S.UNHEALTHY), E.STATUS_UPDATE, hooks.take_status)
        .add_transition(S.RUNNING, S.DECOMMISSIONED, E.DECOMMISSION, hooks.deactivate)
        .add_transition(S.RUNNING, S.DECOMMISSIONING, E.GRACEFUL_DECOMMISSION, hooks.begin_decommissioning)
        .add_transition(S.RUNNING, S.LOST, E.EXPIRE, hooks.deactivate)
        .add_transition(S.RUNNING, S.REBOOTED, E.REBOOTING, hooks.deactivate)
        .add_transition(S.RUNNING, S.RUNNING, E.CLEANUP_APP, hooks.list_app_to_clean)
        .add_transition(S.RUNNING, S.RUNNING, E.CLEANUP_CONTAINER, hooks.list_container_to_clean)
        .add_transition(S.RUNNING, S.RUNNING, E.FINISHED_CONTAINERS_PULLED_BY_AM, hooks.list_to_forget)
        .add_transition(S.RUNNING, (S.RUNNING,), E.RECONNECTED, hooks.reconnect)
        .add_transition(S.RUNNING, S.RUNNING, E.RESOURCE_UPDATE, hooks.change_capacity)
        .add_transition(S.RUNNING, S.RUNNING, E.UPDATE_CONTAINER, hooks.list_to_update)
        .add_transition(S.RUNNING, S.RUNNING, E.SIGNAL_CONTAINER, hooks.list_to_signal)
        .add_transition(S.RUNNING, S.SHUTDOWN, E.SHUTDOWN, hooks.deactivate)
        .add_transition(S.REBOOTED, S.REBOOTED, E.RESOURCE_UPDATE, hooks.set_capacity)
        .add_transition(S.DECOMMISSIONED, S.DECOMMISSIONED, E.RESOURCE_UPDATE, hooks.set_capacity)
        .add_transition(S.DECOMMISSIONED, S.DECOMMISSIONED, E.FINISHED_CONTAINERS_PULLED_BY_AM, hooks.list_to_forget)
        .add_transition(S.DECOMMISSIONING, S.DECOMMISSIONED, E.DECOMMISSION, hooks.deactivate)
        .add_transition(S.DECOMMISSIONING, S.RUNNING, E.RECOMMISSION, hooks.recommission)
        .add_transition(S.DECOMMISSIONING, S.DECOMMISSIONING, E.RESOURCE_UPDATE, hooks.change_capacity)
        .add_transition(
            S.DECOMMISSIONING, (S.DECOMMISSIONING, S.DECOMMISSIONED), E.STATUS_UPDATE, hooks.take_status_decommissioning
        )
        .add_transition(S.DECOMMISSIONING, S.DECOMMISSIONING, E.GRACEFUL_DECOMMISSION, hooks.change_timeout)
        .add_transition(S.DECOMMISSIONING, S.LOST, E.EXPIRE, hooks.deactivate)
        .add_transition(S.DECOMMISSIONING, S.REBOOTED, E.REBOOTING, hooks.deactivate)
        .add_transition(S.DECOMMISSIONING, S.DECOMMISSIONING, E.FINISHED_CONTAINERS_PULLED_BY_AM, hooks.list_to_forget)
        .add_transition(S.DECOMMISSIONING, S.DECOMMISSIONING, E.CLEANUP_APP, hooks.list_app_to_clean)
        .add_transition(S.DECOMMISSIONING, S.SHUTDOWN, E.SHUTDOWN, hooks.deactivate)
        .add_transition(S.DECOMMISSIONING, S.DECOMMISSIONING, E.CLEANUP_CONTAINER, hooks.list_container_to_clean)
        .add_transition(S.DECOMMISSIONING, (S.DECOMMISSIONING, S.DECOMMISSIONED), E.RECONNECTED, hooks.reconnect)
        .add_transition(S.LOST, S.LOST, E.RESOURCE_UPDATE, hooks.set_capacity)
        .add_transition(S.LOST, S.LOST, E.FINISHED_CONTAINERS_PULLED_BY_AM, hooks.list_to_forget)
        .add_transition(S.UNHEALTHY, (S.UNHEALTHY, S.RUNNING), E.STATUS_UPDATE, hooks.take_status_unhealthy)
        .add_transition(S.UNHEALTHY, S.DECOMMISSIONED, E.DECOMMISSION, hooks.deactivate)
        .add_transition(S.UNHEALTHY, S.DECOMMISSIONING, E.GRACEFUL_DECOMMISSION, hooks.begin_decommissioning)
        .add_transition(S.UNHEALTHY, S.LOST, E.EXPIRE, hooks.deactivate)
        .add_transition(S.UNHEALTHY, S.REBOOTED, E.REBOOTING, hooks.deactivate)
        .add_transition(S.UNHEALTHY, (S.UNHEALTHY,), E.RECONNECTED, hooks.reconnect)
        .add_transition(S.UNHEALTHY, S.UNHEALTHY, E.CLEANUP_APP, hooks.list_app_to_clean)
        .add_transition(S.UNHEALTHY, S.UNHEALTHY, E.CLEANUP_CONTAINER, hooks.list_container_to_clean)
        .add_transition(S.UNHEALTHY, S.UNHEALTHY, E.RESOURCE_UPDATE, hooks.set_capacity)
        .add_transition(S.UNHEALTHY, S.UNHEALTHY, E.FINISHED_CONTAINERS_PULLED_BY_AM, hooks.list_to_forget)
        .add_transition(S.UNHEALTHY, S.UNHEALTHY, E.SIGNAL_CONTAINER, hooks.list_to_signal)
        .add_transition(S.UNHEALTHY, S.SHUTDOWN, E.SHUTDOWN, hooks.deactivate)
        .add_transition(S.SHUTDOWN, S.SHUTDOWN, E.RESOURCE_UPDATE, hooks.set_capacity)
        .add_transition(S.SHUTDOWN, S.SHUTDOWN, E.FINISHED_CONTAINERS_PULLED_BY_AM, hooks.list_to_forget)
        .install_topology()
    )


FACTORY: StateMachineFactory[RMNodeState, RMNode] = _build()
