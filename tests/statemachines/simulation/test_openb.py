"""The openb trace, five months of a real cluster, in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest

from statemachines.resourcemanager import Replay
from statemachines.simulation.workload import read_workload

from .replays import run

pytestmark = pytest.mark.long

OPENB = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "openb"


@pytest.fixture(scope="module")
def replay() -> Replay:
    if not OPENB.is_dir():
        pytest.skip("no openb trace beside this checkout")
    return run(read_workload(OPENB))


def test_all_applications_end_as_they_did(replay: Replay) -> None:
    progress = replay.progress()

    assert progress.applications_by_state == {"FINISHED": 5385, "FAILED": 1870, "KILLED": 897}
    assert progress.ended == 8152


def test_no_machine_makes_an_invalid_transition(replay: Replay) -> None:
    machines = replay.manager.recorder.machines

    assert {machine: stats.invalid for machine, stats in machines.items()} == dict.fromkeys(machines, 0)
    assert replay.manager.dispatcher.stats().failed == 0


def test_nothing_waits_and_all_room_is_free_after_the_end(replay: Replay) -> None:
    context = replay.manager.context

    assert (replay.waiting(), context.containers) == ([], {})
    for node in context.scheduler.nodes():
        assert (node.free_memory_mb, node.free_vcores_milli) == (node.capacity.memory_mb, node.capacity.vcores_milli)
        assert node.free_gpu_milli == [1000] * node.capacity.gpus
