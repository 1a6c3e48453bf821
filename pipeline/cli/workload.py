"""What the commands that replay a workload share: their input options and the folder of a run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dispatcher.cli.console import say
from dispatcher.config import configure_logging, load_config
from statemachines.resourcemanager import ResourceManagerConfig
from statemachines.simulation.workload import Workload, read_workload

WorkloadPath = Annotated[
    Path, typer.Argument(help="SLS JSON or the openb trace, a file or a folder.", show_default=False)
]
SkipBadRows = Annotated[bool, typer.Option("--skip-bad-rows", help="Skip bad rows, and count them.")]

_BAD_ROWS_PRINTED = 10


def read_input(
    workload: Path, config: Path | None, console: Console, *, skip_bad_rows: bool
) -> tuple[ResourceManagerConfig, Workload]:
    """Set up logging, load the configuration (None: the defaults), read the workload and print its bad rows."""
    settings = load_config(config, ResourceManagerConfig) if config is not None else ResourceManagerConfig()
    configure_logging()
    recorded = read_workload(workload, settings.simulation.workload_defaults, skip_bad_rows=skip_bad_rows)
    for error in recorded.bad_rows[:_BAD_ROWS_PRINTED]:
        say(console, f"skipped: {error}")
    if recorded.bad_rows:
        say(console, f"{len(recorded.bad_rows):,} bad rows skipped")
    return settings, recorded


def new_folder(name: str) -> Path:
    """Path of a folder below `runs`, named after the current time; does not create it."""
    return Path("runs") / f"{name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"


def in_figures(workload: Workload) -> str:
    """The workload's name and size in one line."""
    return (
        f"Workload {workload.name}: {len(workload.applications):,} applications, "
        f"{workload.container_count:,} containers, {len(workload.nodes):,} nodes"
    )
