"""`dispatcher journal verify|tail|recover JOURNAL`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dispatcher.journal import reader

app = typer.Typer(no_args_is_help=True, help="Look at an event journal.")

Journal = Annotated[Path, typer.Argument(help="the journal's folder")]


@app.command()
def verify(journal: Journal) -> None:
    """Check every row and the order of all; exit code 1 if something is wrong."""
    found = reader.verify(journal)
    for problem in found.problems:
        typer.echo(problem, err=True)
    for segment in found.open_segments:
        typer.echo(f"{segment}: open: being written, or left by a crash (then: dispatcher journal recover)")
    typer.echo(f"{found.events} events, {found.transitions} transitions, {len(found.problems)} problems")
    if found.problems:
        raise typer.Exit(1)


@app.command()
def tail(
    journal: Journal, lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="how many events")] = 10
) -> None:
    """Print the last events as JSON lines."""
    for row in reader.tail(journal, lines):
        typer.echo(json.dumps(row))


@app.command()
def recover(journal: Journal) -> None:
    """Close the segments that a writer left open when it died, without what it had not finished writing."""
    done = reader.recover(journal)
    for line in done:
        typer.echo(line)
    if not done:
        typer.echo("nothing to recover: no segment is open")
