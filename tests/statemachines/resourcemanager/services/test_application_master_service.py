"""The door for application masters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemachines.resourcemanager import (
    ApplicationMasterNotRegisteredError,
    ContainerRequest,
    ContainerStatus,
    FinalApplicationStatus,
    InvalidApplicationMasterRequestError,
    InvalidResourceRequestError,
    Resource,
    RMAppAttempt,
    UnknownAttemptError,
)
from statemachines.resourcemanager.events.services import NodesListManagerEventType
from statemachines.resourcemanager.machines.rmappattempt import MasterSession
from statemachines.resourcemanager.records.errors import InvalidContainerReleaseError
from statemachines.resourcemanager.records.resource import MaximumAllocation
from statemachines.resourcemanager.services.application_master_service import ApplicationMasterService

from ..builders import MASTER, TASK, Workshop, event_for, send
from .desk import Desk

CALLS = ["register_application_master", "allocate", "finish_application_master"]
NOBODY = "appattempt_0_0009_000001"
SMALL, LARGE = Resource(1024, 1000), Resource(2048, 2000)


@pytest.fixture
def masters(desk: Desk) -> ApplicationMasterService:
    return desk.masters


def call(masters: ApplicationMasterService, name: str, attempt: str, *arguments: Any) -> Any:
    return getattr(masters, name)(attempt, *arguments)


def registered(desk: Desk, **submission: Any) -> RMAppAttempt:
    """A running attempt whose master has registered; nothing is posted yet."""
    attempt = desk.attempt("RUNNING", **submission)
    desk.context.master_sessions[attempt.entity] = MasterSession(desk.context.node_changes.latest)
    desk.masters.register_application_master(attempt.entity)
    desk.posted.events.clear()
    return attempt


def second_attempt(desk: Desk, **submission: Any) -> RMAppAttempt:
    """The second attempt of an application, as `registered`."""
    first = desk.attempt("FAILED", **submission)
    first.app.start_attempt()
    attempt = first.app.attempts[1]
    desk.context.master_sessions[attempt.entity] = MasterSession(desk.context.node_changes.latest)
    desk.masters.register_application_master(attempt.entity)
    desk.posted.events.clear()
    return attempt


# -- which masters may call -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CALLS)
def test_master_of_an_attempt_that_never_was_is_told_to_exit(
    desk: Desk, masters: ApplicationMasterService, name: str
) -> None:
    with pytest.raises(UnknownAttemptError, match=f"{NOBODY} is not registered: its master should exit"):
        call(masters, name, NOBODY)

    assert desk.posted.events == []


@pytest.mark.parametrize("name", CALLS)
def test_master_of_an_attempt_that_has_ended_is_told_to_exit(
    desk: Desk, masters: ApplicationMasterService, name: str
) -> None:
    attempt = desk.attempt()
    for event in ("START", "KILL", "ATTEMPT_UPDATE_SAVED"):
        attempt.handle(event_for(attempt, event))

    with pytest.raises(UnknownAttemptError):
        call(masters, name, attempt.entity)


@pytest.mark.parametrize("name", ["allocate", "finish_application_master"])
def test_master_that_has_not_registered_is_told_to(desk: Desk, masters: ApplicationMasterService, name: str) -> None:
    attempt = desk.attempt("LAUNCHED")
    desk.context.master_sessions[attempt.entity] = MasterSession(desk.context.node_changes.latest)

    with pytest.raises(ApplicationMasterNotRegisteredError, match="call register_application_master first"):
        call(masters, name, attempt.entity)

    assert desk.posted.events == []


@pytest.mark.parametrize("name", ["register_application_master", "allocate"])
def test_master_that_has_finished_is_told_to_exit(desk: Desk, masters: ApplicationMasterService, name: str) -> None:
    attempt = registered(desk)
    masters.finish_application_master(attempt.entity)
    desk.posted.events.clear()

    with pytest.raises(UnknownAttemptError, match="has finished: it should exit"):
        call(masters, name, attempt.entity)

    assert desk.posted.events == []


@pytest.mark.parametrize("name", CALLS)
def test_each_call_of_a_master_is_a_sign_of_life_before_its_event_is_handled(
    desk: Desk, masters: ApplicationMasterService, name: str
) -> None:
    """A busy resource manager ended an attempt whose master had called: the call's event was still queued."""
    attempt = registered(desk)
    if name == "register_application_master":
        desk.context.master_sessions[attempt.entity] = MasterSession(desk.context.node_changes.latest)
    monitor = desk.context.am_liveliness_monitor
    monitor.register(attempt.entity)
    before_ms = monitor.next_deadline_ms()
    desk.clock.advance(1000)

    call(masters, name, attempt.entity)

    assert before_ms is not None
    assert monitor.next_deadline_ms() == before_ms + 1000


