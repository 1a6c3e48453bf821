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
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import Field

from dispatcher.ops.answers import Answer, Gets, Real, UnixMs, Whole
from dispatcher.service import CompositeService, Service, all_services
from dispatcher.util.foreign import class_name, describe, plain_text
from dispatcher.util.terminal import one_line
from dispatcher.util.units import milliseconds

if TYPE_CHECKING:
    from starlette.requests import Request

    from dispatcher.ops.shared import Ops

_PROC: Final = Path("/proc/self")
_LOADED_S: Final = time.monotonic()


class Reason(Answer):
    """Why a daemon is not ready."""

    reason: str
    dispatcher: str | None = None
    service: str | None = None
    seconds: Real | None = None


class Health(Answer):
    """Whether a daemon is ready, as `/readyz` says."""

    status: str
    reasons: list[Reason] = []


class ServiceNow(Answer):
    """A service of the daemon, with its own services."""

    name: str
    kind: str = Field(default="", alias="class")
    state: str = ""
    failure: str | None = None
    services: list[ServiceNow] = []


class Garbage(Answer):
    """The garbage collector, by generation: objects since its last run, its runs, and what they collected."""

    counts: list[Whole] = []
    collections: list[Whole] = []
    collected: list[Whole] = []


class Process(Answer):
    """`/process`."""

    pid: Whole
    name: str
    uptime_s: Real
    started_at: UnixMs | None = None
    python: str = ""
    version: str | None = None
    cpu_s: Real | None = None
    rss_bytes: Whole | None = None
    threads: Whole | None = None
    open_files: Whole | None = None
    gc: Garbage | None = None
    loadavg: list[Real] | None = None
    health: Health
    services: list[ServiceNow] = []


def process_name() -> str:
    """The name of the program that runs."""
    name = Path(sys.argv[0]).name if sys.argv and sys.argv[0] not in ("", "-c", "-m") else ""
    if name == "__main__.py":
        name = Path(sys.argv[0]).parent.name
    return plain_text(name.removesuffix(".py")) or "python"


def process_numbers(name: str) -> Process:
    """The answer of /process."""
    started_at, started_s = _started(os.getpid())
    stats = gc.get_stats()
    return Process(
        pid=os.getpid(),
        name=name,
        started_at=milliseconds(started_at),
        uptime_s=round(max(0.0, time.monotonic() - started_s), 3),
        python=platform.python_version(),
        version=_version(),
        cpu_s=round(time.process_time(), 3),
        rss_bytes=_rss_bytes(),
        threads=threading.active_count(),
        open_files=_open_files(),
        gc=Garbage(
            counts=list(gc.get_count()),
            collections=[each["collections"] for each in stats],
            collected=[each["collected"] for each in stats],
        ),
        loadavg=_loadavg(),
        health=_health(),
        services=[_tree(root) for root in service_roots()],
    )


async def _process(ops: Ops, request: Request) -> Process:
    return await ops.workers.run(lambda: process_numbers(ops.name))


GETS: Final[Gets] = {"/process": _process}


def children(service: Service) -> Sequence[Service]:
    return service.services if isinstance(service, CompositeService) else ()


def service_roots() -> list[Service]:
    """The services that are part of no other, by name."""
    services = all_services()
    parts = {id(part) for service in services for part in children(service)}
    return sorted((each for each in services if id(each) not in parts), key=lambda each: each.name)


def failure_text(error: BaseException | None) -> str | None:
    """Class and message in one line."""
    return None if error is None else one_line(describe(error))


def _tree(service: Service) -> ServiceNow:
    return ServiceNow(
        name=service.name,
        kind=class_name(service),
        state=service.state.name,
        failure=failure_text(service.failure_cause),
        services=[_tree(child) for child in children(service)],
    )


def _health() -> Health:
    """Status and reasons, as /readyz has them."""
    from dispatcher.supervision.health import health  # imports the dispatchers, which a command does not need

    found = health.ready()
    return Health(status=found.status, reasons=[Reason(**reason.to_dict()) for reason in found.reasons])


@cache
def _version() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

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
