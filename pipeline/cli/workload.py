"""What the commands that replay a workload have in common: their input, and the folder of a run."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from dispatcher.cli.console import say
from dispatcher.config import configure_logging, load_config
from statemachines.resourcemanager import ResourceManagerConfig
from statemachines.simulation.workload import Workload, read_workload

_BAD_ROWS_PRINTED = 10


def read_input(
    workload: Path, config: Path | None, console: Console, *, skip_bad_rows: bool
) -> tuple[ResourceManagerConfig, Workload]:
    """Set up logging; load the configuration, by default the defaults; read the workload and print its bad rows."""
    settings = load_config(config, ResourceManagerConfig) if config is not None else ResourceManagerConfig()
    configure_logging()
    recorded = read_workload(workload, settings.simulation.workload_defaults, skip_bad_rows=skip_bad_rows)
    for error in recorded.bad_rows[:_BAD_ROWS_PRINTED]:
        say(console, f"skipped: {error}")
    if recorded.bad_rows:
        say(console, f"{len(recorded.bad_rows):,} bad rows skipped")
    return settings, recorded


def new_folder(name: str) -> Path:
    """A folder below `runs` for a run that starts now; not made yet."""
    return Path("runs") / f"{name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"


def in_figures(workload: Workload) -> str:
    """The workload's name and size, for a line on the console."""
    return (
        f"Workload {workload.name}: {len(workload.applications):,} applications, "
        f"{workload.container_count:,} containers, {len(workload.nodes):,} nodes"
    )
