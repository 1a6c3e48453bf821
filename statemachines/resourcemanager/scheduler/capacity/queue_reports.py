"""The capacity scheduler's reports on its queues, and its reasons for refusals and waits.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from collections.abc import Collection

from statemachines.resourcemanager.scheduler.capacity.queue_applications import Activation, QueueApplication
from statemachines.resourcemanager.scheduler.capacity.queues import (
    DEFAULT_PARTITION,
    LeafQueue,
    ParentQueue,
    Queue,
    QueueTree,
    is_user_full,
)
from statemachines.resourcemanager.scheduler.core.amounts import Amounts, add, amounts_of, resource_of
from statemachines.resourcemanager.scheduler.core.node import NodeRequirements
from statemachines.resourcemanager.scheduler.queue_info import QueueInfo


def why_not_movable(tree: QueueTree, app: QueueApplication, queue: str, held: list[tuple[str, Amounts]]) -> str | None:
    """Why an application whose containers have `held` cannot be moved to `queue`, or None.

    A move must not bring a queue beyond its maximum.
    """
    if tree.leaf(queue) is app.leaf:
        return None
    refusal = why_closed(tree, queue, app.submission.node_label, app.leaf.lineage)
    if refusal is not None:
        return refusal
    leaf = tree.leaf(queue)
    assert leaf is not None  # otherwise refused
    by_partition: dict[str, dict[str, int]] = {}
    for partition, amounts in held:
        add(by_partition.setdefault(partition, {}), amounts)
    for partition, amounts_held in by_partition.items():
        for above in leaf.lineage:
            if above not in app.leaf.lineage and not above.share(partition).has_room(tuple(amounts_held.items())):
                return (
                    f"the containers of {app.id} use {resource_of(amounts_held)}{_in(partition)}, which would bring "
                    f"queue {above.path} beyond its maximum capacity, {resource_of(above.share(partition).limit)}"
                )
    return None


def why_closed(tree: QueueTree, name: str, label: str | None, is_in: Collection[Queue] = ()) -> str | None:
    """Why the queue accepts no new application; the queues `is_in` have and count the application already."""
    queue = tree.find(name)
    if queue is None:
        return f"queue {name} does not exist; queues that accept applications: {', '.join(sorted(tree.leaves))}"
    if not isinstance(queue, LeafQueue):
        return f"queue {queue.path} is a parent queue and does not accept applications"
    for above in queue.lineage:
        if above.config.state != "RUNNING":
            return f"queue {above.path} is stopped and does not accept new applications"
        if above not in is_in and above.parent is not None and above.applications >= above.config.maximum_applications:
            return f"queue {above.path} already has {above.applications} applications, its maximum"
    if label and not queue.may_use(label):
        return f"queue {queue.path} may not use partition {label}"
    return None


def why_held_up(app: QueueApplication, requirements: NodeRequirements, activation: Activation) -> str | None:
    """Which limit holds up an ask of the application, or None."""
    leaf, partition = app.leaf, requirements.partition
    if not app.is_active:
        percent = f"{float(leaf.am_share):.4g}"
        if app in activation and activation.is_first(app):
            return f"masters already use their share of queue {leaf.path}, {percent} of its maximum"
        return f"its application is pending: others come first for the share of masters in queue {leaf.path}, {percent}"
    if not leaf.may_use(partition):
        return f"queue {leaf.path} may not use partition {partition}"
    amounts = amounts_of(requirements.resource)
    for queue in leaf.lineage:
        share = queue.share(partition)
        if share.maximum == 1 and share.has_room(()):
            continue  # the queue may use the whole partition: the ask waits for room, not for the limit
        if not share.has_room(amounts):
            return (
                f"queue {queue.path} has {resource_of(share.used)}{_in(partition)}; its maximum is "
                f"{resource_of(share.limit)}"
            )
    if is_user_full(leaf, app.user, partition, amounts):
        used = leaf.users[app.user].used.get(partition, {})
        return f"user {app.user} has {resource_of(used)}{_in(partition)}, its limit in queue {leaf.path}"
    return None


def _in(partition: str) -> str:
    return f" of partition {partition}" if partition else ""


def queue_info(queue: Queue) -> QueueInfo:
    """Shares cover the default partition, resources all partitions."""
    share = queue.share(DEFAULT_PARTITION)
    used: dict[str, int] = {}
    for of_partition in queue.shares.values():
        add(used, of_partition.used.items())
    return QueueInfo(
        path=queue.path,
        state="RUNNING" if queue.is_running else "STOPPED",
        capacity=share.guarantee,
        maximum_capacity=float(share.maximum),
        used_capacity=share.used_share / share.guarantee if share.guarantee else 0.0,
        used=resource_of(used),
        applications=queue.applications,
        pending_applications=queue.pending,
        containers=queue.containers,
        children=tuple(child.path for child in queue.children) if isinstance(queue, ParentQueue) else (),
        priority=queue.config.priority,
        accessible_node_labels=tuple(queue.config.accessible_node_labels),
        default_node_label=queue.config.default_node_label,
    )
