"""Following a journal with Structured Streaming: each closed segment once, in order.

An offset is {"segment": n}: all segments up to n have been read. A repeated batch has the same rows, because closed
segments do not change.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from dispatcher.errors import JournalError
from dispatcher.journal.format.segments import Manifest, read_manifest, segment_number, segments
from dispatcher.journal.snapshot import gaps, parts_of, summarize
from pipeline.journal.conditions import Conditions
from pipeline.journal.scan import why_each_gone
from pipeline.spark.source.journal_source_reading import JournalReading

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
except ImportError:  # before Spark 4.2, which has no read limits: a batch has all closed segments
    ReadMaxFiles = None  # type: ignore[assignment,misc]

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        pass


log = logging.getLogger(__name__)

Offset = dict[str, int]


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Waits if the journal does not exist yet.

    `max_segments`: per batch; None: all. `fails_on_loss`: a segment that is gone before it was read is an error;
    otherwise it is logged and skipped.
    """

    def __init__(self, reading: JournalReading, max_segments: int | None, fails_on_loss: bool) -> None:
        self._reading = reading
        self._max_segments = max_segments
        self._fails_on_loss = fails_on_loss
        self._target: int | None = None  # last segment for a query with Trigger.AvailableNow

    def initialOffset(self) -> Offset:
        """Just before the oldest segment that retention has left. Raises JournalError: the journal is partitioned."""
        path = self._reading.path
        if parts_of(path).is_partitioned:
            raise JournalError(f"{path}: a stream reads one partition of a partitioned journal; name its folder")
        return {"segment": self._first() - 1}

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._last()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._max_segments is None else ReadMaxFiles(self._max_segments)

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:
        """Spark before 4.2 passes no arguments."""
        last = self._last()
        if self._target is not None:
            last = min(last, self._target)
        if start is None:
            return {"segment": last}
        begin = start["segment"]
        if ReadMaxFiles is not None and isinstance(limit, ReadMaxFiles):
            # Segments that retention has removed do not count towards the limit.
            last = min(last, max(begin, self._first() - 1) + limit.max_files)
        return {"segment": max(begin, last)}

    def reportLatestOffset(self) -> Offset:
        return {"segment": self._last()}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        return self._reading.plan(summarize(self._between(start, end)), Conditions())

    def _between(self, start: Offset, end: Offset) -> list[Path]:
        path, first, last = self._reading.path, start["segment"] + 1, end["segment"]
        there = [segment for segment in segments(path) if first <= segment_number(segment) <= last]
        # Only what the folder has is listed: a manifest may name two billion segments.
        for gap in gaps(map(segment_number, there), first, last):
            for line in why_each_gone(path, *gap):
                self._report_gone(line)
        return there

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reading.read(partition, Conditions(), self._report_gone)

    def _report_gone(self, line: str) -> None:
        path = self._reading.path
        if self._fails_on_loss:
            raise JournalError(
                f"{path}: {line}, and the stream has not read it. To continue without its rows, set the option "
                "failOnDataLoss to false; to start over with the remaining segments, give the query a new checkpoint."
            )
        log.warning("%s: %s; skipped", path, line)

    def _first(self) -> int:
        """Number of the oldest segment, or of the first one to come."""
        manifest = self._manifest()
        return manifest.first if manifest is not None else min(self._numbers(), default=1)

    def _last(self) -> int:
        """Number of the last closed segment, or 0."""
        manifest = self._manifest()
        # The manifest also records a last segment that is gone.
        return max([0 if manifest is None else manifest.last, *self._numbers()])

    def _manifest(self) -> Manifest | None:
        path = self._reading.path
        return read_manifest(path)[0] if path.is_dir() else None

    def _numbers(self) -> Iterator[int]:
        return map(segment_number, segments(self._reading.path))


class SegmentStreamReader(JournalStreamReader):
    """The numbers of the closed segments instead of their rows."""

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        numbers = [segment_number(segment) for segment in self._between(start, end)]
        return [InputPartition(numbers)] if numbers else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        numbers = pa.array(partition.value or [], pa.int64())  # for a plan without partitions, Spark makes an empty one
        yield pa.RecordBatch.from_arrays([numbers], ["segment"])
