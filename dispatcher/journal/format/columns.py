"""The payload of ROWS frames: rows column by column, each column one array, strings once per frame where they repeat.

A payload is a length (u32), a JSON object of that length, and the columns' bytes one after the other. The object has

    columns   [name, array type code, bytes] of each column in order; little-endian
    kinds     [dispatcher, event class, event type, outcome] that `kind` counts in
    moves     [machine, from state, event type, to state, valid] that `move.kind` counts in
    virtual   whether enqueued_at and finished_at are the same moment as started_at (virtual time stands still while
              anything is queued); else they follow from started_at by queue_ns and handling_ns

Column by column is what makes a row cost a fraction of a microsecond here and next to nothing in Spark: arrays are
built and read by C code, and become Arrow's without a look at each value.

Columns of events: kind, started_at, queue_ns, handling_ns; texts `entity`; `error` and `payload`, which most events
lack, with `.row` saying of which rows they are; `accepted` (accepted_seq of each row, 0: none) and `redelivered.row` in
write-ahead mode, and `settled`: further accepted_seqs that need no handling any more. Of transitions: `move.kind`,
`move.seq` (its event's seq minus the frame's first), `move.at`, texts `move.entity`. A text column NAME is
`NAME.length` in bytes and `NAME.text`, and `NAME.null` where some are null, 1 for those.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

_BIG_ENDIAN: Final = sys.byteorder == "big"

EventRow = tuple[int, str | None, str | None, int, int, int, str | None, int, bool]
"""kind, entity, payload, started_at, queue_ns, handling_ns, error, accepted_seq (0: none), redelivered."""
MoveRow = tuple[int, int, str, int]
"""kind, seq, entity, at."""
Kind = tuple[str, str, str, str]
MoveKind = tuple[str, str, str, str, bool]


class RowsPayload(NamedTuple):
    """A payload taken apart: the JSON object's entries, and the bytes of each column with its type code."""

    kinds: list[list[str]]
    moves: list[list[Any]]
    virtual: bool
    columns: dict[str, tuple[str, memoryview]]

    def numbers(self, name: str) -> Sequence[int]:
        """A column's numbers; none if the frame has no such column."""
        if name not in self.columns:
            return ()
        code, data = self.columns[name]
        numbers = array(code)
        numbers.frombytes(data)
        if _BIG_ENDIAN:
            numbers.byteswap()
        return numbers

    def texts(self, name: str) -> list[str | None]:
        """A text column's values."""
        nulls = self.numbers(f"{name}.null")
        text = bytes(self.columns[f"{name}.text"][1]) if f"{name}.text" in self.columns else b""
        values: list[str | None] = []
        start = 0
        for length in self.numbers(f"{name}.length"):
            values.append(text[start : start + length].decode())
            start += length
        for row, is_null in enumerate(nulls):
            if is_null:
                values[row] = None
        return values


class _Payload:
    """Columns as they are put together."""

    def __init__(self) -> None:
        self._listed: list[tuple[str, str, int]] = []
        self._data: list[bytes] = []

    def add(self, name: str, numbers: array[int]) -> None:
        if _BIG_ENDIAN:
            numbers.byteswap()
        data = numbers.tobytes()
        self._listed.append((name, numbers.typecode, len(data)))
        self._data.append(data)

    def add_texts(self, name: str, texts: Sequence[str | None]) -> None:
        if None in texts:
            self.add(f"{name}.null", array("B", [text is None for text in texts]))
            texts = [text or "" for text in texts]
        joined = "".join(texts)  # type: ignore[arg-type]
        if joined.isascii():
            data, lengths = joined.encode("ascii"), list(map(len, texts))  # type: ignore[arg-type]
        else:
            # A lone surrogate, which UTF-8 cannot say, is told by its number.
            each = [text.encode("utf-8", "backslashreplace") for text in texts]  # type: ignore[union-attr]
            data, lengths = b"".join(each), list(map(len, each))
        self.add(f"{name}.length", _smallest(lengths))
        self._listed.append((f"{name}.text", "B", len(data)))
        self._data.append(data)

    def add_sparse(self, name: str, texts: Sequence[str | None]) -> None:
        """As `add_texts`, only of the rows that have one."""
        if texts.count(None) == len(texts):
            return
        rows = [row for row, text in enumerate(texts) if text is not None]
        self.add(f"{name}.row", array("I", rows))
        self.add_texts(name, [texts[row] for row in rows])

    def encode(self, about: dict[str, Any]) -> bytes:
        preamble = json.dumps({"columns": self._listed, **about}, separators=(",", ":")).encode("ascii")
        return b"".join((len(preamble).to_bytes(4, "little"), preamble, *self._data))


