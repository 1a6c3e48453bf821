"""The rows that the page takes from the report's tables: the first ones in their order, out of Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.report.tables.shown import row_count, rows_of_page, total

pytestmark = pytest.mark.long


def write(folder: Path, name: str, *files: list[dict[str, Any]]) -> None:
    """A table as Spark leaves one: some files, and a mark that it is whole."""
    (folder / name).mkdir(parents=True)
    for number, rows in enumerate(files):
        pq.write_table(pa.Table.from_pylist(rows), folder / name / f"part-{number:05}.parquet")
    (folder / name / "_SUCCESS").write_text("")


def application(number: int, wait_s: float | None) -> dict[str, Any]:
    placed_at = None if wait_s is None else number
    return {"id": f"app_{number:04}", "submitted_at": number, "first_container_at": placed_at, "wait_s": wait_s}


def test_missing_tables_have_no_rows(tmp_path: Path) -> None:
    rows = rows_of_page(tmp_path)

    assert rows["applications"] == []
    assert rows["node_utilisation"] == []
    assert {name for name, found in rows.items() if found} == set()


def test_applications_that_still_wait_come_first_then_the_longest_waits(tmp_path: Path) -> None:
    write(
        tmp_path,
        "applications",
        [application(1, 0.5), application(2, None)],
        [application(3, 70.0), application(4, 0.5), application(5, None)],
    )

    assert [row["id"] for row in rows_of_page(tmp_path)["applications"]] == [
        "app_0002",
        "app_0005",
        "app_0003",
        "app_0001",
        "app_0004",
    ]


def test_a_long_table_is_cut_one_row_after_the_last_one_shown(tmp_path: Path) -> None:
    files = [[application(10 * file + row, float(file)) for row in range(10)] for file in range(40)]
    write(tmp_path, "applications", *files)

    rows = rows_of_page(tmp_path)["applications"]

    assert len(rows) == 101
    assert [row["id"] for row in rows[:2]] == ["app_0390", "app_0391"]


def test_headlines_have_the_rows_of_every_queue_and_event_type(tmp_path: Path) -> None:
    """Of more than a hundred queues, the longest wait was not shown if it was in a queue with few applications."""
    write(tmp_path, "waiting_by_queue", [{"queue": f"q{number:03}", "applications": 1} for number in range(300)])
    types = [{"event_class": "A", "event_type": f"T{number}", "handling_total_ms": 1.0} for number in range(300)]
    write(tmp_path, "events_by_type", types)

    rows = rows_of_page(tmp_path)

    assert (len(rows["waiting_by_queue"]), len(rows["events_by_type"])) == (300, 300)


def test_nodes_come_oversubscribed_first_then_by_their_fullest_resource(tmp_path: Path) -> None:
    def node(name: str, memory: tuple[int | None, int], gpus: tuple[int, int], over: bool = False) -> dict[str, Any]:
        return {
            "node": name,
            "memory_mb": memory[0],
            "peak_memory_mb": memory[1],
            "vcores_milli": 1000,
            "peak_vcores_milli": 100,
            "gpu_milli": gpus[0],
            "peak_gpu_milli": gpus[1],
            "oversubscribed": over,
        }

    nodes = [
        node("half", (100, 50), (0, 0)),
        node("unknown", (None, 50), (0, 0)),
        node("of gpus", (100, 10), (1000, 900)),
        node("over", (100, 20), (0, 0), True),
    ]
    write(tmp_path, "node_peaks", nodes)

    assert [row["node"] for row in rows_of_page(tmp_path)["node_peaks"]] == ["over", "of gpus", "half", "unknown"]
    assert (row_count(tmp_path / "node_peaks"), total(tmp_path / "node_peaks", "oversubscribed")) == (4, 1)


def test_the_cluster_comes_first_then_the_nodes_busiest_first(tmp_path: Path) -> None:
    def share(node: str | None, bucket: int, memory: float | None, gpu: float | None) -> dict[str, Any]:
        return {"node": node, "bucket": bucket, "memory_share": memory, "vcores_share": 0.1, "gpu_share": gpu}

    write(
        tmp_path,
        "node_utilisation",
        [share("a", 1, 0.2, None), share(None, 1, 0.5, 0.5), share("b", 1, 0.0, 0.9)],
        [share("b", 0, 0.0, 0.0), share("a", 0, 0.3, None), share(None, 0, 0.5, 0.5)],
    )

    rows = rows_of_page(tmp_path)["node_utilisation"]

    found = [(row["node"], row["bucket"]) for row in rows]
    assert found == [(None, 0), (None, 1), ("b", 0), ("b", 1), ("a", 0), ("a", 1)]


def test_times_are_kept_for_the_costliest_event_types(tmp_path: Path) -> None:
    types = [
        {"event_class": "A", "event_type": f"T{number}", "handling_total_ms": float(number)} for number in range(1, 8)
    ]
    write(tmp_path, "events_by_type", types)
    write(tmp_path, "event_times", [{"bucket": 0, "event_class": "A", "event_type": f"T{n}"} for n in range(1, 8)])

    found = [row["event_type"] for row in rows_of_page(tmp_path)["event_times"]]

    assert sorted(found) == ["T3", "T4", "T5", "T6", "T7"]


def test_without_chosen_names_no_rows_are_taken(tmp_path: Path) -> None:
    write(tmp_path, "event_times", [{"bucket": 0, "event_class": "A", "event_type": "T"}])
    write(tmp_path, "application_timeline", [{"application": "app", "seq": 1, "from_at": 0}])

    rows = rows_of_page(tmp_path)

    assert (rows["event_times"], rows["application_timeline"]) == ([], [])


def test_a_table_without_rows_counts_nothing(tmp_path: Path) -> None:
    (tmp_path / "unknown_transitions").mkdir()
    schema = pa.schema([("count", pa.int64())])
    pq.write_table(schema.empty_table(), tmp_path / "unknown_transitions" / "part-00000.parquet")

    assert (row_count(tmp_path / "unknown_transitions"), total(tmp_path / "unknown_transitions", "count")) == (0, 0)
    assert (row_count(tmp_path / "containers"), total(tmp_path / "containers", "count")) == (0, 0)
