"""Following a journal: each closed segment once, in their order, as Structured Streaming asks for them.

An offset is {"segment": n}: all segments up to n have been read. So a batch has the same rows however often it is
repeated: a closed segment does not change.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from dispatcher.errors import JournalError
from dispatcher.journal.format.segments import read_manifest, segment_number, segment_path, segments
from dispatcher.journal.snapshot import summarize
from pipeline.journal.conditions import Conditions
from pipeline.journal.scan import why_gone
from pipeline.spark.source.journal_source_reading import Reading

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
except ImportError:  # before Spark 4.2: a batch has all that there is
    ReadMaxFiles = None  # type: ignore[assignment,misc]

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Has no meaning there."""


log = logging.getLogger(__name__)

Offset = dict[str, int]


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Waits where there is no journal yet.

    `max_segments`: of a batch; None: all. `fails_on_loss`: whether a segment that is gone before it was read is an
    error; else it is logged and passed over.
    """

    def __init__(self, reading: Reading, max_segments: int | None, fails_on_loss: bool) -> None:
        self._reading = reading
        self._max_segments = max_segments
        self._fails_on_loss = fails_on_loss
        self._target: int | None = None  # of a query that ends once it has what there was at its start

    def initialOffset(self) -> Offset:
        """Before the first segment that retention has left."""
        return {"segment": self._first() - 1}

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._last()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._max_segments is None else ReadMaxFiles(self._max_segments)

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:
        """Spark before 4.2 gives no arguments."""
        last = self._last()
        if self._target is not None:
            last = min(last, self._target)
        if start is None:
            return {"segment": last}
        begin = start["segment"]
        if ReadMaxFiles is not None and isinstance(limit, ReadMaxFiles):
            # Those that retention has removed do not count.
            last = min(last, max(begin, self._first() - 1) + limit.max_files)
        return {"segment": max(begin, last)}

    def reportLatestOffset(self) -> Offset:
        return {"segment": self._last()}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        asked = [segment_path(self._reading.path, n) for n in range(start["segment"] + 1, end["segment"] + 1)]
        there = [segment for segment in asked if segment.exists()]
        for segment in asked:
            if segment not in there:
                self._tell_gone(why_gone(segment))
        return self._reading.plan(summarize(there), Conditions())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reading.read(partition, Conditions(), self._tell_gone)

    def _tell_gone(self, line: str) -> None:
        path = self._reading.path
        if self._fails_on_loss:
            raise JournalError(
                f"{path}: {line}, and the stream has not read it. To go on without its rows, set the option "
                "failOnDataLoss to false; to begin again with what is left, give the query a new checkpoint."
            )
        log.warning("%s: %s; passed over", path, line)

    def _first(self) -> int:
        """Number of the first segment that there is, or will be."""
        path = self._reading.path
        manifest = read_manifest(path)[0] if path.is_dir() else None
        if manifest is not None:
            return manifest.first
        return min(map(segment_number, self._segments()), default=1)

    def _last(self) -> int:
        """Number of the last closed segment; 0: there is none."""
        path = self._reading.path
        manifest = read_manifest(path)[0] if path.is_dir() else None
        # The manifest also knows of a last one that is gone.
        return max([0 if manifest is None else manifest.last, *map(segment_number, self._segments())])

    def _segments(self) -> list[Path]:
        return segments(self._reading.path)
