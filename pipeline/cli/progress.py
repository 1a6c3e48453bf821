"""Progress of a replay: a bar on a terminal, otherwise a plain line every few seconds."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from dispatcher.cli.console import say
from statemachines.resourcemanager import ReplayProgress

PLAIN_INTERVAL_S = 5.0


class ReplayReporter:
    """Context manager that shows a replay's progress. One thread calls `update`, a few times a second."""

    def __init__(self, applications: int, console: Console) -> None:
        self._applications = applications
        self._console = console
        self._plain_at_s = time.monotonic() + PLAIN_INTERVAL_S
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("applications", total=applications, text="")

    def update(self, progress: ReplayProgress) -> None:
        if self._console.is_terminal:
            self._bar.update(self._task, completed=progress.ended, text=describe(progress))
        elif time.monotonic() >= self._plain_at_s:
            self._plain_at_s += PLAIN_INTERVAL_S
            say(self._console, f"{progress.ended}/{self._applications} applications ended, {describe(progress)}")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def describe(progress: ReplayProgress) -> str:
    """One line with virtual time, speed, and the number of applications in each state."""
    states = ", ".join(f"{count} {state}" for state, count in progress.applications_by_state.items())
    return f"{virtual_time(progress.virtual_ms)}, {progress.events_per_s:,.0f} events/s, {states or 'none submitted'}"


def virtual_time(ms: int) -> str:
    """Milliseconds of virtual time in days, hours, minutes and seconds."""
    return str(timedelta(seconds=ms // 1000))
