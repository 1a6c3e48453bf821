"""The pipeline's subcommands of the `dispatcher` command."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dispatcher.config import configure_logging, load_config
from dispatcher.errors import ConfigError
from dispatcher.journal import check_journal
from dispatcher.journal.format.segments import segments
from dispatcher.signals import StopSignals
from dispatcher.util.garbage import tune_garbage_collection
from pipeline.cli.progress import ReplayReporter, virtual_time
from statemachines.resourcemanager import Replay, ResourceManagerConfig
from statemachines.simulation.workload import Workload, read_workload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipeline.spark import Report

LONG_RUN_BYTES = 128 << 20
"""A report on a bigger journal takes minutes."""
FOLLOW_INTERVAL_S = 10.0
"""Between one look for new segments of a journal that is followed and the next."""

_DAMAGE_PRINTED = 10


def replay(
    workload: Annotated[
        Path, typer.Argument(help="SLS JSON or the openb trace, a file or a folder.", show_default=False)
    ],
    output: Annotated[
        Path | None, typer.Option(help="Folder for journal and report; by default a new one below `runs`.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Configuration, such as config/replay.yaml.")] = None,
    skip_bad_rows: Annotated[bool, typer.Option("--skip-bad-rows", help="Leave bad rows out, and count them.")] = False,
    with_report: Annotated[bool, typer.Option("--report/--no-report", help="Report with Spark at the end.")] = True,
    master: Annotated[str, typer.Option(help="Where Spark runs: local[*], a cluster, or sc://host.")] = "local[*]",
) -> None:
    """Replay a recorded workload through the resource manager in virtual time, and report on it."""
    console = Console()
    settings = load_config(config, ResourceManagerConfig) if config is not None else ResourceManagerConfig()
    configure_logging()
    recorded = read_workload(workload, settings.simulation.workload_defaults, skip_bad_rows=skip_bad_rows)
    _print_bad_rows(recorded, console)
    folder = output or Path("runs") / f"{recorded.name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    journal = folder / "journal"
    with StopSignals() as signals:
        run = Replay(recorded, settings, journal_path=journal, on_done=signals.notify)
        run.manager.dispatcher.register_service_listener(lambda _: signals.notify())
        tune_garbage_collection()
        run.start()
        try:
            _say(
                console,
                f"Workload {recorded.name}: {len(recorded.applications):,} applications, "
                f"{recorded.container_count:,} containers, {len(recorded.nodes):,} nodes",
            )
            if run.manager.metrics_server is not None:
                _say(console, f"Metrics: {run.manager.metrics_server.url}")
            with ReplayReporter(len(recorded.applications), console) as reporter:
                while not run.is_done() and not signals.wait(0.25) and not run.manager.dispatcher.is_stopped():
                    reporter.update(run.progress())
                reporter.update(run.progress())
        finally:
            run.stop()
    run.raise_failure()
    _print_replay(run, console)
    _say(console, f"Journal: {journal}")
    if signals.received is not None:
        _say(console, f"Interrupted; for a report on what was journaled: dispatcher report {journal}")
        raise typer.Exit(signals.exit_code)
    if with_report:
        report(journal, folder / "report", master)


def report(
    journal: Annotated[Path, typer.Argument(help="Folder of the journal.", show_default=False)],
    output: Annotated[
        Path | None, typer.Option(help="Folder for the report; by default `report` beside the journal.")
    ] = None,
    master: Annotated[str, typer.Option(help="Where Spark runs: local[*], a cluster, or sc://host.")] = "local[*]",
    compare: Annotated[
        Path | None, typer.Option(help="Journal of an earlier run, to say what has changed.", show_default=False)
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep the report up to date until Ctrl-C, while the journal is written.")
    ] = False,
) -> None:
    """Run the Spark jobs over a journal: tables as Parquet, and an HTML page with plots."""
    for path in filter(None, (journal, compare)):
        check_journal(path)  # before Spark starts, which takes seconds
    if follow and compare is not None:
        raise ConfigError("--follow and --compare: choose one. A journal is compared once it has ended.")
    from pipeline.spark import spark_session, write_report

    console, folder = Console(), output or journal.absolute().parent / "report"
    long_run = follow or sum(path.stat().st_size for path in segments(journal)) > LONG_RUN_BYTES
    with spark_session(master, long_run=long_run) as spark:
        if follow:
            written = _follow(spark, journal, folder, console)
        else:
            written = write_report(spark, journal, folder, compare=compare)
    print_report(written, console)


def _follow(spark: SparkSession, journal: Path, folder: Path, console: Console) -> Report:
    """Write the report again and again as the journal grows; returns the last one after a signal to end."""
    from pipeline.spark.report.follow.follow import FollowProgress, follow_journal
    from pipeline.spark.report.report import write_page
    from pipeline.spark.source.journal import journal_damage

    shown: FollowProgress | None = None
    written: Report | None = None
    with StopSignals() as signals, follow_journal(spark, journal, folder, trigger_s=FOLLOW_INTERVAL_S) as follower:
        _say(console, f"Following {journal}; Ctrl-C ends it. Page: {folder.absolute() / 'report.html'}")
        is_ending = False
        while not is_ending:
            is_ending = signals.wait(FOLLOW_INTERVAL_S) or follower.wait(0.0)
            progress = follower.progress()
            if progress == shown and written is not None:
                continue
            follower.write_tables()
            written, shown = write_page(folder.absolute(), str(journal), damage=journal_damage(journal)), progress
            missing = f", {progress.missing:,} events missing" if progress.missing else ""
            _say(console, f"{progress.events:,} events{missing}, {progress.transitions:,} transitions: report written")
    assert written is not None, "the loop ends after the first report only"
    return written


def print_report(report: Report, console: Console) -> None:
    """Print a report's headline figures and where its page is."""
    from pipeline.spark.report.page.formats import duration

    summary = Table(box=None, show_header=False, pad_edge=False)
    summary.add_column()
    summary.add_column(justify="right")
    summary.add_column()
    summary.add_row("Applications", f"{report.applications:,}")
    for state, number in report.applications_by_final_state.items():
        summary.add_row(f"  {escape(state)}", f"{number:,}")
    summary.add_row("Containers", f"{report.containers:,}", f"on {report.nodes:,} nodes")
    summary.add_row("Events", f"{report.events:,}", f"in {duration(report.span_s)} of the run's clock")
    for name, problems, of in (
        ("Failed events", report.failed_events, report.events),
        ("Unknown transitions", report.unknown_transitions, report.transitions),
        ("Oversubscribed nodes", report.oversubscribed_nodes, report.nodes),
    ):
        summary.add_row(name, f"{problems:,}", f"of {of:,}", style="red" if problems else None)
    if report.damage:
        summary.add_row("Damage", f"{len(report.damage):,}", "passed over in the journal", style="red")
    console.print(summary)
    for line in report.damage[:_DAMAGE_PRINTED]:
        console.print(f"  {escape(line)}", style="red", highlight=False, soft_wrap=True)
    # Not wrapped: a path over two lines is one that nobody can open with a click.
    console.print(f"Page: {escape(str(report.page))}", soft_wrap=True)
    console.print(f"Tables: {escape(str(report.tables))}", soft_wrap=True)


