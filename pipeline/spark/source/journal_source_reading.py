"""Reading a journal's closed segments, and checking them, in Spark tasks."""

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
    """What is read, and what becomes of damage. Pickles."""

    path: Path
    table: str
    schema: pa.Schema
    fails_fast: bool

    def plan(self, closed: Sequence[ClosedSegment], conditions: Conditions) -> list[InputPartition]:
        return [PartsPartition(parts) for parts in plan(closed, table_named(self.table), conditions)]

    def read(
        self, partition: InputPartition, conditions: Conditions, tell_gone: Callable[[str], None] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """
        Raises:
            JournalError: a segment cannot be read; or it is damaged, and that is to fail the task.
        """
        # Where a plan has no partition, Spark makes one without anything in it.
        parts = partition.parts if isinstance(partition, PartsPartition) else []
        return scan(parts, table_named(self.table), self.schema, conditions, self.tell, tell_gone)

    @property
    def tell(self) -> Callable[[str], None]:
        """Takes a line for each stretch that is passed over."""
        return self._refuse if self.fails_fast else logged(self.path)

    def _refuse(self, line: str) -> None:
        raise JournalError(f"{self.path}: damaged journal: {line}. See: dispatcher journal verify {self.path}")


class PartsPartition(InputPartition):
    """What one task reads."""

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__([tuple(part) for part in parts])

    @property
    def parts(self) -> list[Part]:
        return [Part(*part) for part in self.value]


class JournalReader(DataSourceReader):
    """Reads the closed segments that there are when the query is planned, without what cannot hold `conditions`."""

    def __init__(self, reading: Reading, conditions: Conditions) -> None:
        self._reading = reading
        self._conditions = conditions

    def partitions(self) -> list[InputPartition]:
        snapshot = look_at(self._reading.path)
        for line in snapshot.missing():
            self._reading.tell(line)
        return self._reading.plan(snapshot.summarized, self._conditions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reading.read(partition, self._conditions)


class FilteringReader(JournalReader):
    """Takes filters from Spark, which keeps them with what was loaded: they hold for all its queries from then on."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Takes note of those that frames can be passed over by; rows remain for Spark to filter, by all of them."""
        self._conditions = self._conditions.and_also(conditions_of(filters, table_named(self._reading.table)))
        return filters


class ProblemsPartition(InputPartition):
    """Segments that one task checks, and what is known without."""

    def __init__(self, listed: Sequence[Path], known: Sequence[Problem]) -> None:
        super().__init__(([str(segment) for segment in listed], [tuple(problem) for problem in known]))


class DamageReader(DataSourceReader):
    """Checks each byte of the closed segments that there are when the query is planned."""

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
