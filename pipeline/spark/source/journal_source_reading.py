"""Reading and checking a journal's closed segments in Spark tasks, and Spark's filters as conditions on its frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from dispatcher.errors import JournalError
from dispatcher.journal.format.schema import Table, table_named
from dispatcher.journal.snapshot import ClosedSegment, parts_of
from pipeline.journal.conditions import Conditions
from pipeline.journal.damage import Problem, folder_problems, named, segment_problems
from pipeline.journal.scan import JournalPart, logged, plan, scan
from pipeline.journal.whole import look_at_whole

_PROBLEMS_IN_A_BATCH = 1000
_LEAST: Final = {"EqualTo": 0, "EqualNullSafe": 0, "GreaterThan": 1, "GreaterThanOrEqual": 0}
_MOST: Final = {"EqualTo": 0, "EqualNullSafe": 0, "LessThan": -1, "LessThanOrEqual": 0}


class JournalReading(NamedTuple):
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
    def __init__(self, parts: Sequence[JournalPart]) -> None:
        super().__init__([tuple(part) for part in parts])

    @property
    def parts(self) -> list[JournalPart]:
        return [JournalPart(*part) for part in self.value]


class JournalReader(DataSourceReader):
    """Reads the segments that are closed when the query is planned, without frames that cannot match `conditions`."""

    def __init__(self, reading: JournalReading, conditions: Conditions) -> None:
        self._reading = reading
        self._conditions = conditions

    def partitions(self) -> list[InputPartition]:
        journal = look_at_whole(self._reading.path)
        for line in journal.missing():
            self._reading.report(line)
        return self._reading.plan(journal.summarized, self._conditions)

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
        journal = look_at_whole(self._path)
        known = folder_problems(journal)
        return [ProblemsPartition([], known), *(ProblemsPartition([segment], []) for segment, _ in journal.closed)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        listed, known = partition.value
        problems = [Problem(*problem) for problem in known]
        parts = parts_of(self._path)
        for segment in map(Path, listed):
            for problem in segment_problems(segment):
                problems.append(named(parts, segment.parent, problem))
                if len(problems) == _PROBLEMS_IN_A_BATCH:
                    yield self._batch(problems)
                    problems = []
        yield self._batch(problems)

    def _batch(self, problems: list[Problem]) -> pa.RecordBatch:
        rows = [problem._asdict() for problem in problems]
        return pa.RecordBatch.from_pylist(rows, schema=self._schema)


def conditions_of(filters: Iterable[Any], table: Table) -> Conditions:
    """The conditions that `filters` place on `seq`, times and kinds; other filters are ignored.

    Filter classes are matched by name, because Spark 4.0 has none to import.
    """
    ranges: dict[str, tuple[int | None, int | None]] = {}
    values: dict[str, frozenset[Any]] = {}
    for one in filters:
        kind, value = type(one).__name__, getattr(one, "value", None)
        name = ".".join(getattr(one, "attribute", ()))
        if value is None:
            continue
        if name == "seq" or name in table.time_columns:
            for least, most in _spans(kind, value):
                old_least, old_most = ranges.get(name, (None, None))
                ranges[name] = _tighter(max, old_least, least), _tighter(min, old_most, most)
        elif name in table.kind_columns:
            among = frozenset(value) if kind == "In" else frozenset((value,))
            if kind in ("In", "EqualTo", "EqualNullSafe"):
                values[name] = values[name] & among if name in values else among
    return Conditions(ranges, values)


def _spans(kind: str, value: Any) -> Iterable[tuple[int | None, int | None]]:
    """The least and greatest value that pass a filter; empty for an unsupported one."""
    if kind == "In":
        numbers = [one for one in value if one is not None]
        if numbers and all(type(one) is int for one in numbers):
            yield min(numbers), max(numbers)
    elif type(value) is int and (kind in _LEAST or kind in _MOST):
        yield (
            value + _LEAST[kind] if kind in _LEAST else None,
            value + _MOST[kind] if kind in _MOST else None,
        )


def _tighter(choose: Callable[[int, int], int], one: int | None, other: int | None) -> int | None:
    return choose(one, other) if one is not None and other is not None else one if other is None else other
