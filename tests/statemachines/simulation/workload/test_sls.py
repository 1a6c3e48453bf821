"""Workloads in the format of Hadoop's Scheduler Load Simulator."""

from __future__ import annotations

import json
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

REAL = Path(__file__).resolve().parents[4].parent / "shared" / "data" / "sls" / "inputsls.json"
TOPOLOGY = {"num.nodes": 2}


def task(**changes: Any) -> dict[str, Any]:
    """A task; in `changes`, `_` stands for the dots of a key and `__` for its dash."""
    return {"container.start.ms": 10, "container.end.ms": 30} | _dotted(changes)


def job(**changes: Any) -> dict[str, Any]:
    return {"job.start.ms": 5, "job.queue.name": "etl", "job.tasks": [task()]} | _dotted(changes)


def _dotted(changes: dict[str, Any]) -> dict[str, Any]:
    return {key.replace("__", "-").replace("_", "."): value for key, value in changes.items()}


def read(folder: Path, *objects: object, **options: Any) -> Workload:
    """The workload of objects that stand one in a line."""
    return read_text(folder, "\n".join(json.dumps(each) for each in objects), **options)


def read_text(folder: Path, text: str, **options: Any) -> Workload:
    path = folder / "jobs.json"
    path.write_text(text, encoding="utf-8")
    return read_workload(path, **options)


def test_job_becomes_an_application_with_absolute_container_times(tmp_path: Path) -> None:
    tasks = [task(container_host="/default-rack/node1", container_priority=5, container_type="reduce"), task()]

    workload = read(tmp_path, job(job_id="job_1", job_user="ana", job_tasks=tasks))

    (application,) = workload.applications
    assert (application.name, application.user, application.queue) == ("job_1", "ana", "etl")
    assert (application.submit_ms, application.am_duration_ms, application.kill_ms) == (5, 0, None)
    assert (application.outcome, application.max_attempts) == (Outcome.FINISHED, None)
    first, second = application.containers
    assert (first.host, first.start_ms, first.duration_ms, first.priority, first.kind) == ("node1", 10, 20, 5, "reduce")
    assert (second.host, second.priority, second.kind) == (None, 20, "map")
    assert (workload.name, workload.container_count) == ("jobs", 3), "with that of the master"


def test_missing_sizes_come_from_the_defaults(tmp_path: Path) -> None:
    defaults = WorkloadDefaults(am_memory_mb=11, am_vcores=2, container_memory_mb=33, container_vcores=4, node_gpus=1)

    workload = read(tmp_path, job(job_tasks=[task(container_host="/r/n")]), defaults=defaults)

    application = workload.applications[0]
    assert application.am_resource == Resource(11, 2000)
    assert application.containers[0].resource == Resource(33, 4000)
    assert workload.nodes == (NodeSpec("n", Resource(10240, 10000, gpus=1), "/r"),)


def sized(memory: str) -> dict[str, Any]:
    tasks = [task() | {f"container.{memory}": 2048, "container.vcores": 3}]
    return job(job_tasks=tasks) | {f"am.{memory}": 512, "am.vcores": 2}


