"""What `dispatcher report` shows on a terminal while it works."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import SparkSession

_INTERVAL_S: Final = 0.2


class ReportProgress:
    """A line with the present step, the tasks of Spark's stages and the time since the start. One thread's.

    `bar`: None: nothing is shown.
    """

    def __init__(self, bar: Progress | None) -> None:
        self._bar = bar  # never changes
        self._task = TaskID(0) if bar is None else bar.add_task("", total=None, tasks="")  # never changes

    def step(self, what: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=what, total=None, completed=0, tasks="")

    @contextmanager
    def watching(self, spark: SparkSession) -> Iterator[None]:
        """Show how many tasks of the running stages are done. A thread asks Spark; Spark Connect does not tell."""
        context = None if type(spark).__module__.startswith("pyspark.sql.connect") else spark.sparkContext
        if self._bar is None or context is None:
            yield
            return
        has_ended = threading.Event()
        watcher = threading.Thread(
            target=self._watch, args=(context.statusTracker(), has_ended), name="progress", daemon=True
        )
        watcher.start()
        try:
            yield
        finally:
            has_ended.set()
            watcher.join()

    def _watch(self, tracker: StatusTracker, has_ended: threading.Event) -> None:
        bar = self._bar
        assert bar is not None, "it is shown"
        while not has_ended.wait(_INTERVAL_S):
            try:
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            except Exception:  # Spark is ending: what it does next, or its error, is the main thread's to show
                return
            done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
            if total := sum(stage.numTasks for stage in stages if stage is not None):
                bar.update(self._task, total=total, completed=done, tasks=f"{done} of {total} tasks")


@contextmanager
def shown_progress(console: Console) -> Iterator[ReportProgress]:
    """Progress on a terminal, which is gone at the end; elsewhere nothing is shown."""
    if not console.is_terminal:
        yield ReportProgress(None)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[tasks]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        yield ReportProgress(bar)
