"""Whole workloads through the capacity scheduler, in virtual time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from statemachines.resourcemanager import QueueInfo
from statemachines.simulation.queues import derived_queues, in_words

from ..resourcemanager.inner import EXIT_PREEMPTED
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


def test_the_journal_and_the_replay_have_the_reason_of_every_refusal(tmp_path: Path) -> None:
    queues = {"name": "a", "capacity": 60}, {"name": "b", "capacity": 40, "state": "STOPPED"}
    work = workload(node("n1"), *(app(f"app-{n}", queue=name) for n, name in enumerate(("a", "b", "x", "b"))))

    replay = run(work, tmp_path / "j", **capacity(*queues))

    no_x, stopped = "queue x does not exist; queues that accept applications: a, b", "queue root.b is stopped"
    stopped += " and does not accept new applications"
    rejections = [row for row in Journal(tmp_path / "j").events if row["event_type"] == "APP_REJECTED"]
    assert [json.loads(row["payload"]) for row in rejections] == [
        {"diagnostics": why} for why in (stopped, no_x, stopped)
    ]
    assert replay.refusals() == {stopped: 2, no_x: 1}
    assert (replay.progress().applications_by_state, replay.derived_queues) == ({"FINISHED": 1, "FAILED": 3}, ())


def test_containers_beyond_the_maximum_allocation_are_refused_and_the_rest_goes_on(tmp_path: Path) -> None:
    queues = {"name": "a", "capacity": 60, "maximum_allocation_mb": 3}, {"name": "b", "capacity": 40}
    work = workload(
        node("n1"),
        app("large master", am=4, queue="a"),
        app("large task", tasks=(task(10, 4),), queue="a", max_attempts=1),
        app("fits", tasks=(task(10, 3),), queue="a"),
        app("elsewhere", am=4, tasks=(task(10, 5),), queue="b"),
    )

    replay = run(work, **capacity(*queues))

    assert replay.progress().applications_by_state == {"FINISHED": 2, "FAILED": 1}
    ((refusal, count),) = replay.refusals().items()
    assert (count, "memory:4 MB" in refusal, "queue a" in refusal) == (1, True, True)


def test_without_configured_queues_the_workload_s_own_take_all_applications(tmp_path: Path) -> None:
    work = workload(node("n1"), *(app(f"app-{n}", queue=name) for n, name in enumerate(("a", "root.x.b", "x.c"))))

    replay = run(work, tmp_path / "j", scheduler={"kind": "capacity"})

    ends = Journal(tmp_path / "j").final("RMApp").values()
    assert [state for state, _ in ends] == ["FINISHED"] * 3
    assert [queue.name for queue in replay.derived_queues] == ["a", "x"]
    assert in_words(replay.derived_queues) == (
        "No queues are configured; the capacity scheduler gets the workload's own: a, b, c"
    )
    many = derived_queues(workload(node("n1"), *(app(f"app-{n}", queue=f"q{n}") for n in range(1234))))
    assert in_words(many).endswith("own: q0, q1, q2, q3, q4, q5, q6, q7, q8, q9 and 1,224 more")
    assert run(workload(node("n1"), app("a", queue="a")), scheduler={"kind": "fifo"}).derived_queues == ()


@pytest.mark.long
@pytest.mark.parametrize("heartbeat_interval_ms", [0, 1000])
def test_preempted_containers_run_again_and_every_application_ends(tmp_path: Path, heartbeat_interval_ms: int) -> None:
    queues = [{"name": name, "capacity": 50, "user_limit_factor": 2} for name in "ab"]
    preemption = {"enabled": True, "natural_termination_factor": 1, "total_preemption_per_round": 1}
    settings = capacity(*queues, maximum_am_resource_percent=50, preemption=preemption)
    long, short = tuple([task(600_000)] * 9), tuple([task(30_000)] * 3)
    work = workload(node("n1"), app("long", 0, tasks=long, queue="a"), app("short", 60_000, tasks=short, queue="b"))
    simulation = {"heartbeat_interval_ms": heartbeat_interval_ms}

    replays = [run(work, tmp_path / name, simulation=simulation, **settings) for name in ("1", "2")]

    first, second = (Journal(tmp_path / name) for name in ("1", "2"))
    assert replays[0].progress().applications_by_state == {"FINISHED": 2}
    apps = {each.submission.name: each for each in replays[0].manager.context.apps.values()}
    short_end_ms, preempted = apps["short"].finish_ms, apps["long"].attempts[0].preempted.count
    assert preempted > 0
    assert short_end_ms is not None
    assert short_end_ms < 60_000 + 120_000  # long before the first task of the other ends
    assert len(first.events) == len(second.events)
    assert EXIT_PREEMPTED == -102
