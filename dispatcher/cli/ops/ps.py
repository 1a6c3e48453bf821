"""`dispatcher ps`: this user's daemons on this host."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dispatcher.cli.console import echo, echo_json

if TYPE_CHECKING:
    from rich.text import Text

    from dispatcher.cli.ops.errors import DoorError
    from dispatcher.cli.ops.look import DaemonSummary
    from dispatcher.ops.dispatchers import QueuedEntity
    from dispatcher.web.doors import Door

    Answer = tuple[DaemonSummary, QueuedEntity | None] | DoorError
    """A daemon, and whose events wait most there."""

_TIMEOUT_S = 2.0
_AT_ONCE = 8
_MOST_NAMED = 5
_WIDE = 110
"""Columns of a terminal with room for dispatchers and scheduled events."""


def ps(as_json: Annotated[bool, typer.Option("--json", help="print one line of JSON per daemon")] = False) -> None:
    """List your daemons on this host that have a door.

    A daemon that does not answer within 2 s is listed as such, with the reason on standard error.
    """
    from concurrent.futures import ThreadPoolExecutor

    from dispatcher.cli.ops.doors import none_found
    from dispatcher.cli.ops.errors import NoDaemonError
    from dispatcher.web.doors import find_doors

    doors = find_doors()
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        answers = list(zip(doors, pool.map(_ask, doors), strict=True))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C does not wait for an answer
    ended = [door for door, answer in answers if isinstance(answer, NoDaemonError)]
    running = [(door, answer) for door, answer in answers if not isinstance(answer, NoDaemonError)]
    if as_json:
        for door, answer in running:
            echo_json(json.dumps(_as_json(door, answer)))
    elif running:
        _print_table(running)
    for door in ended:
        echo(f"{door.path}: no process is listening; the next daemon to start removes this socket", err=True)
    if not running:
        echo(none_found(), err=True)


def _ask(door: Door) -> Answer:
    from dispatcher.cli.ops.client import Address, Client
    from dispatcher.cli.ops.errors import DoorError
    from dispatcher.cli.ops.look import flooder_of, summary_of

    try:
        with Client(Address(str(door.path), socket=door.path), _TIMEOUT_S) as client:
            summary = summary_of(client)
            return summary, flooder_of(client, summary.dispatchers)
    except DoorError as error:
        return error


def _as_json(door: Door, answer: Answer) -> dict[str, Any]:
    described: dict[str, Any] = {"name": door.name, "pid": door.pid, "socket": str(door.path)}
    if isinstance(answer, Exception):
        return described | {"status": "no_answer", "error": str(answer)}
    summary, flooder = answer
    numbers = summary.dispatchers
    return described | {
        "status": summary.status,
        "uptime_s": summary.process.uptime_s,
        "dispatchers": [each.name for each in numbers],
        "queued": sum(each.queue.size for each in numbers),
        "flooder": flooder.model_dump() if flooder else None,
        "rate_10s": sum(each.rate.s10 or 0.0 for each in numbers),
        "failed": sum(each.failed for each in numbers),
        "failed_rate_10s": sum(each.failure_rate.s10 or 0.0 for each in numbers),
        "scheduled": sum(each.scheduled.count for each in numbers),
    }


def _print_table(running: list[tuple[Door, Answer]]) -> None:
    """A daemon's name, which other commands take, is never cut: a narrow terminal shows fewer columns."""
    from dispatcher.cli.console import cell, figures_table, standard_output
    from dispatcher.util.figures import listed, short_count, short_duration

    console = standard_output()
    is_wide = console.width >= _WIDE
    names = ("NAME", "PID", "STATUS", "UPTIME", *(("DISPATCHERS",) if is_wide else ()), "FLOODER")
    figures = ("QUEUED", "RATE", "FAILED", "FAIL/s", *(("SCHEDULED",) if is_wide else ()))
    table = figures_table(*names, *figures, names=len(names))
    for column in table.columns:
        column.no_wrap = column.header.plain not in ("DISPATCHERS", "FLOODER")  # type: ignore[union-attr]
    problems = []
    for door, answer in running:
        if isinstance(answer, Exception):
            problems.append(str(answer))
            rest = "-" * (len(table.columns) - 3)
            table.add_row(cell(door.name), str(door.pid), cell("no answer", "red"), *rest)
            continue
        summary, flooder = answer
        numbers = summary.dispatchers
        failing = sum(each.failure_rate.s10 or 0.0 for each in numbers)
        table.add_row(
            cell(door.name),
            str(door.pid),
            cell(summary.status, "red" if summary.reasons else "yellow" if summary.is_degraded else "green"),
            short_duration(summary.process.uptime_s),
            *((_cut(listed([each.name for each in numbers], _MOST_NAMED)),) if is_wide else ()),
            _cut(flooder.entity if flooder else "-"),
            short_count(sum(each.queue.size for each in numbers)),
            f"{short_count(sum(each.rate.s10 or 0.0 for each in numbers))}/s",
            short_count(sum(each.failed for each in numbers)),
            cell(f"{short_count(failing)}/s", "red" if failing else ""),
            *((short_count(sum(each.scheduled.count for each in numbers)),) if is_wide else ()),
        )
    console.print(table)
    for problem in problems:
        echo(problem, err=True)


def _cut(text: str) -> Text:
    """A cell that gives room to the others, on one line."""
    from dispatcher.cli.console import cell

    shown = cell(text)
    shown.no_wrap, shown.overflow = True, "ellipsis"
    return shown
