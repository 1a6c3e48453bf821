"""Writing the event journal.

Threading: one thread writes, the dispatcher's handler thread (invariant 1); nothing here takes a lock. Rows are
buffered as text and written in blocks; a segment gets its visible name by the rename that closes it.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import IO, Any

from dispatcher.config import JournalConfig
from dispatcher.errors import JournalError
from dispatcher.journal.schema import EVENTS, TRANSITIONS, Table
from dispatcher.journal.segments import open_segment_path, open_segments, segment_path, segments

_JSON_BOOL = {True: "true", False: "false"}
_quote: Callable[[str], str] = json.encoder.encode_basestring_ascii


class JournalWriter:
    """Appends events and transitions to the journal in `path`, which must be new or empty.

    Raises:
        JournalError: the folder has a journal already, or cannot be written; also from the writing methods.
    """

    def __init__(self, path: Path | str, config: JournalConfig | None = None) -> None:
        self.path = Path(path)
        self._config = config or JournalConfig()
        self.seq = 0  # of the event that is being handled, or was handled last
        self.at = 0  # when that event was started: Unix ns in the clock of the run
        self._segment = 1  # number of the open segment, the same for both tables
        self._opened_at = time.monotonic()
        self._closed = False
        # What is the same in each row of a kind, quoted once.
        self._prefixes: dict[tuple[str, str, str], str] = {}
        self._transition_parts: dict[tuple[str, str, str, str, bool], tuple[str, str]] = {}
        try:
            for table in (EVENTS, TRANSITIONS):
                (self.path / table.name).mkdir(parents=True, exist_ok=True)
                if segments(self.path, table) or open_segments(self.path, table):
                    raise JournalError(f"{self.path}: holds a journal already; choose a new or an empty folder")
            self._events = _Segment(self.path, EVENTS, self._segment)
            self._transitions = _Segment(self.path, TRANSITIONS, self._segment)
        except OSError as error:
            raise JournalError(f"{self.path}: cannot be written: {error.strerror or error}") from error

    def begin(self, started_at: int) -> None:
        """An event is about to be handled: the transitions recorded from now on belong to it."""
        self.seq += 1
        self.at = started_at

    def event(
        self,
        dispatcher: str,
        event: Any,
        enqueued_at: int,
        finished_at: int,
        queue_ns: int,
        handling_ns: int,
        outcome: str,
        error: BaseException | None = None,
    ) -> None:
        """Record the event that `begin` announced. Times as in the schema."""
        type_ = getattr(event, "type", None)
        key = (dispatcher, type_.__class__.__name__, getattr(type_, "_name_", None) or str(type_))
        prefix = self._prefixes.get(key) or self._new_prefix(key)
        entity = getattr(event, "entity", None)
        payload = getattr(event, "payload", None)
        # Written by hand: json.dumps of a dict takes four times as long, and this runs once per event.
        row = f'{{"seq":{self.seq},{prefix}'
        if entity is not None:
            row += f'"entity":{_quote(str(entity))},'
        row += (
            f'"enqueued_at":{enqueued_at},"started_at":{self.at},"finished_at":{finished_at},'
            f'"queue_ns":{queue_ns},"handling_ns":{handling_ns},"outcome":"{outcome}"'
        )
        if error is not None:
            row += f',"error":{_quote(_describe(error))}'
        if payload is not None:
            row += f',"payload":{_quote(_encode(payload))}'
        rows = self._events.rows
        rows.append(row + "}\n")
        if len(rows) >= self._config.buffer_rows:
            self.flush()

    def transition(
        self, machine: str, entity: str, from_state: Enum, event_type: Enum, to_state: Enum, *, valid: bool
    ) -> None:
        """Record a transition made (or refused: `valid=False`) while handling the current event."""
        key = (machine, from_state._name_, event_type._name_, to_state._name_, valid)
        before, after = self._transition_parts.get(key) or self._new_transition_parts(key)
        self._transitions.rows.append(
            f'{{"seq":{self.seq},{before}"entity":{_quote(entity)},{after}"at":{self.at},"valid":{_JSON_BOOL[valid]}}}\n'
        )

    def flush(self) -> None:
        """Hand all rows to the operating system, and close the segments if they are big or old enough.

        Call it between events only, so that an event and its transitions are in segments of the same number.
        """
        if self._closed:
            return
        try:
            written = self._write()
            age_s = time.monotonic() - self._opened_at
            if written >= self._config.segment_bytes or (written and age_s >= self._config.segment_age_s):
                self._roll()
        except OSError as error:
            self._abandon()
            raise JournalError(f"{self.path}: cannot be written: {error.strerror or error}") from error

    def close(self) -> None:
        """Write what is buffered and close the open segments by their rename. Repeating it does nothing.

        Raises:
            JournalError: a segment could not be written. It keeps the name of an open one: its end may be torn.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._write()
            self._events.close()
            self._transitions.close()
        except OSError as error:
            self._abandon()
            raise JournalError(f"{self.path}: cannot be closed: {error.strerror or error}") from error

    def _abandon(self) -> None:
        """After an error: write no more, or the journal gets a hole, and leave the segments open, for recovery."""
        self._closed = True
        for segment in (self._events, self._transitions):
            segment.abandon()

    def _write(self) -> int:
        """Write both tables; returns the size of the bigger segment.

        Transitions first, and on closing last: who is killed in between leaves transitions without their event, which
        recovery can tell, and not an event without its transitions, which nobody could.
        """
        return max(self._transitions.write(), self._events.write())

    def _roll(self) -> None:
        self._events.close()
        self._transitions.close()
        self._segment += 1
        self._opened_at = time.monotonic()
        self._events = _Segment(self.path, EVENTS, self._segment)
        self._transitions = _Segment(self.path, TRANSITIONS, self._segment)

    def _new_prefix(self, key: tuple[str, str, str]) -> str:
        dispatcher, event_class, event_type = map(_quote, key)
        prefix = f'"dispatcher":{dispatcher},"event_class":{event_class},"event_type":{event_type},'
        self._prefixes[key] = prefix
        return prefix

    def _new_transition_parts(self, key: tuple[str, str, str, str, bool]) -> tuple[str, str]:
        machine, from_state, event_type, to_state = map(_quote, key[:4])
        parts = (
            f'"machine":{machine},',
            f'"from_state":{from_state},"event_type":{event_type},"to_state":{to_state},',
        )
        self._transition_parts[key] = parts
        return parts


