"""`dispatcher doctor`: what is missing on this machine, and the commands that need it."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import socket
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion

from dispatcher.cli.console import echo
from dispatcher.errors import ConfigError
from pipeline.cli.wheels import LACKING, newest_python, own_python
from pipeline.spark.java import SparkUnavailableError, require_java

PORTS: Final = (8088,)
"""The port that the examples in config/ configure."""
FEW_DESCRIPTORS: Final = 1024
LITTLE_MEMORY: Final = 2 << 30
"""Bytes. Spark's driver alone has a heap of 1 GiB."""
NEEDS: Final = {
    "web": "run with `web`, ps, status, stack and top of daemons with an OpsDoor",
    "cron": "post_every(cron=...)",
    "spark": "replay, report, sweep, yarn-log, pipeline.spark",
    "connect": "Spark Connect (--master sc://...)",
    "postgres": "lookups and caches in PostgreSQL",
    "java": "replay, report, sweep and yarn-log with Spark",
    "ports": "run with `web.port`",
    "descriptors": "daemons with many connections, reports of many segments",
    "memory": "replay, report, sweep and yarn-log with Spark",
    "clock": "post_at, and journals of several machines that are compared",
}
"""For which commands each is needed."""
COMMANDS: Final = {
    "run": ("python", "web", "ports", "descriptors", "clock"),
    **dict.fromkeys(("replay", "report", "sweep", "yarn-log"), ("python", "spark", "java", "memory")),
    **dict.fromkeys(("ps", "status", "stack", "top", "journal", "graph", "config", "token"), ("python",)),
    **dict.fromkeys(("changes", "nodes", "queues"), ("python",)),
}
"""The checks that concern a command."""
_TIME_ERROR: Final = 5
"""adjtimex's answer on a clock that nothing synchronizes."""


class DoctorFinding(NamedTuple):
    """One line of the answer."""

    subject: str
    lacks: str
    """What is missing, and what to do; empty: nothing."""
    has: str = ""


def doctor(
    command: Annotated[
        str | None, typer.Argument(help=f"check only what this command needs: {', '.join(sorted(COMMANDS))}")
    ] = None,
    port: Annotated[
        list[int] | None, typer.Option(min=1, max=65535, help="a port that has to be free; may be given several times")
    ] = None,
) -> None:
    """List what is missing on this machine: packages of the extras, Java, ports, descriptors, memory, the clock.

    Prints a line for each, with the commands that need it. With COMMAND, exit code 1 means that it needs something
    missing.
    """
    if command is not None and command not in COMMANDS:
        raise ConfigError(f"COMMAND {command!r}: expected one of {', '.join(sorted(COMMANDS))}")
    checks: dict[str, Callable[[], DoctorFinding]] = {
        "python": _python,
        **{extra: lambda extra=extra: _extra(extra) for extra in ("web", "cron", "spark", "connect", "postgres")},  # type: ignore[misc]
        "java": _java,
        "ports": lambda: _ports(port or PORTS),
        "descriptors": _descriptors,
        "memory": _memory,
        "clock": _clock,
    }
    wanted = checks if command is None else COMMANDS[command]
    findings = [checks[name]() for name in wanted]
    for each in findings:
        needed = f" (for: {NEEDS[each.subject]})" if each.lacks and each.subject in NEEDS else ""
        echo(f"{'lacks' if each.lacks else 'ok':<6}{each.subject:<12} {each.lacks or each.has}{needed}")
    if command is not None and any(each.lacks for each in findings):
        raise typer.Exit(1)


def _python() -> DoctorFinding:
    lacks = ", ".join(_unmet("cli"))
    build = " free-threaded" if own_python().endswith("t") else ""
    return DoctorFinding(
        "python",
        f"{lacks}: {_remedy('cli', '--upgrade ')}" if lacks else "",
        f"{'.'.join(map(str, sys.version_info[:3]))}{build}, extra cli",
    )


def _extra(extra: str) -> DoctorFinding:
    lacks = ", ".join(_unmet(extra))
    return DoctorFinding(extra, f"{lacks}: {_remedy(extra)}" if lacks else "", "the extra's packages")


