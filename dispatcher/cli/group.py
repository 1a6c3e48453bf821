"""The `dispatcher` command as a Typer app. Needs the extra `cli`.

Each package adds its subcommands through the entry point group `dispatcher.commands`, so the core imports no other
package. An entry point names a Typer app or a function with Typer's annotations.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points, version
from typing import Any

import typer
from typer.core import TyperGroup

from dispatcher.compiled.loaded import describe_build
from dispatcher.util.terminal import one_line

COMMANDS = "dispatcher.commands"


def command_line() -> typer.Typer:
    """The app with the commands of all packages."""
    app = typer.Typer(
        cls=_PrintableGroup,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        help="A central event dispatcher, the resource manager on it, and the reports over its journal.",
    )
    for entry_point in sorted(entry_points(group=COMMANDS), key=lambda point: point.name):
        command = entry_point.load()
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=entry_point.name)
        else:
            app.command(entry_point.name)(command)

    # A callback makes this a group even if only one command is installed.
    @app.callback()
    def options(
        _version: bool = typer.Option(
            False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ) -> None: ...

    return app


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"dispatcher {version('central-dispatcher')} ({describe_build()})")
        raise typer.Exit


class _PrintableGroup(TyperGroup):
    """Typer's errors quote arguments, which may be names of files with escape sequences. Here they are printable."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _printable_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _printable_errors():
            return super().invoke(ctx)


@contextmanager
def _printable_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # Usage errors, recognised by their method: older Typers use Click's classes. Help is raised like an error.
        if hasattr(error, "format_message") and hasattr(error, "message") and "Help" not in type(error).__name__:
            error.message = one_line(str(error.message))
        raise
