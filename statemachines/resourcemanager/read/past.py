"""The last minutes of the cluster's key figures, for the small curves beside them. The loop's thread."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, NamedTuple

from statemachines.resourcemanager.read.loop_follower import LoopFollower
from statemachines.resourcemanager.read.model import ReadModel

EVERY_S: Final = 2.0
KEPT: Final = 150


class Sample(NamedTuple):
    """The key figures at one moment."""

    running: int
    waiting: int
    containers: int
    pending: int
    memory: float
    """Used share of the cluster's memory, 0 to 1."""
    vcores: float
    """Used share, 0 to 1."""
    gpus: float
    """Used share, 0 to 1."""
    nodes: int
    """In use."""


class Past(LoopFollower):
    """Samples of one read model, every two seconds for five minutes."""

    def __init__(self, model: ReadModel) -> None:
        super().__init__()
        self.samples: deque[Sample] = deque(maxlen=KEPT)
        self._model = model

    def take(self) -> None:
        """Take a sample now, unless nothing was published yet."""
        if self._model.number:
            self.samples.append(present(self._model))

    async def _follow(self) -> None:
        while True:
            self.take()
            await asyncio.sleep(EVERY_S)


def present(model: ReadModel) -> Sample:
    """The key figures now."""
    metrics = model.metrics
    total, used = metrics.total, metrics.allocated
    return Sample(
        metrics.apps_running,
        metrics.apps_pending,
        metrics.containers_allocated,
        metrics.containers_pending,
        share(used.memory_mb, total.memory_mb),
        share(used.vcores_milli, total.vcores_milli),
        share(used.gpu_milli_total, total.gpu_milli_total),
        metrics.nodes.get("RUNNING", 0) + metrics.nodes.get("DECOMMISSIONING", 0),
    )


def share(part: float, whole: float) -> float:
    """0 to 1 or more; 0 of nothing."""
    return part / whole if whole else 0.0
