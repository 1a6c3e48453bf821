"""Why asks wait: each cause is made, its sentence read, and the cause removed."""

from __future__ import annotations

import time
from typing import Any

import pytest

from statemachines.resourcemanager import Resource, RMNodeEventType
from statemachines.resourcemanager.events.rmnode import RMNodeEvent
from statemachines.resourcemanager.scheduler.capacity.capacity_scheduler import CapacityScheduler
from statemachines.resourcemanager.scheduler.core.node import NodeRequirements, SchedulerNode
from statemachines.resourcemanager.scheduler.core.placement import MOST_LOOKS, KnownCauses, NodeLooks, why_unplaced
from statemachines.resourcemanager.scheduler.fifo import FifoScheduler
from statemachines.resourcemanager.scheduler.wait_reasons import WaitCause, WaitingAsk
from statemachines.simulation.workload import NodeSpec

from ..cluster import Cluster
from .queue_cluster import QueueCluster

ONE = Resource(1, 1)
BIG = Resource(16_384, 2_000)


def only(cluster: Cluster, attempt: str) -> WaitingAsk:
    (ask,) = cluster.scheduler.waiting_asks(attempt)
    assert isinstance(ask, WaitingAsk)
    assert cluster.scheduler.wait_cause(attempt, KnownCauses()) is ask.reason.cause
    return ask


def is_served(cluster: Cluster, attempt: str) -> bool:
    return cluster.scheduler.waiting_asks(attempt) == [] and len(cluster.pull(attempt)) == 1


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(FifoScheduler)


@pytest.fixture
def beating() -> Cluster:
    """Assigns on heartbeats, as soon as a node is the preferred one, or after 2 others."""

    def make(context: Any) -> FifoScheduler:
        return FifoScheduler(context, on_heartbeat=True)

    return Cluster(make, scheduler={"node_locality_delay": 1, "rack_locality_additional_delay": 1})


# -- nodes ------------------------------------------------------------------------------------------------------------


def test_no_node_has_enough_free(cluster: Cluster) -> None:
    holders = []
    for host, memory_mb in (("n1", 17_000), ("n17", 20_000)):
        cluster.add_node(host, memory_mb, 9_000)
        at_host = cluster.request(Resource(8_000, 1_000), host=host, relax_locality=False)
        holders += cluster.get(cluster.new_attempt(), at_host)
    attempt = cluster.new_attempt()
    cluster.ask(attempt, BIG)

    ask = only(cluster, attempt)

    assert ask.sentence == "no node has 16,384 MB free; the closest, n17:45454, has 12,000 MB"
    assert (ask.reason.cause, ask.reason.node, ask.reason.resource) == (WaitCause.NO_ROOM, "n17:45454", "memory_mb")
    assert (ask.reason.needed, ask.reason.available) == (16_384, 12_000)
    for holder in holders:
        cluster.finish(holder)
    assert is_served(cluster, attempt)


def test_each_type_is_free_somewhere_but_not_together(cluster: Cluster) -> None:
    cluster.add_node("n1", 20_000, 1_000)
    cluster.add_node("n2", 10_000, 9_000)
    cluster.add_node("n3", 30_000, 9_000)
    (holder,) = cluster.get(cluster.new_attempt(), Resource(25_000, 1_000))
    attempt = cluster.new_attempt()
    cluster.ask(attempt, BIG)

    assert only(cluster, attempt).sentence == (
        "no node has 16,384 MB and 2 vcores free at once; the closest, n3:45454, has 5,000 MB"
    )
    cluster.finish(holder)
    assert is_served(cluster, attempt)


def test_no_node_could_ever_take_it(cluster: Cluster) -> None:
    cluster.add_node("n1", 8_192, 9_000)
    attempt = cluster.new_attempt()
    cluster.ask(attempt, BIG)

    ask = only(cluster, attempt)

    assert ask.reason.cause is WaitCause.NEVER_FITS
    assert ask.sentence == (
        "no node could ever take it: it needs 16,384 MB, and the largest, n1:45454, has 8,192 MB in all"
    )
    cluster.add_node("n2", 20_000, 9_000)
    assert is_served(cluster, attempt)


