"""`dispatcher top`: the command."""

from __future__ import annotations

import json
import shutil
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from dispatcher.cli.console import echo, echo_json
from dispatcher.cli.ops.errors import DoorError
from dispatcher.cli.ops.options import CaFile, Daemon, TokenFile, address_again, answering

if TYPE_CHECKING:
    from dispatcher.cli.ops.top.state import Look
    from dispatcher.cli.ops.top.watching import DaemonWatcher

_WIDTH, _HEIGHT = 80, 24


def top(
    daemon: Daemon = None,
    once: Annotated[bool, typer.Option("--once", help="print one frame as text and exit")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="with --once: print one line of JSON")] = False,
    token_file: TokenFile = None,
    ca: CaFile = None,
) -> None:
    """Watch a daemon: dispatchers, event types, the running handler, failures and entities. Press ? for the keys.

    Exit code 1: no valid answer at the start. Later, top reconnects, also to a restarted daemon of the same name.
    """
    from dispatcher.cli.ops.top.state import Wish
    from dispatcher.cli.ops.top.watching import DaemonWatcher

    if as_json and not once:
        raise DoorError("--json prints a single look: add --once")
    if not once and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise DoorError("top needs a terminal as standard input and standard error; --once prints a single frame")
    watcher = DaemonWatcher(lambda last: address_again(last, daemon, token_file, ca))
    with answering():
        first = watcher.look(Wish())
    if once:
        watcher.close()
        if as_json:
            echo_json(json.dumps(first.as_json()))
        else:
            _print(first)
    else:
        _watch(watcher, first)


def _print(look: Look) -> None:
    from dispatcher.cli.ops.top.frame import frame_of
    from dispatcher.cli.ops.top.state import TopState

    state = TopState()
    state.seen(look)
    width, height = shutil.get_terminal_size((_WIDTH, _HEIGHT))
    lines = frame_of(state, max(width, _WIDTH), max(height, _HEIGHT), time.monotonic())
    for line in lines[:-1]:  # the last one lists the keys
        echo(line.plain.rstrip())


def _watch(watcher: DaemonWatcher, first: Look) -> None:
    """Run the screen until the user leaves it. A signal ends it as a signal ends each command."""
    import asyncio
    import signal

    from dispatcher.cli.ops.top.app import TopApp

    app = TopApp(watcher, first)
    signals = (signal.SIGINT, signal.SIGTERM)
    handlers = {number: signal.getsignal(number) for number in signals}
    received: list[int] = []

    def leave(number: int) -> None:
        received.append(number)
        app.exit()

    async def run() -> None:
        for number in signals:
            asyncio.get_running_loop().add_signal_handler(number, leave, number)
        await app.run_async(mouse=False)  # the terminal's own selection copies a stack

    try:
        asyncio.run(run())
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if received or app.return_code == 128 + signal.SIGINT:
        # Only now, with the terminal as it was: the command's own handler prints its line and sets the exit code.
        signal.raise_signal(received[0] if received else signal.SIGINT)
    if app.return_code:
        raise typer.Exit(app.return_code)
