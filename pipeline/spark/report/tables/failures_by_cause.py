"""Failures by cause: unhandled and failed events, and failed or killed applications and attempts."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.spark.report.tables.jobs import has_moved

_CAUSE = ["subject", "result", "event_class", "event_type", "from_state", "error_class"]
_MACHINES = ("RMApp", "RMAppAttempt")
_BAD_ENDS = ("FAILED", "KILLED")
# In these states the end has been decided: a transition that leaves them is not the cause.
_IS_ENDING = ("FINAL_SAVING", "FINISHING", "KILLING")


def failures(events: DataFrame, transitions: DataFrame) -> DataFrame:
    """One row per cause: its count, its first and last occurrence, and an example.

    The cause of a failed event is its type and the class of the error. The cause of a failed or killed application or
    attempt is the event that decided its end, and the state in which it received that event.

    In:  the journal's tables; `events` may lack handled events.
    Out: subject string ("event", or the machine), result string (failed or unregistered, or the end state),
         event_class string (null for machines), event_type string, from_state string (null for events), error_class
         string (null without an error; all of these are unique together), count long > 0, first_seq, last_seq long (of
         the event, or of the end), example_entity, example_error string (of the first occurrence; nullable).
    """
    each = _failed_events(events).unionByName(_bad_ends(transitions), allowMissingColumns=True)
    # Structs compare by their first field, seq.
    first = F.min(F.struct("seq", "entity", "error")).alias("first")
    return (
        each.groupBy(*_CAUSE)
        .agg(F.count("*").alias("count"), first, F.max("seq").alias("last_seq"))
        .select(
            *_CAUSE,
            "count",
            F.col("first.seq").alias("first_seq"),
            "last_seq",
            F.col("first.entity").alias("example_entity"),
            F.col("first.error").alias("example_error"),
        )
    )


def _failed_events(events: DataFrame) -> DataFrame:
    return events.where(F.col("outcome") != "handled").select(
        F.lit("event").alias("subject"),
        F.col("outcome").alias("result"),
        "event_class",
        "event_type",
        F.substring_index("error", ":", 1).alias("error_class"),
        "seq",
        "entity",
        "error",
    )


def _bad_ends(transitions: DataFrame) -> DataFrame:
    decides = ~F.col("from_state").isin(*_IS_ENDING)
    ended = F.max(F.when(F.col("to_state").isin(*_BAD_ENDS), F.struct("seq", "to_state", "from_state", "event_type")))
    cause = F.max(F.when(decides, F.struct("seq", "from_state", "event_type")))
    return (
        transitions.where(F.col("machine").isin(*_MACHINES) & has_moved())
        .groupBy("machine", "entity")
        .agg(ended.alias("ended"), cause.alias("cause"))
        .where(F.col("ended").isNotNull())
        .select(
            F.col("machine").alias("subject"),
            F.col("ended.to_state").alias("result"),
            F.coalesce("cause.event_type", "ended.event_type").alias("event_type"),
            F.coalesce("cause.from_state", "ended.from_state").alias("from_state"),
            F.col("ended.seq").alias("seq"),
            "entity",
        )
    )
