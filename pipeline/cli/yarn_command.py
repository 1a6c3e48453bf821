"""`dispatcher yarn-log`: checks the transitions in logs of Hadoop's daemons against the state machines' tables."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dispatcher.cli.console import cell, echo, figures_table, say, standard_output
from dispatcher.util.figures import counted
from dispatcher.util.folders import drafts
from pipeline.cli.report_command import print_report
from pipeline.cli.sessions import Master, open_spark
from pipeline.yarnlog.clock import LogClock
from pipeline.yarnlog.files import log_files
from pipeline.yarnlog.headers import HeaderLayout
from pipeline.yarnlog.summary import LogSummary, is_declared, summarize
from statemachines.releases.differences import ANY, CURRENT, EARLY, RELEASES

_SAMPLES = 5
_SAMPLE_CHARACTERS = 300
_UNTIMED = "a record without a time has the prefix's, or the time of the record before, or 1970"

Release: Enum = Enum("Release", {name: name for name in RELEASES})  # type: ignore[misc]


def yarn_log(
    logs: Annotated[
        list[Path],
        typer.Argument(help="Logs of Hadoop 2 or 3, plain, rotated or packed, or folders.", show_default=False),
    ],
    time_zone: Annotated[str, typer.Option(help="Time zone of the logs, such as Europe/Berlin.")] = "UTC",
    listed: Annotated[int, typer.Option(help="Undeclared transitions to print.", min=0)] = 100,
    release: Annotated[
        Release | None,
        typer.Option(help="Check against this release's tables only; default: any release's.", show_default=False),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit 1 if a table contradicts a transition or a log was not understood.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--report", help="Folder for a Spark report on the logs.", show_default=False)
    ] = None,
    master: Master = "local[*]",
) -> None:
    """Check transitions logged by ResourceManagers, NodeManagers and MapReduce masters against the tables."""
    files = log_files(logs)
    checked = ANY if release is None else release.value
    summary = summarize(files, LogClock(time_zone), keep=listed, release=checked)
    console = standard_output()
    _print_formats(summary, console, listed)
    _print_counts(summary, len(files), console)
    _print_transitions(summary, console)
    if checked == ANY:
        _print_older(summary, console)
    _print_mismatches(summary, checked, console)
    _print_missed(summary, console)
    if output is not None:
        _report(files, time_zone, checked, output, master, console)
    if strict and (summary.mismatches_by_machine or _warnings(summary)):
        raise typer.Exit(1)


def _print_formats(summary: LogSummary, console: Console, listed: int) -> None:
    """A line for each file with a prefix or without times; at most `listed`."""
    lines = []
    for file, found in summary.reading.formats.items():
        if found is None:
            continue
        if found.prefixes:
            lines.append(f"{_shown(str(file))}: prefix of each line: {', '.join(found.prefixes)}")
        if found.layout >= HeaderLayout.UNTIMED:
            lines.append(f"{_shown(str(file))}: {_UNTIMED}")
    for line in lines[:listed]:
        say(console, line)
    if len(lines) > listed:
        say(console, f"and {len(lines) - listed:,} more such lines; list more with --listed")


def _print_missed(summary: LogSummary, console: Console) -> None:
    """The lines that should have been parsed, with a sample, and warnings on standard error of what was not read."""
    reading = summary.reading
    if reading.missed_lines:
        say(console, "")
        say(console, f"{reading.missed_lines:,} unparsed lines look like transitions or audit lines:")
        for missed in reading.missed[:_SAMPLES]:
            say(console, f"{_shown(str(missed.file))}:{missed.line}: {_shown(missed.text)}")
        if reading.missed_lines > _SAMPLES:
            say(console, f"and {reading.missed_lines - _SAMPLES:,} more")
    for warning in _warnings(summary):
        echo(f"warning: {warning}", err=True)


def _warnings(summary: LogSummary) -> list[str]:
    """A line for each reason for which the logs count as not understood."""
    reading, found = summary.reading, []
    for file in reading.unread:
        found.append(f"{_shown(str(file))}: nothing was read: no line is the beginning of a record in a known format")
    if not reading.unread and not summary.parsed_lines:
        found.append("no line is of a known kind: no transition, rejected event, registration, queue size, audit line")
    if reading.missed_lines:
        looks, was = ("looks", "was") if reading.missed_lines == 1 else ("look", "were")
        lines = counted(reading.missed_lines, "line")
        found.append(f"{lines} {looks} like transitions or audit lines and {was} not parsed")
    return found


def _shown(text: str) -> str:
    return text if len(text) <= _SAMPLE_CHARACTERS else f"{text[:_SAMPLE_CHARACTERS]}..."


def _print_counts(summary: LogSummary, files: int, console: Console) -> None:
    table = figures_table("Lines", "lines", "records")
    table.add_row(f"in {counted(files, 'file')}", f"{summary.lines:,}")
    table.add_row("parsed", f"{summary.parsed_lines:,}", f"{summary.records_by_kind.total():,}")
    for kind, records in summary.records_by_kind.most_common():
        table.add_row(cell(f"  {kind.replace('_', ' ')}"), f"{summary.lines_by_kind[kind]:,}", f"{records:,}")
    table.add_row("unparsed", f"{summary.unparsed_lines:,}")
    console.print(table)


def _print_transitions(summary: LogSummary, console: Console) -> None:
    if not summary.transitions_by_machine:
        say(console, "")
        say(console, "No transitions.")
        return
    say(console, "")
    table = figures_table("Machine", "transitions", "not in its table")
    for machine, transitions in summary.transitions_by_machine.most_common():
        against = f"{summary.mismatches_by_machine[machine]:,}" if is_declared(machine) else "unknown machine"
        table.add_row(cell(machine), f"{transitions:,}", against)
    console.print(table)


def _print_older(summary: LogSummary, console: Console) -> None:
    total = summary.older_by_releases.total()
    if not total:
        return
    say(console, "")
    say(console, f"{counted(total, 'transition')} in the tables of older releases, not in Hadoop {CURRENT}'s:")
    for (machine, releases), transitions in summary.older_by_releases.most_common():
        named = ", ".join("before 2.3" if release == EARLY else release for release in releases)
        say(console, f"{machine}: {transitions:,} of Hadoop {named}")


def _print_mismatches(summary: LogSummary, release: str, console: Console) -> None:
    total = summary.mismatches_by_machine.total()
    if not total:
        return
    tables = "the tables" if release == ANY else f"Hadoop {release}'s tables"
    say(console, "")
    say(console, f"{counted(total, 'transition')} not in {tables}:")
    for found in summary.mismatches:
        event = f" on {found.event_type}" if found.event_type else ""
        say(console, f"{found.file}:{found.line}: {found.entity} {found.from_state} to {found.to_state}{event}")
        say(console, f"    {found.why}")
    if total > len(summary.mismatches):
        say(console, f"and {total - len(summary.mismatches):,} more; list more with --listed")


def _report(files: list[Path], time_zone: str, release: str, output: Path, master: str, console: Console) -> None:
    from pipeline.spark import prepare_executors, write_report
    from pipeline.spark.source.yarn_log import declared_for, read_yarn_log

    folder = output.absolute()
    named = files[0] if len(files) == 1 else Path(os.path.commonpath(files))
    with open_spark(master) as spark, drafts(folder, "log", what="report") as place:
        prepare_executors(spark, reads=files, writes=folder)
        # Stored, or each of the report's jobs would parse the logs again.
        tables = read_yarn_log(spark, files, time_zone=time_zone).stored(spark, place / "log")
        declared = declared_for(spark, tables.transitions, release)
        written = write_report(spark, named, folder, declared=declared, tables=tables.journal)
    say(console, f"Log as tables: {folder / 'log'}")
    print_report(written, console)
