"""The combinations of a sweep. All configurations are checked before the first combination runs.

The capacity scheduler's default queues are derived from the workload's applications.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dispatcher.config import parse_config
from dispatcher.errors import ConfigError
from pipeline.sweep.settings import LOAD, MOST_NODES, NODES, Axis, value_text
from pipeline.sweep.workloads import node_count
from statemachines.resourcemanager import ResourceManagerConfig
from statemachines.resourcemanager.scheduler.capacity.queue_checks import check_queues
from statemachines.simulation.workload import Workload

_ALL_OF_A_QUEUE_PERCENT = 100


@dataclass(frozen=True, slots=True)
class Combination:
    """One run of a sweep."""

    number: int
    """From 1, in the order of the product: the last key varies fastest."""
    settings: tuple[tuple[str, str], ...]
    """Keys and values as typed."""
    config: ResourceManagerConfig
    nodes: int
    load: float = 1.0

    @property
    def name(self) -> str:
        return ", ".join(f"{key}={value}" for key, value in self.settings)


def combine(
    workload: Workload, axes: Sequence[Axis], config: ResourceManagerConfig | None = None
) -> tuple[Combination, ...]:
    """All combinations of the axes' values, on top of `config`.

    For the capacity scheduler without configured queues, the queues come from the workload's applications, and masters
    may fill a queue unless `maximum_am_resource_percent` is set.

    Raises:
        ConfigError: the configuration rejects a key or a value; too many nodes; two combinations give the same run.
    """
    base = (config or ResourceManagerConfig()).model_dump(exclude_unset=True)
    base |= {"metrics": {"enabled": False}, "journal_path": None, "state_store": {}, "workload": None}
    for axis in axes:
        for value in axis.values if axis.path not in (NODES, LOAD) else ():
            parse_config(_with(base, axis, value), ResourceManagerConfig, source=f"--set {axis.text(value)}")
    queues = functools.cache(lambda: derived_queues(workload))
    combinations: dict[tuple[int, float, str], Combination] = {}
    for number, values in enumerate(itertools.product(*(axis.values for axis in axes)), start=1):
        made = _combination(number, len(workload.nodes), queues, list(zip(axes, values, strict=True)), base)
        same = combinations.setdefault((made.nodes, made.load, made.config.model_dump_json()), made)
        if same is not made:
            raise ConfigError(f"--set: {same.name} and {made.name} give the same run; leave one of them out")
    return tuple(combinations.values())


def _combination(
    number: int,
    whole: int,
    queues: Callable[[], list[dict[str, Any]]],
    chosen: Sequence[tuple[Axis, Any]],
    base: Mapping[str, Any],
) -> Combination:
    data, nodes, load = dict(base), whole, 1.0
    for axis, value in chosen:
        if axis.path == NODES:
            nodes = node_count(whole, value)
            if nodes > MOST_NODES:
                raise ConfigError(f"--set {axis.text(value)}: {nodes:,} nodes; give {MOST_NODES:,} at most")
        elif axis.path == LOAD:
            load = float(value)
        else:
            data = _with(data, axis, value)
    source = " ".join(f"--set {axis.text(value)}" for axis, value in chosen)
    made = parse_config(data, ResourceManagerConfig, source=source)
    if made.scheduler.kind == "capacity":
        if "queues" not in made.scheduler.model_fields_set:
            scheduler = {**data["scheduler"], "queues": queues()}
            if "maximum_am_resource_percent" not in made.scheduler.model_fields_set:
                scheduler["maximum_am_resource_percent"] = _ALL_OF_A_QUEUE_PERCENT
            made = parse_config({**data, "scheduler": scheduler}, ResourceManagerConfig, source=source)
        try:
            check_queues(made.scheduler.queues)
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}") from error
    return Combination(number, tuple((axis.key, value_text(value)) for axis, value in chosen), made, nodes, load)


def _with(data: Mapping[str, Any], axis: Axis, value: Any) -> dict[str, Any]:
    """A copy of the configuration's data with the axis set to `value`."""
    copied = copy.deepcopy(dict(data))
    *above, last = axis.path.split(".")
    branch = copied
    for depth, part in enumerate(above, start=1):
        branch = branch.setdefault(part, {})
        if not isinstance(branch, dict):
            raise ConfigError(
                f"--set {axis.text(value)}: {'.'.join(above[:depth])} has no keys below it; give its value as a whole"
            )
    branch[last] = value
    return copied


def derived_queues(workload: Workload) -> list[dict[str, Any]]:
    """The tree of queues that the workload's applications name, in the form of `scheduler.queues`.

    A dotted name is a path. A parent's queues share half of its capacity equally, and the other half in proportion to
    their applications. Each queue, and each of its users, may use whatever the others leave: such queues change
    the order in which applications are served, but do not limit them.

    Raises:
        ConfigError: the names do not form a tree.
    """
    numbers = Counter(application.queue for application in workload.applications)
    tree: dict[str, Any] = {}
    for name, number in numbers.items():
        _enter(tree, name, number)
    return _queues(tree)


def _enter(tree: dict[str, Any], name: str, number: int) -> None:
    """Count the application's queue: a branch of the tree is a dict, a leaf its number of applications."""
    parts = name.split(".")
    *above, leaf = parts[1:] if len(parts) > 1 and parts[0] == "root" else parts
    branch = tree
    for part in above:
        branch = branch.setdefault(part, {})
        if not isinstance(branch, dict):
            raise _no_tree(name, f"{part} is a leaf queue with applications")
    if not leaf or any(not part for part in above) or any(letter.isspace() for letter in name):
        raise _no_tree(name, "a queue's name must not be empty or contain blanks")
    if isinstance(branch.get(leaf), dict):
        raise _no_tree(name, f"{leaf} has queues below it")
    branch[leaf] = branch.get(leaf, 0) + number


def _no_tree(name: str, problem: str) -> ConfigError:
    return ConfigError(
        f"the workload's queue {name!r} is not valid for the capacity scheduler: {problem}; "
        "set scheduler.queues in the file given by --config"
    )


def _queues(tree: dict[str, Any]) -> list[dict[str, Any]]:
    total = _applications(tree)
    queues = []
    for name, below in tree.items():
        applications = _applications(below)
        capacity = 50 / len(tree) + 50 * applications / total
        queue = {
            "name": name,
            "capacity": capacity,
            "user_limit_factor": 100 / capacity,
            "maximum_applications": max(10_000, applications),
        }
        queues.append(queue | ({"queues": _queues(below)} if isinstance(below, dict) else {}))
    return queues


def _applications(below: Any) -> int:
    return sum(map(_applications, below.values())) if isinstance(below, dict) else below
