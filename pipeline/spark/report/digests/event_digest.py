"""Computes all that the report needs of a journal's events in one pass.

The pass runs on Arrow batches, in a Spark task or where the journal is read. Its output is small, except for the events
that other tables need, and the digests of a journal's parts add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from pipeline.spark.report.digests.arrow_rows import Names, ddl_of, longs, pieces, schema_of, wide
from pipeline.spark.report.digests.buckets import BITS, FIGURES, Groups, Longs, TimeBuckets, log_buckets
from pipeline.spark.shipping import on_executors
from pipeline.spark.source.journal import PAYLOADS

TIME_BUCKETS = 50
DEPTH_BUCKETS = 200
DEPTHS_PER_BUCKET = 8
SLOWEST = 100

KEPT = ("seq", "event_class", "event_type", "entity", "enqueued_at", "started_at", "handling_ns", "outcome", "error")
READS = (*KEPT, "queue_ns", "payload")
"""The columns of events that a digest reads."""
_TEXT = ("entity", "error", "payload")
_NAMES = ("event_class", "event_type", "outcome")
_LONGS = ("seq", "enqueued_at", "started_at", "handling_ns", *FIGURES, "arrivals", "starts")

KINDS = ("group", "depth", "kept", "slow")

SCHEMA = schema_of(string=("kind", *_NAMES, *_TEXT, "measure"), int=("bucket", "log_bucket"), long=_LONGS)
DDL = ddl_of(SCHEMA)

_ROWS_AT_ONCE = 1 << 17
_GROUPS_HELD = 1 << 18
_MEASURES = ("queue_ns", "handling_ns")


def digest_events(events: DataFrame, start_at: int, end_at: int) -> DataFrame:
    """The digest of a run that lasted from `start_at` to `end_at` (Unix ns); its rows are of four kinds.

    In:  the columns `READS` of journal events, in any order.
    Out: kind string, and for each kind (all else is null):
         group: event_class, event_type, outcome string, measure string (queue_ns or handling_ns), bucket int (of
             `TIME_BUCKETS`, by started_at), log_bucket int, count long > 0, total, least, greatest long (ns).
             Not unique: each part of the events has its own rows, to be added up.
         depth: bucket int (of `DEPTH_BUCKETS` times `DEPTHS_PER_BUCKET`), arrivals, starts long; also to be added up.
         kept: the events whose payload is in `PAYLOADS`, and unhandled events: seq, event_class, event_type, outcome,
             entity, enqueued_at, started_at, handling_ns, error, payload.
         slow: the same columns without payload, of events that include the `SLOWEST` slowest.
    """

    return events.select(*READS).mapInArrow(
        on_executors(lambda batches: EventDigest(start_at, end_at).rows(batches)), DDL
    )


class EventDigest:
    """The digest of one part of the events. For a single use, by one thread."""

    def __init__(self, start_at: int, end_at: int) -> None:
        self._times = TimeBuckets.over(start_at, end_at, TIME_BUCKETS)
        self._depths = TimeBuckets.over(start_at, end_at, DEPTH_BUCKETS)
        self._types = Names()
        self._groups = Groups()
        self._arrivals = np.zeros(DEPTH_BUCKETS * DEPTHS_PER_BUCKET, np.int64)
        self._starts = np.zeros_like(self._arrivals)
        self._slow: pa.Table | None = None

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches of `SCHEMA`, from batches with the columns `READS`."""
        for events in pieces(batches, _ROWS_AT_ONCE):
            started_at, enqueued_at = longs(events, "started_at"), longs(events, "enqueued_at")
            types = self._types.numbers(events, _NAMES)
            self._count(events, types, started_at)
            self._arrivals += self._by_depth_bucket(enqueued_at)
            self._starts += self._by_depth_bucket(started_at)
            self._keep_slowest(events)
            kept = events.filter(pa.array(self._is_kept(types)))
            if kept.num_rows:
                yield wide(SCHEMA, "kept", {name: kept.column(name) for name in (*KEPT, "payload")})
            if self._groups.merge() > _GROUPS_HELD:
                yield self._take_groups()
        yield self._take_groups()
        buckets = np.flatnonzero(self._arrivals | self._starts)
        yield wide(
            SCHEMA,
            "depth",
            {"bucket": buckets, "arrivals": self._arrivals[buckets], "starts": self._starts[buckets]},
        )
        if self._slow is not None:
            yield wide(SCHEMA, "slow", {name: self._slow.column(name) for name in KEPT})

    def _count(self, events: pa.Table, types: Longs, started_at: Longs) -> None:
        bucket = np.clip((started_at - self._times.start_at) // self._times.width_ns, 0, TIME_BUCKETS - 1)
        of_type = (types * TIME_BUCKETS + bucket) * len(_MEASURES)
        for number, measure in enumerate(_MEASURES):
            ns = np.maximum(longs(events, measure), 0)
            self._groups.add(((of_type + number) << BITS) + log_buckets(ns) + 1, ns)

    def _by_depth_bucket(self, at: Longs) -> Longs:
        fine = (at - self._depths.start_at) * DEPTHS_PER_BUCKET // self._depths.width_ns
        last = len(self._arrivals) - 1
        return np.bincount(np.clip(fine, 0, last), minlength=last + 1)

    def _is_kept(self, types: Longs) -> Any:
        wanted = [
            (event_class, event_type) in PAYLOADS or outcome != "handled"
            for event_class, event_type, outcome in self._types.known
        ]
        return np.array(wanted, bool)[types]

    def _keep_slowest(self, events: pa.Table) -> None:
        handling = longs(events, "handling_ns")
        if self._slow is not None and self._slow.num_rows == SLOWEST:
            events = events.filter(pa.array(handling >= pc.min(self._slow.column("handling_ns")).as_py()))
        elif len(handling) > SLOWEST:
            least = np.partition(handling, -SLOWEST)[-SLOWEST]
            events = events.filter(pa.array(handling >= least))
        events = events.select(KEPT)
        if self._slow is not None:
            events = pa.concat_tables([self._slow, events]).combine_chunks()
        order = np.lexsort((longs(events, "seq"), -longs(events, "handling_ns")))
        self._slow = events.take(pa.array(order[:SLOWEST]))

    def _take_groups(self) -> pa.RecordBatch:
        keys, figures = self._groups.take()
        rest, log_bucket = keys >> BITS, (keys & ((1 << BITS) - 1)) - 1
        rest, measure = np.divmod(rest, len(_MEASURES))
        types, bucket = np.divmod(rest, TIME_BUCKETS)
        names = {name: self._types.column(position, types) for position, name in enumerate(_NAMES)}
        measures = pa.array(_MEASURES).take(pa.array(measure))
        return wide(
            SCHEMA, "group", names | figures | {"measure": measures, "bucket": bucket, "log_bucket": log_bucket}
        )
