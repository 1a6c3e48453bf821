"""The `dispatcher` command.

Each package adds its subcommands through the entry point group `dispatcher.commands`, so the core imports no other
package. An entry point names a Typer app or a function with Typer's annotations.
"""

from __future__ import annotations

import sys

from dispatcher.cli.interruption import Interruption

TYPE_CHECKING = False  # as in `typing`, whose import takes a while
if TYPE_CHECKING:
    from typing import NoReturn

COMMANDS = "dispatcher.commands"

USER_ERROR = 2
"""Exit code for a mistake in a file, a flag or the set-up, reported in one line on standard error."""


def main() -> NoReturn:
    """Run the command line and exit the process. SIGINT and SIGTERM end it with one line, and 130 or 143."""
    interruption = Interruption()
    try:
        try:
            interruption.install()
            _run()
        finally:
            interruption.over()
    except BaseException:
        # Whatever an interrupted command raises, it ends as an interrupted one.
        if interruption.number is None:
            raise
    interruption.end()


def _run() -> NoReturn:
    # Not at the top: these imports take longer than the interpreter's start.
    from importlib.metadata import entry_points

    from dispatcher.errors import DispatcherError

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
    from importlib.metadata import version

    if is_wanted:
        print(f"dispatcher {version('central-dispatcher')}")
        sys.exit(0)
