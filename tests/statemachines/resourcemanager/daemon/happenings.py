"""What may happen in a Course, as values: an example that fails can be read, and run again by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from statemachines.resourcemanager import ContainerStatus, Resource, RMAppAttemptEventType, RMContainer, RMNodeEventType
from statemachines.simulation.workload import ApplicationSpec

from ..builders import EVENT_TYPES, declared, event_for
from ..inner import RMAppAttemptEvent, SchedulerEvent, SchedulerEventType, node_id
from ..machines.course import CAPACITY, LEAVES, SPECS, Course

_ALLOWED = {machine: declared(machine) for machine in EVENT_TYPES}


def pick(which: int, items: list[Any]) -> Any:
    return items[which % len(items)]


@dataclass(frozen=True)
class Submit:
    spec: ApplicationSpec
    max_attempts: int = 2
    priority: int = 0
    keeps: bool = False
    """Its containers outlive an attempt."""

    def __call__(self, course: Course) -> None:
        course.submit(
            self.spec,
            max_attempts=self.max_attempts,
            priority=self.priority,
            keep_containers_across_attempts=self.keeps,
        )


def _fail_attempt(course: Course, app_id: str) -> None:
    attempt = course.context.apps[app_id].current_attempt
    if attempt is not None:
        course.manager.clients.fail_application_attempt(attempt.entity)


def _of_master(act: Callable[[Course, str], Any]) -> Callable[[Course, str], None]:
    """What the master of an application does, or what happens to it, by the id of its attempt; if it runs."""

    def act_if_any(course: Course, app_id: str) -> None:
        attempt = course.context.apps[app_id].current_attempt
        if attempt is not None and attempt.master_container in course.manager.node_managers._nodes_of_masters:
            act(course, attempt.entity)

    return act_if_any


def _crash(course: Course, attempt_id: str) -> None:
    container = course.context.attempts[attempt_id].master_container
    if container is not None:
        course.manager.node_managers.end_master(container, 1, "it crashed")


def _fall_silent(course: Course, attempt_id: str) -> None:
    if course.context.attempts[attempt_id].state.name in ("LAUNCHED", "RUNNING", "FINISHING"):  # it is watched
        course.context.post(RMAppAttemptEvent(RMAppAttemptEventType.EXPIRE, attempt_id))


def _not_started(course: Course, container: RMContainer) -> None:
    if container.state.name == "ACQUIRED":  # only its master could have started it
        course.context.post(SchedulerEvent(SchedulerEventType.CONTAINER_EXPIRED, container.entity))


def _of_container(act: Callable[[Course, RMContainer], Any]) -> Callable[[Course, str], None]:
    """What happens to the newest container of an application."""

    def act_if_any(course: Course, app_id: str) -> None:
        of_app = [each for each in course.context.containers.values() if each.application == app_id]
        if of_app:
            act(course, of_app[-1])

    return act_if_any


def _release(course: Course, container: RMContainer) -> None:
    course.endless.add(container.application)  # its simulated master goes on to wait for it
    course.manager.masters.allocate(container.attempt, releases=[container.entity])


def _resize(course: Course, container: RMContainer) -> None:
    course.manager.masters.allocate(container.attempt, resizes=[(container.entity, Resource(1, 1))])


def _move_to(queue: str) -> Callable[[Course, str], None]:
    return lambda course, app_id: course.manager.clients.move_application_across_queues(app_id, queue)


TO_APPLICATIONS: Mapping[str, Callable[[Course, str], Any]] = {
    "kill": lambda course, app_id: course.manager.clients.force_kill_application(app_id),
    "fail the attempt": _fail_attempt,
    "raise the priority": lambda course, app_id: course.manager.clients.update_application_priority(app_id, 2),
    "limit the lifetime": lambda course, app_id: course.manager.clients.update_application_timeouts(app_id, 3),
    "crash": _of_master(_crash),
    "fall silent": _of_master(_fall_silent),
    "release a container": _of_container(_release),
    "resize a container": _of_container(_resize),
    "signal a container": _of_container(
        lambda course, it: course.manager.clients.signal_to_container(it.entity, "GRACEFUL_SHUTDOWN")
    ),
    "a container is not started": _of_container(_not_started),
    **{f"move to {queue}": _move_to(queue) for queue in LEAVES},
}


@dataclass(frozen=True)
class ToApplication:
    what: str
    which: int

    def __call__(self, course: Course) -> None:
        if course.apps:
            TO_APPLICATIONS[self.what](course, pick(self.which, course.apps))


def _post(type: RMNodeEventType) -> Callable[[Course, str], None]:
    return lambda course, host: course.tell_node(host, type)


TO_NODES: Mapping[str, Callable[[Course, str], Any]] = {
    "expire": _post(RMNodeEventType.EXPIRE),
    "reboot": _post(RMNodeEventType.REBOOTING),
    "shut down": lambda course, host: course.manager.tracker.unregister_node(node_id(host)),
    "register": Course.register,
    "register with what it runs": Course.resync,
    "decommission": lambda course, host: course.manager.admin.refresh_nodes([host]),
    "decommission gracefully": lambda course, host: course.manager.admin.refresh_nodes([host], graceful=True),
    "decommission in a second": lambda course, host: course.manager.admin.refresh_nodes(
        [host], graceful=True, timeout_s=1
    ),
    "recommission": lambda course, host: course.manager.admin.recommission([host]),
    "resize": lambda course, host: course.manager.admin.update_node_resource(node_id(host), CAPACITY),
    "report ill": lambda course, host: course.manager.tracker.heartbeat(node_id(host), healthy=False),
    "report well": lambda course, host: course.manager.tracker.heartbeat(node_id(host)),
}


@dataclass(frozen=True)
class ToNode:
    what: str
    host: str

    def __call__(self, course: Course) -> None:
        TO_NODES[self.what](course, self.host)


@dataclass(frozen=True)
class Event:
    """An event from nowhere."""

    machine: str
    type: str
    which: int

    def entity(self, course: Course) -> Any:
        """The target; None: there is none."""
        context = course.context
        entities: dict[str, dict[str, Any]] = {
            "RMApp": context.apps,
            "RMAppAttempt": context.attempts,
            "RMContainer": context.containers,
            "RMNode": context.nodes,
        }
        them = list(entities[self.machine].values())
        return pick(self.which, them) if them else None

    def made_for(self, entity: Any) -> Any:
        """As its sender would make it, with what fits the cluster."""
        more: dict[str, Any] = {}
        if (self.machine, self.type) == ("RMNode", "RECONNECTED"):
            more["spec"] = SPECS[entity.spec.host]
        elif (self.machine, self.type) == ("RMNode", "RESOURCE_UPDATE"):
            more["about"] = entity.capacity
        elif (self.machine, self.type) == ("RMAppAttempt", "CONTAINER_FINISHED"):
            more["status"] = ContainerStatus(entity.master_container or "container_0_0001_01_000009", 1, "it crashed")
        return event_for(entity, self.type, **more)


class Illegal(Event):
    """Is handled by the entity if its state does not take it; then it must change nothing."""

    def __call__(self, course: Course) -> None:
        entity = self.entity(course)
        if entity is None or (entity.state.name, self.type) in _ALLOWED[self.machine]:
            return
        before, refused = entity.state, len(course.refused)
        entity.handle(self.made_for(entity))
        if entity.state is not before or course.refused[refused:] != [(self.machine, before.name, self.type)]:
            course.problems.append(f"{entity} was {before.name} before {self.type}, which it does not take")
        del course.refused[refused:]


class Forged(Event):
    """Is posted, whatever state the entity is in."""

    def __call__(self, course: Course) -> None:
        entity = self.entity(course)
        if entity is not None:
            course.context.post(self.made_for(entity))
