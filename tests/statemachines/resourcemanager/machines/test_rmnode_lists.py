"""What a node keeps: its containers and applications, news for the scheduler, orders for its next heartbeat.

How its capacity changes, how it is emptied, and how it comes back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import pytest

from statemachines.resourcemanager import ContainerStatus, NMContainerStatus, Resource, RMNode
from statemachines.simulation.workload import NodeSpec

from ....kit.scenarios import play
from ..builders import MASTER, NODE, SPEC, TASK, Workshop, event_for
from ..inner import EXIT_ABORTED
from .stage import MachineStage

APP = "application_0_0001"
THIRD = "container_0_0001_01_000003"
LARGER = Resource(16384, 16000)


def report(node: RMNode, **more: Any) -> None:
    node.handle(event_for(node, "STATUS_UPDATE", **more))


@pytest.fixture
def node(workshop: Workshop) -> RMNode:
    """A running node; the application of the containers is known."""
    workshop.app("RUNNING")
    return workshop.node("RUNNING")


class NodeStage(MachineStage):
    """Containers are called by their numbers; 1 is the master's.

    `report launched 2 3 finished 1 running 2`: what a node reports; the scheduler gets `+2+3-1`, and `!` after what is
    lost.
    """

    def play(self, verb: str, *words: str) -> None:
        if verb != "report":
            super().play(verb, *words)
            return
        named: dict[str, list[str]] = {}
        for word in words:
            if word.isalpha():
                of = named.setdefault(word, [])
            else:
                of.append(word if "_" in word else f"container_0_0001_01_{int(word):06d}")
        more: dict[str, Any] = {"healthy": "ill" not in named}
        if "running" in named:
            more["running"] = frozenset(named["running"])
        more |= {
            "launched": tuple(named.get("launched", ())),
            "finished": tuple(ContainerStatus(each, 0) for each in named.get("finished", ())),
        }
        self.workshop.posted.events.clear()
        report(self.entity, **more)
        self.step = list(self.workshop.posted.events)
        self.all |= {event.type.name: event for event in self.step}

    def do_app(self) -> None:
        """The application of the containers is known."""
        self.workshop.app("RUNNING")

    def do_pull(self) -> None:
        self.entity.pull_updates()

    def do_told(self) -> None:
        """The node has its orders."""
        self.entity.to_clean.clear()

    def do_acquired(self) -> None:
        """A container that has not been launched yet."""
        self.workshop.container("ACQUIRED")

    def do_reconnect(self, capacity: Resource, apps: str = "") -> None:
        spec, running = NodeSpec("node1", capacity), (apps,) if apps else ()
        self.entity.handle(event_for(self.entity, "RECONNECTED", spec=spec, running_apps=running))

    def do_watched(self) -> None:
        self.workshop.context.nm_liveliness_monitor.register(NODE)

    def do_expiring(self) -> None:
        self.workshop.context.container_allocation_expirer.register(TASK)

    def look(self, what: str) -> Iterable[object]:
        match what:
            case "pulled":
                return [
                    "".join(f"+{int(id[-6:])}" for id in launched)
                    + "".join(f"-{int(end.container[-6:])}{self.lost(end)}" for end in finished)
                    for launched, finished in self.entity.pull_updates()
                ]
            case "containers":
                return sorted(int(id[-6:]) for id in self.entity.containers)
            case "expires":
                return [TASK in self.workshop.context.container_allocation_expirer]
        return super().look(what)

    def lost(self, end: ContainerStatus) -> str:
        reason = f"lost: {NODE} no longer reports it"
        return "!" if (end.exit_status, end.diagnostics) == (EXIT_ABORTED, reason) else ""


RUNS = "node RUNNING | app | "
ON_NODE = f"APP_RUNNING_ON_NODE.entity {APP} ; APP_RUNNING_ON_NODE.node {NODE} ; entity.running_apps {APP}"

SCENARIOS = {
    "reports wait for the scheduler with one node update": (
        RUNS + "report launched 2 -> posted APP_RUNNING_ON_NODE NODE_UPDATE | report finished 2 -> posted"
        "; pulled +2 -2 ; pulled"
    ),
    "the scheduler is told again once it has fetched the reports": (
        RUNS + "report -> posted NODE_UPDATE | report -> posted | pull | report -> posted NODE_UPDATE"
    ),
    "a report without news of containers is not queued": RUNS + "report -> posted NODE_UPDATE ; pulled",
    "a node that falls ill drops its reports and its containers": (
        RUNS + "report launched 2 | report ill | report -> posted NODE_ADDED NODE_USABLE | report -> posted NODE_UPDATE"
        "; pulled ; containers"
    ),
    "a node knows the containers that it said to run": RUNS + "report launched 2 3 | report finished 2 -> containers 3",
    "a container that is reported as launched again is no news": (
        RUNS + "report launched 2 | pull | report launched 2 3 -> pulled +3"
    ),
    **{
        f"a container that is reported as {how} expires no more": (
            RUNS + f"expiring -> expires True | report {how} 2 -> expires False"
        )
        for how in ("launched", "finished", "running")
    },
    "news of a container to be cleaned up is not passed on": (
        RUNS + "CLEANUP_CONTAINER | report launched 2 3 | report finished 2 3 -> pulled +3 -3 ; entity.to_clean"
        "; containers"
    ),
    # Otherwise the next report of all containers would count it as launched again.
    "a container to be cleaned up runs until the node says otherwise": (
        RUNS + "report launched 2 | pull | CLEANUP_CONTAINER | told | report running 2 -> containers 2 ; pulled"
    ),
    "news of an ended application's containers is not passed on": (
        RUNS + "report launched 2 | pull | CLEANUP_APP | report launched 3 finished 2 -> pulled ; containers"
    ),
    "containers that only a full report names are launched": (
        RUNS + "report running 3 2 1 launched 3 -> pulled +3+1+2 ; containers 1 2 3"
    ),
    "a container that a full report omits is lost": (
        RUNS + "report launched 2 3 | pull | report running finished 3 -> pulled -3-2! ; containers"
    ),
    # A report may have been made before the container was launched.
    "a container that the node has never reported is not lost": RUNS + "acquired | report running -> pulled",
    "a full report without changes is not queued": RUNS + "report launched 2 | pull | report running 2 -> pulled",
    "an application is notified once that it runs on the node": (
        RUNS + f"report launched 2 3 -> posted APP_RUNNING_ON_NODE NODE_UPDATE ; {ON_NODE}"
    ),
    "an application whose containers ended is notified once": (
        RUNS + f"report finished 2 3 -> posted APP_RUNNING_ON_NODE NODE_UPDATE ; {ON_NODE}"
    ),
    "an unknown application is cleaned up": (
        RUNS + "report launched container_0_0009_01_000001 -> posted NODE_UPDATE ; entity.running_apps"
        "; entity.apps_to_clean application_0_0009"
    ),
    "an ended application no longer runs here": (
        RUNS + f"report launched 2 | CLEANUP_APP -> entity.running_apps ; entity.apps_to_clean {APP}"
    ),
    "the timeout of a decommissioning can be changed": (
        "node RUNNING | GRACEFUL_DECOMMISSION about=60 -> entity.decommission_timeout_s 60"
        "| GRACEFUL_DECOMMISSION about=None -> state DECOMMISSIONING ; entity.decommission_timeout_s None"
    ),
    "a node is decommissioned when its last application has ended": (
        RUNS + "report launched 2 | GRACEFUL_DECOMMISSION | report finished 2 -> state DECOMMISSIONING | CLEANUP_APP"
        "| report -> state DECOMMISSIONED"
    ),
    "a node that leaves is no longer expected to report": (
        "node RUNNING | watched -> in_nm_liveliness_monitor True | SHUTDOWN -> in_nm_liveliness_monitor False"
    ),
    **{
        f"the scheduler hears of the new capacity of a node that is {state}": (
            f"node {state} | RESOURCE_UPDATE about=16384x16000 -> entity.capacity 16384x16000"
            f"; NODE_RESOURCE_UPDATE.entity {NODE} ; NODE_RESOURCE_UPDATE.capacity 16384x16000"
        )
        for state in ("RUNNING", "DECOMMISSIONING")
    },
    "a restarted node has nothing of before, and its new capacity": (
        RUNS + "report launched 2 | reconnect capacity=16384x16000 -> entity.capacity 16384x16000"
        "; entity.spec.capacity 16384x16000 ; containers ; entity.running_apps ; pulled"
    ),
    "a node that reconnects while it is emptied keeps its new capacity": (
        RUNS + f"GRACEFUL_DECOMMISSION | reconnect capacity=16384x16000 apps={APP} | RECOMMISSION"
        "-> entity.capacity 16384x16000"
    ),
    **{
        f"clean-ups of a node that is {state} wait for its next heartbeat": (
            f"node {state} | CLEANUP_APP | CLEANUP_CONTAINER | FINISHED_CONTAINERS_PULLED_BY_AM"
            f"-> entity.apps_to_clean {APP} ; entity.to_clean {TASK} ; entity.to_forget {TASK}"
        )
        for state in ("RUNNING", "DECOMMISSIONING", "UNHEALTHY")
    },
}  # fmt: skip


@pytest.mark.parametrize("script", SCENARIOS.values(), ids=SCENARIOS)
def test_node(script: str) -> None:
    play(NodeStage(), script)


def test_report_during_a_pull_posts_its_own_node_update(workshop: Workshop, node: RMNode) -> None:
    """A report may be appended after the scheduler's thread has looked at the queue for the last time."""

    class Queue:
        """Empty when the scheduler looks at it; a report arrives directly afterwards."""

        def __bool__(self) -> bool:
            report(node, launched=(TASK,))
            return False

        def append(self, update: Any) -> None:
            appended.append(update)

    appended: list[Any] = []
    report(node)
    workshop.posted.events.clear()
    node.updates = Queue()  # type: ignore[assignment]

    assert node.pull_updates() == []

    assert (appended, workshop.posted.news()[-1]) == ([((TASK,), ())], "Scheduler NODE_UPDATE")


