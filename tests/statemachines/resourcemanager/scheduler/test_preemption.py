"""Rounds of preemption in the scheduler: what is selected, noticed, killed and cancelled."""

from __future__ import annotations

from typing import Any

import pytest

from statemachines.resourcemanager.services.scheduling_monitor import SchedulingMonitor

from ....kit.scenarios import play
from ..builders import Workshop
from ..inner import EXIT_PREEMPTED, SchedulerEvent, SchedulerEventType
from .queue_cluster import QueueCluster
from .stage import SchedulerStage

GRACE_MS = 100
ALL = {"enabled": True, "total_preemption_per_round": 1, "natural_termination_factor": 1}
PREEMPTION = {**ALL, "max_wait_before_kill_ms": GRACE_MS}


def halves(*, on_heartbeat: bool = False, preemption: dict[str, Any] | None = None) -> QueueCluster:
    """Two queues of half of two nodes of 10 each."""
    free = {"capacity": 50, "user_limit_factor": 100, "maximum_am_resource_percent": 20}
    return QueueCluster(
        {"name": "a", **free},
        {"name": "b", **free},
        on_heartbeat=on_heartbeat,
        preemption=preemption or PREEMPTION,
    )


class PreemptionStage(SchedulerStage):
    def do_round(self, later_ms: str = "0") -> None:
        self.cluster.context.timers.advance(int(later_ms))
        self.cluster.post(SchedulerEvent(SchedulerEventType.EDIT_SCHEDULE, "root"))

    def see_noticed(self, name: str) -> list[str]:
        """What the master hears of; once each."""
        names = {container.entity: key for key, container in self.containers.items()}
        return [names[container.entity] for container in self.cluster.heartbeat(self.attempts[name]).preempted]

    def see_settled(self) -> list[bool]:
        return [self.cluster.scheduler.is_settled]

    def see_preempted(self, name: str) -> list[str]:
        ends = {key: container.status for key, container in self.containers.items()}
        return [key for key, end in ends.items() if key.startswith(name) and end and end.exit_status == EXIT_PREEMPTED]


RICH = "app rich@a starved@b | ask rich 1*20 | ask starved 1 | "

SCENARIOS = {
    "the application that is served last gives first, and keeps its master": (
        "app x@a priority=1 | app y@a priority=5 | app z@a priority=1 | app starved@b | ask x 1*8 | ask y 1*8"
        "| ask z 1*4"
        "| ask starved 1*6 | round -> noticed:x x8 x7 x6 ; noticed:y ; noticed:z z4 z3 z2"
    ),
    "the least urgent containers of an application go first": (
        "app rich@a starved@b | ask rich 1 | ask rich 1^20 | ask rich 1^10 | ask rich 1*17 | ask starved 1 1 | round"
        "-> noticed:rich rich2 rich3"
    ),
    # It was told of each notice that it had not fetched: of one container several times, and of some without notice.
    "a master is not told of a notice that no longer holds": f"{RICH} round | stop starved | round -> noticed:rich",
    "a master is told once of a container that is selected again": (
        f"{RICH} round | stop starved | round | app next@b | ask next 1 | round -> noticed:rich rich20"
    ),
    "a container runs on within its grace": f"{RICH} round | round 99 -> preempted:rich ; starved",
    "a container is killed once its grace is over": (
        f"{RICH} round | round 100 -> preempted:rich rich20 ; count:starved 1"
    ),
    "a preempted container that its master has not fetched is asked for again": (
        "app rich@a starved@b | ask rich 1*19 | hush | ask rich 1 | ask starved 1 | round | round 100 | fetch"
        "-> count:starved 1 ; waits rich:1 ; count:rich 19"
    ),
    "a container that has ended is not noticed": (
        "app rich@a starved@b | ask rich 1*20 | ask starved 1 1 | round | end rich20 -> noticed:rich rich19"
    ),
    "the scheduler is settled when a round selects nothing until something happens": (
        "app rich@a starved@b | ask rich 1*20 -> settled False | round -> settled True | ask starved 1 -> settled False"
        "| round -> settled False | round -> settled False"
    ),
}  # fmt: skip

ON_HEARTBEATS = {
    "a reservation is cancelled at once": (
        "app rich@a starved@b | ask rich 6*3 | beat n1 n2 -> reserved n1 | ask starved 4 | round -> reserved"
        "; noticed:rich"
    ),
    "an ask that no node has room for gets it though the rests of all nodes would do": (
        "app rich@a starved@b | ask rich 1*9 | beat n1 | ask rich 1*9 | beat n2 | ask starved 2 | beat n1 | round"
        "-> reserved n1 ; noticed:rich rich18 rich17"
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("script", "on_heartbeat"),
    [pytest.param(script, False, id=name) for name, script in SCENARIOS.items()]
    + [pytest.param(script, True, id=name) for name, script in ON_HEARTBEATS.items()],
)
def test_round(script: str, on_heartbeat: bool) -> None:
    play(PreemptionStage(halves(on_heartbeat=on_heartbeat)), f"node n1 n2 | {script}")


def test_small_cluster_gives_one_container_although_it_is_more_than_a_round_s_share() -> None:
    script = (
        "node n1 n2 | app rich@a starved@b | ask rich 9 9 | ask starved 8 | round -> rich n1 n2 ; noticed:rich rich2"
    )

    play(PreemptionStage(halves(preemption={"enabled": True})), script)


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