def test_master_that_calls_out_of_turn_lives(desk: Desk, masters: ApplicationMasterService) -> None:
    attempt = desk.attempt("LAUNCHED")
    desk.context.master_sessions[attempt.entity] = MasterSession(desk.context.node_changes.latest)
    monitor = desk.context.am_liveliness_monitor
    monitor.register(attempt.entity)
    before_ms = monitor.next_deadline_ms()
    desk.clock.advance(1000)

    with pytest.raises(ApplicationMasterNotRegisteredError):
        masters.allocate(attempt.entity)

    assert before_ms is not None
    assert monitor.next_deadline_ms() == before_ms + 1000


# -- registering ------------------------------------------------------------------------------------------------------


def test_registration_gives_the_attempt_the_address_of_its_master(
    desk: Desk, masters: ApplicationMasterService
) -> None:
    attempt = desk.attempt("LAUNCHED", queue="root.a")
    desk.context.master_sessions[attempt.entity] = MasterSession(desk.context.node_changes.latest)

    response = masters.register_application_master(attempt.entity, "node1", 8030, "http://node1/ui")

    (event,) = desk.posted.events
    assert desk.posted.news() == ["RMAppAttempt REGISTERED"]
    assert (event.entity, event.host, event.rpc_port, event.tracking_url) == (
        attempt.entity,
        "node1",
        8030,
        "http://node1/ui",
    )
    assert response == ("root.a", [], MaximumAllocation())


@pytest.mark.parametrize(
    "submission",
    [{}, {"unmanaged_am": True}, {"keep_containers_across_attempts": True}],
    ids=["plain", "unmanaged", "keeps containers"],
)
def test_master_registers_once(desk: Desk, masters: ApplicationMasterService, submission: dict[str, bool]) -> None:
    attempt = registered(desk, **submission)

    with pytest.raises(InvalidApplicationMasterRequestError, match="is already registered"):
        masters.register_application_master(attempt.entity)

    assert desk.posted.events == []


def test_unmanaged_master_may_register_again_where_containers_are_kept(
    desk: Desk, masters: ApplicationMasterService
) -> None:
    attempt = registered(desk, unmanaged_am=True, keep_containers_across_attempts=True)
    masters.allocate(attempt.entity, response_id=0)

    masters.register_application_master(attempt.entity)

    with pytest.raises(InvalidApplicationMasterRequestError):  # the responses to the one before are not repeated
        masters.allocate(attempt.entity, response_id=2**31 - 1)
    assert masters.allocate(attempt.entity, response_id=0).response_id == 1


def test_next_attempt_learns_of_the_containers_that_go_on(desk: Desk, masters: ApplicationMasterService) -> None:
    first = desk.attempt("FAILED", keep_containers_across_attempts=True)
    first.app.start_attempt()
    attempt = first.app.attempts[1]
    master, kept = desk.live(attempt.entity, 1), desk.live(attempt.entity, 2)
    attempt.master_container = master.entity
    desk.context.master_sessions[attempt.entity] = MasterSession(desk.context.node_changes.latest)

    response = masters.register_application_master(attempt.entity)

    assert response.containers_from_previous_attempts == [kept]


# -- the heartbeat ----------------------------------------------------------------------------------------------------


def test_heartbeat_updates_the_attempt(desk: Desk, masters: ApplicationMasterService) -> None:
    attempt = registered(desk)

    masters.allocate(attempt.entity, progress=0.25, tracking_url="http://new")

    (event,) = desk.posted.events
    assert desk.posted.news() == ["RMAppAttempt STATUS_UPDATE"]
    assert (event.entity, event.progress, event.tracking_url) == (attempt.entity, 0.25, "http://new")


