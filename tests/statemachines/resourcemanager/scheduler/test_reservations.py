"""Reservations of the capacity scheduler: asks that have one go on looking, as a replay's would find a node."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from statemachines.resourcemanager import Resource, RMContainer

from ....kit import tries
from ....kit.scenarios import play
from ..inner import amounts_of
from .queue_cluster import QueueCluster
from .stage import SchedulerStage

FREE: dict[str, Any] = {"user_limit_factor": 100, "maximum_am_resource_percent": 100}


def mb(amount: int) -> Resource:
    return Resource(amount, 1)


def beat(cluster: QueueCluster, *hosts: str) -> None:
    for host in hosts:
        cluster.tracker.heartbeat(f"{host}:45454")


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


# -- an ask with a reservation goes on looking, and leaves nothing behind -------------------------------------------


class ReservationStage(SchedulerStage):
    def see_traces(self) -> list[str]:
        return list(traces(self.cluster))


FILLED = "node n1 n2 16x10 | app f@a user=filler | ask f 5x1!n1 | beat n1 | launch f1 | "
IN_B = FILLED.replace("@a", "@b")
HALF = {"name": "b", "capacity": 50, **FREE}
HALVES = [{"name": "a", "capacity": 50, **FREE, "maximum_capacity": 50}, HALF]
GROWN = FILLED + "resize f1 6x1 -> resized yes | app x@a | "

SCENARIOS: dict[str, tuple[list[dict[str, Any]], str]] = {
    # It counted against the queue and the root, so no other node could take the ask.
    "a reservation is given up for a node with room": (
        [], FILLED + "app x@a | ask x 15x1 | beat n1 -> reserved n1 | beat n2 -> x n2 ; traces",
    ),
    "the limit of a user does not count the reservation that would be given up": (
        [{"name": "a", "capacity": 50, **FREE, "user_limit_factor": 1}, HALF],
        IN_B + "app x@a | ask x 15x1 | beat n1 n2 -> x n2 ; root.a 15x1",
    ),
    "the limit of a queue does not count the reservation that would be given up": (
        HALVES, IN_B + "app x@a | ask x 15x1 | beat n1 n2 -> x n2 ; root.a 15x1",
    ),
    "only as many reservations are given up as the limits require": (
        [],
        "node n1 n2 n3 16x10 | app f@a user=filler | ask f 5x1!n1 5x1!n2 | beat n1 n2 | app x@a | ask x 14x1*2"
        "| beat n1 n2 -> reserved n1 n2 | beat n3 -> x n3 ; reserved n2",
    ),
    "other asks of the user wait for the limit while one looks on": (
        HALVES,
        IN_B + "app h@a | ask h 15x1 | beat n1 | app u@a priority=9 | ask u 15x1 | beat n2 -> u ; h n2",
    ),
    # Its room is on its own node: what the queue may use in all is the nodes, and those have room.
    "the reservation of another application leaves the empty nodes to others": (
        [],
        FILLED + "app h@a | app o@a user=bob | ask h 15x1!n1 | beat n1 | ask o 14x1 | beat n2 -> o n2 ; reserved n1",
    ),
    # YARN-11488: the end of a container whose growth was not confirmed looked for a reservation that had gone.
    "no trace is left when the node goes and then a container there expires amid an update": (
        [], GROWN + "ask x 15x1!n1 | beat n1 -> reserved n1 | lose n1 | expire f1 -> traces ; root 0",
    ),
    "no trace is left when a container expires amid an update and then its node goes": (
        [], GROWN + "ask x 15x1!n1 | beat n1 -> reserved n1 | expire f1 | lose n1 -> traces ; root 0",
    ),
    "an expiry amid an update leaves the reservation of the node as it was": (
        [], GROWN + "ask x 11x1!n1 | beat n1 | expire f1 | beat n1 -> x n1 ; traces ; root 16x2",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("queues", "script"), SCENARIOS.values(), ids=SCENARIOS)
def test_reservation(queues: list[dict[str, Any]], script: str) -> None:
    play(ReservationStage(QueueCluster(*(queues or [{"name": "a", **FREE}]), on_heartbeat=True)), script)


def test_without_the_setting_an_ask_keeps_to_its_reservation() -> None:
    cluster = QueueCluster({"name": "a", **FREE}, on_heartbeat=True, reservations_continue_look_all_nodes=False)

    play(ReservationStage(cluster), FILLED + "app x@a | ask x 15x1 | beat n1 n2 n2 -> x ; reserved n1")


THREE: tuple[dict[str, Any], ...] = (
    {"name": "a", "capacity": 50, **FREE, "maximum_capacity": 60},
    {"name": "b", "capacity": 50, **FREE},
)
NODES = "node n1 n2 rack=/r1 | node n3 rack=/r2 | "

ON_HEARTBEATS: dict[str, tuple[dict[str, Any], tuple[dict[str, Any], ...], str]] = {
    "a heartbeat allocates the configured number of containers over all queues": (
        {"containers_per_heartbeat": 3}, THREE,
        NODES + "app x@a y@b | ask x 1*5 | ask y 1*5 | beat n1 -> count:x 2 ; count:y 1",
    ),
    "limits hold on heartbeats, and delayed asks are served by a later one": (
        {}, THREE,
        NODES + "app x@a | ask x 1*20 | beat n1 n2 n3 -> count:x 18 ; why:x QUEUE_LIMIT root.a | end x1 | beat n3"
        "-> count:x 18",
    ),
    "reserved room counts in its queue and is kept": (
        {}, ({"name": "a", **FREE},),
        "node n1 n2 | app x@a | ask x 6 6 | beat n1 n2 | launch x1 x2 | ask x 8 | beat n1 -> root.a 20"
        "| end x1 -> x n2 n1 ; root.a 14",
    ),
    "nothing is reserved beyond the maximum of a queue": (
        {}, THREE,
        NODES + "app x@a | ask x 6 | beat n1 | ask x 6 | beat n2 | ask x 6 | beat n3 -> count:x 3 | ask x 8 | beat n1"
        "-> reserved",
    ),
    "a reservation that ends with its attempt no longer counts": (
        {}, ({"name": "a", **FREE},),
        "node n1 n2 | app h w@a | ask h 6 | beat n1 | launch h1 | ask w 8 | beat n1 -> root.a 14 | stop w -> root.a 6",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("config", "queues", "script"), ON_HEARTBEATS.values(), ids=ON_HEARTBEATS)
def test_heartbeat_of_queues(config: dict[str, Any], queues: tuple[dict[str, Any], ...], script: str) -> None:
    play(ReservationStage(QueueCluster(*queues, on_heartbeat=True, **config)), script)


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

    def _is_within(self, allocator: Any) -> bool:
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
        return not self.cluster.is_user_full(app, "", amounts_of(resource), unreserved=unreserved)

    def _is_in(self, container: RMContainer, queue: str) -> bool:
        return f"{self.cluster.scheduler.queue_of(container.application)}.".startswith(f"{queue}.")


@pytest.mark.long
def test_live_cluster_places_what_a_replay_places() -> None:
    """Clusters without further limits: the same asks get the same nodes, and the same ones wait."""
    for seed in range(tries(25)):
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
    for seed in range(tries(25)):
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
