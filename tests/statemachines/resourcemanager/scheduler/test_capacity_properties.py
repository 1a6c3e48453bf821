"""Invariants of the capacity scheduler and its reports under whatever happens to nodes, applications and queues.

That includes rounds of preemption, nodes that drain and come back, and capacities below the usage.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dispatcher.testing import ManualClock
from statemachines.resourcemanager import Resource, RMContainer, RMNodeEventType

from ....kit import tries
from ..inner import (
    NodeLabelsUpdateSchedulerEvent,
    RMNodeEvent,
    SchedulerEvent,
    SchedulerEventType,
    WaitCause,
    WaitingAsk,
    add,
    amounts_of,
    resource_of,
)
from .queue_cluster import QueueCluster, queue_config

GRACE_MS = 15_000
PREEMPTION = {
    "enabled": True,
    "total_preemption_per_round": 0.5,
    "natural_termination_factor": 1,
    "max_ignored_over_capacity": 0,
    "max_wait_before_kill_ms": GRACE_MS,
}
A = queue_config(
    "a",
    50,
    maximum_am_resource_percent=50,
    minimum_user_limit_percent=30,
    user_limit_factor=2,
    accessible_node_labels={"x": {"capacity": 100}},
)
B = queue_config("b", 50, maximum_capacity=50, ordering_policy="fair", minimum_user_limit_percent=50, priority=1)
QUEUES = (
    queue_config("p", 60, A, B, maximum_capacity=80, accessible_node_labels={"x": {"capacity": 100}}),
    queue_config("c", 40, user_limit_factor=9, ordering_policy="fair", maximum_am_resource_percent=30),
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
            *QUEUES,
            on_heartbeat=self.on_heartbeat,
            node_locality_delay=1,
            containers_per_heartbeat=3,
            preemption=PREEMPTION,
        )
        self.noticed_ms: dict[str, int] = {}  # by container: since when each round has selected it
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

    @rule(later_ms=st.sampled_from([3_000, 8_000, 20_000]))
    def preempt(self, later_ms: int) -> None:
        context, clock = self.cluster.context, self.cluster.context.timers
        assert isinstance(clock, ManualClock)
        clock.advance(later_ms)
        before = self.live()

        self.cluster.post(SchedulerEvent(SchedulerEventType.EDIT_SCHEDULE, "root"))

        for container in before - self.live():
            assert context.steady_ms() - self.noticed_ms[container] >= GRACE_MS
        noticed = self.cluster.capacity_scheduler._preemption._noticed
        assert noticed.keys() <= self.live()
        self.noticed_ms = {container: self.noticed_ms.get(container, context.steady_ms()) for container in noticed}

    @rule(which=ANY)
    def pull_notices(self, which: int) -> None:
        pulled = [each.entity for each in self.cluster.heartbeat(pick(which, self.attempts)).preempted]
        assert len(set(pulled)) == len(pulled)
        assert set(pulled) <= self.noticed_ms.keys()

    @precondition(lambda self: list(self.cluster.scheduler.nodes()))
    @rule(
        which=ANY,
        memory_mb=st.integers(0, 12),
        vcores_milli=st.integers(0, 12),
        gpus=st.integers(0, 3),
        fpgas=st.integers(0, 1),
    )
    def shrink_or_grow(self, which: int, memory_mb: int, vcores_milli: int, gpus: int, fpgas: int) -> None:
        node = pick(which, list(self.cluster.scheduler.nodes()))
        self.cluster.change_capacity(node.node_id, memory_mb, vcores_milli, gpus, fpga=fpgas)

    @precondition(lambda self: list(self.cluster.scheduler.nodes()))
    @rule(which=ANY)
    def drain_or_admit(self, which: int) -> None:
        node = pick(which, list(self.cluster.scheduler.nodes())).node_id
        if self.cluster.context.nodes[node].state.name == "RUNNING":
            self.cluster.decommission(node)
        else:
            self.cluster.recommission(node)

    @rule(which=ANY, host=HOSTS)
    def ask_for_one_host_only(self, which: int, host: str) -> None:
        request = self.cluster.request(Resource(2, 2), host=host, relax_locality=False)
        self.cluster.ask(pick(which, self.attempts), request)

    @invariant()
    def headroom_is_at_most_the_free_room(self) -> None:
        scheduler = self.cluster.capacity_scheduler
        for id, attempt in scheduler._books.attempts.items():
            free: dict[str, int] = {}
            for partition in attempt.asked_partitions():
                # A partition whose nodes have shrunk below what they run takes nothing from the others.
                add(free, [(type_, room) for type_, room in self.free_room(partition).items() if room > 0])
            assert all(0 < amount <= free.get(type_, 0) for type_, amount in amounts_of(self.cluster.headroom(id)))

    def free_room(self, partition: str) -> dict[str, int]:
        free: dict[str, int] = {}
        for node in self.cluster.capacity_scheduler.nodes():
            if node.partition == partition and not node.is_draining:
                add(free, amounts_of(node.capacity))
                for resource in node.containers.values():
                    add(free, amounts_of(resource), -1)
        return free

    @invariant()
    def reasons_are_true(self) -> None:
        scheduler = self.cluster.capacity_scheduler
        for id, attempt in scheduler._books.attempts.items():
            for ask in scheduler.waiting_asks(id):
                self.check_reason(attempt, ask)

    def check_reason(self, attempt: Any, ask: WaitingAsk) -> None:
        reason = ask.reason
        same = [
            requirements
            for priority, requirements in attempt.pending
            if (priority, requirements.resource, requirements.partition) == (ask.priority, ask.resource, ask.partition)
        ]
        nodes = [node for node in self.cluster.scheduler.nodes() if node.partition == ask.partition]
        match reason.cause:
            case WaitCause.NO_NODES:
                assert not nodes
            case WaitCause.NEVER_FITS:
                assert not all(any(each.could_fit(node) for node in nodes) for each in same)
            case WaitCause.NO_ROOM | WaitCause.DRAINING:
                assert any(each.could_fit(node) for node in nodes for each in same)
            case WaitCause.RESERVED | WaitCause.LOCALITY | WaitCause.HEARTBEAT:
                assert self.on_heartbeat
            case WaitCause.QUEUE_LIMIT | WaitCause.USER_AM_LIMIT:
                assert reason.needed is not None
                assert reason.available is not None
                assert reason.needed > reason.available or not reason.needed

    @invariant()
    def queues_report_what_their_applications_have(self) -> None:
        attempts = list(self.cluster.capacity_scheduler._books.attempts.values())
        for info in self.cluster.scheduler.queues():
            mine = [each for each in attempts if f"{each.app.queue}.".startswith(f"{info.path}.")]
            used: dict[str, int] = {}
            reserved: dict[str, int] = {}
            pending: dict[str, int] = {}
            for attempt in mine:
                for container in attempt.reservations.values():
                    add(reserved, amounts_of(container.request.resource))
                for container in (*attempt.live.values(), *attempt.reservations.values()):
                    add(used, amounts_of(container.request.resource))
                for allocator in attempt.pending.values():
                    add(pending, amounts_of(allocator.requirements.resource), len(allocator))
            assert (info.used, info.reserved, info.pending) == tuple(map(resource_of, (used, reserved, pending)))
            assert info.reserved_containers == sum(len(each.reservations) for each in mine)
            assert info.pending_containers == sum(each.pending_count for each in mine)
            check_numbers(info)

    def live(self) -> set[str]:
        return set(self.cluster.capacity_scheduler._books.containers)


class AnyCourseOfHeartbeats(AnyCourseOfEvents):
    """The same on heartbeats."""

    on_heartbeat = True


def check_numbers(value: Any) -> None:
    """All numbers, at any depth, are finite and none is negative."""
    if isinstance(value, tuple):
        for each in value:
            check_numbers(each)
    elif isinstance(value, (int, float)):
        assert math.isfinite(value)
        assert value >= 0


def pick(which: int, items: list[Any]) -> Any:
    return items[which % len(items)]


SETTINGS = settings(max_examples=tries(16), stateful_step_count=50, deadline=None)
AnyCourseOfEvents.TestCase.settings = SETTINGS
AnyCourseOfHeartbeats.TestCase.settings = SETTINGS
TestAnyCourseOfEvents = pytest.mark.slow(AnyCourseOfEvents.TestCase)
TestAnyCourseOfHeartbeats = pytest.mark.slow(AnyCourseOfHeartbeats.TestCase)
