"""What a door costs a daemon before anybody asks, and after a day of questions: memory, and time to start."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from measure import Figures, Settings, Spread, print_table
from ops.processes import HERE, Worker, source_of
from ops.rates import MILLION, rounds

CLIENTS = 8
MIB = 2**20


def memory(settings: Settings) -> Figures:
    """Resident size with a door and without, and its growth over a million requests: a day's, in miniature."""
    kinds: dict[str, tuple[str, str, dict[str, Any]]] = {
        "plain": ("a daemon with metrics, no door", "daemon_worker.py", {"metrics": True}),
        "door": ("    the same with the door", "daemon_worker.py", {"metrics": True, "door": True}),
        "asyncio": ("an asyncio daemon", "peers_worker.py", {}),
        "aiomonitor": ("    the same with aiomonitor", "peers_worker.py", {"monitor": True}),
    }
    sizes: dict[str, list[float]] = {key: [] for key in kinds}
    for number in range(rounds(settings)):
        for key in sorted(kinds, reverse=bool(number % 2)):
            _, script, options = kinds[key]
            with Worker(script, **options) as worker:
                sizes[key].append(worker.ask("memory")["bytes"] / MIB)
    spreads = {name: Spread.of(sizes[key]) for key, (name, *_) in kinds.items()}
    print_table("Resident size in MiB, idle, lower is better", spreads, digits=1)
    figures = {
        "ops-memory.door": _difference(sizes["door"], sizes["plain"]),
        "ops-memory.aiomonitor": _difference(sizes["aiomonitor"], sizes["asyncio"]),
    }
    return figures | _after_requests(settings.count(MILLION))


def _difference(these: list[float], those: list[float]) -> float:
    return statistics.median(this - that for this, that in zip(these, those, strict=True))


def _after_requests(count: int) -> Figures:
    from ops.asking_worker import TOP

    with ExitStack() as stack:
        clients = stack.enter_context(Worker("asking_worker.py"))
        options = {"metrics": True, "door": True, "requests_per_s": 1e6, "events": 1000, "types": 8}
        worker = stack.enter_context(Worker("daemon_worker.py", **options))
        worker.ask("flood", seconds=0.1)
        idle = worker.ask("memory")["bytes"]
        sizes = []
        for part in (count // 10, count - count // 10):
            asked = clients.ask(
                "many", where=worker.started["socket"], paths=TOP, count=part, clients=min(CLIENTS, part)
            )
            assert set(asked["statuses"]) == {"200"}, asked["statuses"]
            sizes.append(worker.ask("memory")["bytes"])
        early, late = sizes
    print(
        f"After {count:,} requests of top: {(late - idle) / MIB:+.1f} MiB, of which {(late - early) / MIB:+.1f} MiB in "
        f"the last nine tenths; {asked['per_s']:,.0f} answers/s to {CLIENTS} clients"
    )
    return {"ops-memory.requests": (late - idle) / MIB, "ops-memory.late-requests": (late - early) / MIB}


def start_up(settings: Settings) -> Figures:
    """Milliseconds in new processes, in turns, from the first import to the end of the start."""
    with source_of(settings.before) as before:
        kinds = {
            "door": ("the door: import and start", "door", None),
            "metrics": ("MetricsServer: import and start", "metrics", None),
            "prometheus": ("prometheus_client's server", "prometheus", None),
            "aiomonitor": ("aiomonitor: import and start", "aiomonitor", None),
            "core": ("from dispatcher import AsyncDispatcher", "core", None),
            "package": ("import dispatcher", "package", None),
        }
        if before is not None:
            kinds["core-before"] = (f"    AsyncDispatcher, at {settings.before}"[:46], "core", before)
            kinds["package-before"] = (f"    import dispatcher, at {settings.before}"[:46], "package", before)
        took_ms: dict[str, list[float]] = {key: [] for key in kinds}
        extras: set[str] = set()
        for number in range(rounds(settings) + 1):
            for key, (_, what, source) in kinds.items():
                answer = _start(what, source)
                if number:  # the first one reads the files from the disk, and compiles them
                    took_ms[key].append(answer["ms"])
                if key in ("core", "package"):
                    extras |= set(answer["extras"])
    spreads = {name: Spread.of(took_ms[key]) for key, (name, *_) in kinds.items()}
    print_table("Start-up in ms, each in a new process, lower is better", spreads, digits=1)
    print(f"Packages of extras that AsyncDispatcher imports: {', '.join(sorted(extras)) or 'none'}")
    figures = {f"ops-start.{key}": spreads[name].median for key, (name, *_) in kinds.items()}
    return figures | {"ops-start.extras": float(len(extras))}


def _start(what: str, source: Path | None) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "start_worker.py"), what, str(source or "")]
    answer: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return answer
