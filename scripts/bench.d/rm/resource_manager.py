"""The resource manager: container life cycles, scheduling decisions, memory, and ten million containers in one run.

Each measurement is a process of its own on one core, so that none finds the memory or the garbage of another. Life
cycles count by processor time, so that what other processes take of the core counts less.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from operator import truediv
from pathlib import Path
from typing import Any

from measure import Figures, Settings
from ops.processes import Answer, measured_by, source_of
from rm.model import model

WORKER = Path(__file__).with_name("resource_manager_worker.py")
NODES = (200, 2_000, 20_000)
CONTAINERS = {200: 100_000, 2_000: 150_000, 20_000: 800_000}
"""Enough to fill the cluster, and go on."""
REPEATS = 3
HYDRA_DECISIONS_PER_S = 40_000
BEATING = 10_000
RUNNING = 10
"""Containers of each node that sends heartbeats."""
BEATING_S = 15.0
JOINING = 200
LIVING = 10_000


@dataclass(frozen=True)
class Case:
    """One row of the life cycles."""

    name: str
    scheduler: str
    journaled: bool
    heartbeat_interval_ms: int


CASES = (
    Case("FIFO", "fifo", False, 1000),
    Case("FIFO, news at once", "fifo", False, 0),
    Case("FIFO, with journal", "fifo", True, 1000),
    Case("capacity, 3 queues", "capacity", False, 1000),
)


def life_cycles(settings: Settings) -> Figures:
    """Whole lives of containers, with all four machines, in a cluster that is kept 85 % busy."""
    repeats = min(settings.repeats, REPEATS)
    print(f"\nContainer life cycles per second of processor time, medians of {repeats}; cluster 85 % busy")
    print(f"{'':24} " + " ".join(f"{f'{nodes:,} nodes':>26}" for nodes in NODES) + f" {'cost, last : first':>20}")
    figures: Figures = {}
    with source_of(settings.before, "dispatcher", "statemachines") as before:
        for case in CASES:
            figures |= _life_cycles_of(case, settings, repeats, before)
    return figures


def _life_cycles_of(case: Case, settings: Settings, repeats: int, before: Path | None) -> Figures:
    """One row; with an earlier revision, in turns with it, also its row and the ratios."""
    figures: Figures = {}
    now: list[list[float]] = []
    then: list[list[float]] = []
    for nodes in NODES:
        now.append([])
        then.append([])
        for _ in range(repeats):
            if before is not None:
                then[-1].append(_life_cycle_rate(case, nodes, settings, before))
            now[-1].append(_life_cycle_rate(case, nodes, settings))
        figures[f"rm.{case.name}.{nodes}"] = statistics.median(now[-1])
    figures[f"rm.{case.name}.growth"] = _print_rates(case.name, now)
    if before is not None:
        _print_rates(f"    at {settings.before}"[:24], then)
        ratios = [statistics.median(map(truediv, *pair)) for pair in zip(now, then, strict=True)]
        figures |= {f"rm.{case.name}.{nodes}.gain": ratio for nodes, ratio in zip(NODES, ratios, strict=True)}
        print(f"{'    ratio':24} " + " ".join(f"{f'{ratio:.2f} x':>26}" for ratio in ratios))
    return figures


def _print_rates(name: str, rates: list[list[float]]) -> float:
    """Print a row of rates by size; returns what a life cycle costs in the largest cluster : in the smallest."""
    medians = [statistics.median(each) for each in rates]
    cells = [f"{median:,.0f} ({min(each):,.0f}-{max(each):,.0f})" for median, each in zip(medians, rates, strict=True)]
    growth = medians[0] / medians[-1]
    print(f"{name:24} " + " ".join(f"{cell:>26}" for cell in cells) + f" {growth:>18.2f} x")
    return growth


def heartbeats(settings: Settings) -> Figures:
    """What the heartbeats of many nodes in real time take of a core, with the scheduler and the simulated nodes."""
    repeats, seconds = min(settings.repeats, REPEATS), max(4.0, BEATING_S * settings.scale)
    figures: Figures = {}
    print(f"\nShare of a core for the heartbeats of {BEATING:,} nodes at 1 Hz, medians of {repeats} (lowest-highest)")
    for key, each in (("idle", 0), ("running", RUNNING)):
        answers = [_worker("heartbeats", nodes=BEATING, containers=each, seconds=seconds) for _ in range(repeats)]
        shares = [answer["cores"] for answer in answers]
        rate = statistics.median(answer["heartbeats_per_s"] for answer in answers)
        what = f"each runs {each} containers" if each else "idle nodes"
        spread = f"({min(shares):.1%}-{max(shares):.1%})"
        print(f"{what:28} {statistics.median(shares):>8.1%} {spread:>18} {rate:>10,.0f} heartbeats/s")
        figures[f"rm.heartbeats.{key}"] = statistics.median(shares)
        figures[f"rm.heartbeats.{key}-per-s"] = rate
    return figures


def _life_cycle_rate(case: Case, nodes: int, settings: Settings, source: Path | None = None) -> float:
    answer = _worker(
        "life_cycles",
        source=source,
        nodes=nodes,
        containers=settings.count(CONTAINERS[nodes]),
        scheduler=case.scheduler,
        journaled=case.journaled,
        heartbeat_interval_ms=case.heartbeat_interval_ms,
    )
    return float(answer["containers"]) / float(answer["took_cpu_s"])


def decisions(settings: Settings) -> Figures:
    """The schedulers alone: a container ends somewhere in a full cluster, and its room is given away."""
    repeats = min(settings.repeats, REPEATS)
    print(f"\nScheduling decisions/s on one core, medians of {repeats}: a container ends, and another gets its room")
    print(f"{'':24} " + " ".join(f"{f'{nodes:,} nodes':>14}" for nodes in NODES))
    figures: Figures = {}
    for scheduler in ("fifo", "capacity"):
        rates = []
        for nodes in NODES:
            count = settings.count(100_000)
            answers = [_worker("decisions", nodes=nodes, count=count, scheduler=scheduler) for _ in range(repeats)]
            rates.append(statistics.median(count / answer["took_s"] for answer in answers))
            figures[f"rm.decisions.{scheduler}.{nodes}"] = rates[-1]
        print(f"{scheduler:24} " + " ".join(f"{rate:>14,.0f}" for rate in rates))
    print(f"Hydra (Microsoft, NSDI 2019) reports {HYDRA_DECISIONS_PER_S:,}/s over its whole fleet, of many schedulers.")
    return figures | {"rm.decisions.hydra": HYDRA_DECISIONS_PER_S}


def memory(settings: Settings) -> Figures:
    """What an application that waits, and a container that runs, take of the process's memory."""
    count = settings.count(100_000)
    answer = _worker("memory", count=count)
    print(f"\nMemory, from the growth of the resident size over {count:,} of each")
    print(f"an application that waits, with its attempt   {answer['application_bytes']:>8,.0f} bytes")
    print(f"a container that runs                         {answer['container_bytes']:>8,.0f} bytes")
    return {"rm.memory.application": answer["application_bytes"], "rm.memory.container": answer["container_bytes"]}