def _remedy(extra: str, option: str = "") -> str:
    install = f"pip install {option}'central-dispatcher[{extra}]'"
    own = own_python()
    without = LACKING[extra].get(own)
    if without is None:
        return install
    # A wheel may have appeared since this release, so the command is not hidden.
    return (
        f"{', '.join(without)} had no wheel for Python {own} at this release: "
        f"take Python {newest_python(extra)}, or try {install}"
    )


def _unmet(extra: str) -> Iterator[str]:
    """The requirements of an extra that no installed package meets, with those of the extras that it asks for."""
    seen: set[tuple[str, str]] = set()
    asked = [("central-dispatcher", extra)]
    while asked:
        asking = asked.pop()
        if asking in seen:
            continue
        seen.add(asking)
        for needed in _added_by(*asking):
            try:
                has = version(needed.name)
            except PackageNotFoundError:
                yield needed.name
                continue
            if not _meets(has, needed.specifier):
                yield f"{needed.name}{needed.specifier} (here: {has})"
            asked += [(needed.name, name) for name in sorted(needed.extras)]


def _added_by(distribution: str, extra: str) -> Iterator[Requirement]:
    """What an installed distribution requires for an extra, in this Python, and not without it."""
    for needed in map(Requirement, requires(distribution) or ()):
        marker = needed.marker
        if marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
            yield needed


def _meets(has: str, wanted: SpecifierSet) -> bool:
    """A version that no specifier can be compared with is taken for one that its owner has chosen."""
    try:
        return wanted.contains(has, prereleases=True)
    except InvalidVersion:
        return True


def _java() -> DoctorFinding:
    try:
        return DoctorFinding("java", "", f"Java {require_java()}")
    except SparkUnavailableError as error:
        return DoctorFinding("java", str(error).removeprefix("Spark cannot run: "))


def _ports(ports: list[int] | tuple[int, ...]) -> DoctorFinding:
    taken = [port for port in ports if not _is_free(port)]
    shown = ", ".join(map(str, taken))
    return DoctorFinding(
        "ports",
        f"{shown} is in use on 127.0.0.1: end its owner (ss -ltnp), or choose another one" if taken else "",
        f"{', '.join(map(str, ports))} can be listened on",
    )


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen()
        except OSError:
            return False
        return True


def _descriptors() -> DoctorFinding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = 0 <= soft < FEW_DESCRIPTORS
    return DoctorFinding(
        "descriptors",
        f"{soft:,} at most for a process, and {FEW_DESCRIPTORS:,} are advisable: ulimit -n {FEW_DESCRIPTORS}"
        if few
        else "",
        f"{_limit(soft)} for a process, {_limit(hard)} at most",
    )


def _limit(number: int) -> str:
    return "unlimited" if number == resource.RLIM_INFINITY else f"{number:,}"


def _memory() -> DoctorFinding:
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    bytes_ = min([physical, *_limits("memory.max"), *_limits("memory/memory.limit_in_bytes")])
    whose = "of the cgroup" if bytes_ < physical else "of the machine"
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = min(_limits("cpu.max"), default=float(processors))
    has = f"{bytes_ / (1 << 30):.1f} GiB {whose}, {min(quota, processors):g} processors"
    is_little = bytes_ < LITTLE_MEMORY
    return DoctorFinding("memory", f"{has}; Spark needs {LITTLE_MEMORY >> 30} GiB" if is_little else "", has)


def _limits(name: str, root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> list[float]:
    """The limits of this name on the process's cgroup and those above it: bytes, or processors for `cpu.max`."""
    try:
        groups = re.findall(r"^0::/(.*)$", own.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    except OSError:
        groups = []
    found = []
    for folder in {
        root,
        *(each for group in groups for each in (root / group, *(root / group).parents) if root in each.parents),
    }:
        try:
            number, *period = (folder / name).read_text(encoding="ascii").split()
            found.append(int(number) / int(period[0]) if period else float(int(number)))
        except (OSError, ValueError):  # there is no such file, or it says "max"
            continue
    return found


def _clock() -> DoctorFinding:
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(512))
    except (AttributeError, OSError):
        return DoctorFinding("clock", "", "not known to be synchronized or not")
    unsynchronized = "nothing synchronizes it: start chrony or systemd-timesyncd on this machine"
    return DoctorFinding(
        "clock", unsynchronized if state == _TIME_ERROR else "", "synchronized" if state >= 0 else "not known"
    )
