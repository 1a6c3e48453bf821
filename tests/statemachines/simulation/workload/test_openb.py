"""Workloads in the format of the openb trace."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from statemachines.resourcemanager import Resource
from statemachines.simulation.workload import (
    NodeSpec,
    Outcome,
    Workload,
    WorkloadDefaults,
    WorkloadError,
    read_workload,
)

REAL = Path(__file__).resolve().parents[4].parent / "shared" / "data" / "openb"
NODES = ["sn,cpu_milli,memory_mib,gpu,model", "node-0,32000,262144,0,", "node-1,96000,393216,8,G2"]
POD_COLUMNS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
)
POD_ROW = "pod,12000,16384,1,460,,LS,Running,100,250,110"


def pod(**changes: str) -> str:
    """POD_ROW with other cells."""
    cells = dict(zip(POD_COLUMNS.split(","), POD_ROW.split(","), strict=True))
    return ",".join((cells | changes).values())


def read(folder: Path, *pods: str, nodes: list[str] = NODES, **options: Any) -> Workload:
    (folder / "nodes.csv").write_text("\n".join(nodes) + "\n", encoding="utf-8")
    (folder / "pods.csv").write_text("\n".join([POD_COLUMNS, *pods]) + "\n", encoding="utf-8")
    return read_workload(folder, **options)


@pytest.mark.parametrize(
    ("phase", "outcome"),
    [("Running", Outcome.FINISHED), ("Succeeded", Outcome.FINISHED), ("Failed", Outcome.FAILED)],
)
def test_pod_becomes_an_application_whose_master_runs_as_long_as_it_did(
    tmp_path: Path, phase: str, outcome: Outcome
) -> None:
    workload = read(tmp_path, pod(pod_phase=phase))

    (application,) = workload.applications
    assert (application.name, application.user, application.queue) == ("pod", "openb", "LS")
    assert (application.submit_ms, application.am_duration_ms, application.kill_ms) == (100_000, 140_000, None)
    assert (application.outcome, application.max_attempts, application.containers) == (outcome, 1, ())
    assert application.am_resource == Resource(16384, 12000, gpus=1, gpu_milli=460)


PENDING = {"pod_phase": "Pending", "scheduled_time": ""}
READ: dict[str, tuple[list[str], str, list[Any]]] = {  # the pods, and what is seen of each
    "a pod without GPUs has no share of one": (
        [pod(num_gpu="0", gpu_milli="0")], "am_resource", [Resource(16384, 12000, gpus=0, gpu_milli=1000)],
    ),
    "the GPU spec lists node models": ([pod(gpu_spec="V100M16|V100M32")], "gpu_models", [{"V100M16", "V100M32"}]),
    "pods are sorted by creation and otherwise keep their order": (
        [pod(name=name, creation_time=time) for name, time in (("a", "109"), ("b", "101"), ("c", "109"), ("d", "101"))],
        "name",
        ["b", "d", "a", "c"],
    ),
    "quoted cells and carriage returns are read": (
        [pod(name='"a,b"', qos='"LS"') + "\r"], "name queue", [("a,b", "LS")],
    ),
    **{
        f"a pending pod that was deleted at {deleted} is killed then": (
            [pod(deletion_time=deleted, **PENDING)], "am_duration_ms kill_ms max_attempts", [(None, kill_ms, 1)],
        )
        for deleted, kill_ms in (("250", 250_000), ("100", 100_000), ("90", 100_000))
    },
}  # fmt: skip


@pytest.mark.parametrize(("pods", "what", "seen"), READ.values(), ids=READ)
def test_read(tmp_path: Path, pods: list[str], what: str, seen: list[Any]) -> None:
    assert [attrgetter(*what.split())(each) for each in read(tmp_path, *pods).applications] == seen


def test_nodes_have_gpus_models_and_racks_of_the_given_size(tmp_path: Path) -> None:
    """The columns may come in any order, and more of them do no harm."""
    nodes = ["model,extra,gpu,memory_mib,cpu_milli,sn", ",?,0,262144,32000,node-0", "G2,?,8,393216,96000,node-1"]
    nodes.append(",?,0,1,1000,node-2")

    workload = read(tmp_path, pod(), nodes=nodes, defaults=WorkloadDefaults(nodes_per_rack=2))

    assert workload.nodes == (
        NodeSpec("node-0", Resource(262144, 32000), "/rack0"),
        NodeSpec("node-1", Resource(393216, 96000, gpus=8), "/rack0", gpu_model="G2"),
        NodeSpec("node-2", Resource(1, 1000), "/rack1"),
    )


def test_blank_lines_are_passed_over_but_counted(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match='found "-1"') as caught:
        read(tmp_path, "", pod(), "  ", pod(name="b", cpu_milli="-1"))

    assert caught.value.row == 5


BAD_CELLS = [
    ({"name": ""}, "name", "found nothing, expected text"),
    ({"name": "a\tb"}, "name", r'found "a\\tb", expected text without control characters'),
    ({"name": "first"}, "name", 'found "first" again'),
    ({"cpu_milli": "-1"}, "cpu_milli", 'found "-1", expected a whole number from 0'),
    ({"cpu_milli": "1.5"}, "cpu_milli", r'found "1\.5"'),
    ({"cpu_milli": "1e3"}, "cpu_milli", 'found "1e3"'),
    ({"cpu_milli": "1_000"}, "cpu_milli", 'found "1_000"'),
    ({"cpu_milli": "+1"}, "cpu_milli", r'found "\+1"'),
    ({"cpu_milli": " 1"}, "cpu_milli", 'found " 1"'),
    ({"cpu_milli": "٣"}, "cpu_milli", r'found "\\u0663"'),
    ({"cpu_milli": "NaN"}, "cpu_milli", 'found "NaN"'),
    ({"cpu_milli": "true"}, "cpu_milli", 'found "true"'),
    ({"memory_mib": ""}, "memory_mib", "found nothing, expected a whole number"),
    ({"memory_mib": str(2**53 + 1)}, "memory_mib", "found .*, expected a whole number from 0 to 9007199254740992"),
    ({"memory_mib": "9" * 5000}, "memory_mib", r'found "9+\.\.\., expected'),
    ({"num_gpu": "-2"}, "num_gpu", 'found "-2"'),
    ({"gpu_milli": "0"}, "gpu_milli", 'found "0", expected a whole number from 1 to 1000'),
    ({"gpu_milli": "1001"}, "gpu_milli", 'found "1001", expected a whole number from 1 to 1000'),
    ({"gpu_milli": "1001", "num_gpu": "0"}, "gpu_milli", 'found "1001", expected a whole number from 0 to 1000'),
    ({"gpu_spec": "T4||P100"}, "gpu_spec", r'found "T4\|\|P100", expected node models joined by \|'),
    ({"gpu_spec": "T4\x07"}, "gpu_spec", r'found "T4\\u0007"'),
    ({"qos": ""}, "qos", "found nothing, expected text"),
    ({"pod_phase": "Unknown"}, "pod_phase", 'found "Unknown", expected one of Running, Succeeded, Failed, Pending'),
    ({"pod_phase": "running"}, "pod_phase", 'found "running"'),
    ({"pod_phase": ""}, "pod_phase", "found nothing, expected one of"),
    ({"creation_time": "x"}, "creation_time", 'found "x"'),
    ({"creation_time": "1700000000000"}, "creation_time", 'found "1700000000000", expected a whole number from 0 to'),
    ({"deletion_time": ""}, "deletion_time", "found nothing"),
    ({"deletion_time": "109"}, "deletion_time", "found 109, which is before scheduled_time; expected 110 or more"),
    ({"scheduled_time": ""}, "scheduled_time", "found nothing"),
    ({"scheduled_time": "99"}, "scheduled_time", "found 99, which is before creation_time; expected 100 or more"),
    ({"pod_phase": "Pending"}, "scheduled_time", 'found "110", expected nothing'),
]


@pytest.mark.parametrize(("change", "column", "problem"), BAD_CELLS)
def test_bad_cell_of_a_pod_is_reported_with_its_line_and_column(
    tmp_path: Path, change: dict[str, str], column: str, problem: str
) -> None:
    with pytest.raises(WorkloadError, match=problem) as caught:
        read(tmp_path, pod(name="first"), pod(**change))

    assert (caught.value.path, caught.value.row, caught.value.column) == (tmp_path / "pods.csv", 3, column)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("row", "column", "problem"),
    [
        ("node-1,1,1,0,", "sn", 'found "node-1" again'),
        (",1,1,0,", "sn", "found nothing"),
        ("n,-1,1,0,", "cpu_milli", 'found "-1"'),
        ("n,1,one,0,", "memory_mib", 'found "one"'),
        ("n,1,1,0.5,", "gpu", 'found "0.5"'),
        ("n,1,1,0,T4\x01", "model", "expected text without control characters"),
        ("n,1,1", "gpu", "found 3 cells, expected 5"),
        ("n,1,1,0,,", "model", "found 6 cells, expected 5"),
    ],
)
def test_bad_cell_of_a_node_is_reported_with_its_line_and_column(
    tmp_path: Path, row: str, column: str, problem: str
) -> None:
    with pytest.raises(WorkloadError, match=problem) as caught:
        read(tmp_path, pod(), nodes=[*NODES, row])

    assert (caught.value.path, caught.value.row, caught.value.column) == (tmp_path / "nodes.csv", 4, column)


@pytest.mark.parametrize(("row", "column"), [("pod", "cpu_milli"), (",".join(["1"] * 10), "scheduled_time")])
def test_row_with_too_few_cells_is_reported_with_the_first_column_that_has_none(
    tmp_path: Path, row: str, column: str
) -> None:
    with pytest.raises(WorkloadError, match=r"found \d+ cells, expected 11") as caught:
        read(tmp_path, pod(), row)

    assert (caught.value.row, caught.value.column) == (3, column)


@pytest.mark.parametrize("row", ['"never closed,1,1', '"a"b,1,1', "x" * 200_000])
def test_row_that_is_not_csv_is_reported(tmp_path: Path, row: str) -> None:
    with pytest.raises(WorkloadError, match="not CSV: ") as caught:
        read(tmp_path, row, pod())

    assert (caught.value.row, caught.value.column) == (2, None)


@pytest.mark.parametrize(
    ("header", "column", "times"),
    [("sn,cpu_milli,memory_mib,gpu", "model", 0), ("sn,sn,cpu_milli,memory_mib,gpu,model", "sn", 2)],
)
def test_header_has_each_column_once(tmp_path: Path, header: str, column: str, times: int) -> None:
    with pytest.raises(WorkloadError, match=f"found this column {times} times in the header") as caught:
        read(tmp_path, pod(), nodes=["", header, "n,1,1,0,"], skip_bad_rows=True)

    assert (caught.value.row, caught.value.column) == (2, column)


@pytest.mark.parametrize("rows", [[], ["n,-1,1,0,"]])
def test_lists_have_nodes_and_pods(tmp_path: Path, rows: list[str]) -> None:
    with pytest.raises(WorkloadError, match="no pods in it"):
        read(tmp_path)
    with pytest.raises(WorkloadError, match="no nodes in it") as caught:
        read(tmp_path, pod(), nodes=[NODES[0], *rows], skip_bad_rows=True)

    assert caught.value.path == tmp_path / "nodes.csv"


def test_skipped_rows_are_left_out_and_listed(tmp_path: Path) -> None:
    pods = [pod(name="a"), "short", pod(name="b", gpu_milli="0"), '"', pod(name="a"), pod(name="c")]

    workload = read(tmp_path, *pods, nodes=[*NODES, "node-0,1,1,0,"], skip_bad_rows=True)

    assert [application.name for application in workload.applications] == ["a", "c"]
    assert [node.host for node in workload.nodes] == ["node-0", "node-1"]
    assert [(bad.path.name, bad.row, bad.column) for bad in workload.bad_rows] == [
        ("nodes.csv", 4, "sn"),
        ("pods.csv", 3, "cpu_milli"),
        ("pods.csv", 4, "gpu_milli"),
        ("pods.csv", 5, None),
        ("pods.csv", 6, "name"),
    ]


@pytest.mark.skipif(not REAL.exists(), reason=f"{REAL.name} is not here: real data is not part of the project")
@pytest.mark.parametrize("path", [REAL, REAL / "openb_pod_list_default.csv"])
def test_real_trace_is_read(path: Path) -> None:
    workload = read_workload(path)

    applications = workload.applications
    assert (len(applications), workload.container_count, len(workload.nodes)) == (8152, 8152, 1523)
    assert sum(application.am_duration_ms is None for application in applications) == 897
    assert sum(application.outcome is Outcome.FAILED for application in applications) == 1870
    assert sum(node.capacity.gpus for node in workload.nodes) == 6212
    assert workload.bad_rows == ()
