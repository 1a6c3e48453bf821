"""Entities in any state, on a dispatcher that only notes what is posted to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from dispatcher.async_dispatcher import DispatcherEventHandler
from dispatcher.testing import ManualClock
from statemachines import TransitionRecorder
from statemachines.resourcemanager import (
    FACTORIES,
    ApplicationSubmission,
    Resource,
    ResourceManagerConfig,
    RMApp,
    RMAppAttempt,
    RMContainer,
    RMNode,
)
from statemachines.resourcemanager.context import Entity, RMContext
from statemachines.resourcemanager.events import (
    ContainerRequest,
    ContainerStatus,
    RMAppAttemptEvent,
    RMAppAttemptEventType,
    RMAppEvent,
    RMAppEventType,
    RMContainerEvent,
    RMContainerEventType,
    RMNodeEvent,
    RMNodeEventType,
    RMNodeStatusEvent,
)
from statemachines.resourcemanager.services import ApplicationMasterService
from statemachines.resourcemanager.workload import NodeSpec

ENTITY = TypeVar("ENTITY", bound=Entity)
SPEC = NodeSpec("node1", Resource(8192, 8000))
NODE = "node1:45454"
MASTER = "container_0_0001_01_000001"
TASK = "container_0_0001_01_000002"
EVENT_TYPES: dict[str, type[Enum]] = {
    "RMApp": RMAppEventType,
    "RMAppAttempt": RMAppAttemptEventType,
    "RMContainer": RMContainerEventType,
    "RMNode": RMNodeEventType,
}
_ENTITY_PREFIXES = {  # of whom an event is for; the first key that its name begins with decides
    "RMAppAttempt": "appattempt_",
    "RMApp": "application_",
    "RMContainer": "container_",
    "RMNode": "node",
    "AMLauncher": "appattempt_",
    "Scheduler APP_ATTEMPT": "appattempt_",
    "Scheduler APP": "application_",
    "Scheduler NODE": "node",
    "RMStateStore STORE_APP_ATTEMPT": "appattempt_",
    "RMStateStore UPDATE_APP_ATTEMPT": "appattempt_",
    "RMStateStore": "application_",
}


class Recording:
    """Stands in for a dispatcher: keeps what is posted, and handles nothing."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.event_handler = DispatcherEventHandler(self._keep)

    def _keep(self, event: Any) -> bool:
        self.events.append(event)
        return True

    def told(self) -> list[str]:
        """What was posted, as `RMApp KILL`; each must be for an entity of the right kind."""
        names = []
        for event in self.events:
            name = f"{type(event.type).__name__.removesuffix('EventType')} {event.type.name}"
            prefix = next(value for key, value in _ENTITY_PREFIXES.items() if name.startswith(key))
            assert event.entity.startswith(prefix), f"{name} for {event.entity}"
            names.append(name)
        return names


