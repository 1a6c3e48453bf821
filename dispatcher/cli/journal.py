"""`dispatcher journal verify|tail|recover|history|failed|redeliver|scheduled JOURNAL`, and other packages' commands."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from dispatcher import journal as journals
from dispatcher.cli import redelivery
from dispatcher.cli.console import RowFormat, aligned, echo, echo_json, time_text
from dispatcher.cli.failed import FailedEvent, WantedFailures, failed_events, failed_table, parse_since
from dispatcher.cli.group import EntryPointGroup
from dispatcher.cli.ops.options import CaFile, TokenFile, address_of, answering
from dispatcher.cli.scheduled import forget as forget_keys
from dispatcher.cli.scheduled import read_scheduled, scheduled_table
from dispatcher.errors import ConfigError, JournalError
from dispatcher.journal.format.entity_data import fields_in
from dispatcher.journal.format.event_codec import marks_of
from dispatcher.journal.format.segments import set_aside_files
from dispatcher.journal.history import HistoryRow, entity_history
from dispatcher.journal.read import read_unhandled
from dispatcher.journal.snapshot import parts_of
from dispatcher.util.figures import counted, plain_milliseconds


class _JournalCommands(EntryPointGroup):
    entry_points_of = "dispatcher.journal_commands"


app: typer.Typer = typer.Typer(cls=_JournalCommands, no_args_is_help=True, help="Inspect an event journal.")

Journal = Annotated[Path, typer.Argument(help="the journal's folder")]
OfEntity = Annotated[str | None, typer.Option("--entity", help="only events about this entity")]
OfType = Annotated[
    str | None, typer.Option("--type", metavar="NAME", help="only events of this type: NAME, or Class.NAME")
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="only events that failed since then: 2026-11-21T10:00:00Z, or how long ago: 90s, 30m, 2h, 1d",
    ),
]


@app.command()
def verify(journal: Journal) -> None:
    """Check every byte and every sequence number. Exit code 1: there is a problem."""
    found = journals.verify(journal)
    for problem in found.problems:
        echo(problem, err=True)
    for segment in found.open_segments:
        name = segment.relative_to(journal)
        echo(f"{name}: open: being written, or left by a crash (then: dispatcher journal recover)")
    for torn in found.torn:
        echo(f"{torn}: cut off by a crash, or being written")
    aside = [str(path.relative_to(journal)) for part in parts_of(journal).folders for path in set_aside_files(part)]
    if aside:
        echo(f"set aside by recovery, and not read: {', '.join(aside)}")
    parts = (found.events, "event"), (found.transitions, "transition"), (len(found.problems), "problem")
    echo(", ".join(counted(number, noun) for number, noun in parts))
    if found.problems:
        raise typer.Exit(1)


@app.command()
def tail(
    journal: Journal, lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="how many events")] = 10
) -> None:
    """Print the last events as JSON lines."""
    for row in journals.tail(journal, lines):
        echo_json(json.dumps(row))


@app.command()
def recover(
    journal: Journal,
    with_: Annotated[
        str | None,
        typer.Option(
            "--with",
            metavar="MODULE:FUNCTION",
            help="function that takes a JournalWriter, or the PartitionedJournal of a partitioned journal, and returns "
            "the dispatcher that handles the unhandled events",
        ),
    ] = None,
) -> None:
    """Repair a journal after a crash: cut the incomplete end off the open segment, and close it.

    A file of another state of the journal, or of another journal, is set aside: renamed to NAME.aside.
    Without --with, prints the events that a journal in write-ahead mode has accepted but not recorded as handled.
    --with, on a folder of dead letters, does what redeliver --with does.
    Exit code 1: accepted events are lost, with a damaged or missing segment. They are named, and stay reported until
    the daemon starts with on_loss: start. --with fails until then.
    """
    recovered = journals.recover(journal)
    for line in recovered.done:
        echo(line)
    if not recovered.done:
        echo("nothing to repair: no segment is open")
    for loss in recovered.losses:
        echo(str(loss), err=True)
    if with_ is not None:
        _end_redelivery(_recover_with(journal, with_))
        return
    events = [accepted.line for accepted in recovered.accepted if marks_of(accepted.line).has_event]
    for event in events:
        echo_json(event.decode("utf-8", "replace"))
    if events:
        echo(f"{counted(len(events), 'event', 'was')} accepted and not handled", err=True)
    if recovered.losses:
        raise typer.Exit(1)


@app.command()
def history(
    journal: Journal,
    entity: Annotated[str, typer.Argument(help="id of an application, container, node or other entity")],
    machine: Annotated[str | None, typer.Option(help="only transitions of machines of this name")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="how many rows")] = 100,
    before_seq: Annotated[
        int | None, typer.Option(help="only rows with a smaller seq, to continue after the last row printed")
    ] = None,
    format: Annotated[
        RowFormat, typer.Option("--format", "-f", help="json: an object per row, with all columns")
    ] = RowFormat.table,
) -> None:
    """Print an entity's transitions, and the events about it that caused none, newest first.

    It reads the whole journal, and can run while a daemon writes it. Exit code 1: no rows.
    """
    damages: list[str] = []
    found = entity_history(
        journal, entity, machine=machine, limit=limit, before_seq=before_seq, on_damage=damages.append
    )
    if format is RowFormat.json:
        for row in found.transitions:
            echo_json(json.dumps(asdict(row)))
    elif found.transitions:
        for line in _history_table(found.transitions):
            echo(line)
    for damage in damages:
        echo(damage, err=True)
    if not found.transitions:
        echo(f"{journal}: no rows about {entity}", err=True)
    elif not found.complete and parts_of(journal).is_partitioned:
        echo("older rows may exist: a greater --limit, or the folder of one partition, shows more", err=True)
    elif not found.complete:
        echo(f"older rows may exist: --before-seq {found.transitions[-1].seq}", err=True)
    if not found.transitions:
        raise typer.Exit(1)


@app.command()
def failed(
    journal: Journal,
    entity: OfEntity = None,
    type: OfType = None,
    since: Since = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="print a JSON object per event, with its fields and the traceback")
    ] = False,
) -> None:
    """List the events that failed after their last attempt, oldest first.

    JOURNAL is a folder of dead letters, or a journal, whose rows record failed events without attempts and traceback.
    It can run while a daemon writes the journal. Exit code 1: no failed event was found.
    """
    wanted = _wanted(entity, type, since)
    damages: list[str] = []
    found = [each for each in failed_events(journal, damages.append) if wanted.takes(each)]
    if as_json:
        for each in found:
            echo_json(each.as_json())
    elif found:
        for line in failed_table(found):
            echo(line)
    for damage in damages:
        echo(damage, err=True)
    if not found:
        echo(f"{journal}: no failed events" + (" that match" if any(wanted) else ""), err=True)
        raise typer.Exit(1)


@app.command()
def redeliver(
    journal: Journal,
    numbers: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NUMBER]...", help="only these, as `dispatcher journal failed` numbers them"),
    ] = None,
    with_: Annotated[
        str | None,
        typer.Option(
            "--with",
            metavar="MODULE:FUNCTION",
            help="function that takes a JournalWriter, and returns the AsyncDispatcher that handles the events",
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|PID|URL",
            help="the running daemon whose dead letters they are: its name, process id, socket (unix:PATH) or URL",
        ),
    ] = None,
    entity: OfEntity = None,
    type: OfType = None,
    since: Since = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
) -> None:
    """Handle dead letters again, all or selected ones, each as its first attempt.

    JOURNAL is a folder of dead letters. With --to, its running daemon posts them to the dispatcher that had them. The
    daemon needs ops.control, and you need the role admin. Use --with if no daemon is running: the function is called
    once for each partition. Those that fail again are dead letters again. Exit code 1: none was selected, or some have
    failed again, were rejected or are left.
    """
    if (with_ is None) == (to is None):
        raise ConfigError("redeliver: give either --to, for a daemon that runs, or --with, for one that does not")
    wanted = _wanted(entity, type, since)
    damages: list[str] = []
    letters = [each for each in failed_events(journal, damages.append) if each.is_letter]
    for damage in damages:
        echo(damage, err=True)
    unknown = [number for number in numbers or () if number not in {each.name for each in letters}]
    if unknown:
        raise JournalError(f"{journal}: no dead letter {', '.join(unknown)}; see dispatcher journal failed")
    chosen = [each for each in letters if (not numbers or each.name in numbers) and wanted.takes(each)]
    declared = _declared(chosen)
    if not declared:
        echo(f"{journal}: nothing to redeliver", err=True)
        raise typer.Exit(1)
    if to is not None:
        _redeliver_to(to, token_file, ca, declared)
        return
    assert with_ is not None
    _end_redelivery(_redeliver_with(with_, declared))


@app.command()
def scheduled(
    journal: Journal,
    forget: Annotated[
        list[str] | None, typer.Option("--forget", metavar="KEY", help="cancel what this key holds; repeat it for more")
    ] = None,
) -> None:
    """List what is scheduled under keys, soonest first: delayed events, and each post_every, with its rule.

    It can run while a daemon writes the journal. --forget can't: there, call dispatcher.cancel(key). Exit code 1: a key
    to forget holds nothing.
    """
    if forget:
        unknown = set(forget) - forget_keys(journal, set(forget))
        for key in sorted(unknown):
            echo(f"{journal}: nothing is scheduled under {key}", err=True)
        if unknown:
            raise typer.Exit(1)
        return
    lines = read_scheduled(journal)
    if not lines:
        echo(f"{journal}: nothing is scheduled under a key", err=True)
        return
    for line in scheduled_table(lines):
        echo(line)


def _recover_with(journal: Path, factory: str) -> list[redelivery.RedeliveredEvents]:
    unhandled = {folder: read_unhandled(folder) for folder in parts_of(journal).folders}
    if not any(each.is_of_letters for each in unhandled.values()):
        return [redelivery.redeliver(journal, factory)]
    letters = _declared(each for each in failed_events(journal, lambda line: echo(line, err=True)) if each.is_letter)
    return _redeliver_with(factory, letters, [folder for folder, found in unhandled.items() if found.events])


def _declared(letters: Iterable[FailedEvent]) -> list[FailedEvent]:
    """Those that can be redelivered; the others are named."""
    found = list(letters)
    for each in found:
        if not each.is_declared:
            echo(f"{each.name} {each.what} stays: its class was not declared when it failed", err=True)
    return [each for each in found if each.is_declared]


def _redeliver_with(
    factory: str, letters: Iterable[FailedEvent], folders: Iterable[Path] = ()
) -> list[redelivery.RedeliveredEvents]:
    """Hand out these letters, and what else these folders have that is no letter."""
    seqs: dict[Path, set[int]] = {folder: set() for folder in folders}
    for each in letters:
        seqs.setdefault(each.folder, set()).add(each.number)
    return [redelivery.redeliver_letters(folder, of_folder, factory) for folder, of_folder in seqs.items()]


def _redeliver_to(daemon: str, token_file: Path | None, ca: Path | None, letters: Sequence[FailedEvent]) -> None:
    from dispatcher.cli.ops.client import Client

    with answering(), Client(address_of(daemon, token_file, ca)) as client:
        found = redelivery.post_again(client, letters)
    for line in found.refused:
        echo(line, err=True)
    left = len(letters) - found.posted - len(found.refused)
    room = ": no room" if left else ""
    echo(f"{counted(found.posted, 'event')} posted, {len(found.refused)} rejected, {left} left{room}")
    if found.refused or left:
        raise typer.Exit(1)


def _end_redelivery(ended: Iterable[redelivery.RedeliveredEvents]) -> None:
    handled, failed, left, scheduled = map(sum, zip((0, 0, 0, 0), *ended, strict=True))
    later = f", {scheduled} scheduled for later" if scheduled else ""
    echo(f"{counted(handled, 'event')} handled, {failed} failed, {left} left{later}")
    if failed or left:
        raise typer.Exit(1)


def _wanted(entity: str | None, type: str | None, since: str | None) -> WantedFailures:
    return WantedFailures(entity, type, None if since is None else parse_since(since, datetime.now(UTC)))


def _history_table(rows: Sequence[HistoryRow]) -> Iterator[str]:
    titles = ("AT", "SEQ", "MACHINE", "FROM", "EVENT", "TO", "WAITED", "HANDLED IN", "REMARKS")
    return aligned(titles, [_history_cells(row) for row in rows])


def _history_cells(row: HistoryRow) -> tuple[str, ...]:
    remarks = [
        "rejected" if row.valid is False else "",
        "" if row.outcome in (None, "handled") else str(row.outcome),
        row.error or "",
        "redelivered" if row.redelivered else "",
        "" if row.data is None else f"data {fields_in(row.data)}",
    ]
    event = row.event_type if row.event_class is None else f"{row.event_class}.{row.event_type}"
    return (
        time_text(row.at),
        str(row.seq),
        row.machine or "-",
        row.from_state or "-",
        event,
        row.to_state or "-",
        plain_milliseconds(row.queue_ns),
        plain_milliseconds(row.handling_ns),
        ", ".join(filter(None, remarks)),
    )
