"""Files that break off, and any other content: nothing is raised but WorkloadError, and its place is right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from statemachines.simulation.workload import WorkloadError, read_workload

from ....kit import tries
from .samples import JOB, NODES, PODS

pytestmark = pytest.mark.long

SLS = (
    '{"rack": "r", "nodes": [{"node": "n1"}]}\n'
    '{"job.id": "ä-1", "job.start.ms": 0, "job.queue.name": "q",\n'
    ' "job.tasks": [{"container.host": "/r/n1", "duration.ms": 5}]}\n'
    '{"job.id": "ä-2", "job.start.ms": 1, "job.queue.name": "q", "job.tasks": [{"duration.ms": 5}]}\n'
)


def names(path: Path) -> list[str]:
    return [application.name for application in read_workload(path).applications]


BAD_JSON = [
    ('{"a": 1,\n "b" 2}', 2, 6, "not JSON: Expecting ':' delimiter"),
    (f"{JOB}\n, {JOB}", 2, 1, "not JSON: Expecting value"),
    (f"{JOB}\n}}", 2, 1, "not JSON: Expecting value"),
    (f"// jobs\n{JOB}", None, None, "no known format"),
    (f"{JOB} // a comment", 1, len(JOB) + 2, "not JSON: Expecting value"),
    (f"{JOB}\n{JOB[:-1]}", 2, len(JOB), "the file ends in the middle of a value: Expecting ',' delimiter"),
    (f'{JOB}\n{{"job.id": "abc', 2, 12, "the file ends in the middle of a value: Unterminated string"),
    (f"[{JOB},\n{JOB}", 2, len(JOB) + 1, "expected , or ] after an element of the array"),
    (f"[{JOB}\n{JOB}]", 2, 1, "expected , or ] after an element of the array"),
    (f"[{JOB},\n", 2, 1, "the file ends in the middle of a value"),
    (f"[{JOB},\n]", 2, 1, "not JSON: Expecting value"),
    (f"[{JOB}]\n {JOB}", 2, 2, "expected nothing after the ] that closes the array"),
    ("[]]", 1, 3, "expected nothing after the ] that closes the array"),
    ("\n[", 2, 2, "the file ends in the middle of a value"),
    ("\n" + '{"a":' * 100_000, 2, 1, "objects or arrays are nested too deeply"),
    ("\n" + "[" * 100_000, 2, 2, "objects or arrays are nested too deeply"),
    ('\n{"job.start.ms": ' + "9" * 5000 + "}", 2, 1, "a number here has thousands of digits"),
]


@pytest.mark.parametrize(
    ("text", "row", "column", "problem"), BAD_JSON, ids=[f"{number}" for number in range(len(BAD_JSON))]
)
def test_bad_json_is_reported_with_its_line_and_the_character_in_it(
    tmp_path: Path, text: str, row: int, column: int, problem: str
) -> None:
    path = tmp_path / "jobs.json"
    path.write_text(text)

    with pytest.raises(WorkloadError) as caught:
        read_workload(path)

    assert problem in caught.value.problem
    assert (caught.value.row, caught.value.column) == (row, column)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("array", [False, True])
def test_sls_file_cut_anywhere_gives_an_error_or_the_jobs_before_the_cut(tmp_path: Path, array: bool) -> None:
    data = _as_array(SLS).encode() if array else SLS.encode()
    path = tmp_path / "jobs.json"
    whole = {}

    for length in range(len(data)):
        path.write_bytes(data[:length])
        try:
            whole[length] = names(path)
        except WorkloadError:
            continue

    # A cut text is whole only behind the brace that closes an object and the line break that follows; an array never.
    second = data.index('{"job.id": "ä-2"'.encode())
    ends = {second - 1: ["ä-1"], second: ["ä-1"], len(data) - 1: ["ä-1", "ä-2"]}
    assert whole == ({} if array else ends)


@pytest.mark.parametrize("array", [False, True])
def test_cut_sls_file_keeps_what_came_before_when_rows_are_skipped(tmp_path: Path, array: bool) -> None:
    data = _as_array(SLS).encode() if array else SLS.encode()
    path = tmp_path / "jobs.json"
    start = data.index('{"job.id": "ä-2"'.encode())

    for length in range(start + 1, len(data) - 2):
        path.write_bytes(data[:length])
        if length == data.index("ä-2".encode()) + 1:
            # In the middle of a character: no text at all.
            continue
        workload = read_workload(path, skip_bad_rows=True)
        assert [application.name for application in workload.applications] == ["ä-1"]
        assert len(workload.bad_rows) == 1


def _as_array(objects: str) -> str:
    return "[" + objects.replace("}\n{", "},\n{").rstrip("\n") + "]"


@pytest.mark.parametrize("skip_bad_rows", [False, True])
def test_csv_files_cut_anywhere_give_an_error_or_the_rows_before_the_cut(tmp_path: Path, skip_bad_rows: bool) -> None:
    cuts = [(NODES[:length], PODS) for length in range(len(NODES))]
    cuts += [(NODES, PODS[:length]) for length in range(len(PODS))]

    for nodes, pods in cuts:
        (tmp_path / "nodes.csv").write_text(nodes)
        (tmp_path / "pods.csv").write_text(pods)
        try:
            workload = read_workload(tmp_path, skip_bad_rows=skip_bad_rows)
        except WorkloadError:
            continue
        assert [node.host for node in workload.nodes] in (["n1"], ["n1", "n2"])
        found = [application.name for application in workload.applications]
        assert found == ["pod-1", "pod-2", "pod-3"][: len(found)]


@settings(max_examples=tries(50), deadline=None)
@given(content=st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")))
def test_arbitrary_content_raises_nothing_but_workload_error(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "anything.json"
    path.write_bytes(content)

    with pytest.raises(WorkloadError):
        read_workload(path)


_KEYS = (
    "job.start.ms",
    "job.end.ms",
    "job.queue.name",
    "job.id",
    "job.user",
    "job.count",
    "job.final.state",
    "job.tasks",
    "am.memory-mb",
    "am.vcores",
    "count",
    "duration.ms",
    "container.host",
    "container.start.ms",
    "container.end.ms",
    "container.memory",
    "container.priority",
    "container.type",
    "rack",
    "nodes",
    "node",
    "gpus",
    "num.nodes",
    "num.racks",
)
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-2, 2**54)
    | st.integers(0, 50)
    | st.floats()
    | st.sampled_from(["FINISHED", "FAILED", "KILLED", "/r/n1", "n1", "/", "\n", "\ud800", ""])
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=8),
    max_leaves=20,
)


@settings(max_examples=tries(50), deadline=None)
@given(values=st.lists(_VALUES, max_size=4), skip_bad_rows=st.booleans())
@example(values=[json.loads(JOB) | {"job.count": 2}], skip_bad_rows=False)
def test_any_json_raises_only_workload_errors_and_skipping_keeps_the_good_rows(
    values: list[object], skip_bad_rows: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "objects.json"
    objects = [json.loads(JOB), *values]
    path.write_text("\n".join(json.dumps(each) for each in objects), encoding="ascii")

    errors: tuple[WorkloadError, ...]
    try:
        errors = read_workload(path, skip_bad_rows=skip_bad_rows).bad_rows
        refused = False
    except WorkloadError as error:
        errors = (error,)
        refused = True

    # The first object is good: there always is something to keep.
    assert not (refused and skip_bad_rows)
    assert len(errors) <= len(values)
    assert all(str(error).isprintable() for error in errors)


_CELLS = st.sampled_from(
    ["", "0", "1", "500", "-1", "x", '"', "Pending", "Running", "T4|", "\x07", "9" * 20]
) | st.text(max_size=5)


@settings(max_examples=tries(50), deadline=None)
@given(rows=st.lists(st.lists(_CELLS, max_size=13), max_size=4))
def test_any_csv_rows_are_read_or_skipped_and_raise_nothing_but_workload_error(
    rows: list[list[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "rows"
    path.mkdir(exist_ok=True)
    (path / "nodes.csv").write_text(NODES)
    text = PODS + "\n".join(",".join(row) for row in rows)
    (path / "pods.csv").write_bytes(text.replace("\0", "").encode("utf-8", "replace"))

    workload = read_workload(path, skip_bad_rows=True)

    assert [application.name for application in workload.applications[:1]] == ["pod-1"]
    assert all(bad.row is not None and str(bad).isprintable() for bad in workload.bad_rows)
