"""Entities in any state, on a dispatcher that only notes what is posted to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from dispatcher.testing import ManualClock
from statemachines import TransitionRecorder
from statemachines.resourcemanager import (
    ApplicationSubmission,
    ContainerRequest,
    ContainerStatus,
    NMContainerStatus,
    Resource,
    ResourceManagerConfig,
    RMApp,
    RMAppAttempt,
    RMAppAttemptEventType,
    RMAppEventType,
    RMContainer,
    RMContainerEventType,
    RMNode,
    RMNodeEventType,
)
from statemachines.simulation.workload import NodeSpec

from .inner import (
    FACTORIES,
    ApplicationMasterService,
    ApplicationUse,
    Entity,
    HeartbeatAnswer,
    MaximumAllocation,
    NodeUse,
    Pending,
    RecoveredApplication,
    RMAppAttemptEvent,
    RMAppAttemptRecoverEvent,
    RMAppAttemptRegistrationEvent,
    RMAppAttemptStatusUpdateEvent,
    RMAppAttemptUnregistrationEvent,
    RMAppEvent,
    RMAppFailedAttemptEvent,
    RMAppRecoverEvent,
    RMAppStartAttemptEvent,
    RMContainerEvent,
    RMContainerRecoverEvent,
    RMContainerReservedEvent,
    RMContainerResourceEvent,
    RMContext,
    RMNodeEvent,
    RMNodeReconnectEvent,
    RMNodeStartedEvent,
    RMNodeStatusEvent,
    SchedulerEvent,
)

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
    "Scheduler CONTAINER": "container_",
    "Scheduler EDIT": "root",
    "NodesListManager": "node",
    "RMStateStore STORE_APP_ATTEMPT": "appattempt_",
    "RMStateStore UPDATE_APP_ATTEMPT": "appattempt_",
    "RMStateStore REMOVE_APP_ATTEMPT": "appattempt_",
    "RMStateStore STORE_NODE_": "node",
    "RMStateStore STORE_HOST_LISTS": "hosts",
    "RMStateStore": "application_",
}


class Recording:
    """Stands in for a dispatcher: keeps what is posted, and handles nothing."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.event_handler = self

    def handle(self, event: Any) -> bool:
        self.events.append(event)
        return True

    def news(self) -> list[str]:
        """What was posted, as `RMApp KILL`; each must be for an entity of the right kind."""
        names = []
        for event in self.events:
            name = f"{type(event.type).__name__.removesuffix('EventType')} {event.type.name}"
            prefix = next(value for key, value in _ENTITY_PREFIXES.items() if name.startswith(key))
            assert event.entity.startswith(prefix), f"{name} for {event.entity}"
            names.append(name)
        return names


