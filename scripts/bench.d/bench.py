"""The measurements behind every speed claim: each beside its peers in one run, as medians.

scripts/bench [core|core.PART|replay|rm|rm.PART|async|async.PART|journal|journal.PART|ops|ops.PART|web|web.PART]...
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import sys
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from async_io.parts import PARTS as ASYNC_PARTS
from async_io.parts import async_io
from core.asking import Asks
from core.coroutines import coroutines
from core.endurance import Endurance
from core.jvm import Hadoop, hadoop_jvm
from core.latency import Latency
from core.machines import machines
from core.mailboxes import mailboxes
from core.memory import Memory
from core.parallel import Parallel
from core.stopping import Stopping
from core.throughput import throughput
from journal.parts import PARTS as JOURNAL_PARTS
from measure import Figures, Part, Settings, one_by_one
from ops.parts import PARTS as OPS_PARTS
from ops.parts import ops
from rm.replay import replay
from rm.resource_manager import PARTS as RM_PARTS
from targets import (
    ASYNC_TARGETS,
    CORE_TARGETS,
    JOURNAL_TARGETS,
    OPS_TARGETS,
    RM_TARGETS,
    WEB_TARGETS,
    Target,
    print_targets,
)
from web.parts import PARTS as WEB_PARTS
from web.parts import web

_STAT = Path("/proc/stat")

WITH_HADOOP: dict[str, Callable[[Settings, Hadoop | None], Part]] = {"throughput": throughput, "machines": machines}
PARTS: dict[str, Callable[[Settings, Hadoop | None], Part]] = {
    **WITH_HADOOP,
    "mailbox": lambda settings, _: mailboxes(settings),
    "ask": lambda settings, _: Asks(settings),
    "coroutines": lambda settings, _: coroutines(settings),
    "latency": lambda settings, _: Latency(settings),
    "stop": lambda settings, _: Stopping(settings),
    "memory": lambda settings, _: Memory(settings),
    "parallel": lambda settings, _: Parallel(settings),
    "endurance": lambda settings, _: Endurance(settings),
}


def core(chosen: list[str], settings: Settings) -> Figures:
    """The chosen parts, round by round; one-time measurements follow the rounds."""
    figures: Figures = {}
    started_s, others_s = time.perf_counter(), _others_busy_s()
    if WITH_HADOOP.keys() & set(chosen):
        with hadoop_jvm() as hadoop:
            parts = _measure(chosen, settings, hadoop)
    else:
        parts = _measure(chosen, settings, None)
    _print_others(started_s, others_s)  # the JVM has ended, so its processor time is now that of a child
    for part in parts:
        figures |= part.report()
    print("\nqueue.Queue, pykka and Hadoop differ greatly between --one-core and several cores; compare both.")
    return figures


def _measure(chosen: list[str], settings: Settings, hadoop: Hadoop | None) -> list[Part]:
    parts = [PARTS[name](settings, hadoop) for name in chosen]
    for part in parts:
        part.warm_up()
    for done in range(settings.repeats):
        _progress(f"round {done + 1} of {settings.repeats}")
        for part in parts:
            part.round()
    _progress("")
    return parts


def _print_others(started_s: float, others_s: float) -> None:
    """How busy other processes were since then. Those that this process has started must have ended."""
    others = (_others_busy_s() - others_s) / (time.perf_counter() - started_s)
    if _STAT.exists():
        print(f"Other processes kept {max(0.0, others):.2f} cores busy; the figures are valid if this is near 0.")


def _others_busy_s() -> float:
    """Processor seconds so far of all processes except this one and its ended children; 0.0 if unknown."""
    if not _STAT.exists():
        return 0.0
    user, nice, system, _idle, _iowait, irq, softirq = map(int, _STAT.read_text().split()[1:8])
    busy_s = (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
    return busy_s - sum(os.times()[:4])


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _machine() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor() or 'unknown processor'}, {platform.machine()}"


class Area(NamedTuple):
    """What one word chooses, or its parts one by one. `run` measures the chosen parts."""

    parts: Collection[str]
    run: Callable[[list[str], Settings], Figures]
    targets: Sequence[Target] = ()
    tells_others: bool = False
    """Whether it is told how busy other processes were, and only of targets that were measured."""


AREAS = {
    "core": Area(PARTS, core, CORE_TARGETS),
    "replay": Area((), lambda _, settings: replay(settings)),
    "rm": Area(RM_PARTS, partial(one_by_one, RM_PARTS), RM_TARGETS),
    "async": Area(ASYNC_PARTS, async_io, ASYNC_TARGETS),
    "journal": Area(JOURNAL_PARTS, partial(one_by_one, JOURNAL_PARTS), JOURNAL_TARGETS),
    "ops": Area(OPS_PARTS, ops, OPS_TARGETS, True),
    "web": Area(WEB_PARTS, web, WEB_TARGETS, True),
}


def main() -> None:
    choices = [each for name, area in AREAS.items() for each in (name, *(f"{name}.{part}" for part in area.parts))]
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measure, each beside its peers in one run.",
        epilog="scripts/bench itself takes one more: --against REVISION measures that revision and this tree in turns.",
    )
    parser.add_argument("what", nargs="*", metavar="WHAT", help=f"any of {', '.join(choices)}; default: core replay")
    parser.add_argument("--repeats", type=int, default=Settings.repeats, help="rounds (%(default)s)")
    parser.add_argument("--scale", type=float, default=Settings.scale, help="factor on all counts, for a quick look")
    parser.add_argument(
        "--events", type=int, default=Settings.endurance_events, help="events of core.endurance (%(default)s)"
    )
    parser.add_argument(
        "--containers", type=int, default=Settings.containers, help="containers of rm.endurance (%(default)s)"
    )
    parser.add_argument(
        "--before", metavar="REVISION", help="ops, rm: measure the packages of this revision, too, such as HEAD~1"
    )
    parser.add_argument(
        "--one-core",
        action="store_true",
        help="use one core, also for the JVM (Linux): threads that pass a lock to each other run faster and steadier",
    )
    arguments = parser.parse_args()
    chosen = arguments.what or ["core", "replay"]
    unknown = [name for name in chosen if name not in choices]
    if unknown:
        parser.error(f"unknown benchmark {', '.join(unknown)}; choose from {', '.join(choices)}")
    if arguments.repeats < 1 or arguments.scale <= 0 or arguments.events < 1 or arguments.containers < 1:
        parser.error("--repeats, --scale, --events and --containers must be greater than 0")
    if arguments.one_core and not hasattr(os, "sched_setaffinity"):
        parser.error("--one-core needs a system with CPU affinity, such as Linux")
    logging.basicConfig(level=logging.ERROR)  # as for Hadoop: warnings about full queues are expected here
    settings = Settings(arguments.repeats, arguments.scale, arguments.events, arguments.containers, arguments.before)
    scaled = f", counts scaled by {settings.scale:g}: a quick look, not a measurement" if settings.scale != 1 else ""
    cores = f"{os.cpu_count()} cores"
    if arguments.one_core:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        cores = f"one of {cores} used"
    print(f"{_machine()}, {cores}, Python {platform.python_version()}, {platform.system()}")
    print(f"Medians of {settings.repeats} repeats{scaled}; load average {os.getloadavg()[0]:.2f} at the start")
    for name, area in AREAS.items():
        parts = [part for part in area.parts if name in chosen or f"{name}.{part}" in chosen]
        if parts or name in chosen:
            _measure_area(area, parts, settings)


def _measure_area(area: Area, parts: list[str], settings: Settings) -> None:
    started_s, others_s = time.perf_counter(), _others_busy_s()
    figures = area.run(parts, settings)
    if area.tells_others:
        print()
        _print_others(started_s, others_s)
    print_targets(figures, area.targets, everything=len(parts) == len(area.parts) and not area.tells_others)


if __name__ == "__main__":
    main()
