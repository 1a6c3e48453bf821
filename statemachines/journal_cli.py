"""`dispatcher journal state`: the states of a journal's entities at a point in time."""

from __future__ import annotations

import heapq
import json
import re
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from dispatcher.cli.console import RowFormat, aligned, echo, echo_json
from dispatcher.errors import DispatcherError, JournalError
from dispatcher.journal import EVENTS, TRANSITIONS, read_rows
from dispatcher.journal.snapshot import OF_ONE_PARTITION, parts_of
from dispatcher.util.units import NS_PER_S
from statemachines.registry import factory_of
from statemachines.time_travel import END, EntityState, Moment, TimeTravel, states_at

LISTED = 20
"""Entities that the table lists without `--all`."""
REMARKS_SHOWN = 10
"""Lines printed for each kind of remark."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SEQ = re.compile(r"[0-9]{1,18}")
_UNIX = re.compile(r"@(?P<seconds>[0-9]{1,10})(\.(?P<fraction>[0-9]{1,9}))?")
_ISO = re.compile(
    r"(?P<time>[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.(?P<fraction>[0-9]{1,9}))?)?)?)"
    r"(?P<zone>Z|[+-][0-9]{2}:?[0-9]{2})?"
)


class MomentError(DispatcherError):
    """`--at` is neither a seq nor a time."""

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(
            f"--at {text!r}: not a moment of a journal; give the seq of an event (12345), a time "
            "(2026-11-21T10:00:00Z, UTC if it names no zone) or Unix seconds (@1700000000.5)"
        )


def state(
    journal: Annotated[Path, typer.Argument(help="folder of the journal")],
    at: Annotated[
        str | None,
        typer.Option(help="an event's seq, a time such as 2026-11-21T10:00:00Z, or @Unix seconds; default: the end"),
    ] = None,
    machine: Annotated[str | None, typer.Option(help="only machines of this name (case-insensitive)")] = None,
    entity: Annotated[str | None, typer.Option(help="only the entity with this id")] = None,
    everything: Annotated[
        bool | None,
        typer.Option("--all/--summary", help=f"list all entities, or only counts; default: the {LISTED} latest"),
    ] = None,
    format: Annotated[
        RowFormat, typer.Option("--format", "-f", help="json lists all entities unless --summary is given")
    ] = RowFormat.table,
) -> None:
    """Replay the transitions through the state machines alone, and show each entity's state.

    Damage, and disagreements between the journal and the tables, go to standard error, with exit code 1.
    """
    moment = END if at is None else parse_moment(at)
    parts = parts_of(journal)
    if parts.is_partitioned and moment.seq is not None:
        raise JournalError(f"--at {at}: {OF_ONE_PARTITION}")
    lower_name = None if machine is None else machine.lower()

    def wanted(of_machine: str, id: str) -> bool:
        return (entity is None or id == entity) and (lower_name is None or of_machine.lower() == lower_name)

    damages: list[str] = []
    travel = states_at(
        read_rows(journal, TRANSITIONS, on_damage=damages.append),
        moment,
        from_start=all(map(_is_from_start, parts.folders)),
        wanted=None if machine is None and entity is None else wanted,
    )
    if machine is not None and not travel.counts():
        factory_of(machine)  # raises for an unknown name
    lines = _as_json(travel, everything) if format is RowFormat.json else _as_table(travel, everything)
    show = echo_json if format is RowFormat.json else echo
    for line in lines:
        show(line)
    for line in (*_remark_lines(travel), *(f"damage: {damage}" for damage in damages)):
        echo(line, err=True)
    if travel.disagreements or damages:
        raise typer.Exit(1)


def parse_moment(text: str) -> Moment:
    """Parse a seq, an ISO 8601 time or `@` and Unix seconds.

    Raises:
        MomentError: the text has none of these forms.
    """
    if _SEQ.fullmatch(text):
        return Moment(seq=int(text))
    unix = _UNIX.fullmatch(text)
    if unix is not None:
        return Moment(at=int(unix["seconds"]) * NS_PER_S + _nanoseconds(unix["fraction"]))
    iso = _ISO.fullmatch(text)
    if iso is None:
        raise MomentError(text)
    fraction = iso["fraction"]
    time = iso["time"] if fraction is None else iso["time"][: -len(fraction) - 1]
    try:
        # Python parses no zone after a bare date, and no more than six digits of a second's fraction.
        moment = datetime.fromisoformat(time).replace(tzinfo=UTC)
        if iso["zone"] not in (None, "Z"):
            moment -= datetime.strptime(iso["zone"], "%z").utcoffset() or timedelta(0)
    except (ValueError, OverflowError):
        raise MomentError(text) from None
    return Moment(at=(moment - _EPOCH) // timedelta(seconds=1) * NS_PER_S + _nanoseconds(fraction))


def format_time(at: int) -> str:
    """Unix ns as ISO 8601 in UTC without trailing zeros; `parse_moment` reads it back."""
    seconds, nanoseconds = divmod(at, NS_PER_S)
    time = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f".{nanoseconds:09d}".rstrip("0") if nanoseconds else ""
    return f"{time}{fraction}Z"


def _nanoseconds(fraction: str | None) -> int:
    return int((fraction or "").ljust(9, "0"))


def _is_from_start(journal: Path) -> bool:
    """Whether the journal still has its first event."""
    first = next(read_rows(journal, EVENTS, on_damage=lambda line: None), None)
    return first is None or bool(first["seq"] == 1)


def _as_table(travel: TimeTravel, everything: bool | None) -> Iterator[str]:
    yield _headline(travel)
    counts = travel.counts()
    if not counts:
        return
    yield ""
    yield from aligned(["machine", "state", "entities"], _count_rows(counts))
    replaced = travel.replaced()
    if replaced:
        yield ""
        yield "Machines replaced by a new one with the same id, in their last states:"
        yield from aligned(["machine", "state", "entities"], _count_rows(replaced))
    if everything is False:
        return
    yield ""
    most = sys.maxsize if everything else LISTED
    listed = heapq.nlargest(most, travel.entities(), key=lambda each: (each.since_at or 0, each.since_seq or 0))
    header = ["machine", "entity", "state", "since seq", "since", "transitions"]
    yield from aligned(header, [_entity_row(each) for each in listed])
    more = sum(sum(states.values()) for states in counts.values()) - len(listed)
    if more:
        yield f"... and {more} more, which changed before these: --all lists them"


def _as_json(travel: TimeTravel, everything: bool | None) -> Iterator[str]:
    """One JSON object; each entity is on a line of its own."""
    head = {
        "seq": travel.seq,
        "at": travel.at,
        "is_end": travel.is_end,
        "counts": travel.counts(),
        "replaced": travel.replaced(),
        "disagreements": travel.disagreements,
        "remarks": [
            {
                "kind": kind.name.lower(),
                "is_disagreement": kind.is_disagreement,
                "count": remarks.total,
                "first": [remark._asdict() | {"kind": kind.name.lower()} for remark in remarks.first],
            }
            for kind, remarks in travel.remarks.items()
        ],
    }
    text = json.dumps(head)
    if everything is False:
        yield text
        return
    line = text.removesuffix("}") + ', "entities": ['
    separator = ""
    for each in travel.entities():
        yield line + separator
        line, separator = json.dumps(each._asdict()), ","
    yield line
    yield "]}"


def _headline(travel: TimeTravel) -> str:
    if travel.seq is None or travel.at is None:
        return "no transition up to this moment"
    later = "the journal has no later transition" if travel.is_end else "the last transition up to this moment"
    return f"after seq {travel.seq}, {format_time(travel.at)}: {later}"


def _count_rows(counts: Mapping[str, Mapping[str, int]]) -> list[list[str]]:
    return [[machine, name, str(n)] for machine, states in counts.items() for name, n in states.items()]


def _entity_row(entity: EntityState) -> list[str]:
    since_at = entity.since_at
    since = ["-", "-"] if since_at is None else [str(entity.since_seq), format_time(since_at)]
    return [entity.machine, entity.entity, entity.state, *since, str(entity.transitions)]


def _remark_lines(travel: TimeTravel) -> Iterator[str]:
    """Notes first, so that the disagreements end up next to the user's prompt."""
    kinds = sorted(travel.remarks, key=lambda kind: kind.is_disagreement)
    for kind in kinds:
        remarks = travel.remarks[kind]
        for remark in remarks.first[:REMARKS_SHOWN]:
            word = "disagreement" if kind.is_disagreement else "note"
            yield f"{word}: seq {remark.seq}: {remark.machine} {remark.entity}: {remark.text}"
        more = remarks.total - REMARKS_SHOWN
        if more > 0:
            yield f"... and {more} more: {kind.value}"
    if travel.disagreements:
        yield f"{travel.disagreements} disagreements between the journal and the tables; the journal was followed"
