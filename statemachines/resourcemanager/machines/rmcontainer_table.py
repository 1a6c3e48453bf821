"""The states of a container and what leads from one to another, row for row those of YARN's RMContainerImpl."""

from __future__ import annotations

from statemachines.factory import StateMachineFactory
from statemachines.resourcemanager.events.rmcontainer import RMContainerEventType as E
from statemachines.resourcemanager.machines import rmcontainer_hooks as hooks
from statemachines.resourcemanager.machines.rmcontainer import RMContainer, RMContainerState
from statemachines.resourcemanager.machines.rmcontainer import RMContainerState as S


def _build() -> StateMachineFactory[RMContainerState, RMContainer]:
    factory: StateMachineFactory[RMContainerState, RMContainer] = StateMachineFactory(S.NEW, "RMContainer")
    return (
        factory.add_transition(S.NEW, S.ALLOCATED, E.START, hooks.allocated)
        .add_transition(S.NEW, S.KILLED, E.KILL, hooks.forget)
        .add_transition(S.NEW, S.RESERVED, E.RESERVED, hooks.reserve)
        .add_transition(S.NEW, S.ACQUIRED, E.ACQUIRED, hooks.acquired)
        .add_transition(S.NEW, (S.RUNNING, S.COMPLETED), E.RECOVER, hooks.recover)
        .add_transition(S.RESERVED, S.RESERVED, E.RESERVED, hooks.reserve)
        .add_transition(S.RESERVED, S.ALLOCATED, E.START, hooks.allocated)
        .add_transition(S.RESERVED, S.KILLED, E.KILL, hooks.forget)
        .add_transition(S.RESERVED, S.RELEASED, E.RELEASED, hooks.forget)
        .add_transition(S.ALLOCATED, S.ACQUIRED, E.ACQUIRED, hooks.acquired)
        .add_transition(S.ALLOCATED, S.EXPIRED, E.EXPIRE, hooks.ended)
        .add_transition(S.ALLOCATED, S.KILLED, E.KILL, hooks.ended)
        .add_transition(S.ACQUIRED, S.RUNNING, E.LAUNCHED)
        .add_transition(S.ACQUIRED, S.ACQUIRED, E.ACQUIRED)
        .add_transition(S.ACQUIRED, S.COMPLETED, E.FINISHED, hooks.ended)
        .add_transition(S.ACQUIRED, S.RELEASED, E.RELEASED, hooks.stop)
        .add_transition(S.ACQUIRED, S.EXPIRED, E.EXPIRE, hooks.stop)
        .add_transition(S.ACQUIRED, S.KILLED, E.KILL, hooks.stop)
        .add_transition(S.RUNNING, S.COMPLETED, E.FINISHED, hooks.ended)
        .add_transition(S.RUNNING, S.KILLED, E.KILL, hooks.stop)
        .add_transition(S.RUNNING, S.RELEASED, E.RELEASED, hooks.stop)
        .add_transition(S.RUNNING, S.RUNNING, E.ACQUIRED)
        .add_transition(S.RUNNING, S.RUNNING, E.RESERVED, hooks.reserve)
        .add_transition(S.RUNNING, S.RUNNING, E.ACQUIRE_UPDATED_CONTAINER, hooks.size_acquired)
        .add_transition(S.RUNNING, S.RUNNING, E.NM_DONE_CHANGE_RESOURCE, hooks.size_reported)
        .add_transition(S.COMPLETED, S.COMPLETED, (E.EXPIRE, E.RELEASED, E.KILL))
        .add_transition(S.EXPIRED, S.EXPIRED, (E.RELEASED, E.KILL))
        .add_transition(S.RELEASED, S.RELEASED, (E.EXPIRE, E.RELEASED, E.KILL, E.FINISHED))
        .add_transition(S.KILLED, S.KILLED, (E.EXPIRE, E.RELEASED, E.KILL, E.ACQUIRED, E.FINISHED))
        .install_topology()
    )


FACTORY: StateMachineFactory[RMContainerState, RMContainer] = _build()
