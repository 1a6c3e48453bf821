"""The resource manager's web address: its REST API idle, under load and beside a handler that hangs; its endurance."""

from __future__ import annotations

from collections.abc import Callable

from measure import Figures, Settings, one_by_one
from ops.rates import rounds
from web.endurance import endurance
from web.pages import first_paint, live
from web.reading import blocked, idle, under_load
from web.writing import kills, submissions

PARTS: dict[str, Callable[[Settings], Figures]] = {
    "idle": idle,
    "load": under_load,
    "blocked": blocked,
    "submissions": submissions,
    "kills": kills,
    "page": first_paint,
    "live": live,
    "endurance": endurance,
}


def web(chosen: list[str], settings: Settings) -> Figures:
    print(f"\nThe web address: medians of {rounds(settings)} rounds")
    return one_by_one(PARTS, chosen, settings)