def test_pull_survives_a_queue_that_is_cleared_meanwhile(node: RMNode) -> None:
    class Queue:
        """Its report is dropped between the look and the pop."""

        def popleft(self) -> Any:
            raise IndexError

    node.updates = Queue()  # type: ignore[assignment]

    assert node.pull_updates() == []


@pytest.mark.parametrize("healthy", [True, False])
@pytest.mark.parametrize("state", ["RUNNING", "DECOMMISSIONING", "UNHEALTHY"])
def test_health_is_as_it_last_said(workshop: Workshop, state: str, healthy: bool) -> None:
    node = workshop.node(state)
    node.running_apps.add(APP)
    node.health = state != "UNHEALTHY"

    report(node, healthy=healthy)

    assert node.health is healthy


def test_container_with_an_invalid_id_is_logged_and_passed_on(node: RMNode, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "statemachines.resourcemanager.machines.rmnode"):
        report(node, launched=("nonsense", TASK))

    assert node.pull_updates() == [(("nonsense", TASK), ())]
    assert node.running_apps == {APP}
    assert f"{NODE} reports an invalid container: 'nonsense' is not the id of a container" in caplog.text


def test_sizes_and_signals_wait_for_the_next_heartbeat(node: RMNode) -> None:
    node.handle(event_for(node, "UPDATE_CONTAINER", about=(TASK, Resource(1, 1))))
    node.handle(event_for(node, "UPDATE_CONTAINER", about=(TASK, Resource(2, 2))))
    node.handle(event_for(node, "SIGNAL_CONTAINER", about=(TASK, "GRACEFUL_SHUTDOWN")))

    assert node.to_update == {TASK: Resource(2, 2)}
    assert node.to_signal == [(TASK, "GRACEFUL_SHUTDOWN")]


