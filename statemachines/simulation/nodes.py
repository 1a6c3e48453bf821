"""What simulated node managers know: their running containers, and the changes to report. Handler thread only."""

from __future__ import annotations

import heapq
import zlib

from statemachines.resourcemanager.events.records import EXIT_SUCCESS, ContainerStatus
from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.records.node_spec import NodeSpec
from statemachines.simulation.agenda import ScheduledCall

PHASES = 10
"""The number of different times in an interval at which heartbeats are sent in virtual time."""
REGULAR_PHASES = 50
"""The same in real time: the heartbeats of one phase keep the handler thread for a few ms, even of 10,000 nodes."""


class SimulatedNode:
    """One node manager: its running containers, and the changes that it has not reported yet.

    It ends due tasks only when it reports: before that, the difference cannot be observed.
    """

    # Two dozen containers run on each of 20,000 nodes, so none has an object of its own here.
    __slots__ = ("ends", "finished", "id", "launched", "phase", "report", "report_ms", "running", "spare", "spec")

    def __init__(self, node_id: str, spec: NodeSpec, interval_ms: int, phases: int) -> None:
        self.id = node_id
        self.spec = spec
        self.running: dict[str, RMContainer] = {}  # by id
        # A heap of (end, order of the starts, container); the container may have ended before.
        self.ends: list[tuple[int, int, str]] = []
        self.launched: list[str] = []
        self.finished: list[ContainerStatus] = []
        self.report: ScheduledCall | None = None  # the next heartbeat in the agenda
        self.report_ms = 0  # when that is
        self.spare: ScheduledCall | None = None  # the last heartbeat, which the next one may use again
        # A few phases: not all nodes report at once, and the reports of one phase are handled in one batch.
        self.phase = zlib.crc32(node_id.encode()) % phases * interval_ms // phases

    def end_due(self, now_ms: int) -> None:
        """End the tasks whose time has come."""
        ends, running = self.ends, self.running
        while ends and ends[0][0] <= now_ms:
            _, _, container_id = heapq.heappop(ends)
            if running.pop(container_id, None) is not None:
                self.finished.append(ContainerStatus(container_id, EXIT_SUCCESS))

    def next_end_ms(self) -> int | None:
        """When the next task ends; None: none runs that ends by itself."""
        ends, running = self.ends, self.running
        while ends:
            end_ms, _, container_id = ends[0]
            if container_id in running:
                return end_ms
            heapq.heappop(ends)
        return None