@pytest.mark.parametrize(
    ("said", "kept"), [(-0.5, 0.0), (1.5, 1.0), (float("nan"), 0.0), (float("inf"), 1.0), (1.0, 1.0)]
)
def test_progress_is_cut_to_what_is_possible(
    desk: Desk, masters: ApplicationMasterService, said: float, kept: float
) -> None:
    attempt = registered(desk)

    masters.allocate(attempt.entity, progress=said)

    assert desk.posted.events[0].progress == kept


def test_asks_releases_and_blacklists_reach_the_scheduler(desk: Desk, masters: ApplicationMasterService) -> None:
    attempt = registered(desk)
    asks = [ContainerRequest(SMALL), ContainerRequest(LARGE)]

    masters.allocate(attempt.entity, asks, [TASK], blacklist_additions=["node1"], blacklist_removals=["node2"])

    assert desk.scheduler.asked == [(attempt.entity, ask) for ask in asks]
    assert desk.scheduler.released == [(attempt.entity, TASK)]
    assert desk.scheduler.blacklisted == [(attempt.entity, ["node1"], ["node2"])]


def test_allocated_containers_come_once(desk: Desk, masters: ApplicationMasterService) -> None:
    attempt = registered(desk)
    container = desk.live(attempt.entity, 2, "ALLOCATED")
    desk.scheduler.allocated = [container]

    first, second = masters.allocate(attempt.entity), masters.allocate(attempt.entity)

    assert (list(first.allocated), list(second.allocated)) == ([container], [])


def test_finished_containers_come_once_and_the_nodes_may_forget_them(
    desk: Desk, masters: ApplicationMasterService
) -> None:
    attempt = registered(desk)
    statuses = [ContainerStatus(f"container_0_0001_01_00000{number}", number) for number in range(2, 5)]
    attempt.finished_containers = list(zip(["node1:1", "node2:1", "node1:1"], statuses, strict=True))

    first, second = masters.allocate(attempt.entity), masters.allocate(attempt.entity)

    assert (list(first.finished), list(second.finished)) == (statuses, [])
    pulled = [
        (event.entity, event.about)
        for event in desk.posted.events
        if event.type.name == "FINISHED_CONTAINERS_PULLED_BY_AM"
    ]
    one, two, three = [status.container for status in statuses]
    assert pulled == [("node1:1", (one, three)), ("node2:1", (two,))]


@pytest.mark.parametrize("keeps", [False, True])
def test_next_attempt_gets_earlier_containers_only_if_they_are_kept(
    desk: Desk, masters: ApplicationMasterService, keeps: bool
) -> None:
    """A master that never knew of them counted them as its own."""
    attempt = second_attempt(desk, keep_containers_across_attempts=keeps)
    earlier, own = ContainerStatus(TASK, 0), ContainerStatus("container_0_0001_02_000002", 0)
    attempt.finished_containers = [("node1:1", earlier), ("node1:1", own)]

    response = masters.allocate(attempt.entity)

    assert list(response.finished) == ([earlier, own] if keeps else [own])
    assert desk.posted.events[-1].about == (earlier.container, own.container)


def test_node_updates_come_once(desk: Desk, masters: ApplicationMasterService) -> None:
    attempt = registered(desk)
    lost = ("node1:1", NodesListManagerEventType.NODE_UNUSABLE)
    desk.context.node_changes.note(*lost)

    first, second = masters.allocate(attempt.entity), masters.allocate(attempt.entity)

    assert (list(first.updated_nodes), list(second.updated_nodes)) == ([lost], [])


def test_response_has_the_headroom(desk: Desk, masters: ApplicationMasterService) -> None:
    attempt = registered(desk)
    desk.scheduler.room = LARGE

    assert masters.allocate(attempt.entity).headroom == LARGE


def test_response_has_new_notices_of_preemption_once(desk: Desk, masters: ApplicationMasterService) -> None:
    attempt = registered(desk)
    containers = [desk.live(attempt.entity, number) for number in (2, 3)]
    desk.scheduler.noticed = list(containers)

    first, second = masters.allocate(attempt.entity).preemption, masters.allocate(attempt.entity).preemption

    assert (first, second) == (([each.entity for each in containers], LARGE), None)


