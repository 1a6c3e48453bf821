"""One container, after YARN's RMContainerImpl.

The table holds the rows from allocation to end; reservations, recovery, resizing and expiry are not among them.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Any

from statemachines.factory import StateMachineFactory
from statemachines.resourcemanager.context import Entity, RMContext
from statemachines.resourcemanager.events import (
    ContainerRequest,
    RMAppAttemptEvent,
    RMAppAttemptEventType,
    RMAppEvent,
    RMAppEventType,
    RMContainerEvent,
    RMNodeEvent,
    RMNodeEventType,
)
from statemachines.resourcemanager.events import RMContainerEventType as E


class RMContainerState(Enum):
    NEW = auto()
    ALLOCATED = auto()
    ACQUIRED = auto()
    RUNNING = auto()
    COMPLETED = auto()
    RELEASED = auto()
    KILLED = auto()


S = RMContainerState


class RMContainer(Entity):
    """A container; `entity` is its id. `gpu_devices` are the GPUs of its node that it has, or has a share of."""

    machine = "RMContainer"

    __slots__ = ("application", "attempt", "gpu_devices", "node", "request")

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
        self.attempt = attempt
        self.node = node
        self.request = request
        self.gpu_devices = gpu_devices

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


def _acquired(container: RMContainer, event: RMContainerEvent) -> None:
    container.context.post(RMAppEvent(RMAppEventType.APP_RUNNING_ON_NODE, container.application, node=container.node))


def _ended(container: RMContainer, event: RMContainerEvent) -> None:
    context = container.context
    context.post(
        RMAppAttemptEvent(
            RMAppAttemptEventType.CONTAINER_FINISHED, container.attempt, status=event.status, node=container.node
        )
    )
    del context.containers[container.entity]


def _stop(container: RMContainer, event: RMContainerEvent) -> None:
    container.context.post(RMNodeEvent(RMNodeEventType.CLEANUP_CONTAINER, container.node, container.entity))
    _ended(container, event)


def _forget(container: RMContainer, event: RMContainerEvent) -> None:
    del container.context.containers[container.entity]


def _build() -> StateMachineFactory[RMContainerState, RMContainer]:
    factory: StateMachineFactory[RMContainerState, RMContainer] = StateMachineFactory(S.NEW, "RMContainer")
    return (
        factory.add_transition(S.NEW, S.ALLOCATED, E.START, _allocated)
        .add_transition(S.NEW, S.KILLED, E.KILL, _forget)
        .add_transition(S.ALLOCATED, S.ACQUIRED, E.ACQUIRED, _acquired)
        .add_transition(S.ALLOCATED, S.KILLED, E.KILL, _ended)
        .add_transition(S.ACQUIRED, S.RUNNING, E.LAUNCHED)
        .add_transition(S.ACQUIRED, S.ACQUIRED, E.ACQUIRED)
        .add_transition(S.ACQUIRED, S.COMPLETED, E.FINISHED, _ended)
        .add_transition(S.ACQUIRED, S.RELEASED, E.RELEASED, _stop)
        .add_transition(S.ACQUIRED, S.KILLED, E.KILL, _stop)
        .add_transition(S.RUNNING, S.COMPLETED, E.FINISHED, _ended)
        .add_transition(S.RUNNING, S.KILLED, E.KILL, _stop)
        .add_transition(S.RUNNING, S.RELEASED, E.RELEASED, _stop)
        .add_transition(S.RUNNING, S.RUNNING, E.ACQUIRED)
        .install_topology()
    )


FACTORY = _build()
