"""The process and its tree of services in the ops API."""

from __future__ import annotations

import gc
import os
import platform
import sys
import threading
import time
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from dispatcher.ops.dispatchers import service_tree
from dispatcher.service import CompositeService, Service, all_services
from dispatcher.supervision.health import health
from dispatcher.util.foreign import plain_text
from dispatcher.util.units import milliseconds

_PROC: Final = Path("/proc/self")
_LOADED_S: Final = time.monotonic()


def process_name() -> str:
    """The name of the program that runs."""
    name = Path(sys.argv[0]).name if sys.argv and sys.argv[0] not in ("", "-c", "-m") else ""
    if name == "__main__.py":
        name = Path(sys.argv[0]).parent.name
    return plain_text(name.removesuffix(".py")) or "python"


def process_numbers(name: str) -> dict[str, Any]:
    """The answer of /process."""
    started_at, started_s = _started(os.getpid())
    return {
        "pid": os.getpid(),
        "name": name,
        "started_at": milliseconds(started_at),
        "uptime_s": round(max(0.0, time.monotonic() - started_s), 3),
        "python": platform.python_version(),
        "version": _version(),
        "cpu_s": round(time.process_time(), 3),
        "rss_bytes": _rss_bytes(),
        "threads": threading.active_count(),
        "open_files": _open_files(),
        "gc": {
            "counts": gc.get_count(),
            "collections": [each["collections"] for each in gc.get_stats()],
            "collected": [each["collected"] for each in gc.get_stats()],
        },
        "loadavg": _loadavg(),
        "health": _health(),
        "services": [service_tree(root, children) for root in service_roots()],
    }


def children(service: Service) -> Sequence[Service]:
    return service.services if isinstance(service, CompositeService) else ()


def service_roots() -> list[Service]:
    """The services that are part of no other, by name."""
    services = all_services()
    parts = {id(part) for service in services for part in children(service)}
    return sorted((each for each in services if id(each) not in parts), key=lambda each: each.name)


def _health() -> dict[str, Any]:
    """Status and reasons, as /readyz has them."""
    found = health.ready()
    return {"status": found.status, "reasons": [reason.to_dict() for reason in found.reasons]}


@cache
def _version() -> str | None:
    try:
        return version("central-dispatcher")
    except PackageNotFoundError:  # the source is on the path, and nothing is installed
        return None


@cache
def _started(pid: int) -> tuple[float, float]:
    """When the process started: Unix seconds, and seconds of the monotonic clock; without /proc, when this module was
    loaded. `pid`: of this process."""
    now_s = time.monotonic()
    try:
        ticks = int((_PROC / "stat").read_text().rpartition(")")[2].split()[19])
        uptime_s = float(Path("/proc/uptime").read_text().split()[0])
        age_s = uptime_s - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        age_s = now_s - _LOADED_S
    return time.time() - age_s, now_s - age_s


def _rss_bytes() -> int | None:
    try:
        return int((_PROC / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _open_files() -> int | None:
    try:
        return sum(1 for _ in (_PROC / "fd").iterdir()) - 1  # without the one that lists them
    except OSError:
        return None


def _loadavg() -> list[float] | None:
    try:
        return list(os.getloadavg())
    except OSError:
        return None
