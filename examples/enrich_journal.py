"""Enrich a stream of the dispatcher's journal: each allocated container gets facts about its node.

    scripts/run                                                      # makes a journal: runs/.../journal
    .venv/bin/python examples/enrich_journal.py runs/.../journal     # enriches it
    .venv/bin/python examples/enrich_journal.py runs/.../journal     # again: only new containers

The facts are in a table of an SQLite file, `--database`. Without one, the example first copies the nodes in the journal
to `nodes.db`, so that it runs on its own. The stream looks up many keys per query, runs several queries at a time, and
caches the rows. Each row is in the output exactly once, even if a run is killed.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from dispatcher import DispatcherError, StopSignals
from dispatcher.journal import EVENTS, check_journal
from pipeline.lookup import PartialCache, SqliteTable
from pipeline.spark import (
    call_metrics,
    format_call_metrics,
    journal_failure,
    lookup_join,
    read_journal,
    spark_session,
    stream_journal,
    task_failure,
)
from pipeline.streaming import CallMetrics

METRICS = "node facts"
SEGMENTS_AT_ONCE = 4  # of a micro-batch
USER_ERROR = 2

CONTAINER = "application string, node string, kind string, memory_mb long, vcores_milli long, gpus long"
NODE = "rack string, memory_mb long, vcores_milli long, gpus long, gpu_model string"
STRICT = {"mode": "FAILFAST"}  # fail instead of leaving rows out


def stream_containers(spark: SparkSession, journal: Path) -> DataFrame:
    """One row per allocated container, from the journal's closed segments. A damaged segment fails the query.

    Out: container string, allocated_at timestamp, and the columns of CONTAINER.
    """
    columns = {EVENTS.name: ("event_class", "event_type", "entity", "finished_at", "payload")}
    events = stream_journal(
        spark, journal, columns=columns, mode="FAILFAST", max_segments_per_trigger=SEGMENTS_AT_ONCE
    ).events
    allocated = events.where("event_class = 'RMContainerEventType' AND event_type = 'START'").select(
        F.col("entity").alias("container"),
        F.timestamp_micros(F.expr("finished_at div 1000")).alias("allocated_at"),
        F.from_json("payload", CONTAINER, STRICT).alias("payload"),
    )
    return allocated.select("container", "allocated_at", "payload.*")


def make_node_table(spark: SparkSession, journal: Path, database: Path) -> int:
    """Copy the journal's nodes to the table `nodes` of an SQLite file. Returns their number."""
    started = read_journal(spark, journal).events.where("event_class = 'RMNodeEventType' AND event_type = 'STARTED'")
    facts = started.select("entity", F.from_json("payload", NODE, STRICT).alias("payload")).select(
        "entity", "payload.*"
    )
    nodes = [tuple(row) for row in facts.collect()]
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS nodes (node TEXT PRIMARY KEY, rack TEXT, memory_mb INTEGER, "
            "vcores_milli INTEGER, gpus INTEGER, gpu_model TEXT)"
        )
        connection.executemany("INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?, ?, ?)", nodes)
    return len(nodes)


def with_node_facts(containers: DataFrame, table: SqliteTable, key: str) -> DataFrame:
    """The containers with the table's other columns, which are null if the table lacks the node."""
    return lookup_join(
        containers,
        table,
        {"node": key},  # our column: the table's
        how="left",
        suffix="_of_node",  # for columns that the containers also have, such as memory_mb
        cache=PartialCache(max_rows=10_000, expire_after_write_s=60),
        timeout=30,
        metrics=METRICS,
    )


def start_query(enriched: DataFrame, output: Path, every_s: float | None) -> StreamingQuery:
    """Write the rows as Parquet and stop; with `every_s`, keep writing new rows."""
    writer = (
        enriched.writeStream.format("parquet")
        .queryName("enrich_journal")
        .option("checkpointLocation", str(output / "checkpoint"))
        .option("path", str(output / "containers"))
    )
    if every_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{round(every_s * 1000)} milliseconds").start()


