"""What all workload readers share: the bounds of values, the messages for bad ones, and what is collected."""

from __future__ import annotations

import json
from pathlib import Path

from statemachines.resourcemanager.records.node_spec import NodeSpec
from statemachines.simulation.specs import ApplicationSpec
from statemachines.simulation.workload.model import Workload, WorkloadError

MOST_MS = 100 * 366 * 24 * 3600 * 1000
"""100 years. The journal keeps int64 nanoseconds, which microseconds mistaken for ms would overflow."""
MOST_CONTAINERS = 10_000_000
"""In one workload: a count with too many zeros must be an error, not exhaust the memory."""
MOST_NODES = 1_000_000


def shown(value: object) -> str:
    """The value as in the file, shortened, on one line and in ASCII."""
    if value is None or value == "":
        return "nothing"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def not_whole(value: object, least: int, most: int) -> str:
    return f"found {shown(value)}, expected a whole number from {least} to {most}"


def not_text(value: object) -> str:
    return f"found {shown(value)}, expected text without control characters"


def before(value: int, key: str, earlier: int) -> str:
    """The problem of a time before the time of `key`."""
    return f"found {value}, which is before {key}; expected {earlier} or more"


def again(name: str) -> str:
    return f"found {shown(name)} again, expected each name once"


class CollectedWorkload:
    """The nodes, applications and bad rows in the files of one workload so far."""

    def __init__(self, skip_bad_rows: bool) -> None:
        self._skip_bad_rows = skip_bad_rows
        self._nodes: dict[str, NodeSpec] = {}
        self._applications: dict[str, ApplicationSpec] = {}
        self._bad_rows: list[WorkloadError] = []

    def _refuse(self, error: WorkloadError) -> None:
        if not self._skip_bad_rows:
            raise error
        self._bad_rows.append(error)

    def _left_out(self) -> str:
        return f" ({len(self._bad_rows)} bad rows left out)" if self._bad_rows else ""

    def _workload(self, path: Path) -> Workload:
        absolute = path.resolve()
        name = absolute.name if absolute.is_dir() else Path(absolute.name.removesuffix(".gz")).stem
        applications = sorted(self._applications.values(), key=lambda application: application.submit_ms)
        return Workload(name, tuple(self._nodes.values()), tuple(applications), tuple(self._bad_rows))
