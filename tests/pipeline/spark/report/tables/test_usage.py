"""Jobs over what containers take of their nodes: each against literal rows."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from pipeline.spark.report.tables import usage

SECOND = 1_000_000_000
C1, C2, C3 = (f"container_0_0001_01_00000{number}" for number in (1, 2, 3))
APP, ATTEMPT = "application_0_0001", "appattempt_0_0001_000001"
INTERVAL_SCHEMA = (
    "container string, application string, attempt string, node string, kind string, memory_mb long, "
    "vcores_milli long, gpus long, gpu_milli long, gpu_devices array<int>, started_seq long, started_at long, "
    "ended_seq long, ended_at long, end_state string"
)
USAGE_SCHEMA = (
    "node string, seq long, at long, containers long, memory_mb long, vcores_milli long, gpu_milli_total long"
)
OVER_TIME_SCHEMA = "node string, bucket int, starts_at long, containers long"


def intervals(journal: Any) -> DataFrame:
    return usage.container_intervals(*journal.tables())


def peaks(journal: Any) -> DataFrame:
    held = intervals(journal)
    capacities = usage.node_capacities(journal.tables().events)
    return usage.node_peaks(usage.node_usage(held), usage.gpu_device_peaks(held), capacities)


def oversubscribed(journal: Any) -> dict[str, bool]:
    return {row["node"]: row["oversubscribed"] for row in peaks(journal).collect()}


def test_an_interval_lasts_from_allocated_to_the_first_end_state(journal: Any, assert_table: Any) -> None:
    journal.allocate(1, C1, "h1:1", 10, gpus=2, gpu_milli=500, gpu_devices=[0, 3])
    journal.move(2, "RMContainer", C1, "ALLOCATED ACQUIRED ACQUIRED", at=11)
    journal.move(3, "RMContainer", C1, "ACQUIRED RELEASED RELEASED", at=12)
    journal.move(4, "RMContainer", C1, "RELEASED FINISHED RELEASED", at=13)

    row = (C1, APP, ATTEMPT, "h1:1", "map", 1024, 1000, 2, 500, [0, 3], 1, 10 * SECOND, 3, 12 * SECOND, "RELEASED")
    assert_table(intervals(journal), INTERVAL_SCHEMA, [row])


def test_a_running_container_has_no_end(journal: Any, assert_table: Any) -> None:
    journal.allocate(1, C1, "h1:1", 10)

    row = (C1, APP, ATTEMPT, "h1:1", "map", 1024, 1000, 0, 1000, [], 1, 10 * SECOND, None, None, None)
    assert_table(intervals(journal), INTERVAL_SCHEMA, [row])


def test_a_container_that_was_only_reserved_occupies_nothing(journal: Any) -> None:
    journal.move(1, "RMContainer", C1, "NEW RESERVED RESERVED")
    journal.move(2, "RMContainer", C1, "RESERVED KILL KILLED")

    assert intervals(journal).isEmpty()


def test_a_container_without_its_start_keeps_its_row(journal: Any) -> None:
    journal.move(1, "RMContainer", C1, "NEW START ALLOCATED", at=1)

    [row] = intervals(journal).collect()

    assert (row["container"], row["node"], row["started_at"]) == (C1, None, SECOND)


def test_usage_goes_by_seq_within_one_nanosecond(journal: Any, assert_table: Any) -> None:
    """By time alone both containers would seem to run at once, and the node to be oversubscribed."""
    journal.allocate(1, C1, "h1:1", 0, memory_mb=4096)
    journal.complete(2, C1, 7)
    journal.allocate(3, C2, "h1:1", 7, memory_mb=3072, gpus=2, gpu_milli=500, gpu_devices=[0, 1])
    journal.complete(4, C2, 7)

    assert_table(
        usage.node_usage(intervals(journal)),
        USAGE_SCHEMA,
        [
            ("h1:1", 1, 0, 1, 4096, 1000, 0),
            ("h1:1", 2, 7 * SECOND, 0, 0, 0, 0),
            ("h1:1", 3, 7 * SECOND, 1, 3072, 1000, 1000),
            ("h1:1", 4, 7 * SECOND, 0, 0, 0, 0),
        ],
    )


def test_changes_of_one_event_are_one_row(journal: Any, assert_table: Any) -> None:
    journal.allocate(1, C1, "h1:1")
    journal.allocate(2, C2, "h1:1")
    journal.move(3, "RMContainer", C1, "ALLOCATED KILL KILLED", at=5)
    journal.move(3, "RMContainer", C2, "ALLOCATED KILL KILLED", at=5)

    rows = [("h1:1", 1, 0, 1, 1024, 1000, 0), ("h1:1", 2, 0, 2, 2048, 2000, 0), ("h1:1", 3, 5 * SECOND, 0, 0, 0, 0)]
    assert_table(usage.node_usage(intervals(journal)), USAGE_SCHEMA, rows)


def test_device_peaks_add_up_the_shares_of_each_gpu(journal: Any, assert_table: Any) -> None:
    journal.allocate(1, C1, "h1:1", gpus=2, gpu_milli=600, gpu_devices=[0, 1])
    journal.allocate(2, C2, "h1:1", gpus=1, gpu_milli=300, gpu_devices=[1])
    journal.complete(3, C1)
    journal.allocate(4, C3, "h1:1", gpus=1, gpu_milli=700, gpu_devices=[1])

    assert_table(
        usage.gpu_device_peaks(intervals(journal)),
        "node string, device int, peak_milli long",
        [("h1:1", 0, 600), ("h1:1", 1, 1000)],
    )


def test_a_nodes_capacity_comes_from_its_registration(journal: Any, assert_table: Any) -> None:
    journal.node(1, "h1:1", gpus=2)
    journal.event(2, "RMNodeEventType", "STARTED", "h2:1", payload={"host": "h2", "rack": "/r2", "gpu_model": "T4"})

    assert_table(
        usage.node_capacities(journal.tables().events),
        "node string, host string, rack string, gpu_model string, memory_mb long, vcores_milli long, gpus long",
        [("h1:1", "h1", "/r1", None, 4096, 4000, 2), ("h2:1", "h2", "/r2", "T4", None, None, None)],
    )


def test_peaks_stand_beside_capacities(journal: Any, assert_table: Any) -> None:
    journal.node(1, "h1:1", gpus=2)
    journal.node(2, "idle:1")
    journal.allocate(3, C1, "h1:1", memory_mb=4000, gpus=2, gpu_milli=500, gpu_devices=[0, 1])
    journal.complete(4, C1)
    journal.allocate(5, C2, "h1:1", vcores_milli=3000)
    journal.allocate(6, C3, "lost:1")

    assert_table(
        peaks(journal),
        "node string, rack string, gpu_model string, memory_mb long, peak_memory_mb long, vcores_milli long, "
        "peak_vcores_milli long, gpu_milli long, peak_gpu_milli long, peak_gpu_device_milli long, "
        "peak_containers long, oversubscribed boolean",
        [
            ("h1:1", "/r1", None, 4096, 4000, 4000, 3000, 2000, 1000, 500, 1, False),
            ("idle:1", "/r1", None, 4096, 0, 4000, 0, 0, 0, 0, 0, False),
            ("lost:1", None, None, None, 1024, None, 1000, None, 0, 0, 1, False),
        ],
    )


def test_a_node_with_more_memory_in_use_than_its_capacity_is_found(journal: Any) -> None:
    journal.node(1, "h1:1", memory_mb=2047)
    journal.node(2, "h2:1", memory_mb=2048)
    for seq, (container, node) in enumerate([(C1, "h1:1"), (C2, "h1:1"), (C3, "h2:1")], start=3):
        journal.allocate(seq, container, node)

    assert oversubscribed(journal) == {"h1:1": True, "h2:1": False}


def test_an_oversubscribed_gpu_is_found_on_a_node_with_room(journal: Any) -> None:
    journal.node(1, "h1:1", gpus=4)
    journal.allocate(2, C1, "h1:1", gpus=1, gpu_milli=600, gpu_devices=[2])
    journal.allocate(3, C2, "h1:1", gpus=1, gpu_milli=401, gpu_devices=[2])

    assert oversubscribed(journal) == {"h1:1": True}


def test_containers_over_time_are_carried_forward(journal: Any, assert_table: Any) -> None:
    journal.allocate(1, C1, "h1:1", 2)
    journal.allocate(2, C2, "h2:1", 2)
    journal.complete(3, C1, 3)
    journal.complete(4, C2, 6)
    journal.allocate(5, C3, "h2:1", 8)

    over_time = usage.containers_over_time(intervals(journal), 0, 10 * SECOND - 1, buckets=5)

    counts = {"h1:1": [0, 1, 0, 0, 0], "h2:1": [0, 1, 1, 1, 1], None: [0, 2, 1, 1, 1]}
    rows = [
        (node, bucket, bucket * 2 * SECOND, number)
        for node, numbers in counts.items()
        for bucket, number in enumerate(numbers)
    ]
    assert_table(over_time, OVER_TIME_SCHEMA, rows)


def test_a_change_at_the_very_end_of_a_long_run_is_in_the_last_bucket(journal: Any) -> None:
    """Divided as doubles, a time beyond 2^53 ns rounds up into a bucket that does not exist."""
    end_s = 20_000_000
    journal.allocate(1, C1, "h1:1", 1)
    journal.complete(2, C1, end_s)

    # 200 buckets of 10^14 ns each, without a rest.
    over_time = usage.containers_over_time(intervals(journal), 1, end_s * SECOND, buckets=200)

    assert sorted((row["node"] or "", row["bucket"]) for row in over_time.collect()) == [
        (node, bucket) for node in ("", "h1:1") for bucket in range(200)
    ]


def test_without_containers_the_table_over_time_is_empty(journal: Any, assert_table: Any) -> None:
    journal.event(1, "AType", "A")

    assert_table(usage.containers_over_time(intervals(journal), 0, 0), OVER_TIME_SCHEMA, [])
