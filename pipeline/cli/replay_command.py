"""`dispatcher replay`: replays a recorded workload in virtual time, then reports on it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from dispatcher.cli.console import cell, say, standard_output, summary_table
from dispatcher.config import configure_logging, load_config
from dispatcher.supervision.signals import StopSignals
from dispatcher.util.figures import counted
from dispatcher.util.folders import timed
from dispatcher.util.garbage import tune_garbage_collection
from pipeline.cli.report_command import print_refusals, report
from pipeline.cli.sessions import Master
from statemachines.resourcemanager import Replay, ResourceManagerConfig
from statemachines.simulation.queues import check_queues_count, in_words
from statemachines.simulation.replay import ReplayProgress
from statemachines.simulation.workload import Workload, read_workload

WorkloadPath = Annotated[
    Path, typer.Argument(help="SLS JSON or the openb trace, a file or a folder, plain or .gz.", show_default=False)
]
SkipBadRows = Annotated[bool, typer.Option("--skip-bad-rows", help="Skip bad rows, and count them.")]

_BAD_ROWS_PRINTED = 10
_PLAIN_INTERVAL_S = 5.0
_RATE_S = 5.0


def replay(
    workload: WorkloadPath,
    output: Annotated[
        Path | None, typer.Option(help="Folder for journal and report; by default a new one below `runs`.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Configuration, such as config/replay.yaml.")] = None,
    skip_bad_rows: SkipBadRows = False,
    with_report: Annotated[
        bool, typer.Option("--report/--no-report", help="Write a report with Spark at the end.")
    ] = True,
    master: Master = "local[*]",
) -> None:
    """Replay a recorded workload through the resource manager in virtual time, and report on it.

    The capacity scheduler uses the configured queues, or by default the queues that the workload names.
    """
    console = standard_output()
    settings, recorded = read_input(workload, config, console, skip_bad_rows=skip_bad_rows)
    check_queues_count(settings)
    folder = output or new_folder(recorded.name)
    journal = folder / "journal"
    with StopSignals(ends_process=True) as signals:
        run = Replay(recorded, settings, journal_path=journal, on_done=signals.notify)
        run.manager.dispatcher.register_service_listener(lambda _: signals.notify())
        tune_garbage_collection()
        run.start()
        try:
            say(console, in_figures(recorded))
            if run.derived_queues:
                say(console, in_words(run.derived_queues))
            if run.manager.metrics_server is not None:
                say(console, f"Metrics: {run.manager.metrics_server.url}")
            with _reporting(len(recorded.applications), console) as report_progress:
                while not run.is_done() and not signals.wait(0.25) and not run.manager.dispatcher.is_stopped():
                    report_progress(run.progress())
                report_progress(run.progress())
        finally:
            run.stop()
    run.raise_failure()
    _print_replay(run, console)
    say(console, f"Journal: {journal}")
    if signals.received is not None:
        say(console, f"Interrupted; for a report on what was journaled: dispatcher report {journal}")
        raise typer.Exit(signals.exit_code)
    if with_report:
        report(journal, folder / "report", master)


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
    for remark in recorded.remarks:
        say(console, f"{workload}: {remark}")
    return settings, recorded


def new_folder(name: str) -> Path:
    """Path of a folder below `runs`, named after the current time; does not create it."""
    return timed(Path("runs"), f"{name}-")


def in_figures(workload: Workload) -> str:
    return (
        f"Workload {workload.name}: {counted(len(workload.applications), 'application')}, "
        f"{counted(workload.container_count, 'container')}, {counted(len(workload.nodes), 'node')}"
    )


@contextmanager
def _reporting(applications: int, console: Console) -> Iterator[Callable[[ReplayProgress], None]]:
    """A function that shows a replay's progress: a bar on a terminal, otherwise a plain line every few seconds.

    One thread calls it, a few times a second.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[text]}"))
    plain_at_s = time.monotonic() + _PLAIN_INTERVAL_S
    rate = PresentRate()

    def report(progress: ReplayProgress) -> None:
        nonlocal plain_at_s
        text = _describe(progress, rate.of(progress))
        if console.is_terminal:
            bar.update(task, completed=progress.ended, text=text)
        elif time.monotonic() >= plain_at_s:
            plain_at_s += _PLAIN_INTERVAL_S
            say(console, f"{progress.ended}/{applications} applications ended, {text}")

    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("applications", total=applications, text="")
        yield report


class PresentRate:
    """The events per second of the last seconds of a replay, from its snapshots. One thread."""

    def __init__(self) -> None:
        self._last: deque[ReplayProgress] = deque()  # the oldest one is the last before the span, if there is one

    def of(self, progress: ReplayProgress) -> float:
        """The rate up to this snapshot, which is later than those before."""
        last = self._last
        last.append(progress)
        while len(last) > 2 and progress.wall_s - last[1].wall_s >= _RATE_S:
            last.popleft()
        first = last[0] if len(last) > 1 else replace(progress, wall_s=0.0, events=0)
        span_s = progress.wall_s - first.wall_s
        return (progress.events - first.events) / span_s if span_s > 0 else 0.0


def _describe(progress: ReplayProgress, events_per_s: float) -> str:
    """One line with virtual time, present speed, and the number of applications in each state."""
    states = ", ".join(f"{count} {state}" for state, count in progress.applications_by_state.items())
    return f"{_virtual_time(progress.virtual_ms)}, {events_per_s:,.0f} events/s, {states or 'none submitted'}"


def _virtual_time(ms: int) -> str:
    return str(timedelta(seconds=ms // 1000))


def _print_replay(run: Replay, console: Console) -> None:
    progress, failed = run.progress(), run.manager.dispatcher.stats().failed
    summary = summary_table()
    total = len(run.workload.applications)
    submitted = sum(progress.applications_by_state.values())
    summary.add_row("Applications", f"{total:,}")
    for state, count in progress.applications_by_state.items():
        summary.add_row(cell(f"  {state}"), f"{count:,}")
    if submitted < total:
        summary.add_row("  not submitted", f"{total - submitted:,}")
    summary.add_row("Containers", f"{progress.containers:,}", f"{progress.containers / progress.wall_s:,.0f}/s")
    summary.add_row("Events", f"{progress.events:,}", f"{progress.events_per_s:,.0f}/s in {progress.wall_s:.1f} s")
    summary.add_row("Virtual time", _virtual_time(progress.virtual_ms))
    if failed:
        summary.add_row("Failed events", f"{failed:,}", style="red")
    console.print(summary)
    print_refusals(run.refusals(), console)
    _print_recorded_waits(run, console)
    first, *holders = run.deadlock() or [""]
    if first:
        say(console, first)
        _say_first(holders, "such applications", console)
    _say_first(run.waiting(), "wait for room", console)


def _say_first(lines: Sequence[str], what: str, console: Console) -> None:
    for line in lines[:10]:
        say(console, line)
    if len(lines) > 10:
        say(console, f"and {len(lines) - 10:,} more {what}")


def _print_recorded_waits(run: Replay, console: Console) -> None:
    """Compare this cluster's waits with the recorded ones, if the workload has them."""
    waits = run.waits
    if not waits.at_once:
        return
    say(
        console,
        f"Of {waits.at_once:,} applications that were placed at once where they were recorded, "
        f"{waits.waiting:,} ({waits.share:.1%}) wait here" + ("" if waits.waiting else ": there was room for each"),
    )
    for reason, count in waits.reasons.most_common(10):
        say(console, f"  {count:,}: {reason}")