def test_gpus_and_other_types_are_named(cluster: Cluster) -> None:
    cluster.add_node("n1", gpus=2, model="T4", others={"fpga": 1})
    holder = cluster.new_attempt()
    cluster.get(holder, Resource(1, 1, gpus=1))
    attempts = [cluster.new_attempt() for _ in range(4)]
    cluster.ask(attempts[0], Resource(1, 1, gpus=2))
    cluster.ask(attempts[1], Resource(1, 1, gpus=3, gpu_milli=500))
    cluster.ask(attempts[2], Resource(1, 1, others=(("fpga", 2),)))
    cluster.ask(attempts[3], cluster.request(Resource(1, 1, gpus=1), gpu_models=frozenset({"A100", "V100"})))

    assert [only(cluster, attempt).sentence for attempt in attempts] == [
        "no node has 2 GPUs free; the closest, n1:45454, has 1 GPU",
        "no node could ever take it: it needs 3 GPUs, and the largest, n1:45454, has 2 GPUs in all",
        "no node could ever take it: it needs 2 fpga, and the largest, n1:45454, has 1 fpga in all",
        "no node could ever take it: none has 1 MB, 0.001 vcores and 1 GPU of model A100 or V100",
    ]


def test_there_are_no_nodes(cluster: Cluster) -> None:
    attempt = cluster.new_attempt()
    cluster.ask(attempt, ONE)
    cluster.ask(attempt, cluster.request(ONE, node_label="gpu"))

    sentences = [ask.sentence for ask in cluster.scheduler.waiting_asks(attempt)]
    cluster.add_node("n1")
    later = only(cluster, attempt)

    assert sentences == ["the cluster has no nodes", "partition gpu has no nodes"]
    assert (later.sentence, later.partition) == ("partition gpu has no nodes", "gpu")


def test_nodes_are_there_but_out_of_use(cluster: Cluster) -> None:
    """They were all decommissioned, and the reason was that the cluster had none."""
    first, second, third = (cluster.add_node(f"n{number}") for number in range(3))
    cluster.add_node("labelled", partition="gpu")
    attempt = cluster.new_attempt()
    for node in (first, second):
        cluster.post(RMNodeEvent(RMNodeEventType.DECOMMISSION, node))
    cluster.lose_node(third)
    cluster.ask(attempt, ONE)

    reason = only(cluster, attempt).reason

    assert reason.cause is WaitCause.NO_NODES
    assert reason.sentence == "the default partition has no nodes in use: 2 decommissioned, 1 lost"


def test_only_other_partitions_have_nodes(cluster: Cluster) -> None:
    cluster.add_node("labelled", partition="gpu")
    attempt = cluster.new_attempt()
    cluster.ask(attempt, ONE)

    assert only(cluster, attempt).sentence == "the default partition has no nodes"


def test_host_that_it_requires_is_missing_or_blacklisted(cluster: Cluster) -> None:
    cluster.add_node("n1")
    attempt = cluster.new_attempt()
    cluster.ask(attempt, cluster.request(ONE, host="n2", relax_locality=False))

    missing = only(cluster, attempt)
    cluster.blacklist(attempt, ("n2",))
    cluster.add_node("n2")
    blacklisted = only(cluster, attempt)
    cluster.blacklist(attempt, removals=("n2",))

    assert missing.sentence == "it accepts no node but those of host n2, which has none"
    assert (missing.hosts, missing.reason.cause) == (("n2",), WaitCause.PLACEMENT)
    assert blacklisted.sentence == "it accepts no node but those of host n2, which it has blacklisted"
    assert is_served(cluster, attempt)


