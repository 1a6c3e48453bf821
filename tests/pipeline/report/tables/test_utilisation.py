"""Shares of nodes and queues in use over time: against literal rows. A node has 1024 MB, 8 cores and 2 GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from .at_hand import in_order, of_relations

pytestmark = pytest.mark.long

CONTAINER = (
    *("container", "application", "node", "memory_mb", "vcores_milli", "gpus", "gpu_milli"),
    *("started_at", "ended_at"),
)
THREE = 1000, 100, 3


def containers(*rows: tuple[Any, ...]) -> list[dict[str, Any]]:
    each = [dict(zip(CONTAINER, row, strict=True)) for row in rows]
    return [row | {"started_seq": row["started_at"], "ended_seq": row["ended_at"]} for row in each]


def nodes(*names: str) -> list[dict[str, Any]]:
    return [{"node": name, "memory_mb": 1024, "vcores_milli": 8000, "gpus": 2} for name in names]


def test_a_containers_use_is_weighted_by_its_time() -> None:
    held = containers(
        ("c1", "a", "h1", 512, 8000, 1, 500, 1050, 1250),
        ("c2", "a", "h1", 256, 0, 0, 1000, 1100, 1150),
        ("c3", "a", "h2", 1024, 4000, 2, 1000, 1275, None),
    )

    found = of_relations(times=THREE, containers=held, node_capacity=nodes("h1", "h2"))["node_utilisation"]

    rows = [
        ("h1", 0, 1000, 0.25, 0.5, 0.125),
        ("h1", 1, 1100, 0.625, 1.0, 0.25),
        ("h1", 2, 1200, 0.25, 0.5, 0.125),
        ("h2", 0, 1000, 0.0, 0.0, 0.0),
        ("h2", 1, 1100, 0.0, 0.0, 0.0),
        ("h2", 2, 1200, 0.25, 0.125, 0.25),
        (None, 0, 1000, 0.125, 0.25, 0.0625),
        (None, 1, 1100, 0.3125, 0.5, 0.125),
        (None, 2, 1200, 0.25, 0.3125, 0.1875),
    ]
    assert found == in_order(rows)


def test_a_container_within_one_bucket_counts_in_that_bucket_only() -> None:
    held = containers(("c1", "a", "h1", 1024, 0, 0, 0, 1125, 1150), ("c2", "a", "h1", 1024, 0, 0, 0, 1160, 1160))

    found = of_relations(times=THREE, containers=held, node_capacity=nodes("h1"))["node_utilisation"]

    assert [(bucket, memory) for node, bucket, _, memory, *_ in found if node == "h1"] == [
        (0, 0.0),
        (1, 0.25),
        (2, 0.0),
    ]


def test_a_node_of_unknown_capacity_has_no_shares() -> None:
    held = containers(("c1", "a", "lost", 1024, 1000, 0, 0, 1000, None), ("c2", None, None, 1, 1, 1, 1, 1000, None))
    without_gpus = [{"node": "h1", "memory_mb": 1024, "vcores_milli": 8000, "gpus": 0}]

    found = of_relations(times=(1000, 100, 1), containers=held, node_capacity=without_gpus)["node_utilisation"]

    rows = [("lost", 0, 1000, None, None, None), ("h1", 0, 1000, 0.0, 0.0, None), (None, 0, 1000, 0.0, 0.0, None)]
    assert found == in_order(rows)


def test_queues_share_the_whole_cluster() -> None:
    held = containers(
        ("c1", "app1", "h1", 512, 8000, 0, 0, 1000, 1050),
        ("c2", "app2", "h2", 1024, 4000, 2, 1000, 1000, None),
        ("c3", "app9", "h2", 1024, 0, 0, 0, 1000, None),
    )
    queues = {"app1": "prod", "app2": "dev", "app3": "idle"}

    found = of_relations(
        times=(1000, 100, 1),
        containers=held,
        applications=[{"id": name, "queue": queue} for name, queue in queues.items()],
        node_capacity=nodes("h1", "h2"),
    )["queue_utilisation"]

    rows = [
        ("prod", 0, 1000, 0.125, 0.25, 0.0),
        ("dev", 0, 1000, 0.5, 0.25, 0.5),
        ("idle", 0, 1000, 0.0, 0.0, 0.0),
        (None, 0, 1000, 0.5, 0.0, 0.0),
    ]
    assert found == in_order(rows)


def test_without_containers_and_nodes_the_tables_are_empty() -> None:
    found = of_relations(times=THREE)

    assert (found["node_utilisation"], found["queue_utilisation"]) == ([], [])