ODD = task(container_host=None, container_priority=None, container_execution_type="GUARANTEED", color=float("nan"))
ORDER = [job(job_id=name, job_start_ms=start) for name, start in (("a", 9), ("b", 1), ("c", 9), ("d", 1))]
READ: dict[str, tuple[list[dict[str, Any]], str, list[Any]]] = {  # the jobs, and what is seen of each, or its tasks
    **{
        f"a given size wins over the default: {key}": ([sized(key)], "am_resource", [Resource(512, 2000)])
        for key in ("memory-mb", "memory")
    },
    **{
        f"a given size of a task wins over the default: {key}": ([sized(key)], "each.resource", [Resource(2048, 3000)])
        for key in ("memory-mb", "memory")
    },
    "the count of a task repeats its container": (
        [job(job_tasks=[task(count=3), task(container_priority=1)])], "each.priority", [20, 20, 20, 1],
    ),
    "the count of a job makes copies with suffixes": ([job(job_id="a", job_count=3)], "name", ["a-1", "a-2", "a-3"]),
    "jobs without an id are counted from zero": ([job(), job(job_id=7), job(job_id=None)], "name", ["0", "7", "2"]),
    "jobs are sorted by submission and otherwise keep their order": (ORDER, "name", ["b", "d", "a", "c"]),
    **{
        f"a duration stands for start and end: {key}": (
            [job(job_tasks=[{key: 70}])], "each.start_ms each.duration_ms", [(0, 70)],
        )
        for key in ("duration.ms", "container.duration.ms")
    },
    "a duration wins over the end": (
        [job(job_tasks=[task(duration_ms=70)])], "each.start_ms each.duration_ms", [(10, 70)],
    ),
    "null is the same as no key, and unknown keys are ignored": (
        [job(job_id=None, job_end_ms=None, am_type="x", job_tasks=[ODD])], "each.priority", [20],
    ),
    "a failed job runs its containers and then fails": (
        [job(job_final_state="FAILED")], "outcome am_duration_ms", [(Outcome.FAILED, 0)],
    ),
    "a killed job lasts until it is killed": (
        [job(job_final_state="KILLED", job_end_ms=99)], "outcome am_duration_ms kill_ms",
        [(Outcome.FINISHED, None, 99)],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("jobs", "what", "seen"), READ.values(), ids=READ)
def test_read(tmp_path: Path, jobs: list[dict[str, Any]], what: str, seen: list[Any]) -> None:
    applications: Any = read(tmp_path, TOPOLOGY, *jobs).applications

    of = [task for each in applications for task in each.containers] if "each." in what else applications
    assert [attrgetter(*what.replace("each.", "").split())(each) for each in of] == seen


@pytest.mark.parametrize(
    "text", [json.dumps([TOPOLOGY, job(), job()], indent=2), json.dumps(TOPOLOGY) + json.dumps(job()) * 2]
)
def test_objects_may_be_in_an_array_or_follow_each_other_without_a_blank(tmp_path: Path, text: str) -> None:
    assert len(read_text(tmp_path, text).applications) == 2


BAD_VALUES = [
    ({"job.start.ms": -1}, "job.start.ms", "found -1, expected a whole number from 0"),
    ({"job.start.ms": None}, "job.start.ms", "found nothing, expected a whole number"),
    ({"job.start.ms": True}, "job.start.ms", "found true"),
    ({"job.start.ms": 1.5}, "job.start.ms", r"found 1\.5"),
    ({"job.start.ms": 3.0}, "job.start.ms", r"found 3\.0"),
    ({"job.start.ms": float("nan")}, "job.start.ms", "found NaN"),
    ({"job.start.ms": float("inf")}, "job.start.ms", "found Infinity"),
    ({"job.start.ms": "7"}, "job.start.ms", 'found "7"'),
    ({"job.start.ms": [7]}, "job.start.ms", "found a list"),
    ({"job.start.ms": {}}, "job.start.ms", "found an object"),
    ({"job.start.ms": 2**53 + 1}, "job.start.ms", "found 9007199254740993"),
    ({"job.start.ms": 10**4000}, "job.start.ms", r"found 1000+\.\.\., expected"),
    ({"job.start.ms": 1_700_000_000_000_000}, "job.start.ms", "found 1700000000000000"),
    ({"job.end.ms": 4}, "job.end.ms", "found 4, which is before job.start.ms; expected 5 or more"),
    ({"job.end.ms": -4}, "job.end.ms", "found -4"),
    ({"job.queue.name": None}, "job.queue.name", "found nothing, expected text"),
    ({"job.queue.name": ""}, "job.queue.name", "found nothing, expected text"),
    ({"job.queue.name": ["etl"]}, "job.queue.name", "found a list"),
    ({"job.queue.name": "a\nb"}, "job.queue.name", r'found "a\\nb", expected text without control characters'),
    ({"job.user": "\ud800"}, "job.user", r'found "\\ud800"'),
    ({"job.user": False}, "job.user", "found false"),
    ({"job.id": 1.5}, "job.id", r"found 1\.5"),
    ({"job.count": 0}, "job.count", "found 0, expected a whole number from 1"),
    ({"job.count": 9_999_999}, "job.tasks", "the containers come to 20000000, expected at most 10000000"),
    ({"job.final.state": "DONE"}, "job.final.state", 'found "DONE", expected one of FINISHED, FAILED, KILLED'),
    ({"job.final.state": "KILLED"}, "job.end.ms", "found nothing, expected the time"),
    ({"am.memory-mb": -1}, "am.memory-mb", "found -1"),
    ({"am.memory": -1}, "am.memory", "found -1"),
    ({"am.vcores": 2**53}, "am.vcores", "found 9007199254740992"),
    ({"job.tasks": None}, "job.tasks", "found nothing, expected a list"),
    ({"job.tasks": []}, "job.tasks", "found an empty list, expected a list of one object or more"),
    ({"job.tasks": {}}, "job.tasks", "found an object, expected a list"),
]


@pytest.mark.parametrize(("change", "column", "problem"), BAD_VALUES)
def test_bad_value_of_a_job_is_reported_with_the_job_s_line_and_its_key(
    tmp_path: Path, change: dict[str, Any], column: str, problem: str
) -> None:
    with pytest.raises(WorkloadError, match=problem) as caught:
        read(tmp_path, TOPOLOGY, job(), job() | change)

    assert (caught.value.path, caught.value.row, caught.value.column) == (tmp_path / "jobs.json", 3, column)
    assert "\n" not in str(caught.value)


BAD_TASKS = [
    ({"container.start.ms": -1}, "container.start.ms", "found -1"),
    ({"container.start.ms": None}, "container.start.ms", "found nothing, expected both"),
    ({"container.end.ms": None}, "container.end.ms", "found nothing, expected both"),
    ({"container.end.ms": 9}, "container.end.ms", "found 9, which is before container.start.ms; expected 10 or more"),
    ({"container.end.ms": True}, "container.end.ms", "found true"),
    ({"container.end.ms": "30"}, "container.end.ms", 'found "30"'),
    ({"container.duration.ms": -1}, "container.duration.ms", "found -1"),
    ({"duration.ms": 0.5}, "duration.ms", r"found 0\.5"),
    ({"container.priority": -20}, "container.priority", "found -20"),
    ({"container.type": 1.5}, "container.type", r"found 1\.5"),
    ({"container.memory-mb": float("nan")}, "container.memory-mb", "found NaN"),
    ({"container.memory": -5}, "container.memory", "found -5"),
    ({"container.vcores": 1.5}, "container.vcores", r"found 1\.5"),
    ({"container.host": "/rack/"}, "container.host", 'found "/rack/", expected a host'),
    ({"container.host": ""}, "container.host", "found nothing"),
    ({"container.host": {}}, "container.host", "found an object"),
    ({"count": 0}, "count", "found 0, expected a whole number from 1"),
    ({"count": 10**9}, "count", "found 1000000000, expected a whole number from 1 to 10000000"),
]


@pytest.mark.parametrize(("change", "column", "problem"), BAD_TASKS)
def test_bad_value_of_a_task_is_reported_with_the_task_s_own_line(
    tmp_path: Path, change: dict[str, Any], column: str, problem: str
) -> None:
    tasks = ",\n".join(json.dumps(each) for each in (task(), task(), task() | change, task()))
    text = json.dumps(TOPOLOGY) + '\n{"job.start.ms": 5, "job.queue.name": "q",\n"job.tasks": [\n' + tasks + "]}"

    with pytest.raises(WorkloadError, match=problem) as caught:
        read_text(tmp_path, text)

    assert (caught.value.row, caught.value.column) == (6, f"job.tasks[2].{column}")


@pytest.mark.parametrize("bad", [5, "x", None, [], True])
def test_task_that_is_not_an_object_is_reported(tmp_path: Path, bad: object) -> None:
    with pytest.raises(WorkloadError, match="expected an object") as caught:
        read(tmp_path, TOPOLOGY, job(job_tasks=[task(), bad]))

    assert (caught.value.row, caught.value.column) == (2, "job.tasks[1]")


def test_line_of_a_task_falls_back_to_the_job_s_where_the_key_is_escaped_or_given_twice(tmp_path: Path) -> None:
    bad = '[{"duration.ms": 1},\n{"duration.ms": -1}]'
    escaped = f'{{"job.start.ms": 1, "job.queue.name": "q", "job\\u002etasks":\n{bad}}}'
    twice = f'{{"job.start.ms": 1, "job.queue.name": "q", "job.tasks": [],\n"job.tasks":\n{bad}}}'

    rows = []
    for text in (escaped, twice):
        with pytest.raises(WorkloadError, match=r"job.tasks\[1\].duration.ms: found -1") as caught:
            read_text(tmp_path, "\n\n" + text)
        rows.append(caught.value.row)

    assert rows == [3, 3]


@pytest.mark.parametrize(
    "jobs", [[job(job_id="a"), job(job_id="a")], [job(job_id="a-2"), job(job_id="a", job_count=2)]]
)
def test_job_id_is_used_once(tmp_path: Path, jobs: list[dict[str, Any]]) -> None:
    with pytest.raises(WorkloadError, match=r'found "a(-2)?" again') as caught:
        read(tmp_path, TOPOLOGY, *jobs)

    assert (caught.value.row, caught.value.column) == (3, "job.id")


def test_containers_of_all_jobs_together_are_bounded(tmp_path: Path) -> None:
    half = job(job_tasks=[task(count=6_000_000)])

    with pytest.raises(WorkloadError, match="the containers come to 12000002") as caught:
        read(tmp_path, TOPOLOGY, half, half)

    assert (caught.value.row, caught.value.column) == (3, "job.tasks")


@pytest.mark.parametrize("bad", [5, "x", None, [], True, {}, {"a": 1}])
def test_object_that_is_neither_job_nor_nodes_is_rejected(tmp_path: Path, bad: object) -> None:
    with pytest.raises(WorkloadError, match=r'expected an object|expected "job\.tasks"') as caught:
        read(tmp_path, TOPOLOGY, job(), bad)

    assert (caught.value.row, caught.value.column) == (3, None)


def test_skipped_rows_leave_nothing_of_themselves_behind(tmp_path: Path) -> None:
    bad = job(job_id="bad", job_tasks=[task(container_host="/r/gone"), task(container_end_ms=1)])
    good = job(job_tasks=[task(container_host="/r/n1")])
    bad_rack = {"nodes": [{"node": "n1"}, {"node": "n1"}]}

    workload = read(tmp_path, bad, 5, bad_rack, good, job(job_id="3"), skip_bad_rows=True)

    assert [node.host for node in workload.nodes] == ["n1"]
    assert [application.name for application in workload.applications] == ["1", "3"]
    assert [(bad.row, bad.column) for bad in workload.bad_rows] == [
        (1, "job.tasks[1].container.end.ms"),
        (2, None),
        (3, "nodes[1].node"),
    ]


def test_bad_syntax_ends_a_file_when_rows_are_skipped(tmp_path: Path) -> None:
    lines = [json.dumps(TOPOLOGY), json.dumps(job()), '{"job.start.ms": oops}', json.dumps(job())]

    workload = read_text(tmp_path, "\n".join(lines), skip_bad_rows=True)

    assert len(workload.applications) == 1
    assert [(bad.row, bad.column) for bad in workload.bad_rows] == [(3, 18)]


def test_nothing_but_bad_rows_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"no jobs in it \(1 bad rows left out\)"):
        read(tmp_path, TOPOLOGY, job(job_start_ms=-1), skip_bad_rows=True)