def _encode(payload: Any) -> str:
    try:
        return json.dumps(payload, default=str, separators=(",", ":"))
    except Exception as error:  # e.g. a key that is no string, a cycle, a __str__ that raises: the event still counts
        return json.dumps({"unencodable": _describe(error)})


def _describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__}: (its __str__ raised)"


class _Segment:
    """The open segment of one table."""

    def __init__(self, journal: Path, table: Table, number: int) -> None:
        self._open_path = open_segment_path(journal, table, number)
        self._path = segment_path(journal, table, number)
        self._file: IO[bytes] = self._open_path.open("xb")
        self._bytes = 0
        self.rows: list[str] = []  # not written yet

    def write(self) -> int:
        """Write the buffered rows; returns the segment's size."""
        if self.rows:
            data = "".join(self.rows).encode("ascii")
            self.rows.clear()
            self._file.write(data)
            self._file.flush()
            self._bytes += len(data)
        return self._bytes

    def close(self) -> None:
        """Write the rest and give the segment its name, if there is anything in it."""
        with self._file:
            self.write()
        if self._bytes:
            self._open_path.rename(self._path)
        else:
            self._open_path.unlink()

    def abandon(self) -> None:
        """Leave the segment as it is."""
        with contextlib.suppress(OSError):  # what could not be written still cannot
            self._file.close()
