"""Validates a configured tree of queues. Errors name the key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dispatcher.errors import ConfigError
from statemachines.resourcemanager.records.config import PartitionCapacityConfig, QueueConfig, SchedulerConfig

ROOT = "root"
_PATH = "scheduler.queues"
"""The key of the tree."""
_TOLERANCE_PERCENT = 0.05  # three times 33.33 count as 100, as in YARN


def check_scheduler_queues(config: SchedulerConfig) -> None:
    """
    Raises:
        ConfigError: the queues don't form a valid tree, or their maximum allocations don't fit; names the key.
    """
    check_queues(config.queues)
    for queue, where in _all(config.queues, _PATH):
        for key in "maximum_allocation_mb", "maximum_allocation_vcores":
            value, most = getattr(queue, key), getattr(config, key)
            if value is not None and most is not None and value > most:
                raise ConfigError(f"{where}.{key}: {value} is more than scheduler.{key}, {most}")


def check_queues(queues: Sequence[QueueConfig]) -> None:
    """
    Raises:
        ConfigError: the queues do not form a valid tree; names the key.
    """
    if not queues:
        raise ConfigError(f"{_PATH}: there must be a queue; leave the key out for one named default")
    seen: dict[str, str] = {}
    for queue, where in _all(queues, _PATH):
        if queue.name == ROOT:
            raise ConfigError(f"{where}.name: root is the parent of all queues; choose another name")
        if not queue.queues:
            first = seen.setdefault(queue.name, where)
            if first != where:
                raise ConfigError(
                    f"{where}.name: {first} is also named {queue.name}; queues without children are found by name, so "
                    "each name must be unique"
                )
        _check_one(queue, where)
    _check_children(queues, _PATH, None)


def _all(queues: Sequence[QueueConfig], path: str) -> Iterator[tuple[QueueConfig, str]]:
    for index, queue in enumerate(queues):
        where = f"{path}[{index}]"
        yield queue, where
        yield from _all(queue.queues, f"{where}.queues")


def _check_one(queue: QueueConfig, where: str) -> None:
    if "" in queue.accessible_node_labels:
        raise ConfigError(
            f"{where}.accessible_node_labels: the default partition has no label; set its share with capacity and "
            "maximum_capacity"
        )
    shares: dict[str, QueueConfig | PartitionCapacityConfig] = {where: queue}
    shares |= {f"{where}.accessible_node_labels.{label}": it for label, it in queue.accessible_node_labels.items()}
    for at, share in shares.items():
        if share.capacity > share.maximum_capacity:
            raise ConfigError(
                f"{at}.capacity: {share.capacity:g} is more than its maximum_capacity, {share.maximum_capacity:g}"
            )
    default = queue.default_node_label
    if default and default not in queue.accessible_node_labels:
        raise ConfigError(f"{where}.default_node_label: {default} is not one of its accessible_node_labels")
    default_s, maximum_s = queue.default_lifetime_s, queue.maximum_lifetime_s
    if default_s is not None and maximum_s is not None and default_s > maximum_s:
        raise ConfigError(f"{where}.default_lifetime_s: {default_s} is more than its maximum_lifetime_s, {maximum_s}")


def _check_children(
    queues: Sequence[QueueConfig], path: str, parent_labels: Mapping[str, PartitionCapacityConfig] | None
) -> None:
    """`parent_labels`: None for the root, which may use all labels."""
    names = [queue.name for queue in queues]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ConfigError(f"{path}[{index}].name: {path}[{names.index(name)}] is also named {name}")
    _check_sum([queue.capacity for queue in queues], path, "the capacities")
    for index, queue in enumerate(queues):
        for label in queue.accessible_node_labels:
            if parent_labels is not None and label not in parent_labels:
                raise ConfigError(
                    f"{path}[{index}].accessible_node_labels.{label}: the parent queue may not use this label"
                )
    labels = dict.fromkeys([*(parent_labels or ()), *(label for q in queues for label in q.accessible_node_labels)])
    for label in labels:
        shares = [queue.accessible_node_labels.get(label) for queue in queues]
        _check_sum([share.capacity for share in shares if share is not None], path, f"the capacities of label {label}")
    for index, queue in enumerate(queues):
        if queue.queues:
            _check_children(queue.queues, f"{path}[{index}].queues", queue.accessible_node_labels)


def _check_sum(percents: Sequence[float], path: str, what: str) -> None:
    total = sum(percents)
    if abs(total - 100) > _TOLERANCE_PERCENT:
        raise ConfigError(f"{path}: {what} add up to {total:g}; they must add up to 100")
