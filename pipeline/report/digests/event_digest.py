"""Computes all that the report needs of a journal's events in one pass over Arrow batches.

The digest is small, except for the events that other tables need.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pipeline.report.digests.arrow_rows import Names, longs, pieces, rows_of, schema_of
from pipeline.report.digests.buckets import GroupedHistograms, Longs, TimeBuckets
from pipeline.report.payloads import PAYLOADS

TIME_BUCKETS: Final = 50
"""Maximum intervals in which the times of events are counted."""
DEPTH_BUCKETS: Final = 200
"""Maximum intervals for which the depth of the queue is reported."""
DEPTHS_PER_BUCKET: Final = 8
"""Parts of such an interval in which arrivals and starts are counted, so that its greatest depth is found."""
SLOWEST: Final = 100
ROWS_AT_ONCE: Final = 1 << 17
"""Few enough for the caches, and enough to spread the costs of a call."""

READS: Final = (
    *("seq", "event_class", "event_type", "entity", "enqueued_at", "started_at", "finished_at"),
    *("handling_ns", "outcome", "error", "queue_ns", "payload"),
)
"""The columns of events that a digest reads."""

_TYPE = "event_class string, event_type string, outcome string"
_EVENT = f"seq long, {_TYPE}, entity string, enqueued_at long, started_at long, handling_ns long, error string"
KINDS: Final = {
    "event_totals": schema_of("count long, failed long, first_seq long, last_seq long, first_at long, last_at long"),
    "event_group": schema_of(
        f"{_TYPE}, measure string, bucket long, width_ns long, log_bucket int, "
        "count long, total long, least long, greatest long"
    ),
    "depth": schema_of("bucket long, width_ns long, arrivals long, starts long"),
    "kept_event": schema_of(f"{_EVENT}, payload string"),
    "slow_event": schema_of(_EVENT),
}
"""The kinds of rows of a digest:

event_totals: one row; first_at is the first arrival, last_at the last end of a handling (Unix ns).
event_group: histograms of the `measure` queue_ns or handling_ns, by type and interval of started_at; `bucket` counts
    intervals of `width_ns`, a power of two, since 1970.
depth: arrivals and starts of events by interval, with `bucket` and `width_ns` as in event_group.
kept_event: the events whose payload is in `PAYLOADS`, and unhandled events.
slow_event: the `SLOWEST` slowest events of each part.

Several rows of event_group and depth may have the same keys, to be added up.
"""

DigestRow = tuple[str, pa.RecordBatch]
"""Some of a digest's rows, and their kind."""

_NAMES = ("event_class", "event_type", "outcome")
_MEASURES = ("queue_ns", "handling_ns")
_GROUPS_HELD: Final = 1 << 18


