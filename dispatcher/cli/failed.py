"""The failed events of a journal: dead letters, or the rows of events that have failed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from dispatcher.cli.console import aligned, time_text
from dispatcher.dead_letters import DeadLetters, StoredLetter
from dispatcher.errors import ConfigError
from dispatcher.journal import EVENTS, read_rows
from dispatcher.journal.read import read_unhandled
from dispatcher.journal.snapshot import parts_of
from dispatcher.util.units import NS_PER_S

_AGO: Final = re.compile(r"(?P<count>[0-9]{1,9})(?P<unit>[smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class FailedEvent(StoredLetter):
    """An event that has failed: a dead letter, or a row.

    A row has its seq as `number` and its payload as `event`, and knows neither attempts nor a traceback.
    """

    is_letter: bool = True

    @property
    def what(self) -> str:
        return f"{self.event_class}.{self.event_type}"

    def as_json(self) -> str:
        said = {each.name: getattr(self, each.name) for each in fields(self)}
        del said["folder"], said["is_letter"]
        if not self.is_letter:
            said["attempts"] = said["traceback"] = None
        if self.partition is None:
            del said["partition"]
        return json.dumps(said)


class WantedFailures(NamedTuple):
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
    # Rows in a folder of dead letters are of events that were redelivered. Those that failed again are letters again.
    if any(read_unhandled(folder).is_of_letters for folder in parts.folders):
        return [_of_letter(letter) for letter in DeadLetters(journal, on_damage=on_damage)]
    for name in parts.missing:
        on_damage(f"{name}: is missing")
    found: list[FailedEvent] = []
    for folder in parts.folders:
        found += _failed_rows(folder, parts.number_of(folder), parts.naming(folder, on_damage))
    return sorted(found, key=lambda each: each.failed_ns)


def _of_letter(letter: StoredLetter) -> FailedEvent:
    return FailedEvent(**{each.name: getattr(letter, each.name) for each in fields(letter)})


def _failed_rows(folder: Path, partition: int | None, on_damage: Callable[[str], object]) -> Iterator[FailedEvent]:
    for row in read_rows(folder, EVENTS, on_damage=on_damage):
        if row["outcome"] in ("handled", "retried"):  # of an event that is tried again, the last row tells
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
            attempts=0,
            error=row.get("error") or row["outcome"],
            traceback="",
            event=None if payload is None else json.loads(payload),
            is_declared=False,
            is_letter=False,
        )


def failed_table(failed: Sequence[FailedEvent]) -> Iterator[str]:
    cells = [
        (
            each.name,
            time_text(each.failed_ns),
            each.what,
            each.entity or "-",
            str(each.attempts) if each.is_letter else "-",
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
