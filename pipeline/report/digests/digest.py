"""A digest: all that the report needs of the rows of one part of a journal, or of several.

A digest is a folder with a Parquet file for each kind of row, or several; `KINDS` has their columns. Digests of
consecutive parts, in order of seq, merge into one digest: the result is the same in whichever groups they are merged.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from dispatcher.errors import DispatcherError, JournalError
from dispatcher.journal.format.schema import EVENTS, TRANSITIONS
from pipeline.journal.arrow import arrow_schema
from pipeline.journal.damage import Problem
from pipeline.journal.scan import JournalPart, Report, scan_together
from pipeline.report.digests import event_digest, transition_digest
from pipeline.report.digests.arrow_rows import schema_of
from pipeline.report.digests.buckets import PER_OCTAVE, TimeBuckets
from pipeline.report.digests.event_digest import ROWS_AT_ONCE, SLOWEST, DigestRow, EventDigest
from pipeline.report.digests.run import ReportRun
from pipeline.report.digests.statements import Statement, run_statements
from pipeline.report.digests.transition_digest import LONGEST, Ends, TransitionDigest

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_PROBLEM: Final = "problem"
KINDS: Final[Mapping[str, pa.Schema]] = {
    **event_digest.KINDS,
    **transition_digest.KINDS,
    # What could not be read of the part: its rows are in none of the other kinds.
    _PROBLEM: schema_of("segment string, offset long, length long, problem string, events long, transitions long"),
}
_MEMORY_LIMIT: Final = "1GB"
_DISTINCT: Final = ("entity", "payload", "error")
_PATTERN: Final = re.compile(r"[*?\[]")


class PartWriter:
    """Writes the digest of one part into a folder, a file for each kind. A repeated attempt replaces the same files.

    As a context manager: the files appear at its end, unless it failed.
    """

    def __init__(self, folder: Path, part: int) -> None:
        self._folder = folder
        self._part = part
        self._stack = ExitStack()
        self._files: dict[str, tuple[Path, pq.ParquetWriter]] = {}

    def write(self, rows: Iterable[DigestRow]) -> None:
        for kind, batch in rows:
            if not batch.num_rows:
                continue
            if kind not in self._files:
                folder = self._folder / kind
                folder.mkdir(parents=True, exist_ok=True)
                draft = folder / f".{self._part}-{uuid4().hex}"
                # Ids hardly repeat, and a search for repetitions takes half of the time of writing.
                repeat = [one.name for one in batch.schema if one.type == pa.string() and one.name not in _DISTINCT]
                writer = pq.ParquetWriter(draft, batch.schema, use_dictionary=repeat, write_statistics=False)
                self._files[kind] = draft, self._stack.enter_context(writer)
            self._files[kind][1].write_batch(batch)

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._stack.close()
        for draft, _writer in self._files.values():
            if error is None:
                draft.replace(draft.with_name(f"part-{self._part:05d}.parquet"))
            else:
                draft.unlink(missing_ok=True)


def digest_together(
    batches: Iterable[Sequence[pa.RecordBatch]], ends: Ends, span: tuple[int, int] | None
) -> Iterator[DigestRow]:
    """The digest of pairs of batches, of events and of transitions; `span` as of `EventDigest`."""
    of_events, of_transitions = EventDigest(span), TransitionDigest(ends)
    for events, transitions in batches:
        yield from of_events.add(events)
        yield from of_transitions.add(transitions)
    yield from of_events.rest()
    yield from of_transitions.rest()


class DigestedPart(NamedTuple):
    """A part of a journal, for one task, and where its digest goes. Picklable.

    It needs nothing of Spark and little else: imports in the tasks are most of a small report's time.
    """

    journal: Path
    parts: Sequence[JournalPart]
    folder: Path
    number: int
    """Of the part, in the order of seq."""
    ends: Ends
    span: tuple[int, int] | None
    """About the time that the whole run covers (Unix ns), if known."""
    fails_on_loss: bool = False
    """Whether a segment that no longer exists is an error; otherwise it is damage."""

    def write(self) -> None:
        """
        Raises:
            JournalError: a segment cannot be read, or no longer exists and `fails_on_loss` is set.
        """
        damage: list[Problem] = []
        with PartWriter(self.folder, self.number) as writer:
            writer.write(digest_together(self.batches(damage.append), self.ends, self.span))
            writer.write([_rows_of(damage)])

    def batches(self, report: Report) -> Iterator[tuple[pa.RecordBatch, ...]]:
        """The part's rows as pairs of batches, of events and of transitions."""
        columns = ((EVENTS, event_digest.READS), (TRANSITIONS, transition_digest.READS))
        wanted = [(table, arrow_schema(table, names, coded=True)) for table, names in columns]
        report_gone = self._refuse if self.fails_on_loss else None
        return scan_together(self.parts, wanted, report, report_gone, rows=ROWS_AT_ONCE)

    def _refuse(self, problem: Problem) -> None:
        raise JournalError(
            f"{self.journal}: {problem.problem}, and the report has not counted it. "
            "To start over with the remaining segments, name another folder for the report."
        )


