"""The journal and what reads it: rates of writing, an entity's history, the report on Spark, and sweeps."""

from __future__ import annotations

from collections.abc import Callable

from journal.history import history_look_ups
from journal.rates import rates
from journal.report import report
from journal.sweep import sweep_speedup
from measure import Figures, Settings

PARTS: dict[str, Callable[[Settings], Figures]] = {
    "rates": rates,
    "history": history_look_ups,
    "report": report,
    "sweep": sweep_speedup,
}
