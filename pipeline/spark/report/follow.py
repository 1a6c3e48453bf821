"""`dispatcher report --follow`: the report's tables kept up to date while the journal is written.

A streaming query reads which segments of the journal were closed. For each micro-batch, a job writes the digest of
those segments below OUTPUT/follow, exactly once. The report's tables are made of the digests at any time, at a cost
that depends on the number of entities and not of events.

    OUTPUT/follow/journal.json     the followed journal
    OUTPUT/follow/checkpoint       Spark's checkpoint
    OUTPUT/follow/digests          digests of the segments
    OUTPUT/tables                  the report's tables, as of the last `write`

After a kill at any point, a restart on the same OUTPUT continues where it stopped. The tables equal those of a batch
report on the segments that were read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from dispatcher.errors import ConfigError, DispatcherError
from dispatcher.journal.format.segments import segment_path
from dispatcher.journal.snapshot import summarize
from dispatcher.util.folders import drafts
from pipeline.journal.damage import folder_problems
from pipeline.journal.whole import look_at_whole
from pipeline.report.digests.digest import add_parts, engine, require_engine, write_merged, write_problems
from pipeline.report.digests.transition_digest import Ends
from pipeline.report.tables.writing import Finish
from pipeline.spark.report.digesting import digest_segments, finish
from pipeline.spark.report.follow_store import DigestStore
from pipeline.spark.report.report import PAGE, Report, declared_by_resource_manager, removed, write_page
from pipeline.spark.shipping import headline
from pipeline.spark.source.journal import journal_failure, stream_segments
from pipeline.spark.source.journal_source import local_path

_FORMAT: Final = 3


class FollowError(DispatcherError):
    """A journal cannot be followed any further. The message is one line for the user."""


@dataclass(frozen=True, slots=True)
class FollowProgress:
    """How much of the journal the committed batches cover."""

    events: int
    transitions: int
    first_seq: int | None
    last_seq: int | None
    missing: int
    """Events between the first and the last that the journal lacks."""
    problems: int = 0
    """Damaged parts of the segments."""


def follow_journal(
    spark: SparkSession,
    journal: str | Path,
    output: str | Path,
    *,
    until_idle: bool = False,
    trigger_s: float = 2.0,
    segments_per_batch: int = 16,
    declared: DataFrame | None = None,
) -> JournalFollower:
    """Start or continue to follow the journal. Returns at once, while Spark's threads run the query.

    until_idle: end once all currently closed segments are read; otherwise run until stopped.
    trigger_s: interval between checks for new segments.
    segments_per_batch: most segments in one micro-batch; from Spark 4.2 on.
    declared: the transitions that the machines declare, as for `write_report`; default: the resource manager's.

    The function that runs per micro-batch is pickled by name: with Spark Connect, the server needs this package, and
    server and client must see the same `output` and the same journal. If the journal does not exist yet, the query
    waits for it.

    Raises:
        ConfigError: `output` follows another journal, or was created by an incompatible version.
        DispatcherError: `output` cannot be written, or DuckDB is not installed.
    """
    require_engine()
    folder = Path(output).absolute()
    _claim(folder / "follow", str(journal))
    rows = declared_by_resource_manager() if declared is None else [tuple(row) for row in declared.collect()]
    trigger: dict[str, Any] = {"availableNow": True} if until_idle else {"processingTime": f"{trigger_s} seconds"}
    follower = JournalFollower(spark, local_path(str(journal)).absolute(), folder, rows)
    segments = stream_segments(spark, journal, max_segments_per_trigger=segments_per_batch)
    writer = segments.writeStream.foreachBatch(follower.store).trigger(**trigger)
    follower.query = writer.option("checkpointLocation", str(follower.store.checkpoint)).start()
    return follower


class JournalFollower:
    """The running query of `follow_journal`, and its tables. For one thread.

    As a context manager, it stops the query on exit.
    """

    def __init__(self, spark: SparkSession, journal: Path, folder: Path, declared: Sequence[tuple[str, ...]]) -> None:
        self._spark = spark
        self._declared = declared
        self._journal = journal
        self.folder = folder
        self.query: StreamingQuery | None = None
        kept, ends = folder / "follow", Ends.of(declared)
        self.store: DigestStore = DigestStore(
            kept / "digests", kept / "checkpoint", partial(_digest, journal, ends), partial(write_merged, ends=ends)
        )

    def wait(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` until the query has ended; returns whether it has.

        Raises:
            FollowError: the query has failed.
        """
        assert self.query is not None, "it is started"
        try:
            # Spark requires a positive timeout, and accepts fractions of a second despite its annotation.
            return bool(self.query.awaitTermination(max(0.001, timeout_s)))  # type: ignore[arg-type]
        except StreamingQueryException as error:
            what = journal_failure(error) or f"the journal cannot be followed: {headline(error)}"
            raise FollowError(what) from error

    def write(self, journal: str, *, config: str | None = None) -> Report:
        """Write the report's tables and page from all committed batches to OUTPUT. Blocks.

        Parameters as of `write_page`. The page reloads itself.
        """
        problems = folder_problems(look_at_whole(self._journal)) if self._journal.is_dir() else []
        with drafts(self.folder, "tables", PAGE, what="report") as place, removed(place / "digests") as digests:
            write_problems(problems, digests)
            finish(self._spark, Finish([*self.store.committed(), digests], place / "tables", self._declared))
            return write_page(place, journal, config=config, is_live=True).at(self.folder)

    def progress(self) -> FollowProgress:
        with engine() as database:
            add_parts(database, self.store.committed())
            row = database.execute(_PROGRESS).fetchone()
        assert row is not None, "a row of sums"
        events, transitions, first, last, problems = row
        known = 0 if first is None else last - first + 1
        return FollowProgress(events, transitions, first, last, max(0, known - events), problems)

    def stop(self) -> None:
        """Stop the query. The next `follow_journal` repeats an interrupted micro-batch. Blocks."""
        if self.query is not None:
            self.query.stop()

    def __enter__(self) -> JournalFollower:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


_PROGRESS: Final = """
    SELECT coalesce(sum("count"), 0)::BIGINT,
        (SELECT coalesce(sum("count"), 0)::BIGINT FROM part_transition_totals), min(first_seq), max(last_seq),
        (SELECT count(*) FROM part_problem)
    FROM part_event_totals
"""


def _digest(journal: Path, ends: Ends, rows: DataFrame, folder: Path) -> None:
    """Write the digest of a micro-batch, whose rows are numbers of segments."""
    numbers = sorted(row["segment"] for row in rows.collect())
    closed = summarize([segment_path(journal, number) for number in numbers])
    digest_segments(rows.sparkSession, journal, closed, folder, ends, fails_on_loss=True)


def _claim(root: Path, journal: str) -> None:
    """Record in a new folder which journal it follows, or check the record."""
    location = journal if "://" in journal else str(Path(journal).absolute())
    note = root / "journal.json"
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not note.exists():
            draft = note.with_suffix(".draft")
            draft.write_text(json.dumps({"format": _FORMAT, "journal": location}) + "\n", encoding="utf-8")
            draft.replace(note)
            return
        known = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DispatcherError(
            f"{note}: cannot be written or read ({error}). Name another folder for the report."
        ) from error
    for name, value, is_so in (
        ("journal", location, "follows the journal"),
        ("format", _FORMAT, "was begun by another version, with format"),
    ):
        if known.get(name) != value:
            raise ConfigError(
                f"{root}: {is_so} {known.get(name)}, not {value}. Name another folder for the report, or remove {root}."
            )
