"""`dispatcher token new`: tokens for daemons' web doors."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from dispatcher.cli.console import echo
from dispatcher.web.config import ROLES
from dispatcher.web.tokens import add_line, new_token

token: typer.Typer = typer.Typer(no_args_is_help=True, help="Create tokens for daemons' web doors.")

Role: Enum = Enum("Role", {role: role for role in ROLES})  # type: ignore[misc]


# Typer turns a group with one command into that command, unless it has a callback.
@token.callback()
def tokens() -> None: ...


@token.command()
def new(
    name: Annotated[str, typer.Argument(help="the user's name: up to 100 letters, digits and . _ @ + -")],
    role: Annotated[Role, typer.Option(help="view: read; user: also submit work; admin: also operate the daemon")],
    file: Annotated[
        Path | None,
        typer.Option(help="append the token's line to this file (web.tokens_file); it is created if missing"),
    ] = None,
) -> None:
    """Create a token and print it. It cannot be shown again: web.tokens_file holds only its hash.

    Only the token goes to standard output. Without --file, the line for web.tokens_file goes to standard error.
    """
    made, line = new_token(name, role.value)
    if file is not None:
        add_line(file, line)
    else:
        echo(f"Add this line to web.tokens_file: {line}", err=True)
    echo(made)
