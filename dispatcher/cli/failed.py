"""The failed events of a journal: dead letters, or the rows of events that have failed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

from dispatcher.cli.console import aligned, time_text
from dispatcher.dead_letters import read_letters
from dispatcher.errors import ConfigError
from dispatcher.journal import EVENTS, read_rows
from dispatcher.journal.format.partitions import partition_number
from dispatcher.journal.snapshot import parts_of
from dispatcher.journal.unhandled import read_unhandled
from dispatcher.util.units import NS_PER_S

_AGO: Final = re.compile(r"(?P<count>[0-9]{1,9})(?P<unit>[smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class FailedEvent(NamedTuple):
    """An event that has failed. What its journal does not say is None."""

    folder: Path
    """Of its journal."""
    partition: int | None
    number: int
    """A dead letter's accepted seq, a row's seq; each partition counts by itself."""
    dispatcher: str
    event_class: str
    event_type: str
    entity: str | None
    failed_ns: int
    """Unix ns."""
    attempts: int | None
    error: str
    traceback: str | None
    event: Any
    """The event's fields, or its repr if its class was not declared; of a row, its payload."""
    is_letter: bool
    is_declared: bool
    """It can be redelivered."""

    @property
    def name(self) -> str:
        """The number, with the partition if there are several: `17`, `1/17`."""
        return str(self.number) if self.partition is None else f"{self.partition}/{self.number}"

    @property
    def what(self) -> str:
        return f"{self.event_class}.{self.event_type}"

    def as_json(self) -> str:
        said = self._asdict()
        del said["folder"], said["is_letter"]
        if self.partition is None:
            del said["partition"]
        return json.dumps(said)


class Wanted(NamedTuple):
    """Which failed events a command is about; None: all."""

    entity: str | None
    type: str | None
    """The name of an event type, or Class.NAME."""
    since_ns: int | None
    """Unix ns."""

    def takes(self, failed: FailedEvent) -> bool:
        return (
            (self.entity is None or failed.entity == self.entity)
            and (self.type is None or self.type in (failed.event_type, failed.what))
            and (self.since_ns is None or failed.failed_ns >= self.since_ns)
        )


def failed_events(journal: Path, on_damage: Callable[[str], None]) -> list[FailedEvent]:
    """The failed events of a journal, oldest first, also while it is written.

    Raises:
        JournalError: not a journal, or a file or a dead letter cannot be read.
    """
    parts = parts_of(journal)
    for name in parts.missing:
        on_damage(f"{name}: is missing")
    found: list[FailedEvent] = []
    for folder in parts.folders:
        partition = partition_number(folder) if parts.is_partitioned else None
        found += _failed_in(folder, partition, lambda line, of=folder: on_damage(parts.named(of, line)))  # type: ignore[misc]
    return sorted(found, key=lambda each: each.failed_ns)


def _failed_in(folder: Path, partition: int | None, on_damage: Callable[[str], None]) -> Iterator[FailedEvent]:
    damages: list[str] = []
    unhandled = read_unhandled(folder, damages.append)
    # Rows in a folder of dead letters are of events that were redelivered. Those that failed again are letters again.
    if not unhandled.is_of_letters:
        yield from _failed_rows(folder, partition, on_damage)
        return
    for line in damages:
        on_damage(line)
    for letter in read_letters(unhandled.events):
        died = letter.died
        yield FailedEvent(
            folder=folder,
            partition=partition,
            number=letter.accepted_seq,
            dispatcher=died.dispatcher,
            event_class=letter.event_class,
            event_type=letter.event_type,
            entity=died.entity,
            failed_ns=died.failed_ns,
            attempts=died.attempts,
            error=died.error,
            traceback=died.traceback,
            event=letter.event,
            is_letter=True,
            is_declared=letter.is_declared,
        )


def _failed_rows(folder: Path, partition: int | None, on_damage: Callable[[str], None]) -> Iterator[FailedEvent]:
    for row in read_rows(folder, EVENTS, on_damage=on_damage):
        if row["outcome"] == "handled":
            continue
        payload = row.get("payload")
        yield FailedEvent(
            folder=folder,
            partition=partition,
            number=row["seq"],
            dispatcher=row["dispatcher"],
            event_class=row["event_class"],
            event_type=row["event_type"],
            entity=row.get("entity"),
            failed_ns=row["finished_at"],
            attempts=None,
            error=row.get("error") or row["outcome"],
            traceback=None,
            event=None if payload is None else json.loads(payload),
            is_letter=False,
            is_declared=False,
        )


def failed_table(failed: Sequence[FailedEvent]) -> Iterator[str]:
    cells = [
        (
            each.name,
            time_text(each.failed_ns),
            each.what,
            each.entity or "-",
            "-" if each.attempts is None else str(each.attempts),
            each.error,
        )
        for each in failed
    ]
    return aligned(("NUMBER", "FAILED AT", "EVENT", "ENTITY", "ATTEMPTS", "ERROR"), cells)


def parse_since(text: str, now: datetime) -> int:
    """A time in ISO 8601 (UTC if it names no zone), or how long ago: `90s`, `30m`, `2h`, `1d`. Returns Unix ns.

    Raises:
        ConfigError: it is neither.
    """
    ago = _AGO.fullmatch(text)
    try:
        if ago is not None:
            moment = now - timedelta(seconds=int(ago["count"]) * _SECONDS[ago["unit"]])
        else:
            moment = datetime.fromisoformat(text)
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
        return (moment - _EPOCH) // timedelta(microseconds=1) * (NS_PER_S // 1_000_000)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"--since {text}: give a time (2026-11-21T10:00:00Z, UTC if it names no zone) or how long ago "
            "(90s, 30m, 2h, 1d)"
        ) from None
