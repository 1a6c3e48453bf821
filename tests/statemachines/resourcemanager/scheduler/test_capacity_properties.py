"""Invariants of the capacity scheduler and its reports under whatever happens to nodes, applications and queues.

That includes rounds of preemption, nodes that drain and come back, and capacities below the usage.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from dispatcher.testing import ManualClock

from ....kit import tries
from ..inner import (
    SchedulerEvent,
    SchedulerEventType,
    WaitCause,
    WaitingAsk,
    add,
    amounts_of,
    resource_of,
)
from .queue_cluster import QueueCluster, queue_config
from .test_scheduler_properties import ANY, PARTITIONS, AnyCourseOfEvents, pick

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


class Capacity(AnyCourseOfEvents):
    def __init__(self) -> None:
        super().__init__()
        self.cluster: QueueCluster = QueueCluster(
            *QUEUES,
            on_heartbeat=self.on_heartbeat,
            node_locality_delay=1,
            containers_per_heartbeat=3,
            preemption=PREEMPTION,
        )
        self.attempts = [self.cluster.attempt_in(queue, user) for queue in "abc" for user in ("ann", "bob")]
        self.noticed_ms: dict[str, int] = {}  # by container: since when each round has selected it
        self.used: dict[tuple[str, str, str], int] = {}  # by queues, after the last step
        self.is_relabelled = False  # by the last step

    @rule(queue=LEAVES, user=st.sampled_from(["ann", "bob"]), label=st.sampled_from([None, None, ""]))
    def submit_to(self, queue: str, user: str, label: str | None) -> None:
        self.attempts.append(self.cluster.attempt_in(queue, user, node_label=label))

    def new_attempt(self, priority: int = 0) -> str:
        return self.cluster.attempt_in("b", priority=priority)

    @rule(which=ANY, queue=LEAVES)
    def move(self, which: int, queue: str) -> None:
        attempt = pick(which, self.attempts)
        if self.cluster.scheduler.check_move(self.cluster.app_of(attempt).id, queue) is None:
            self.cluster.move(attempt, queue)

    @precondition(lambda self: self.cluster.context.nodes)
    @rule(which=ANY, partition=PARTITIONS)
    def change_label(self, which: int, partition: str) -> None:
        self.is_relabelled = True  # its containers are charged to another partition now
        super().change_label(which, partition)

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

    @invariant()
    def no_allocation_brings_a_queue_beyond_its_maximum(self) -> None:
        """A partition may shrink below its usage; the usage then does not grow."""
        before, self.used = self.used, self.cluster.used()
        if not self.is_relabelled:
            assert all(self.used[key] <= before.get(key, 0) for key in self.cluster.beyond_maximum())
        self.is_relabelled = False

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


class CapacityOnHeartbeats(Capacity):
    on_heartbeat = True

    @invariant()
    def reservations_are_for_somebody(self) -> None:
        reserved = [node.reserved_container for node in self.cluster.scheduler.nodes()]
        assert {one.entity for one in reserved if one is not None} == {
            one.entity for one in self.containers("RESERVED")
        }


def check_numbers(value: Any) -> None:
    """All numbers, at any depth, are finite and none is negative."""
    if isinstance(value, tuple):
        for each in value:
            check_numbers(each)
    elif isinstance(value, (int, float)):
        assert math.isfinite(value)
        assert value >= 0


SETTINGS = settings(max_examples=tries(16), stateful_step_count=50, deadline=None)
Capacity.TestCase.settings = SETTINGS
CapacityOnHeartbeats.TestCase.settings = SETTINGS
TestCapacity = pytest.mark.slow(Capacity.TestCase)
TestCapacityOnHeartbeats = pytest.mark.slow(CapacityOnHeartbeats.TestCase)