@pytest.mark.skipif(not REAL.exists(), reason=f"{REAL.name} is not here: real data is not part of the project")
def test_example_of_hadoop_s_documentation_is_read() -> None:
    workload = read_workload(REAL)

    assert [application.name for application in workload.applications] == ["job_1", "job_2"]
    assert sum(len(application.containers) for application in workload.applications) == 5
    assert [node.host for node in workload.nodes] == ["node1", "node3", "node2"]


# -- nodes ------------------------------------------------------------------------------------------------------------


def at(*hosts: str) -> dict[str, Any]:
    """A job with one task, or one for each host."""
    return job(job_tasks=[{"container.host": host, "duration.ms": 5} for host in hosts] or [{"duration.ms": 5}])


def test_racks_list_nodes_with_sizes_of_their_own(tmp_path: Path) -> None:
    racks = [
        {"rack": "default-rack", "nodes": [{"node": "node1"}, {"node": "node2", "memory-mb": 64, "vcores": 2}]},
        {"rack": "/r2", "nodes": [{"node": "node3", "gpus": 4}]},
    ]

    workload = read(tmp_path, *racks, at())

    assert workload.nodes == (
        NodeSpec("node1", Resource(10240, 10000), "/default-rack"),
        NodeSpec("node2", Resource(64, 2000), "/default-rack"),
        NodeSpec("node3", Resource(10240, 10000, gpus=4), "/r2"),
    )