@pytest.mark.parametrize(
    "call", [{"asks": [ContainerRequest(SMALL), ContainerRequest(LARGE)]}, {"resizes": [(TASK, LARGE)]}]
)
def test_container_beyond_the_maximum_allocation_is_refused_and_nothing_is_done(
    desk: Desk, masters: ApplicationMasterService, call: dict[str, Any]
) -> None:
    attempt = registered(desk, queue="small")
    desk.scheduler.largest = MaximumAllocation(1024)

    with pytest.raises(
        InvalidResourceRequestError, match=r"memory:2048 MB.* larger .* in queue small, <memory:1024 MB, vCores:any>"
    ):
        masters.allocate(attempt.entity, **call)

    assert (desk.scheduler.asked, desk.posted.events) == ([], [])


def test_master_learns_the_maximum_allocation_when_it_registers(desk: Desk, masters: ApplicationMasterService) -> None:
    desk.scheduler.largest = MaximumAllocation(1024, 4000)
    attempt = desk.attempt("RUNNING")
    desk.context.master_sessions[attempt.entity] = MasterSession(desk.context.node_changes.latest)

    assert masters.register_application_master(attempt.entity).maximum_allocation == (1024, 4000)


def test_every_master_hears_all_changes_of_nodes_in_their_order(desk: Desk, masters: ApplicationMasterService) -> None:
    often, seldom = registered(desk), registered(desk)
    changes = [("node1:1", NodesListManagerEventType.NODE_UNUSABLE), ("node1:1", NodesListManagerEventType.NODE_USABLE)]

    heard = []
    for change in changes:
        desk.context.node_changes.note(*change)
        heard += masters.allocate(often.entity).updated_nodes

    assert heard == masters.allocate(seldom.entity).updated_nodes == changes


def test_later_attempt_begins_with_the_present_nodes(workshop: Workshop) -> None:
    context, attempt = workshop.context, workshop.attempt()
    context.node_changes.note("node1:1", NodesListManagerEventType.NODE_USABLE)

    send(attempt, "START")
    context.node_changes.note("node1:1", NodesListManagerEventType.NODE_UNUSABLE)

    heard = context.node_changes.since(context.master_sessions[attempt.entity].heard)
    assert heard == [("node1:1", NodesListManagerEventType.NODE_UNUSABLE)]


# -- giving back and resizing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("container", "problem"),
    [
        ("container_0_0002_01_000001", "container_0_0002_01_000001 does not belong to appattempt_0_0001_000001"),
        ("container_0_0001_02_000001", "container_0_0001_02_000001 does not belong to appattempt_0_0001_000001"),
        ("task 1", "'task 1' is not the id of a container"),
    ],
    ids=["another application's", "another attempt's", "no container"],
)
def test_release_of_what_is_not_its_own_does_nothing(
    desk: Desk, masters: ApplicationMasterService, container: str, problem: str
) -> None:
    attempt = registered(desk)

    with pytest.raises(InvalidContainerReleaseError, match=problem):
        masters.allocate(attempt.entity, [ContainerRequest(SMALL)], [TASK, container])

    assert (desk.posted.events, desk.scheduler.asked, desk.scheduler.released) == ([], [], [])


def test_containers_that_are_kept_can_be_released_by_the_next_attempt(
    desk: Desk, masters: ApplicationMasterService
) -> None:
    attempt = second_attempt(desk, keep_containers_across_attempts=True)

    masters.allocate(attempt.entity, releases=iter([TASK]))

    assert desk.scheduler.released == [(attempt.entity, TASK)]
    with pytest.raises(InvalidContainerReleaseError):
        masters.allocate(attempt.entity, releases=["container_0_0002_01_000001"])


