"""Workloads by hand, and what their replays' journals say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dispatcher.journal import EVENTS, TRANSITIONS, read_rows, verify
from statemachines.resourcemanager import Replay, Resource, ResourceManagerConfig
from statemachines.simulation.workload import ApplicationSpec, ContainerSpec, NodeSpec, Outcome, Workload

TIMEOUT_S = 180.0
WALL_CLOCK = ("queue_ns", "handling_ns")


def config(**more: Any) -> ResourceManagerConfig:
    """Without the metrics endpoint, which no test scrapes."""
    return ResourceManagerConfig.model_validate({"metrics": {"enabled": False}, **more})


def node(host: str = "n1", memory_mb: int = 10, vcores_milli: int = 10, gpus: int = 0, model: str = "") -> NodeSpec:
    return NodeSpec(host, Resource(memory_mb, vcores_milli, gpus), gpu_model=model or None)


def app(name: str = "app", submit_ms: int = 0, am: int = 1, tasks: tuple[ContainerSpec, ...] = (), **more: Any) -> Any:
    return ApplicationSpec(name, submit_ms, Resource(am, 1), tasks, **more)


def task(duration_ms: int, memory_mb: int = 1, start_ms: int = 0, **more: Any) -> ContainerSpec:
    return ContainerSpec(Resource(memory_mb, 1), duration_ms, start_ms, **more)


def workload(*parts: NodeSpec | ApplicationSpec) -> Workload:
    return Workload(
        "by hand",
        tuple(part for part in parts if isinstance(part, NodeSpec)),
        tuple(part for part in parts if isinstance(part, ApplicationSpec)),
    )


def mixed_workload() -> Workload:
    """Nodes with and without GPUs; applications that choose their models, fail, wait and are killed."""
    models = ("T4", "V100", "P100")
    return workload(
        *[node(f"n{number}", gpus=number % 3, model=models[number % 3]) for number in range(6)],
        *[
            ApplicationSpec(
                f"app-{number}",
                number // 3 * 500,
                Resource(1 + number % 4, 1, number % 2, 500),
                tuple(ContainerSpec(Resource(3, 1, i % 2), 300 * i, 900 * i, f"n{i}") for i in range(number % 5)),
                outcome=list(Outcome)[number % 2],
                kill_ms=2000 if number % 7 == 3 else None,
                gpu_models=frozenset(models[: number % 3]),
            )
            for number in range(30)
        ],
    )


def run(work: Workload, journal: Path | None = None, **settings: Any) -> Replay:
    """Replay to the end; nothing must have gone wrong on the way."""
    replay = Replay(work, config(**settings), journal_path=journal)
    finish(replay)
    return replay


def finish(replay: Replay) -> None:
    replay.start()
    try:
        assert replay.wait(TIMEOUT_S), f"not done after {TIMEOUT_S} s: {replay.progress()}"
    finally:
        replay.stop()
    replay.raise_failure()
    manager = replay.manager
    invalid = {machine: stats.invalid for machine, stats in manager.recorder.machines.items() if stats.invalid}
    assert (manager.dispatcher.stats().failed, invalid) == (0, {})


class Journal:
    """The journal of a replay; times are in ms."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.transitions = list(read_rows(path, TRANSITIONS))
        self.events = list(read_rows(path, EVENTS))

    def states(self, machine: str, entity: str = "") -> list[tuple[str, int]]:
        """The states that an entity came to, each with the time of it; transitions that stay are left out."""
        return [
            (row["to_state"], row["at"] // 1_000_000)
            for row in self.transitions
            if row["machine"] == machine and row["entity"].endswith(entity) and row["from_state"] != row["to_state"]
        ]

    def final(self, machine: str) -> dict[str, tuple[str, int]]:
        """By entity, its last state and the time of it."""
        return {
            row["entity"]: (row["to_state"], row["at"] // 1_000_000)
            for row in self.transitions
            if row["machine"] == machine and row["from_state"] != row["to_state"]
        }

    def content(self) -> dict[str, bytes]:
        """The tables as text, byte for byte but for the columns of wall-clock durations."""
        found = verify(self.path)
        assert (found.problems, found.open_segments) == ((), ()), "the journal has problems, or open segments"
        tables = {"events": self.events, "transitions": self.transitions}
        return {
            name: "\n".join(
                json.dumps({column: value for column, value in row.items() if column not in WALL_CLOCK}) for row in rows
            ).encode()
            for name, rows in tables.items()
        }


def replayed(work: Workload, path: Path, **settings: Any) -> Journal:
    run(work, path, **settings)
    return Journal(path)
