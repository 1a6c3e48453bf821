"""A scheduler with real nodes and containers, each event handled at once; applications and attempts are stand-ins."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from dispatcher.testing import InlineDispatcher, ManualClock
from statemachines import TransitionRecorder
from statemachines.resourcemanager import FifoScheduler, Resource, ResourceManagerConfig, RMContainer
from statemachines.resourcemanager.context import EntityEventHandler, RMContext
from statemachines.resourcemanager.events import (
    AMLauncherEvent,
    AMLauncherEventType,
    ContainerRequest,
    ContainerStatus,
    RMAppAttemptEventType,
    RMAppEventType,
    RMContainerEventType,
    RMNodeEvent,
    RMNodeEventType,
    SchedulerEvent,
    SchedulerEventType,
)
from statemachines.resourcemanager.services import ResourceTrackerService
from statemachines.resourcemanager.workload import NodeSpec


class Cluster:
    """Add nodes, applications and attempts, ask for containers, end them; `check` says what must hold at any time."""

    def __init__(self) -> None:
        self.dispatcher = InlineDispatcher()
        self.recorder = TransitionRecorder()
        self.context = RMContext(ResourceManagerConfig(), self.dispatcher, ManualClock(), self.recorder, 0)  # type: ignore[arg-type]
        self.scheduler = self.context.scheduler = FifoScheduler(self.context)
        self.tracker = ResourceTrackerService(self.context)
        self.told: list[Any] = []  # events for applications and attempts
        self.tags = itertools.count(1)
        self._numbers = itertools.count(1)
        register = self.dispatcher.register
        register(RMContainerEventType, EntityEventHandler(self.context.containers))
        register(RMNodeEventType, EntityEventHandler(self.context.nodes))
        register(SchedulerEventType, self.scheduler)
        register(RMAppEventType, self.told.append)
        register(RMAppAttemptEventType, self.told.append)
        register(AMLauncherEventType, lambda event: event.entity())

    # -- what others do to the scheduler ------------------------------------------------------------------------------

    def add_node(self, host: str, memory_mb: int = 10, vcores_milli: int = 10, gpus: int = 0, model: str = "") -> str:
        return self.tracker.register_node(
            NodeSpec(host, Resource(memory_mb, vcores_milli, gpus), gpu_model=model or None)
        )

    def lose_node(self, node: str) -> None:
        self._post(RMNodeEvent(RMNodeEventType.EXPIRE, node))

    def add_app(self) -> str:
        app = f"application_0_{next(self._numbers):04d}"
        self._post(SchedulerEvent(SchedulerEventType.APP_ADDED, app))
        return app

    def remove_app(self, app: str) -> None:
        self._post(SchedulerEvent(SchedulerEventType.APP_REMOVED, app))

    def add_attempt(self, app: str, number: int = 1) -> str:
        attempt = f"{app.replace('application', 'appattempt')}_{number:06d}"
        self.context.attempts[attempt] = SimpleNamespace(app=SimpleNamespace(entity=app))  # type: ignore[assignment]
        self._post(SchedulerEvent(SchedulerEventType.APP_ATTEMPT_ADDED, attempt))
        return attempt

    def remove_attempt(self, attempt: str) -> None:
        self._post(SchedulerEvent(SchedulerEventType.APP_ATTEMPT_REMOVED, attempt))

    def new_attempt(self) -> str:
        return self.add_attempt(self.add_app())

    def ask(self, attempt: str, *requests: ContainerRequest | Resource, releases: tuple[str, ...] = ()) -> None:
        asks = [request if isinstance(request, ContainerRequest) else self.request(request) for request in requests]
        self.in_handler(lambda: self.scheduler.allocate(attempt, asks, releases))

    def request(self, resource: Resource, **more: Any) -> ContainerRequest:
        return ContainerRequest(resource, tag=next(self.tags), **more)

    def pull(self, attempt: str) -> list[RMContainer]:
        pulled: list[RMContainer] = []
        self.in_handler(lambda: pulled.extend(self.scheduler.pull_newly_allocated(attempt)))
        assert all(container.state.name == "ACQUIRED" for container in pulled)
        return pulled

    def get(self, attempt: str, *requests: ContainerRequest | Resource) -> list[RMContainer]:
        """Ask, fetch and launch."""
        self.ask(attempt, *requests)
        containers = self.pull(attempt)
        for container in containers:
            self.tracker.heartbeat(container.node, launched=(container.entity,))
        return containers

    def finish(self, container: RMContainer) -> None:
        self.tracker.heartbeat(container.node, finished=(ContainerStatus(container.entity, 0),))

    def in_handler(self, call: Callable[[], Any]) -> None:
        """As all direct calls: from the handling of an event, so that what is posted comes after it."""
        self._post(AMLauncherEvent(AMLauncherEventType.LAUNCH, call))  # type: ignore[arg-type]

    def _post(self, event: Any) -> None:
        self.dispatcher.event_handler.handle(event)

    # -- what is to be seen -------------------------------------------------------------------------------------------

    def where(self, containers: list[RMContainer]) -> list[str]:
        return [container.node.split(":")[0] for container in containers]

    def told_names(self) -> list[str]:
        return [f"{event.type.name} {event.entity}" for event in self.told]

    def waiting_tags(self) -> list[int]:
        return [request.tag for _, request in self.scheduler.waiting()]

    def check(self) -> None:
        """Nothing is oversubscribed, the books are right, and no waiting ask fits on any node."""
        nodes = {node.node_id: node for node in self.scheduler.nodes()}
        assert set(nodes) == {node.entity for node in self.context.nodes.values() if node.state.name == "RUNNING"}
        on_node: dict[str, list[RMContainer]] = {node: [] for node in nodes}
        for container in self.context.containers.values():
            on_node[container.node].append(container)  # KeyError: a container on a node that is lost
        for node_id, containers in on_node.items():
            node = nodes[node_id]
            used_gpu_milli = [0] * node.capacity.gpus
            for container in containers:
                resource = container.request.resource
                assert len(set(container.gpu_devices)) == resource.gpus
                for device in container.gpu_devices:
                    used_gpu_milli[device] += resource.gpu_milli
                assert not container.request.gpu_models or node.gpu_model in container.request.gpu_models
            resources = [container.request.resource for container in containers]
            assert set(node.containers) == {container.entity for container in containers}
            assert node.free_memory_mb == node.capacity.memory_mb - sum(r.memory_mb for r in resources) >= 0
            assert node.free_vcores_milli == node.capacity.vcores_milli - sum(r.vcores_milli for r in resources) >= 0
            assert node.free_gpu_milli == [1000 - milli for milli in used_gpu_milli]
            assert all(milli <= 1000 for milli in used_gpu_milli)
        for attempt, request in self.scheduler.waiting():
            fitting = [node for node in nodes.values() if node.fits(request.resource, request.gpu_models)]
            assert not fitting, f"{request} of {attempt} waits, and fits on {fitting[0].node_id}"
        for machine, stats in self.recorder.machines.items():
            assert stats.invalid == 0, f"{machine} made invalid transitions"
