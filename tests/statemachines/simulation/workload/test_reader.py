"""Which files of a path are read, and how their formats are recognised."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatcher import ConfigError
from statemachines.simulation.workload import WorkloadDefaults, WorkloadError, read_workload

from .samples import JOB, NODES, PODS

SLS = f'{JOB}\n{{"num.nodes": 3}}\n{JOB}\n'


def folder_of(folder: Path, **files: str) -> Path:
    """The folder with these files; `_` stands for the dot of a name."""
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text, encoding="utf-8")
    return folder


def names(path: Path) -> list[str]:
    return [application.name for application in read_workload(path).applications]


@pytest.mark.parametrize("name", ["jobs.json", "jobs.csv", "jobs", "jobs.txt"])
def test_content_determines_the_format_of_a_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("\n \n" + SLS, encoding="utf-8")

    workload = read_workload(str(path))

    assert workload.name == "jobs"
    assert len(workload.applications) == 2


def test_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    for name, text in (("jobs.json", SLS), ("pods.csv", PODS), ("nodes.csv", NODES)):
        (tmp_path / name).write_text(text, encoding="utf-8-sig")

    jobs = names(tmp_path / "jobs.json")
    pods = names(tmp_path / "pods.csv")

    assert (len(jobs), len(pods)) == (2, 3)


def test_files_of_a_folder_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    second = JOB.replace('"job.start.ms"', '"job.id": "second", "job.start.ms"')
    folder_of(tmp_path, b_JSON=second, a_json=JOB, c_csv='{"num.nodes": 3}')

    workload = read_workload(tmp_path)

    assert [application.name for application in workload.applications] == ["0", "second"]
    assert workload.name == tmp_path.name
    assert len(workload.nodes) == 3


def test_other_files_and_hidden_ones_and_folders_are_ignored(tmp_path: Path) -> None:
    folder_of(tmp_path, jobs_json=JOB, README_md="not read", _hidden_json="not read")
    (tmp_path / "folder.json").mkdir()

    found = names(tmp_path)

    assert found == ["0"]


def test_duplicates_are_found_across_files(tmp_path: Path) -> None:
    folder_of(tmp_path, nodes_csv=NODES, pods1_csv=PODS, pods2_csv=PODS)

    with pytest.raises(WorkloadError, match='found "pod-1" again') as caught:
        read_workload(tmp_path)

    assert (caught.value.path.name, caught.value.row, caught.value.column) == ("pods2.csv", 2, "name")


@pytest.mark.parametrize("bad", ["a,b\n1,2\n", "hello", "1", '"job.tasks"', '"\n', "sn;cpu_milli;memory_mib;gpu;model"])
@pytest.mark.parametrize("name", ["bad.csv", "bad.json"])
def test_unknown_format_names_the_file_and_the_expected_formats(tmp_path: Path, bad: str, name: str) -> None:
    folder_of(tmp_path, jobs_json=SLS)
    (tmp_path / name).write_text(bad)

    with pytest.raises(WorkloadError, match=r"no known format, it starts with .*; expected Hadoop SLS .*sn,.*name,"):
        read_workload(tmp_path, skip_bad_rows=True)


def test_node_list_is_found_beside_a_pod_list(tmp_path: Path) -> None:
    folder_of(tmp_path, pods_csv=PODS, a_csv="x,y", nodes_csv="\n" + NODES, jobs_json=SLS, _n_csv=NODES)
    (tmp_path / "binary.csv").write_bytes(b"\xff\0")
    (tmp_path / "empty.csv").write_bytes(b"")

    workload = read_workload(tmp_path / "pods.csv")

    assert [node.host for node in workload.nodes] == ["n1", "n2"]


def test_unreadable_file_and_folder_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The permission is refused by hand: for root, file modes would not."""
    folder_of(tmp_path, jobs_json=SLS)

    def refuse(self: Path) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    monkeypatch.setattr(Path, "iterdir", refuse)

    for path in (tmp_path, tmp_path / "jobs.json"):
        with pytest.raises(WorkloadError, match="cannot be read: Permission denied"):
            read_workload(path)


@pytest.mark.parametrize(
    ("content", "row", "problem"),
    [
        (b"{}\n{}\0", 2, "binary"),
        ("{}".encode("utf-16"), 1, "binary"),
        (b"\n\n\xe4", 3, "found byte 0xe4, expected text in UTF-8"),
        (b"\xef\xbb\xbf\n\xe4", 2, "found byte 0xe4"),
    ],
)
def test_file_that_is_not_utf_8_is_reported_with_its_row(
    tmp_path: Path, content: bytes, row: int, problem: str
) -> None:
    path = tmp_path / "jobs.json"
    path.write_bytes(content)

    with pytest.raises(WorkloadError, match=problem) as caught:
        read_workload(path)

    assert caught.value.row == row


BOTH = {"pods_csv": PODS, "nodes_csv": NODES}
REFUSED: dict[str, tuple[dict[str, str], str, str]] = {  # the files, the path in their folder, and why
    "several formats": (
        {"jobs_json": SLS, **BOTH},
        "",
        "jobs.json is SLS JSON, nodes.csv is an openb node list, pods.csv is an",
    ),
    "pods without nodes": (
        {"pods_csv": PODS},
        "pods.csv",
        "the folder that has both, or put the node list next to it, .*sn,cpu",
    ),
    "pods without nodes in a folder": (
        {"pods_csv": PODS},
        "",
        "pods, but no node list; put it in the folder, .*sn,cpu",
    ),
    "two node lists": (
        {"pods_csv": PODS, "nodes1_csv": NODES, "nodes2_csv": NODES},
        "pods.csv",
        r"several node lists next to this pod list: nodes1.csv, nodes2.csv",
    ),
    "nodes alone": (BOTH, "nodes.csv", "a node list without pods"),
    "no files": ({}, "", r"no \*\.csv or \*\.json files in this folder"),
    "no jobs": ({"jobs_json": "[ ]"}, "", "no jobs in it"),
    **{
        f"an empty file {text!a}": ({"jobs_json": text}, "jobs.json", "empty; expected Hadoop SLS")
        for text in ("", " \n\t\r\n", "\ufeff", "\ufeff\n")
    },
    **{
        f"a path that cannot be read, {name[:9]!a}": ({}, name, "cannot be read: ")
        for name in ("missing.json", "missing/jobs.json", "\0", "x" * 300)
    },
}


@pytest.mark.parametrize(("files", "name", "why"), REFUSED.values(), ids=REFUSED)
def test_refused(tmp_path: Path, files: dict[str, str], name: str, why: str) -> None:
    folder_of(tmp_path, **files)

    with pytest.raises(WorkloadError, match=why):
        read_workload(tmp_path / name)


# -- the sizes that a file leaves out ----------------------------------------------------------------------------------


def test_defaults_equal_the_hadoop_simulators() -> None:
    assert WorkloadDefaults().model_dump() == {
        "node_memory_mb": 10240,
        "node_vcores": 10,
        "node_gpus": 0,
        "am_memory_mb": 1024,
        "am_vcores": 1,
        "container_memory_mb": 1024,
        "container_vcores": 1,
        "nodes_per_rack": 40,
    }


@pytest.mark.parametrize("name", WorkloadDefaults.model_fields)
@pytest.mark.parametrize("value", [-1, 1.5, True, "8", 2**53 + 1])
def test_defaults_out_of_bounds_are_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        WorkloadDefaults.model_validate({name: value})
