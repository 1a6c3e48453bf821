"""Every arc of RMContainer: where it leads, and what it posts; and what it keeps."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from statemachines.resourcemanager import ContainerRequest, ContainerStatus, Resource, RMContainer, RMContainerEventType

from ....kit.scenarios import play
from ..builders import NODE, TASK, Case, Workshop, case_id, declared, event_for, send, targets
from ..cluster import Cluster
from ..inner import EXIT_ABORTED, EXIT_PREEMPTED, EntityEventHandler
from .stage import MachineStage

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


# -- what it keeps, and what others hear ------------------------------------------------------------------------------

ATTEMPT, APP = "appattempt_0_0001_000001", "application_0_0001"
EXPIRES = "in_container_allocation_expirer"
BECOMES = "NM_DONE_CHANGE_RESOURCE resource="

SCENARIOS = {
    "the attempt hears of the end with status and node": (
        f"container RUNNING | FINISHED status=TASK:3 -> CONTAINER_FINISHED.entity {ATTEMPT}"
        f"; CONTAINER_FINISHED.node {NODE}"
        "; CONTAINER_FINISHED.status.exit_status 3"
    ),
    # An attempt that waited for its master's container took the end of any container for the master's.
    "the first attempt hears of the end of a container that another has taken over": (
        f"container RUNNING | set attempt=appattempt_0_0001_000002 | FINISHED -> CONTAINER_FINISHED.entity {ATTEMPT}"
    ),
    "the node is told to stop the container": (
        f"container RUNNING | KILL -> CLEANUP_CONTAINER.entity {NODE} ; CLEANUP_CONTAINER.about {TASK}"
    ),
    "the application hears of the node that it uses": (
        f"container ALLOCATED | ACQUIRED -> APP_RUNNING_ON_NODE.entity {APP} ; APP_RUNNING_ON_NODE.node {NODE}"
    ),
    "the application hears of the node of a recovered container": (
        f"container NEW | RECOVER -> APP_RUNNING_ON_NODE.entity {APP} ; APP_RUNNING_ON_NODE.node {NODE}"
    ),
    "the attempt is charged for a container that ran": "container RUNNING | +3000 | FINISHED -> charged 3072 3 0",
    "the attempt is charged for a container that expired": "container ALLOCATED | +3000 | EXPIRE -> charged 3072 3 0",
    "the attempt is charged for a container that was killed": "container ACQUIRED | +3000 | KILL -> charged 3072 3 0",
    "the attempt is not charged for a reservation": "container RESERVED | +3000 | KILL -> charged 0 0 0",
    "a preemption is counted": f"container RUNNING | KILL status=TASK:{EXIT_PREEMPTED} -> charged 0 0 1",
    "a container of an attempt that is forgotten ends all the same": (
        "container RUNNING | forget | KILL -> state KILLED ; posted CLEANUP_CONTAINER CONTAINER_FINISHED"
    ),
    "the end is kept with its time": (
        f"+1000 | container RUNNING | +500 | KILL status=TASK:{EXIT_ABORTED}"
        f"-> entity.created_ms 1000 ; entity.finish_ms 1500 ; entity.status.exit_status {EXIT_ABORTED}"
    ),
    **{
        f"a reservation is kept at {state}": (
            f"container {state} | RESERVED resource=2048x2000 -> entity.reserved_resource 2048x2000"
        )
        for state in ("NEW", "RESERVED", "RUNNING")
    },
    "an acquired container that is not launched expires": (
        "container ALLOCATED | ACQUIRED | +600000 | expire -> posted CONTAINER_EXPIRED"
        f"; CONTAINER_EXPIRED.entity {TASK}"
    ),
    **{
        f"a container expires no more after {event}": (
            f"container ALLOCATED | ACQUIRED -> {EXPIRES} True | {event} -> {EXPIRES} False"
        )
        for event in ("RELEASED", "EXPIRE", "KILL")
    },
    "an increase expires": f"container RUNNING | resize to=2048x2000 -> {EXPIRES} True",
    "an increase of one type expires": f"container RUNNING | resize to=2048x500 -> {EXPIRES} True",
    "a decrease does not expire": f"container RUNNING | resize to=512x500 -> {EXPIRES} False",
    "the same size does not expire": f"container RUNNING | resize to=1024x1000 -> {EXPIRES} False",
    "a node that has the booked size confirms it": (
        f"container RUNNING | resize to=2048x2000 | {BECOMES}2048x2000 -> entity.last_confirmed 2048x2000 ; posted"
        f"; {EXPIRES} False"
    ),
    "a node that has more is told to shrink it": (
        f"container RUNNING | resize to=2048x2000 | book to=1024x1000 | {BECOMES}2048x2000"
        f"-> UPDATE_CONTAINER.entity {NODE}"
        f"; UPDATE_CONTAINER.about {TASK} 1024x1000 ; entity.last_confirmed 1024x1000 ; {EXPIRES} False"
    ),
    "a node that has less confirms that, and it may still expire": (
        f"container RUNNING | resize to=2048x2000 | {BECOMES}1536x1500 -> entity.last_confirmed 1536x1500 ; posted"
        f"; {EXPIRES} True"
    ),
    "a node that has less than was confirmed changes nothing": (
        f"container RUNNING | resize to=2048x2000 | {BECOMES}512x500 -> entity.last_confirmed 1024x1000 ; posted"
        f"; {EXPIRES} True"
    ),
    "a container of a size that was never asked for is stopped": (
        f"container RUNNING | resize to=2048x2000 | {BECOMES}4096x500"
        f"-> posted CLEANUP_CONTAINER ; CLEANUP_CONTAINER.about {TASK} ; entity.last_confirmed 1024x1000"
    ),
}  # fmt: skip


class ContainerStage(MachineStage):
    def do_book(self, to: Resource) -> None:
        """As the scheduler does."""
        self.entity.request = self.entity.request._replace(resource=to)

    def do_resize(self, to: Resource) -> None:
        """The scheduler books it, and the master acquires it."""
        self.do_book(to)
        send(self.entity, "ACQUIRE_UPDATED_CONTAINER", resource=to)

    def do_forget(self) -> None:
        self.workshop.context.attempts.clear()

    def do_expire(self) -> None:
        self.workshop.context.container_allocation_expirer.expire_due()

    def look(self, what: str) -> Iterable[object]:
        if what != "charged":
            return super().look(what)
        attempt = self.workshop.context.attempts[self.entity.attempt]
        used = attempt.usage.memory_mb_seconds, attempt.usage.vcore_seconds, attempt.preempted.count
        return map(int, used)


@pytest.mark.parametrize("script", SCENARIOS.values(), ids=SCENARIOS)
def test_container(script: str) -> None:
    play(ContainerStage(), script)


def test_event_for_an_ended_container_is_dropped(workshop: Workshop) -> None:
    container = workshop.container("RUNNING")
    handler = EntityEventHandler(workshop.context.containers)

    for event in ("FINISHED", "KILL", "EXPIRE"):
        handler.handle(event_for(container, event))

    assert (container.state.name, workshop.posted.news()) == ("COMPLETED", list(ENDED))


@pytest.mark.parametrize("larger", [Resource(1024, 1000, gpus=1), Resource(1024, 1000, others=(("fpga", 1),))])
def test_more_of_any_type_is_an_increase(larger: Resource) -> None:
    stage = ContainerStage()
    stage.play("container", "RUNNING")

    stage.do_resize(larger)

    assert list(stage.look(EXPIRES)) == [True]


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


def test_text_of_the_payload_is_the_payload_as_json(cluster: Cluster) -> None:
    cluster.add_node("n1", gpus=4, others={"fpga": 1})
    odd = Resource(1, 2, gpus=2, gpu_milli=460, others=(("fpga", 1),))
    cluster.ask(cluster.new_attempt(), Resource(1, 1), cluster.request(odd, kind='"größe"\n\udcff'))

    starts = [event for event in cluster.dispatcher.events if event.type is RMContainerEventType.START]

    containers = [cluster.context.containers[start.entity] for start in starts]
    assert [container.gpu_devices for container in containers] == [(), (0, 1)]
    for start, container in zip(starts, containers, strict=True):
        assert start.payload == json.dumps(container.payload(), separators=(",", ":"))


def test_event_without_a_row_changes_nothing(workshop: Workshop) -> None:
    """YARN's scheduler sends CHANGE_RESOURCE, for which RMContainer has no row in any state."""
    container = workshop.container("RUNNING")

    container.handle(event_for(container, "CHANGE_RESOURCE"))

    assert (container.state.name, workshop.posted.events) == ("RUNNING", [])
    assert container.request == ContainerRequest(BOOKED, kind="map")
    assert workshop.recorder.machines["RMContainer"].invalid == 1
