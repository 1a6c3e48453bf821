"""`dispatcher doctor`: what this machine lacks, and which command that stops."""

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
}
"""The checks that concern a command."""
_REQUIREMENT: Final = re.compile(r"([\w.-]+)(?:\[[\w,.-]*\])?\s*([^;]*)(?:;\s*(.*))?")
_TIME_ERROR: Final = 5
"""adjtimex's answer on a clock that nothing synchronizes."""


class Finding(NamedTuple):
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
    """Check what this machine lacks: packages of the extras, Java, ports, descriptors, memory, the clock.

    Prints a line for each, with the commands that need it. With COMMAND, exit code 1 says that it lacks something.
    """
    if command is not None and command not in COMMANDS:
        raise ConfigError(f"COMMAND {command!r}: expected one of {', '.join(sorted(COMMANDS))}")
    checks: dict[str, Callable[[], Finding]] = {
        "python": _python,
        **{extra: lambda extra=extra: _extra(extra) for extra in ("web", "spark", "connect", "postgres")},  # type: ignore[misc]
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


def _python() -> Finding:
    lacks = ", ".join(_unmet("cli"))
    build = " free-threaded" if own_python().endswith("t") else ""
    return Finding(
        "python",
        f"{lacks}: {_remedy('cli', '--upgrade ')}" if lacks else "",
        f"{'.'.join(map(str, sys.version_info[:3]))}{build}, extra cli",
    )


def _extra(extra: str) -> Finding:
    lacks = ", ".join(_unmet(extra))
    return Finding(extra, f"{lacks}: {_remedy(extra)}" if lacks else "", "the extra's packages")


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
    """The requirements of an extra that no installed package meets."""
    for text in requires("central-dispatcher") or ():
        found = _REQUIREMENT.fullmatch(text)
        if found is None or not re.search(rf"extra == ['\"]{extra}['\"]", found[3] or ""):
            continue
        before = re.search(r"python_version < ['\"]([\d.]+)['\"]", found[3])
        if before is not None and sys.version_info[:2] >= _numbers(before[1]):
            continue
        name, specifiers = found[1], found[2].strip()
        try:
            has = version(name)
        except PackageNotFoundError:
            yield name
            continue
        if not all(_meets(_numbers(has), each.strip()) for each in specifiers.split(",") if each.strip()):
            yield f"{name}{specifiers} (here: {has})"


def _numbers(text: str) -> tuple[int, ...]:
    """The release of a version, without zeros at its end."""
    numbers = [int(each) for each in re.match(r"[\d.]*", text)[0].strip(".").split(".") if each]  # type: ignore[index]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _meets(has: tuple[int, ...], specifier: str) -> bool:
    """For the comparisons that pyproject.toml uses; any other one is taken to hold."""
    found = re.fullmatch(r"(>=|<|==)\s*([\d.]+)", specifier)
    if found is None:
        return True
    wanted = _numbers(found[2])
    return {">=": has >= wanted, "<": has < wanted, "==": has == wanted}[found[1]]


def _java() -> Finding:
    try:
        return Finding("java", "", f"Java {require_java()}")
    except SparkUnavailableError as error:
        return Finding("java", str(error).removeprefix("Spark cannot run: "))


def _ports(ports: list[int] | tuple[int, ...]) -> Finding:
    taken = [port for port in ports if not _is_free(port)]
    shown = ", ".join(map(str, taken))
    return Finding(
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


def _descriptors() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = 0 <= soft < FEW_DESCRIPTORS
    return Finding(
        "descriptors",
        f"{soft:,} at most for a process, and {FEW_DESCRIPTORS:,} are advisable: ulimit -n {FEW_DESCRIPTORS}"
        if few
        else "",
        f"{_limit(soft)} for a process, {_limit(hard)} at most",
    )


def _limit(number: int) -> str:
    return "unlimited" if number == resource.RLIM_INFINITY else f"{number:,}"


def _memory() -> Finding:
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    bytes_ = min([physical, *_limits("memory.max"), *_limits("memory/memory.limit_in_bytes")])
    whose = "of the cgroup" if bytes_ < physical else "of the machine"
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = min(_limits("cpu.max"), default=float(processors))
    has = f"{bytes_ / (1 << 30):.1f} GiB {whose}, {min(quota, processors):g} processors"
    is_little = bytes_ < LITTLE_MEMORY
    return Finding("memory", f"{has}; Spark needs {LITTLE_MEMORY >> 30} GiB" if is_little else "", has)


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


def _clock() -> Finding:
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(512))
    except (AttributeError, OSError):
        return Finding("clock", "", "not known to be synchronized or not")
    unsynchronized = "nothing synchronizes it: start chrony or systemd-timesyncd on this machine"
    return Finding(
        "clock", unsynchronized if state == _TIME_ERROR else "", "synchronized" if state >= 0 else "not known"
    )