def test_nodes_with_room_are_blacklisted(cluster: Cluster) -> None:
    """It was said that no node had room, though the blacklisted ones were empty."""
    cluster.add_node("n1", 20_000, 9_000)
    cluster.add_node("n2", 20_000, 9_000)
    cluster.add_node("n3", 8_192, 9_000)
    attempt = cluster.new_attempt()
    cluster.blacklist(attempt, ("n2",))
    (holder,) = cluster.get(attempt, BIG)
    cluster.ask(attempt, BIG)

    full = only(cluster, attempt)
    cluster.blacklist(attempt, ("n1",))
    small = only(cluster, attempt)

    assert (full.reason.cause, small.reason.cause) == (WaitCause.NO_ROOM, WaitCause.NEVER_FITS)
    assert full.sentence == (
        "no node that it hasn't blacklisted has 16,384 MB free; the closest, n1:45454, has 3,616 MB"
    )
    assert small.sentence == (
        "no node that it hasn't blacklisted could ever take it: it needs 16,384 MB, and the largest, n3:45454, "
        "has 8,192 MB in all"
    )
    assert holder.node == "n1:45454"


def test_all_hosts_are_blacklisted(cluster: Cluster) -> None:
    cluster.add_node("n1")
    attempt = cluster.new_attempt()
    cluster.blacklist(attempt, ("n1",))
    cluster.ask(attempt, ONE)

    assert only(cluster, attempt).sentence == "it has blacklisted all hosts"
    cluster.blacklist(attempt, removals=("n1",))
    assert is_served(cluster, attempt)


def test_nodes_are_being_decommissioned(cluster: Cluster) -> None:
    node = cluster.add_node("n1")
    cluster.get(cluster.new_attempt(), ONE)
    cluster.decommission(node)
    attempt = cluster.new_attempt()
    cluster.ask(attempt, ONE)

    ask = only(cluster, attempt)

    assert ask.sentence == "all nodes that could take it are being decommissioned, such as n1:45454"
    assert ask.reason.cause is WaitCause.DRAINING
    cluster.recommission(node)
    cluster.tracker.heartbeat(node)
    assert is_served(cluster, attempt)


# -- on heartbeats ----------------------------------------------------------------------------------------------------


def test_locality_delay(beating: Cluster) -> None:
    near, _far = beating.add_node("n1", rack="/r1"), beating.add_node("n2", rack="/r2")
    other = beating.add_node("n3", rack="/r1")
    beating.tracker.heartbeat(near)
    holder = beating.new_attempt()
    beating.ask(holder, Resource(10, 10))
    beating.tracker.heartbeat(near)
    (held,) = beating.pull(holder)
    beating.tracker.heartbeat(near, launched=(held.entity,))
    attempt = beating.new_attempt()
    beating.ask(attempt, beating.request(ONE, host="n1", rack="/r1"))

    first = only(beating, attempt)
    beating.tracker.heartbeat("n2:45454")
    second = only(beating, attempt)

    assert first.reason.cause is WaitCause.LOCALITY
    assert first.sentence == (
        "it prefers host n1, and has let 0 of 1 heartbeats pass before it accepts other nodes of rack /r1, though node "
        "n3:45454 has room"
    )
    assert first.hosts == ("n1",)
    assert second.sentence == "node n3:45454 has room: it gets its container with the node's next heartbeat"
    assert second.reason.cause is WaitCause.HEARTBEAT
    beating.tracker.heartbeat(other)
    assert is_served(beating, attempt)


def test_node_is_reserved_for_it_and_for_another() -> None:
    cluster = QueueCluster({"name": "a"}, maximum_am_resource_percent=100, on_heartbeat=True)
    node, draining = cluster.add_node("n1"), cluster.add_node("n2", 20, 20)
    cluster.add_node("n3", 10, 0)  # what the queue may use leaves room for the reservation, and no node has it
    cluster.add_node("n4", 0, 10)
    holder = cluster.attempt_in("a")
    cluster.ask(holder, Resource(6, 6), cluster.request(ONE, host="n2", relax_locality=False))
    for each in (node, draining):
        cluster.tracker.heartbeat(each)
    held = {container.node: container for container in cluster.pull(holder)}
    for each in (node, draining):
        cluster.tracker.heartbeat(each, launched=(held[each].entity,))
    cluster.decommission(draining)
    large, small = cluster.attempt_in("a"), cluster.attempt_in("a")
    cluster.ask(large, Resource(7, 7))
    cluster.tracker.heartbeat(node)
    cluster.ask(small, ONE)

    own, others = only(cluster, large), only(cluster, small)

    assert own.sentence == "node n1:45454 is reserved for it and has 4 MB of the 7 MB that it needs"
    assert (own.reason.cause, own.reason.node) == (WaitCause.RESERVED, node)
    app = cluster.app_of(large).id
    assert others.sentence == f"node n1:45454 is reserved for {app}, and no other could take it"
    assert others.reason.cause is WaitCause.RESERVED
    cluster.finish(held[node])
    assert is_served(cluster, large)
    assert is_served(cluster, small)