def wait_for(query: StreamingQuery) -> None:
    """Wait until the query ends or a signal stops it. Raises the query's error."""
    try:
        with StopSignals() as signals:
            while query.isActive and not signals.wait(0.2):
                pass
    finally:
        query.stop()
    query.awaitTermination()


def print_metrics(query: StreamingQuery) -> None:
    """Print the counts of calls from the query's progress.

    Spark keeps the progress of the last 100 micro-batches. For long runs and for Prometheus use `CallMetricsListener`.
    """
    batches = [call_metrics(progress, METRICS) for progress in query.recentProgress if progress.numInputRows]
    if not batches:
        print("Nothing new: no segment was closed since the last run.")
        return
    total = CallMetrics()
    for batch in batches:
        total.merge(batch)
    print(f"In {len(batches)} micro-batch(es):")
    print(format_call_metrics({METRICS: total}))


def print_output(written: DataFrame, facts: Sequence[str]) -> None:
    """Print some rows and the counts of all runs' output. `facts`: the columns of the table."""
    written.orderBy("allocated_at", "container").select("container", "memory_mb", "node", *facts).show(5, False)
    is_unknown = F.coalesce(*(F.col(name).cast("string") for name in facts)).isNull()
    number, unknown = written.select(F.count("*"), F.count_if(is_unknown)).collect()[0]
    print(f"{number:,} containers in all, {unknown:,} of them on nodes that the table does not know")


def run(arguments: argparse.Namespace, spark: SparkSession) -> None:
    journal: Path = arguments.journal.absolute()
    output: Path = (arguments.output or journal.parent / "enriched").absolute()
    database: Path | None = arguments.database
    output.mkdir(parents=True, exist_ok=True)
    if database is None:
        database = output / "nodes.db"
        print(f"Put {make_node_table(spark, journal, database):,} nodes of the journal into {database}")
    containers = stream_containers(spark, journal)
    enriched = with_node_facts(containers, SqliteTable(database, arguments.table), arguments.key)
    query = start_query(enriched, output, arguments.follow)
    if arguments.follow is not None:
        print(f"Polling for new segments every {arguments.follow:g} s, until Ctrl-C.", flush=True)
    wait_for(query)
    print_metrics(query)
    written = spark.read.schema(enriched.schema).parquet(str(output / "containers"))
    print_output(written, enriched.columns[len(containers.columns) :])
    print(f"Output: {output / 'containers'}")


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Enrich the containers in a journal with facts about their nodes, as a stream. "
        "Another run continues where the last one ended."
    )
    parser.add_argument("journal", type=Path, help="folder of the journal, which scripts/run prints at its end")
    parser.add_argument("--database", type=Path, help="SQLite file with the facts (default: made from the journal)")
    parser.add_argument("--table", default="nodes", help="table or view in it (default: %(default)s)")
    parser.add_argument("--key", default="node", help="its column with the node's id (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="folder for Parquet and checkpoint (default: beside the journal)")
    parser.add_argument(
        "--follow", type=seconds, metavar="SECONDS", help="run until Ctrl-C, and poll for new segments every SECONDS"
    )
    parser.add_argument("--master", default="local[*]", help="where Spark runs (default: %(default)s)")
    return parser.parse_args(argv)


def seconds(text: str) -> float:
    number = float(text)
    if not 0.001 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds above 0")
    return number


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Run with `spark`, which stays open, or with a new session. Returns the exit code."""
    arguments = parse_arguments(argv)
    try:
        check_journal(arguments.journal)  # before Spark starts, which takes seconds
        # Spark logs a failure as pages of JVM frames; the relevant lines are printed below.
        quiet = {"spark.log.level": "OFF"}
        own: AbstractContextManager[SparkSession] = (
            spark_session(arguments.master, "enrich journal", quiet) if spark is None else nullcontext(spark)
        )
        with own as session:
            run(arguments, session)
    except (DispatcherError, sqlite3.Error) as error:
        print(f"enrich_journal: {error}", file=sys.stderr)
        return USER_ERROR
    except PySparkException as error:
        reason = journal_failure(error) or task_failure(error) or str(error).splitlines()[0]
        print(f"enrich_journal: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
