"""Tables of what containers take of their nodes: each against literal rows."""

from __future__ import annotations

import pytest

from pipeline.report.digests.buckets import TimeBuckets

from ...journal_builder import SECOND, JournalBuilder
from .at_hand import in_order, of_journal, of_relations

pytestmark = pytest.mark.long

C1, C2, C3 = (f"container_0_0001_01_00000{number}" for number in (1, 2, 3))
APP, ATTEMPT = "application_0_0001", "appattempt_0_0001_000001"


def oversubscribed(journal: JournalBuilder) -> dict[str, bool]:
    return {row["node"]: row["oversubscribed"] for row in of_journal(journal).dicts("node_peaks")}


def test_an_interval_lasts_from_allocated_to_the_first_end_state(journal: JournalBuilder) -> None:
    journal.allocate(1, C1, "h1:1", 10, gpus=2, gpu_milli=500, gpu_devices=[0, 3])
    journal.move(2, "RMContainer", C1, "ALLOCATED ACQUIRED ACQUIRED", at=11)
    journal.move(3, "RMContainer", C1, "ACQUIRED RELEASED RELEASED", at=12)
    journal.move(4, "RMContainer", C1, "RELEASED FINISHED RELEASED", at=13)

    row = (C1, APP, ATTEMPT, "h1:1", "map", 1024, 1000, 2, 500, [0, 3], 1, 10 * SECOND, 3, 12 * SECOND, "RELEASED")
    assert of_journal(journal)["containers"] == [row]


def test_a_running_container_has_no_end(journal: JournalBuilder) -> None:
    journal.allocate(1, C1, "h1:1", 10)

    row = (C1, APP, ATTEMPT, "h1:1", "map", 1024, 1000, 0, 1000, [], 1, 10 * SECOND, None, None, None)
    assert of_journal(journal)["containers"] == [row]


def test_a_container_that_was_only_reserved_occupies_nothing(journal: JournalBuilder) -> None:
    journal.move(1, "RMContainer", C1, "NEW RESERVED RESERVED")
    journal.move(2, "RMContainer", C1, "RESERVED KILL KILLED")

    assert of_journal(journal)["containers"] == []


def test_a_container_without_its_start_keeps_its_row(journal: JournalBuilder) -> None:
    journal.move(1, "RMContainer", C1, "NEW START ALLOCATED", at=1)

    [row] = of_journal(journal).dicts("containers")

    assert (row["container"], row["node"], row["started_at"]) == (C1, None, SECOND)


def test_usage_goes_by_seq_within_one_nanosecond(journal: JournalBuilder) -> None:
    """By time alone both containers would seem to run at once, and the node to be oversubscribed."""
    journal.allocate(1, C1, "h1:1", 0, memory_mb=4096)
    journal.complete(2, C1, 7)
    journal.allocate(3, C2, "h1:1", 7, memory_mb=3072, gpus=2, gpu_milli=500, gpu_devices=[0, 1])
    journal.complete(4, C2, 7)

    assert of_journal(journal)["node_usage"] == [
        ("h1:1", 1, 0, 1, 4096, 1000, 0),
        ("h1:1", 2, 7 * SECOND, 0, 0, 0, 0),
        ("h1:1", 3, 7 * SECOND, 1, 3072, 1000, 1000),
        ("h1:1", 4, 7 * SECOND, 0, 0, 0, 0),
    ]


def test_changes_of_one_event_are_one_row(journal: JournalBuilder) -> None:
    journal.allocate(1, C1, "h1:1")
    journal.allocate(2, C2, "h1:1")
    journal.move(3, "RMContainer", C1, "ALLOCATED KILL KILLED", at=5)
    journal.move(3, "RMContainer", C2, "ALLOCATED KILL KILLED", at=5)

    rows = [("h1:1", 1, 0, 1, 1024, 1000, 0), ("h1:1", 2, 0, 2, 2048, 2000, 0), ("h1:1", 3, 5 * SECOND, 0, 0, 0, 0)]
    assert of_journal(journal)["node_usage"] == rows


