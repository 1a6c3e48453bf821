"""Reservations of the capacity scheduler: asks that have one go on looking, as a replay's would find a node."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from statemachines.resourcemanager import Resource, RMContainer
from statemachines.resourcemanager.scheduler.capacity.limits import is_user_full
from statemachines.resourcemanager.scheduler.core.amounts import amounts_of
from statemachines.resourcemanager.scheduler.core.application import AppPlacementAllocator

from ....kit import tries
from .queue_cluster import QueueCluster

FREE: dict[str, Any] = {"user_limit_factor": 100, "maximum_am_resource_percent": 100}
SIZE = 16_000  # MB, of a usual node


def mb(amount: int) -> Resource:
    return Resource(amount, 1)


def live_cluster(*queues: dict[str, Any], nodes: int = 2, **scheduler: Any) -> QueueCluster:
    cluster = QueueCluster(*(queues or ({"name": "a", **FREE},)), on_heartbeat=True, **scheduler)
    for number in range(nodes):
        cluster.add_node(f"n{number + 1}", SIZE)
    return cluster


def beat(cluster: QueueCluster, *hosts: str) -> None:
    for host in hosts:
        cluster.tracker.heartbeat(f"{host}:45454")


def fill(cluster: QueueCluster, host: str, amount: int, queue: str = "a") -> RMContainer:
    """Have a container run on the host; its application asks for nothing else."""
    attempt = cluster.attempt_in(queue, "filler")
    cluster.ask(attempt, cluster.request(mb(amount), host=host, relax_locality=False))
    beat(cluster, host)
    (container,) = cluster.pull(attempt)
    cluster.tracker.heartbeat(container.node, launched=(container.entity,))
    return container


def reserved_hosts(cluster: QueueCluster) -> list[str]:
    return [node.host for node in cluster.scheduler.nodes() if node.reserved_container is not None]


def traces(cluster: QueueCluster) -> dict[str, Any]:
    """What the books have of reservations."""
    books = cluster.capacity_scheduler._books
    found = {
        "nodes": reserved_hosts(cluster),
        "books": list(books._reserved),
        "attempts": [entry for attempt in books.attempts.values() for entry in attempt.reservations],
        "asks": [each for attempt in books.attempts.values() for each in attempt.pending.values() if each.reservations],
        "holders": list(cluster.policy.allocator._holders),
        "queues": [any(share.reserved.values()) for queue in cluster.tree.queues() for share in queue.shares.values()],
        "users": [
            user.reserved_containers or any(map(any, (amounts.values() for amounts in user.reserved.values())))
            for leaf in cluster.tree.leaves.values()
            for user in leaf.users.values()
        ],
        "containers": [c for c in cluster.context.containers.values() if c.state.name == "RESERVED"],
    }
    return {name: values for name, values in found.items() if any(values)}


# -- an ask with a reservation goes on looking ------------------------------------------------------------------------


def test_reservation_is_given_up_for_a_node_with_room() -> None:
    """It counted against the queue and the root, so no other node could take the ask."""
    cluster = live_cluster()
    fill(cluster, "n1", 5000)
    attempt = cluster.attempt_in("a")
    cluster.ask(attempt, mb(15_000))
    beat(cluster, "n1")
    reserved = reserved_hosts(cluster)

    beat(cluster, "n2")

    assert (reserved, cluster.where(cluster.pull(attempt))) == (["n1"], ["n2"])
    assert traces(cluster) == {}
    cluster.check()


@pytest.mark.parametrize(
    "limits", [{"user_limit_factor": 1}, {"maximum_capacity": 50}], ids=["of the user", "of the queue"]
)
def test_limits_do_not_count_the_reservation_that_would_be_given_up(limits: dict[str, Any]) -> None:
    queues = {"name": "a", "capacity": 50, **FREE, **limits}, {"name": "b", "capacity": 50, **FREE}
    cluster = live_cluster(*queues)
    fill(cluster, "n1", 5000, "b")
    attempt = cluster.attempt_in("a")
    cluster.ask(attempt, mb(15_000))
    beat(cluster, "n1", "n2")

    assert cluster.where(cluster.pull(attempt)) == ["n2"]
    assert cluster.info("root.a").used == mb(15_000)
    cluster.check()


def test_only_as_many_reservations_are_given_up_as_the_limits_require() -> None:
    cluster = live_cluster(nodes=3)
    for host in ("n1", "n2"):
        fill(cluster, host, 5000)
    attempt = cluster.attempt_in("a")
    cluster.ask(attempt, mb(14_000), mb(14_000))
    beat(cluster, "n1", "n2")

    beat(cluster, "n3")

    assert cluster.where(cluster.pull(attempt)) == ["n3"]
    assert len(reserved_hosts(cluster)) == 1
    cluster.check()


def test_other_asks_of_the_user_wait_for_the_limit_while_one_looks_on() -> None:
    queues = {"name": "a", "capacity": 50, **FREE, "maximum_capacity": 50}, {"name": "b", "capacity": 50, **FREE}
    cluster = live_cluster(*queues)
    fill(cluster, "n1", 5000, "b")
    holder = cluster.attempt_in("a")
    cluster.ask(holder, mb(15_000))
    beat(cluster, "n1")
    urgent = cluster.attempt_in("a", priority=9)
    cluster.ask(urgent, mb(15_000))

    beat(cluster, "n2")

    assert (cluster.pull(urgent), cluster.where(cluster.pull(holder))) == ([], ["n2"])
    cluster.check()


def test_reservation_of_another_application_leaves_the_empty_nodes_to_others() -> None:
    """Its room is on its own node: what the queue may use in all is the nodes, and those have room."""
    cluster = live_cluster()
    fill(cluster, "n1", 5000)
    holder, other = cluster.attempt_in("a"), cluster.attempt_in("a", "bob")
    cluster.ask(holder, cluster.request(mb(15_000), host="n1", relax_locality=False))
    beat(cluster, "n1")
    cluster.ask(other, mb(14_000))

    beat(cluster, "n2")

    assert (cluster.where(cluster.pull(other)), reserved_hosts(cluster)) == (["n2"], ["n1"])
    cluster.check()


def test_without_the_setting_an_ask_keeps_to_its_reservation() -> None:
    cluster = live_cluster(reservations_continue_look_all_nodes=False)
    fill(cluster, "n1", 5000)
    attempt = cluster.attempt_in("a")
    cluster.ask(attempt, mb(15_000))

    beat(cluster, "n1", "n2", "n2")

    assert (cluster.pull(attempt), reserved_hosts(cluster)) == ([], ["n1"])


# -- what a reservation leaves behind ---------------------------------------------------------------------------------


@pytest.mark.parametrize("is_lost_first", [True, False], ids=["node first", "expiry first"])
def test_reservation_leaves_no_trace_when_its_node_goes_and_a_container_there_expires_amid_an_update(
    is_lost_first: bool,
) -> None:
    """YARN-11488: the end of a container whose growth was not confirmed looked for a reservation that had gone."""
    cluster = live_cluster()
    grown = fill(cluster, "n1", 5000)
    attempt = cluster.attempt_in("a")
    assert cluster.resize(grown, mb(6000))
    cluster.ask(attempt, cluster.request(mb(15_000), host="n1", relax_locality=False))
    beat(cluster, "n1")
    assert reserved_hosts(cluster) == ["n1"]

    if is_lost_first:
        cluster.lose_node("n1:45454")
        cluster.expire(grown)
    else:
        cluster.expire(grown)
        cluster.lose_node("n1:45454")

    assert traces(cluster) == {}
    assert cluster.info("root").used == Resource(0, 0)
    cluster.check()


def test_expiry_amid_an_update_leaves_the_reservation_of_the_node_as_it_was() -> None:
    cluster = live_cluster()
    grown = fill(cluster, "n1", 5000)
    attempt = cluster.attempt_in("a")
    assert cluster.resize(grown, mb(6000))
    cluster.ask(attempt, cluster.request(mb(11_000), host="n1", relax_locality=False))
    beat(cluster, "n1")

    cluster.expire(grown)
    beat(cluster, "n1")

    assert cluster.where(cluster.pull(attempt)) == ["n1"]
    assert (traces(cluster), cluster.info("root").used) == ({}, Resource(16_000, 2))
    cluster.check()


# -- replays and live clusters decide alike ---------------------------------------------------------------------------


class RandomCluster:
    """A small cluster made from a seed, whose nodes are partly used; the same applications ask in the same order."""

    def __init__(self, seed: int, *, is_live: bool, has_limits: bool) -> None:
        random_ = random.Random(seed)
        queues = {"name": "a", **FREE}, {"name": "b", "capacity": 0, **FREE}
        if has_limits:
            queues = (
                {"name": "a", "capacity": 50, **FREE, "maximum_capacity": random_.choice([50, 70, 100])},
                {"name": "b", "capacity": 50, **FREE, "user_limit_factor": random_.choice([1, 2])},
            )
        self.cluster = QueueCluster(*queues, on_heartbeat=is_live, node_locality_delay=None)
        self.is_live = is_live
        self.hosts = [f"n{number}" for number in range(random_.randint(2, 5))]
        for host in self.hosts:
            self.cluster.add_node(host, random_.choice([8000, 12_000, 16_000]), 100)
        self.attempts: list[str] = []
        self.running: list[RMContainer] = []
        filler = self._attempt("a", "filler")
        for host in random_.sample(self.hosts, random_.randint(1, len(self.hosts))):
            amount = random_.randrange(1000, 8000, 1000)
            self.cluster.ask(filler, self.cluster.request(mb(amount), host=host, relax_locality=False))
        self.settle()
        for _ in range(random_.randint(1, 4)):
            attempt = self._attempt(random_.choice("ab") if has_limits else "a", random_.choice(["ann", "bob"]))
            for priority in range(random_.randint(1, 3)):
                resource = mb(random_.randrange(1000, 17_000, 500))
                where = {"host": random_.choice(self.hosts), "relax_locality": False} if random_.random() < 0.2 else {}
                for _ in range(random_.randint(1, 2)):
                    self.cluster.ask(attempt, self.cluster.request(resource, priority=priority, **where))

    def _attempt(self, queue: str, user: str) -> str:
        self.attempts.append(self.cluster.attempt_in(queue, user))
        return self.attempts[-1]

    def settle(self) -> None:
        """Let all nodes report until nothing changes any more; launch what was allocated."""
        before: Any = None
        while before != (before := (self.cluster.waiting_tags(), reserved_hosts(self.cluster))):
            beat(self.cluster, *(self.hosts if self.is_live else ()))
        pulled = [container for attempt in self.attempts for container in self.cluster.pull(attempt)]
        for container in pulled:
            self.cluster.tracker.heartbeat(container.node, launched=(container.entity,))
        self.running += pulled
        if pulled and self.is_live:
            self.settle()

    def finish(self, container: RMContainer) -> None:
        self.running.remove(container)
        self.cluster.finish(container)
        self.settle()

    def decisions(self) -> dict[int, str]:
        """The node of each ask whose container runs."""
        return {container.request.tag: container.node for container in self.running}

    def waiting_needlessly(self) -> Iterator[str]:
        """The asks that fit on an unreserved node now, and within the limits but for their own reservation."""
        cluster = self.cluster
        for attempt in cluster.capacity_scheduler._books.attempts.values():
            for allocator in attempt.pending.values():
                for node in cluster.scheduler.nodes():
                    fits = cluster.fits(attempt.id, allocator.first.request, node)
                    if fits and node.reserved_container is None and self._is_within(allocator):
                        yield f"{allocator.first.request} of {attempt.id} fits on {node.node_id}"

    def _is_within(self, allocator: AppPlacementAllocator) -> bool:
        app, resource = self.cluster.app_of(allocator.attempt.id), allocator.requirements.resource
        own = resource.memory_mb if allocator.reservations else 0
        for queue in app.leaf.lineage:
            share, limit_mb = queue.share(""), queue.share("").limit["memory_mb"]
            reserved_mb = sum(
                container.request.resource.memory_mb
                for container in self.cluster.context.containers.values()
                if container.state.name == "RESERVED" and self._is_in(container, queue.path)
            )
            counted_mb = share.used["memory_mb"] - (reserved_mb if share.maximum == 1 else own)
            if counted_mb + resource.memory_mb > limit_mb:
                return False
        unreserved = amounts_of(resource) if own else ()
        return not is_user_full(app.leaf, app.user, "", amounts_of(resource), unreserved=unreserved)

    def _is_in(self, container: RMContainer, queue: str) -> bool:
        return f"{self.cluster.scheduler.queue_of(container.application)}.".startswith(f"{queue}.")


@pytest.mark.long
def test_live_cluster_places_what_a_replay_places() -> None:
    """Clusters without further limits: the same asks get the same nodes, and the same ones wait."""
    for seed in range(tries(60)):
        replay = RandomCluster(seed, is_live=False, has_limits=False)
        live = RandomCluster(seed, is_live=True, has_limits=False)

        live.settle()
        replay.settle()

        assert live.decisions() == replay.decisions(), seed
        assert live.cluster.waiting_tags() == replay.cluster.waiting_tags(), seed
        assert list(live.waiting_needlessly()) == [], seed
        live.cluster.check()


@pytest.mark.long
def test_live_cluster_serves_in_the_end_what_a_replay_serves() -> None:
    """Clusters with limits, whose containers end one by one: no ask waits that a node could take."""
    for seed in range(tries(60)):
        served: list[set[int]] = []
        for is_live in (False, True):
            course = RandomCluster(seed, is_live=is_live, has_limits=True)
            course.settle()
            tags = set(course.decisions())
            while course.running:
                assert not is_live or list(course.waiting_needlessly()) == [], seed
                course.finish(course.running[seed % len(course.running)])
                tags |= set(course.decisions())
            served.append(tags)
            assert course.cluster.info("root").used == Resource(0, 0)
            assert traces(course.cluster) == {}, seed
            course.cluster.check()

        assert served[0] == served[1], seed
