"""The payload of ROWS frames: rows stored column by column, each column one array.

A payload is a length (u32), a JSON object of that length, and the columns' bytes. The object has

    columns   [name, array type code, bytes] of each column in order; little-endian
    kinds     the distinct combinations of the events' `kind` columns; a row stores its combination's position as `kind`
    moves     the same for transitions, stored as `move.kind`
    virtual   true: enqueued_at and finished_at equal started_at, as virtual time stands still while events are queued;
              false: they are started_at minus queue_ns and plus handling_ns

C code builds and reads the arrays, and Arrow takes them over whole. A row costs a fraction of a microsecond here and
almost nothing in Spark.

`dispatcher.journal.format.schema` declares the columns and their encodings. Names of transition columns begin with
`move.`. A text column NAME is stored as `NAME.length` in bytes and `NAME.text`, and as `NAME.null`, 1 for null, if it
has nulls. A sparse column adds `NAME.row`, the rows that have a text. A flag is stored as `NAME.row`, the rows where it
is true. The extra column `settled` lists further accepted_seqs that no longer need a handler.
"""

from __future__ import annotations

import json
import sys
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, compress, count
from operator import add, sub
from typing import Any, Final, NamedTuple

from dispatcher.journal.format.schema import EVENTS, TABLES, TRANSITIONS, Column, Counts, Kind, Row, Table

_BIG_ENDIAN: Final = sys.byteorder == "big"
_WIDTHS: Final = {"B": 1, "H": 2, "I": 4, "i": 4, "q": 8}
_ACCEPTED: Final = EVENTS.column("accepted_seq")
_PAYLOAD: Final = EVENTS.column("payload")
_DATA: Final = TRANSITIONS.column("data")
_SETTLED: Final = "settled"
_ROWS_AT_ONCE: Final = 4096
"""Rows searched in one call."""
_ROWS_OF_A_BLOCK: Final = 256
"""Rows whose starts are computed together, once one of them may match."""


