"""How much each queue should have of a partition, and how much it has to give back to queues that are starved.

After YARN's PreemptableResourceCalculator. Level by level, the parent's ideal amount is divided among its children.
Each first gets what it has, at most its guarantee, and beyond that what cannot be taken from it. What is left goes to
those that want more, the neediest first, by their guarantees: a leaf up to its guarantee or to what it has. A queue
that has more than its ideal amount then gives back the difference.

Pure: no dispatcher, no containers, no locks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from statemachines.resourcemanager.scheduler.core.amounts import dominant_share

Sums = dict[str, int]
"""Amounts by type."""


@dataclass(slots=True, eq=False)
class QueueDemand:
    """A queue's part of one partition. Call `balance` on the root; then read `give_back` of the leaves."""

    path: str
    guaranteed: Mapping[str, int]
    maximum: Mapping[str, int]
    used: Mapping[str, int]
    wanted: Sums  # by pending asks, as far as the limits of their users allow; of a parent, its children's
    priority: int = 0
    is_protected: bool = False  # nothing may be taken from it
    children: Sequence[QueueDemand] = ()
    ideal: Sums = field(default_factory=dict)
    give_back: Sums = field(default_factory=dict)
    _takeable: Sums = field(default_factory=dict)  # what it has beyond its guarantee, without protected parts
    _kept: Sums = field(default_factory=dict)  # the protected part of what it has beyond its guarantee

    def balance(self, total: Mapping[str, int], allowed: Mapping[str, int]) -> None:
        """Divide the partition, whose size is `total`; each level gives back at most `allowed`."""
        self._find_protected()
        self.ideal = dict(total)
        self._divide(total, allowed)

    def _find_protected(self) -> None:
        for child in self.children:
            child._find_protected()
        beyond = _less(self.used, self.guaranteed)
        if self.children:
            takeable = _sum([child._takeable for child in self.children])
            self._kept, self._takeable = _less(beyond, takeable), _least(beyond, takeable)
        else:
            self._kept, self._takeable = (beyond, {}) if self.is_protected else ({}, beyond)

    def _divide(self, total: Mapping[str, int], allowed: Mapping[str, int]) -> None:
        if not self.children:
            return
        left = dict(self.ideal)
        with_guarantee = [child for child in self.children if any(child.guaranteed.values())]
        _assign(with_guarantee, left, total)
        _assign([child for child in self.children if child not in with_guarantee], left, total)
        needed = dominant_share(_sum([_less(child.used, child.ideal) for child in self.children]).items(), total)
        most = dominant_share(allowed.items(), total)
        scale = min(1.0, most / needed) if needed else 0.0
        for child in self.children:
            least = _most(child.ideal, _least(_plus(child.used, child.wanted), child.guaranteed))
            child.give_back = {type_: math.ceil(n * scale) for type_, n in _less(child.used, least).items()}
            child._divide(total, allowed)

    def need(self, total: Mapping[str, int]) -> tuple[bool, int, float]:
        """The sort key among siblings: those below their guarantee, then by priority, then the least served."""
        guaranteed = dominant_share(self.guaranteed.items(), total)
        share = dominant_share(self.ideal.items(), total) / guaranteed if guaranteed else float("inf")
        return share >= 1, -self.priority, share

    def accept(self, offered: Sums) -> Sums:
        """Take of the offer what it wants and may have."""
        wants = _least(_less(_plus(self.used, self.wanted), self.ideal), _less(self.maximum, self.ideal))
        if not self.children:
            # Beyond their guarantees queues take what is free, and nothing is taken from others for them.
            wants = _least(wants, _less(_most(self.used, self.guaranteed), self.ideal))
        accepted = _least(offered, wants)
        self.ideal = _plus(self.ideal, accepted)
        return accepted


def _assign(queues: Sequence[QueueDemand], left: Sums, total: Mapping[str, int]) -> None:
    """Set the ideal amounts of siblings from what is `left` of their parent's; takes it from there."""
    wanting: list[QueueDemand] = []
    for queue in queues:
        if dominant_share(queue.used.items(), total) > dominant_share(queue.guaranteed.items(), total):
            queue.ideal = _plus(queue.guaranteed, queue._kept)
        else:
            queue.ideal = dict(queue.used)
        _take(left, queue.ideal)
        if _less(_plus(queue.used, queue.wanted), queue.ideal):
            wanting.append(queue)
    while wanting and any(amount > 0 for amount in left.values()):
        whole = _sum([queue.guaranteed for queue in wanting])
        neediest = min(queue.need(total) for queue in wanting)
        first = [queue for queue in wanting if queue.need(total) == neediest]
        parts = [(queue, {t: _part(queue, t, n, whole, len(wanting)) for t, n in left.items()}) for queue in first]
        for queue, offered in parts:
            accepted = queue.accept(_least(offered, {type_: max(0, n) for type_, n in left.items()}))
            _take(left, accepted)
            if not accepted:
                wanting.remove(queue)


def _part(queue: QueueDemand, type_: str, amount: int, whole: Mapping[str, int], count: int) -> int:
    """The queue's part of `amount`: by guarantees, or equal parts if there are none. Rounded up, so the rounds end."""
    all_ = whole.get(type_, 0)
    return -(-amount * queue.guaranteed.get(type_, 0) // all_) if all_ else -(-amount // count)


def _plus(one: Mapping[str, int], other: Mapping[str, int]) -> Sums:
    return {type_: one.get(type_, 0) + other.get(type_, 0) for type_ in {**one, **other}}


def _less(one: Mapping[str, int], other: Mapping[str, int]) -> Sums:
    """`one` less `other`; types of which nothing is left are dropped."""
    return {type_: amount - other.get(type_, 0) for type_, amount in one.items() if amount > other.get(type_, 0)}


def _least(one: Mapping[str, int], other: Mapping[str, int]) -> Sums:
    """The lesser amount of each type; types with 0 are dropped."""
    least = {type_: min(amount, other.get(type_, 0)) for type_, amount in one.items()}
    return {type_: amount for type_, amount in least.items() if amount > 0}


def _most(one: Mapping[str, int], other: Mapping[str, int]) -> Sums:
    return {type_: max(one.get(type_, 0), other.get(type_, 0)) for type_ in {**one, **other}}


def _sum(all_: Sequence[Mapping[str, int]]) -> Sums:
    total: Sums = {}
    for each in all_:
        total = _plus(total, each)
    return total


def _take(left: Sums, amounts: Mapping[str, int]) -> None:
    for type_, amount in amounts.items():
        left[type_] = left.get(type_, 0) - amount