def write_problems(problems: Sequence[Problem], folder: Path) -> None:
    """Write a digest of nothing but problems to the new folder `folder`."""
    folder.mkdir(parents=True)
    with PartWriter(folder, 0) as writer:
        writer.write([_rows_of(problems)])


def _rows_of(problems: Sequence[Problem]) -> DigestRow:
    return _PROBLEM, pa.RecordBatch.from_pylist([problem._asdict() for problem in problems], KINDS[_PROBLEM])


def require_engine() -> None:
    """
    Raises:
        DispatcherError: DuckDB is not installed.
    """
    try:
        import duckdb  # noqa: F401
    except ModuleNotFoundError as missing:
        raise DispatcherError(
            f"a report needs the package {missing.name}, which is not installed. "
            "Run: pip install 'central-dispatcher[spark]'"
        ) from missing


@contextmanager
def engine(folder: Path | None = None, threads: int | None = None) -> Iterator[DuckDBPyConnection]:
    """DuckDB in memory, which puts what has no room there below `folder`, and removes it at the end."""
    import duckdb

    settings: dict[str, Any] = {"autoinstall_known_extensions": False, "preserve_insertion_order": False}
    if threads is not None:
        settings["threads"] = threads
    with ExitStack() as stack:
        if folder is not None:
            scratch = folder / f"_scratch-{uuid4().hex}"
            stack.callback(shutil.rmtree, scratch, ignore_errors=True)
            settings |= {"temp_directory": str(scratch), "memory_limit": _MEMORY_LIMIT}
        yield stack.enter_context(duckdb.connect(":memory:", config=settings))


def parquet_files(folder: Path) -> list[str]:
    """The Parquet files of a folder, for DuckDB, which takes a path for a pattern."""
    return [_PATTERN.sub(r"[\g<0>]", str(file)) for file in sorted(folder.glob("*.parquet"))]


def copy_to(database: DuckDBPyConnection, query: str, folder: Path) -> None:
    """Write a query's rows as the only Parquet file of a new folder."""
    folder.mkdir(parents=True)
    file = str(folder / "part-00000.parquet").replace("'", "''")
    database.execute(f"COPY ({query}) TO '{file}' (FORMAT parquet)")


def add_parts(database: DuckDBPyConnection, folders: Sequence[Path]) -> None:
    """Make the rows of the digests in these folders the parts that `merge` merges."""
    for kind, schema in KINDS.items():
        files = [file for folder in folders for file in parquet_files(folder / kind)]
        if files:
            database.from_parquet(files).create_view(f"part_{kind}")
        else:
            database.from_arrow(schema.empty_table()).create(f"part_{kind}")


def add_ends(database: DuckDBPyConnection, ends: Ends) -> None:
    """Make the tables first_state and final_state: the machines' states in which lives begin and end."""
    for name, states in (("first_state", ends.first), ("final_state", ends.final)):
        machines, of = zip(*sorted(states), strict=True) if states else ((), ())
        columns = {"machine": pa.array(machines, pa.string()), "state": pa.array(of, pa.string())}
        database.from_arrow(pa.table(columns)).create(name)


def merge(database: DuckDBPyConnection) -> ReportRun:
    """Merge the parts: makes a table or a view for each of the `KINDS`. Returns the run that they span.

    In:  part_KIND for each of the `KINDS`, and first_state and final_state.
    Out: as described at `KINDS`, with keys that are unique now. stay_group and long_stay include the stays that began
         in one part and ended in another. A stretch is a whole life as far as it is known; lives that began and
         ended are left out.
    """
    run = ReportRun.of(database)
    run_statements(database, merging(run))
    return run


_ADDED_UP = """
    sum("count")::BIGINT AS "count", sum(total)::BIGINT AS total, min(least) AS least, max(greatest) AS greatest
"""


def log_bucket(value: str) -> str:
    """SQL: as `buckets.log_buckets`, for one value."""
    exponent = f"(length(bin({value})) - 1)"
    # Exact: dividing a double by a power of two changes only its exponent.
    position = f"floor({value}::DOUBLE / pow(2::DOUBLE, {exponent}) * {PER_OCTAVE})"
    return f"CASE WHEN {value} > 0 THEN ({exponent} * {PER_OCTAVE} + {position} - {PER_OCTAVE})::INTEGER ELSE -1 END"