def test_number_of_nodes_is_divided_evenly_over_the_racks(tmp_path: Path) -> None:
    workload = read(tmp_path, {"num.nodes": 5, "num.racks": 2}, at())

    places = [(node.host, node.rack) for node in workload.nodes]
    assert places == [(f"node{number}", f"/rack{number % 2}") for number in range(5)]


def test_topology_wins_over_hosts_and_a_host_outside_it_is_a_preference_only(tmp_path: Path) -> None:
    workload = read(tmp_path, at("/r/elsewhere"), {"num.nodes": 1})

    assert [node.host for node in workload.nodes] == ["node0"]
    assert workload.applications[0].containers[0].host == "elsewhere"


@pytest.mark.parametrize("name", ["n1", "/n1", "default-rack/n1", "/default-rack/n1"])
def test_host_without_a_rack_is_in_the_default_rack(tmp_path: Path, name: str) -> None:
    workload = read(tmp_path, at(name))

    assert [(node.host, node.rack) for node in workload.nodes] == [("n1", "/default-rack")]


BAD_NODES = [
    ({"nodes": [{"node": "n1"}, {"node": "n1"}]}, "nodes[1].node", 'found "n1" again'),
    ({"nodes": [{"node": "n0"}]}, "nodes[0].node", 'found "n0" again'),
    ({"nodes": [{"name": "n1"}]}, "nodes[0].node", "found nothing, expected text"),
    ({"nodes": [{"node": "/r/n1"}]}, "nodes[0].node", 'found "/r/n1", expected a name without /'),
    ({"nodes": [{"node": "n1", "memory-mb": -1}]}, "nodes[0].memory-mb", "found -1"),
    ({"nodes": [{"node": "n1", "vcores": 1.5}]}, "nodes[0].vcores", "found 1.5"),
    ({"nodes": [{"node": "n1", "gpus": True}]}, "nodes[0].gpus", "found true"),
    ({"nodes": [7]}, "nodes[0]", "found 7, expected an object"),
    ({"nodes": []}, "nodes", "found an empty list"),
    ({"nodes": [{"node": "n1"}], "rack": {}}, "rack", "found an object, expected text"),
    ({"num.nodes": 0}, "num.nodes", "found 0, expected a whole number from 1"),
    ({"num.nodes": 10**9}, "num.nodes", "found 1000000000, expected a whole number from 1 to 1000000"),
    ({"num.nodes": 3, "num.racks": 0}, "num.racks", "found 0"),
]


