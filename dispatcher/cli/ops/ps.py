"""`dispatcher ps`: this user's daemons on this host."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dispatcher.cli.console import echo, echo_json

if TYPE_CHECKING:
    from dispatcher.cli.ops.errors import DoorError
    from dispatcher.cli.ops.look import Summary
    from dispatcher.web.doors import Door

_TIMEOUT_S = 2.0
_AT_ONCE = 8
_MOST_NAMED = 5
_TITLES = ("NAME", "PID", "STATUS", "UPTIME", "DISPATCHERS", "QUEUED", "RATE", "FAILED", "SCHEDULED")


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


def _ask(door: Door) -> Summary | DoorError:
    from dispatcher.cli.ops.client import Address, Client
    from dispatcher.cli.ops.errors import DoorError
    from dispatcher.cli.ops.look import summary_of

    try:
        with Client(Address(str(door.path), socket=door.path), _TIMEOUT_S) as client:
            return summary_of(client)
    except DoorError as error:
        return error


def _as_json(door: Door, answer: Summary | DoorError) -> dict[str, Any]:
    described: dict[str, Any] = {"name": door.name, "pid": door.pid, "socket": str(door.path)}
    if isinstance(answer, Exception):
        return described | {"status": "no_answer", "error": str(answer)}
    return described | {
        "status": answer.status,
        "uptime_s": answer.process.uptime_s,
        "dispatchers": [each.name for each in answer.dispatchers],
        "queued": sum(each.queue.size for each in answer.dispatchers),
        "rate_10s": sum(each.rate.s10 or 0.0 for each in answer.dispatchers),
        "failed": sum(each.failed for each in answer.dispatchers),
        "scheduled": sum(each.scheduled.count for each in answer.dispatchers),
    }


def _print_table(running: list[tuple[Door, Summary | DoorError]]) -> None:
    from dispatcher.cli.console import cell, figures_table, standard_output
    from dispatcher.util.figures import listed, short_count, short_duration

    table = figures_table(*_TITLES, names=5)
    problems = []
    for door, answer in running:
        if isinstance(answer, Exception):
            problems.append(str(answer))
            table.add_row(cell(door.name), str(door.pid), cell("no answer", "red"), *"------")
            continue
        numbers = answer.dispatchers
        table.add_row(
            cell(door.name),
            str(door.pid),
            cell(answer.status, "red" if answer.reasons else "green"),
            short_duration(answer.process.uptime_s),
            cell(listed([each.name for each in numbers], _MOST_NAMED)),
            short_count(sum(each.queue.size for each in numbers)),
            f"{short_count(sum(each.rate.s10 or 0.0 for each in numbers))}/s",
            short_count(sum(each.failed for each in numbers)),
            short_count(sum(each.scheduled.count for each in numbers)),
        )
    standard_output().print(table)
    for problem in problems:
        echo(problem, err=True)
