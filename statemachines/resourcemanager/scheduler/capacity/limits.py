"""The limits of the capacity scheduler: of queues, of users, and of masters.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from statemachines.resourcemanager.scheduler.capacity.queues import LeafQueue, Queue, Share
from statemachines.resourcemanager.scheduler.core.amounts import Amounts, dominant_share


def full_queue(leaf: LeafQueue, partition: str, amounts: Amounts) -> Queue | None:
    """The first queue, from the root down, that `amounts` more would bring beyond its maximum, or None."""
    for level, share in enumerate(leaf.lineage_shares(partition)):
        if not share.has_room(amounts):
            return leaf.lineage[level]
    return None


def user_limit(leaf: LeafQueue, partition: str, required: Amounts) -> float:
    """The dominant share of the partition that a user who asks for `required` may have, as YARN computes it.

    The users share the queue's guarantee, or once the queue uses that, its usage and `required`. Each active user gets
    an equal part, at least the minimum user limit, at most `user_limit_factor` times the guarantee. A guarantee below
    `required` counts as `required`: otherwise no user would ever get anything in the queue.
    """
    return _limit(leaf, leaf.share(partition), required, _part(leaf, leaf.active_users))


def is_user_full(leaf: LeafQueue, user: str, partition: str, required: Amounts, newly_active: int = 0) -> bool:
    """Whether the user has reached its limit; `newly_active`: additional users to count as active.

    A user below the limit gets one more container of any size, as in YARN: with a hard bound, a container larger than
    a user's part would be pending for ever.
    """
    share, part, has = (
        leaf.share(partition),
        _part(leaf, leaf.active_users + newly_active),
        leaf.user_share(user, partition),
    )
    # The limit is never lower than this, whatever is required and used: a quick answer for most users.
    if has < share.guarantee * min(part, leaf.config.user_limit_factor):
        return False
    return has >= _limit(leaf, share, required, part)


def _part(leaf: LeafQueue, active_users: int) -> float:
    """Each active user's part of what the queue's users share."""
    least: float = leaf.config.minimum_user_limit_percent / 100
    return max(1 / active_users if active_users else 1, least)


def _limit(leaf: LeafQueue, share: Share, required: Amounts, part: float) -> float:
    guaranteed = max(share.guarantee, dominant_share(required, share.total))
    to_share = guaranteed if share.used_share < guaranteed else _with(share, required)
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


def _with(share: Share, required: Amounts) -> float:
    """The dominant share of the usage and `required`."""
    used = share.used
    more = [(type_, used.get(type_, 0) + amount) for type_, amount in required]
    return max(share.used_share, dominant_share(more, share.total))
