"""Whole workloads through the capacity scheduler, in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from statemachines.resourcemanager.scheduler import QueueInfo

from .replays import Journal, app, node, run, task, workload

FREE = {"user_limit_factor": 100, "maximum_am_resource_percent": 20}
QUEUES = (
    {"name": "a", "capacity": 50, **FREE, "ordering_policy": "fair"},
    {"name": "b", "capacity": 50, **FREE, "maximum_capacity": 60, "minimum_user_limit_percent": 25},
)


def capacity(*queues: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"scheduler": {"kind": "capacity", "queues": queues or QUEUES, **more}}


@pytest.mark.parametrize("heartbeat_interval_ms", [0, 100])
def test_all_applications_of_all_queues_end_and_leave_nothing(tmp_path: Path, heartbeat_interval_ms: int) -> None:
    apps = [
        app(f"app-{n}", 10 * n, tasks=(task(50, 3), task(70, 2)) * 2, queue="ab"[n % 2], user=f"user-{n % 3}")
        for n in range(30)
    ]
    simulation = {"heartbeat_interval_ms": heartbeat_interval_ms, "am_register_delay_ms": 5}

    replay = run(workload(node("n1"), node("n2"), *apps), tmp_path / "j", **capacity(), simulation=simulation)

    ends = Journal(tmp_path / "j").final("RMApp").values()
    assert [state for state, _ in ends] == ["FINISHED"] * 30
    scheduler = replay.manager.context.scheduler
    assert scheduler.waiting() == []
    assert [left(info) for info in scheduler.queues()] == [(0, 0, 0, 0)] * 3


def left(info: QueueInfo) -> tuple[int, int, int, int]:
    return info.applications, info.pending_applications, info.containers, info.used.memory_mb


def test_application_of_an_unknown_queue_fails_and_the_others_do_not(tmp_path: Path) -> None:
    work = workload(node("n1"), app("good", queue="a"), app("bad", queue="nowhere"))

    run(work, tmp_path / "j", **capacity())

    ends = Journal(tmp_path / "j").final("RMApp").values()
    assert [state for state, _ in ends] == ["FINISHED", "FAILED"]


def test_applications_beyond_the_share_of_masters_run_one_after_the_other(tmp_path: Path) -> None:
    queue = {"name": "a", "maximum_am_resource_percent": 10, "user_limit_factor": 9}
    apps = [app(f"app-{n}", queue="a", am_duration_ms=100) for n in range(3)]

    run(workload(node("n1"), *apps), tmp_path / "j", **capacity(queue), simulation={"am_register_delay_ms": 0})

    times = [at_ms for _, at_ms in Journal(tmp_path / "j").final("RMApp").values()]
    assert times == [100, 200, 300]
