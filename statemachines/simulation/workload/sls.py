"""Reads workloads of Hadoop's Scheduler Load Simulator (SLS).

A file holds consecutive JSON objects, or an array of them. An object is one of

- a job: `job.tasks`, `job.start.ms`, `job.queue.name`, ...;
- a rack: `{"rack": "default-rack", "nodes": [{"node": "node1", "memory-mb": 8192, "vcores": 8, "gpus": 0}]}`;
- a number of nodes: `{"num.nodes": 100, "num.racks": 5}`.

Without racks and numbers of nodes, the nodes are the hosts that tasks name. Unknown keys are ignored, as in SLS, but
`Workload.remarks` names them; `null` is the same as no key. `job.final.state` (FINISHED, FAILED or KILLED) and the
`gpus` of a node are extensions, which SLS ignores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from statemachines.resourcemanager.records.config import MOST_GPUS, MOST_NUMBER, WorkloadDefaults
from statemachines.resourcemanager.records.node_spec import NodeSpec
from statemachines.resourcemanager.records.resource import Resource
from statemachines.simulation.specs import ApplicationSpec, ContainerSpec, Outcome
from statemachines.simulation.workload.foreign import foreign_object
from statemachines.simulation.workload.json_objects import BadSyntaxError, element_row, json_values
from statemachines.simulation.workload.keys import UnusedKeys, misspelt
from statemachines.simulation.workload.model import Workload, WorkloadError
from statemachines.simulation.workload.values import (
    MOST_CONTAINERS,
    MOST_MS,
    MOST_NODES,
    CollectedWorkload,
    again,
    before,
    not_text,
    not_whole,
    shown,
)

_DEFAULT_RACK = "default-rack"
_FINAL_STATES = ("FINISHED", "FAILED", "KILLED")
_T = TypeVar("_T")


def read_sls(
    path: Path,
    files: Iterable[tuple[Path, str]],
    defaults: WorkloadDefaults,
    *,
    skip_bad_rows: bool,
    needs_nodes: bool,
) -> Workload:
    """The workload at `path`, which consists of `files` (path and text of each).

    `skip_bad_rows` skips whole objects with a bad value, and reads a file up to its first JSON syntax error.

    Raises:
        WorkloadError: a bad value or bad JSON (unless skipped), no jobs, or no nodes (if it needs any).
    """
    reader = _SlsReader(defaults, skip_bad_rows)
    for file, text in files:
        reader.read(file, text)
    return reader.workload(path, needs_nodes=needs_nodes)


class _BadValueError(Exception):
    """A value of one object is wrong."""

    def __init__(self, key: str | None, problem: str, element: tuple[str, int] | None = None) -> None:
        super().__init__(key, problem)
        self.key = key
        self.problem = problem
        self.element = element  # the list's key and the index, if the value is in a list


class _Task(NamedTuple):
    container: ContainerSpec
    copies: int
    host: str | None
    """Including its rack: /default-rack/node1."""


class _SlsReader(CollectedWorkload):
    """Collects the objects of all the files of one workload."""

    def __init__(self, defaults: WorkloadDefaults, skip_bad_rows: bool) -> None:
        super().__init__(skip_bad_rows)
        self._node_capacity = Resource(defaults.node_memory_mb, defaults.node_vcores * 1000, gpus=defaults.node_gpus)
        self._am_resource = Resource(defaults.am_memory_mb, defaults.am_vcores * 1000)
        self._container_resource = Resource(defaults.container_memory_mb, defaults.container_vcores * 1000)
        self._hosts: dict[str, tuple[Path, int, str]] = {}  # of tasks, with their first place in the files
        self._keys = UnusedKeys()
        self._jobs_seen = 0
        self._containers_seen = 0

    def read(self, path: Path, text: str) -> None:
        row, counted = 1, 0
        try:
            for position, value in json_values(text):
                row += text.count("\n", counted, position)
                counted = position
                try:
                    self._add(path, row, value)
                except _BadValueError as bad:
                    bad_row = row if bad.element is None else element_row(text, position, row, *bad.element)
                    self._refuse(WorkloadError(path, bad.problem, row=bad_row, column=bad.key))
        except BadSyntaxError as bad:
            self._refuse(WorkloadError(path, bad.problem, row=bad.row, column=bad.column))

    def workload(self, path: Path, *, needs_nodes: bool) -> Workload:
        """The result. Only now is it known whether any file defines nodes."""
        if not self._applications:
            raise WorkloadError(path, f"no jobs in it{self._left_out()}; expected objects with job.tasks")
        if not self._nodes:
            self._nodes = self._nodes_of_hosts()
        if not self._nodes and needs_nodes:
            raise WorkloadError(
                path,
                f"no nodes in it{self._left_out()}: no task has a container.host and there is no topology; "
                'add one, such as {"num.nodes": 10, "num.racks": 2}',
            )
        return replace(self._workload(path), remarks=tuple(self._keys.remarks()))

    def _nodes_of_hosts(self) -> dict[str, NodeSpec]:
        nodes: dict[str, NodeSpec] = {}
        for name, (path, row, column) in self._hosts.items():
            rack, _, host = name.rpartition("/")
            if host in nodes:
                # Merging the two would silently lose a node.
                problem = f"found {shown(name)}, but its host is in rack {shown(nodes[host].rack)} already"
                self._refuse(WorkloadError(path, problem, row=row, column=column))
            else:
                nodes[host] = NodeSpec(host, self._node_capacity, rack)
        return nodes

    # The following methods check a whole object before they keep any of it: a bad object has no effect.

    def _add(self, path: Path, row: int, value: object) -> None:
        if not isinstance(value, dict):
            raise _BadValueError(None, f"found {shown(value)}, expected an object")
        if "job.tasks" in value or "job.start.ms" in value:
            self._keys.note("job", value)
            self._add_job(path, row, value)
        elif "nodes" in value:
            self._keys.note("rack", value)
            self._add_rack(value)
        elif "num.nodes" in value:
            self._keys.note("topology", value)
            self._add_numbered_nodes(value)
        elif (foreign := foreign_object(value)) is not None:
            raise WorkloadError(path, foreign, row=row)
        else:
            expected = 'expected "job.tasks" (a job), "nodes" (a rack) or "num.nodes" in it'
            raise _BadValueError(None, f"found an object of no known kind, {expected}")

    def _add_rack(self, values: dict[str, Any]) -> None:
        rack = "/" + (_text(values, "rack", _DEFAULT_RACK).strip("/") or _DEFAULT_RACK)
        nodes: dict[str, NodeSpec] = {}
        for index, node in enumerate(_each(values, "nodes", lambda node: self._node(node, rack))):
            if node.host in self._nodes or node.host in nodes:
                raise _BadValueError(f"nodes[{index}].node", again(node.host), ("nodes", index))
            nodes[node.host] = node
        self._nodes.update(nodes)

    def _node(self, values: dict[str, Any], rack: str) -> NodeSpec:
        self._keys.note("node", values)
        host = _text(values, "node")
        if "/" in host:
            raise _BadValueError("node", f"found {shown(host)}, expected a name without /")
        gpus = _whole(values, "gpus", self._node_capacity.gpus, most=MOST_GPUS)
        return NodeSpec(host, _resource(values, "", self._node_capacity)._replace(gpus=gpus), rack)

    def _add_numbered_nodes(self, values: dict[str, Any]) -> None:
        count = _whole(values, "num.nodes", least=1, most=MOST_NODES)
        racks = min(_whole(values, "num.racks", 1, least=1), count)
        for number in range(count):
            if f"node{number}" in self._nodes:
                raise _BadValueError("num.nodes", again(f"node{number}"))
        for number in range(count):
            host = f"node{number}"  # as SLS names them
            self._nodes[host] = NodeSpec(host, self._node_capacity, f"/rack{number % racks}")

    def _add_job(self, path: Path, row: int, values: dict[str, Any]) -> None:
        number = self._jobs_seen
        self._jobs_seen += 1  # a bad job counts: skipping it must not rename later ones
        tasks = _each(values, "job.tasks", self._task)
        copies = _whole(values, "job.count", 1, least=1, most=MOST_CONTAINERS)
        containers_seen = self._containers_seen + copies * (1 + sum(task.copies for task in tasks))
        if containers_seen > MOST_CONTAINERS:
            problem = f"the containers come to {containers_seen}, expected at most {MOST_CONTAINERS} in a workload"
            raise _BadValueError("job.tasks", problem)
        application = self._application(values, _text(values, "job.id", str(number)), tasks)
        applications = {application.name: application}
        if copies > 1:
            names = (f"{application.name}-{copy}" for copy in range(1, copies + 1))
            applications = {name: replace(application, name=name) for name in names}
        for name in applications:
            if name in self._applications:
                raise _BadValueError("job.id", again(name))

        self._containers_seen = containers_seen
        self._applications.update(applications)
        for index, task in enumerate(tasks):
            if task.host is not None and task.host not in self._hosts:
                self._hosts[task.host] = (path, row, f"job.tasks[{index}].container.host")

    def _application(self, values: dict[str, Any], name: str, tasks: list[_Task]) -> ApplicationSpec:
        submit_ms = _whole(values, "job.start.ms", most=MOST_MS)
        end_ms = _whole_or_none(values, "job.end.ms", MOST_MS)
        if end_ms is not None and end_ms < submit_ms:
            raise _BadValueError("job.end.ms", before(end_ms, "job.start.ms", submit_ms))
        final_state = _text(values, "job.final.state", _FINAL_STATES[0])
        if final_state not in _FINAL_STATES:
            problem = f"found {shown(final_state)}, expected one of {', '.join(_FINAL_STATES)}"
            raise _BadValueError("job.final.state", problem)
        killed = final_state == "KILLED"
        if killed and end_ms is None:
            raise _BadValueError("job.end.ms", "found nothing, expected the time at which the job was killed")
        return ApplicationSpec(
            name=name,
            submit_ms=submit_ms,
            am_resource=_resource(values, "am.", self._am_resource),
            containers=tuple(task.container for task in tasks for _ in range(task.copies)),
            user=_text(values, "job.user", "default"),
            queue=_text(values, "job.queue.name"),
            # The containers may end earlier than recorded; the master then waits for its kill.
            am_duration_ms=None if killed else 0,
            outcome=Outcome.FAILED if final_state == "FAILED" else Outcome.FINISHED,
            kill_ms=end_ms if killed else None,
        )

    def _task(self, values: dict[str, Any]) -> _Task:
        self._keys.note("task", values)
        host = None
        name = None
        if values.get("container.host") is not None:
            rack, _, host = _text(values, "container.host").rpartition("/")
            if not host:
                found = shown(values["container.host"])
                raise _BadValueError("container.host", f"found {found}, expected a host after the last /")
            name = f"/{rack.strip('/') or _DEFAULT_RACK}/{host}"
        start_ms, duration_ms = _times(values)
        container = ContainerSpec(
            resource=_resource(values, "container.", self._container_resource),
            duration_ms=duration_ms,
            start_ms=start_ms,
            host=host,
            priority=_whole(values, "container.priority", 20),
            kind=_text(values, "container.type", "map"),
        )
        return _Task(container, _whole(values, "count", 1, least=1, most=MOST_CONTAINERS), name)


def _times(values: dict[str, Any]) -> tuple[int, int]:
    """When a container is requested, and how long it runs. A duration takes precedence over an end, as in SLS."""
    start_ms = _whole_or_none(values, "container.start.ms", MOST_MS)
    end_ms = _whole_or_none(values, "container.end.ms", MOST_MS)
    if start_ms is not None and end_ms is not None and end_ms < start_ms:
        raise _BadValueError("container.end.ms", before(end_ms, "container.start.ms", start_ms))
    for key in ("container.duration.ms", "duration.ms"):
        if values.get(key) is not None:
            return start_ms or 0, _whole(values, key, most=MOST_MS)
    if start_ms is None or end_ms is None:
        key = "container.start.ms" if start_ms is None else "container.end.ms"
        problem = "found nothing, expected both container.start.ms and container.end.ms, or container.duration.ms"
        raise _BadValueError(key, problem + misspelt(key, values))
    return start_ms, end_ms - start_ms


def _resource(values: dict[str, Any], prefix: str, default: Resource) -> Resource:
    memory_key = f"{prefix}memory-mb"
    if values.get(memory_key) is None and prefix:
        memory_key = f"{prefix}memory"
    memory_mb = _whole(values, memory_key, default.memory_mb)
    vcores = _whole_or_none(values, f"{prefix}vcores", MOST_NUMBER // 1000)
    return Resource(memory_mb, default.vcores_milli if vcores is None else vcores * 1000, gpus=default.gpus)


def _each(values: dict[str, Any], key: str, parse: Callable[[dict[str, Any]], _T]) -> list[_T]:
    """The objects of the list at `key`, parsed."""
    elements = values.get(key)
    if not isinstance(elements, list) or not elements:
        problem = f"found {shown(elements)}, expected a list of one object or more"
        raise _BadValueError(key, problem + (misspelt(key, values) if elements is None else ""))
    parsed = []
    for index, element in enumerate(elements):
        if not isinstance(element, dict):
            problem = f"found {shown(element)}, expected an object"
            raise _BadValueError(f"{key}[{index}]", problem, (key, index))
        try:
            parsed.append(parse(element))
        except _BadValueError as bad:
            raise _BadValueError(f"{key}[{index}].{bad.key}", bad.problem, (key, index)) from None
    return parsed


def _whole(
    values: dict[str, Any], key: str, default: int | None = None, *, least: int = 0, most: int = MOST_NUMBER
) -> int:
    value = values.get(key)
    if value is None:
        value = default
    # Not isinstance, as a bool is an int.
    if type(value) is not int or not least <= value <= most:
        raise _BadValueError(key, not_whole(value, least, most) + (misspelt(key, values) if value is None else ""))
    return value


def _whole_or_none(values: dict[str, Any], key: str, most: int) -> int | None:
    return None if values.get(key) is None else _whole(values, key, most=most)


def _text(values: dict[str, Any], key: str, default: str | None = None) -> str:
    value = values.get(key)
    if value is None:
        value = default
    if type(value) is int:  # SLS accepts numbers as names
        value = str(value)
    if not isinstance(value, str) or not value or not value.isprintable():
        raise _BadValueError(key, not_text(value) + (misspelt(key, values) if value is None else ""))
    return value