def test_container_is_notified_of_the_size_that_its_node_reports(workshop: Workshop, node: RMNode) -> None:
    report(node, resized=((TASK, LARGER),))

    done = workshop.posted.events[-1]
    assert workshop.posted.news() == ["Scheduler NODE_UPDATE", "RMContainer NM_DONE_CHANGE_RESOURCE"]
    assert (done.entity, done.resource) == (TASK, LARGER)


# -- capacity and emptying --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["NEW", "UNHEALTHY", "LOST", "REBOOTED", "DECOMMISSIONED", "SHUTDOWN"])
def test_new_capacity_of_a_node_that_is_not_in_use_is_kept_with_a_warning(
    workshop: Workshop, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    node = workshop.node(state)

    with caplog.at_level(logging.WARNING, "statemachines.resourcemanager.machines.rmnode"):
        node.handle(event_for(node, "RESOURCE_UPDATE", about=LARGER))

    assert (node.capacity, workshop.posted.events) == (LARGER, [])
    assert f"{NODE} is {state}: its new capacity {LARGER} counts once" in caplog.text


def test_scheduler_is_told_that_a_node_drains_and_of_its_capacity_then(workshop: Workshop, node: RMNode) -> None:
    timeouts_s = []
    for name, about in ("GRACEFUL_DECOMMISSION", 60), ("RESOURCE_UPDATE", LARGER), ("RECOMMISSION", None):
        node.handle(event_for(node, name, about=about))
        timeouts_s.append(node.decommission_timeout_s)

    told = [event for event in workshop.posted.events if event.type.name == "NODE_RESOURCE_UPDATE"]
    assert [(event.capacity, event.is_draining) for event in told] == [
        (SPEC.capacity, True),
        (LARGER, True),
        (LARGER, False),
    ]
    assert timeouts_s == [60, 60, None]


# -- reconnection -----------------------------------------------------------------------------------------------------


def reconnect(node: RMNode, spec: NodeSpec = SPEC, **more: Any) -> None:
    node.handle(event_for(node, "RECONNECTED", spec=spec, **more))


def test_other_node_manager_on_the_same_port_is_another_node(workshop: Workshop, node: RMNode) -> None:
    reconnect(node, NodeSpec("node1", LARGER, http_port=9042))

    other = workshop.context.nodes[NODE]
    started = workshop.posted.events[-1]
    assert (other is node, other.state.name, other.capacity) == (False, "NEW", LARGER)
    assert (started.entity, started.payload) == (NODE, other.payload())
    assert dict(workshop.recorder.machines["RMNode"].forgotten) == {"RUNNING": 1}


def test_reconnected_node_keeps_its_containers(workshop: Workshop, node: RMNode) -> None:
    size = Resource(1024, 1000)
    report(node, launched=(TASK, THIRD))
    node.pull_updates()
    done = ContainerStatus(THIRD, 7)

    reconnect(
        node,
        NodeSpec("node1", LARGER, http_port=9042),
        containers=(NMContainerStatus(MASTER, size), NMContainerStatus(THIRD, size, status=done)),
        running_apps=(APP, "application_0_0009"),
    )

    lost = ContainerStatus(TASK, EXIT_ABORTED, f"lost: {NODE} no longer reports it")
    assert node.pull_updates() == [((MASTER,), (done, lost))]
    assert (node.containers, node.running_apps, node.apps_to_clean) == ({MASTER}, {APP}, ["application_0_0009"])
    assert (workshop.context.nodes, node.capacity, node.spec.http_port) == ({NODE: node}, LARGER, 9042)
    assert workshop.posted.events[-1].capacity == LARGER
