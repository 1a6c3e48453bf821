"""What simulated node managers know: their running containers, and the changes to report. Handler thread only."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from dispatcher.util.heap import TimedHeap
from statemachines.resourcemanager.events.records import ContainerStatus
from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.node_spec import NodeSpec
from statemachines.simulation.agenda import ScheduledCall

PHASES = 10
"""The number of different times in an interval at which heartbeats are sent in virtual time."""
REGULAR_PHASES = 50
"""The same in real time: the heartbeats of one phase keep the handler thread for a few ms, even of 10,000 nodes."""


@dataclass(slots=True, eq=False)
class SimulatedTask:
    """A running container."""

    container: RMContainer
    node: SimulatedNode
    stopped: bool = False


class SimulatedNode:
    """One node manager: its running containers, and the changes that it has not reported yet.

    It ends due tasks only when it reports: before that, the difference cannot be observed.
    """

    __slots__ = ("ends", "finished", "id", "launched", "phase", "report", "report_ms", "running", "spare", "spec")

    def __init__(self, node_id: str, spec: NodeSpec, interval_ms: int, phases: int) -> None:
        self.id = node_id
        self.spec = spec
        self.running: dict[str, SimulatedTask] = {}
        self.ends: TimedHeap[SimulatedTask] = TimedHeap()
        self.launched: list[str] = []
        self.finished: list[ContainerStatus] = []
        self.report: ScheduledCall | None = None  # the next heartbeat in the agenda
        self.report_ms = 0  # when that is
        self.spare: ScheduledCall | None = None  # the last heartbeat, which the next one may use again
        # A few phases: not all nodes report at once, and the reports of one phase are handled in one batch.
        self.phase = zlib.crc32(node_id.encode()) % phases * interval_ms // phases
