"""The capacity scheduler's queues, derived from a workload where none are configured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from dispatcher.errors import ConfigError
from statemachines.resourcemanager.records.config import QueueConfig, ResourceManagerConfig, SchedulerConfig
from statemachines.simulation.workload import Workload

Queues = tuple[QueueConfig, ...]

_ALL_OF_A_QUEUE_PERCENT = 100
_NAMED = 10


def lacks_queues(config: ResourceManagerConfig) -> bool:
    """Whether the capacity scheduler is configured, but no queues."""
    return config.scheduler.kind == "capacity" and "queues" not in config.scheduler.model_fields_set


def with_queues(config: ResourceManagerConfig, queues: Queues) -> ResourceManagerConfig:
    """The configuration with these queues. Masters may fill a queue, unless `maximum_am_resource_percent` is set."""
    changes: dict[str, Any] = {"queues": queues}
    if "maximum_am_resource_percent" not in config.scheduler.model_fields_set:
        changes["maximum_am_resource_percent"] = _ALL_OF_A_QUEUE_PERCENT
    return config.model_copy(update={"scheduler": config.scheduler.model_copy(update=changes)})


def check_queues_count(config: ResourceManagerConfig) -> None:
    """Check that a configuration has queues only where a scheduler uses them.

    Raises:
        ConfigError: it has queues, and the FIFO scheduler.
    """
    scheduler = config.scheduler
    if scheduler.kind == "fifo" and scheduler.queues != SchedulerConfig().queues:
        raise ConfigError(
            "scheduler.queues: scheduler.kind fifo has one queue, default; remove the queues, or set kind: capacity"
        )


def for_workload(config: ResourceManagerConfig, workload: Workload) -> ResourceManagerConfig:
    """The configuration to run the workload with: the capacity scheduler without queues gets the workload's.

    A workload without applications changes nothing.

    Raises:
        ConfigError: the names of the workload's queues do not form a tree.
    """
    if not lacks_queues(config) or not workload.applications:
        return config
    return with_queues(config, derived_queues(workload))


def in_words(queues: Queues) -> str:
    """One line for the user: that the queues were derived, and which applications they take."""
    leaves = list(_leaves(queues))
    more = f" and {len(leaves) - _NAMED:,} more" if len(leaves) > _NAMED else ""
    return (
        f"No queues are configured; the capacity scheduler gets the workload's own: {', '.join(leaves[:_NAMED])}{more}"
    )


def _leaves(queues: Queues) -> Iterator[str]:
    for queue in queues:
        if queue.queues:
            yield from _leaves(queue.queues)
        else:
            yield queue.name


def derived_queues(workload: Workload) -> Queues:
    """The tree of queues that the workload's applications name, as for `scheduler.queues`.

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


def _queues(tree: dict[str, Any]) -> Queues:
    total = _applications(tree)
    queues = []
    for name, below in tree.items():
        applications = _applications(below)
        capacity = 50 / len(tree) + 50 * applications / total
        queues.append(
            QueueConfig(
                name=name,
                capacity=capacity,
                user_limit_factor=100 / capacity,
                maximum_applications=max(10_000, applications),
                queues=_queues(below) if isinstance(below, dict) else (),
            )
        )
    return tuple(queues)


def _applications(below: Any) -> int:
    return sum(map(_applications, below.values())) if isinstance(below, dict) else below
