"""`dispatcher stack`: where handler threads spend their time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from dispatcher.cli.console import echo
from dispatcher.cli.ops.options import CaFile, Daemon, TokenFile, address_of, answering

if TYPE_CHECKING:
    from dispatcher.cli.ops.client import Client
    from dispatcher.ops.dispatchers import DispatcherNumbers
    from dispatcher.ops.stacks import Samples, StackLine

_MOST_S = 1.0
_MOST_NAMED = 10


def stack(
    daemon: Daemon = None,
    dispatcher: Annotated[
        str | None, typer.Option("--dispatcher", "-d", help="only this dispatcher", show_default="all")
    ] = None,
    samples: Annotated[int, typer.Option("--samples", "-n", min=1, max=100, help="samples to take within 1 s")] = 20,
    folded: Annotated[
        bool,
        typer.Option("--folded", help="print `frame;frame;frame count` for each stack, the input of flame graph tools"),
    ] = False,
    token_file: TokenFile = None,
    ca: CaFile = None,
) -> None:
    """Sample the stacks of the handler threads, and print each distinct stack with its number of samples.

    A dispatcher that is running nothing has no stack and counts as idle. Exit code 1: no valid answer.
    """
    from dispatcher.cli.ops.client import Client
    from dispatcher.cli.ops.look import summary_of

    with answering(), Client(address_of(daemon, token_file, ca)) as client:
        numbers = summary_of(client).dispatchers
        meant = [each for each in numbers if dispatcher in (None, each.name)]
        if dispatcher is not None and not meant:
            _refuse(client, dispatcher, [each.name for each in numbers])
        for each in meant:
            found = _samples(client, each.name, samples)
            for line in _folded(each, found) if folded else _lines(each, found):
                echo(line)


def _refuse(client: Client, dispatcher: str, names: Sequence[str]) -> NoReturn:
    from dispatcher.cli.ops.errors import NoDaemonError
    from dispatcher.util.figures import listed

    raise NoDaemonError(
        f"{client.address.label}: no dispatcher {dispatcher!r}; it has {listed(names, _MOST_NAMED) or 'none'}"
    )


def _samples(client: Client, dispatcher: str, samples: int) -> Samples:
    from dispatcher.ops.stacks import Samples

    interval_ms = int(_MOST_S * 1000 / samples)
    return client.get(Samples, "dispatchers", dispatcher, "running", samples=samples, interval_ms=min(interval_ms, 50))


def _lines(numbers: DispatcherNumbers, found: Samples) -> Iterator[str]:
    from dispatcher.util.figures import short_duration

    running = numbers.running
    what = f"{running.what}, for {short_duration(running.running_s)}" if running else "nothing"
    yield f"{numbers.name}: runs {what}; {found.samples} samples"
    for each in found.stacks:
        yield f"{each.count:>5} of {found.samples}"
        yield from (f"         {line}" for line in _stack_lines(each.stack))
    if found.idle:
        yield f"{found.idle:>5} of {found.samples}"
        yield "         idle"


def _stack_lines(stack: Sequence[StackLine]) -> Iterator[str]:
    """A line for each frame of a handler; other frames are only counted."""
    from dispatcher.cli.ops.look import frame_text, handler_frames

    of_handler = {id(frame) for frame in handler_frames(stack)}
    for is_shown, group in groupby(stack, lambda frame: id(frame) in of_handler):
        frames = list(group)
        if is_shown:
            yield from map(frame_text, frames)
        else:
            yield f"({len(frames)} {'frame' if len(frames) == 1 else 'frames'} of the dispatcher)"


def _folded(numbers: DispatcherNumbers, found: Samples) -> Iterator[str]:
    from dispatcher.cli.ops.look import short_path

    for each in found.stacks:
        frames = [f"{short_path(frame.file)}:{frame.function}".replace(";", ",") for frame in each.stack]
        yield f"{';'.join([numbers.name.replace(';', ','), *frames])} {each.count}"
