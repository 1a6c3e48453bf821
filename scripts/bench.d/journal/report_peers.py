"""What a report is measured beside, in processes of their own: decoding alone, and DuckDB on the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dispatcher.journal import EVENTS, TRANSITIONS
from pipeline.journal.scan import JournalPart, read_batches
from pipeline.report.digests import event_digest, transition_digest
from pipeline.report.digests.digest import DigestedPart
from pipeline.report.digests.transition_digest import Ends

_READS = ((EVENTS, event_digest.READS), (TRANSITIONS, transition_digest.READS))
_INTERVAL = """
    (started_at - (SELECT min(started_at) FROM events)) * 50
        // (SELECT max(started_at) - min(started_at) + 1 FROM events)
"""
_TYPE = "event_class, event_type"
_STAYS = """
    SELECT machine, to_state AS state, lead("at") OVER life - "at" AS stay_ns
    FROM transitions WHERE valid AND from_state <> to_state WINDOW life AS (PARTITION BY machine, entity ORDER BY seq)
"""
_APPLICATIONS = """
    SELECT e.entity AS id, any_value(e.payload ->> 'queue') AS queue, min(e.enqueued_at) AS submitted_at,
        any_value(t.to_state) AS final_state
    FROM events e JOIN (
        SELECT entity, arg_max(to_state, seq) AS to_state FROM transitions WHERE machine = 'RMApp' AND valid
        GROUP BY entity
    ) t ON e.entity = t.entity
    WHERE event_class = 'RMAppEventType' AND event_type = 'START' GROUP BY e.entity
"""
_FIRST_CONTAINERS = """
    SELECT e.payload ->> 'application' AS id, min(t."at") AS first_at
    FROM events e JOIN transitions t ON e.entity = t.entity AND t.to_state = 'ALLOCATED'
    WHERE event_class = 'RMContainerEventType' AND e.event_type = 'START' AND machine = 'RMContainer' GROUP BY ALL
"""
_TABLES = {
    "events_by_type": f"""
        SELECT {_TYPE}, count(*), count_if(outcome = 'failed'), avg(queue_ns), approx_quantile(queue_ns, 0.99),
            avg(handling_ns), approx_quantile(handling_ns, 0.99), sum(handling_ns)
        FROM events GROUP BY {_TYPE}
    """,
    "event_times": f"""
        SELECT {_INTERVAL} AS bucket, {_TYPE}, count(*), avg(queue_ns), max(queue_ns),
            approx_quantile(queue_ns, [0.5, 0.99]), avg(handling_ns), max(handling_ns),
            approx_quantile(handling_ns, [0.5, 0.99])
        FROM events GROUP BY ALL
    """,
    "queue_depth": """
        SELECT "at" // 60000000000 AS minute, sum(change), arg_max(depth, "at"), max(depth)
        FROM (
            SELECT "at", change, sum(change) OVER (ORDER BY "at" ROWS UNBOUNDED PRECEDING) AS depth
            FROM (
                SELECT "at", sum(change) AS change FROM (
                    SELECT enqueued_at AS "at", 1 AS change FROM events UNION ALL SELECT started_at, -1 FROM events
                ) GROUP BY "at"
            )
        ) GROUP BY minute
    """,
    "slowest_handlers": """
        SELECT seq, event_class, event_type, entity, handling_ns, started_at FROM events
        ORDER BY handling_ns DESC, seq LIMIT 100
    """,
    "transition_counts": """
        SELECT machine, from_state, event_type, to_state, valid, count(*) FROM transitions GROUP BY ALL
    """,
    "time_in_state": f"""
        SELECT machine, state, count(*), approx_quantile(stay_ns, [0.5, 0.95, 0.99]), max(stay_ns)
        FROM ({_STAYS}) WHERE stay_ns IS NOT NULL GROUP BY ALL
    """,
    "run_totals": """
        SELECT count(*), count_if(outcome = 'failed'), min(enqueued_at), max(finished_at),
            (SELECT count(*) FROM transitions)
        FROM events
    """,
    "applications_by_final_state": f"SELECT final_state, count(*) FROM ({_APPLICATIONS}) GROUP BY final_state",
    "waiting_by_queue": f"""
        SELECT queue, count(*), quantile_cont(first_at - submitted_at, [0.5, 0.95])
        FROM ({_APPLICATIONS}) LEFT JOIN ({_FIRST_CONTAINERS}) USING (id) GROUP BY queue
    """,
    "failures": """
        SELECT event_class, event_type, outcome, string_split(error, ':')[1], count(*), min(seq), max(seq)
        FROM events WHERE outcome <> 'handled' GROUP BY ALL
    """,
}
"""Of bounded size, as the report has them, or what comes nearest; percentiles are approximate here, too."""


def to_parquet(journal: Path, folder: Path) -> None:
    """Write the columns that a report reads to `folder`/events.parquet and `folder`/transitions.parquet."""
    import pyarrow.parquet as pq

    folder.mkdir()
    for table, columns in _READS:
        batches = read_batches(journal, table, columns)
        first = next(batches)
        with pq.ParquetWriter(folder / f"{table.name}.parquet", first.schema) as writer:
            writer.write_batch(first)
            for batch in batches:
                writer.write_batch(batch)


def duckdb_tables(folder: Path, threads: int) -> None:
    """Compute the ten tables from the files of `to_parquet`."""
    import duckdb  # here, because merely importing it makes the process print leak reports at its end

    with duckdb.connect(config={"threads": threads, "preserve_insertion_order": False}) as connection:
        for table, _ in _READS:
            file = str(folder / f"{table.name}.parquet").replace("'", "''")
            connection.execute(f"CREATE VIEW {table.name} AS FROM '{file}'")
        for query in _TABLES.values():
            connection.execute(query).fetchall()


def count_rows(journal: Path, parts: Sequence[JournalPart]) -> int:
    """Decode what a report reads of these parts, and do nothing with it."""
    nowhere = DigestedPart(journal, parts, Path(), 0, Ends(frozenset(), frozenset()), None)
    return sum(batch.num_rows for pair in nowhere.batches(print) for batch in pair)
