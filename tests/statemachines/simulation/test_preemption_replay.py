"""Preemption in a replay: the starved queue gets its part, all work is done, and virtual time ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..resourcemanager.inner import EXIT_PREEMPTED
from .replays import Journal, app, node, run, task, workload

pytestmark = pytest.mark.long


@pytest.mark.parametrize("heartbeat_interval_ms", [0, 1000])
def test_preempted_containers_run_again_and_every_application_ends(tmp_path: Path, heartbeat_interval_ms: int) -> None:
    queues = [{"name": name, "capacity": 50, "user_limit_factor": 2} for name in "ab"]
    preemption = {"enabled": True, "natural_termination_factor": 1, "total_preemption_per_round": 1}
    scheduler = {
        "kind": "capacity",
        "queues": queues,
        "maximum_am_resource_percent": 50,
        "preemption": preemption,
    }
    long, short = tuple([task(600_000)] * 9), tuple([task(30_000)] * 3)
    work = workload(node("n1"), app("long", 0, tasks=long, queue="a"), app("short", 60_000, tasks=short, queue="b"))
    simulation = {"heartbeat_interval_ms": heartbeat_interval_ms}

    replays = [run(work, tmp_path / name, scheduler=scheduler, simulation=simulation) for name in ("1", "2")]

    first, second = (Journal(tmp_path / name) for name in ("1", "2"))
    assert replays[0].progress().applications_by_state == {"FINISHED": 2}
    apps = {each.submission.name: each for each in replays[0].manager.context.apps.values()}
    short_end_ms, preempted = apps["short"].finish_ms, apps["long"].attempts[0].preempted.count
    assert preempted > 0
    assert short_end_ms is not None
    assert short_end_ms < 60_000 + 120_000  # long before the first task of the other ends
    assert len(first.events) == len(second.events)
    assert EXIT_PREEMPTED == -102
