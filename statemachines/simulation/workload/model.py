"""A workload in the simulator's own terms, whatever file it was read from."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from dispatcher.errors import DispatcherError
from statemachines.resourcemanager.node_spec import NodeSpec
from statemachines.resourcemanager.resource_manager import ResourceManager
from statemachines.simulation.recorded_waits import RecordedWaits
from statemachines.simulation.specs import ApplicationSpec
from statemachines.simulation.workload_runner import WorkloadRunner


class WorkloadError(DispatcherError):
    """A workload file is wrong. One line, fit to be shown to a user as it is."""

    def __init__(self, path: Path, problem: str, *, row: int | None = None, column: str | int | None = None) -> None:
        self.path = path
        self.row = row
        self.column = column
        self.problem = problem
        place = str(path)
        if row is not None:
            place += f", row {row}"
        if column is not None:
            place += f", column {column}"
        super().__init__(f"{place}: {problem}")


@dataclass(frozen=True, slots=True)
class Workload:
    """Nodes, and applications in the order of their submission.

    `applications` may make them as they are gone through, once: it need not hold them.
    """

    name: str
    nodes: tuple[NodeSpec, ...]
    applications: Collection[ApplicationSpec]
    bad_rows: tuple[WorkloadError, ...] = field(default=())
    """What --skip-bad-rows left out."""

    @property
    def container_count(self) -> int:
        """Containers that the workload asks for, masters included."""
        return sum(1 + len(application.containers) for application in self.applications)

    def join(self, manager: ResourceManager) -> RecordedWaits:
        """Have a resource manager's handler thread register the nodes, and submit each application at its time.

        Any thread; the workload's time 0 is when the handler thread gets to it. The nodes are simulated: a resource
        manager without node managers is connected to simulated ones. Returns what is found out about the waits of the
        applications, to be read once all is over.
        """
        runner = WorkloadRunner(manager, self.nodes, self.applications)
        manager.dispatcher.mailbox_executor.execute(runner.start, "start of workload %s", self.name)
        return runner.waits