def endurance(settings: Settings) -> Figures:
    """One replay of very many containers: does the memory stay flat?"""
    answer = _worker(
        "life_cycles",
        nodes=2_000,
        containers=settings.containers,
        scheduler="fifo",
        journaled=False,
        heartbeat_interval_ms=1000,
    )
    containers, took_s = int(answer["containers"]), float(answer["took_s"])
    early, late = float(answer["early_bytes"]), float(answer["late_bytes"])
    print(f"\nOne replay of {containers:,} containers on 2,000 nodes; the last 100 ended applications are kept")
    print("RSS in MiB at each tenth: " + ", ".join(f"{size / 2**20:,.1f}" for size in answer["tenths_bytes"]))
    print(
        f"RSS at 10 %: {early / 2**20:,.1f} MiB, at 100 %: {late / 2**20:,.1f} MiB ({late / early - 1:+.1%}); "
        f"{took_s:,.1f} s, {containers / took_s:,.0f} containers/s"
    )
    return {
        "rm.endurance.growth": late / early - 1,
        "rm.endurance.containers": containers,
        "rm.endurance.seconds": took_s,
    }


def joining(settings: Settings) -> Figures:
    """Nodes that join while many applications live: the masters of all of them are to hear of each node."""
    repeats, applications = min(settings.repeats, REPEATS), settings.count(LIVING)
    took = [_worker("joining", nodes=JOINING, applications=applications)["took_s"] for _ in range(repeats)]
    print(
        f"\n{JOINING} nodes join with {applications:,} living applications: {statistics.median(took):.3f} s "
        f"({min(took):.3f}-{max(took):.3f}), median of {repeats}"
    )
    return {"rm.joining": statistics.median(took)}


PARTS = {
    "lifecycles": life_cycles,
    "heartbeats": heartbeats,
    "decisions": decisions,
    "memory": memory,
    "joining": joining,
    "model": model,
    "endurance": endurance,
}


def _worker(what: str, *, source: Path | None = None, **options: Any) -> Answer:
    """`source`: a folder with another revision of the packages."""
    return measured_by(WORKER, what, options, cores=1, source=source)
