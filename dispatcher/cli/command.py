"""The `dispatcher` command: the subcommands of every installed package, below one entry point."""

from __future__ import annotations

import sys

from dispatcher.cli.interruption import Interruption

TYPE_CHECKING = False  # as in `typing`, whose import takes a while
if TYPE_CHECKING:
    from typing import NoReturn

USER_ERROR = 2
"""Exit code for a mistake in a file, a flag or the set-up, reported in one line on standard error."""


def main() -> NoReturn:
    """Run the command line and exit the process. SIGINT and SIGTERM end it with one line, and 130 or 143.

    A mistake in a file, a flag or the set-up is one printable line on standard error, and exit code 2.
    """
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
    if interruption.number is None:
        sys.exit(0)
    interruption.end()


def _run() -> None:
    # Not at the top: these imports take longer than the interpreter's start.
    import os

    from dispatcher.errors import DispatcherError

    try:
        import typer  # noqa: F401
    except ModuleNotFoundError:
        _refuse("the command needs its extra: pip install 'central-dispatcher[cli]'")
    from dispatcher.cli.group import command_line

    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # not None, as without a console, nor a file of a test
            stream.reconfigure(errors="backslashreplace")
    if any("\0" in argument for argument in sys.argv):
        _refuse("an argument has a zero character, which no name of a file can have")
    try:
        command_line()(prog_name="dispatcher")
    except DispatcherError as error:
        _refuse(str(error))
    except UnicodeEncodeError as error:
        _refuse(f"{error.object!r}: this is not Unicode text, as a name here has to be; rename it")
    except OSError as error:
        where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        _refuse(f"{where}{error.strerror or error}")


def _refuse(reason: str) -> NoReturn:
    from dispatcher.util.terminal import one_line

    print(f"dispatcher: {one_line(reason)}", file=sys.stderr)
    sys.exit(USER_ERROR)
