"""`dispatcher report --follow`: the report's tables kept up to date while the journal is written.

Two streaming queries read the journal's closed segments, one per table. Each micro-batch leaves its part of what the
report needs below OUTPUT/follow, exactly once: counts and histograms by window of time, the first event of each kind
about an entity, and every move of an entity with the stay that it ended. From those the report's tables are made as
often as one likes, at a cost that goes by the entities in the journal and not by its events.

    OUTPUT/follow/journal.json     what is followed
    OUTPUT/follow/checkpoints      Spark's, one per query
    OUTPUT/follow/events           what the queries keep of the journal's events,
    OUTPUT/follow/transitions      and of its transitions
    OUTPUT/tables                  the report's tables, as `write_tables` last made them

Whatever is killed, and when: started again on the same OUTPUT, it goes on where it was, and at the journal's end the
tables are those that the batch jobs make of it.

Event time is the place in the journal: one event is one millisecond of Spark's watermark. The run's own clock is no use
for that. In virtual time it jumps by hours, and a wall clock is set back at times; a watermark on it would drop good
rows for being late. By place, nothing that comes in order is ever late, and what comes twice within the horizon is
taken once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from dispatcher.errors import ConfigError, DispatcherError
from dispatcher.journal.format.schema import EVENTS, TRANSITIONS
from pipeline.spark.report.digests.transition_digest import Ends
from pipeline.spark.report.follow.follow_digests import (
    EVENT_COLUMNS,
    digest_events,
    digest_transitions,
    merge_events,
    merge_transitions,
)
from pipeline.spark.report.follow.follow_stays import SLOTS, Operator, has_transform_with_state, told_schema, with_stays
from pipeline.spark.report.follow.follow_store import BatchStore
from pipeline.spark.report.follow.follow_tables import write_followed
from pipeline.spark.report.tables.jobs import KIND
from pipeline.spark.source.journal import journal_failure, stream_journal, table_schema

HORIZON = 1_000_000
"""By default, how many events a row may come late, or again."""

_FORMAT = 1
_SETTINGS = {
    # transformWithState needs this store; the other state is quicker in it, too.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # A micro-batch writes what has changed, not its whole state.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Without rows there is nothing to keep: no batch only to forget what is older than the watermark.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}


class FollowError(DispatcherError):
    """A journal cannot be followed any further. One line, fit to be shown to a user as it is."""


@dataclass(frozen=True, slots=True)
class FollowProgress:
    """How far the tables that were last written go."""

    events: int
    transitions: int
    first_seq: int | None
    last_seq: int | None
    missing: int
    """Events between the first and the last that were not counted: the journal lacks them, or they came later than
    the horizon allows."""


def follow_journal(
    spark: SparkSession,
    journal: str | Path,
    output: str | Path,
    *,
    until_idle: bool = False,
    trigger_s: float = 10.0,
    segments_per_batch: int = 16,
    horizon: int = HORIZON,
    declared: DataFrame | None = None,
) -> JournalFollower:
    """Start to follow the journal, or go on with it: returns at once, while Spark's threads run the queries.

    until_idle: end when all segments that are closed by now are read; otherwise go on until stopped.
    trigger_s: look for new segments as often as this.
    segments_per_batch: at most this many in one micro-batch.
    horizon: how many events a row may come after its place, or again. A row that comes later yet is dropped, and the
        event counted as missing.
    declared: the transitions that the machines declare, as `transition_counts` takes them; by default those of the
        resource manager's machines. Entities in a state that nothing leaves are forgotten.

    The functions that run per micro-batch travel by name: with Spark Connect, the server needs this package, and
    server and client need to see the same `output`.

    Where there is no journal yet, it waits for one.

    Raises:
        ConfigError: `output` follows another journal, or was begun by another version.
        DispatcherError: `output` cannot be written.
    """
    folder = Path(output).absolute()
    operator = _claim(folder / "follow", str(journal))
    if declared is None:
        from pipeline.spark.report.report import declared_by_resource_manager

        declared = declared_by_resource_manager(spark)
    trigger: dict[str, Any] = {"availableNow": True} if until_idle else {"processingTime": f"{trigger_s} seconds"}
    follower = JournalFollower(spark, folder, declared)
    read = stream_journal(
        spark, journal, columns={EVENTS.name: EVENT_COLUMNS}, max_segments_per_trigger=segments_per_batch
    )
    # One event moves a machine at most once; it can be refused more often.
    transitions = _once(read.transitions, [name for name in read.transitions.columns if name != "at"], horizon)
    streams = {
        "events": _once(read.events, ["dispatcher", "seq"], horizon),
        "transitions": with_stays(transitions, _ends(declared), operator),
    }
    with _settings(spark):
        try:
            for name, stream in streams.items():
                store = follower.stores[name]
                writer = stream.writeStream.foreachBatch(store).trigger(**trigger)
                follower.queries[name] = writer.option("checkpointLocation", str(store.checkpoint)).start()
        except BaseException:
            follower.stop()
            raise
    return follower


class JournalFollower:
    """The running queries of `follow_journal`, and the tables that they keep. One thread uses it.

    As a context manager, it stops the queries on the way out.
    """

    def __init__(self, spark: SparkSession, folder: Path, declared: DataFrame) -> None:
        self._spark = spark
        self._declared = declared
        self.folder = folder
        self.queries: dict[str, StreamingQuery] = {}
        """By the journal's table that they read: events and transitions."""
        events = table_schema(EVENTS, EVENT_COLUMNS)
        transitions = told_schema(table_schema(TRANSITIONS))
        kept, checkpoints = folder / "follow", folder / "follow" / "checkpoints"
        self.stores = {
            "events": BatchStore(kept / "events", checkpoints / "events", events, digest_events, merge_events),
            "transitions": BatchStore(
                kept / "transitions", checkpoints / "transitions", transitions, digest_transitions, merge_transitions
            ),
        }

    def wait(self, timeout_s: float) -> bool:
        """Wait until both queries have ended, at most this long; whether they have.

        Raises:
            FollowError: a query has failed. The other one is stopped.
        """
        deadline_s = time.monotonic() + timeout_s
        try:
            # The first wait takes the time; those after it find out whether one has failed meanwhile.
            ended = [_has_ended(query, deadline_s - time.monotonic()) for query in self.queries.values()]
        except StreamingQueryException as error:
            self.stop()
            what = journal_failure(error) or f"the journal cannot be followed: {_headline(error)}"
            raise FollowError(what) from error
        return all(ended)

    def write_tables(self) -> Mapping[str, DataFrame]:
        """Make the report's tables of all that is committed by now, below OUTPUT/tables; blocks until they are written.

        The two queries run apart, so while they do, one table can know of a segment that another does not yet.
        """
        events, transitions = (self.stores[name].read(self._spark) for name in ("events", "transitions"))
        return write_followed(self._spark, events, transitions, self.folder / "tables", self._declared)

    def progress(self) -> FollowProgress:
        """How far the committed batches go; runs small jobs."""
        is_total = F.col("kind") == "totals"
        [events] = self.stores["events"].read(self._spark).where(is_total).collect()
        [transitions] = self.stores["transitions"].read(self._spark).where(is_total).collect()
        first, last = events["first_seq"], events["last_seq"]
        known = 0 if first is None else last - first + 1
        return FollowProgress(events["count"], transitions["count"], first, last, max(0, known - events["count"]))

    def stop(self) -> None:
        """Stop the queries; a micro-batch that is cut off is run again by the next `follow_journal`. Blocks."""
        for query in self.queries.values():
            query.stop()

    def __enter__(self) -> JournalFollower:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _once(rows: DataFrame, key: list[str], horizon: int) -> DataFrame:
    """Each row once, however often it comes within the horizon."""
    return (
        rows.withColumn("place", F.timestamp_millis("seq"))
        .withWatermark("place", f"{horizon} milliseconds")
        .dropDuplicatesWithinWatermark(key)
        .drop("place")
    )


