"""The payload of ROWS frames: rows column by column, each column one array, strings once per frame where they repeat.

A payload is a length (u32), a JSON object of that length, and the columns' bytes one after the other. The object has

    columns   [name, array type code, bytes] of each column in order; little-endian
    kinds     the values of the events' `kind` columns, one list for each combination; `kind` is a position in it
    moves     the same of the transitions, for `move.kind`
    virtual   whether enqueued_at and finished_at are the same moment as started_at (virtual time stands still while
              anything is queued); else they follow from started_at by queue_ns and handling_ns

Column by column is what makes a row cost a fraction of a microsecond here and next to nothing in Spark: arrays are
built and read by C code, and become Arrow's without a look at each value.

Which columns there are, and how each is encoded, is in `dispatcher.journal.format.schema`. The names of the columns of
transitions begin with `move.`. A text column NAME is `NAME.length` in bytes and `NAME.text`, and `NAME.null` where some
are null, 1 for those; a sparse one has `NAME.row` with the rows that have a text, a flag `NAME.row` with those of which
it is true. Beside the columns, `settled` has further accepted_seqs that no longer need a handler.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress, count
from operator import add, sub
from typing import Any, Final, NamedTuple

from dispatcher.journal.format.schema import EVENTS, TABLES, TRANSITIONS, Column, Counts, Kind, Row, Table

_BIG_ENDIAN: Final = sys.byteorder == "big"
_WIDTHS: Final = {"B": 1, "H": 2, "I": 4, "i": 4, "q": 8}
_ACCEPTED: Final = "accepted_seq"
_SETTLED: Final = "settled"


class RowsPayload(NamedTuple):
    """A payload taken apart: the JSON object's entries, and the bytes of each column with its type code."""

    kinds: Mapping[str, Sequence[Sequence[Any]]]
    """By the name of the table."""
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

    def rows_of(self, table: Table) -> int:
        return len(self.numbers(f"{table.prefix}kind"))

    def values(self, table: Table, column: Column, first_seq: int) -> Sequence[Any]:
        """A column of a table, one value for each row; `first_seq`: of the frame."""
        name, rows = table.stored_name(column), self.rows_of(table)
        match column.encoding:
            case "position":
                return range(first_seq, first_seq + rows)
            case "kind":
                place = table.kind_columns.index(column.name)
                values = [kind[place] for kind in self.kinds[table.name]]
                return [values[kind] for kind in self.numbers(f"{table.prefix}kind")]
            case "number" | "duration":
                return self.numbers(name)
            case "offset":
                return [first_seq + number for number in self.numbers(name)]
            case "text":
                return self.texts(name)
            case "sparse":
                texts = dict(zip(self.numbers(f"{name}.row"), self.texts(name), strict=True))
                return [texts.get(row) for row in range(rows)]
            case "optional":
                return [number or None for number in self.numbers(name)] or [None] * rows
            case "flag":
                true = set(self.numbers(f"{name}.row"))
                return [row in true for row in range(rows)]
        at = self.numbers(table.prefix + table.time)
        return at if self.virtual else _moved(column, at, self.numbers(table.prefix + column.span))

    def no_longer_outstanding(self) -> Iterator[int]:
        """Accepted seqs of events that were handled, and of those that never will be."""
        [accepted] = [column for column in EVENTS.columns if column.name == _ACCEPTED]
        yield from self.numbers(EVENTS.stored_name(accepted))
        yield from self.numbers(_SETTLED)

    def misfits(self, counts: Counts) -> Iterator[str]:
        """Each column that does not have as many rows as `counts`, the frame's header, says; a line for each."""
        lengths = {name: len(data) // _WIDTHS[code] for name, (code, data) in self.columns.items()}
        for table in TABLES:
            rows = table.rows_in(counts)
            names = [f"{table.prefix}kind", *(_of_each_row(table, column) for column in table.stored)]
            for name in filter(None, names):
                if lengths.get(name, 0) != rows:
                    yield f"has {lengths.get(name, 0)} of {name} and says {rows}"
            for name in (may_lack for column in table.stored for may_lack in _of_all_or_none(table, column)):
                if lengths.get(name, rows) != rows:
                    yield f"has {lengths[name]} of {name} and says {rows}"


def _of_each_row(table: Table, column: Column) -> str:
    """What a frame must have of the column for each row; empty: nothing."""
    name = table.stored_name(column)
    if column.encoding == "text":
        return f"{name}.length"
    return name if column.encoding in ("number", "duration", "offset") else ""


def _of_all_or_none(table: Table, column: Column) -> Iterator[str]:
    """What a frame has of the column either for each row or not at all."""
    if column.encoding == "text":
        yield f"{table.stored_name(column)}.null"
    elif column.encoding == "optional":
        yield table.stored_name(column)


def _moved(column: Column, at: Iterable[int], span: Iterable[int]) -> list[int]:
    return list(map(sub if column.encoding == "before" else add, at, span))


class EncodedRows(NamedTuple):
    """A frame's payload, and what its header and the writer have to know of it."""

    payload: bytes
    events: int
    transitions: int
    min_at: int
    """The earliest time of any row; with `max_at` 0 where there is no row."""
    max_at: int
    settled: Sequence[int]
    """Accepted seqs that no longer need a handler."""


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
            # UTF-8 has no lone surrogates: they are written as escapes.
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

    def add_kinds(self, name: str, kinds: Sequence[int], among: Sequence[Kind]) -> list[Kind]:
        """Add a column of positions among the kinds that occur, and return those."""
        used = sorted(set(kinds))
        position = {kind: index for index, kind in enumerate(used)}
        self.add(name, array("H" if len(used) <= 0x10000 else "I", map(position.__getitem__, kinds)))
        return [among[kind] for kind in used]

    def add_column(self, column: Column, name: str, values: Sequence[Any], first_seq: int) -> None:
        """Add the values of one stored column."""
        match column.encoding:
            case "number":
                self.add(name, array("q", values))
            case "duration":
                self.add(name, _smallest(values))
            case "offset":
                self.add(name, array("i", [number - first_seq for number in values]))
            case "text":
                self.add_texts(name, values)
            case "sparse":
                self.add_sparse(name, values)
            case "optional" if any(values):
                self.add(name, array("q", values))
            case "flag" if any(values):
                self.add(f"{name}.row", array("I", compress(count(), values)))

    def encode(self, about: dict[str, Any]) -> bytes:
        preamble = json.dumps({"columns": self._listed, **about}, separators=(",", ":")).encode("ascii")
        return b"".join((len(preamble).to_bytes(4, "little"), preamble, *self._data))


def encode_rows(
    events: Sequence[Row],
    transitions: Sequence[Row],
    first_seq: int,
    kinds: Sequence[Kind],
    transition_kinds: Sequence[Kind],
    *,
    virtual: bool = False,
    settled: Sequence[int] = (),
) -> EncodedRows:
    """The payload of a frame with these events, whose first is `first_seq`, and transitions.

    A row's kind is its position in `kinds` or `transition_kinds`; only those that occur are written.
    """
    payload = _Payload()
    about: dict[str, Any] = {"virtual": virtual, EVENTS.kinds_key: [], TRANSITIONS.kinds_key: []}
    done: list[int] = list(settled)
    times: list[int] = []
    for table, rows, of_kind in ((EVENTS, events, kinds), (TRANSITIONS, transitions, transition_kinds)):
        if not rows:
            continue
        columns = dict(zip(table.row_fields, zip(*rows, strict=True), strict=True))
        about[table.kinds_key] = payload.add_kinds(f"{table.prefix}kind", columns["kind"], of_kind)
        for column in table.stored:
            payload.add_column(column, table.stored_name(column), columns[column.name], first_seq)
        times.extend(_earliest_and_latest(table, columns, virtual))
        done += [seq for seq in filter(None, columns.get(_ACCEPTED, ())) if seq > 0]
    if settled:
        payload.add(_SETTLED, array("q", settled))
    span = (min(times), max(times)) if times else (0, 0)
    return EncodedRows(payload.encode(about), len(events), len(transitions), *span, done)


def _earliest_and_latest(table: Table, columns: Mapping[str, Sequence[int]], virtual: bool) -> tuple[int, int]:
    at = columns[table.time]
    spans = [] if virtual else [(column.encoding, columns[column.span]) for column in table.columns if column.span]
    earliest = [min(map(sub, at, span)) for encoding, span in spans if encoding == "before"] or [min(at)]
    latest = [max(map(add, at, span)) for encoding, span in spans if encoding == "after"] or [max(at)]
    return min(earliest), max(latest)


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
        ValueError, KeyError, TypeError: it is not a payload of rows; impossible for one that passed its checksum.
    """
    whole = memoryview(payload)
    start = 4 + int.from_bytes(whole[:4], "little")
    about = json.loads(payload[4:start])
    columns: dict[str, tuple[str, memoryview]] = {}
    for name, code, length in about["columns"]:
        columns[name] = (code, whole[start : start + length])
        start += length
    return RowsPayload({table.name: about[table.kinds_key] for table in TABLES}, about["virtual"], columns)


def row_dicts(payload: RowsPayload, table: Table, first_seq: int) -> Iterator[dict[str, Any]]:
    """A table's rows as the schema has them; a null is a missing key."""
    names = table.names
    for values in zip(*(payload.values(table, column, first_seq) for column in table.columns), strict=True):
        yield {name: value for name, value in zip(names, values, strict=True) if value is not None}
