"""Files of other formats of Hadoop's simulator, packed files, and keys that change nothing."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from statemachines.simulation.workload import Workload, WorkloadError, read_workload

JOB = {
    "am.type": "mapreduce",
    "job.start.ms": 0,
    "job.queue.name": "q",
    "job.tasks": [{"container.host": "/r/n1", "duration.ms": 5, "container.execution.type": "GUARANTEED"}],
}
RACK = {"rack": "r", "nodes": [{"node": "n1"}]}
RUMEN = {"priority": "NORMAL", "jobID": "job_1", "mapTasks": [], "reduceTasks": [], "submitTime": 1}
RUMEN_TOPOLOGY = {"name": "<root>", "children": [{"name": "rack", "children": [{"name": "n1", "children": None}]}]}
SYN = {"description": "tiny", "num_nodes": 10, "nodes_per_rack": 4, "num_jobs": 10, "rand_seed": 2, "workloads": []}
SYN_YAML = "# Licensed\ndescription: tiny\nnum_nodes: 10\nnodes_per_rack: 4\nworkloads:\n  - job_name: a\n"


def read(folder: Path, *objects: Any, **options: Any) -> Workload:
    (folder / "jobs.json").write_text("\n".join(json.dumps(each) for each in objects))
    return read_workload(folder / "jobs.json", **options)


def changed(**changes: Any) -> dict[str, Any]:
    """The job and its task with further keys; those of the task begin with `container_`, and `_` stands for a dot."""
    dotted = {key.replace("_", "."): value for key, value in changes.items()}
    of_task = {key: value for key, value in dotted.items() if key.startswith("container.")}
    of_job = {key: value for key, value in dotted.items() if key not in of_task}
    return {**JOB, **of_job, "job.tasks": [{**task, **of_task} for task in JOB["job.tasks"]]}  # type: ignore[attr-defined]


# -- packed ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["jobs.json.gz", "jobs.gz", "jobs.json"])
def test_gzip_is_recognised_by_the_content(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(json.dumps(JOB).encode()))

    workload = read_workload(path)

    assert (workload.name, len(workload.applications)) == ("jobs", 1)


def test_a_folder_and_the_node_list_beside_a_pod_list_may_be_packed(tmp_path: Path) -> None:
    nodes = "sn,cpu_milli,memory_mib,gpu,model\nn1,8000,1000,2,T4\n"
    pods = (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
        "pod-1,10,10,1,500,,LS,Running,0,9,5\n"
    )
    for name, text in (("pods.csv.gz", pods), ("nodes.csv.gz", nodes)):
        (tmp_path / name).write_bytes(gzip.compress(text.encode()))

    for path in (tmp_path, tmp_path / "pods.csv.gz"):
        workload = read_workload(path)
        assert (len(workload.nodes), len(workload.applications)) == (1, 1)


@pytest.mark.parametrize("spoil", [lambda data: data[:-9], lambda data: data[:20] + b"xxxx" + data[24:]])
def test_damaged_gzip_is_reported(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    (tmp_path / "jobs.json.gz").write_bytes(spoil(gzip.compress(json.dumps(JOB).encode())))

    with pytest.raises(WorkloadError, match=r"jobs\.json\.gz: cannot be unpacked: damaged gzip: "):
        read_workload(tmp_path / "jobs.json.gz")


@pytest.mark.parametrize(("pack", "name"), [(bz2.compress, "bzip2"), (lzma.compress, "xz")])
def test_other_packers_are_named_in_the_refusal(tmp_path: Path, pack: Callable[[bytes], bytes], name: str) -> None:
    (tmp_path / "jobs").write_bytes(pack(json.dumps(JOB).encode()))

    with pytest.raises(WorkloadError, match=f"packed with {name}; expected plain text or gzip: unpack it first"):
        read_workload(tmp_path / "jobs")


# -- other formats -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        (RUMEN, r"row 1: a job trace of Hadoop's Rumen, which is not read; convert the job trace with rumen2sls\.sh"),
        (RUMEN_TOPOLOGY, r"row 1: a topology of Hadoop's Rumen, which is not read; convert"),
        (SYN, r"row 1: a synthetic workload of Hadoop's SLS \(SYN\), .*; expected SLS JSON, with job\.tasks"),
    ],
    ids=["Rumen", "topology", "SYN"],
)
def test_formats_of_rumen_and_syn_are_named_in_the_refusal(
    tmp_path: Path, values: dict[str, Any], message: str, skip: bool
) -> None:
    with pytest.raises(WorkloadError, match=message):
        read(tmp_path, values, skip_bad_rows=skip)


def test_syn_in_yaml_is_named_too(tmp_path: Path) -> None:
    (tmp_path / "syn.yaml").write_text(SYN_YAML)

    with pytest.raises(WorkloadError, match=r"a synthetic workload of Hadoop's SLS \(SYN\)"):
        read_workload(tmp_path / "syn.yaml")


# -- keys that change nothing ------------------------------------------------------------------------------------------


def test_keys_that_a_replay_does_not_use_are_told_once(tmp_path: Path) -> None:
    delayed = changed(container_request_delay=5, container_execution_type="OPPORTUNISTIC", am_type="stream")
    rack = {"rack": "r", "nodes": [{"node": "n1", "labels": ["gpu"]}, {"node": "n2", "labels": None}]}

    [line] = read(tmp_path, delayed, delayed, rack).remarks

    assert line.startswith("keys that a replay does not use: ")
    assert set(line.partition(": ")[2].split(", ")) == {
        "am.type (of 2 jobs)",
        "container.request.delay (of 2 tasks)",
        "container.execution.type (of 2 tasks)",
        "labels (of 1 node)",
    }


def test_misspelt_keys_are_told_once_with_a_suggestion(tmp_path: Path) -> None:
    bad = changed(job_usr="ann", container_memroy=5, x="\x1b[2J")

    found = read(tmp_path, bad, bad, RACK | {"rak": "x"}).remarks

    assert set(found) == {
        'unknown key "job.usr" of 2 jobs is ignored; did you mean job.user?',
        'unknown key "container.memroy" of 2 tasks is ignored; did you mean container.memory?',
        'unknown key "x" of 2 jobs is ignored',
        'unknown key "rak" of 1 rack is ignored; did you mean rack?',
    }


def test_many_unknown_keys_are_told_in_part(tmp_path: Path) -> None:
    found = read(tmp_path, JOB | {f"key{number}": number for number in range(25)}).remarks

    assert len(found) == 11
    assert found[-1] == "and 15 more unknown keys"


def test_a_missing_key_has_the_misspelt_one_in_its_message(tmp_path: Path) -> None:
    values = {key: value for key, value in JOB.items() if key != "job.queue.name"} | {"job.que.name": "q"}

    with pytest.raises(
        WorkloadError, match=r'column job\.queue\.name: found nothing, .*; is "job\.que\.name" meant to be it\?'
    ):
        read(tmp_path, values)


def test_what_sls_s_own_samples_have_is_not_worth_a_remark(tmp_path: Path) -> None:
    assert read(tmp_path, JOB, RACK).remarks == ()
