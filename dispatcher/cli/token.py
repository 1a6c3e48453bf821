"""`dispatcher token new`: tokens for the web doors of daemons."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from dispatcher.cli.console import echo
from dispatcher.web.config import ROLES
from dispatcher.web.tokens import add_line, new_token

token = typer.Typer(no_args_is_help=True, help="Make tokens for the web doors of daemons.")

Role = Enum("Role", {role: role for role in ROLES})  # type: ignore[misc]


# Typer makes a command without a name of a group's only one; with a callback, it stays a group.
@token.callback()
def tokens() -> None: ...


@token.command()
def new(
    name: Annotated[str, typer.Argument(help="the user's name: at most 100 letters, digits and . _ @ + -")],
    role: Annotated[Role, typer.Option(help="view: look; user: also submit work; admin: also operate the daemon")],
    file: Annotated[
        Path | None, typer.Option(help="add the token's line to this file (web.tokens_file), made if it does not exist")
    ] = None,
) -> None:
    """Print a new token, once: only its hash is kept, in the line for web.tokens_file.

    The token is the only line on standard output. Without --file, the line goes to standard error.
    """
    made, line = new_token(name, role.value)
    if file is not None:
        add_line(file, line)
    else:
        echo(f"Add this line to web.tokens_file: {line}", err=True)
    echo(made)