def _ends(declared: DataFrame) -> frozenset[tuple[str, str]]:
    return Ends.of([tuple(row) for row in declared.select(*KIND).distinct().collect()]).final


def _claim(root: Path, journal: str) -> Operator:
    """Note in a new folder what is followed in it, or compare with the note; gives what keeps the state."""
    location = journal if "://" in journal else str(Path(journal).absolute())
    note = root / "journal.json"
    operator: Operator = "transformWithState" if has_transform_with_state() else "applyInPandasWithState"
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not note.exists():
            told = {"format": _FORMAT, "journal": location, "state": operator}
            draft = note.with_suffix(".draft")
            draft.write_text(json.dumps(told) + "\n", encoding="utf-8")
            draft.replace(note)
            return operator
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
    if known["state"] == "transformWithState" != operator:
        raise ConfigError(f"{root}: was begun with transformWithState, which needs protobuf. Run: pip install protobuf")
    return cast(Operator, known["state"])


@contextmanager
def _settings(spark: SparkSession) -> Iterator[None]:
    """Spark's settings that a query takes along from its start; as they were afterwards."""
    # More tasks than slots would have nothing to do.
    tasks = min(SLOTS, int(spark.conf.get("spark.sql.shuffle.partitions", str(SLOTS)) or SLOTS))
    settings = _SETTINGS | {"spark.sql.shuffle.partitions": str(tasks)}
    before: dict[str, str | None] = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, known in before.items():
            if known is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, known)


def _has_ended(query: StreamingQuery, timeout_s: float) -> bool:
    # Spark wants more than nothing to wait for; fractions of a second are all right, whatever its annotation says.
    return bool(query.awaitTermination(max(0.001, timeout_s)))  # type: ignore[arg-type]


def _headline(error: StreamingQueryException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
