"""`dispatcher journal verify|tail|recover JOURNAL`, and the subcommands that other packages register."""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import typer

from dispatcher import journal as journals
from dispatcher.cli.console import echo, echo_json
from dispatcher.journal.format.segments import set_aside_files
from dispatcher.queue.redelivery import redeliver

COMMANDS = "dispatcher.journal_commands"
"""Entry point group of further subcommands: functions annotated for Typer."""

app = typer.Typer(no_args_is_help=True, help="Look at an event journal.")

Journal = Annotated[Path, typer.Argument(help="the journal's folder")]


@app.command()
def verify(journal: Journal) -> None:
    """Check every byte and every sequence number; exit with 1 if there is a problem."""
    found = journals.verify(journal)
    for problem in found.problems:
        echo(problem, err=True)
    for segment in found.open_segments:
        echo(f"{segment.name}: open: being written, or left by a crash (then: dispatcher journal recover)")
    for torn in found.torn:
        echo(f"{torn}: cut off by a crash, or being written")
    aside = [path.name for path in set_aside_files(journal)]
    if aside:
        echo(f"set aside by recovery, and not read: {', '.join(aside)}")
    echo(f"{found.events} events, {found.transitions} transitions, {len(found.problems)} problems")
    if found.problems:
        raise typer.Exit(1)


@app.command()
def tail(
    journal: Journal, lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="how many events")] = 10
) -> None:
    """Print the last events as JSON lines."""
    for row in journals.tail(journal, lines):
        echo_json(json.dumps(row))


@app.command()
def recover(
    journal: Journal,
    with_: Annotated[
        str | None,
        typer.Option(
            "--with",
            metavar="MODULE:FUNCTION",
            help="function that takes a JournalWriter and returns the dispatcher that handles the unhandled events",
        ),
    ] = None,
) -> None:
    """Repair a journal after a crash: cut the incomplete end off the open segment, and close it.

    A file of another state of the journal, or of another journal, is set aside: renamed to NAME.aside.
    Without --with, prints the events that a journal in write-ahead mode has accepted but not recorded as handled.
    """
    recovered = journals.recover(journal)
    for line in recovered.done:
        echo(line)
    if not recovered.done:
        echo("nothing to repair: no segment is open")
    if with_ is not None:
        handled, failed, left = redeliver(journal, with_)
        echo(f"{handled} events handled, {failed} failed, {left} left")
        if failed or left:
            raise typer.Exit(1)
        return
    for accepted in recovered.accepted:
        echo_json(accepted.line.decode("utf-8", "replace"))
    if recovered.accepted:
        echo(f"{len(recovered.accepted)} events were accepted and not handled", err=True)


for _entry_point in sorted(entry_points(group=COMMANDS), key=lambda point: point.name):
    app.command(_entry_point.name)(_entry_point.load())
