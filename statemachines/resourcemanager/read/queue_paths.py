"""The paths of queues, which applications may name by less than their path. Any thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate

from statemachines.resourcemanager.scheduler.queue_info import QueueInfo


def queue_paths(queues: Iterable[QueueInfo], path_of: Callable[[str], str | None]) -> Callable[[str], str]:
    """The path of a queue as applications name it, or the name itself if there is no such queue.

    `path_of`: the path of a queue of the configuration by its path or name.
    """
    leaves = [queue.path for queue in queues if queue.is_leaf]
    only = leaves[0] if len(leaves) == 1 else None  # FIFO's takes a workload's applications, whatever they name
    return lambda queue: path_of(queue) or only or queue


def lineage(path: str) -> list[str]:
    """The paths of a queue and of all queues above it, the root first.

    >>> lineage("root.prod.etl")
    ['root', 'root.prod', 'root.prod.etl']
    """
    return list(accumulate(path.split("."), "{}.{}".format))