class RowsPayload(NamedTuple):
    """A payload split into the JSON object's entries and each column's type code and bytes."""

    kinds: Mapping[str, Sequence[Sequence[Any]]]
    """By table name."""
    virtual: bool
    columns: dict[str, tuple[str, memoryview]]

    def numbers(self, name: str) -> Sequence[int]:
        """A column's numbers, empty if the frame lacks the column."""
        if name not in self.columns:
            return ()
        code, data = self.columns[name]
        numbers = array(code)
        numbers.frombytes(data)
        if _BIG_ENDIAN:
            numbers.byteswap()
        return numbers

    def rows_of(self, table: Table) -> int:
        return len(self.numbers(f"{table.prefix}kind"))

    def rows(
        self,
        table: Table,
        first_seq: int,
        wanted: Sequence[int] | None = None,
        columns: Collection[str] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """The table's rows in the frame that begins at `first_seq`, with the schema's columns; a null is a missing key.

        `wanted`: only these rows, in ascending order; the others are not decoded. `columns`: only these.
        """
        if wanted is not None and not wanted:
            return
        asked = [column for column in table.columns if columns is None or column.name in columns]
        names = [column.name for column in asked]
        places: Sequence[int] = range(self.rows_of(table)) if wanted is None else list(wanted)  # a range means all rows
        for values in zip(*(self._values(table, column, first_seq, places) for column in asked), strict=True):
            yield {name: value for name, value in zip(names, values, strict=True) if value is not None}

    def _values(self, table: Table, column: Column, first_seq: int, rows: Sequence[int]) -> Sequence[Any]:
        """A column's values in `rows`; a range means all rows."""
        name = table.stored_name(column)
        match column.encoding:
            case "position":
                return [first_seq + row for row in rows]
            case "kind":
                place = table.kind_columns.index(column.name)
                values = [kind[place] for kind in self.kinds[table.name]]
                return [values[kind] for kind in self._numbers_in(f"{table.prefix}kind", rows)]
            case "number" | "duration":
                return self._numbers_in(name, rows)
            case "offset":
                return [first_seq + number for number in self._numbers_in(name, rows)]
            case "text":
                return self._texts(name, rows)
            case "sparse":
                places = self._listed(name, rows)
                listed = places.values() if type(rows) is not range else range(len(places))
                texts = dict(zip(places, self._texts(name, listed), strict=True))
                return [texts.get(row) for row in rows]
            case "optional":
                absent = name not in self.columns
                return [None] * len(rows) if absent else [number or None for number in self._numbers_in(name, rows)]
            case "flag":
                true = self._listed(name, rows)
                return [row in true for row in rows]
        at = self._numbers_in(table.prefix + table.time, rows)
        if self.virtual:
            return at
        spans = self._numbers_in(table.prefix + column.span, rows)
        return list(map(sub if column.encoding == "before" else add, at, spans))

    def _numbers_in(self, name: str, rows: Sequence[int]) -> Sequence[int]:
        if type(rows) is range or _BIG_ENDIAN:
            numbers = self.numbers(name)
            return numbers if type(rows) is range else [numbers[row] for row in rows]
        code, data = self.columns[name]
        view = data.cast(code)  # type: ignore[call-overload]  # a code of array
        return [view[row] for row in rows]

    def _listed(self, name: str, rows: Sequence[int]) -> dict[int, int]:
        """The rows that a sparse column or a flag lists, each with its position in the list."""
        listed = self.numbers(f"{name}.row")
        if type(rows) is range:
            return dict(zip(listed, range(len(listed)), strict=True))
        places = [(row, bisect_left(listed, row)) for row in rows]
        return {row: place for row, place in places if place < len(listed) and listed[place] == row}

    def _texts(self, name: str, places: Collection[int]) -> list[str | None]:
        if not places:  # a frame may lack a sparse column
            return []
        lengths, data = self.numbers(f"{name}.length"), self.columns[f"{name}.text"][1]
        texts: list[str | None] = []
        start = following = 0
        if type(places) is range:
            text = bytes(data)
            for length in lengths:
                texts.append(text[start : start + length].decode())
                start += length
        else:
            for place in places:
                start += sum(lengths[following:place])
                end = start + lengths[place]
                texts.append(bytes(data[start:end]).decode())
                start, following = end, place + 1
        nulls = self.numbers(f"{name}.null")
        return [None if nulls[place] else text for place, text in zip(places, texts, strict=True)] if nulls else texts

    def text_pieces(self, name: str) -> Iterator[tuple[int, Sequence[int], bytes]]:
        """A text column in pieces: the first row, the length of each text in bytes, and the joined texts.

        The caller may pause between them to let other threads run.
        """
        if f"{name}.length" not in self.columns:
            return
        lengths, data = self.numbers(f"{name}.length"), self.columns[f"{name}.text"][1]
        start = 0
        for first in range(0, len(lengths), _ROWS_AT_ONCE):
            piece = lengths[first : first + _ROWS_AT_ONCE]
            end = start + sum(piece)
            yield first, piece, bytes(data[start:end])
            start = end

    def rows_with(self, table: Table, column: Column, text: bytes) -> Iterator[list[int]]:
        """The rows with this text in a `text` column, in order: a list for each piece of the column."""
        name = table.stored_name(column)
        nulls = self.numbers(f"{name}.null")
        for first, lengths, data in self.text_pieces(name):
            rows = [first + row for row in _places(text, lengths, data)]
            yield [row for row in rows if not nulls[row]] if nulls else rows

    def changes_among(self, rows: Sequence[int]) -> list[int]:
        """Those of these rows of transitions that changed a state."""
        if not rows:
            return []  # the frame may have no transitions
        from_state, to_state = map(TRANSITIONS.kind_columns.index, ("from_state", "to_state"))
        is_change = [kind[from_state] != kind[to_state] for kind in self.kinds[TRANSITIONS.name]]
        kinds = self._numbers_in(f"{TRANSITIONS.prefix}kind", rows)
        return [row for row, kind in zip(rows, kinds, strict=True) if is_change[kind]]

    def accepted_seqs(self) -> Sequence[int]:
        """Of each event, 0 if it has none; empty if none has."""
        return self.numbers(EVENTS.stored_name(_ACCEPTED))

    def payloads(self) -> list[str | None]:
        """Of each event."""
        return list(self._values(EVENTS, _PAYLOAD, 0, range(self.rows_of(EVENTS))))

    def data(self) -> Sequence[str | None]:
        """Of each transition, the data of its entity if that changed."""
        return self._values(TRANSITIONS, _DATA, 0, range(self.rows_of(TRANSITIONS)))

    def with_payloads(self, payloads: Sequence[str | None]) -> RowsPayload:
        """The same rows, with these payloads of the events."""
        name, made = EVENTS.stored_name(_PAYLOAD), _Payload()
        made.add_column(_PAYLOAD, name, payloads, 0)
        others = {each: column for each, column in self.columns.items() if each.partition(".")[0] != name}
        return self._replace(columns=others | made.columns())

    def no_longer_outstanding(self) -> Iterator[int]:
        """Accepted seqs of events that were handled or that never will be."""
        yield from self.accepted_seqs()
        yield from self.numbers(_SETTLED)

    def misfits(self, counts: Counts) -> Iterator[str]:
        """A line for each column whose row count differs from `counts`, the frame's header."""
        lengths = {name: len(data) // _WIDTHS[code] for name, (code, data) in self.columns.items()}
        for table in TABLES:
            rows = table.rows_in(counts)
            found = {f"{table.prefix}kind": 0}  # the arrays with a value for each row: how many if the frame lacks one
            for column in table.stored:
                name = table.stored_name(column)
                if column.encoding == "text":
                    found |= {f"{name}.length": 0, f"{name}.null": rows}
                elif column.encoding in ("number", "duration", "offset", "optional"):
                    found[name] = rows if column.encoding == "optional" else 0
            for name, absent in found.items():
                if lengths.get(name, absent) != rows:
                    yield f"has {lengths.get(name, absent)} of {name}, but its header says {rows}"


class EncodedRows(NamedTuple):
    """A frame's payload, and the values for its header and the writer."""

    payload: bytes
    events: int
    transitions: int
    min_at: int
    """The earliest time of any row; like `max_at` 0 if there are no rows."""
    max_at: int
    settled: Sequence[int]
    """Accepted seqs that no longer need a handler."""


class _Payload:
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
            each = [encode_text(text) for text in texts]  # type: ignore[arg-type]
            data, lengths = b"".join(each), list(map(len, each))
        self.add(f"{name}.length", _smallest(lengths))
        self._listed.append((f"{name}.text", "B", len(data)))
        self._data.append(data)

    def add_kinds(self, name: str, kinds: Sequence[int], among: Sequence[Kind]) -> list[Kind]:
        """Add each row's position among the kinds that occur, and return these kinds."""
        used = sorted(set(kinds))
        code = "H" if len(used) <= 0x10000 else "I"
        if used[-1] < len(used):  # all of the first kinds occur: each is at its own position
            self.add(name, array(code, kinds))
        else:
            position = {kind: index for index, kind in enumerate(used)}
            self.add(name, array(code, [position[kind] for kind in kinds]))
        return [among[kind] for kind in used]

    def add_column(self, column: Column, name: str, values: Sequence[Any], first_seq: int) -> None:
        match column.encoding:
            case "number":
                self.add(name, array("q", values))
            case "duration":
                self.add(name, _smallest(values))
            case "offset":
                self.add(name, array("i", [number - first_seq for number in values]))
            case "text":
                self.add_texts(name, values)
            case "sparse" if values.count(None) < len(values):
                rows = [row for row, text in enumerate(values) if text is not None]
                self.add(f"{name}.row", array("I", rows))
                self.add_texts(name, [values[row] for row in rows])
            case "optional" if any(values):
                self.add(name, array("q", values))
            case "flag" if any(values):
                self.add(f"{name}.row", array("I", compress(count(), values)))

    def columns(self) -> dict[str, tuple[str, memoryview]]:
        """By name, each column's type code and data. RowsPayload has the same."""
        return {name: (code, memoryview(data)) for (name, code, _), data in zip(self._listed, self._data, strict=True)}

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
    """The payload of a frame with these events, the first of which is `first_seq`, and transitions.

    A row's kind is a position in `kinds` or `transition_kinds`; only kinds that occur are written.
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
        done += [seq for seq in filter(None, columns.get(_ACCEPTED.name, ())) if seq > 0]
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


def _places(text: bytes, lengths: Sequence[int], data: bytes) -> Iterator[int]:
    """The positions of a text among the texts of these lengths that are joined in `data`."""
    if not text:
        yield from (place for place, length in enumerate(lengths) if not length)
        return
    start, at = data.find(text), 0
    for first in range(0, len(lengths), _ROWS_OF_A_BLOCK):
        if start < 0:
            return
        block = lengths[first : first + _ROWS_OF_A_BLOCK]
        end = at + sum(block)
        if start < end:
            starts = list(accumulate(block, initial=at))
            while 0 <= start < end:
                place = bisect_left(starts, start)
                while starts[place] == start and not block[place]:
                    place += 1  # empty texts before it
                if starts[place] == start and block[place] == len(text):
                    yield first + place
                # A text begins nowhere but at a start, and the next one is the first that can match.
                following = starts[bisect_left(starts, start + 1)]
                start = data.find(text, following)
        at = end


def encode_text(text: str) -> bytes:
    """A text as a frame stores it. UTF-8 cannot encode lone surrogates; they become escapes."""
    return text.encode("utf-8", "backslashreplace")


def _smallest(numbers: Iterable[int]) -> array[int]:
    """The numbers, which are >= 0, in the smallest type that holds them all."""
    for code in "BHI":
        try:
            return array(code, numbers)
        except OverflowError:
            continue
    return array("q", numbers)


def decode_rows(payload: bytes) -> RowsPayload:
    """Split a payload without copying its columns.

    Raises:
        ValueError, KeyError, TypeError: not a payload of rows; impossible for one that passed its checksum.
    """
    whole = memoryview(payload)
    start = 4 + int.from_bytes(whole[:4], "little")
    about = json.loads(payload[4:start])
    columns: dict[str, tuple[str, memoryview]] = {}
    for name, code, length in about["columns"]:
        columns[name] = (code, whole[start : start + length])
        start += length
    return RowsPayload({table.name: about[table.kinds_key] for table in TABLES}, about["virtual"], columns)
