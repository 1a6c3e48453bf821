"""What every scheduler policy does with one queue that all applications may use in full: which ask gets which node."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sized

import pytest

from statemachines.resourcemanager import (
    ContainerRequest,
    ContainerStatus,
    Resource,
    RMContainer,
    RMContainerEventType,
    RMNodeEventType,
)

from ....kit.scenarios import play
from ..cluster import Cluster
from ..inner import EXIT_ABORTED, ApplicationUse, NodeUse, RMNodeEvent, SchedulerEvent, SchedulerEventType
from .queue_cluster import QueueCluster
from .stage import SchedulerStage

DEFAULT = {"name": "default", "user_limit_factor": 9, "accessible_node_labels": {"x": {"capacity": 100}}}
POLICIES: dict[str, Callable[[], Cluster]] = {
    "fifo": Cluster,
    "capacity": lambda: QueueCluster(DEFAULT, maximum_am_resource_percent=100),
}

RACKS = "node a1 rack=/a | node b1 b2 rack=/b | node a2 rack=/a | app x"

NODES = {
    "the node found last is filled before the next": (
        "node n1 n2 n3 | app x | ask x 5*6 -> x n1 n1 n2 n2 n3 n3"
    ),
    "the search continues at the node found last even if an earlier one has room again": (
        "node n1 n2 | app x | ask x 5*3 | end x1 | ask x 5 5 -> x n1 n2 n2 n1"
    ),
    "a preferred node is taken while it has room": "node n1 n2 | app x | ask x 5@n2*3 -> x n2 n2 n1",
    "no ask waits for a preferred node that does not exist": "node n1 | app x | ask x 5@elsewhere -> x n1",
    "nodes with GPUs are kept for asks that need them": (
        "node gpu 10g1 | node plain | app x | ask x 10 5 -> x plain gpu"
    ),
    "GPUs are found on the nodes that have them": (
        "node plain | node gpu 10g2 | app x | ask x 1g1*3 -> x gpu gpu ; gpus:x 0 1 ; waits x:1g1"
    ),
    "only nodes of the named models will do": (
        "node n1 10g1 model=T4 | node n2 10g1 model=V100 | node n3 10g1 | app x"
        "| ask x 1g1~V100+P100*2 -> x n2 ; waits x:1g1"
    ),
    "further resource types are counted": (
        "node n1 | node n2 10f3 | app x | ask x 1f2 1f1 1f1 -> x n2 n2 ; waits x:1f1 | end x2 -> x n2 n2 ; waits"
    ),
    "an ask takes its host, then a node of its rack, then any": f"{RACKS} | ask x 10@b2*4 -> x b2 b1 a1 a2",
    "an ask takes a node of the rack that it names": f"{RACKS} | ask x 10@/b*3 -> x b1 b2 a1",
    "the rack counts if the host is unknown": f"{RACKS} | ask x 10@elsewhere@/b*3 -> x b1 b2 a1",
    "the rack of a known host is the one that counts": f"{RACKS} | ask x 10@a2@/b*2 -> x a2 a1",
    "an ask that insists waits for its host": (
        f"{RACKS} | ask x 10!b2*3 -> x b2 ; waits x:10 x:10 | end x1 -> x b2 ; waits x:10"
    ),
    "an ask that insists waits for its rack": (
        f"{RACKS} | ask x 10!/b*3 -> x b1 b2 ; waits x:10 | end x2 -> x b1 b2 ; waits"
    ),
    "an ask that insists does not block later ones": f"{RACKS} | ask x 9!elsewhere | ask x 10 -> x a1 ; waits x:9",
    "an ask that insists is served once its host is added": (
        "app x | ask x 10!late | node early -> x | node late -> x late"
    ),
    "every node of a host serves asks that prefer the host": (
        "node n1 port=1 | node n1 port=2 | node n2 | app x | ask x 10@n1*3 -> x n1 n1 n2"
    ),
    "asks go to nodes of their partition only": (
        "node plain | node labelled partition=x | app x | ask x 10*2 -> x plain ; waits x:10"
        "| ask x 9#x*2 -> x plain labelled"
    ),
    "an ask without a label has its application's": (
        "node plain | node labelled partition=x | app x node_label=x | ask x 10 -> x labelled | ask x 10#"
        "-> x labelled plain"
    ),
    "a preferred host of another partition is none": (
        "node n1 partition=x | node n2 | app x | ask x 10@n1 -> x n2"
    ),
    "a node that changes its partition serves the asks of the new one": (
        "node n1 | app x | ask x 5 | ask x 4#x | label n1 x -> sizes:x 5 4 | ask x 1 -> waits x:1 ; x1 RUNNING"
    ),
    "nothing is placed on a blacklisted host": (
        "node n1 n2 | app x y | ban x n1 | ask x 10@n1 9 -> x n2 ; waits x:9 | ask y 10 -> y n1"
    ),
    "a waiting ask takes no room on a host that is blacklisted meanwhile": (
        "node n1 | app x y | ask y 10 | ask x 10 | ban x n1 | end y1 -> x ; waits x:10"
    ),
    "asks are served in order once their host leaves the blacklist": (
        "node n1 | app x | ban x n1 | ask x 4 | ask x 5 | ask x 3 -> x | unban x n1 -> sizes:x 4 5 ; waits x:3"
    ),
    "a blacklist goes to the attempt that takes over": (
        "node n1 | app x | ban x n1 | stop x keep | next y x keep | ask y 1 -> y"
    ),
}  # fmt: skip

ORDER = {
    "an ask without room waits and is listed": "node n1 | app x y | ask x 10 | ask y 1 -> y ; waits y:1",
    "the earlier application comes first even if it asks later": (
        "node n1 | app early late | ask early 10 | ask late 10 | ask early 10 | end early1 -> early n1 ; waits late:10"
    ),
    "a second attempt keeps its application's place": (
        "node n1 | app early late | ask late 10 | ask late 10 | stop early | next again early | ask again 10"
        "| end late1 -> again n1 ; late"
    ),
    "the more urgent asks of an application come first, then the older": (
        "node n1 | app x | ask x 10 | ask x 5^20 5x4^5 5x3^20 5x2^5 -> waits x:5x4 x:5x2 x:5 x:5x3"
        "| end x1 -> sizes:x 5x4 5x2"
    ),
    "an ask that no node can take does not block later ones": (
        "node n1 | app giant small | ask giant 11x1 | ask small 1 -> small n1 ; waits giant:11x1"
    ),
    "a freed node serves several shapes in order as far as it goes": (
        "node n1 | app z a b c d | ask z 10 | ask a 6x1 | ask b 5x1 | ask c 3x1 | ask d 1"
        "| end z1 -> a n1 ; b ; c n1 ; d n1"
    ),
    "the earlier application comes first among shapes, whichever was asked for first": (
        "node n1 | app early late | ask early 10 | ask late 9 | ask early 8 | end early1 -> early n1 ; late"
    ),
    "the more urgent application comes first, then the earlier": (
        "node n1 | app x y | app z priority=5 | ask x 10 | ask y 5 | ask x 5 | ask z 5 | end x1 -> x n1 ; y ; z n1"
    ),
    "a changed priority reorders pending asks": (
        "node n1 | app x y | ask x 10 | ask x 10 1 | ask y 10 | urge y 1 -> waits y:10 x:10 x:1 | end x1 -> y n1 ; x"
    ),
    "the order survives the withdrawal of pending asks": (
        "node n1 | app a b c d e f | ask a 10 | ask c 10 | ask f 10 | ask b 10 | ask e 10 | ask d 10 | stop b | stop e"
        "-> waits c:10 d:10 f:10 | end a1 -> c n1 | end c1 -> d n1 | end d1 -> f n1 ; waits"
    ),
}  # fmt: skip

ROOM = {
    "the room of a finished container goes to a pending ask": (
        "node n1 | app x y | ask x 10 | ask y 10 -> y | end x1 -> y n1 ; waits"
    ),
    "the room of a released container goes to a pending ask": (
        "node n1 | app x y | ask x 10 | ask y 10 -> y | ask x x1 -> y n1 ; waits"
    ),
    "the room of an attempt that ends goes to a pending ask": (
        "node n1 | app x y | ask x 10 | ask y 10 -> y | stop x -> y n1 ; waits"
    ),
    "a new node serves a pending ask": "node n1 | app x y | ask x 10 | ask y 10 -> y | node n2 -> y n2 ; waits",
    "a node that is healthy again serves a pending ask": (
        "node n1 | app x y | ask x 10 | sicken n1 | ask y 10 -> y | beat n1 -> y n1 ; waits"
    ),
    "released room serves the asks of the same call": (
        "node n1 | app x | ask x 10 | ask x 10 x1 -> x n1 ; x1 RELEASED ; x2 RUNNING"
    ),
    "an attempt cannot release what another has": "node n1 | app x y | ask x 1 | ask y 1 | ask x y1 -> y1 RUNNING",
    "a container that has ended cannot be released": (
        "node n1 | app x | ask x 1 | end x1 | ask x x1 -> x1 COMPLETED ; n1 10"
    ),
    "a shrunk container leaves room for a pending ask": "node n1 | app x | ask x 10 | ask x 5 | resize x1 4 -> x n1 n1",
    "a resized container returns its current size": (
        "node n1 | app x | ask x 5 | resize x1 9 | end x1 | ask x 10 -> x n1"
    ),
    **{
        f"a running container gets another size, {size}, if its node has room": (
            f"node n1 10f1 | app x | ask x 5 | resize x1 {size} -> resized yes ; sizes:x {size}"
        )
        for size in ("8", "2", "2x8", "5f1")
    },
    **{
        f"a container keeps its size if its node has no room for {size}": (
            f"node n1 10g1 | app x | ask x 5 | resize x1 {size} -> resized no ; sizes:x 5"
        )
        for size in ("11x1", "1x11", "1g1", "1f1")
    },
    "only a running container gets another size": (
        "node n1 | app x | ask x 5 | end x1 | resize x1 1 -> resized no ; n1 10"
    ),
    "a container that runs does not expire": "node n1 | app x | ask x 10 | expire x1 -> x1 RUNNING",
    "an increase that is not confirmed in time is taken back": (
        "node n1 | app x | ask x 4 | resize x1 8x2 -> sizes:x 8x2 | expire x1 -> x1 RUNNING ; sizes:x 4x2"
    ),
    "a node with a larger capacity serves pending asks": (
        "node n1 | app x | ask x 20x10 1g1 | size n1 21x11g1 -> sizes:x 20x10 1g1"
    ),
    "a draining node gets no new container and no larger one": (
        "node n1 | app x | ask x 5 | drain n1 | ask x 1 1@n1 | resize x1 6 -> count:x 1 ; x1 RUNNING ; resized no"
    ),
    "a draining node's container may not even shrink": (
        "node n1 | app x | ask x 5 | drain n1 | resize x1 4 -> resized no"
    ),
    "a recommissioned node serves pending asks": (
        "node n1 | app x | ask x 5 | drain n1 | ask x 5 -> count:x 1 | undrain n1 -> count:x 2"
    ),
    "headroom is without draining and lost nodes": (
        "node n1 n2 10g1 | app x | ask x 4x3g1@n1 | drain n1 -> room:x 10g1 | lose n1 -> room:x 10g1"
    ),
    "headroom is finite though a type is asked for that no node has": "node n1 | app x | ask x 1f1 -> room:x 10",
}  # fmt: skip

ENDS = {
    "an attempt that ends loses its containers and its asks": (
        "node n1 | app x y | ask x 5 1 | ask x 10 5 99x1 | ask y 5 | stop x -> x1 KILLED ; x2 KILLED ; y n1 ; waits"
    ),
    "an ask whose container is lost before its master fetches it gets another one": (
        "node n1 | app x | ask x 1 | hush | ask x 5 | lose n1 | node n2 | fetch -> x1 KILLED ; sizes:x 5 ; x n2 ; waits"
    ),
    "a lost node takes its containers with it": (
        "node n1 | app x | ask x 5 | hush | ask x 1 | lose n1 -> x1 KILLED ; nodes ; has:x"
    ),
    "an unhealthy node takes its containers with it": (
        "node n1 | app x | ask x 5 | hush | ask x 1 | sicken n1 -> x1 KILLED ; nodes ; has:x"
    ),
    "a node added again has all its room": "node n1 | app x | ask x 10 | lose n1 | node n1 | ask x 10 -> x n1",
    "late news of a container that has ended change nothing": (
        "node n1 | app x | ask x 5 | stop x | end x1 -> x1 KILLED"
    ),
    "an attempt that was removed gets nothing": "node n1 | app x | stop x | stop x | ask x 1 -> has:x ; waits ; n1 10",
    "the next attempt takes over the tasks that run": (
        "node n1 | app x | ask x 1 1 | ask x 1 | hush | ask x 1 10 | stop x keep -> waits"
        "| next y x keep -> has:y x2 x3 ; has:x ; x1 KILLED ; x2 RUNNING"
    ),
    "a task that ends between two attempts leaves the books": (
        "node n1 | app x | ask x 1 1 | stop x keep | end x2 -> x2 COMPLETED | ask x 1 -> count:x 0"
        "| next y x keep -> has:y"
    ),
    "kept containers end with their application": "node n1 | app x | ask x 1 1 | stop x keep | remove x -> x2 KILLED",
    "kept containers end if the next attempt does not take them": (
        "node n1 | app x | ask x 1 1 | stop x keep | next y x -> x2 KILLED"
    ),
    "kept containers end with the attempt that took them": (
        "node n1 | app x | ask x 1 1 | stop x keep | next y x keep | stop y -> x2 KILLED"
    ),
}  # fmt: skip

SCENARIOS = NODES | ORDER | ROOM | ENDS


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("script", SCENARIOS.values(), ids=SCENARIOS)
def test_decision(script: str, policy: str) -> None:
    play(SchedulerStage(POLICIES[policy]()), script)


# -- what else the others see -----------------------------------------------------------------------------------------

ALL, HALF, SMALL = Resource(10, 10), Resource(5, 5), Resource(1, 1)


@pytest.fixture(params=POLICIES)
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """One node of 10."""
    cluster = POLICIES[request.param]()
    cluster.add_node("n1")
    return cluster


def test_application_and_attempt_hear_that_they_are_accepted(cluster: Cluster) -> None:
    app = cluster.add_app()

    attempt = cluster.add_attempt(app)
    recovered = cluster.add_app(is_recovering=True)

    assert cluster.news_names() == [f"APP_ACCEPTED {app}", f"ATTEMPT_ADDED {attempt}"], "none for a recovered one"
    assert cluster.scheduler.queue_of(recovered) == "root.default"


def test_containers_are_numbered_per_attempt_and_their_events_come_in_order(cluster: Cluster) -> None:
    app, ids = cluster.add_app(), []

    for number in (1, 2):
        attempt = cluster.add_attempt(app, number)
        ids.append([container.entity for container in cluster.get(attempt, SMALL, SMALL)])
        cluster.remove_attempt(attempt)

    assert ids == [[f"container_0_0001_{attempt:02d}_{number:06d}" for number in (1, 2)] for attempt in (1, 2)]
    events = [event.type for event in cluster.dispatcher.events if event.entity == ids[1][0]]
    assert events[:3] == [RMContainerEventType.START, RMContainerEventType.ACQUIRED, RMContainerEventType.LAUNCHED]


def test_waiting_ask_takes_any_node_that_gets_room_and_one_that_prefers_it_comes_first(cluster: Cluster) -> None:
    cluster.add_node("n2")
    attempt = cluster.new_attempt()
    first, second = cluster.get(attempt, ALL, ALL)
    asks = [cluster.request(ALL), cluster.request(ALL, host="n1"), cluster.request(ALL, host="n2")]
    cluster.ask(attempt, *asks)

    cluster.finish(second)
    cluster.finish(first)

    assert [container.request.tag for container in cluster.pull(attempt)] == [asks[2].tag, asks[1].tag]
    assert cluster.waiting_tags() == [asks[0].tag]


def test_container_that_was_not_fetched_cannot_be_released(cluster: Cluster) -> None:
    """The books dropped the container while its state refused RELEASED: it never ended."""
    attempt = cluster.new_attempt()
    cluster.ask(attempt, SMALL)
    (container,) = cluster.context.containers.values()

    cluster.ask(attempt, releases=(container.entity, "unknown"))

    assert cluster.pull(attempt) == [container]
    cluster.check()


def test_container_that_does_not_run_yet_is_not_resized_and_is_taken_back_if_it_never_does(cluster: Cluster) -> None:
    attempt = cluster.new_attempt()
    cluster.ask(attempt, ALL)
    (container,) = cluster.pull(attempt)

    assert not cluster.resize(container, SMALL)
    cluster.expire(container)

    assert (container.state.name, container.status and container.status.exit_status) == ("EXPIRED", EXIT_ABORTED)
    assert len(cluster.get(attempt, ALL)) == 1
    cluster.check()


def test_container_and_its_node_hear_of_another_size(cluster: Cluster) -> None:
    (container,) = cluster.get(cluster.new_attempt(), HALF)

    assert cluster.resize(container, Resource(8, 2))
    assert not cluster.resize(container, Resource(11, 1))

    types = (RMContainerEventType.ACQUIRE_UPDATED_CONTAINER, RMNodeEventType.UPDATE_CONTAINER)
    acquired, updated = (event for event in cluster.dispatcher.events if event.type in types)
    assert (acquired.entity, acquired.resource) == (container.entity, Resource(8, 2))
    assert (updated.entity, updated.about) == (container.node, (container.entity, Resource(8, 2)))


def test_node_with_a_masters_container_is_known(cluster: Cluster) -> None:
    cluster.add_node("n2")
    attempt, unmanaged = cluster.new_attempt(), cluster.new_attempt(unmanaged_am=True)
    master, _ = cluster.get(attempt, ALL, HALF)
    cluster.get(unmanaged, HALF)
    has_master = cluster.scheduler.has_master_container

    assert [has_master(f"{host}:45454") for host in ("n1", "n2", "n3")] == [True, False, False]
    cluster.finish(master)
    assert not has_master("n1:45454")


def test_ends_are_told_to_the_attempt(cluster: Cluster) -> None:
    attempt = cluster.new_attempt()
    containers = cluster.get(attempt, HALF, SMALL)
    cluster.news.clear()

    cluster.remove_attempt(attempt)

    ends = [event.status for event in cluster.news if event.type.name == "CONTAINER_FINISHED"]
    assert ends == [ContainerStatus(container.entity, EXIT_ABORTED, "its attempt ended") for container in containers]


@pytest.mark.parametrize("way", ["lost", "unhealthy"])
def test_attempt_hears_of_containers_lost_with_their_node_and_gets_no_other_master(cluster: Cluster, way: str) -> None:
    attempt = cluster.new_attempt()
    cluster.ask(attempt, SMALL)
    cluster.news.clear()

    if way == "lost":
        cluster.lose_node("n1:45454")
    else:
        cluster.tracker.heartbeat("n1:45454", healthy=False)

    assert cluster.scheduler.waiting() == []
    assert [(event.type.name, event.status.exit_status) for event in cluster.news] == [
        ("CONTAINER_FINISHED", EXIT_ABORTED)
    ]


def test_events_of_removed_nodes_have_no_effect(cluster: Cluster) -> None:
    for _ in range(2):
        cluster.lose_node("n1:45454")
    cluster.tracker.heartbeat("n1:45454")
    cluster.post(RMNodeEvent(RMNodeEventType.STARTED, "n1:45454"))

    assert list(cluster.scheduler.nodes()) == []
    cluster.check()


def test_nothing_is_known_of_strangers(cluster: Cluster) -> None:
    scheduler, attempt = cluster.scheduler, "appattempt_0_0099_000001"

    assert (scheduler.application_use(attempt), scheduler.node_use("n9:45454")) == (ApplicationUse(), NodeUse())
    assert scheduler.waiting_asks(attempt) == []


def test_nodes_may_be_added_during_an_iteration_over_them(cluster: Cluster) -> None:
    nodes = cluster.scheduler.nodes()

    cluster.add_node("n2")

    assert [node.host for node in nodes] == ["n1"]


@pytest.mark.long
def test_container_that_has_ended_is_not_kept_while_its_attempt_lives_on(cluster: Cluster) -> None:
    def count_containers() -> int:
        gc.collect()
        return sum(type(thing) is RMContainer and thing.context is cluster.context for thing in gc.get_objects())

    attempt = cluster.new_attempt()
    before = count_containers()

    cluster.finish(cluster.get(attempt, SMALL)[0])
    cluster.ask(attempt, releases=(cluster.get(attempt, SMALL)[0].entity,))
    cluster.news.clear()
    cluster.dispatcher.events.clear()

    assert count_containers() == before


def test_nothing_is_kept_of_applications_and_nodes_that_are_gone(cluster: Cluster) -> None:
    def sizes() -> dict[str, int]:
        return {name: len(value) for name, value in vars(cluster.scheduler).items() if isinstance(value, Sized)}

    before = sizes()
    node, app = cluster.add_node("n2", gpus=1), cluster.add_app()
    attempt = cluster.add_attempt(app)
    cluster.get(attempt, HALF, Resource(1, 1, 1))
    cluster.ask(attempt, ALL, HALF)

    cluster.remove_attempt(attempt)
    cluster.remove_app(app)
    cluster.lose_node(node)

    assert sizes() == before


class CountedLock:
    """Stands in for the scheduler's lock."""

    def __init__(self) -> None:
        self.taken = self.held = 0

    def __enter__(self) -> None:
        self.taken += 1
        self.held += 1

    def __exit__(self, *error: object) -> None:
        self.held -= 1


CALLS: dict[str, Callable[[str], tuple[object, ...]]] = {
    "handle": lambda attempt: (SchedulerEvent(SchedulerEventType.NODE_UPDATE, "n1:45454"),),
    "ask": lambda attempt: (attempt, [ContainerRequest(SMALL)]),
    "request_resize": lambda attempt: ("container", SMALL),
    "update_priority": lambda attempt: ("application", 1),
    "why_waiting": lambda attempt: (attempt, ContainerRequest(SMALL)),
    **{name: lambda attempt: (attempt,) for name in ("pull_newly_allocated", "live_containers", "queue_of")},
    **{name: lambda attempt: () for name in ("nodes", "waiting", "queues")},
    "has_master_container": lambda attempt: ("n1:45454",),
}


@pytest.mark.parametrize("call", CALLS)
def test_each_call_acquires_and_releases_the_lock(call: str) -> None:
    """Events arrive on a different thread than direct calls."""
    cluster = Cluster()
    cluster.add_node("n1")
    attempt = cluster.new_attempt()
    lock = CountedLock()
    cluster.scheduler._lock = lock

    cluster.in_handler(lambda: getattr(cluster.scheduler, call)(*CALLS[call](attempt)))

    assert lock.taken >= 1
    assert lock.held == 0
