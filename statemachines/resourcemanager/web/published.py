"""What has been published, as far as the next publication needs it: live containers by attempt, and sums.

Containers come and go by the thousand, so they are reported one by one here, and published as copies of whole attempts:
the reader does no work for each of them. Handler thread only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from statemachines.resourcemanager.machines.rmcontainer import RMContainer, RMContainerState
from statemachines.resourcemanager.reports import ContainerReport, NodeReport, container_report
from statemachines.resourcemanager.reports.cluster import NodeSums
from statemachines.resourcemanager.reports.live_sums import LiveSums

_RUNNING: Final = RMContainerState.RUNNING.name
_NEW: Final = RMContainerState.NEW
_RESERVED: Final = RMContainerState.RESERVED


class AttemptContainers:
    """The live containers of one attempt, and their sums."""

    __slots__ = ("reports", "sums")

    def __init__(self) -> None:
        self.reports: dict[str, ContainerReport] = {}
        self.sums = LiveSums()


class Published:
    """The state that the last publication has, or the next one will have."""

    def __init__(self) -> None:
        self.nodes = NodeSums()
        self._by_attempt: dict[str, AttemptContainers] = {}  # attempts that have containers
        self._nodes: dict[str, NodeReport] = {}

    def containers_of(self, attempt_id: str) -> dict[str, ContainerReport] | None:
        """A copy, in the order of first publication; None: it has none."""
        found = self._by_attempt.get(attempt_id)
        return found.reports.copy() if found is not None else None

    def sums_of(self, attempt_id: str) -> LiveSums | None:
        found = self._by_attempt.get(attempt_id)
        return found.sums if found is not None else None

    def take_container(self, container: RMContainer, is_live: bool) -> None:
        """Report on a container that has changed. `is_live`: it has not ended."""
        id, attempt_id = container.entity, container.attempt
        attempt = self._by_attempt.get(attempt_id)
        before = attempt.reports.get(id) if attempt is not None else None
        if before is None and not is_live:
            return  # it came and went between two publications
        if attempt is not None and before is not None:
            attempt.sums.remove(before.resource, before.created_ms, before.state == _RUNNING)
        state = container.state_machine.current_state if is_live else None
        if state is None or state is _NEW or state is _RESERVED:
            if attempt is not None and before is not None:
                del attempt.reports[id]
                if not attempt.reports:
                    del self._by_attempt[attempt_id]
            return
        if attempt is None:
            attempt = self._by_attempt[attempt_id] = AttemptContainers()
        attempt.reports[id] = report = container_report(container)
        attempt.sums.add(report.resource, report.created_ms, report.state == _RUNNING)

    def take_from(self, attempts: Iterable[str], container_id: str) -> list[str]:
        """Take a container from attempts that no longer have it; returns those that had it."""
        had = []
        for attempt_id in attempts:
            attempt = self._by_attempt.get(attempt_id)
            report = attempt.reports.pop(container_id, None) if attempt is not None else None
            if attempt is not None and report is not None:
                attempt.sums.remove(report.resource, report.created_ms, report.state == _RUNNING)
                if not attempt.reports:
                    del self._by_attempt[attempt_id]
                had.append(attempt_id)
        return had

    def forget_attempt(self, attempt_id: str) -> None:
        self._by_attempt.pop(attempt_id, None)

    def attempts(self) -> list[str]:
        """Those that have containers."""
        return list(self._by_attempt)

    def take_node(self, id: str, report: NodeReport | None) -> None:
        """Take a new report of a node; None: it is gone."""
        before = self._nodes.pop(id, None)
        if before is not None:
            self.nodes.add(before.state, before.capacity, -1)
        if report is not None:
            self._nodes[id] = report
            self.nodes.add(report.state, report.capacity)
