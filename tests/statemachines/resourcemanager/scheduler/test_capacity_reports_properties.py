"""Invariants of the capacity scheduler's reports and of preemption, on nodes that shrink, drain and come back."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from dispatcher.testing import ManualClock
from statemachines.resourcemanager import Resource
from statemachines.resourcemanager.events.scheduler import SchedulerEvent, SchedulerEventType
from statemachines.resourcemanager.scheduler.core.amounts import add, amounts_of, resource_of
from statemachines.resourcemanager.scheduler.core.application import SchedulerApplicationAttempt
from statemachines.resourcemanager.scheduler.core.placement import NodeLooks
from statemachines.resourcemanager.scheduler.wait_reasons import WaitCause, WaitingAsk

from ....kit import tries
from .queue_cluster import QueueCluster
from .test_capacity_properties import ANY, HOSTS, QUEUES, AnyCourseOfEvents, pick

GRACE_MS = 15_000
PREEMPTION = {
    "enabled": True,
    "total_preemption_per_round": 0.5,
    "natural_termination_factor": 1,
    "max_ignored_over_capacity": 0,
    "max_wait_before_kill_ms": GRACE_MS,
}


class AnyCourseOfReports(AnyCourseOfEvents):
    """Adds to the other events rounds of preemption, nodes that drain and capacities below the usage."""

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
        scheduler, looks = self.cluster.capacity_scheduler, NodeLooks()
        for id, attempt in scheduler._books.attempts.items():
            for ask in scheduler.waiting_asks(id, looks):
                self.check_reason(attempt, ask)

    def check_reason(self, attempt: SchedulerApplicationAttempt, ask: WaitingAsk) -> None:
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


def check_numbers(value: Any) -> None:
    """All numbers, at any depth, are finite and none is negative."""
    if isinstance(value, tuple):
        for each in value:
            check_numbers(each)
    elif isinstance(value, (int, float)):
        assert math.isfinite(value)
        assert value >= 0


class AnyCourseOfReportsOnHeartbeats(AnyCourseOfReports):
    """The same on heartbeats."""

    on_heartbeat = True


SETTINGS = settings(max_examples=tries(12), stateful_step_count=50, deadline=None)
AnyCourseOfReports.TestCase.settings = SETTINGS
AnyCourseOfReportsOnHeartbeats.TestCase.settings = SETTINGS
TestAnyCourseOfReports = pytest.mark.slow(AnyCourseOfReports.TestCase)
TestAnyCourseOfReportsOnHeartbeats = pytest.mark.slow(AnyCourseOfReportsOnHeartbeats.TestCase)
del AnyCourseOfEvents
