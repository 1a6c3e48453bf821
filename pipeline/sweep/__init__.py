"""What-if sweeps: one workload through the resource manager under many settings. Needs no Spark."""

from __future__ import annotations

from pipeline.sweep.combinations import Combination, combine
from pipeline.sweep.outcome import Outcome, run, run_all, run_row
from pipeline.sweep.settings import MOST_COMBINATIONS, Axis, parse_settings

__all__ = [
    "MOST_COMBINATIONS",
    "Axis",
    "Combination",
    "Outcome",
    "combine",
    "parse_settings",
    "run",
    "run_all",
    "run_row",
]