class EventDigest:
    """The digest of one part of the events, in any order. For a single use, by one thread.

    `span`: about the time that the whole run covers (Unix ns), if known. Then the parts of a run have equal intervals;
    otherwise these widen while the digest sees more time, and what they have counted is added up later.
    """

    def __init__(self, span: tuple[int, int] | None = None) -> None:
        self._span = span
        self._times = self._depths = TimeBuckets(0, 0, 0)  # before the first piece
        self._types = Names()
        self._groups = GroupedHistograms()
        self._arrivals = self._starts = np.zeros(0, np.int64)  # by interval of `_depths`
        self._totals: list[tuple[int, ...]] = []  # of each piece
        self._slow: pa.RecordBatch | None = None

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[DigestRow]:
        """The digest of batches with the columns `READS`, of any size."""
        for events in pieces(batches, ROWS_AT_ONCE):
            yield from self.add(events)
        yield from self.rest()

    def add(self, events: pa.RecordBatch) -> Iterator[DigestRow]:
        """Add rows with the columns `READS`, best about `ROWS_AT_ONCE`; yields what need not be held."""
        if not events.num_rows:
            return
        started_at, enqueued_at = longs(events, "started_at"), longs(events, "enqueued_at")
        types = self._types.numbers(events, _NAMES)
        self._total(events, types, enqueued_at)
        yield from self._widen(enqueued_at, started_at)
        self._count(events, types, started_at)
        self._arrivals += np.bincount(self._depths.numbers(enqueued_at), minlength=self._depths.number)
        self._starts += np.bincount(self._depths.numbers(started_at), minlength=self._depths.number)
        self._keep_slowest(events)
        kept = np.flatnonzero(self._is_kept(types))
        if len(kept):
            yield _row("kept_event", events.take(pa.array(kept)))
        if self._groups.is_full(_GROUPS_HELD):
            yield self._take_groups()

    def rest(self) -> Iterator[DigestRow]:
        """The rest of the digest, once all rows are added."""
        if self._totals:
            yield self._take_groups()
            yield self._take_depths()
            yield self._take_totals()
        if self._slow is not None:
            yield "slow_event", self._slow

    def _widen(self, enqueued_at: Longs, started_at: Longs) -> Iterator[DigestRow]:
        """Make the intervals contain these times; yields the counts by the intervals before that."""
        first = min(int(enqueued_at.min()), int(started_at.min()))
        last = max(int(enqueued_at.max()), int(started_at.max()))
        known = self._span or (first, last)
        self._span = span = min(first, known[0]), max(last, known[1])
        times = TimeBuckets.over(*span, TIME_BUCKETS)
        depths = TimeBuckets.over(*span, DEPTH_BUCKETS).divided(DEPTHS_PER_BUCKET)
        if times == self._times and depths == self._depths:
            return
        if self._times.number:
            yield self._take_groups()
            yield self._take_depths()
        self._times, self._depths = times, depths
        self._arrivals, self._starts = np.zeros(depths.number, np.int64), np.zeros(depths.number, np.int64)

    def _total(self, events: pa.RecordBatch, types: Longs, arrived: Longs) -> None:
        failed = [outcome == "failed" for *_, outcome in self._types.known]
        counts = np.bincount(types, minlength=len(failed))
        seq, ended = longs(events, "seq"), longs(events, "finished_at")
        span = int(seq.min()), int(seq.max()), int(arrived.min()), int(ended.max())
        self._totals.append((len(seq), int(counts[failed].sum()), *span))

    def _count(self, events: pa.RecordBatch, types: Longs, started_at: Longs) -> None:
        of_type = (types * TIME_BUCKETS + self._times.numbers(started_at)) * len(_MEASURES)
        for number, measure in enumerate(_MEASURES):
            self._groups.add(of_type + number, np.maximum(longs(events, measure), 0))

    def _is_kept(self, types: Longs) -> Any:
        wanted = [
            (event_class, event_type) in PAYLOADS or outcome != "handled"
            for event_class, event_type, outcome in self._types.known
        ]
        return np.array(wanted, bool)[types]

    def _keep_slowest(self, events: pa.RecordBatch) -> None:
        handling = longs(events, "handling_ns")
        if self._slow is not None and self._slow.num_rows == SLOWEST:
            least = self._slow.column("handling_ns")[SLOWEST - 1].as_py()
        else:
            least = np.partition(handling, -SLOWEST)[-SLOWEST] if len(handling) > SLOWEST else handling.min()
        candidates = np.flatnonzero(handling >= least)
        # In virtual time many events may take equally long: only the first of them count.
        candidates = candidates[np.lexsort((longs(events, "seq")[candidates], -handling[candidates]))][:SLOWEST]
        _, slow = _row("slow_event", events.select(KINDS["slow_event"].names).take(pa.array(candidates)))
        if self._slow is not None:
            [slow] = pa.Table.from_batches([self._slow, slow]).combine_chunks().to_batches()
            order = np.lexsort((longs(slow, "seq"), -longs(slow, "handling_ns")))
            slow = slow.take(pa.array(order[:SLOWEST]))
        self._slow = slow

    def _take_groups(self) -> DigestRow:
        keys, log_bucket, figures = self._groups.take()
        rest, measure = np.divmod(keys, len(_MEASURES))
        types, bucket = np.divmod(rest, TIME_BUCKETS)
        names = {name: self._types.column(position, types) for position, name in enumerate(_NAMES)}
        measures = pa.array(_MEASURES).take(pa.array(measure))
        return _row(
            "event_group",
            names | figures | {"measure": measures, "log_bucket": log_bucket} | _since_1970(self._times, bucket),
        )

    def _take_depths(self) -> DigestRow:
        buckets = np.flatnonzero(self._arrivals | self._starts)
        counts = {"arrivals": self._arrivals[buckets], "starts": self._starts[buckets]}
        return _row("depth", counts | _since_1970(self._depths, buckets))

    def _take_totals(self) -> DigestRow:
        counts, failed, first_seqs, last_seqs, first, last = zip(*self._totals, strict=True)
        seqs = {"first_seq": [min(first_seqs)], "last_seq": [max(last_seqs)]}
        times = {"first_at": [min(first)], "last_at": [max(last)]}
        return _row("event_totals", {"count": [sum(counts)], "failed": [sum(failed)]} | seqs | times)


def _since_1970(times: TimeBuckets, numbers: Longs) -> dict[str, Longs]:
    return {"bucket": numbers + times.first, "width_ns": np.full(len(numbers), times.width_ns)}


def _row(kind: str, columns: Any) -> DigestRow:
    return kind, rows_of(KINDS[kind], columns)
