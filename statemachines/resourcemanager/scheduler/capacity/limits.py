"""The capacity scheduler's limits: of queues, of users, of masters, and of applications.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from dispatcher.util.figures import counted
from statemachines.resourcemanager.scheduler.capacity.queues import LeafQueue, Queue, QueueTree, Share
from statemachines.resourcemanager.scheduler.core.amounts import Amounts, dominant_share

_ROUNDING = 1 + 1e-12  # the error of a share, as a float


def full_queue(leaf: LeafQueue, partition: str, amounts: Amounts, unreserved: Amounts | None = None) -> Queue | None:
    """The first queue, from the root down, that `amounts` more would bring beyond its maximum, or None.

    `unreserved`: what would be given up for them, perhaps nothing; None: all reservations count in all queues.
    """
    for level, share in enumerate(leaf.lineage_shares(partition)):
        if not share.has_room(amounts) and not share.has_room_without(unreserved, amounts):
            return leaf.lineage[level]
    return None


def user_limit(leaf: LeafQueue, partition: str, required: Amounts) -> float:
    """The dominant share of the partition that a user who asks for `required` may have, as YARN computes it.

    The users share the queue's guarantee, or once the queue uses that, its usage and `required`. Each active user gets
    an equal part, at least the minimum user limit, at most `user_limit_factor` times the guarantee. A guarantee below
    `required` counts as `required`: otherwise no user would ever get anything in the queue.
    """
    return _limit(leaf, leaf.share(partition), required, _part(leaf, leaf.active_users))


def is_user_full(
    leaf: LeafQueue,
    user: str,
    partition: str,
    required: Amounts,
    newly_active: int = 0,
    unreserved: Amounts = (),
) -> bool:
    """Whether the user has more than its limit.

    `newly_active`: additional users to count as active; `unreserved`: what would be given up of the user's.

    A user at or below the limit gets one more container of any size, as in YARN: with a hard bound, a container larger
    than a user's part would be pending for ever.
    """
    share, part, has = (
        leaf.share(partition),
        _part(leaf, leaf.active_users + newly_active),
        leaf.user_share(user, partition, unreserved),
    )
    # The limit is never lower than this, whatever is required and used: a quick answer for most users.
    if has <= share.guarantee * min(part, leaf.config.user_limit_factor):
        return False
    return exceeds(has, _limit(leaf, share, required, part))


def exceeds(share: float, limit: float) -> bool:
    """Whether a user's share is beyond its limit, strictly: not by the rounding of a fraction alone."""
    return share > limit * _ROUNDING


def _part(leaf: LeafQueue, active_users: int) -> float:
    """Each active user's part of what the queue's users share."""
    least: float = leaf.config.minimum_user_limit_percent / 100
    return max(1 / active_users if active_users else 1, least)


def _limit(leaf: LeafQueue, share: Share, required: Amounts, part: float) -> float:
    guaranteed = max(share.guarantee, dominant_share(required, share.total))
    to_share = guaranteed
    if share.used_share >= guaranteed:
        more = [(type_, share.used.get(type_, 0) + amount) for type_, amount in required]
        to_share = max(share.used_share, dominant_share(more, share.total))
    return min(to_share * part, guaranteed * leaf.config.user_limit_factor)


def has_room_for_master(leaf: LeafQueue, partition: str, amounts: Amounts) -> bool:
    """Whether the share of masters has room for `amounts` more. One application may always run."""
    if not leaf.active:
        return True
    share = leaf.am_share
    limit, used = leaf.share(partition).limit, leaf.masters_used.get(partition, {})
    return all(
        used.get(type_, 0) + amount <= limit.get(type_, 0) * share.numerator // share.denominator
        for type_, amount in amounts
    )


def has_room_for_users_master(leaf: LeafQueue, user: str, partition: str, amounts: Amounts) -> bool:
    """Whether the user's part of the share of masters has room for `amounts` more. It may always run one application.

    YARN rounds the part up to the least allocation instead, with the same effect.
    """
    entry = leaf.users[user]
    if not entry.active_applications:
        return True
    limit, used = user_master_limit(leaf, partition), entry.masters.get(partition, {})
    return all(used.get(type_, 0) + amount <= limit.get(type_, 0) for type_, amount in amounts)


def master_limit(leaf: LeafQueue, partition: str) -> dict[str, int]:
    """What the masters of active applications may use, by type."""
    share = leaf.am_share
    limit = leaf.share(partition).limit
    return {type_: amount * share.numerator // share.denominator for type_, amount in limit.items()}


def user_master_limit(leaf: LeafQueue, partition: str) -> dict[str, int]:
    """What the masters of one user's active applications may use, by type: its part of the guarantee, as in YARN."""
    share = leaf.share(partition)
    most = share.guarantee * _part(leaf, leaf.active_users) * leaf.config.user_limit_factor * float(leaf.am_share)
    limit = master_limit(leaf, partition)
    return {type_: min(amount, part_of(share.total.get(type_, 0), most)) for type_, amount in limit.items()}


def user_limit_amounts(leaf: LeafQueue, partition: str, required: Amounts = ()) -> dict[str, int]:
    """The user limit by type, at most the queue's maximum."""
    share, limit = leaf.share(partition), user_limit(leaf, partition, required)
    return {type_: min(amount, part_of(share.total.get(type_, 0), limit)) for type_, amount in share.limit.items()}


def part_of(amount: int, share: float) -> int:
    """Rounded down, but not for the error of a float; at most `amount`: a type that no node has makes it infinite."""
    return int(amount * min(1.0, share * _ROUNDING))


def why_closed(
    tree: QueueTree, name: str, user: str, labels: Iterable[str | None], is_in: Collection[Queue] = ()
) -> str | None:
    """Why the queue accepts no new application; the queues `is_in` have and count the application already."""
    queue = tree.find(name)
    if queue is None:
        return f"queue {name} does not exist; queues that accept applications: {', '.join(sorted(tree.leaves))}"
    if not isinstance(queue, LeafQueue):
        return f"queue {queue.path} is a parent queue and does not accept applications"
    for above in queue.lineage:
        if above.config.state != "RUNNING":
            return f"queue {above.path} is stopped and does not accept new applications"
        most = above.maximum_applications
        if above not in is_in and most is not None and above.applications >= most:
            return f"queue {above.path} already has {counted(above.applications, 'application')}, its maximum"
    entry = queue.users.get(user)
    if queue not in is_in and entry is not None and entry.applications >= queue.maximum_applications_per_user:
        held = counted(entry.applications, "application")
        return f"queue {queue.path} already has {held} of user {user}, its maximum for one user"
    for label in labels:
        if label and not queue.may_use(label):
            return f"queue {queue.path} may not use partition {label}"
    return None
