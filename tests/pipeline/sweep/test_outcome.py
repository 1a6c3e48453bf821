from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pipeline.sweep.combinations import Combination, combine
from pipeline.sweep.outcome import SweepOutcome, percentile_s, run, run_all, run_row
from pipeline.sweep.settings import parse_settings
from statemachines.resourcemanager import Resource, ResourceManagerConfig
from statemachines.simulation.workload import ApplicationSpec, ContainerSpec, NodeSpec, Workload
from statemachines.simulation.workload import Outcome as End


def only(workload: Workload, *settings: str) -> Combination:
    [combination] = combine(workload, parse_settings(settings or ("scheduler=fifo",)))
    return combination


def test_figures_of_two_applications_in_a_row(two_in_a_row: Workload) -> None:
    found = run(two_in_a_row, only(two_in_a_row))

    assert found == SweepOutcome(
        applications=2,
        finished=2,
        failed=0,
        killed=0,
        unfinished=0,
        never_placed=0,
        wait_mean_s=3.0,
        wait_p50_s=3.0,
        wait_p95_s=5.7,
        wait_max_s=6.0,
        container_wait_mean_s=3.0,
        container_wait_p50_s=3.0,
        container_wait_p95_s=5.7,
        container_wait_max_s=6.0,
        turnaround_mean_s=13.0,
        turnaround_p50_s=13.0,
        turnaround_p95_s=15.7,
        turnaround_max_s=16.0,
        makespan_s=20.0,
        memory_used=0.75,  # half of the node for one half of the time, then all of it
        vcores_used=0.375,
        gpus_used=None,
        containers=2,
        events=found.events,
        failed_events=0,
        wall_s=found.wall_s,
    )
    assert found.events > 0
    assert found.wall_s > 0


def test_no_application_waits_on_twice_the_nodes(two_in_a_row: Workload) -> None:
    found = run(two_in_a_row, only(two_in_a_row, "nodes=2.0"))

    assert (found.wait_max_s, found.makespan_s) == (0.0, 14.0)
    assert found.memory_used == pytest.approx((1024 * 10 + 2048 * 10) / (4096 * 14))


def test_twice_the_load_lets_the_second_wait_longer(two_in_a_row: Workload) -> None:
    found = run(two_in_a_row, only(two_in_a_row, "load=2"))

    assert (found.wait_max_s, found.makespan_s) == (8.0, 20.0)


def test_containers_that_a_master_asks_for_are_counted_and_take_room(
    application: Callable[..., ApplicationSpec],
) -> None:
    size = Resource(1024, 1000)
    one = application("a", 0, 1, size, containers=(ContainerSpec(size, 8000), ContainerSpec(size, 8000)))
    workload = Workload("w", (NodeSpec("n", Resource(4096, 4000)),), (one,))

    found = run(workload, only(workload))

    # The master registers after a second, has both for eight, and ends with the last.
    assert (found.containers, found.wait_max_s, found.makespan_s) == (3, 0.0, 9.0)
    assert found.memory_used == pytest.approx((1024 * 9 + 2 * 1024 * 8) / (4096 * 9))


def test_containers_that_wait_show_beside_a_master_that_did_not(application: Callable[..., ApplicationSpec]) -> None:
    """The wait of the application ends with its master, whatever its containers wait for afterwards."""
    size, large = Resource(1024, 1000), Resource(3072, 1000)
    one = application("a", 0, 1, size, containers=(ContainerSpec(large, 8000), ContainerSpec(large, 8000)))
    workload = Workload("w", (NodeSpec("n", Resource(4096, 4000)),), (one,))

    found = run(workload, only(workload))

    # Both are asked for after a second, and the second one has room when the first one has ended.
    assert (found.wait_max_s, found.container_wait_p50_s, found.container_wait_max_s) == (0.0, 0.0, 8.0)
    assert (found.turnaround_mean_s, found.turnaround_max_s, found.makespan_s) == (17.0, 17.0, 17.0)


def test_only_finished_applications_have_a_turnaround(application: Callable[..., ApplicationSpec]) -> None:
    size = Resource(1024, 1000)
    applications = application("finishes", 0, 9, size), application("is killed", 0, 60, size, kill_ms=5000)
    workload = Workload("w", (NodeSpec("n", Resource(4096, 4000)),), applications)

    found = run(workload, only(workload))

    assert (found.turnaround_mean_s, found.turnaround_p50_s, found.turnaround_max_s) == (9.0, 9.0, 9.0)