class FakeScheduler:
    """A Scheduler, as the machines know it: records its calls, and returns what the test has given it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ContainerRequest]] = []
        self.released: list[tuple[str, str]] = []
        self.blacklisted: list[tuple[str, list[str], list[str]]] = []  # (attempt, additions, removals)
        self.allocated: list[RMContainer] = []
        self.news: list[SchedulerEvent] = []  # by direct call
        self.queue: str | None = "root.default"  # of every application
        self.longest_lifetime_s: int | None = None
        self.nodes_with_masters: set[str] = set()
        self.node_uses: dict[str, NodeUse] = {}
        self.largest = MaximumAllocation()
        self.is_settled = True
        self.noticed: list[RMContainer] = []  # of which the attempt is given notice
        self.room = Resource(0, 0)  # the headroom of every attempt

    def handle(self, event: SchedulerEvent) -> None:
        self.news.append(event)

    def ask(
        self,
        attempt_id: str,
        requests: Iterable[ContainerRequest] = (),
        releases: Iterable[str] = (),
        blacklist_additions: Iterable[str] = (),
        blacklist_removals: Iterable[str] = (),
    ) -> None:
        self.asked += [(attempt_id, request) for request in requests]
        self.released += [(attempt_id, container) for container in releases]
        additions, removals = list(blacklist_additions), list(blacklist_removals)
        if additions or removals:
            self.blacklisted.append((attempt_id, additions, removals))

    def pull_newly_allocated(self, attempt_id: str) -> list[RMContainer]:
        new, self.allocated = self.allocated, []
        return new

    def maximum_allocation(self, queue: str) -> MaximumAllocation:
        return self.largest

    def heartbeat_answer(self, attempt_id: str) -> HeartbeatAnswer:
        noticed, self.noticed = self.noticed, []
        return HeartbeatAnswer(self.pull_newly_allocated(attempt_id), self.room, noticed)

    def has_master_container(self, node_id: str) -> bool:
        return node_id in self.nodes_with_masters

    def application_use(self, attempt_id: str, used: Any = None) -> ApplicationUse:
        return ApplicationUse(tuple(self.live_containers(attempt_id)))

    def live_containers(self, attempt_id: str) -> list[RMContainer]:
        return []

    def node_use(self, node_id: str) -> NodeUse:
        return self.node_uses.get(node_id, NodeUse())

    def queue_of(self, application: str) -> str | None:
        return self.queue

    def lifetime_s(self, submission: ApplicationSubmission) -> int | None:
        limits = [limit for limit in (submission.lifetime_s, self.longest_lifetime_s) if limit is not None]
        return min(limits, default=None)


class Workshop:
    """Makes entities, and puts them into a state without the events that lead there."""

    def __init__(self, **config: Any) -> None:
        self.clock = ManualClock()
        self.posted = Recording()
        self.recorder = TransitionRecorder()
        settings = ResourceManagerConfig.model_validate(config)
        self.scheduler = FakeScheduler()
        self.context = RMContext(
            settings,
            self.posted,  # type: ignore[arg-type]
            self.clock,
            self.recorder,
            0,
            scheduler=lambda _: self.scheduler,  # type: ignore[arg-type, return-value]
        )
        self.masters = ApplicationMasterService(self.context)

    def app(
        self, state: str = "NEW", *, attempts: int | None = None, max_attempts: int | None = 2, **more: Any
    ) -> RMApp:
        """With so many attempts; None: with one, from the state on in which there is one. `more` is submitted."""
        if attempts is None:
            attempts = 0 if state in ("NEW", "NEW_SAVING", "SUBMITTED") else 1
        submission = ApplicationSubmission("wordcount", Resource(1024, 1000), max_attempts=max_attempts, **more)
        app = RMApp(self.context, f"application_0_{len(self.context.apps) + 1:04d}", submission)
        self.context.apps[app.entity] = app
        for _ in range(attempts):
            app.start_attempt()
        return self._put(app, state)

    def attempt(self, state: str = "NEW", **more: Any) -> RMAppAttempt:
        """The first attempt of an application; from ALLOCATED_SAVING on it has its master's container."""
        attempt = self.app("ACCEPTED", **more).attempts[0]
        if state not in ("NEW", "SUBMITTED", "SCHEDULED", "LAUNCHED_UNMANAGED_SAVING"):
            attempt.master_container, attempt.master_node = MASTER, NODE
        return self._put(attempt, state)

    def container(self, state: str = "NEW", container_id: str = TASK) -> RMContainer:
        attempt = self.attempt("RUNNING")
        request = ContainerRequest(Resource(1024, 1000), kind="map")
        container = RMContainer(
            self.context, container_id, attempt.app.entity, attempt.entity, NODE, request, gpu_devices=()
        )
        self.context.containers[container_id] = container
        return self._put(container, state)

    def node(self, state: str = "NEW", spec: NodeSpec = SPEC) -> RMNode:
        """In service, or, if it has left, among the inactive ones."""
        node = RMNode(self.context, spec)
        has_left = state in ("DECOMMISSIONED", "LOST", "REBOOTED", "SHUTDOWN")
        (self.context.inactive_nodes if has_left else self.context.nodes)[node.entity] = node
        node.in_scheduler = state in ("RUNNING", "DECOMMISSIONING")
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
        """Into that state; what was posted on the way there is forgotten."""
        factory = FACTORIES[entity.machine]
        members = type(factory.initial_state)
        entity.state_machine = factory.make(entity, members[state], self.recorder)
        self.recorder.machines[entity.machine].here().created -= 1  # the entity was counted when it was made
        if state == "FINAL_SAVING":
            assert isinstance(entity, (RMApp, RMAppAttempt))
            entity.pending = Pending(members["KILLED"], None)
        self.posted.events.clear()
        return entity


