"""What the parts of `scripts/bench web` have in common: cores, processes, and load L.

Load L: 10,000 simulated nodes that send a heartbeat each second, 10,000 applications known, and 100 a second that come
and go.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from measure import Figures, Settings, Spread, print_table
from ops.answers import percentile
from ops.processes import HERE, Answer, Worker

NODES = 10_000
KNOWN = 10_000
COME_AND_GO_PER_S = 100.0
API = "/ws/v1/cluster"


def cores() -> tuple[int | None, int | None]:
    """One for the resource manager and another one for its clients; None, None if they cannot be chosen."""
    if not hasattr(os, "sched_getaffinity"):
        return None, None
    usable = sorted(os.sched_getaffinity(0))
    return usable[-1], usable[0]


def worker(script: str, **options: Any) -> Worker:
    return Worker(str(HERE.parent / "web" / script), **options)


def clients() -> Worker:
    return worker("client_worker.py", core=cores()[1])


def resource_manager(**options: Any) -> Worker:
    return worker("rm_worker.py", core=cores()[0], **options)


def loaded(settings: Settings) -> Worker:
    """A resource manager under load L."""
    per_s = max(1.0, COME_AND_GO_PER_S * settings.scale)
    return resource_manager(nodes=settings.count(NODES), known=settings.count(KNOWN), per_s=per_s)


def expect(answer: Answer, *statuses: int) -> None:
    """All answers had one of these statuses."""
    found = {int(status) for status in answer["statuses"]}
    if not found <= set(statuses):
        raise RuntimeError(f"answers of status {sorted(found)}, expected {statuses}")


class Latencies:
    """Latencies of several rows, round by round."""

    def __init__(self, title: str, names: dict[str, str]) -> None:
        self._title = title
        self._names = names
        self._rounds: dict[str, list[Sequence[float]]] = {key: [] for key in names}

    def add(self, key: str, latencies_ms: Sequence[float]) -> None:
        self._rounds[key].append(latencies_ms)

    def report(self, prefix: str) -> Figures:
        """Medians over the rounds of the 50th and the 99th percentiles."""
        figures: Figures = {}
        for percent in (50, 99):
            spreads = {
                name: Spread.of([percentile(list(samples), percent) for samples in self._rounds[key]])
                for key, name in self._names.items()
                if self._rounds[key]
            }
            print_table(f"{self._title}: ms, p{percent}, lower is better", spreads, digits=2)
            figures |= {
                f"{prefix}.{key}-p{percent}": spreads[name].median
                for key, name in self._names.items()
                if name in spreads
            }
        return figures
