"""The combinations of a sweep. All configurations are checked before the first combination runs."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dispatcher.config import parse_config
from dispatcher.errors import ConfigError
from pipeline.sweep.settings import LOAD, MOST_NODES, NODES, Axis, value_text
from pipeline.sweep.workloads import node_count
from statemachines.resourcemanager import ResourceManagerConfig
from statemachines.resourcemanager.scheduler.capacity.queue_checks import check_queues
from statemachines.simulation.queues import Queues, check_queues_count, derived_queues, lacks_queues, with_queues
from statemachines.simulation.workload import Workload


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
    has_derived_queues: bool = False
    """Whether the queues come from the workload, as none were configured."""

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
    queues: Callable[[], Queues],
    chosen: Sequence[tuple[Axis, Any]],
    base: Mapping[str, Any],
) -> Combination:
    data, nodes, load = dict(base), whole, 1.0
    for axis, value in chosen:
        if axis.path == NODES:
            nodes = node_count(whole, value)
            if nodes > MOST_NODES:
                raise ConfigError(f"--set {axis.text(value)}: {nodes:,} nodes; give up to {MOST_NODES:,}")
        elif axis.path == LOAD:
            load = float(value)
        else:
            data = _with(data, axis, value)
    source = " ".join(f"--set {axis.text(value)}" for axis, value in chosen)
    made = parse_config(data, ResourceManagerConfig, source=source)
    is_derived = lacks_queues(made)
    if is_derived:
        made = with_queues(made, queues())
    try:
        if made.scheduler.kind == "capacity":
            check_queues(made.scheduler.queues)
        elif not _are_for_others(chosen):
            check_queues_count(made)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error
    as_typed = tuple((axis.key, value_text(value)) for axis, value in chosen)
    return Combination(number, as_typed, made, nodes, load, is_derived)


def _are_for_others(chosen: Sequence[tuple[Axis, Any]]) -> bool:
    """Whether queues that the FIFO scheduler ignores are the configuration's, for combinations with the other one."""
    by_path = {axis.path: axis.values for axis, _ in chosen}
    has_own = any(path.startswith("scheduler.queues") for path in by_path)
    return "capacity" in by_path.get("scheduler.kind", ()) and not has_own


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
