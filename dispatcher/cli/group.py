"""The `dispatcher` command as a Typer app. Needs the extra `cli`.

Each package adds its subcommands through the entry point group `dispatcher.commands`, so the core imports no other
package. An entry point names a Typer app or a function with Typer's annotations. It is loaded when its subcommand is
used or its help is shown.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import typer
from typer.core import TyperGroup

import dispatcher
from dispatcher.errors import DispatcherError
from dispatcher.util.terminal import one_line


def command_line() -> typer.Typer:
    """The app with the commands of all packages."""
    app = typer.Typer(
        cls=_Commands,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        help="A central event dispatcher, the resource manager on it, and the reports over its journal.",
    )

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
        typer.echo(f"dispatcher {version('central-dispatcher')}")
        raise typer.Exit


class EntryPointGroup(TyperGroup):
    """Has its own commands, and those of the entry points `entry_points_of`.

    An entry point that cannot be loaded takes nothing with it but its own command, which says why.
    """

    entry_points_of: ClassVar[str]

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        points: Any = {point.name: point for point in entry_points(group=self.entry_points_of)}
        self.commands.update(sorted(points.items()))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found: Any = super().get_command(ctx, cmd_name)
        return _loaded(found) if isinstance(found, EntryPoint) else found


def _loaded(point: EntryPoint) -> Any:
    """The command that an entry point names, or one that raises a DispatcherError."""
    app = typer.Typer(add_completion=False)
    try:
        command = point.load()
    except (Exception, SystemExit) as error:  # a foreign module may do anything while it is imported
        reason = f"{point.name} cannot be loaded: {_reason(point, error)}"

        @app.command(
            point.name,
            help=one_line(reason),
            add_help_option=False,
            context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
        )
        def refuse() -> None:
            raise DispatcherError(reason)

        return typer.main.get_command(app)
    if isinstance(command, typer.Typer):
        group: Any = typer.main.get_group(command)
        group.name = point.name
        return group
    app.command(point.name)(command)
    return typer.main.get_command(app)


def _reason(point: EntryPoint, error: BaseException) -> str:
    """What is wrong. If another package has the name of one of ours, it tells both places."""
    name = point.module.partition(".")[0]
    own = Path(dispatcher.__file__).parents[1] / name
    # A package whose import has failed is not in sys.modules.
    spec = getattr(sys.modules[name], "__spec__", None) if name in sys.modules else find_spec(name)
    if own.is_dir() and spec is not None:
        places = [Path(place) for place in spec.submodule_search_locations or [spec.origin or ""]]
        if own not in places:
            return (
                f"it is in the package {name} at {own}, but Python finds another {name} at {places[0]}; rename that "
                "one, or take it off PYTHONPATH"
            )
    return f"{type(error).__name__}: {error}"


class _Commands(EntryPointGroup):
    """Typer's errors quote arguments, which may be names of files with escape sequences. Here they are printable."""

    entry_points_of = "dispatcher.commands"

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
