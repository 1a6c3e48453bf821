"""Reading and checking a journal's closed segments in Spark tasks, and Spark's filters as conditions on its frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from dispatcher.errors import JournalError
from dispatcher.journal.conditions import Comparison, Conditions
from dispatcher.journal.format.schema import Table, table_named
from dispatcher.journal.snapshot import ClosedSegment, parts_of
from pipeline.journal.damage import Problem, folder_problems, named, segment_problems
from pipeline.journal.scan import Report, logged, plan, scan
from pipeline.journal.whole import look_at_whole

_PROBLEMS_IN_A_BATCH: Final = 1000
_OPERATORS: Final = {
    "EqualTo": "=",
    "EqualNullSafe": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "In": "in",
}


class JournalReading(NamedTuple):
    """What is read, and whether damage fails the task. Picklable."""

    path: Path
    table: str
    schema: pa.Schema
    fails_fast: bool

    def plan(self, closed: Sequence[ClosedSegment], conditions: Conditions) -> list[InputPartition]:
        return [InputPartition(parts) for parts in plan(closed, table_named(self.table), conditions)]

    def read(
        self, partition: InputPartition, conditions: Conditions, report_gone: Report | None = None
    ) -> Iterator[pa.RecordBatch]:
        """
        Raises:
            JournalError: a segment cannot be read, or is damaged and `fails_fast` is set.
        """
        # For a plan without partitions, Spark makes an empty one, or in older releases gives None.
        parts = getattr(partition, "value", None) or []
        return scan(parts, table_named(self.table), self.schema, conditions, self.report, report_gone)

    @property
    def report(self) -> Report:
        """Logs damage, or raises JournalError."""
        return self._refuse if self.fails_fast else logged(self.path)

    def _refuse(self, problem: Problem) -> None:
        raise JournalError(f"{self.path}: damaged journal: {problem}. See: dispatcher journal verify {self.path}")


class JournalReader(DataSourceReader):
    """Reads the segments that are closed when the query is planned, without frames that cannot match `conditions`."""

    def __init__(self, reading: JournalReading, conditions: Conditions) -> None:
        self._reading = reading
        self._conditions = conditions

    def partitions(self) -> list[InputPartition]:
        journal = look_at_whole(self._reading.path)
        for problem in folder_problems(journal):
            self._reading.report(problem)
        return self._reading.plan(journal.summarized, self._conditions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reading.read(partition, self._conditions)


class FilteringReader(JournalReader):
    """Accepts filters from Spark."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Skip frames by the supported filters; Spark still applies all of them to the rows."""
        self._conditions = self._conditions.and_also(conditions_of(filters, table_named(self._reading.table)))
        return filters


class DamageReader(DataSourceReader):
    """Checks each byte of the segments that are closed when the query is planned.

    A partition is a segment to check, or the problems that planning has found.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        journal = look_at_whole(self._path)
        return [InputPartition(folder_problems(journal)), *(InputPartition(segment) for segment, _ in journal.closed)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        problems = partition.value
        if isinstance(problems, Path):
            segment, parts = problems, parts_of(self._path)
            problems = [named(parts, segment.parent, problem) for problem in segment_problems(segment)]
        for start in range(0, max(1, len(problems)), _PROBLEMS_IN_A_BATCH):
            rows = [problem._asdict() for problem in problems[start : start + _PROBLEMS_IN_A_BATCH]]
            yield pa.RecordBatch.from_pylist(rows, schema=self._schema)


def conditions_of(filters: Iterable[Any], table: Table) -> Conditions:
    """The conditions that `filters` place on `seq`, times and kinds; other filters are ignored.

    Filter classes are matched by name, because Spark 4.0 has none to import.
    """
    return Conditions.of(
        (
            Comparison(".".join(one.attribute), operator, one.value)
            for one in filters
            if (operator := _OPERATORS.get(type(one).__name__)) is not None and one.value is not None
        ),
        table,
    )
