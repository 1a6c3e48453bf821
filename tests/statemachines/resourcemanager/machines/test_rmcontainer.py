"""Every arc of RMContainer: where it leads, and what it posts; and what it keeps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dispatcher.journal.format.event_codec import encode_payload
from statemachines.resourcemanager import ContainerRequest, ContainerStatus, Resource, RMContainer, RMContainerEventType
from statemachines.resourcemanager.events.records import EXIT_ABORTED, EXIT_PREEMPTED
from statemachines.resourcemanager.events.rmcontainer import RMContainerEvent, RMContainerStartEvent
from statemachines.resourcemanager.machines.entity import EntityEventHandler
from statemachines.resourcemanager.records.resource import named

from ..builders import NODE, TASK, Case, Workshop, case_id, declared, event_for, targets

BOOKED = Resource(1024, 1000)  # the size of the workshop's containers
LARGER = Resource(2048, 2000)
SMALLER = Resource(512, 500)
WARPED = Resource(2048, 500)
ENDED = ("RMAppAttempt CONTAINER_FINISHED",)
STOP = ("RMNode CLEANUP_CONTAINER", "RMAppAttempt CONTAINER_FINISHED")
ON_NODE = ("RMApp APP_RUNNING_ON_NODE",)
GIVEN: dict[str, dict[str, Any]] = {
    "": {},
    "complete": {"status": ContainerStatus(TASK, 3)},
    "running": {"status": None},
    "increase": {"resource": LARGER},
    "equal": {"resource": BOOKED},
    "more": {"resource": LARGER},
    "less": {"resource": SMALLER},
    "other": {"resource": WARPED},
}
CASES = [
    Case("NEW", "START", "ALLOCATED", ("RMAppAttempt CONTAINER_ALLOCATED",)),
    Case("NEW", "KILL", "KILLED"),
    Case("NEW", "RESERVED", "RESERVED"),
    Case("NEW", "ACQUIRED", "ACQUIRED", ON_NODE),
    Case("NEW", "RECOVER", "RUNNING", ON_NODE, "running"),
    Case("NEW", "RECOVER", "COMPLETED", ENDED, "complete"),
    Case("RESERVED", "RESERVED", "RESERVED"),
    Case("RESERVED", "START", "ALLOCATED", ("RMAppAttempt CONTAINER_ALLOCATED",)),
    Case("RESERVED", "KILL", "KILLED"),
    Case("RESERVED", "RELEASED", "RELEASED"),
    Case("ALLOCATED", "ACQUIRED", "ACQUIRED", ON_NODE),
    Case("ALLOCATED", "EXPIRE", "EXPIRED", ENDED),
    Case("ALLOCATED", "KILL", "KILLED", ENDED),
    Case("ACQUIRED", "LAUNCHED", "RUNNING"),
    Case("ACQUIRED", "ACQUIRED", "ACQUIRED"),
    Case("ACQUIRED", "FINISHED", "COMPLETED", ENDED),
    Case("ACQUIRED", "RELEASED", "RELEASED", STOP),
    Case("ACQUIRED", "EXPIRE", "EXPIRED", STOP),
    Case("ACQUIRED", "KILL", "KILLED", STOP),
    Case("RUNNING", "FINISHED", "COMPLETED", ENDED),
    Case("RUNNING", "KILL", "KILLED", STOP),
    Case("RUNNING", "RELEASED", "RELEASED", STOP),
    Case("RUNNING", "ACQUIRED", "RUNNING"),
    Case("RUNNING", "RESERVED", "RUNNING"),
    Case("RUNNING", "ACQUIRE_UPDATED_CONTAINER", "RUNNING", (), "increase"),
    Case("RUNNING", "NM_DONE_CHANGE_RESOURCE", "RUNNING", (), "equal"),
    Case("RUNNING", "NM_DONE_CHANGE_RESOURCE", "RUNNING", ("RMNode UPDATE_CONTAINER",), "more"),
    Case("RUNNING", "NM_DONE_CHANGE_RESOURCE", "RUNNING", (), "less"),
    Case("RUNNING", "NM_DONE_CHANGE_RESOURCE", "RUNNING", ("RMNode CLEANUP_CONTAINER",), "other"),
    *(Case("COMPLETED", event, "COMPLETED") for event in ("EXPIRE", "RELEASED", "KILL")),
    *(Case("EXPIRED", event, "EXPIRED") for event in ("RELEASED", "KILL")),
    *(Case("RELEASED", event, "RELEASED") for event in ("EXPIRE", "RELEASED", "KILL", "FINISHED")),
    *(Case("KILLED", event, "KILLED") for event in ("EXPIRE", "RELEASED", "KILL", "ACQUIRED", "FINISHED")),
]
END_STATES = ("COMPLETED", "EXPIRED", "RELEASED", "KILLED")


def take(container: RMContainer, case: Case) -> None:
    container.handle(event_for(container, case.event, **GIVEN[case.given]))


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_arc_leads_to_its_state_posts_its_events_and_forgets_what_has_ended(workshop: Workshop, case: Case) -> None:
    container = workshop.container(case.state)

    take(container, case)

    assert (container.state.name, workshop.recorder.machines["RMContainer"].invalid) == (case.to, 0)
    assert workshop.posted.news() == list(case.posts)
    if case.state not in END_STATES:
        assert workshop.context.containers == ({} if case.to in END_STATES else {TASK: container})


def test_all_arcs_of_the_table_have_a_case() -> None:
    assert targets(CASES) == declared("RMContainer")


# -- what others hear -------------------------------------------------------------------------------------------------


def test_attempt_is_notified_of_the_end_with_status_and_node(workshop: Workshop) -> None:
    container = workshop.container("RUNNING")
    event = event_for(container, "FINISHED")

    container.handle(event)

    (finished,) = workshop.posted.events
    assert (finished.entity, finished.status, finished.node) == (container.attempt, event.status, NODE)


def test_first_attempt_is_notified_of_the_end_of_a_container_that_another_has_taken_over(workshop: Workshop) -> None:
    """An attempt that waited for its master's container took the end of any container for the master's."""
    container = workshop.container("RUNNING")
    container.attempt = "appattempt_0_0001_000002"

    container.handle(event_for(container, "FINISHED"))

    (finished,) = workshop.posted.events
    assert finished.entity == "appattempt_0_0001_000001"


def test_node_is_ordered_to_stop_the_container(workshop: Workshop) -> None:
    container = workshop.container("RUNNING")

    container.handle(event_for(container, "KILL"))

    clean_up = workshop.posted.events[0]
    assert (clean_up.entity, clean_up.about) == (NODE, TASK)


@pytest.mark.parametrize(("state", "event"), [("ALLOCATED", "ACQUIRED"), ("NEW", "RECOVER")])
def test_application_is_notified_of_the_node_that_it_uses(workshop: Workshop, state: str, event: str) -> None:
    container = workshop.container(state)

    container.handle(event_for(container, event))

    (running,) = workshop.posted.events
    assert (running.entity, running.node) == (container.application, NODE)


def test_event_for_an_ended_container_is_dropped(workshop: Workshop) -> None:
    container = workshop.container("RUNNING")
    handler = EntityEventHandler(workshop.context.containers)

    for event in ("FINISHED", "KILL", "EXPIRE"):
        handler.handle(event_for(container, event))

    assert (container.state.name, workshop.posted.news()) == ("COMPLETED", list(ENDED))


# -- what it keeps ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "event", "is_used"),
    [
        ("RUNNING", "FINISHED", True),
        ("ALLOCATED", "EXPIRE", True),
        ("ACQUIRED", "KILL", True),
        ("RESERVED", "KILL", False),
    ],
)
def test_attempt_is_charged_for_the_size_of_the_container(
    workshop: Workshop, state: str, event: str, is_used: bool
) -> None:
    container = workshop.container(state)
    attempt = workshop.context.attempts[container.attempt]
    workshop.clock.advance(3000)

    container.handle(event_for(container, event))

    usage = attempt.usage
    charged = (usage.memory_mb_seconds, usage.vcore_seconds, attempt.preempted.count)
    assert charged == ((3 * 1024, 3, 0) if is_used else (0, 0, 0))


def test_preemption_is_counted(workshop: Workshop) -> None:
    container = workshop.container("RUNNING")

    container.handle(event_for(container, "KILL", status=ContainerStatus(TASK, EXIT_PREEMPTED)))

    assert workshop.context.attempts[container.attempt].preempted.count == 1


def test_container_of_an_attempt_that_is_forgotten_ends_all_the_same(workshop: Workshop) -> None:
    container = workshop.container("RUNNING")
    workshop.context.attempts.clear()

    container.handle(event_for(container, "KILL"))

    assert (container.state.name, workshop.posted.news()) == ("KILLED", list(STOP))


def test_end_is_kept_with_its_time(workshop: Workshop) -> None:
    workshop.clock.advance(1000)
    container = workshop.container("RUNNING")
    workshop.clock.advance(500)

    container.handle(event_for(container, "KILL", status=ContainerStatus(TASK, EXIT_ABORTED, "why")))

    assert (container.created_ms, container.finish_ms) == (1000, 1500)
    assert container.status == ContainerStatus(TASK, EXIT_ABORTED, "why")


@pytest.mark.parametrize("state", ["NEW", "RESERVED", "RUNNING"])
def test_reservation_is_kept(workshop: Workshop, state: str) -> None:
    container = workshop.container(state)

    container.handle(event_for(container, "RESERVED", resource=LARGER))

    assert container.reserved_resource == LARGER


# -- expiry -----------------------------------------------------------------------------------------------------------


def test_acquired_container_that_is_not_launched_expires(workshop: Workshop) -> None:
    container = workshop.container("ALLOCATED")
    expirer = workshop.context.container_allocation_expirer
    container.handle(event_for(container, "ACQUIRED"))
    workshop.posted.events.clear()

    workshop.clock.advance(600_000)
    expirer.expire_due()

    (expired,) = workshop.posted.events
    assert (workshop.posted.news(), expired.entity) == (["Scheduler CONTAINER_EXPIRED"], TASK)


@pytest.mark.parametrize("event", ["RELEASED", "EXPIRE", "KILL"])
def test_container_that_is_stopped_expires_no_more(workshop: Workshop, event: str) -> None:
    container = workshop.container("ALLOCATED")
    container.handle(event_for(container, "ACQUIRED"))

    container.handle(event_for(container, event))

    assert TASK not in workshop.context.container_allocation_expirer


# -- another size -----------------------------------------------------------------------------------------------------


def resized(workshop: Workshop, to: Resource) -> RMContainer:
    """A running container with another size booked by the scheduler, and acquired by its master."""
    container = workshop.container("RUNNING")
    container.request = container.request._replace(resource=to)
    container.handle(event_for(container, "ACQUIRE_UPDATED_CONTAINER", resource=to))
    return container


@pytest.mark.parametrize(("size", "expires"), [(LARGER, True), (WARPED, True), (SMALLER, False), (BOOKED, False)])
def test_only_what_is_an_increase_expires(workshop: Workshop, size: Resource, expires: bool) -> None:
    resized(workshop, size)

    assert (TASK in workshop.context.container_allocation_expirer) is expires


@pytest.mark.parametrize("larger", [Resource(1024, 1000, gpus=1), Resource(1024, 1000, others=named({"fpga": 1}))])
def test_more_of_any_type_is_an_increase(workshop: Workshop, larger: Resource) -> None:
    resized(workshop, larger)

    assert TASK in workshop.context.container_allocation_expirer


def report(container: RMContainer, on_node: Resource) -> None:
    container.handle(event_for(container, "NM_DONE_CHANGE_RESOURCE", resource=on_node))


def test_node_that_has_the_booked_size_confirms_it(workshop: Workshop) -> None:
    container = resized(workshop, LARGER)

    report(container, LARGER)

    assert (container.last_confirmed, workshop.posted.events) == (LARGER, [])
    assert TASK not in workshop.context.container_allocation_expirer


def test_node_that_has_more_is_told_to_shrink_it(workshop: Workshop) -> None:
    container = resized(workshop, LARGER)
    container.request = container.request._replace(resource=BOOKED)  # the increase has been taken back

    report(container, LARGER)

    (update,) = workshop.posted.events
    assert (update.entity, update.about, container.last_confirmed) == (NODE, (TASK, BOOKED), BOOKED)
    assert TASK not in workshop.context.container_allocation_expirer


@pytest.mark.parametrize(("on_node", "confirmed"), [(Resource(1536, 1500), Resource(1536, 1500)), (SMALLER, BOOKED)])
def test_node_that_has_less_confirms_the_larger_and_may_still_expire(
    workshop: Workshop, on_node: Resource, confirmed: Resource
) -> None:
    container = resized(workshop, LARGER)

    report(container, on_node)

    assert (container.last_confirmed, workshop.posted.events) == (confirmed, [])
    assert TASK in workshop.context.container_allocation_expirer


def test_container_of_a_size_that_was_never_asked_for_is_stopped(workshop: Workshop) -> None:
    container = resized(workshop, LARGER)

    report(container, Resource(4096, 500))

    (clean_up,) = workshop.posted.events
    assert (workshop.posted.news(), clean_up.about) == (["RMNode CLEANUP_CONTAINER"], TASK)
    assert container.last_confirmed == BOOKED


# -- the journal ------------------------------------------------------------------------------------------------------


def test_payload_describes_the_container_for_the_journal(workshop: Workshop) -> None:
    assert workshop.container().payload() == {
        "application": "application_0_0001",
        "attempt": "appattempt_0_0001_000001",
        "node": NODE,
        "memory_mb": 1024,
        "vcores_milli": 1000,
        "gpus": 0,
        "gpu_milli": 1000,
        "gpu_devices": (),
        "kind": "map",
    }


def test_text_of_the_payload_is_the_payload_as_json(workshop: Workshop) -> None:
    plain, odd = workshop.container(), workshop.container()
    odd.request = odd.request._replace(
        resource=Resource(1, 2, gpus=2, gpu_milli=460, others=named({"fpga": 1})), kind='"größe"\n\udcff'
    )
    odd.gpu_devices = (0, 3)

    for container in (plain, odd):
        start = RMContainerStartEvent(container)
        assert start.payload == json.dumps(container.payload(), separators=(",", ":"))
        assert encode_payload(start.payload) == start.payload


def test_event_without_a_row_changes_nothing(workshop: Workshop) -> None:
    """YARN's scheduler sends CHANGE_RESOURCE, for which RMContainer has no row in any state."""
    container = workshop.container("RUNNING")

    container.handle(RMContainerEvent(RMContainerEventType.CHANGE_RESOURCE, TASK))

    assert (container.state.name, workshop.posted.events) == ("RUNNING", [])
    assert container.request == ContainerRequest(BOOKED, kind="map")
    assert workshop.recorder.machines["RMContainer"].invalid == 1
