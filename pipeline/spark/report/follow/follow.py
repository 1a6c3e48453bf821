"""`dispatcher report --follow`: the report's tables kept up to date while the journal is written.

Two streaming queries read the journal's closed segments, one per table. Each micro-batch adds its digest below
OUTPUT/follow exactly once: counts and histograms by time bucket, the events that other tables need, and changes of
state with the stays that they ended. The report's tables can be computed from the digests at any time, at a cost that
depends on the number of entities and not of events.

    OUTPUT/follow/journal.json     the followed journal
    OUTPUT/follow/checkpoints      Spark's checkpoints, one per query
    OUTPUT/follow/events           digests of events
    OUTPUT/follow/transitions      digests of transitions
    OUTPUT/tables                  the report's tables, as of the last `write_tables`

After a kill at any point, a restart on the same OUTPUT continues where it stopped; at the journal's end the tables
equal the batch jobs' tables.

Event time is the position in the journal: one event is one millisecond of Spark's watermark. The run's own clock is not
suitable: virtual time jumps by hours, and a wall clock may be set back, so a watermark on it would drop good rows as
late. By position, rows that arrive in order are never late, and a row that repeats within the horizon is counted once.
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
from pipeline.spark.report.follow.follow_digests import (
    EVENT_COLUMNS,
    digest_events,
    digest_transitions,
    merge_events,
    merge_transitions,
    write_followed,
)
from pipeline.spark.report.follow.follow_stays import (
    SLOTS,
    Operator,
    has_transform_with_state,
    stays_schema,
    with_stays,
)
from pipeline.spark.report.follow.follow_store import BatchStore
from pipeline.spark.report.tables.report_tables import ends_of
from pipeline.spark.source.journal import journal_failure, stream_journal, table_schema

HORIZON = 1_000_000
"""Default number of events by which a row may be late or repeated."""

_FORMAT = 1
_SETTINGS = {
    # transformWithState needs this store, and the other state operators are faster with it.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # A micro-batch writes its changes, not the whole state.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # No micro-batch without rows, only to drop state that is older than the watermark.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}


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
    """Events between the first and the last that were not counted: absent from the journal, or later than the horizon
    allows."""


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
    """Start or continue to follow the journal. Returns at once, while Spark's threads run the queries.

    until_idle: end once all currently closed segments are read; otherwise run until stopped.
    trigger_s: interval between checks for new segments.
    segments_per_batch: most segments in one micro-batch.
    horizon: number of events by which a row may be late or repeated. A later row is dropped, and its event counted as
        missing.
    declared: the transitions that the machines declare, as for `transition_counts`; default: the resource manager's.
        Entities in a final state are forgotten.

    The functions that run per micro-batch are pickled by name: with Spark Connect, the server needs this package, and
    server and client must see the same `output`. If the journal does not exist yet, the queries wait for it.

    Raises:
        ConfigError: `output` follows another journal, or was created by an incompatible version.
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
    # An event causes at most one transition of an entity, but can be refused more often.
    transitions = _once(read.transitions, [name for name in read.transitions.columns if name != "at"], horizon)
    streams = {
        "events": _once(read.events, ["dispatcher", "seq"], horizon),
        "transitions": with_stays(transitions, ends_of(declared).final, operator),
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
    """The running queries of `follow_journal`, and their tables. For one thread.

    As a context manager, it stops the queries on exit.
    """

    def __init__(self, spark: SparkSession, folder: Path, declared: DataFrame) -> None:
        self._spark = spark
        self._declared = declared
        self.folder = folder
        self.queries: dict[str, StreamingQuery] = {}
        """By the journal's table that they read, events or transitions."""
        events = table_schema(EVENTS.name, EVENT_COLUMNS)
        transitions = stays_schema(table_schema(TRANSITIONS.name))
        steps = {
            "events": (events, digest_events, merge_events),
            "transitions": (transitions, digest_transitions, merge_transitions),
        }
        kept = folder / "follow"
        self.stores = {name: BatchStore(kept / name, kept / "checkpoints" / name, *of) for name, of in steps.items()}

    def wait(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` until both queries have ended; returns whether they have.

        Raises:
            FollowError: a query has failed. The other query is stopped.
        """
        deadline_s = time.monotonic() + timeout_s
        try:
            # The first wait may use up the time; the second then only checks its query for failure.
            ended = [_has_ended(query, deadline_s - time.monotonic()) for query in self.queries.values()]
        except StreamingQueryException as error:
            self.stop()
            what = journal_failure(error) or f"the journal cannot be followed: {_headline(error)}"
            raise FollowError(what) from error
        return all(ended)

    def write_tables(self) -> Mapping[str, DataFrame]:
        """Compute the report's tables from all committed batches and write them below OUTPUT/tables. Blocks.

        The two queries are independent, so while they run, one table can include a segment that another still lacks.
        """
        events, transitions = (self.stores[name].read(self._spark) for name in ("events", "transitions"))
        return write_followed(self._spark, events, transitions, self.folder / "tables", self._declared)

    def progress(self) -> FollowProgress:
        """How much of the journal the committed batches cover; runs small jobs."""
        is_total = F.col("kind") == "totals"
        [events] = self.stores["events"].read(self._spark).where(is_total).collect()
        [transitions] = self.stores["transitions"].read(self._spark).where(is_total).collect()
        first, last = events["first_seq"], events["last_seq"]
        known = 0 if first is None else last - first + 1
        return FollowProgress(events["count"], transitions["count"], first, last, max(0, known - events["count"]))

    def stop(self) -> None:
        """Stop the queries. The next `follow_journal` repeats an interrupted micro-batch. Blocks."""
        for query in self.queries.values():
            query.stop()

    def __enter__(self) -> JournalFollower:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _once(rows: DataFrame, key: list[str], horizon: int) -> DataFrame:
    """Drop repetitions of a row within the horizon."""
    return (
        rows.withColumn("place", F.timestamp_millis("seq"))
        .withWatermark("place", f"{horizon} milliseconds")
        .dropDuplicatesWithinWatermark(key)
        .drop("place")
    )


def _claim(root: Path, journal: str) -> Operator:
    """Record in a new folder which journal it follows, or check the record; returns the stateful operator to use."""
    location = journal if "://" in journal else str(Path(journal).absolute())
    note = root / "journal.json"
    operator: Operator = "transformWithState" if has_transform_with_state() else "applyInPandasWithState"
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not note.exists():
            record = {"format": _FORMAT, "journal": location, "state": operator}
            draft = note.with_suffix(".draft")
            draft.write_text(json.dumps(record) + "\n", encoding="utf-8")
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
    """Set the Spark settings that a query captures at its start, and restore them afterwards."""
    # Tasks beyond the number of slots would be idle.
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
    # Spark requires a positive timeout, and accepts fractions of a second despite its annotation.
    return bool(query.awaitTermination(max(0.001, timeout_s)))  # type: ignore[arg-type]


def _headline(error: StreamingQueryException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