def _print_replay(run: Replay, console: Console) -> None:
    progress, dispatcher = run.progress(), run.manager.dispatcher
    summary = Table(box=None, show_header=False, pad_edge=False)
    summary.add_column()
    summary.add_column(justify="right")
    summary.add_column()
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
        _say(console, line)
    if len(waiting) > 10:
        _say(console, f"and {len(waiting) - 10:,} more wait for room")


def _print_recorded_waits(run: Replay, console: Console) -> None:
    """How far this cluster is from the recorded one, if the workload tells."""
    waits = run.waits
    if not waits.at_once:
        return
    _say(
        console,
        f"Of {waits.at_once:,} applications that were placed at once where they were recorded, "
        f"{waits.waiting:,} ({waits.share:.1%}) wait here" + ("" if waits.waiting else ": there was room for each"),
    )
    for reason, count in waits.reasons.most_common(10):
        _say(console, f"  {count:,}: {reason}")


def _print_bad_rows(workload: Workload, console: Console) -> None:
    for error in workload.bad_rows[:10]:
        _say(console, f"skipped: {error}")
    if workload.bad_rows:
        _say(console, f"{len(workload.bad_rows):,} bad rows skipped")


def _say(console: Console, line: str) -> None:
    # Not wrapped: a path or an address over two lines is one that nobody can open with a click.
    console.print(line, markup=False, highlight=False, soft_wrap=True)
