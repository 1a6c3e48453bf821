"""The processes below another: their processor time and their memory, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def tree_of(pid: int) -> list[int]:
    """The process and all below it."""
    children: dict[int, list[int]] = {}
    for child, fields in _stats():
        children.setdefault(int(fields[1]), []).append(child)
    tree = [pid]
    for each in tree:
        tree += children.get(each, ())
    return tree


def tree_cpu_s(pid: int) -> float:
    """Processor seconds of the process and all below it, also of those that have ended and were waited for."""
    tree = set(tree_of(pid))
    return sum(sum(map(int, fields[11:15])) for each, fields in _stats() if each in tree) / _TICKS_PER_S


def python_workers(pid: int) -> list[int]:
    """The processes below `pid` that a PySpark daemon has forked."""
    parents = {child: int(fields[1]) for child, fields in _stats()}
    return [each for each in tree_of(pid)[1:] if _is_daemon(each) and _is_daemon(parents.get(each, 0))]


def resident_bytes(pid: int) -> int:
    """0 for one that has ended."""
    try:
        return int(PROC.joinpath(str(pid), "statm").read_text().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


def _is_daemon(pid: int) -> bool:
    try:
        return b"pyspark.daemon" in PROC.joinpath(str(pid), "cmdline").read_bytes()
    except OSError:
        return False


def _stats() -> Iterator[tuple[int, list[str]]]:
    """Each process, and the fields of its stat that follow its name."""
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            try:
                yield int(folder.name), (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