def encode_rows(
    events: Sequence[EventRow],
    moves: Sequence[MoveRow],
    first_seq: int,
    kinds: Sequence[Kind],
    move_kinds: Sequence[MoveKind],
    *,
    virtual: bool = False,
    settled: Sequence[int] = (),
) -> bytes:
    """The payload of a frame with these events, whose first is `first_seq`, and transitions.

    A row's kind is its position in `kinds` or `move_kinds`; only those that occur are written.
    """
    payload = _Payload()
    about: dict[str, Any] = {"virtual": virtual, "kinds": [], "moves": []}
    if events:
        kind, entity, payloads, started_at, queue_ns, handling_ns, errors, accepted, redelivered = zip(
            *events, strict=True
        )
        about["kinds"] = _add_kinds(payload, "kind", kind, kinds)
        payload.add("started_at", array("q", started_at))
        payload.add("queue_ns", _smallest(queue_ns))
        payload.add("handling_ns", _smallest(handling_ns))
        payload.add_texts("entity", entity)
        payload.add_sparse("error", errors)
        payload.add_sparse("payload", payloads)
        if any(accepted):
            payload.add("accepted", array("q", accepted))
        if any(redelivered):
            payload.add("redelivered.row", array("I", [row for row, is_one in enumerate(redelivered) if is_one]))
    if moves:
        move_kind, seq, move_entity, at = zip(*moves, strict=True)
        about["moves"] = _add_kinds(payload, "move.kind", move_kind, move_kinds)
        payload.add("move.seq", array("i", [number - first_seq for number in seq]))
        payload.add("move.at", array("q", at))
        payload.add_texts("move.entity", move_entity)
    if settled:
        payload.add("settled", array("q", settled))
    return payload.encode(about)


def _add_kinds(payload: _Payload, name: str, kinds: Sequence[int], table: Sequence[Any]) -> list[Any]:
    """Add a column of positions among the kinds that occur, and return those."""
    used = sorted(set(kinds))
    position = {kind: index for index, kind in enumerate(used)}
    payload.add(name, array("H" if len(used) <= 0x10000 else "I", map(position.__getitem__, kinds)))
    return [table[kind] for kind in used]


def _smallest(numbers: Iterable[int]) -> array[int]:
    """The numbers, none of them negative, in the smallest type that they fit."""
    for code in "BHI":
        try:
            return array(code, numbers)
        except OverflowError:
            continue
    return array("q", numbers)


def decode_rows(payload: bytes) -> RowsPayload:
    """Take a payload apart; nothing is copied.

    Raises:
        ValueError, KeyError, TypeError: it is none; not possible for one that passed its checksum.
    """
    whole = memoryview(payload)
    start = 4 + int.from_bytes(whole[:4], "little")
    about = json.loads(payload[4:start])
    columns: dict[str, tuple[str, memoryview]] = {}
    for name, code, length in about["columns"]:
        columns[name] = (code, whole[start : start + length])
        start += length
    return RowsPayload(about["kinds"], about["moves"], about["virtual"], columns)


def event_dicts(payload: RowsPayload, first_seq: int) -> Iterator[dict[str, Any]]:
    """The events as the schema has them; a null is a missing key."""
    errors = _sparse(payload, "error")
    payloads = _sparse(payload, "payload")
    redelivered = set(payload.numbers("redelivered.row"))
    accepted = payload.numbers("accepted")
    columns = zip(
        payload.numbers("kind"),
        payload.texts("entity"),
        payload.numbers("started_at"),
        payload.numbers("queue_ns"),
        payload.numbers("handling_ns"),
        strict=True,
    )
    for row, (kind, entity, started_at, queue_ns, handling_ns) in enumerate(columns):
        dispatcher, event_class, event_type, outcome = payload.kinds[kind]
        made: dict[str, Any] = {
            "seq": first_seq + row,
            "dispatcher": dispatcher,
            "event_class": event_class,
            "event_type": event_type,
            "entity": entity,
            "enqueued_at": started_at if payload.virtual else started_at - queue_ns,
            "started_at": started_at,
            "finished_at": started_at if payload.virtual else started_at + handling_ns,
            "queue_ns": queue_ns,
            "handling_ns": handling_ns,
            "outcome": outcome,
            "error": errors.get(row),
            "payload": payloads.get(row),
            "accepted_seq": (accepted[row] or None) if accepted else None,
            "redelivered": row in redelivered,
        }
        yield {name: value for name, value in made.items() if value is not None}


def transition_dicts(payload: RowsPayload, first_seq: int) -> Iterator[dict[str, Any]]:
    """The transitions as the schema has them."""
    if not payload.moves:
        return
    columns = zip(
        payload.numbers("move.kind"),
        payload.numbers("move.seq"),
        payload.texts("move.entity"),
        payload.numbers("move.at"),
        strict=True,
    )
    for kind, seq, entity, at in columns:
        machine, from_state, event_type, to_state, valid = payload.moves[kind]
        yield {
            "seq": first_seq + seq,
            "machine": machine,
            "entity": entity,
            "from_state": from_state,
            "event_type": event_type,
            "to_state": to_state,
            "at": at,
            "valid": valid,
        }


def _sparse(payload: RowsPayload, name: str) -> dict[int, str | None]:
    return dict(zip(payload.numbers(f"{name}.row"), payload.texts(name), strict=True))