def test_device_peaks_add_up_the_shares_of_each_gpu(journal: JournalBuilder) -> None:
    journal.allocate(1, C1, "h1:1", gpus=2, gpu_milli=600, gpu_devices=[0, 1])
    journal.allocate(2, C2, "h1:1", gpus=1, gpu_milli=300, gpu_devices=[1])
    journal.complete(3, C1)
    journal.allocate(4, C3, "h1:1", gpus=1, gpu_milli=700, gpu_devices=[1])

    assert of_journal(journal)["gpu_device_peaks"] == [("h1:1", 0, 600), ("h1:1", 1, 1000)]


def test_a_nodes_capacity_comes_from_its_registration(journal: JournalBuilder) -> None:
    journal.node(1, "h1:1", gpus=2)
    journal.event(2, "RMNodeEventType", "STARTED", "h2:1", payload={"host": "h2", "rack": "/r2", "gpu_model": "T4"})

    assert of_journal(journal)["node_capacity"] == [
        ("h1:1", "h1", "/r1", None, 4096, 4000, 2),
        ("h2:1", "h2", "/r2", "T4", None, None, None),
    ]


def test_peaks_stand_beside_capacities(journal: JournalBuilder) -> None:
    journal.node(1, "h1:1", gpus=2)
    journal.node(2, "idle:1")
    journal.allocate(3, C1, "h1:1", memory_mb=4000, gpus=2, gpu_milli=500, gpu_devices=[0, 1])
    journal.complete(4, C1)
    journal.allocate(5, C2, "h1:1", vcores_milli=3000)
    journal.allocate(6, C3, "lost:1")

    assert of_journal(journal)["node_peaks"] == [
        ("h1:1", "/r1", None, 4096, 4000, 4000, 3000, 2000, 1000, 500, 1, False),
        ("idle:1", "/r1", None, 4096, 0, 4000, 0, 0, 0, 0, 0, False),
        ("lost:1", None, None, None, 1024, None, 1000, None, 0, 0, 1, False),
    ]


def test_a_node_with_more_memory_in_use_than_its_capacity_is_found(journal: JournalBuilder) -> None:
    journal.node(1, "h1:1", memory_mb=2047)
    journal.node(2, "h2:1", memory_mb=2048)
    for seq, (container, node) in enumerate([(C1, "h1:1"), (C2, "h1:1"), (C3, "h2:1")], start=3):
        journal.allocate(seq, container, node)

    assert oversubscribed(journal) == {"h1:1": True, "h2:1": False}


def test_an_oversubscribed_gpu_is_found_on_a_node_with_room(journal: JournalBuilder) -> None:
    journal.node(1, "h1:1", gpus=4)
    journal.allocate(2, C1, "h1:1", gpus=1, gpu_milli=600, gpu_devices=[2])
    journal.allocate(3, C2, "h1:1", gpus=1, gpu_milli=401, gpu_devices=[2])

    assert oversubscribed(journal) == {"h1:1": True}


def test_containers_over_time_are_carried_forward() -> None:
    """The run has 1,000 ns, and an interval 5."""
    held = [("h1:1", 200, 300), ("h2:1", 200, 600), ("h2:1", 800, None)]
    rows = [
        {"container": f"c{n}", "node": node, "started_seq": at + n, "started_at": at, "ended_seq": end, "ended_at": end}
        for n, (node, at, end) in enumerate(held)
    ]

    found = of_relations(times=TimeBuckets(0, 999, 1), containers=rows)["containers_over_time"]

    def most(node: str | None, bucket: int) -> int:
        of_node = [(start, end or 1000) for name, start, end in held if node in (name, None)]
        return sum(start < 5 * bucket + 5 and end >= 5 * bucket for start, end in of_node)

    expected = [(node, n, 5 * n, most(node, n)) for node in ("h1:1", "h2:1", None) for n in range(200)]
    assert found == in_order(expected)


def test_a_change_at_the_very_end_of_a_long_run_is_in_the_last_bucket(journal: JournalBuilder) -> None:
    """Divided as doubles, a time beyond 2^53 ns rounds up into a bucket that does not exist."""
    end_s = 20_000_000
    journal.allocate(1, C1, "h1:1", 1)
    journal.complete(2, C1, end_s)

    found = of_journal(journal)["containers_over_time"]

    assert sorted((row[0] or "", row[1]) for row in found) == [
        (node, bucket) for node in ("", "h1:1") for bucket in range(200)
    ]


def test_without_containers_the_table_over_time_is_empty(journal: JournalBuilder) -> None:
    journal.event(1, "AType", "A")

    assert of_journal(journal)["containers_over_time"] == []