def event_for(entity: Any, type_name: str, **more: Any) -> Any:
    """An event of that type as its sender would make it; of a container, it is the master's."""
    type_: Any = EVENT_TYPES[entity.machine][type_name]
    if entity.machine == "RMApp":
        return _app_event(entity, type_, more)
    if entity.machine == "RMAppAttempt":
        return _attempt_event(entity, type_, more)
    if entity.machine == "RMContainer":
        return _container_event(entity, type_, more)
    return _node_event(entity, type_, more)


def send(entity: Any, type_name: str, **more: Any) -> None:
    """Have it handle such an event."""
    entity.handle(event_for(entity, type_name, **more))


def _app_event(app: RMApp, type_: RMAppEventType, more: dict[str, Any]) -> RMAppEvent:
    match type_:
        case RMAppEventType.RECOVER:
            return RMAppRecoverEvent(app.entity, **({"state": RecoveredApplication(app.record())} | more))
        case RMAppEventType.ATTEMPT_FAILED | RMAppEventType.ATTEMPT_KILLED:
            return RMAppFailedAttemptEvent(type_, app.entity, **({"diagnostics": "", "keep_containers": False} | more))
    return RMAppEvent(type_, app.entity, node=NODE, **more)


def _attempt_event(attempt: RMAppAttempt, type_: RMAppAttemptEventType, more: dict[str, Any]) -> RMAppAttemptEvent:
    match type_:
        case RMAppAttemptEventType.START:
            return RMAppStartAttemptEvent(attempt.entity, **({"transfer_state": False} | more))
        case RMAppAttemptEventType.RECOVER:
            return RMAppAttemptRecoverEvent(attempt.entity, **({"state": attempt.record()} | more))
        case RMAppAttemptEventType.REGISTERED:
            return RMAppAttemptRegistrationEvent(attempt.entity, **more)
        case RMAppAttemptEventType.STATUS_UPDATE:
            return RMAppAttemptStatusUpdateEvent(attempt.entity, **more)
        case RMAppAttemptEventType.UNREGISTERED:
            return RMAppAttemptUnregistrationEvent(attempt.entity, **more)
        case RMAppAttemptEventType.CONTAINER_FINISHED:
            more = {"status": ContainerStatus(MASTER, 1, "it crashed"), "node": NODE} | more
    return RMAppAttemptEvent(type_, attempt.entity, **more)


def _container_event(container: RMContainer, type_: RMContainerEventType, more: dict[str, Any]) -> RMContainerEvent:
    resource = container.request.resource
    match type_:
        case RMContainerEventType.RECOVER:
            report = NMContainerStatus(container.entity, resource, status=more.pop("status", None))
            return RMContainerRecoverEvent(container.entity, **({"report": report} | more))
        case RMContainerEventType.RESERVED:
            return RMContainerReservedEvent(container.entity, **({"resource": resource} | more))
        case RMContainerEventType.ACQUIRE_UPDATED_CONTAINER | RMContainerEventType.NM_DONE_CHANGE_RESOURCE:
            return RMContainerResourceEvent(type_, container.entity, **({"resource": resource} | more))
    return RMContainerEvent(type_, container.entity, **({"status": ContainerStatus(container.entity, 0)} | more))


def _node_event(node: RMNode, type_: RMNodeEventType, more: dict[str, Any]) -> Any:
    about: Any = None
    match type_:
        case RMNodeEventType.STATUS_UPDATE:
            return RMNodeStatusEvent(node.entity, **more)
        case RMNodeEventType.STARTED:
            return RMNodeStartedEvent(node.entity, **more)
        case RMNodeEventType.RECONNECTED:
            return RMNodeReconnectEvent(node.entity, **({"spec": SPEC} | more))
        case RMNodeEventType.RESOURCE_UPDATE:
            about = Resource(4096, 4000)
        case RMNodeEventType.CLEANUP_APP:
            about = "application_0_0001"
        case RMNodeEventType.CLEANUP_CONTAINER:
            about = TASK
        case RMNodeEventType.FINISHED_CONTAINERS_PULLED_BY_AM:
            about = (TASK,)
        case RMNodeEventType.UPDATE_CONTAINER:
            about = (TASK, Resource(2048, 2000))
        case RMNodeEventType.SIGNAL_CONTAINER:
            about = (TASK, "OUTPUT_THREAD_DUMP")
    return RMNodeEvent(type_, node.entity, **({"about": about} | more))


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
