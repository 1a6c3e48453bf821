"""Replay speed on the sample workload, with the journal and without."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from measure import Figures, Settings

from statemachines.resourcemanager import Replay, ResourceManagerConfig
from statemachines.simulation.workload import read_workload

ROOT = Path(__file__).resolve().parents[3]


def replay(settings: Settings) -> Figures:
    workload = read_workload(ROOT / "config" / "workloads" / "sample")
    config = ResourceManagerConfig.model_validate({"metrics": {"enabled": False}})
    print(f"\nReplay of the sample workload: {len(workload.applications):,} applications, {settings.repeats} repeats")
    print(f"{'':36} {'events/s':>12} {'lowest':>12} {'highest':>12} {'containers/s':>14}")
    for name, journaled in (("with journal", True), ("without journal", False)):
        events, containers = [], []
        for _ in range(settings.repeats):
            with tempfile.TemporaryDirectory() as folder:
                journal = Path(folder) / "journal" if journaled else None
                result = Replay(workload, config, journal_path=journal).run()
            events.append(result.events_per_s)
            containers.append(result.containers / result.wall_s)
        print(
            f"{name:36} {statistics.median(events):12,.0f} {min(events):12,.0f} {max(events):12,.0f} "
            f"{statistics.median(containers):14,.0f}"
        )
    return {}