# -- limits -----------------------------------------------------------------------------------------------------------


def halves(**more: Any) -> QueueCluster:
    cluster = QueueCluster(
        {"name": "research", "capacity": 60, "maximum_capacity": 60, **more}, {"name": "b", "capacity": 40}
    )
    cluster.add_node("n1", 102_400, 100_000)
    return cluster


def test_queue_is_at_its_limit() -> None:
    cluster = halves()
    attempt = cluster.attempt_in("research")
    containers = cluster.get(attempt, *[Resource(30_720, 1_000)] * 3)

    ask = only(cluster, attempt)

    assert ask.sentence == "queue root.research has used 61,440 MB of its 61,440 MB; the request needs 30,720 MB"
    assert (ask.reason.cause, ask.reason.queue, ask.reason.available) == (WaitCause.QUEUE_LIMIT, "root.research", 0)
    cluster.finish(containers[0])
    assert is_served(cluster, attempt)


def test_user_is_beyond_its_limit() -> None:
    cluster = halves(user_limit_factor=0.5)
    attempt = cluster.attempt_in("research", "ann")
    containers = cluster.get(attempt, *[Resource(10_240, 1_000)] * 5)

    ask = only(cluster, attempt)

    assert ask.sentence == (
        "user ann has used 40,960 MB in queue root.research, where the limit of a user is 30,720 MB with 1 active user"
    )
    assert (ask.reason.cause, ask.reason.user) == (WaitCause.USER_LIMIT, "ann")
    cluster.finish(containers[0])
    assert is_served(cluster, attempt)


def test_masters_use_their_share() -> None:
    cluster = halves(maximum_am_resource_percent=10)
    first, second, third = (cluster.attempt_in("research", am_resource=Resource(6_144, 1_000)) for _ in range(3))
    for attempt in (first, second, third):
        cluster.ask(attempt, Resource(6_144, 1_000))

    sentences = [only(cluster, attempt).sentence for attempt in (second, third)]

    assert only(cluster, second).reason.cause is WaitCause.AM_LIMIT
    assert sentences == [
        "the masters of queue root.research have used 6,144 MB of the 6,144 MB that they may use, 10 % of its maximum; "
        f"this application's master needs 6,144 MB{behind}"
        for behind in ("", ", and other applications come first")
    ]
    cluster.remove_attempt(first)
    assert is_served(cluster, second)
    assert only(cluster, third).sentence == sentences[0]


def test_users_masters_use_their_part() -> None:
    cluster = halves(maximum_am_resource_percent=50, minimum_user_limit_percent=20, user_limit_factor=0.5)
    large = Resource(10_240, 1_000)
    first, second = (cluster.attempt_in("research", "ann", am_resource=large) for _ in range(2))
    other = cluster.attempt_in("research", "bob", am_resource=large)
    for attempt in (first, second, other):
        cluster.ask(attempt, large)

    ask = only(cluster, second)

    assert ask.sentence == (
        "the masters of user ann have used 10,240 MB of the 15,360 MB that one user's may use in queue root.research; "
        "this application's master needs 10,240 MB"
    )
    assert (ask.reason.cause, ask.reason.user) == (WaitCause.USER_AM_LIMIT, "ann")
    assert is_served(cluster, other)  # one user at the limit does not hold up the next
    cluster.remove_attempt(first)
    assert is_served(cluster, second)


