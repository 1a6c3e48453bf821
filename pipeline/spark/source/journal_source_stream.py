"""Following a journal with Structured Streaming: each closed segment once, in order.

An offset is {"segment": n}: all segments up to n have been read. Of a partitioned journal it has such a number for each
partition: {"0": n, "1": m}. A repeated batch has the same rows, because closed segments do not change.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from dispatcher.errors import JournalError
from dispatcher.journal.conditions import Conditions
from dispatcher.journal.format.partitions import partition_number
from dispatcher.journal.format.segments import Manifest, read_manifest, segment_number, segments
from dispatcher.journal.snapshot import ClosedSegment, gaps, gone_between, parts_of, summarize
from pipeline.journal.damage import Problem
from pipeline.journal.whole import of_partition
from pipeline.spark.source.journal_source_reading import JournalReading

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
except ImportError:  # before Spark 4.2, which has no read limits: a batch has all closed segments
    ReadMaxFiles = None  # type: ignore[assignment,misc]

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        pass


log: logging.Logger = logging.getLogger(__name__)

Offset = dict[str, int]
_ALONE: Final = "segment"
"""The key in the offset of a journal without partitions."""


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Waits if the journal does not exist yet.

    `max_segments`: per batch; None: all. `fails_on_loss`: a segment that is gone before it was read is an error;
    otherwise it is logged and skipped.
    """

    def __init__(self, reading: JournalReading, max_segments: int | None, fails_on_loss: bool) -> None:
        self._reading = reading
        self._max_segments = max_segments
        self._fails_on_loss = fails_on_loss
        self._target: Offset | None = None  # the last segments for a query with Trigger.AvailableNow

    def initialOffset(self) -> Offset:
        """Just before the oldest segments that retention has left."""
        return {key: _first(folder) - 1 for key, folder in self._folders().items()}

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._last()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._max_segments is None else ReadMaxFiles(self._max_segments)

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:
        """Spark before 4.2 passes no arguments."""
        last = self._last()
        if self._target is not None:
            last = {key: min(last[key], number) for key, number in self._target.items() if key in last}
        if start is None:
            return last
        # Segments that retention has removed do not count towards the limit.
        begin = {key: self._begin(start, key) for key in last}
        if ReadMaxFiles is not None and isinstance(limit, ReadMaxFiles):
            kept = {key: max(number, _first(self._folders()[key]) - 1) for key, number in begin.items()}
            last = _at_most(limit.max_files, kept, last)
        read = {key: max(number, last[key]) for key, number in begin.items()}
        missing = {key: number for key, number in start.items() if key != _ALONE and key not in read}
        return {**missing, **read}

    def reportLatestOffset(self) -> Offset:
        return self._last()

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        closed: list[ClosedSegment] = []
        for key, folder in self._folders().items():
            partition = None if key == _ALONE else int(key)
            closed += of_partition(summarize(self._between(folder, key, start, end)), partition)
        return self._reading.plan(closed, Conditions())

    def _between(self, folder: Path, key: str, start: Offset, end: Offset) -> list[Path]:
        first, last = self._begin(start, key) + 1, end.get(key, 0)
        there = [segment for segment in segments(folder) if first <= segment_number(segment) <= last]
        # Only what the folder has is listed: a manifest may name two billion segments.
        for gap in gaps(map(segment_number, there), first, last):
            for damage in gone_between(folder, *gap):
                self._refuse_gone(damage.line if key == _ALONE else f"{folder.name}/{damage.line}")
        return there

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reading.read(partition, Conditions(), self._report_gone)

    def stop(self) -> None:
        """PySpark calls it as the reader's process ends.

        When the JVM has ended first, PySpark writes that error to the JVM's closed socket. It then dies of a second
        error, with a traceback on the user's terminal. This process has nothing left to report, so it ends in silence.
        """
        if isinstance(sys.exception(), EOFError):
            sys.excepthook = _without_jvm

    def _report_gone(self, problem: Problem) -> None:
        self._refuse_gone(str(problem))

    def _refuse_gone(self, line: str) -> None:
        path = self._reading.path
        if self._fails_on_loss:
            raise JournalError(
                f"{path}: {line}, and the stream has not read it. To continue without its rows, set the option "
                "failOnDataLoss to false; to start over with the remaining segments, give the query a new checkpoint."
            )
        log.warning("%s: %s; skipped", path, line)

    def _folders(self) -> dict[str, Path]:
        """The folders of the partitions by their keys in an offset, or the journal's own."""
        parts = parts_of(self._reading.path)
        if not parts.is_partitioned:
            return {_ALONE: parts.path}
        for name in parts.missing:
            self._refuse_gone(f"{name}: is missing")
        return {str(partition_number(folder)): folder for folder in parts.folders}

    def _begin(self, start: Offset, key: str) -> int:
        """The last segment that was read; of a partition that has come since, the one before its first."""
        return start[key] if key in start else _first(self._folders()[key]) - 1

    def _last(self) -> Offset:
        """The last closed segments, or 0."""
        return {key: _last(folder) for key, folder in self._folders().items()}


def _at_most(count: int, begin: Offset, last: Offset) -> Offset:
    """An offset that is no more than that many segments beyond `begin`, and up to `last`; shared by the partitions."""
    wanted = sorted((max(0, last[key] - number), key) for key, number in begin.items())
    found: Offset = {}
    for index, (number, key) in enumerate(wanted):
        granted = min(number, count // (len(wanted) - index))
        found[key] = begin[key] + granted
        count -= granted
    return found


def _first(folder: Path) -> int:
    """Number of the oldest segment, or of the first one to come."""
    manifest = _manifest(folder)
    return manifest.first if manifest is not None else min(_numbers(folder), default=1)


def _last(folder: Path) -> int:
    """Number of the last closed segment, or 0."""
    manifest = _manifest(folder)
    # The manifest also records a last segment that is gone.
    return max([0 if manifest is None else manifest.last, *_numbers(folder)])


def _manifest(folder: Path) -> Manifest | None:
    return read_manifest(folder)[0] if folder.is_dir() else None


def _numbers(folder: Path) -> Iterator[int]:
    return map(segment_number, segments(folder))


def _without_jvm(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if not isinstance(error, ConnectionError):
        sys.__excepthook__(kind, error, traceback)


class SegmentStreamReader(JournalStreamReader):
    """The numbers of the closed segments instead of their rows."""

    def initialOffset(self) -> Offset:
        """Raises JournalError: the journal is partitioned."""
        path = self._reading.path
        if parts_of(path).is_partitioned:
            raise JournalError(
                f"{path}: a stream of segments reads one partition of a partitioned journal; name its folder"
            )
        return super().initialOffset()

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        numbers = [segment_number(segment) for segment in self._between(self._reading.path, _ALONE, start, end)]
        return [InputPartition(numbers)] if numbers else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        numbers = pa.array(partition.value or [], pa.int64())  # for a plan without partitions, Spark makes an empty one
        yield pa.RecordBatch.from_arrays([numbers], ["segment"])
