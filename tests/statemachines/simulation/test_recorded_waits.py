"""Which applications wait here that did not in the recorded cluster, and why; and a whole trace, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dispatcher import load_config
from statemachines.resourcemanager import Replay, ResourceManagerConfig
from statemachines.simulation.workload import ApplicationSpec, Workload, read_workload

from .replays import app, node, run, workload

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
OPENB = ROOT.parent / "shared" / "data" / "openb"
CLASSES = (".LS", ".BE", ".Burstable", ".Guaranteed")


def recorded(spec: ApplicationSpec, wait_ms: int | None) -> ApplicationSpec:
    return replace(spec, recorded_wait_ms=wait_ms)


def waits_of(work: Workload, **settings: Any) -> tuple[int, int, list[str]]:
    waits = run(work, **settings).waits
    assert sum(waits.reasons.values()) == waits.waiting
    return waits.at_once, waits.waiting, list(waits.reasons)


def test_only_applications_that_were_recorded_as_placed_at_once_count() -> None:
    apps = [recorded(app(), wait_ms) for wait_ms in (0, 1000, None)]

    assert waits_of(workload(node(), *apps)) == (1, 0, [])


def test_one_that_finds_the_cluster_full_waits_for_busy_nodes() -> None:
    apps = [recorded(app(am=10), 0), recorded(app(submit_ms=100, am=10), 0)]

    at_once, waiting, reasons = waits_of(workload(node(), *apps))

    assert (at_once, waiting) == (2, 1)
    assert reasons == ["no node has room"]


def test_one_that_comes_in_the_moment_in_which_room_appears_does_not_wait() -> None:
    first = run(workload(node(), app(am=10))).progress().virtual_ms
    apps = [recorded(app(am=10), 0), recorded(app(submit_ms=first, am=10), 0)]

    assert waits_of(workload(node(), *apps)) == (2, 0, [])


def test_share_of_nothing_is_nothing() -> None:
    assert run(workload(node(), app())).waits.share == 0.0


@pytest.fixture(scope="module")
def openb(request: pytest.FixtureRequest) -> Replay:
    """Five months of a real cluster; with the capacity scheduler, a queue for each of its classes of service."""
    if not OPENB.is_dir():
        pytest.skip("no openb trace beside this checkout")
    settings = load_config(ROOT / "config" / "replay-capacity.yaml", ResourceManagerConfig)
    return run(read_workload(OPENB), **({"scheduler": settings.scheduler} if request.param == "capacity" else {}))


@pytest.mark.parametrize(
    ("openb", "leaves"), [("fifo", [".default"]), ("capacity", CLASSES)], ids=["fifo", "capacity"], indirect=["openb"]
)
def test_all_pods_of_the_openb_trace_start_and_end_as_they_did_and_leave_all_room_free(
    openb: Replay, leaves: Sequence[str]
) -> None:
    progress, context = openb.progress(), openb.manager.context

    assert progress.applications_by_state == {"FINISHED": 5385, "FAILED": 1870, "KILLED": 897}
    assert (progress.ended, openb.waiting(), context.containers) == (8152, [], {})
    for each in context.scheduler.nodes():
        assert (each.free_memory_mb, each.free_vcores_milli) == (each.capacity.memory_mb, each.capacity.vcores_milli)
        assert each.free_gpu_milli == [1000] * each.capacity.gpus
    queues = {queue.path: queue.containers for queue in context.scheduler.queues()}
    assert queues == {f"root{name}": 0 for name in ("", *leaves)}
    assert {each.invalid for each in openb.manager.recorder.machines.values()} == {0}
    assert openb.manager.dispatcher.stats().failed == 0
    # The trace's own waits are its scheduler's delays: at no time do its pods want more than its nodes have.
    assert (openb.waits.at_once, openb.waits.waiting, openb.waits.share) == (2046, 0, 0.0)
