"""`dispatcher journal verify|tail|recover JOURNAL`, and what other packages add."""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import typer

from dispatcher import journal as journals
from dispatcher.queue.redelivery import redeliver

COMMANDS = "dispatcher.journal_commands"
"""Entry point group of further subcommands: functions with Typer's annotations."""

app = typer.Typer(no_args_is_help=True, help="Look at an event journal.")

Journal = Annotated[Path, typer.Argument(help="the journal's folder")]


@app.command()
def verify(journal: Journal) -> None:
    """Check every byte and every number; exit code 1 if something is wrong."""
    found = journals.verify(journal)
    for problem in found.problems:
        typer.echo(problem, err=True)
    for segment in found.open_segments:
        typer.echo(f"{segment.name}: open: being written, or left by a crash (then: dispatcher journal recover)")
    for torn in found.torn:
        typer.echo(f"{torn}: torn off by a crash, or being written")
    typer.echo(f"{found.events} events, {found.transitions} transitions, {len(found.problems)} problems")
    if found.problems:
        raise typer.Exit(1)


@app.command()
def tail(
    journal: Journal, lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="how many events")] = 10
) -> None:
    """Print the last events as JSON lines."""
    for row in journals.tail(journal, lines):
        typer.echo(json.dumps(row))


@app.command()
def recover(
    journal: Journal,
    with_: Annotated[
        str | None,
        typer.Option(
            "--with",
            metavar="MODULE:FUNCTION",
            help="hand the unhandled events to the dispatcher that this function makes of a JournalWriter",
        ),
    ] = None,
) -> None:
    """Repair what a dead writer left: close its segment without what it had not finished writing.

    Without --with, prints the events that a journal in write-ahead mode has accepted and not seen handled.
    """
    recovered = journals.recover(journal)
    for line in recovered.done:
        typer.echo(line)
    if not recovered.done:
        typer.echo("nothing to repair: no segment is open")
    if with_ is not None:
        handled, failed, left = redeliver(journal, with_)
        typer.echo(f"{handled} events handled, {failed} failed, {left} left")
        if failed or left:
            raise typer.Exit(1)
        return
    for accepted in recovered.accepted:
        typer.echo(accepted.line.decode("utf-8", "replace"))
    if recovered.accepted:
        typer.echo(f"{len(recovered.accepted)} events were accepted and not handled", err=True)


for _entry_point in sorted(entry_points(group=COMMANDS), key=lambda point: point.name):
    app.command(_entry_point.name)(_entry_point.load())