def test_fewer_active_users_let_masters_start() -> None:
    cluster = halves(maximum_am_resource_percent=60, minimum_user_limit_percent=10)
    small = Resource(10_240, 1_000)
    asker = cluster.attempt_in("research", "bob", am_resource=Resource(1, 1))
    waiter = cluster.attempt_in("research", "ann", am_resource=Resource(1, 1))
    cluster.ask(asker, Resource(1_000_000, 1))
    cluster.ask(waiter, Resource(1_000_000, 1))
    first, second = (cluster.attempt_in("research", "ann", am_resource=small) for _ in range(2))
    for attempt in (first, second):
        cluster.ask(attempt, small)
    assert len(cluster.pull(first)) == 1
    assert only(cluster, second).reason.cause is WaitCause.USER_AM_LIMIT

    cluster.remove_attempt(asker)

    assert is_served(cluster, second)
    cluster.check()


def test_whole_partition_is_used_though_a_node_has_room() -> None:
    """The node was said to give it a container with its next heartbeat, which it never did."""
    cluster = QueueCluster({"name": "a", "user_limit_factor": 100})
    first = cluster.add_node("n1")
    holder, waiting = cluster.attempt_in("a"), cluster.attempt_in("a", "bob")
    cluster.get(holder, *[ONE] * 10)
    cluster.add_node("n2")
    cluster.change_capacity(first, 1, 1)
    cluster.get(holder, *[cluster.request(ONE, host="n2")])

    cluster.ask(waiting, ONE)

    reason = only(cluster, waiting).reason
    assert (reason.cause, reason.queue, reason.sentence) == (
        WaitCause.QUEUE_LIMIT,
        "root",
        "queue root has used 11 MB of its 11 MB; the request needs 1 MB",
    )


def test_queue_may_not_use_the_partition() -> None:
    cluster = halves()
    cluster.add_node("g1", 102_400, 100_000, partition="gpu")
    attempt = cluster.attempt_in("b")
    cluster.ask(attempt, cluster.request(ONE, node_label="gpu"))

    ask = only(cluster, attempt)

    assert ask.sentence == "queue root.b may not use partition gpu"
    assert (ask.reason.cause, ask.reason.partition) == (WaitCause.PARTITION, "gpu")
    cluster.ask(attempt, ONE)
    assert len(cluster.pull(attempt)) == 1  # the default partition is another matter


# -- the asks ---------------------------------------------------------------------------------------------------------


def test_equal_asks_are_one_with_a_count_and_the_time_of_the_first(cluster: Cluster) -> None:
    attempt = cluster.new_attempt()
    clock: Any = cluster.context.timers
    clock.advance(1_000)
    cluster.ask(attempt, ONE, ONE)
    clock.advance(500)
    cluster.ask(attempt, ONE, cluster.request(ONE, priority=-1), cluster.request(ONE, host="n2"))

    urgent, others = cluster.scheduler.waiting_asks(attempt)

    assert (urgent.priority, urgent.count, urgent.since_ms) == (-1, 1, 1_500)
    assert (others.priority, others.count, others.since_ms) == (0, 4, 1_000)
    assert (others.hosts, others.resource) == (("n2",), ONE)


def test_ask_keeps_its_time_when_its_requirements_change(cluster: Cluster) -> None:
    clock: Any = cluster.context.timers
    attempt = cluster.new_attempt()
    cluster.ask(attempt, ONE)
    clock.advance(500)

    cluster.blacklist(attempt, ("n1",))

    assert only(cluster, attempt).since_ms == 0


@pytest.mark.parametrize("make", [FifoScheduler, CapacityScheduler])
def test_unknown_attempt_waits_for_nothing(make: Any) -> None:
    assert Cluster(make).scheduler.waiting_asks("appattempt_0_0099_000001") == []


def test_report_looks_at_the_nodes_for_a_few_requirements_only(cluster: Cluster) -> None:
    cluster.add_node("n1")
    attempt = cluster.new_attempt()
    cluster.ask(attempt, *[Resource(100 + number, 1) for number in range(MOST_LOOKS + 2)])

    asks = cluster.scheduler.waiting_asks(attempt)

    sentences = [ask.sentence for ask in asks]
    assert all("no node could ever take it" in sentence for sentence in sentences[:MOST_LOOKS])
    assert [ask.reason.cause for ask in asks[MOST_LOOKS - 1 :]] == [WaitCause.NEVER_FITS, *[WaitCause.NODE] * 2]
    assert sentences[MOST_LOOKS:] == [
        f"it waits for a node with {100 + number} MB and 0.001 vcores free" for number in (MOST_LOOKS, MOST_LOOKS + 1)
    ]


