"""`dispatcher report`: runs the Spark jobs over a journal, once or repeatedly while the journal is written."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from dispatcher.cli.console import cell, say, standard_output, summary_table
from dispatcher.errors import ConfigError
from dispatcher.journal import check_journal
from dispatcher.journal.format.segments import segments
from dispatcher.journal.run_config import read_run_config
from dispatcher.journal.snapshot import parts_of
from dispatcher.supervision.signals import StopSignals
from dispatcher.util.figures import counted, duration
from pipeline.cli.sessions import Master, open_spark
from pipeline.journal.damage import Problem, lacks_rows, total_lost

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import SparkSession

    from pipeline.spark import Report

LONG_RUN_BYTES = 128 << 20
"""Journal size beyond which a report takes minutes."""
FOLLOW_INTERVAL_S = 2.0
"""How often a followed journal is checked for new segments."""

_DAMAGE_PRINTED = 10
_REASONS_PRINTED = 10
_SHOWN_EVERY_S: Final = 0.2


def report(
    journal: Annotated[Path, typer.Argument(help="Folder of the journal.", show_default=False)],
    output: Annotated[
        Path | None, typer.Option(help="Folder for the report; by default `report` next to the journal.")
    ] = None,
    master: Master = "local[*]",
    compare: Annotated[
        Path | None, typer.Option(help="Journal of an earlier run to compare with.", show_default=False)
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep the report up to date while the journal is written, until Ctrl-C.")
    ] = False,
) -> None:
    """Run the Spark jobs over a journal, and write tables as Parquet and an HTML page with plots.

    The exit code is 1 if a part of the journal, or of the one to compare with, cannot be read.
    """
    for path in filter(None, (journal, compare)):
        check_journal(path)  # before the seconds that starting Spark takes
    parts = parts_of(journal)
    if follow and parts.is_partitioned:
        raise ConfigError(f"--follow {journal}: it is partitioned; follow one partition, such as {journal}/partition-0")
    if follow and compare is not None:
        raise ConfigError("--follow and --compare: choose one. A journal is compared once it has ended.")
    console, folder = standard_output(), output or journal.absolute().parent / "report"
    long_run = follow or sum(path.stat().st_size for part in parts.folders for path in segments(part)) > LONG_RUN_BYTES
    exit_code = 0
    with shown_progress(console) as progress:
        progress.step("Starting Spark")
        with open_spark(master, long_run=long_run, meanwhile=_import) as spark, progress.watching(spark):
            from pipeline.spark import prepare_executors, write_report

            prepare_executors(spark, reads=filter(None, (journal, compare)), writes=folder, reads_journal=True)
            if follow:
                progress.step("Following the journal")
                written, exit_code = _follow(spark, journal, folder, console)
            else:
                written = write_report(spark, journal, folder, compare=compare, on_step=progress.step)
    print_report(written, console)
    if exit_code or written.damage or written.damage_before:
        raise typer.Exit(exit_code or 1)


def _import() -> None:
    """Import what a report needs, which takes a second."""
    from pipeline.report.digests.digest import require_engine
    from pipeline.spark import prepare_executors, write_report  # noqa: F401

    require_engine()


def _follow(spark: SparkSession, journal: Path, folder: Path, console: Console) -> tuple[Report, int]:
    """Rewrite the report as the journal grows; returns the last one after a stop signal, and the exit code."""
    from pipeline.spark.report.follow import FollowProgress, follow_journal

    shown: FollowProgress | None = None
    written: Report | None = None
    with StopSignals() as signals, follow_journal(spark, journal, folder, trigger_s=FOLLOW_INTERVAL_S) as follower:
        say(console, f"Following {journal}; Ctrl-C ends it. Page: {folder.absolute() / 'report.html'}")
        is_ending = False
        while not is_ending:
            is_ending = signals.wait(FOLLOW_INTERVAL_S) or follower.wait(0.0)
            progress = follower.progress()
            if progress == shown and written is not None:
                continue
            written, shown = follower.write(str(journal), config=read_run_config(journal)), progress
            missing = f", {counted(progress.missing, 'event')} missing" if progress.missing else ""
            damage = f", {counted(len(written.damage), 'part')} damaged" if written.damage else ""
            rows = f"{counted(progress.events, 'event')}{missing}, {counted(progress.transitions, 'transition')}"
            say(console, f"{rows}{damage}: report written")
    assert written is not None, "the loop writes a report before it ends"
    return written, signals.exit_code


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
        while not has_ended.wait(_SHOWN_EVERY_S):
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


def print_refusals(refusals: Mapping[str, int], console: Console) -> None:
    """Print why applications were refused, with the number of each reason, most frequent first."""
    ordered = sorted(refusals.items(), key=lambda item: -item[1])
    for reason, count in ordered[:_REASONS_PRINTED]:
        say(console, f"{counted(count, 'application')} rejected: {reason}", style="red")
    if len(ordered) > _REASONS_PRINTED:
        say(console, f"and more for {len(ordered) - _REASONS_PRINTED:,} other reasons", style="red")


def _print_damage(whose: str, damage: Sequence[Problem], console: Console) -> None:
    if damage:
        say(console, f"{whose} is damaged. Missing from its figures: {total_lost(damage)}.", style="red")
    for problem in damage[:_DAMAGE_PRINTED]:
        say(console, f"  {problem}", style="red")
    if len(damage) > _DAMAGE_PRINTED:
        say(console, f"  and {len(damage) - _DAMAGE_PRINTED:,} more: see the page, or the table damage", style="red")


def print_report(report: Report, console: Console) -> None:
    summary = summary_table()
    summary.add_row("Applications", f"{report.applications:,}")
    for state, number in report.applications_by_final_state.items():
        summary.add_row(cell(f"  {state}"), f"{number:,}")
    summary.add_row("Containers", f"{report.containers:,}", f"on {counted(report.nodes, 'node')}")
    least = "at least " if lacks_rows(report.damage) else ""
    summary.add_row("Events", f"{least}{report.events:,}", f"in {duration(report.span_s)} of the run's clock")
    for name, problems, of in (
        ("Failed events", report.failed_events, report.events),
        ("Unknown transitions", report.unknown_transitions, report.transitions),
        ("Oversubscribed nodes", report.oversubscribed_nodes, report.nodes),
    ):
        summary.add_row(name, f"{problems:,}", f"of {of:,}", style="red" if problems else None)
    console.print(summary)
    print_refusals(report.refusals, console)
    _print_damage("The journal", report.damage, console)
    _print_damage("The earlier run's journal", report.damage_before, console)
    say(console, f"Tables: {report.tables}")
    say(console, f"Page: {report.page}")
