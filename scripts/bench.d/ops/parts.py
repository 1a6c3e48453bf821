"""What a daemon pays for its door, and what the door gives: rates, answers, memory and start-up, beside their peers."""

from __future__ import annotations

from collections.abc import Callable

from measure import Figures, Settings, one_by_one
from ops.answers import latency, scrapes
from ops.footprint import memory, start_up
from ops.pages import pages
from ops.rates import rounds, storm, throughput, timing
from ops.sampling import sampling

PARTS: dict[str, Callable[[Settings], Figures]] = {
    "throughput": throughput,
    "timing": timing,
    "latency": latency,
    "scrapes": scrapes,
    "storm": storm,
    "memory": memory,
    "sampling": sampling,
    "pages": pages,
    "startup": start_up,
}


def ops(chosen: list[str], settings: Settings) -> Figures:
    print(f"\nThe door: medians of {rounds(settings)} rounds")
    return one_by_one(PARTS, chosen, settings)