class FakeScheduler:
    """Keeps what it is asked for, and hands out what it was given."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ContainerRequest]] = []
        self.released: list[tuple[str, str]] = []
        self.allocated: list[RMContainer] = []

    def allocate(
        self, attempt_id: str, requests: Iterable[ContainerRequest] = (), releases: Iterable[str] = ()
    ) -> None:
        self.asked += [(attempt_id, request) for request in requests]
        self.released += [(attempt_id, container) for container in releases]

    def pull_newly_allocated(self, attempt_id: str) -> list[RMContainer]:
        new, self.allocated = self.allocated, []
        return new


class Workshop:
    """Makes entities, and puts them into a state without the events that lead there."""

    def __init__(self, **config: Any) -> None:
        self.clock = ManualClock()
        self.posted = Recording()
        self.recorder = TransitionRecorder()
        settings = ResourceManagerConfig.model_validate(config)
        self.context = RMContext(settings, self.posted, self.clock, self.recorder, 0)  # type: ignore[arg-type]
        self.scheduler = FakeScheduler()
        self.context.scheduler = self.scheduler  # type: ignore[assignment]
        self.context.master_service = ApplicationMasterService(self.context)

    def app(self, state: str = "NEW", *, attempts: int = 1, max_attempts: int = 2) -> RMApp:
        submission = ApplicationSubmission("wordcount", Resource(1024, 1000), max_attempts=max_attempts)
        app = RMApp(self.context, len(self.context.apps) + 1, submission)
        self.context.apps[app.entity] = app
        for _ in range(attempts):
            app.start_attempt()
        return self._put(app, state)

    def attempt(self, state: str = "NEW") -> RMAppAttempt:
        """The first attempt of an application; from ALLOCATED_SAVING on it has its master's container."""
        attempt = self.app().attempts[0]
        if state not in ("NEW", "SUBMITTED", "SCHEDULED"):
            attempt.master_container = MASTER
        return self._put(attempt, state)

    def container(self, state: str = "NEW", container_id: str = TASK) -> RMContainer:
        attempt = self.attempt("RUNNING")
        request = ContainerRequest(Resource(1024, 1000), kind="map")
        container = RMContainer(
            self.context, container_id, attempt.app.entity, attempt.entity, NODE, request, gpu_devices=()
        )
        self.context.containers[container_id] = container
        return self._put(container, state)

    def node(self, state: str = "NEW") -> RMNode:
        node = RMNode(self.context, SPEC)
        self.context.nodes[node.entity] = node
        return self._put(node, state)

    def make(self, machine: str, state: str) -> Any:
        makers: dict[str, Callable[[str], Any]] = {
            "RMApp": self.app,
            "RMAppAttempt": self.attempt,
            "RMContainer": self.container,
            "RMNode": self.node,
        }
        return makers[machine](state)

    def _put(self, entity: ENTITY, state: str) -> ENTITY:
        factory = FACTORIES[entity.machine]
        members = type(factory.initial_state)
        entity.state_machine = factory.make(entity, members[state], self.recorder)
        if state == "FINAL_SAVING":
            assert isinstance(entity, (RMApp, RMAppAttempt))
            entity.save_final(members["KILLED"], None, event_for(entity, "KILL"))
        self.posted.events.clear()
        return entity


def event_for(entity: Any, type_name: str, **more: Any) -> Any:
    """An event of that type as its sender would make it; of a container, it is the master's."""
    type_: Any = EVENT_TYPES[entity.machine][type_name]
    if entity.machine == "RMApp":
        return RMAppEvent(type_, entity.entity, node=NODE, **more)
    if entity.machine == "RMAppAttempt":
        if type_name == "CONTAINER_FINISHED":
            more = {"status": ContainerStatus(MASTER, 1, "it crashed"), "node": NODE} | more
        return RMAppAttemptEvent(type_, entity.entity, **more)
    if entity.machine == "RMContainer":
        return RMContainerEvent(type_, entity.entity, ContainerStatus(entity.entity, 0), **more)
    if type_name == "STATUS_UPDATE":
        return RMNodeStatusEvent(entity.entity, **more)
    return RMNodeEvent(type_, entity.entity, **({"about": TASK} | more))


class Case(NamedTuple):
    """An arc taken: what it leads to, and what it posts, in order."""

    state: str
    event: str
    to: str
    posts: tuple[str, ...] = ()
    given: str = ""  # what is special about the entity or the event; the test knows it by this name


def case_id(case: Case) -> str:
    return f"{case.state}-{case.event}-{case.to}" + (f" {case.given}" if case.given else "")


def targets(cases: Iterable[Case]) -> dict[tuple[str, str], set[str]]:
    """The states that the cases reach, by state and event."""
    reached: dict[tuple[str, str], set[str]] = {}
    for case in cases:
        reached.setdefault((case.state, case.event), set()).add(case.to)
    return reached


def causes_of_final_saving(machine: str) -> set[tuple[str, str]]:
    """Each state and event from which a final state is stored first."""
    return {pair for pair, to in declared(machine).items() if "FINAL_SAVING" in to and pair[0] != "FINAL_SAVING"}


def declared(machine: str) -> dict[tuple[str, str], set[str]]:
    """The states that the table allows, by state and event."""
    return {
        (row.from_state.name, row.event.name): {state.name for state in row.to_states}
        for row in FACTORIES[machine].transitions()
    }
