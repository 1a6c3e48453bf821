"""Invariants of the capacity scheduler under nodes, applications, asks, moves and ends in any order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from statemachines.resourcemanager import Resource, RMContainer, RMNodeEventType
from statemachines.resourcemanager.events.rmnode import RMNodeEvent
from statemachines.resourcemanager.events.scheduler import NodeLabelsUpdateSchedulerEvent

from ....kit import tries
from .queue_cluster import QueueCluster

GPU_LABEL = {"capacity": 50}
QUEUES: tuple[dict[str, Any], ...] = (
    {
        "name": "p",
        "capacity": 60,
        "maximum_capacity": 80,
        "accessible_node_labels": {"x": {"capacity": 100}},
        "queues": [
            {
                "name": "a",
                "capacity": 50,
                "maximum_am_resource_percent": 50,
                "minimum_user_limit_percent": 30,
                "user_limit_factor": 2,
                "accessible_node_labels": {"x": {"capacity": 100}},
            },
            {
                "name": "b",
                "capacity": 50,
                "maximum_capacity": 50,
                "ordering_policy": "fair",
                "minimum_user_limit_percent": 50,
                "priority": 1,
            },
        ],
    },
    {"name": "c", "capacity": 40, "user_limit_factor": 9, "ordering_policy": "fair", "maximum_am_resource_percent": 30},
)
LEAVES = st.sampled_from(["a", "b", "root.c"])
USERS = st.sampled_from(["ann", "bob"])
SIZES = st.sampled_from([4, 10])
HOSTS = st.sampled_from(["n1", "n2", "n3"])
PARTITIONS = st.sampled_from(["", "", "x"])
RESOURCES = st.sampled_from(
    [
        Resource(1, 1),
        Resource(4, 4),
        Resource(6, 2),
        Resource(1, 7),
        Resource(1, 1, gpus=1),
        Resource(1, 1, gpus=2, gpu_milli=500),
    ]
)
REQUESTS = st.tuples(RESOURCES, st.integers(0, 1), st.none() | HOSTS, st.sampled_from([None, None, None, "", "x"]))
ANY = st.integers(0, 1_000)  # an index into the existing ones, modulo their number


class AnyCourseOfEvents(RuleBasedStateMachine):
    """Random events for a scheduler; checks the invariants after each."""

    on_heartbeat = False

    def __init__(self) -> None:
        super().__init__()
        self.cluster = QueueCluster(
            *QUEUES, on_heartbeat=self.on_heartbeat, node_locality_delay=1, containers_per_heartbeat=3
        )
        self.attempts: list[str] = []
        self.used: dict[tuple[str, str, str], int] = {}  # by queues, after the last step
        self.is_relabelled = False  # by the last step

    @initialize(sizes=st.lists(st.tuples(SIZES, PARTITIONS), min_size=1, max_size=3))
    def start(self, sizes: list[tuple[int, str]]) -> None:
        for number, (size, partition) in enumerate(sizes):
            self.cluster.add_node(f"n{number + 1}", size, size, gpus=number, model="T4", partition=partition)
        self.attempts = [self.cluster.attempt_in(queue, user) for queue in "abc" for user in ("ann", "bob")]

    @rule(queue=LEAVES, user=USERS, priority=st.integers(0, 1), label=st.sampled_from([None, None, ""]))
    def submit(self, queue: str, user: str, priority: int, label: str | None) -> None:
        self.attempts.append(self.cluster.attempt_in(queue, user, priority=priority, node_label=label))

    @rule(which=ANY, requests=st.lists(REQUESTS, min_size=1, max_size=6))
    def ask_and_launch(self, which: int, requests: list[Any]) -> None:
        attempt = pick(which, self.attempts)
        asks = [self.cluster.request(r, priority=p, host=h, node_label=label) for r, p, h, label in requests]
        self.cluster.get(attempt, *asks)

    @rule(which=ANY, resource=RESOURCES, release=ANY)
    def ask_and_release(self, which: int, resource: Resource, release: int) -> None:
        containers = list(self.cluster.context.containers)
        releases = (pick(release, containers),) if containers else ()
        self.cluster.ask(pick(which, self.attempts), resource, releases=releases)

    @rule()
    def launch_all_that_was_allocated(self) -> None:
        for attempt in self.attempts:
            self.cluster.get(attempt)

    @precondition(lambda self: self.running())
    @rule(which=ANY)
    def finish(self, which: int) -> None:
        self.cluster.finish(pick(which, self.running()))

    @precondition(lambda self: self.running())
    @rule(which=ANY)
    def finish_all_of_a_user(self, which: int) -> None:
        app = pick(which, self.running()).application
        for container in self.running():
            if container.application == app:
                self.cluster.finish(container)

    @precondition(lambda self: self.running())
    @rule(which=ANY, resource=RESOURCES)
    def resize(self, which: int, resource: Resource) -> None:
        container = pick(which, self.running())
        self.cluster.in_handler(lambda: self.cluster.scheduler.request_resize(container.entity, resource))

    @precondition(lambda self: len(self.attempts) > 3)
    @rule(which=ANY)
    def end_application(self, which: int) -> None:
        attempt = pick(which, self.attempts)
        app = self.cluster.app_of(attempt).id
        self.attempts.remove(attempt)
        self.cluster.remove_attempt(attempt)
        self.cluster.remove_app(app)

    @rule(which=ANY, keep=st.booleans())
    def retry(self, which: int, keep: bool) -> None:
        attempt = pick(which, self.attempts)
        app, number = self.cluster.app_of(attempt).id, int(attempt[-6:]) + 1
        self.attempts.remove(attempt)
        self.cluster.remove_attempt(attempt, keep_containers=keep)
        self.attempts.append(self.cluster.add_attempt(app, number, transfer_state=keep))

    @rule(which=ANY, queue=LEAVES)
    def move(self, which: int, queue: str) -> None:
        attempt = pick(which, self.attempts)
        if self.cluster.scheduler.check_move(self.cluster.app_of(attempt).id, queue) is None:
            self.cluster.move(attempt, queue)

    @rule(which=ANY, priority=st.integers(0, 2))
    def change_priority(self, which: int, priority: int) -> None:
        app = self.cluster.app_of(pick(which, self.attempts)).id
        self.cluster.in_handler(lambda: self.cluster.scheduler.update_priority(app, priority))

    @rule(
        share=st.sampled_from([20, 50, 80]),
        most=st.sampled_from([50, 100]),
        policy=st.sampled_from(["fifo", "fair"]),
        factor=st.sampled_from([0.5, 1, 9]),
        has_label=st.booleans(),
        masters=st.sampled_from([10, 100]),
    )
    def change_queues(self, share: int, most: int, policy: str, factor: float, has_label: bool, masters: float) -> None:
        labels = {"x": {"capacity": 100}} if has_label else {}
        a: dict[str, Any] = {"name": "a", "capacity": share, "ordering_policy": policy, "user_limit_factor": factor}
        a |= {"accessible_node_labels": labels, "maximum_am_resource_percent": masters}
        b = {"name": "b", "capacity": 100 - share, "maximum_capacity": max(100 - share, most), "priority": 1}
        p = {"name": "p", "capacity": 60, "queues": [b, a], "accessible_node_labels": labels}
        added = [{"name": f"d{share}", "capacity": 0}]
        c = {"name": "c", "capacity": 40, "user_limit_factor": factor, "maximum_am_resource_percent": masters}
        self.is_relabelled = True  # a queue may have more than its new maximum
        self.cluster.change_queues(c, p, *added)

    @rule(which=ANY, host=HOSTS, is_added=st.booleans())
    def change_blacklist(self, which: int, host: str, is_added: bool) -> None:
        attempt, scheduler = pick(which, self.attempts), self.cluster.scheduler
        hosts = (host,)
        changes = {"blacklist_additions" if is_added else "blacklist_removals": hosts}
        self.cluster.in_handler(lambda: scheduler.ask(attempt, **changes))

    @rule(host=HOSTS, size=SIZES, gpus=st.integers(0, 2), partition=PARTITIONS)
    def add_node(self, host: str, size: int, gpus: int, partition: str) -> None:
        self.cluster.add_node(host, size, size, gpus, "T4", partition=partition)

    @precondition(lambda self: len(list(self.cluster.scheduler.nodes())) > 1)
    @rule(which=ANY)
    def lose_node(self, which: int) -> None:
        self.cluster.lose_node(pick(which, [node.node_id for node in self.cluster.scheduler.nodes()]))

    @precondition(lambda self: self.cluster.context.nodes)
    @rule(which=ANY, healthy=st.booleans())
    def report(self, which: int, healthy: bool) -> None:
        self.cluster.tracker.heartbeat(pick(which, list(self.cluster.context.nodes)), healthy=healthy)

    @precondition(lambda self: list(self.cluster.scheduler.nodes()))
    @rule(which=ANY, partition=PARTITIONS)
    def relabel(self, which: int, partition: str) -> None:
        node = pick(which, list(self.cluster.scheduler.nodes()))
        self.is_relabelled = True  # its containers are charged to another partition now
        self.cluster.post(NodeLabelsUpdateSchedulerEvent(node.node_id, partition))

    @precondition(lambda self: list(self.cluster.scheduler.nodes()))
    @rule(which=ANY, size=st.sampled_from([2, 6, 12]))
    def change_capacity(self, which: int, size: int) -> None:
        node = pick(which, list(self.cluster.scheduler.nodes()))
        used_mb = node.capacity.memory_mb - node.free_memory_mb
        capacity = node.capacity._replace(memory_mb=max(size, used_mb))
        self.cluster.post(RMNodeEvent(RMNodeEventType.RESOURCE_UPDATE, node.node_id, capacity))

    def running(self) -> list[RMContainer]:
        containers = self.cluster.context.containers.values()
        return [container for container in containers if container.state.name == "RUNNING"]

    @invariant()
    def books_are_right_and_nobody_waits_who_need_not(self) -> None:
        self.cluster.check()

    @invariant()
    def no_allocation_brings_a_queue_beyond_its_maximum(self) -> None:
        """A partition may shrink below its usage; the usage then does not grow."""
        before, self.used = self.used, self.cluster.used()
        if not self.is_relabelled:
            assert all(self.used[key] <= before.get(key, 0) for key in self.cluster.beyond_maximum())
        self.is_relabelled = False

    @invariant()
    def asks_are_kept_or_served(self) -> None:
        """Each ask is pending or has become a container, exactly once."""
        waiting = self.cluster.waiting_tags()
        containers = self.cluster.context.containers.values()
        served = [container.request.tag for container in containers if container.state.name != "RESERVED"]
        assert len({*waiting, *served}) == len(waiting) + len(served)


class AnyCourseOfHeartbeats(AnyCourseOfEvents):
    """The same on heartbeats."""

    on_heartbeat = True


def pick(which: int, items: list[Any]) -> Any:
    return items[which % len(items)]


SETTINGS = settings(max_examples=tries(16), stateful_step_count=50, deadline=None)
AnyCourseOfEvents.TestCase.settings = SETTINGS
AnyCourseOfHeartbeats.TestCase.settings = SETTINGS
TestAnyCourseOfEvents = pytest.mark.slow(AnyCourseOfEvents.TestCase)
TestAnyCourseOfHeartbeats = pytest.mark.slow(AnyCourseOfHeartbeats.TestCase)
