"""Default queues of the capacity scheduler, derived from the workload's applications."""

from __future__ import annotations

from collections import Counter
from typing import Any

from dispatcher.errors import ConfigError
from statemachines.simulation.workload import Workload

_ROOT = "root"


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
    *above, leaf = parts[1:] if len(parts) > 1 and parts[0] == _ROOT else parts
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
