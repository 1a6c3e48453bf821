"""The process and its tree of services in the ops API."""

from __future__ import annotations

import gc
import os
import platform
import resource
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import Field

from dispatcher.ops.answers import Answer, Gets, Page, Real, UnixMs, Whole, page_of
from dispatcher.ops.sight import WHOLE, Sight
from dispatcher.service import CompositeService, Service, all_services
from dispatcher.util.foreign import class_name, describe, plain_text
from dispatcher.util.terminal import one_line
from dispatcher.util.units import milliseconds

if TYPE_CHECKING:
    from starlette.requests import Request

    from dispatcher.ops.shared import Ops

_PROC: Final = Path("/proc/self")
_LOADED_S: Final = time.monotonic()
_PACKAGES: Final = ("pydantic", "prometheus_client", "starlette", "uvicorn", "jinja2", "fastapi", "pyarrow", "pyspark")
"""Packages whose versions are shown if they are loaded, by the names of their modules."""


class Reason(Answer):
    """Why a daemon is not ready."""

    reason: str
    dispatcher: str | None = None
    service: str | None = None
    seconds: Real | None = None
    since: UnixMs | None = None


class Warned(Answer):
    """A sign of trouble in a daemon that is ready."""

    warning: str
    dispatcher: str = ""
    detail: str = ""
    since: UnixMs | None = None


class HealthReport(Answer):
    """Whether a daemon is ready, as `/readyz` says."""

    status: str
    reasons: list[Reason] = []
    warnings: list[Warned] = []


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
    rss_peak_bytes: Whole | None = None
    threads: Whole | None = None
    open_files: Whole | None = None
    open_files_limit: Whole | None = None
    versions: dict[str, str] = {}
    """Of the platform, and of the packages that the process has loaded."""
    gc: Garbage | None = None
    loadavg: list[Real] | None = None
    health: HealthReport
    services: list[ServiceNow] = []


class ThreadNow(Answer):
    """One of `/process/threads`."""

    name: str
    native_id: Whole | None = None
    daemon: bool = False
    cpu_s: Real | None = None
    """CPU time since its start. None: the system does not tell."""


def process_name() -> str:
    """The name of the program that runs."""
    name = Path(sys.argv[0]).name if sys.argv and sys.argv[0] not in ("", "-c", "-m") else ""
    if name == "__main__.py":
        name = Path(sys.argv[0]).parent.name
    return plain_text(name.removesuffix(".py")) or "python"


def process_numbers(name: str, sight: Sight = WHOLE) -> Process:
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
        rss_peak_bytes=_rss_peak_bytes(),
        threads=threading.active_count(),
        open_files=_open_files(),
        open_files_limit=_open_files_limit(),
        versions={"platform": platform.platform(terse=True), **_versions(_loaded())},
        gc=Garbage(
            counts=list(gc.get_count()),
            collections=[each["collections"] for each in stats],
            collected=[each["collected"] for each in stats],
        ),
        loadavg=_loadavg(),
        health=health_report(),
        services=[_tree(root, sight) for root in service_roots()],
    )


def thread_list() -> list[ThreadNow]:
    """The threads that Python knows, those that have used the most CPU time first."""
    found = [
        ThreadNow(
            name=plain_text(thread.name),
            native_id=thread.native_id,
            daemon=thread.daemon,
            cpu_s=None if thread.native_id is None else _thread_cpu_s(thread.native_id),
        )
        for thread in threading.enumerate()
    ]
    return sorted(found, key=lambda each: (-(each.cpu_s or 0.0), each.name))


async def _process(ops: Ops, request: Request) -> Process:
    sight = await ops.sight(request)
    return await ops.workers.run(lambda: process_numbers(ops.name, sight))


async def _threads(ops: Ops, request: Request) -> Page[ThreadNow]:
    return page_of(request, await ops.workers.run(thread_list))


GETS: Final[Gets] = {"/process": _process, "/process/threads": _threads}


def children(service: Service) -> Sequence[Service]:
    return service.services if isinstance(service, CompositeService) else ()


def service_roots() -> list[Service]:
    """The services that are part of no other, by name."""
    services = all_services()
    parts = {id(part) for service in services for part in children(service)}
    return sorted((each for each in services if id(each) not in parts), key=lambda each: each.name)


def failure_text(error: BaseException | None, sight: Sight = WHOLE) -> str | None:
    """Class and message in one line; the class alone for those who may not see everything."""
    if error is None:
        return None
    return one_line(describe(error)) if sight.is_whole else class_name(error)


def _tree(service: Service, sight: Sight) -> ServiceNow:
    return ServiceNow(
        name=service.name,
        kind=class_name(service),
        state=service.state.name,
        failure=failure_text(service.failure_cause, sight),
        services=[_tree(child, sight) for child in children(service)],
    )


def health_report() -> HealthReport:
    """Status and reasons, as /readyz has them."""
    from dispatcher.supervision.health import health  # imports the dispatchers, which a command does not need

    found = health.ready()
    return HealthReport(
        status=found.status,
        reasons=[Reason(**reason.to_dict(), **_since(reason.since)) for reason in found.reasons],
        warnings=[Warned(**warning.to_dict(), **_since(warning.since)) for warning in found.warnings],
    )


def _since(at: float | None) -> dict[str, int]:
    return {} if at is None else {"since": milliseconds(at)}


@cache
def _version(package: str = "central-dispatcher") -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:  # the source is on the path, and nothing is installed
        return None


def _loaded() -> tuple[str, ...]:
    return tuple(name for name in _PACKAGES if name in sys.modules)


@cache
def _versions(packages: tuple[str, ...]) -> Mapping[str, str]:
    return {name: found for name in packages if (found := _version(name)) is not None}


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


def _rss_peak_bytes() -> int | None:
    try:
        lines = (_PROC / "status").read_text(errors="replace").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _open_files_limit() -> int | None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit if limit != resource.RLIM_INFINITY else None


def _thread_cpu_s(native_id: int) -> float | None:
    try:
        fields = (_PROC / "task" / str(native_id) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
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