def test_shares_of_gpus_count_as_such(application: Callable[..., ApplicationSpec]) -> None:
    half = Resource(1024, 1000, gpus=1, gpu_milli=500)
    workload = Workload("w", (NodeSpec("n", Resource(4096, 4000, gpus=2)),), (application("a", 0, 10, half),))

    assert run(workload, only(workload)).gpus_used == 0.25


def test_final_states_are_counted_apart_and_an_application_that_never_fits_is_unfinished_and_never_placed(
    application: Callable[..., ApplicationSpec],
) -> None:
    size, too_large = Resource(1024, 1000), Resource(9999, 1000)
    applications = (
        application("finishes", 0, 2, size),
        application("fails", 0, 2, size, outcome=End.FAILED, max_attempts=1),
        application("is killed", 0, 60, size, kill_ms=5000),
        application("waits until it is killed", 0, 2, too_large, kill_ms=6000),
        application("waits for ever", 0, 2, too_large),
    )
    workload = Workload("w", (NodeSpec("n", Resource(4096, 4000)),), applications)

    found = run(workload, only(workload))

    assert (found.finished, found.failed, found.killed, found.unfinished) == (1, 1, 2, 1)
    assert (found.never_placed, found.containers, found.makespan_s) == (2, 3, 6.0)


def test_figures_are_none_where_nothing_was_placed(application: Callable[..., ApplicationSpec]) -> None:
    workload = Workload("w", (NodeSpec("n", Resource(1, 1)),), (application("a", 0, 1, Resource(2, 2)),))

    found = run(workload, only(workload))

    assert (found.wait_mean_s, found.wait_p95_s, found.makespan_s, found.memory_used) == (None, None, None, None)
    assert (found.container_wait_mean_s, found.turnaround_max_s) == (None, None)
    assert (found.unfinished, found.never_placed) == (1, 1)


def test_the_capacity_scheduler_serves_the_small_queue_before_the_rest_of_the_large_one(two_queues: Workload) -> None:
    fifo = run(two_queues, only(two_queues, "scheduler=fifo"))
    capacity = run(two_queues, only(two_queues, "scheduler=capacity"))

    # fifo: four wait 0 s, four 10 s, and the one of the small queue 19 s.
    assert (fifo.wait_p50_s, fifo.wait_max_s, fifo.makespan_s) == (10.0, 19.0, 30.0)
    # capacity: four wait 0 s, that one 9 s, three 10 s, and the last of the large queue 20 s.
    assert (capacity.wait_p50_s, capacity.wait_max_s, capacity.makespan_s) == (9.0, 20.0, 30.0)


def test_a_combination_has_the_same_figures_each_time(two_queues: Workload) -> None:
    combination = only(two_queues, "scheduler=capacity", "nodes=3.0")

    assert run(two_queues, combination) == run(two_queues, combination)


def test_a_combination_that_fails_is_a_row_with_its_error(two_queues: Workload) -> None:
    good = only(two_queues)
    bad = ResourceManagerConfig.model_validate(
        {"metrics": {"enabled": False}, "scheduler": {"kind": "capacity", "queues": [{"name": "a", "capacity": 1}]}}
    )

    failed, ran = run_all(two_queues, [replace(good, config=bad), replace(good, number=2)])

    assert failed["error"].startswith("ConfigError: scheduler.queues: ")
    assert (failed["number"], failed["settings"], failed["nodes"]) == (1, {"scheduler": "fifo"}, 1)
    assert {failed[key] for key in failed if key not in ("number", "settings", "nodes", "error")} == {None}
    assert (ran["number"], ran["error"], ran["finished"]) == (2, None, 9)


def test_an_application_that_is_refused_has_failed_and_was_never_placed(two_queues: Workload) -> None:
    row = run_row(two_queues, only(two_queues, "scheduler=capacity", "scheduler.queues=[{name: a}]"))

    assert (row["error"], row["finished"], row["failed"], row["never_placed"]) == (None, 8, 1, 1)


def test_percentiles_lie_between_the_nearest_values() -> None:
    assert percentile_s([], 0.5) is None
    assert percentile_s([7000], 0.95) == 7.0
    assert percentile_s([0, 1000, 2000, 4000], 0.5) == 1.5
    assert percentile_s([0, 10_000], 0.95) == 9.5
    assert percentile_s([0, 1000, 2000], 1.0) == 2.0
