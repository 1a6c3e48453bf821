"""How much a user may still get in a queue.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from statemachines.resourcemanager.scheduler.capacity.limits import part_of, user_limit
from statemachines.resourcemanager.scheduler.capacity.queues import LeafQueue
from statemachines.resourcemanager.scheduler.core.amounts import Amounts


def user_room(leaf: LeafQueue, user: str, partition: str, required: Amounts) -> dict[str, int]:
    """What the user limit of one who asks for `required` leaves of the partition, by type; never negative."""
    used = leaf.users[user].used.get(partition, {})
    limit, total = user_limit(leaf, partition, required), leaf.share(partition).total
    return {type_: max(0, part_of(whole, limit) - used.get(type_, 0)) for type_, whole in total.items()}


def headroom(leaf: LeafQueue, user: str, partition: str, required: Amounts) -> list[tuple[str, int]]:
    """What the user may still get in the partition, by type: within its limit, all queues' maxima and the free room.

    As YARN's CapacityHeadroomProvider computes it. The root's maximum is the partition.
    """
    room = []
    for type_, left in user_room(leaf, user, partition, required).items():
        lefts = [share.limit.get(type_, 0) - share.used.get(type_, 0) for share in leaf.lineage_shares(partition)]
        least = min(left, *lefts)
        if least > 0:
            room.append((type_, least))
    return room
