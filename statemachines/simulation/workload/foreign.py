"""Files that hold no workload that can be read: other inputs of Hadoop's simulator, and packed files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_RUMEN: Final = frozenset({"jobID", "mapTasks", "reduceTasks", "otherTasks", "submitTime"})
_SYN: Final = frozenset({"workloads", "num_jobs", "num_nodes", "nodes_per_rack", "rand_seed"})
_SYN_LINE: Final = re.compile(rf"^({'|'.join(sorted(_SYN))})\s*:", re.MULTILINE)
_AGREEING: Final = 2
_PACKED: Final = {
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"PK\x03\x04": "ZIP",
    b"7z\xbc\xaf": "7-Zip",
}
_OF_RUMEN: Final = (
    "of Hadoop's Rumen, which is not read; convert the job trace with rumen2sls.sh of Hadoop's SLS, and give its "
    "output, SLS JSON"
)
_OF_SYN: Final = (
    "a synthetic workload of Hadoop's SLS (SYN), which has no recorded jobs, but distributions from which SLS draws "
    "them; expected SLS JSON, with job.tasks"
)


def foreign_object(values: Mapping[str, Any]) -> str | None:
    """What an object of JSON is, if it is of Rumen or of SYN."""
    if len(_RUMEN & values.keys()) >= _AGREEING:
        return f"a job trace {_OF_RUMEN}"
    if {"name", "children"} <= values.keys():
        return f"a topology {_OF_RUMEN}"
    return _OF_SYN if len(_SYN & values.keys()) >= _AGREEING else None


def foreign_text(text: str) -> str | None:
    """What a text that is neither JSON nor CSV is, if it is SYN in YAML."""
    found = {match[1] for match in _SYN_LINE.finditer(text)}
    return _OF_SYN if len(found) >= _AGREEING else None


def packed_as(data: bytes) -> str | None:
    """How the data is packed, if not with gzip."""
    return next((name for start, name in _PACKED.items() if data.startswith(start)), None)
