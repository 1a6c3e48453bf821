"""A workload, independent of its file format."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from dispatcher.errors import DispatcherError
from statemachines.resourcemanager.node_spec import NodeSpec
from statemachines.resourcemanager.resource_manager import ResourceManager
from statemachines.simulation.specs import ApplicationSpec
from statemachines.simulation.workload_runner import RecordedWaits, WorkloadRunner


class WorkloadError(DispatcherError):
    """A workload file is not valid. The message is one line that can be shown to a user."""

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
    """Nodes, and applications in the order of submission, which may be generated while they are iterated over once."""

    name: str
    nodes: tuple[NodeSpec, ...]
    applications: Collection[ApplicationSpec]
    bad_rows: tuple[WorkloadError, ...] = field(default=())
    """The rows that --skip-bad-rows skipped."""

    @property
    def container_count(self) -> int:
        """All containers, including the masters'."""
        return sum(1 + len(application.containers) for application in self.applications)

    def join(self, manager: ResourceManager) -> RecordedWaits:
        """Have a resource manager's handler thread register the nodes, and submit each application at its time.

        Any thread; the workload's time 0 is when the handler thread starts it. A resource manager without node managers
        is connected to simulated ones. Returns the comparison of waits, to be read after the end.
        """
        runner = WorkloadRunner(manager, self.nodes, self.applications)
        manager.dispatcher.mailbox_executor.execute(runner.start, "start of workload %s", self.name)
        return runner.waits
