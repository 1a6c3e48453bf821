"""Rounds of preemption in the scheduler: what is selected, noticed, killed and cancelled."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.testing import ManualClock
from statemachines.resourcemanager import Resource
from statemachines.resourcemanager.events.records import EXIT_PREEMPTED
from statemachines.resourcemanager.events.scheduler import SchedulerEvent, SchedulerEventType
from statemachines.resourcemanager.services.scheduling_monitor import SchedulingMonitor

from ..builders import Workshop
from .queue_cluster import QueueCluster

ONE = Resource(1, 1)
GRACE_MS = 100
ALL = {"enabled": True, "total_preemption_per_round": 1, "natural_termination_factor": 1}
PREEMPTION = {**ALL, "max_wait_before_kill_ms": GRACE_MS}


def halves(*, on_heartbeat: bool = False, preemption: dict[str, Any] | None = None, **a: Any) -> QueueCluster:
    """Two queues of half of two nodes of 10 each; `a`: further keys of queue a."""
    free = {"capacity": 50, "user_limit_factor": 100, "maximum_am_resource_percent": 20}
    cluster = QueueCluster(
        {"name": "a", **free, **a},
        {"name": "b", **free},
        on_heartbeat=on_heartbeat,
        preemption=preemption or PREEMPTION,
    )
    for host in ("n1", "n2"):
        cluster.add_node(host)
    return cluster


def run_round(cluster: QueueCluster, later_ms: int = 0) -> None:
    clock = cluster.context.timers
    assert isinstance(clock, ManualClock)
    clock.advance(later_ms)
    cluster.post(SchedulerEvent(SchedulerEventType.EDIT_SCHEDULE, "root"))
    cluster.check()


def noticed(cluster: QueueCluster, attempt: str) -> list[str]:
    return [container.entity for container in cluster.heartbeat(attempt).preempted]


def test_application_that_is_served_last_gives_first() -> None:
    cluster = halves()
    attempts = [cluster.attempt_in("a", priority=priority) for priority in (1, 5, 1)]
    containers = [cluster.get(attempt, *[ONE] * count) for attempt, count in zip(attempts, (8, 8, 4), strict=True)]
    starved = cluster.attempt_in("b")
    cluster.ask(starved, *[ONE] * 6)

    run_round(cluster)

    all_but_the_master, the_newest = containers[2][:0:-1], containers[0][:-4:-1]
    assert [noticed(cluster, attempt) for attempt in attempts] == [
        [container.entity for container in selected] for selected in (the_newest, [], all_but_the_master)
    ]


def test_least_urgent_containers_of_an_application_go_first() -> None:
    cluster = halves()
    rich, starved = cluster.attempt_in("a"), cluster.attempt_in("b")
    requests = [cluster.request(ONE, priority=priority) for priority in (0, 20, 10)]
    _, last, middle = (container.entity for container in cluster.get(rich, *requests))
    master_and_rest = cluster.get(rich, *[ONE] * 17)
    cluster.ask(starved, ONE, ONE)

    run_round(cluster)

    assert len(master_and_rest) == 17
    assert noticed(cluster, rich) in ([last, middle], [middle, last])


@pytest.mark.parametrize("is_selected_again", [False, True])
def test_master_is_told_only_of_notices_that_hold_and_of_each_once(is_selected_again: bool) -> None:
    """It was told of each notice that it had not pulled: of one container several times, and of some without notice."""
    cluster = halves()
    rich, starved = cluster.attempt_in("a"), cluster.attempt_in("b")
    containers = cluster.get(rich, *[ONE] * 20)
    cluster.ask(starved, ONE)
    run_round(cluster)

    cluster.remove_attempt(starved)
    run_round(cluster)
    if is_selected_again:
        cluster.ask(cluster.attempt_in("b"), ONE)
        run_round(cluster)

    assert noticed(cluster, rich) == ([containers[-1].entity] if is_selected_again else [])


@pytest.mark.parametrize("later_ms", [GRACE_MS - 1, GRACE_MS])
def test_container_is_killed_once_its_grace_is_over(later_ms: int) -> None:
    cluster = halves()
    rich, starved = cluster.attempt_in("a"), cluster.attempt_in("b")
    containers = cluster.get(rich, *[ONE] * 20)
    cluster.ask(starved, ONE)
    run_round(cluster)

    run_round(cluster, later_ms)

    is_over = later_ms == GRACE_MS
    status = containers[-1].status
    assert (status is not None and status.exit_status == EXIT_PREEMPTED) == is_over
    assert len(cluster.pull(starved)) == is_over


def test_preempted_container_that_its_master_has_not_pulled_is_asked_for_again() -> None:
    cluster = halves()
    rich, starved = cluster.attempt_in("a"), cluster.attempt_in("b")
    cluster.get(rich, *[ONE] * 19)
    cluster.ask(rich, ONE)
    cluster.ask(starved, ONE)
    run_round(cluster)

    run_round(cluster, GRACE_MS)

    assert len(cluster.pull(starved)) == 1
    assert [attempt for attempt, _ in cluster.scheduler.waiting()] == [rich]
    assert cluster.pull(rich) == []


def test_reservation_is_cancelled_at_once() -> None:
    cluster = halves(on_heartbeat=True)
    rich, starved = cluster.attempt_in("a"), cluster.attempt_in("b")
    cluster.ask(rich, *[Resource(6, 6)] * 3)
    for host in ("n1", "n2"):
        cluster.tracker.heartbeat(f"{host}:45454")
    reserved = [container for container in cluster.context.containers.values() if container.state.name == "RESERVED"]
    cluster.ask(starved, Resource(4, 4))

    run_round(cluster)

    assert len(reserved) == 1
    assert reserved[0].entity not in cluster.context.containers
    assert noticed(cluster, rich) == []


def test_ask_that_no_node_has_room_for_gets_it_though_the_rests_of_all_nodes_would_do() -> None:
    cluster = halves(on_heartbeat=True)
    rich, starved = cluster.attempt_in("a"), cluster.attempt_in("b")
    for host in ("n1", "n2"):
        cluster.ask(rich, *[ONE] * 9)
        cluster.tracker.heartbeat(f"{host}:45454")
    cluster.get(rich)
    cluster.ask(starved, Resource(2, 2))
    cluster.tracker.heartbeat("n1:45454")

    run_round(cluster)

    assert any(container.state.name == "RESERVED" for container in cluster.context.containers.values())
    assert len(noticed(cluster, rich)) == 2


def test_small_cluster_gives_one_container_although_it_is_more_than_a_round_s_share() -> None:
    cluster = halves(preemption={"enabled": True})
    rich, starved = cluster.attempt_in("a"), cluster.attempt_in("b")
    first, second = cluster.get(rich, Resource(9, 9), Resource(9, 9))
    cluster.ask(starved, Resource(8, 8))

    run_round(cluster)

    assert first.node != second.node
    assert noticed(cluster, rich) == [second.entity]


def test_ended_container_is_not_noticed() -> None:
    cluster = halves()
    rich, starved = cluster.attempt_in("a"), cluster.attempt_in("b")
    containers = cluster.get(rich, *[ONE] * 20)
    cluster.ask(starved, ONE, ONE)
    run_round(cluster)

    cluster.finish(containers[-1])

    assert noticed(cluster, rich) == [containers[-2].entity]


# -- the monitor ------------------------------------------------------------------------------------------------------


def test_monitor_posts_a_round_each_interval_until_the_scheduler_is_settled(workshop: Workshop) -> None:
    monitor, clock = SchedulingMonitor(workshop.context), workshop.clock
    posted = []

    for is_settled in (False, False, True, False):
        workshop.scheduler.is_settled = is_settled
        for _ in range(2):
            clock.advance(1_500)
            monitor.expire_due()
            posted.append(len(workshop.posted.events))

    assert posted == [0, 1, 1, 2, 2, 2, 3, 3]
    assert workshop.posted.news() == ["Scheduler EDIT_SCHEDULE"] * 3


def test_scheduler_is_settled_when_a_round_selects_nothing_until_something_happens() -> None:
    cluster = halves()
    rich, starved = cluster.attempt_in("a"), cluster.attempt_in("b")
    cluster.get(rich, *[ONE] * 20)
    settled = []

    for step in (lambda: None, lambda: cluster.ask(starved, ONE), lambda: None):
        step()
        settled.append(cluster.scheduler.is_settled)
        run_round(cluster)
        settled.append(cluster.scheduler.is_settled)

    assert settled == [False, True, False, False, False, False]