def test_resizes_that_are_granted_come_with_the_response(desk: Desk, masters: ApplicationMasterService) -> None:
    attempt = registered(desk)
    grows, too_large = desk.live(attempt.entity, 2), desk.live(attempt.entity, 3)
    huge = Resource(1_000_000, 1000)
    desk.desk_scheduler.too_large = {huge}

    response = masters.allocate(attempt.entity, resizes=[(grows.entity, LARGE), (too_large.entity, huge)])

    assert list(response.resized) == [(grows.entity, LARGE)]
    assert desk.desk_scheduler.resized == [(grows.entity, LARGE)]


def test_containers_of_others_and_ended_ones_are_not_resized(desk: Desk, masters: ApplicationMasterService) -> None:
    attempt = registered(desk)
    others = desk.live("appattempt_0_0002_000001", 2)

    response = masters.allocate(attempt.entity, resizes=[(others.entity, LARGE), (TASK, LARGE)])

    assert (list(response.resized), desk.desk_scheduler.resized) == ([], [])


# -- response ids -----------------------------------------------------------------------------------------------------


def test_response_ids_count_the_heartbeats(desk: Desk, masters: ApplicationMasterService) -> None:
    attempt = registered(desk)

    ids = [masters.allocate(attempt.entity, response_id=response_id).response_id for response_id in (0, 1, 2)]

    assert ids == [1, 2, 3]


def test_response_that_got_lost_comes_again(desk: Desk, masters: ApplicationMasterService) -> None:
    """Otherwise no master could start or release the containers that the lost response allocated."""
    attempt = registered(desk)
    desk.scheduler.allocated = [desk.live(attempt.entity, 2, "ALLOCATED")]
    lost = masters.allocate(attempt.entity, [ContainerRequest(SMALL)], response_id=0)
    desk.posted.events.clear()

    again = masters.allocate(attempt.entity, [ContainerRequest(SMALL)], response_id=0)
    next_ = masters.allocate(attempt.entity, response_id=1)

    assert (again is lost, next_.response_id, list(next_.allocated)) == (True, 2, [])
    assert len(desk.scheduler.asked) == 1
    assert desk.posted.news() == ["RMAppAttempt STATUS_UPDATE"]


def test_heartbeat_that_comes_again_is_a_sign_of_life(desk: Desk, masters: ApplicationMasterService) -> None:
    attempt = registered(desk)
    masters.allocate(attempt.entity, response_id=0)
    monitor = desk.context.am_liveliness_monitor
    monitor.register(attempt.entity)
    before_ms = monitor.next_deadline_ms()
    desk.clock.advance(1000)

    masters.allocate(attempt.entity, response_id=0)

    assert before_ms is not None
    assert monitor.next_deadline_ms() == before_ms + 1000


@pytest.mark.long
@given(losses=st.lists(st.booleans(), max_size=30))
def test_nothing_is_lost_or_comes_twice_whatever_responses_get_lost(losses: list[bool]) -> None:
    desk = Desk()
    masters, attempt = desk.masters, registered(desk)
    allocated: list[str] = []
    finished: list[ContainerStatus] = []
    response_id = 0
    for number, is_lost in enumerate([*losses, False], start=2):
        desk.scheduler.allocated.append(desk.live(attempt.entity, number, "ALLOCATED"))
        attempt.finished_containers.append(("node1:1", ContainerStatus(f"container_0_0001_01_{number:06d}", 0)))
        response = masters.allocate(attempt.entity, response_id=response_id)
        if not is_lost:
            allocated += [container.entity for container in response.allocated]
            finished += response.finished
            response_id = response.response_id

    last = masters.allocate(attempt.entity, response_id=response_id)

    allocated += [container.entity for container in last.allocated]
    finished += last.finished
    everything = [f"container_0_0001_01_{number:06d}" for number in range(2, len(losses) + 3)]
    assert (allocated, [status.container for status in finished]) == (everything, everything)


@pytest.mark.parametrize("response_id", [-1, 0, 3, 17])
def test_other_response_ids_are_refused(desk: Desk, masters: ApplicationMasterService, response_id: int) -> None:
    attempt = registered(desk)
    masters.allocate(attempt.entity, response_id=0)
    masters.allocate(attempt.entity, response_id=1)
    desk.posted.events.clear()

    with pytest.raises(
        InvalidApplicationMasterRequestError, match=f"sent response id {response_id}; its last response had 2"
    ):
        masters.allocate(attempt.entity, response_id=response_id)

    assert desk.posted.events == []