@pytest.mark.parametrize(("nodes", "column", "problem"), BAD_NODES)
def test_bad_topology_is_reported(tmp_path: Path, nodes: dict[str, Any], column: str, problem: str) -> None:
    with pytest.raises(WorkloadError, match=problem) as caught:
        read(tmp_path, {"nodes": [{"node": "n0"}]}, nodes, at())

    assert (caught.value.row, caught.value.column) == (2, column)


def test_two_numbers_of_nodes_would_make_the_same_nodes_twice(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r'num.nodes: found "node0" again') as caught:
        read(tmp_path, {"num.nodes": 3}, {"num.nodes": 2}, at())

    assert (caught.value.row, caught.value.column) == (2, "num.nodes")


def test_host_in_two_racks_is_refused_where_hosts_become_nodes(tmp_path: Path) -> None:
    jobs = [at(name) for name in ("/r1/n1", "/r1/n2", "/r2/n1")]

    with pytest.raises(WorkloadError, match='found "/r2/n1", but its host is in rack "/r1" already') as caught:
        read(tmp_path, *jobs)

    assert (caught.value.row, caught.value.column) == (3, "job.tasks[0].container.host")


def test_workload_without_any_node_says_how_to_add_some(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r'add one, such as \{"num.nodes": 10, "num.racks": 2\}'):
        read(tmp_path, at())


def test_topology_alone_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"no jobs in it; expected objects with job.tasks"):
        read(tmp_path, {"num.nodes": 2})
