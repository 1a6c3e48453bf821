"""Reads the openb trace, a GPU cluster of Alibaba (github.com/alibaba/clusterdata, cluster-trace-gpu-v2023).

It consists of a node list and a pod list, both CSV. A pod becomes an application without containers: its master stands
for the pod. Times in the files are seconds from the start of the trace.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from statemachines.resourcemanager.records.config import MOST_GPUS, MOST_NUMBER, WorkloadDefaults
from statemachines.resourcemanager.records.node_spec import NodeSpec
from statemachines.resourcemanager.records.resource import GPU_MILLI, Resource
from statemachines.simulation.specs import ApplicationSpec, Outcome
from statemachines.simulation.workload.model import Workload, WorkloadError
from statemachines.simulation.workload.values import (
    MOST_MS,
    CollectedWorkload,
    again,
    before,
    not_text,
    not_whole,
    shown,
)

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = (
    "name",
    "cpu_milli",
    "memory_mib",
    "num_gpu",
    "gpu_milli",
    "gpu_spec",
    "qos",
    "pod_phase",
    "creation_time",
    "deletion_time",
    "scheduled_time",
)
_PHASES = ("Running", "Succeeded", "Failed", "Pending")
_USER = "openb"


def read_openb(
    path: Path,
    node_lists: Iterable[tuple[Path, str]],
    pod_lists: Iterable[tuple[Path, str]],
    defaults: WorkloadDefaults,
    *,
    skip_bad_rows: bool,
) -> Workload:
    """The workload at `path`, which consists of node lists and pod lists (path and text of each).

    `skip_bad_rows` skips rows with a bad value; a bad header remains an error.

    Raises:
        WorkloadError: a bad value (unless skipped), a list without nodes, or no pods.
    """
    reader = _OpenbReader(defaults, skip_bad_rows)
    for file, text in node_lists:
        reader.read_nodes(file, text)
    for file, text in pod_lists:
        reader.read_pods(file, text)
    return reader.workload(path)


def header_cells(line: str) -> list[str]:
    """The column names in the first line of a CSV; empty if it is not CSV."""
    try:
        return next(csv.reader([line.strip()], strict=True), [])
    except csv.Error:
        return []


@dataclass(frozen=True, slots=True)
class _CsvRow:
    path: Path
    number: int
    cells: dict[str, str]

    def error(self, column: str, problem: str) -> WorkloadError:
        return WorkloadError(self.path, problem, row=self.number, column=column)

    def text(self, column: str) -> str:
        cell = self.cells[column]
        if not cell or not cell.isprintable():
            raise self.error(column, not_text(cell))
        return cell

    def whole(self, column: str, *, least: int = 0, most: int = MOST_NUMBER) -> int:
        cell = self.cells[column]
        # int() also accepts signs, blanks and underscores, and is slow with thousands of digits.
        if cell.isascii() and cell.isdigit() and len(cell) <= 16:
            number = int(cell)
            if least <= number <= most:
                return number
        raise self.error(column, not_whole(cell, least, most))

    def seconds_as_ms(self, column: str) -> int:
        return self.whole(column, most=MOST_MS // 1000) * 1000


class _CsvTable:
    """The rows of one CSV file. A row is a line, so an unclosed quote affects its own line only."""

    def __init__(self, path: Path, text: str, columns: Collection[str]) -> None:
        self._path = path
        self._lines = enumerate(io.StringIO(text, newline=None), start=1)
        row, line = next((row, line) for row, line in self._lines if line.strip())
        self._header = header_cells(line)
        for column in columns:
            times = self._header.count(column)
            if times != 1:
                problem = f"found this column {times} times in the header, expected it once"
                raise WorkloadError(path, problem, row=row, column=column)

    def lines(self) -> Iterable[tuple[int, str]]:
        """Number and text of each line below the header that is not blank."""
        return ((row, line.rstrip("\n")) for row, line in self._lines if line.strip())

    def row(self, number: int, line: str) -> _CsvRow:
        try:
            cells = next(csv.reader([line], strict=True))
        except csv.Error as error:
            raise WorkloadError(self._path, f"not CSV: {error}", row=number) from None
        if len(cells) != len(self._header):
            # Too few: name the first column without a cell. Too many: the surplus cell is unknown, so name the last.
            column = self._header[min(len(cells), len(self._header) - 1)]
            problem = f"found {len(cells)} cells, expected {len(self._header)}"
            raise WorkloadError(self._path, problem, row=number, column=column)
        return _CsvRow(self._path, number, dict(zip(self._header, cells, strict=True)))


class _OpenbReader(CollectedWorkload):
    """Collects the rows of all the files of one workload."""

    def __init__(self, defaults: WorkloadDefaults, skip_bad_rows: bool) -> None:
        super().__init__(skip_bad_rows)
        self._nodes_per_rack = defaults.nodes_per_rack

    def read_nodes(self, path: Path, text: str) -> None:
        table = _CsvTable(path, text, NODE_COLUMNS)
        nodes_before = len(self._nodes)
        for number, line in table.lines():
            try:
                self._add_node(table.row(number, line))
            except WorkloadError as error:
                self._refuse(error)
        if len(self._nodes) == nodes_before:
            raise WorkloadError(path, f"no nodes in it{self._left_out()}; expected rows of {','.join(NODE_COLUMNS)}")

    def read_pods(self, path: Path, text: str) -> None:
        table = _CsvTable(path, text, POD_COLUMNS)
        for number, line in table.lines():
            try:
                self._add_pod(table.row(number, line))
            except WorkloadError as error:
                self._refuse(error)

    def workload(self, path: Path) -> Workload:
        if not self._applications:
            raise WorkloadError(path, f"no pods in it{self._left_out()}; expected rows of {','.join(POD_COLUMNS)}")
        return self._workload(path)

    def _add_node(self, row: _CsvRow) -> None:
        host = row.text("sn")
        if host in self._nodes:
            raise row.error("sn", again(host))
        capacity = Resource(row.whole("memory_mib"), row.whole("cpu_milli"), gpus=row.whole("gpu", most=MOST_GPUS))
        model = row.text("model") if row.cells["model"] else None
        rack = f"/rack{len(self._nodes) // self._nodes_per_rack}"
        self._nodes[host] = NodeSpec(host, capacity, rack, gpu_model=model)

    def _add_pod(self, row: _CsvRow) -> None:
        name = row.text("name")
        if name in self._applications:
            raise row.error("name", again(name))
        phase = row.cells["pod_phase"]
        if phase not in _PHASES:
            raise row.error("pod_phase", f"found {shown(phase)}, expected one of {', '.join(_PHASES)}")
        submit_ms = row.seconds_as_ms("creation_time")
        deletion_ms = row.seconds_as_ms("deletion_time")
        pending = phase == "Pending"
        if pending and row.cells["scheduled_time"]:
            found = shown(row.cells["scheduled_time"])
            raise row.error("scheduled_time", f"found {found}, expected nothing: a Pending pod never ran")
        scheduled_ms = submit_ms if pending else _scheduled_ms(row, submit_ms, deletion_ms)
        self._applications[name] = ApplicationSpec(
            name=name,
            submit_ms=submit_ms,
            am_resource=_pod_resource(row),
            user=_USER,
            queue=row.text("qos"),
            am_duration_ms=None if pending else deletion_ms - scheduled_ms,
            outcome=Outcome.FAILED if phase == "Failed" else Outcome.FINISHED,
            kill_ms=max(deletion_ms, submit_ms) if pending else None,
            max_attempts=1,
            gpu_models=_gpu_models(row),
            recorded_wait_ms=None if pending else scheduled_ms - submit_ms,
        )


def _scheduled_ms(row: _CsvRow, submit_ms: int, deletion_ms: int) -> int:
    """When the pod was scheduled; it ran until its deletion."""
    scheduled_ms = row.seconds_as_ms("scheduled_time")
    if scheduled_ms < submit_ms:
        raise row.error("scheduled_time", before(scheduled_ms // 1000, "creation_time", submit_ms // 1000))
    if deletion_ms < scheduled_ms:
        raise row.error("deletion_time", before(deletion_ms // 1000, "scheduled_time", scheduled_ms // 1000))
    return scheduled_ms


def _pod_resource(row: _CsvRow) -> Resource:
    gpus = row.whole("num_gpu")
    gpu_milli = row.whole("gpu_milli", least=1 if gpus else 0, most=GPU_MILLI)
    return Resource(
        row.whole("memory_mib"), row.whole("cpu_milli"), gpus=gpus, gpu_milli=gpu_milli if gpus else GPU_MILLI
    )


def _gpu_models(row: _CsvRow) -> frozenset[str]:
    if not row.cells["gpu_spec"]:
        return frozenset()
    models = row.text("gpu_spec").split("|")
    if "" in models:
        found = shown(row.cells["gpu_spec"])
        raise row.error("gpu_spec", f"found {found}, expected node models joined by |")
    return frozenset(models)
