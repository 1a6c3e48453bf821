#!/usr/bin/env python3
"""Generates the sample workload: two hours of MapReduce jobs on 200 nodes, in the format of Hadoop's SLS.

For about an hour the cluster is full and applications wait for resources; at the end it is idle again.
The same seed gives the same bytes.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any, NamedTuple

SEED = 4
"""Its random draws come close to the shares below."""
JOBS = 520
NODES = 200
RACKS = 10
NODE_MEMORY_MB = 65536
NODE_VCORES = 32
LAST_SUBMIT_S = 6000
PEAK_S = (1200, 4200)
PEAK_SHARE = 0.65
"""Share of the jobs submitted within PEAK_S; the others are submitted at any time."""
FAILED_SHARE = 0.04
KILLED_SHARE = 0.03
MOST_MAPS = 260
LONGEST_S = 2400


class Size(NamedTuple):
    """The size of one kind of container. Without memory and vcores, the reader's defaults apply."""

    memory_mb: int | None
    vcores: int | None
    median_s: float
    sigma: float


class Queue(NamedTuple):
    """The distribution of the jobs in one queue."""

    name: str
    share: float
    users: tuple[str, ...]
    median_maps: float
    map: Size
    reduce: Size
    am_memory_mb: int | None = None


QUEUES = (
    Queue("default", 0.20, ("ana", "ben", "chloe"), 6, Size(4096, 1, 240, 0.8), Size(6144, 2, 320, 0.8)),
    Queue("etl", 0.35, ("loader", "warehouse"), 14, Size(8192, 2, 450, 0.6), Size(12288, 3, 540, 0.7), 2048),
    Queue("adhoc", 0.30, ("ana", "dan", "eva", "finn"), 4, Size(None, None, 60, 1.0), Size(2048, 1, 90, 1.0)),
    Queue("ml", 0.15, ("eva", "trainer"), 8, Size(16384, 4, 840, 0.5), Size(16384, 4, 840, 0.5), 4096),
)


def main() -> None:
    arguments = _arguments()
    rng = random.Random(arguments.seed)
    jobs = _jobs(rng)
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "sls-nodes.json").write_bytes(_concatenated(_racks(), "nodes"))
    (arguments.output / "sls-jobs.json").write_bytes(_concatenated(jobs, "job.tasks"))
    tasks = sum(len(job["job.tasks"]) for job in jobs)
    print(f"{arguments.output}: {len(jobs)} jobs, {tasks} containers, {NODES} nodes in {RACKS} racks")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=SEED, help="random seed (default: %(default)s)")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(__file__).resolve().parent.parent / "config" / "workloads" / "sample",
        help="folder to write to (default: %(default)s)",
    )
    return parser.parse_args()


def _racks() -> list[dict[str, Any]]:
    racks = []
    for rack in range(RACKS):
        nodes = [
            {"node": _host(number), "memory-mb": NODE_MEMORY_MB, "vcores": NODE_VCORES}
            for number in range(NODES)
            if number % RACKS == rack
        ]
        racks.append({"rack": _rack(rack), "nodes": nodes})
    return racks


def _host(number: int) -> str:
    return f"node{number + 1:03d}"


def _rack(number: int) -> str:
    return f"rack{number + 1:02d}"


def _jobs(rng: random.Random) -> list[dict[str, Any]]:
    submits_s = sorted(
        rng.uniform(*PEAK_S) if rng.random() < PEAK_SHARE else rng.uniform(0, LAST_SUBMIT_S) for _ in range(JOBS)
    )
    shares = [queue.share for queue in QUEUES]
    return [
        _job(rng, number, int(submit_s * 1000), rng.choices(QUEUES, shares)[0])
        for number, submit_s in enumerate(submits_s, start=1)
    ]


def _job(rng: random.Random, number: int, start_ms: int, queue: Queue) -> dict[str, Any]:
    tasks = _tasks(rng, start_ms, queue)
    first_ms = min(task["container.start.ms"] for task in tasks)
    end_ms = max(task["container.end.ms"] for task in tasks)
    job: dict[str, Any] = {
        "am.type": "mapreduce",
        "job.id": f"job_{number:04d}",
        "job.user": rng.choice(queue.users),
        "job.queue.name": queue.name,
        "job.start.ms": start_ms,
        "job.end.ms": end_ms + int(rng.uniform(1000, 5000)),
    }
    if queue.am_memory_mb is not None:
        job["am.memory-mb"] = queue.am_memory_mb
    fate = rng.random()
    if fate < FAILED_SHARE:
        job["job.final.state"] = "FAILED"
    elif fate < FAILED_SHARE + KILLED_SHARE:
        job["job.final.state"] = "KILLED"
        # The tasks keep their planned ends, so that the kill cuts them short.
        job["job.end.ms"] = first_ms + int((end_ms - first_ms) * rng.uniform(0.3, 0.8))
    job["job.tasks"] = tasks
    return job


def _tasks(rng: random.Random, start_ms: int, queue: Queue) -> list[dict[str, Any]]:
    """The maps, requested once the application master is up, and the reduces, once most maps have finished."""
    count = min(MOST_MAPS, 1 + int(queue.median_maps * rng.lognormvariate(0, 1.1)))
    up_ms = start_ms + int(rng.uniform(4000, 12000))
    maps = [_task(rng, up_ms + int(rng.expovariate(1 / 3000)), queue.map) for _ in range(count)]
    for task in maps:
        node = rng.randrange(NODES)
        task["container.host"] = f"/{_rack(node % RACKS)}/{_host(node)}"
    ends_ms = sorted(task["container.end.ms"] for task in maps)
    reduces_ms = ends_ms[int(0.8 * (count - 1))]
    reduces = [_task(rng, reduces_ms + int(rng.expovariate(1 / 2000)), queue.reduce) for _ in range(count // 5)]
    for task in reduces:
        task |= {"container.priority": 10, "container.type": "reduce"}
    return maps + reduces


def _task(rng: random.Random, start_ms: int, size: Size) -> dict[str, Any]:
    duration_ms = int(1000 * min(LONGEST_S, 1 + size.median_s * rng.lognormvariate(0, size.sigma)))
    task: dict[str, Any] = {"container.start.ms": start_ms, "container.end.ms": start_ms + duration_ms}
    if size.memory_mb is not None:
        task |= {"container.memory-mb": size.memory_mb, "container.vcores": size.vcores}
    return task


def _concatenated(objects: list[dict[str, Any]], list_key: str) -> bytes:
    """The objects concatenated, as SLS reads them; each element of the list at `list_key` is on a line of its own."""
    lines = []
    for values in objects:
        head = _compact({key: value for key, value in values.items() if key != list_key})
        elements = ",\n".join(_compact(element) for element in values[list_key])
        lines.append(f'{head[:-1]},"{list_key}":[\n{elements}\n]}}\n')
    return "".join(lines).encode("ascii")


def _compact(values: dict[str, Any]) -> str:
    return json.dumps(values, separators=(",", ":"))


if __name__ == "__main__":
    main()