def _of(times: TimeBuckets) -> str:
    """SQL: bucket and width_ns of the interval of `times` that contains a part's interval."""
    # Both widths are powers of two, and this one is at least as large.
    bucket = f"bucket // ({times.width_ns} // width_ns)"
    last = times.first + times.number - 1
    return f"greatest({times.first}, least({last}, {bucket})) AS bucket, {times.width_ns}::BIGINT AS width_ns"


def _longest(stays: str) -> str:
    return f"""
        SELECT machine, entity, state, seq, from_at, stay_ns FROM ({stays}) WHERE stay_ns > 0
        QUALIFY row_number() OVER (PARTITION BY machine, state ORDER BY stay_ns DESC, seq, entity) <= {LONGEST}
    """


def merging(run: ReportRun) -> list[Statement]:
    """A table or a view for each of the `KINDS`, in an order in which each can be made."""
    made = (
        f"VIEW {_PROBLEM} AS FROM part_{_PROBLEM}",
        """
        TABLE event_totals AS
        SELECT coalesce(sum("count"), 0)::BIGINT AS "count", coalesce(sum(failed), 0)::BIGINT AS failed,
            min(first_seq) AS first_seq, max(last_seq) AS last_seq, min(first_at) AS first_at, max(last_at) AS last_at
        FROM part_event_totals
    """,
        """
        TABLE transition_totals AS
        SELECT coalesce(sum("count"), 0)::BIGINT AS "count", min(first_at) AS first_at, max(last_at) AS last_at
        FROM part_transition_totals
    """,
        f"""
        TABLE event_group AS
        SELECT event_class, event_type, outcome, measure, {_of(run.times)}, log_bucket, {_ADDED_UP}
        FROM part_event_group GROUP BY ALL
    """,
        f"""
        TABLE depth AS
        SELECT {_of(run.fine_depths)}, sum(arrivals)::BIGINT AS arrivals, sum(starts)::BIGINT AS starts
        FROM part_depth GROUP BY ALL
    """,
        "VIEW kept_event AS FROM part_kept_event",
        f"TABLE slow_event AS FROM part_slow_event ORDER BY handling_ns DESC, seq LIMIT {SLOWEST}",
        """
        TABLE transition_count AS
        SELECT machine, from_state, event_type, to_state, valid, sum("count")::BIGINT AS "count"
        FROM part_transition_count GROUP BY ALL
    """,
        # A host that registers again is a new machine with the old id: no transition led to its first state.
        """
        TABLE crossing_stay AS
        SELECT machine, entity, state, seq, from_at, greatest(0, "at" - from_at) AS stay_ns
        FROM (
            SELECT machine, entity, from_state AS state, "at",
                lag(to_state) OVER life AS entered, lag(last_seq) OVER life AS seq, lag(last_at) OVER life AS from_at
            FROM part_stretch WINDOW life AS (PARTITION BY machine, entity ORDER BY seq)
        )
        WHERE entered = state AND (machine, state) NOT IN (SELECT (machine, state) FROM final_state)
    """,
        f"""
        TABLE stay_group AS
        SELECT machine, state, log_bucket, {_ADDED_UP}
        FROM (
            FROM part_stay_group UNION ALL BY NAME
            SELECT machine, state, {log_bucket("stay_ns")} AS log_bucket, 1 AS "count", stay_ns AS total,
                stay_ns AS least, stay_ns AS greatest
            FROM crossing_stay
        )
        GROUP BY ALL
    """,
        f"TABLE long_stay AS {_longest('FROM part_long_stay UNION ALL BY NAME FROM crossing_stay')}",
        """
        TABLE stretch AS
        SELECT machine, entity, arg_min(from_state, seq) AS from_state, min(seq) AS seq, arg_min("at", seq) AS "at",
            arg_max(to_state, last_seq) AS to_state, max(last_seq) AS last_seq, arg_max(last_at, last_seq) AS last_at
        FROM part_stretch GROUP BY machine, entity
        HAVING (machine, arg_min(from_state, seq)) NOT IN (SELECT (machine, state) FROM first_state)
            OR (machine, arg_max(to_state, last_seq)) NOT IN (SELECT (machine, state) FROM final_state)
    """,
        """
        VIEW move AS
        SELECT * FROM part_move WHERE from_state <> to_state
        UNION ALL
        SELECT unnest(arg_max(part_move, seq)) FROM part_move WHERE from_state = to_state GROUP BY machine, entity
    """,
    )
    return [Statement.create(each) for each in made]


def write_merged(parts: Sequence[Path], folder: Path, ends: Ends) -> None:
    """Merge the digests in `parts`, in order of seq, into one in the new folder `folder`."""
    with engine(folder) as database:
        add_parts(database, parts)
        add_ends(database, ends)
        merge(database)
        for kind, schema in KINDS.items():
            columns = ", ".join(f'"{name}"' for name in schema.names)
            copy_to(database, f"SELECT {columns} FROM {kind}", folder / kind)
