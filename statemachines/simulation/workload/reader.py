"""Reads a workload file or folder in either format: Hadoop SLS (JSON) or openb (CSV), plain or packed with gzip."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from enum import Enum
from pathlib import Path

from dispatcher.util.functions import path_of
from statemachines.resourcemanager.records.config import WorkloadDefaults
from statemachines.simulation.workload.foreign import foreign_text, packed_as
from statemachines.simulation.workload.model import Workload, WorkloadError
from statemachines.simulation.workload.openb import NODE_COLUMNS, POD_COLUMNS, header_cells, read_openb
from statemachines.simulation.workload.sls import read_sls
from statemachines.simulation.workload.values import shown

_SUFFIXES = (".csv", ".json", ".csv.gz", ".json.gz")
_GZIP = b"\x1f\x8b"
_MOST_BYTES = 4 << 30
_SLS_DEFAULTS = WorkloadDefaults()
_HEADER_BYTES = 64 * 1024
_FIRST_LINE = re.compile(rf"\S[^\r\n]{{0,{_HEADER_BYTES}}}")
_NODE_LIST = f"a CSV with the header {','.join(NODE_COLUMNS)}"
_EXPECTED = f"expected Hadoop SLS (JSON objects), {_NODE_LIST}, or one with {','.join(POD_COLUMNS)}"


class _Format(Enum):
    SLS = "SLS JSON"
    NODES = "an openb node list"
    PODS = "an openb pod list"


def read_workload(
    path: Path | str,
    defaults: WorkloadDefaults = _SLS_DEFAULTS,
    *,
    skip_bad_rows: bool = False,
    needs_nodes: bool = True,
) -> Workload:
    """Read the workload in a file, or in the *.csv and *.json files of a folder (without subfolders).

    The names can end in .gz. The content determines the format, and whether it's compressed. The node list of a single
    pod list is looked up in the same folder. `skip_bad_rows` skips rows (CSV) and objects (JSON) with a bad value and
    lists them in `Workload.bad_rows`. Bad JSON is read up to the error. An error in a whole file is raised. A workload
    without nodes is one, unless you have nodes and pass False for `needs_nodes`.

    Raises:
        WorkloadError: the only error that any content can cause. It says what is wrong, where, and what was expected.
    """
    path = path_of(path)
    try:
        files = _files_in(path) if path.is_dir() else [path]
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    texts = {file: _text(file) for file in files}
    formats = {file: _format(file, text) for file, text in texts.items()}
    found = set(formats.values())
    if _Format.SLS in found:
        if len(found) > 1:
            raise _mixed(path, formats)
        return read_sls(path, texts.items(), defaults, skip_bad_rows=skip_bad_rows, needs_nodes=needs_nodes)
    pod_lists = [file for file in files if formats[file] is _Format.PODS]
    node_lists = [file for file in files if formats[file] is _Format.NODES]
    if not pod_lists:
        raise WorkloadError(path, "a node list without pods; give the folder with the pod list, or the pod list")
    if not node_lists and needs_nodes:
        node_list = _node_list_for(path)
        node_lists, texts[node_list] = [node_list], _text(node_list)
    return read_openb(
        path,
        [(file, texts[file]) for file in node_lists if needs_nodes],
        [(file, texts[file]) for file in pod_lists],
        defaults,
        skip_bad_rows=skip_bad_rows,
    )


def _files_in(folder: Path) -> list[Path]:
    files = [file for file in sorted(folder.iterdir()) if _is_candidate(file)]
    if not files:
        raise WorkloadError(folder, "no *.csv or *.json files in this folder, plain or packed (.gz)")
    return files


def _is_candidate(file: Path) -> bool:
    return file.name.lower().endswith(_SUFFIXES) and not file.name.startswith(".") and file.is_file()


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    if data.startswith(_GZIP):
        data = _unpacked(path, data)
    packed = packed_as(data)
    if packed is not None:
        raise WorkloadError(path, f"packed with {packed}; expected plain text or gzip: unpack it first")
    if b"\0" in data:
        row = data.count(b"\n", 0, data.index(b"\0")) + 1
        raise WorkloadError(path, "binary (found a zero byte), expected text in UTF-8", row=row)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # Its positions count from after the byte order mark.
        row = error.object.count(b"\n", 0, error.start) + 1
        found = f"found byte 0x{error.object[error.start]:02x}"
        raise WorkloadError(path, f"{found}, expected text in UTF-8", row=row) from None
    if not text or text.isspace():
        raise WorkloadError(path, f"empty; {_EXPECTED}")
    return text


def _unpacked(path: Path, data: bytes) -> bytes:
    try:
        with gzip.open(io.BytesIO(data)) as file:
            text = file.read(_MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise WorkloadError(path, f"cannot be unpacked: damaged gzip: {error}") from None
    if len(text) > _MOST_BYTES:
        raise WorkloadError(
            path, f"unpacks to more than {_MOST_BYTES >> 30} GB, expected a workload that fits in memory"
        )
    return text


def _unreadable(path: Path, error: OSError | ValueError) -> WorkloadError:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return WorkloadError(path, f"cannot be read: {reason}")


def _format(path: Path, text: str) -> _Format:
    first_line = _FIRST_LINE.search(text)
    assert first_line is not None  # blank texts were refused above
    if first_line[0][0] in "{[":
        return _Format.SLS
    csv_format = _csv_format(first_line[0])
    if csv_format is None:
        foreign = foreign_text(text)
        if foreign is not None:
            raise WorkloadError(path, foreign)
        raise WorkloadError(path, f"no known format, it starts with {shown(first_line[0])}; {_EXPECTED}")
    return csv_format


def _csv_format(first_line: str) -> _Format | None:
    """The format of a CSV with this header. Half of the columns suffice: missing ones are reported by name later."""
    cells = set(header_cells(first_line))
    for csv_format, columns in ((_Format.NODES, NODE_COLUMNS), (_Format.PODS, POD_COLUMNS)):
        if 2 * len(cells.intersection(columns)) >= len(columns):
            return csv_format
    return None


def _mixed(path: Path, formats: dict[Path, _Format]) -> WorkloadError:
    examples = {found: file.name for file, found in formats.items()}
    found = ", ".join(f"{name} is {found.value}" for found, name in examples.items())
    return WorkloadError(path, f"mixed formats: {found}; expected one workload in a folder")


def _node_list_for(path: Path) -> Path:
    """The node list in the folder of a pod list."""
    if path.is_dir():
        raise WorkloadError(path, f"pods, but no node list; put it in the folder, {_NODE_LIST}")
    node_lists = [file for file in sorted(path.parent.glob("*.csv*")) if _is_node_list(file)]
    if not node_lists:
        advice = f"give the folder that has both, or put the node list next to it, {_NODE_LIST}"
        raise WorkloadError(path, f"a pod list, but no node list; {advice}")
    if len(node_lists) > 1:
        names = ", ".join(file.name for file in node_lists)
        raise WorkloadError(path, f"several node lists next to this pod list: {names}; leave one")
    return node_lists[0]


def _is_node_list(file: Path) -> bool:
    try:
        if not _is_candidate(file):
            return False
        with file.open("rb") as stream:
            start = stream.read(_HEADER_BYTES)
        if start.startswith(_GZIP):
            with gzip.open(file) as unpacked:
                start = unpacked.read(_HEADER_BYTES)
    except (OSError, EOFError, zlib.error):
        # Not the requested file: it may be unreadable, and then does not count as a node list.
        return False
    first_line = _FIRST_LINE.search(start.decode("utf-8-sig", errors="replace"))
    return first_line is not None and _csv_format(first_line[0]) is _Format.NODES
