"""The limits of the capacity scheduler: of queues, of their users, and of what masters may have.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from statemachines.resourcemanager.scheduler.capacity.queues import LeafQueue, Queue, Share
from statemachines.resourcemanager.scheduler.core.amounts import Amounts, dominant_share


def full_queue(leaf: LeafQueue, partition: str, amounts: Amounts) -> Queue | None:
    """The first queue, from the root down, that `amounts` more would bring beyond its maximum; None: they may come."""
    for level, share in enumerate(leaf.lineage_shares(partition)):
        if not share.has_room(amounts):
            return leaf.lineage[level]
    return None


def user_limit(leaf: LeafQueue, partition: str, required: Amounts) -> float:
    """How much of the partition a user may have that asks for `required`: a dominant share.

    As YARN computes it. What there is to share is the queue's guarantee, or what it uses and `required`, once it has
    grown beyond. Each active user gets an equal part of that, the configured minimum at least, and never more than so
    many times the guarantee as configured. A queue whose guarantee is less than `required` counts as if it were that
    much: otherwise no user would ever get anything there.
    """
    return _limit(leaf, leaf.share(partition), required, _part(leaf, leaf.active_users))


def is_user_full(leaf: LeafQueue, user: str, partition: str, required: Amounts, newly_active: int = 0) -> bool:
    """Whether the user has its limit; `newly_active`: users that count as active, too.

    A user below it gets one more container whatever its size, as in YARN: the user limit is a soft bound, or a
    container greater than a user's part would be pending for ever.
    """
    share, part, has = (
        leaf.share(partition),
        _part(leaf, leaf.active_users + newly_active),
        leaf.user_share(user, partition),
    )
    # The limit is this at least, whatever is required and used: most have less.
    if has < share.guarantee * min(part, leaf.config.user_limit_factor):
        return False
    return has >= _limit(leaf, share, required, part)


def _part(leaf: LeafQueue, active_users: int) -> float:
    """Of what there is to share, for each active user."""
    least: float = leaf.config.minimum_user_limit_percent / 100
    return max(1 / active_users if active_users else 1, least)


def _limit(leaf: LeafQueue, share: Share, required: Amounts, part: float) -> float:
    guaranteed = max(share.guarantee, dominant_share(required, share.total))
    to_share = guaranteed if share.used_share < guaranteed else _with(share, required)
    return min(to_share * part, guaranteed * leaf.config.user_limit_factor)


def has_room_for_master(leaf: LeafQueue, partition: str, amounts: Amounts) -> bool:
    """Whether the masters may have `amounts` more. One application may always run, however big its master."""
    if not leaf.active:
        return True
    share = leaf.am_share
    limit, used = leaf.share(partition).limit, leaf.masters_used.get(partition, {})
    return all(
        used.get(type_, 0) + amount <= limit.get(type_, 0) * share.numerator // share.denominator
        for type_, amount in amounts
    )


def _with(share: Share, required: Amounts) -> float:
    """The dominant share of what is used and `required`."""
    used = share.used
    more = [(type_, used.get(type_, 0) + amount) for type_, amount in required]
    return max(share.used_share, dominant_share(more, share.total))
