"""What the live containers of an attempt have together, kept up to date container by container."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, Self

from statemachines.resourcemanager.machines.rmcontainer import RMContainer, RMContainerState
from statemachines.resourcemanager.records.resource import Resource
from statemachines.resourcemanager.scheduler.core.amounts import Amounts, add, amounts_of


class UsageSum(Protocol):
    """Adds up resources over time."""

    def add(self, resource: Resource, ms: int) -> None: ...


class LiveSums:
    """Live containers by size: reading costs as much as there are sizes. One thread at a time."""

    __slots__ = ("_sizes", "containers", "running")

    def __init__(self) -> None:
        self.containers: int = 0
        self.running: int = 0  # those that their nodes have reported to run
        self._sizes: dict[Resource, list[int]] = {}  # count, and the sum of the times at which they were created

    @classmethod
    def of(cls, containers: Iterable[RMContainer]) -> Self:
        sums = cls()
        for each in containers:
            sums.add(each.request.resource, each.created_ms, each.state is RMContainerState.RUNNING)
        return sums

    def add(self, resource: Resource, created_ms: int, is_running: bool) -> None:
        self.containers += 1
        self.running += is_running
        size = self._sizes.get(resource)
        if size is None:
            self._sizes[resource] = [1, created_ms]
        else:
            size[0] += 1
            size[1] += created_ms

    def remove(self, resource: Resource, created_ms: int, is_running: bool) -> None:
        """Take back what `add` was called with."""
        self.containers -= 1
        self.running -= is_running
        size = self._sizes[resource]
        size[0] -= 1
        size[1] -= created_ms
        if not size[0]:
            del self._sizes[resource]

    def amounts(self) -> Amounts:
        """What they have."""
        amounts: dict[str, int] = {}
        for resource, (count, _) in self._sizes.items():
            add(amounts, amounts_of(resource), count)
        return tuple(amounts.items())

    def add_usage(self, to: UsageSum, now_ms: int) -> None:
        """Add what they have used until now."""
        for resource, (count, created) in self._sizes.items():
            to.add(resource, count * now_ms - created)
