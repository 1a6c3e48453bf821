"""Which limit of the capacity scheduler holds up an ask, with its names and numbers.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from statemachines.resourcemanager.scheduler.capacity.limits import (
    has_room_for_users_master,
    is_user_full,
    master_limit,
    user_limit_amounts,
    user_master_limit,
)
from statemachines.resourcemanager.scheduler.capacity.queue_applications import QueueApplication
from statemachines.resourcemanager.scheduler.capacity.queues import LeafQueue, Queue
from statemachines.resourcemanager.scheduler.core.amounts import Amounts, amounts_of
from statemachines.resourcemanager.scheduler.core.node import NodeRequirements
from statemachines.resourcemanager.scheduler.wait_reasons import WaitCause, WaitReason, missing, quantity


def why_held_up(
    app: QueueApplication,
    requirements: NodeRequirements,
    unreserved: Amounts | None,
    *,
    is_first: bool,
    has_node: bool,
) -> WaitReason | None:
    """`is_first`: no other pending application comes before this one. `has_node`: some node has room for the ask.

    `unreserved` is `full_queue`'s.

    None: no limit holds it up.
    """
    leaf, partition = app.leaf, requirements.partition
    if not app.is_active:
        return _masters_full(app, is_first=is_first)
    if not leaf.may_use(partition):
        sentence = f"queue {leaf.path} may not use partition {partition}"
        return WaitReason(WaitCause.PARTITION, sentence, leaf.path, app.user, partition=partition)
    amounts = amounts_of(requirements.resource)
    for queue in leaf.lineage:
        share = queue.share(partition)
        may_use_all = share.maximum == 1 and not has_node
        if may_use_all and (share.has_room(()) or share.has_room_without(unreserved, ())):
            # The queue may use the whole partition: the ask waits for room, not for the limit. With a node the limit
            # matters: containers on another node exceed its capacity.
            continue
        if not (share.has_room(amounts) or share.has_room_without(unreserved, amounts)):
            return _queue_full(queue, partition, amounts)
    if is_user_full(leaf, app.user, partition, amounts):
        return _user_full(leaf, app.user, partition, amounts)
    return None


def _masters_full(app: QueueApplication, *, is_first: bool) -> WaitReason:
    leaf, partition = app.leaf, app.master_partition
    used, limit = leaf.masters_used.get(partition, {}), master_limit(leaf, partition)
    behind = "" if is_first else ", and other applications come first"
    short = missing(used, app.master_amounts, limit)
    if short is None and not has_room_for_users_master(leaf, app.user, partition, app.master_amounts):
        return _users_masters_full(app, behind)
    share = f"{float(100 * leaf.am_share):.4g} % of its maximum{_in(partition)}"
    if short is None:
        sentence = f"other applications of queue {leaf.path} come first for the share of masters, {share}"
        return WaitReason(WaitCause.AM_LIMIT, sentence, leaf.path, app.user, partition=partition)
    type_, amount = short
    has, most = used.get(type_, 0), limit.get(type_, 0)
    sentence = (
        f"the masters of queue {leaf.path} have used {quantity(type_, has)} of the {quantity(type_, most)} that they "
        f"may use, {share}; this application's master needs {quantity(type_, amount)}{behind}"
    )
    return _beyond(WaitCause.AM_LIMIT, sentence, leaf, app.user, partition, short, most - has)


def _users_masters_full(app: QueueApplication, behind: str) -> WaitReason:
    leaf, partition = app.leaf, app.master_partition
    used, limit = leaf.users[app.user].masters.get(partition, {}), user_master_limit(leaf, partition)
    short = missing(used, app.master_amounts, limit)
    assert short is not None  # there is no room
    type_, amount = short
    has, most = used.get(type_, 0), limit.get(type_, 0)
    sentence = (
        f"the masters of user {app.user} have used {quantity(type_, has)} of the {quantity(type_, most)} that one "
        f"user's may use in queue {leaf.path}{_in(partition)}; this application's master needs "
        f"{quantity(type_, amount)}{behind}"
    )
    return _beyond(WaitCause.USER_AM_LIMIT, sentence, leaf, app.user, partition, short, most - has)


def _queue_full(queue: Queue, partition: str, amounts: Amounts) -> WaitReason:
    share = queue.share(partition)
    short = missing(share.used, amounts, share.limit)
    assert short is not None  # the share has no room
    type_, amount = short
    has, most = share.used.get(type_, 0), share.limit.get(type_, 0)
    sentence = f"queue {queue.path} has used {quantity(type_, has)} of its {quantity(type_, most)}{_in(partition)}"
    if amount:
        sentence += f"; the request needs {quantity(type_, amount)}"
    return _beyond(WaitCause.QUEUE_LIMIT, sentence, queue, None, partition, short, most - has)


def _user_full(leaf: LeafQueue, user: str, partition: str, amounts: Amounts) -> WaitReason:
    used, total = leaf.users[user].used.get(partition, {}), leaf.share(partition).total
    # The limit is compared with the largest share: the type that has it is beyond the limit.
    type_ = max(used, key=lambda name: used.get(name, 0) / total[name] if total.get(name) else 0.0)
    has, most = used.get(type_, 0), user_limit_amounts(leaf, partition, amounts).get(type_, 0)
    users = "1 active user" if leaf.active_users == 1 else f"{leaf.active_users} active users"
    sentence = (
        f"user {user} has used {quantity(type_, has)} in queue {leaf.path}{_in(partition)}, where the limit of a user "
        f"is {quantity(type_, most)} with {users}"
    )
    return _beyond(WaitCause.USER_LIMIT, sentence, leaf, user, partition, (type_, dict(amounts).get(type_, 0)), 0)


def _beyond(
    cause: WaitCause, sentence: str, queue: Queue, user: str | None, partition: str, short: tuple[str, int], room: int
) -> WaitReason:
    """An ask goes beyond a limit. `short`: the type that is short, and how much of it the ask needs; `room`: what is
    left of it, negative if more is used than the limit allows."""
    type_, needed = short
    return WaitReason(cause, sentence, queue.path, user, None, partition, type_, needed, max(0, room))


def _in(partition: str) -> str:
    return f" in partition {partition}" if partition else ""
