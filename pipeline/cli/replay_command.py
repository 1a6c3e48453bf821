"""`dispatcher replay`: replays a recorded workload in virtual time, then reports on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dispatcher.cli.console import say, standard_output, summary_table
from dispatcher.signals import StopSignals
from dispatcher.util.garbage import tune_garbage_collection
from pipeline.cli.progress import ReplayReporter, virtual_time
from pipeline.cli.report_command import Master, report
from pipeline.cli.workload import SkipBadRows, WorkloadPath, in_figures, new_folder, read_input
from statemachines.resourcemanager import Replay


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
    """Replay a recorded workload through the resource manager in virtual time, and report on it."""
    console = standard_output()
    settings, recorded = read_input(workload, config, console, skip_bad_rows=skip_bad_rows)
    folder = output or new_folder(recorded.name)
    journal = folder / "journal"
    with StopSignals() as signals:
        run = Replay(recorded, settings, journal_path=journal, on_done=signals.notify)
        run.manager.dispatcher.register_service_listener(lambda _: signals.notify())
        tune_garbage_collection()
        run.start()
        try:
            say(console, in_figures(recorded))
            if run.manager.metrics_server is not None:
                say(console, f"Metrics: {run.manager.metrics_server.url}")
            with ReplayReporter(len(recorded.applications), console) as reporter:
                while not run.is_done() and not signals.wait(0.25) and not run.manager.dispatcher.is_stopped():
                    reporter.update(run.progress())
                reporter.update(run.progress())
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


def _print_replay(run: Replay, console: Console) -> None:
    progress, dispatcher = run.progress(), run.manager.dispatcher
    summary = summary_table()
    total = len(run.workload.applications)
    submitted = sum(progress.applications_by_state.values())
    summary.add_row("Applications", f"{total:,}")
    for state, count in progress.applications_by_state.items():
        summary.add_row(f"  {state}", f"{count:,}")
    if submitted < total:
        summary.add_row("  not submitted", f"{total - submitted:,}")
    summary.add_row("Containers", f"{progress.containers:,}", f"{progress.containers / progress.wall_s:,.0f}/s")
    summary.add_row("Events", f"{progress.events:,}", f"{progress.events_per_s:,.0f}/s in {progress.wall_s:.1f} s")
    summary.add_row("Virtual time", virtual_time(progress.virtual_ms))
    if dispatcher.failed:
        summary.add_row("Failed events", f"{dispatcher.failed:,}", style="red")
    console.print(summary)
    _print_recorded_waits(run, console)
    waiting = run.waiting()
    for line in waiting[:10]:
        say(console, line)
    if len(waiting) > 10:
        say(console, f"and {len(waiting) - 10:,} more wait for room")


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
