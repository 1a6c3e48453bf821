"""The `dispatcher` command.

Each package adds its subcommands through the entry point group `dispatcher.commands`, so the core imports no other
package. An entry point names a Typer app or a function with Typer's annotations.
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points, version
from typing import NoReturn

from dispatcher.errors import DispatcherError

COMMANDS = "dispatcher.commands"

USER_ERROR = 2
"""Exit code for a mistake in a file, a flag or the set-up, reported in one line on standard error."""


def main() -> NoReturn:
    """Run the command line and exit the process."""
    try:
        import typer
    except ModuleNotFoundError:
        print("dispatcher: the command needs its extra: pip install 'central-dispatcher[cli]'", file=sys.stderr)
        sys.exit(USER_ERROR)
    app = typer.Typer(
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

    try:
        app(prog_name="dispatcher")
    except DispatcherError as error:
        print(f"dispatcher: {error}", file=sys.stderr)
        sys.exit(USER_ERROR)
    sys.exit(0)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"dispatcher {version('central-dispatcher')}")
        sys.exit(0)