def test_before_the_first_heartbeat_there_is_no_response_to_repeat(
    desk: Desk, masters: ApplicationMasterService
) -> None:
    attempt = registered(desk)

    with pytest.raises(InvalidApplicationMasterRequestError, match="its last response had 0"):
        masters.allocate(attempt.entity, response_id=-1)


def test_after_the_last_response_id_comes_0(desk: Desk, masters: ApplicationMasterService) -> None:
    attempt = registered(desk)
    masters._masters[attempt.entity].response_id = last = 2**31 - 1

    turned = masters.allocate(attempt.entity, response_id=last)
    repeated = masters.allocate(attempt.entity, response_id=last)

    assert (turned.response_id, repeated is turned) == (0, True)
    assert masters.allocate(attempt.entity, response_id=0).response_id == 1


def test_master_without_response_ids_is_not_checked(desk: Desk, masters: ApplicationMasterService) -> None:
    attempt = registered(desk)

    ids = [masters.allocate(attempt.entity).response_id for _ in range(3)]

    assert ids == [1, 2, 3]


# -- finishing --------------------------------------------------------------------------------------------------------


def test_finishing_gives_the_attempt_the_end_that_the_master_reports(
    desk: Desk, masters: ApplicationMasterService
) -> None:
    attempt = registered(desk)

    stored = masters.finish_application_master(
        attempt.entity, "all done", FinalApplicationStatus.FAILED, "http://history"
    )

    (event,) = desk.posted.events
    assert (stored, desk.posted.news()) == (False, ["RMAppAttempt UNREGISTERED"])
    assert (event.diagnostics, event.final_status, event.tracking_url) == (
        "all done",
        FinalApplicationStatus.FAILED,
        "http://history",
    )


def test_master_may_ask_again_whether_its_end_is_stored(desk: Desk, masters: ApplicationMasterService) -> None:
    attempt = registered(desk)
    answers = [masters.finish_application_master(attempt.entity) for _ in range(2)]
    news = desk.posted.news()
    desk._put(attempt.app, "FINISHING")

    answers.append(masters.finish_application_master(attempt.entity))

    assert (answers, news, desk.posted.events) == ([False, False, True], ["RMAppAttempt UNREGISTERED"], [])


@pytest.mark.parametrize("state", ["FINISHING", "FINISHED", "FAILED", "KILLED"])
def test_end_that_was_stored_by_an_earlier_resource_manager_is_known(
    desk: Desk, masters: ApplicationMasterService, state: str
) -> None:
    """The master called before the restart, and calls again after it: it never registers with this one."""
    attempt = desk.attempt("FINISHED")
    desk._put(attempt.app, state)

    assert masters.finish_application_master(attempt.entity) is True


def test_master_outside_of_the_cluster_need_not_ask_again(desk: Desk, masters: ApplicationMasterService) -> None:
    attempt = registered(desk, unmanaged_am=True)

    assert masters.finish_application_master(attempt.entity) is True
    assert desk.posted.news() == ["RMAppAttempt UNREGISTERED"]


def test_attempt_that_is_registered_again_begins_anew(desk: Desk, masters: ApplicationMasterService) -> None:
    """As after a restart of the resource manager, which knows of no response."""
    attempt = registered(desk)
    masters.allocate(attempt.entity, response_id=0)
    desk.context.master_sessions[attempt.entity] = MasterSession(desk.context.node_changes.latest)
    steps: list[Callable[[], Any]] = [
        lambda: masters.allocate(attempt.entity, response_id=1),
        lambda: masters.finish_application_master(attempt.entity),
    ]
    for step in steps:
        with pytest.raises(ApplicationMasterNotRegisteredError):
            step()

    masters.register_application_master(attempt.entity)

    assert masters.allocate(attempt.entity, response_id=0).response_id == 1


def test_master_container_is_its_own(desk: Desk, masters: ApplicationMasterService) -> None:
    attempt = registered(desk)

    masters.allocate(attempt.entity, releases=[MASTER])

    assert desk.scheduler.released == [(attempt.entity, MASTER)]
