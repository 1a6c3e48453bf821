"""Reading and checking a journal's closed segments in Spark tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from dispatcher.errors import JournalError
from dispatcher.journal.format.schema import table_named
from dispatcher.journal.snapshot import ClosedSegment, look_at
from pipeline.journal.conditions import Conditions
from pipeline.journal.damage import Problem, folder_problems, segment_problems
from pipeline.journal.scan import Part, logged, plan, scan
from pipeline.spark.source.journal_source_filters import conditions_of

_PROBLEMS_IN_A_BATCH = 1000


class Reading(NamedTuple):
    """What is read, and whether damage fails the task. Picklable."""

    path: Path
    table: str
    schema: pa.Schema
    fails_fast: bool

    def plan(self, closed: Sequence[ClosedSegment], conditions: Conditions) -> list[InputPartition]:
        return [PartsPartition(parts) for parts in plan(closed, table_named(self.table), conditions)]

    def read(
        self, partition: InputPartition, conditions: Conditions, report_gone: Callable[[str], None] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """
        Raises:
            JournalError: a segment cannot be read, or is damaged and `fails_fast` is set.
        """
        # For a plan without partitions, Spark makes an empty one.
        parts = partition.parts if isinstance(partition, PartsPartition) else []
        return scan(parts, table_named(self.table), self.schema, conditions, self.report, report_gone)

    @property
    def report(self) -> Callable[[str], None]:
        """Takes a line for each damaged stretch."""
        return self._refuse if self.fails_fast else logged(self.path)

    def _refuse(self, line: str) -> None:
        raise JournalError(f"{self.path}: damaged journal: {line}. See: dispatcher journal verify {self.path}")


class PartsPartition(InputPartition):
    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__([tuple(part) for part in parts])

    @property
    def parts(self) -> list[Part]:
        return [Part(*part) for part in self.value]


class JournalReader(DataSourceReader):
    """Reads the segments that are closed when the query is planned, without frames that cannot match `conditions`."""

    def __init__(self, reading: Reading, conditions: Conditions) -> None:
        self._reading = reading
        self._conditions = conditions

    def partitions(self) -> list[InputPartition]:
        snapshot = look_at(self._reading.path)
        for line in snapshot.missing():
            self._reading.report(line)
        return self._reading.plan(snapshot.summarized, self._conditions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reading.read(partition, self._conditions)


class FilteringReader(JournalReader):
    """Accepts filters from Spark, which keeps the reader with the DataFrame: they apply to all its later queries."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Skip frames by the supported filters; Spark still applies all of them to the rows."""
        self._conditions = self._conditions.and_also(conditions_of(filters, table_named(self._reading.table)))
        return filters


class ProblemsPartition(InputPartition):
    """The segments that one task checks, and problems that are already known."""

    def __init__(self, listed: Sequence[Path], known: Sequence[Problem]) -> None:
        super().__init__(([str(segment) for segment in listed], [tuple(problem) for problem in known]))


class DamageReader(DataSourceReader):
    """Checks each byte of the segments that are closed when the query is planned."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        snapshot = look_at(self._path)
        known = folder_problems(snapshot)
        return [ProblemsPartition([], known), *(ProblemsPartition([segment], []) for segment in snapshot.closed)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        listed, known = partition.value
        problems = [Problem(*problem) for problem in known]
        for segment in listed:
            for problem in segment_problems(Path(segment)):
                problems.append(problem)
                if len(problems) == _PROBLEMS_IN_A_BATCH:
                    yield self._batch(problems)
                    problems = []
        yield self._batch(problems)

    def _batch(self, problems: list[Problem]) -> pa.RecordBatch:
        rows = [problem._asdict() for problem in problems]
        return pa.RecordBatch.from_pylist(rows, schema=self._schema)