def test_looks_are_shared_by_the_attempts_of_one_report(cluster: Cluster) -> None:
    cluster.add_node("n1")
    looks = NodeLooks()
    attempts = [cluster.new_attempt() for _ in range(MOST_LOOKS + 2)]
    for attempt in attempts:
        cluster.ask(attempt, Resource(100, 1))

    asks = [ask for attempt in attempts for ask in cluster.scheduler.waiting_asks(attempt, looks)]

    assert len(asks) == len(attempts)
    assert len({id(ask.reason) for ask in asks}) == 1


def test_reason_that_depends_on_the_preferred_node_is_not_that_of_other_asks(beating: Cluster) -> None:
    """They were told that a node with room gives it to them with its next heartbeat, though they prefer another."""
    cluster = beating
    for host in ("n1", "n2", "n3"):
        cluster.add_node(host)
    anywhere, elsewhere = cluster.new_attempt(), cluster.new_attempt()
    cluster.ask(anywhere, ONE)
    cluster.ask(elsewhere, cluster.request(ONE, host="n9"))
    looks = NodeLooks()

    causes = [cluster.scheduler.waiting_asks(attempt, looks)[0].reason.cause for attempt in (anywhere, elsewhere)]
    known = KnownCauses()
    alone = [cluster.scheduler.wait_cause(attempt, known) for attempt in (anywhere, elsewhere)]

    assert causes == alone == [WaitCause.HEARTBEAT, WaitCause.LOCALITY]


def test_a_cause_that_many_share_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """To ask for thousands of reports took a quarter of a second of the handler thread."""
    cluster = halves(maximum_am_resource_percent=10)
    attempts = [cluster.attempt_in("research", user, am_resource=Resource(6_144, 1_000)) for user in ("ann", "bob") * 9]
    for attempt in attempts:
        cluster.ask(attempt, Resource(90_000, 1_000))
    expected = [only(cluster, attempt).reason.cause for attempt in attempts]
    asked: list[str] = []
    policy = cluster.scheduler._policy
    why_held_up = policy.why_held_up
    monkeypatch.setattr(
        policy, "why_held_up", lambda at, *more, **named: asked.append(at.id) or why_held_up(at, *more, **named)
    )
    known = KnownCauses()

    causes = [cluster.scheduler.wait_cause(attempt, known) for attempt in attempts]

    assert causes == expected == [WaitCause.QUEUE_LIMIT, *[WaitCause.AM_LIMIT] * 17]
    assert asked == [attempts[0], attempts[1], attempts[2]]


def test_looks_for_asks_that_prefer_a_node_are_counted(beating: Cluster) -> None:
    cluster = beating
    for host in ("n1", "n2", "n3"):
        cluster.add_node(host)
    attempts = [cluster.new_attempt() for _ in range(MOST_LOOKS + 1)]
    for attempt in attempts:
        cluster.ask(attempt, cluster.request(ONE, host="n9"))
    looks = NodeLooks()

    causes = [cluster.scheduler.waiting_asks(attempt, looks)[0].reason.cause for attempt in attempts]

    assert causes == [*[WaitCause.LOCALITY] * MOST_LOOKS, WaitCause.NODE]


def test_a_look_at_ten_thousand_nodes_is_short() -> None:
    """A millisecond or two on an idle machine; ten times that is far too long on any."""
    nodes = [SchedulerNode(f"n{i}:1", NodeSpec(f"n{i}", Resource(8_192 + i % 7, 8_000))) for i in range(10_000)]
    for node in nodes:
        node.take("one", Resource(4_096, 1_000))
    requirements = NodeRequirements(Resource(8_000, 1_000), frozenset(), "", None, None, frozenset())

    best_s = 1.0
    for _ in range(5):
        began_s = time.perf_counter()
        reason = why_unplaced(nodes, (), requirements)
        best_s = min(best_s, time.perf_counter() - began_s)

    assert reason.sentence == "no node has 8,000 MB free; the closest, n6:1, has 4,102 MB"
    assert best_s < 0.02
