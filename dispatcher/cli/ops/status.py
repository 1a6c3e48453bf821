"""`dispatcher status`: a daemon on one screen, and an exit code for health checks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dispatcher.cli.console import echo, echo_json
from dispatcher.cli.ops.errors import DoorError, NoAnswerError, NotThereError
from dispatcher.cli.ops.options import NOT_ANSWERED, CaFile, Daemon, TokenFile, address_of, answering
from dispatcher.util.figures import counted

if TYPE_CHECKING:
    from dispatcher.cli.ops.look import DaemonSummary
    from dispatcher.ops.dispatchers import DispatcherNumbers, Failure, QueuedEntity, ScheduleNumbers
    from dispatcher.ops.process import Process, ServiceNow
    from dispatcher.ops.stacks import RunningHandler

    Details = dict[str, tuple[RunningHandler | None, Failure | None, QueuedEntity | None]]
    """By dispatcher: what it runs now, its last failure, and whose events wait most."""

NOT_READY = 1
NO_DAEMON = 2
_FRAMES = 5
_MOST_SCHEDULED = 5
_WIDTH = 120


def status(
    daemon: Daemon = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one line of JSON")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="print nothing; use the exit code")] = False,
    token_file: TokenFile = None,
    ca: CaFile = None,
) -> None:
    """Show a daemon's state, queues, running handlers and last failures.

    Exit code 0: ready. 1: not ready, or no valid answer within 5 s. 2: no such daemon, access denied, or a mistake.
    """
    if quiet:
        _exit_quietly(daemon, token_file, ca)
    with answering():
        summary, details = _ask(daemon, token_file, ca)
    if as_json:
        echo_json(json.dumps(_as_json(summary, details)))
    else:
        for line in _lines(summary, details):
            echo(line)
    if summary.reasons:
        raise typer.Exit(NOT_READY)


def _exit_quietly(daemon: str | None, token_file: Path | None, ca: Path | None) -> None:
    from dispatcher.cli.ops.client import Client
    from dispatcher.cli.ops.look import summary_of

    try:
        with Client(address_of(daemon, token_file, ca)) as client:
            reasons = summary_of(client).reasons
    except NoAnswerError:
        raise typer.Exit(NOT_ANSWERED) from None
    except (DoorError, OSError):
        raise typer.Exit(NO_DAEMON) from None
    raise typer.Exit(NOT_READY if reasons else 0)


def _ask(daemon: str | None, token_file: Path | None, ca: Path | None) -> tuple[DaemonSummary, Details]:
    from dispatcher.cli.ops.client import Client
    from dispatcher.cli.ops.look import failures_of, flooder_of, running_of, summary_of

    with Client(address_of(daemon, token_file, ca)) as client:
        summary = summary_of(client)
        details: Details = {}
        for each in summary.dispatchers:
            try:
                last = failures_of(client, each.name, 1) if each.failed else []
                now = running_of(client, each.name)
                details[each.name] = now, last[0] if last else None, flooder_of(client, [each])
            except NotThereError:
                continue  # the dispatcher has stopped since
    return summary, details


def _as_json(summary: DaemonSummary, details: Details) -> dict[str, Any]:
    found = summary.as_json()
    for each, numbers in zip(found["dispatchers"], summary.dispatchers, strict=True):
        running, failure, flooder = details.get(numbers.name, (numbers.running, None, None))
        each["running"] = running.model_dump() if running else None
        each["last_failure"] = failure.model_dump() if failure else None
        each["flooder"] = flooder.model_dump() if flooder else None
    return found


# -- one screen --------------------------------------------------------------------------------------------------------


def _lines(summary: DaemonSummary, details: Details) -> Iterator[str]:
    yield _process_line(summary.process)
    yield _cut(summary.verdict)
    for service in _failed(summary.process.services):
        yield f"service {service.name} ({service.kind}) has failed: {_cut(service.failure or '')}"
    for each in summary.dispatchers:
        yield ""
        yield from _dispatcher_lines(each, *details.get(each.name, (each.running, None, None)))
    if not summary.dispatchers:
        yield "no dispatcher"


def _failed(services: Sequence[ServiceNow]) -> Iterator[ServiceNow]:
    for each in services:
        if each.failure is not None:
            yield each
        yield from _failed(each.services)


def _process_line(process: Process) -> str:
    from dispatcher.util.figures import short_duration, size

    parts = [f"{process.name}: pid {process.pid}, up {short_duration(process.uptime_s)}"]
    parts += [f"cpu {short_duration(process.cpu_s)}"] if process.cpu_s is not None else []
    parts += [f"memory {size(process.rss_bytes)}"] if process.rss_bytes is not None else []
    parts += [counted(process.threads, "thread")] if process.threads is not None else []
    return ", ".join(parts)


def _dispatcher_lines(
    numbers: DispatcherNumbers, running: RunningHandler | None, failure: Failure | None, flooder: QueuedEntity | None
) -> Iterator[str]:
    from dispatcher.cli.ops.look import frame_text, handler_frames
    from dispatcher.util.figures import clock_time, short_count, short_duration

    yield f"{numbers.name}: {numbers.kind} {numbers.state}" + (", drained" if numbers.is_drained else "")
    if numbers.failure is not None:
        yield f"  failed   {_cut(numbers.failure)}"
    most = f", most for {_cut(flooder.entity)}: {short_count(flooder.queued)}" if flooder else ""
    yield f"  queue    {_queue_text(numbers)}{most}"
    rate = numbers.rate
    yield f"  rate     {short_count(rate.s1)}/s; {short_count(rate.s10)}/s in 10 s, {short_count(rate.s60)}/s in 60 s"
    if numbers.failure_rate.s60:
        failing = [f"{short_count(each)}/s" for each in (numbers.failure_rate.s1, numbers.failure_rate.s10)]
        yield f"  failing  {failing[0]}; {failing[1]} in 10 s, {short_count(numbers.failure_rate.s60)}/s in 60 s"
    yield f"  events   {', '.join(_event_counts(numbers))}"
    yield from _scheduled_lines(numbers.scheduled)
    if numbers.journal is not None:
        state = "FAILED" if numbers.journal.failed else "sound"
        yield f"  journal  {state}, {short_count(numbers.journal.outstanding)} outstanding, {numbers.journal.path}"
    if running is None:
        yield "  running  nothing"
    else:
        yield f"  running  {_cut(running.what)} for {short_duration(running.running_s)}"
        for frame in (handler_frames(running.stack) or running.stack)[-_FRAMES:]:
            yield f"             {_cut(frame_text(frame))}"
    if failure is not None:
        yield f"  failure  {clock_time(failure.at)} {_cut(failure.what)}: {_cut(failure.error)}"


def _scheduled_lines(schedule: ScheduleNumbers) -> Iterator[str]:
    from dispatcher.util.figures import clock_time, short_count, short_duration

    if schedule.count:
        waiting, fired, skipped = map(short_count, (schedule.count, schedule.fired, schedule.skipped))
        yield f"  schedule {waiting} waiting, {fired} fired, {skipped} skipped"
        for post in schedule.next[:_MOST_SCHEDULED]:
            every = f", every {short_duration(post.every_s)}" if post.every_s else ""
            every = f", cron {_cut(post.cron)}" if post.cron else every
            yield f"             {clock_time(post.due)} {_cut(post.what)}{every}"


def _queue_text(numbers: DispatcherNumbers) -> str:
    from dispatcher.util.figures import short_count, short_duration

    queue = numbers.queue
    bound = f" of {short_count(queue.capacity)} ({queue.policy})" if queue.capacity is not None else ""
    oldest = f", the oldest for {short_duration(queue.oldest_wait_s)}" if queue.oldest_wait_s is not None else ""
    return f"{short_count(queue.size)}{bound}{oldest}"


def _event_counts(numbers: DispatcherNumbers) -> Iterator[str]:
    for name in ("accepted", "handled", "failed"):
        yield f"{getattr(numbers, name):,} {name}"
    if numbers.retrying:
        yield f"{numbers.retrying:,} retrying"
    if numbers.dead_letters is not None and numbers.dead_letters.count:
        yield numbers.dead_letters.what
    for name, by_reason in (("discarded", numbers.discarded), ("rejected", numbers.rejected)):
        for reason, number in by_reason.items():
            if number:
                yield f"{number:,} {name} ({reason})"


def _cut(text: str) -> str:
    from dispatcher.util.terminal import one_line

    return one_line(text, _WIDTH)
