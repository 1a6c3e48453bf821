from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from pipeline.sweep.outcome import run, run_row
from statemachines.resourcemanager import Resource, ResourceManagerConfig
from statemachines.simulation.workload import ApplicationSpec, ContainerSpec, NodeSpec, Workload
from statemachines.simulation.workload import Outcome as End

from ...kit.tables import paired
from .small import application, combined


def only(workload: Workload, *settings: str) -> Any:
    [combination] = combined(workload, *settings or ("scheduler=fifo",))
    return combination


def test_figures_of_two_applications_in_a_row(two_in_a_row: Workload) -> None:
    found = run(two_in_a_row, only(two_in_a_row))

    none = dict.fromkeys(("failed", "killed", "unfinished", "never_placed", "failed_events"), 0)
    waits = {"mean_s": 3.0, "p50_s": 3.0, "p95_s": 5.7, "max_s": 6.0}
    assert asdict(found) == {
        "applications": 2,
        "finished": 2,
        "containers": 2,
        "makespan_s": 20.0,
        **none,
        **{f"wait_{name}": value for name, value in waits.items()},
        **{f"container_wait_{name}": value for name, value in waits.items()},
        **{f"turnaround_{name}": value + 10 for name, value in waits.items()},
        "memory_used": 0.75,  # half of the node for one half of the time, then all of it
        "vcores_used": 0.375,
        "gpus_used": None,
        "events": found.events,
        "wall_s": found.wall_s,
    }
    assert found.events > 0
    assert found.wall_s > 0


SIZE, LARGE, BEYOND = Resource(1024, 1000), Resource(3072, 1000), Resource(9999, 1000)
HALF_A_GPU = Resource(1024, 1000, gpus=1, gpu_milli=500)
ROOM = NodeSpec("n", Resource(4096, 4000, gpus=2))
KILLED = application("is killed", 0, 60, SIZE, kill_ms=5000)
FAILS = application("fails", 0, 2, SIZE, outcome=End.FAILED, max_attempts=1)
WAITS = application("waits", 0, 2, BEYOND), application("waits until it is killed", 0, 2, BEYOND, kill_ms=6000)


def with_two(size: Resource) -> ApplicationSpec:
    """The master registers after a second, and asks for two containers of 8 s."""
    return application("a", 0, 1, SIZE, containers=(ContainerSpec(size, 8000), ContainerSpec(size, 8000)))


WORKLOADS = {
    "two": [application("first", 0, 10, SIZE), application("second", 4, 10, Resource(2048, 2000))],
    "containers": [with_two(SIZE)],
    "large containers": [with_two(LARGE)],
    "killed": [application("finishes", 0, 9, SIZE), KILLED],
    "GPU": [application("a", 0, 10, HALF_A_GPU)],
    "all ends": [application("finishes", 0, 2, SIZE), FAILS, KILLED, *WAITS],
    "none": WAITS[:1],
}
FIGURES = """
# nobody waits on twice the nodes, and longer under twice the load
two, nodes=2.0
    wait_max_s=0 makespan_s=14 memory_used=0.535714
two, load=2
    wait_max_s=8 makespan_s=20
# containers that a master asks for are counted and take room
containers, scheduler=fifo
    containers=3 wait_max_s=0 makespan_s=9 memory_used=0.694444
# the wait of the application ends with its master, whatever its containers wait for afterwards
large containers, scheduler=fifo
    wait_max_s=0 container_wait_p50_s=0 container_wait_max_s=8 turnaround_mean_s=17 turnaround_max_s=17 makespan_s=17
# only finished applications have a turnaround
killed, scheduler=fifo
    turnaround_mean_s=9 turnaround_p50_s=9 turnaround_max_s=9
# shares of GPUs count as such
GPU, scheduler=fifo
    gpus_used=0.25
# an application that never fits is unfinished, and never placed
all ends, scheduler=fifo
    finished=1 failed=1 killed=2 unfinished=1 never_placed=2 containers=3 makespan_s=6
# figures are none where nothing was placed
none, scheduler=fifo
    unfinished=1 never_placed=1 wait_mean_s=None wait_p95_s=None makespan_s=None memory_used=None turnaround_max_s=None
"""


@pytest.mark.parametrize(("run_of", "figures"), paired(FIGURES))
def test_figures_of_a_workload(run_of: str, figures: str) -> None:
    name, setting = run_of.split(", ")
    node = NodeSpec("n", Resource(2048, 4000)) if name == "two" else ROOM
    workload = Workload("w", (node,), tuple(WORKLOADS[name]))

    found = asdict(run(workload, only(workload, setting)))

    for figure, value in (each.split("=") for each in figures.split()):
        assert found[figure] == (None if value == "None" else pytest.approx(float(value), rel=1e-5)), figure


def test_the_capacity_scheduler_serves_the_small_queue_before_the_rest_of_the_large_one(two_queues: Workload) -> None:
    fifo = run(two_queues, only(two_queues, "scheduler=fifo"))
    capacity = run(two_queues, only(two_queues, "scheduler=capacity"))

    # fifo: four wait 0 s, four 10 s, and the one of the small queue 19 s.
    assert (fifo.wait_p50_s, fifo.wait_max_s, fifo.makespan_s) == (10.0, 19.0, 30.0)
    # capacity: four wait 0 s, that one 9 s, three 10 s, and the last of the large queue 20 s.
    assert (capacity.wait_p50_s, capacity.wait_max_s, capacity.makespan_s) == (9.0, 20.0, 30.0)


def test_a_combination_that_fails_is_a_row_with_its_error(two_queues: Workload) -> None:
    good = only(two_queues)
    bad = ResourceManagerConfig.model_validate(
        {"metrics": {"enabled": False}, "scheduler": {"kind": "capacity", "queues": [{"name": "a", "capacity": 1}]}}
    )

    failed, ran = (run_row(two_queues, each) for each in (replace(good, config=bad), replace(good, number=2)))

    assert failed["error"].startswith("ConfigError: scheduler.queues: ")
    assert (failed["number"], failed["settings"], failed["nodes"]) == (1, {"scheduler": "fifo"}, 1)
    assert {failed[key] for key in failed if key not in ("number", "settings", "nodes", "error")} == {None}
    assert (ran["number"], ran["error"], ran["finished"]) == (2, None, 9)


def test_an_application_that_is_refused_has_failed_and_was_never_placed(two_queues: Workload) -> None:
    row = run_row(two_queues, only(two_queues, "scheduler=capacity", "scheduler.queues=[{name: a}]"))

    assert (row["error"], row["finished"], row["failed"], row["never_placed"]) == (None, 8, 1, 1)
