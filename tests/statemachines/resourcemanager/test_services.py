"""The resource manager's doors, and its launcher of masters."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from statemachines.resourcemanager import (
    AMLauncherEventType,
    ApplicationSubmission,
    Resource,
    RMAppManagerEventType,
    RMContainer,
    RMStateStoreEventType,
)
from statemachines.resourcemanager.context import EntityEventHandler
from statemachines.resourcemanager.events import (
    AMLauncherEvent,
    ContainerRequest,
    ContainerStatus,
    RMAppManagerEvent,
    RMNodeStatusEvent,
    RMStateStoreEvent,
)
from statemachines.resourcemanager.services import (
    ApplicationMasterLauncher,
    ApplicationMasterService,
    ClientRMService,
    ResourceTrackerService,
    RMAppManager,
    UnknownAttemptError,
)
from statemachines.resourcemanager.statestore import MemoryRMStateStore

from .builders import MASTER, NODE, SPEC, TASK, Workshop, event_for

SUBMISSION = ApplicationSubmission("wordcount", Resource(1024, 1000), "alice", "root.a")


# -- clients --------------------------------------------------------------------------------------------------------


def test_submission_begins_an_application(workshop: Workshop) -> None:
    clients = ClientRMService(workshop.context)

    ids = [clients.submit_application(SUBMISSION) for _ in range(2)]

    assert ids == ["application_0_0001", "application_0_0002"]
    assert [(app.entity, app.state.name) for app in workshop.context.apps.values()] == [(id_, "NEW") for id_ in ids]
    assert workshop.posted.told() == ["RMApp START", "RMApp START"]
    start = workshop.posted.events[0]
    assert (start.entity, start.payload) == (ids[0], {"name": "wordcount", "user": "alice", "queue": "root.a"})


def test_kill_is_an_event_with_a_reason(workshop: Workshop) -> None:
    ClientRMService(workshop.context).force_kill_application("application_0_0001", "because")

    (kill,) = workshop.posted.events
    assert (workshop.posted.told(), kill.entity, kill.diagnostics) == (["RMApp KILL"], "application_0_0001", "because")


@pytest.mark.parametrize("state", ["FINISHED", "FAILED", "KILLED"])
def test_kill_of_an_ended_application_changes_nothing(workshop: Workshop, state: str) -> None:
    app = workshop.app(state)
    ClientRMService(workshop.context).force_kill_application(app.entity)
    (kill,) = workshop.posted.events
    workshop.posted.events.clear()

    EntityEventHandler(workshop.context.apps).handle(kill)

    assert (app.state.name, app.diagnostics, workshop.posted.events) == (state, [], [])
    assert workshop.recorder.machines["RMApp"].invalid == 0


def test_kill_of_an_application_that_is_gone_is_for_nobody(workshop: Workshop) -> None:
    ClientRMService(workshop.context).force_kill_application("application_0_0009")

    EntityEventHandler(workshop.context.apps).handle(workshop.posted.events[0])

    assert len(workshop.posted.events) == 1


# -- masters ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def masters(workshop: Workshop) -> ApplicationMasterService:
    return workshop.context.master_service


def call(masters: ApplicationMasterService, name: str, attempt: str) -> Any:
    return getattr(masters, name)(attempt)


CALLS = ["register_application_master", "allocate", "finish_application_master"]


@pytest.mark.parametrize("name", CALLS)
def test_master_of_an_attempt_that_never_was_is_told_to_exit(
    workshop: Workshop, masters: ApplicationMasterService, name: str
) -> None:
    with pytest.raises(UnknownAttemptError, match="appattempt_0_0009_000001 is not registered: its master should exit"):
        call(masters, name, "appattempt_0_0009_000001")

    assert workshop.posted.events == []


@pytest.mark.parametrize("name", CALLS)
def test_master_of_an_attempt_that_has_ended_is_told_to_exit(
    workshop: Workshop, masters: ApplicationMasterService, name: str
) -> None:
    attempt = workshop.attempt()
    for event in ("START", "KILL", "ATTEMPT_UPDATE_SAVED"):
        attempt.handle(event_for(attempt, event))

    with pytest.raises(UnknownAttemptError):
        call(masters, name, attempt.entity)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("register_application_master", "RMAppAttempt REGISTERED"),
        ("allocate", "RMAppAttempt STATUS_UPDATE"),
        ("finish_application_master", "RMAppAttempt UNREGISTERED"),
    ],
)
def test_calls_of_a_master_become_events_of_its_attempt(
    workshop: Workshop, masters: ApplicationMasterService, name: str, told: str
) -> None:
    attempt = workshop.attempt("RUNNING")
    masters.register_attempt(attempt.entity)

    call(masters, name, attempt.entity)

    assert (workshop.posted.told(), workshop.posted.events[0].entity) == ([told], attempt.entity)


def test_what_a_master_says_is_in_the_events(workshop: Workshop, masters: ApplicationMasterService) -> None:
    attempt = workshop.attempt("RUNNING")
    masters.register_attempt(attempt.entity)

    masters.allocate(attempt.entity, progress=0.25)
    masters.finish_application_master(attempt.entity, "all done")

    update, finish = workshop.posted.events
    assert (update.progress, finish.diagnostics) == (0.25, "all done")


def test_allocate_passes_on_the_asks_and_answers_with_what_was_allocated(
    workshop: Workshop, masters: ApplicationMasterService
) -> None:
    container = workshop.container("ALLOCATED")
    masters.register_attempt(container.attempt)
    workshop.scheduler.allocated = [container]
    asks = [ContainerRequest(Resource(1, 1)), ContainerRequest(Resource(2, 2))]

    response = masters.allocate(container.attempt, asks, [TASK])

    assert workshop.scheduler.asked == [(container.attempt, ask) for ask in asks]
    assert workshop.scheduler.released == [(container.attempt, TASK)]
    assert (response.allocated, response.finished) == ([container], [])


def test_allocate_answers_once_with_what_has_ended_and_lets_the_nodes_forget_it(
    workshop: Workshop, masters: ApplicationMasterService
) -> None:
    attempt = workshop.attempt("RUNNING")
    masters.register_attempt(attempt.entity)
    statuses = [ContainerStatus(f"container_0_0001_01_00000{number}", number) for number in range(2, 5)]
    attempt.finished_containers = list(zip(["node1:1", "node2:1", "node1:1"], statuses, strict=True))

    first, second = masters.allocate(attempt.entity), masters.allocate(attempt.entity)

    assert (list(first.finished), list(second.finished)) == (statuses, [])
    pulled = [
        (event.entity, event.about)
        for event in workshop.posted.events
        if event.type.name == "FINISHED_CONTAINERS_PULLED_BY_AM"
    ]
    one, two, three = [status.container for status in statuses]
    assert pulled == [("node1:1", (one, three)), ("node2:1", (two,))]


# -- nodes ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def tracker(workshop: Workshop) -> ResourceTrackerService:
    return ResourceTrackerService(workshop.context)


def test_node_that_registers_begins(workshop: Workshop, tracker: ResourceTrackerService) -> None:
    node_id = tracker.register_node(SPEC)

    (started,) = workshop.posted.events
    node = workshop.context.nodes[node_id]
    assert (node_id, node.state.name) == (NODE, "NEW")
    assert (workshop.posted.told(), started.entity, started.payload) == (["RMNode STARTED"], NODE, node.payload())


def test_node_that_is_there_does_not_begin_again(workshop: Workshop, tracker: ResourceTrackerService) -> None:
    node = workshop.node("RUNNING")

    tracker.register_node(SPEC)

    assert (workshop.context.nodes, workshop.posted.events) == ({NODE: node}, [])


def test_node_that_was_lost_comes_back_as_a_new_one(workshop: Workshop, tracker: ResourceTrackerService) -> None:
    lost = workshop.node("RUNNING")
    lost.handle(event_for(lost, "EXPIRE"))

    tracker.register_node(SPEC)

    assert workshop.context.inactive_nodes == {}
    assert workshop.context.nodes[NODE] is not lost


def test_heartbeat_is_a_status_update(workshop: Workshop, tracker: ResourceTrackerService) -> None:
    workshop.node("RUNNING")

    tracker.heartbeat(NODE, (TASK,), (ContainerStatus(MASTER, 0),), healthy=False)

    (update,) = workshop.posted.events
    assert isinstance(update, RMNodeStatusEvent)
    assert (update.launched, update.finished, update.healthy) == ((TASK,), (ContainerStatus(MASTER, 0),), False)


def test_answer_to_a_heartbeat_says_once_what_is_to_be_cleaned_up(
    workshop: Workshop, tracker: ResourceTrackerService
) -> None:
    """Containers were told with each answer, for ever if the node had never started them."""
    node = workshop.node("RUNNING")
    node.handle(event_for(node, "CLEANUP_CONTAINER", about=TASK))
    node.handle(event_for(node, "CLEANUP_APP", about="application_0_0001"))

    first, second = tracker.heartbeat(NODE), tracker.heartbeat(NODE)

    assert (set(first.containers_to_clean), list(first.apps_to_clean)) == ({TASK}, ["application_0_0001"])
    assert (set(second.containers_to_clean), list(second.apps_to_clean)) == (set(), [])


def test_heartbeat_of_an_unknown_node_is_answered_with_nothing(tracker: ResourceTrackerService) -> None:
    assert tracker.heartbeat("nowhere:1") == (frozenset(), ())


# -- the launcher -----------------------------------------------------------------------------------------------------


class FakeNodeManagers:
    """Notes what it is to start and stop; `broken` nodes cannot start anything."""

    def __init__(self, *, broken: bool = False) -> None:
        self.calls: list[tuple[str, str]] = []
        self._broken = broken

    def start_container(self, container: RMContainer) -> None:
        if self._broken:
            raise OSError("the disk is full")
        self.calls.append(("start", container.entity))

    def stop_container(self, container_id: str) -> None:
        self.calls.append(("stop", container_id))


def launch(
    workshop: Workshop, type: AMLauncherEventType, *, master: str | None = MASTER, broken: bool = False
) -> list[tuple[str, str]]:
    """Have the launcher handle an event for the first attempt; returns what the nodes were told."""
    container = workshop.container("ACQUIRED", MASTER)
    workshop.context.attempts[container.attempt].master_container = master
    nodes = FakeNodeManagers(broken=broken)
    ApplicationMasterLauncher(workshop.context, nodes).handle(AMLauncherEvent(type, container.attempt))
    return nodes.calls


def test_master_is_launched_in_its_container(workshop: Workshop) -> None:
    calls = launch(workshop, AMLauncherEventType.LAUNCH)

    assert (calls, workshop.posted.told()) == ([("start", MASTER)], ["RMAppAttempt LAUNCHED"])


def test_launch_that_fails_is_told_to_the_attempt(workshop: Workshop, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "statemachines.resourcemanager.services"):
        launch(workshop, AMLauncherEventType.LAUNCH, broken=True)

    (failed,) = workshop.posted.events
    assert (workshop.posted.told(), failed.diagnostics) == (
        ["RMAppAttempt LAUNCH_FAILED"],
        "launch failed: the disk is full",
    )
    assert "appattempt_0_0001_000001: launch failed: OSError('the disk is full')" in caplog.text


def test_master_is_cleaned_up_on_its_node(workshop: Workshop) -> None:
    calls = launch(workshop, AMLauncherEventType.CLEANUP)

    assert (calls, workshop.posted.events) == ([("stop", MASTER)], [])


@pytest.mark.parametrize("type", AMLauncherEventType)
def test_attempt_without_a_master_is_not_launched_or_cleaned_up(workshop: Workshop, type: AMLauncherEventType) -> None:
    assert (launch(workshop, type, master=None), workshop.posted.events) == ([], [])


def test_container_that_has_ended_meanwhile_is_not_launched(workshop: Workshop) -> None:
    calls = launch(workshop, AMLauncherEventType.LAUNCH, master="container_0_0001_01_000009")

    assert (calls, workshop.posted.events) == ([], [])


# -- what is kept -----------------------------------------------------------------------------------------------------


def test_oldest_ended_applications_beyond_the_limit_are_forgotten() -> None:
    workshop = Workshop(max_completed_applications=1)
    store = MemoryRMStateStore(workshop.context)
    manager = RMAppManager(workshop.context, store)
    apps = [workshop.app("FINISHED", attempts=2) for _ in range(3)]
    for app in apps:
        store.apps[app.entity] = "stored"
        store.attempts |= dict.fromkeys([attempt.entity for attempt in app.attempts], "stored")

    for app in apps[:2]:
        manager.handle(RMAppManagerEvent(RMAppManagerEventType.APP_COMPLETED, app.entity))

    kept = [attempt.entity for app in apps[1:] for attempt in app.attempts]
    assert list(workshop.context.apps) == list(store.apps) == [app.entity for app in apps[1:]]
    assert list(workshop.context.attempts) == list(store.attempts) == kept
    forgotten = {machine: dict(stats.forgotten) for machine, stats in workshop.recorder.machines.items()}
    assert forgotten == {"RMApp": {"FINISHED": 1}, "RMAppAttempt": {"NEW": 2}}


@pytest.mark.parametrize(
    ("type", "told"),
    [
        ("STORE_APP", "RMApp APP_NEW_SAVED"),
        ("UPDATE_APP", "RMApp APP_UPDATE_SAVED"),
        ("STORE_APP_ATTEMPT", "RMAppAttempt ATTEMPT_NEW_SAVED"),
        ("UPDATE_APP_ATTEMPT", "RMAppAttempt ATTEMPT_UPDATE_SAVED"),
    ],
)
def test_store_answers_each_write_once_it_is_kept(workshop: Workshop, type: str, told: str) -> None:
    store = MemoryRMStateStore(workshop.context)
    entity = "appattempt_0_0001_000001" if "ATTEMPT" in type else "application_0_0001"

    store.handle(RMStateStoreEvent(RMStateStoreEventType[type], entity, "state"))

    assert {**store.apps, **store.attempts} == {entity: "state"}
    assert (workshop.posted.told(), workshop.posted.events[0].entity) == ([told], entity)
