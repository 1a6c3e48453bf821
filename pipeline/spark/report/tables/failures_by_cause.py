"""Failures by cause: unhandled and failed events, and failed, refused or killed applications and attempts."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.spark.report.tables.jobs import has_moved
from pipeline.spark.source.journal import DIAGNOSTICS, PAYLOADS

_CAUSE = ["subject", "result", "event_class", "event_type", "from_state", "error_class", "reason"]
_MACHINES = ("RMApp", "RMAppAttempt")
_ENDS = tuple(kind for kind, fields in PAYLOADS.items() if fields == DIAGNOSTICS)
_BAD_ENDS = ("FAILED", "KILLED")
# In these states the end has been decided: a transition that leaves them is not the cause.
_IS_ENDING = ("FINAL_SAVING", "FINISHING", "KILLING")


def failures(events: DataFrame, transitions: DataFrame) -> DataFrame:
    """One row per cause: its count, its first and last occurrence, and an example.

    The cause of a failed event is its type and the class of the error. The cause of a failed or killed application or
    attempt is the event that decided its end, and the state in which it received that event. For an application that
    was refused, the scheduler's reason belongs to the cause; the diagnostics of other ends name single containers, so
    that only an example is shown.

    In:  the journal's tables; `events` may lack handled events, except those whose payload `PAYLOADS` has.
    Out: subject string ("event", or the machine), result string (failed or unregistered, or the end state),
         event_class string (null for machines), event_type string, from_state string (null for events), error_class
         string (null without an error), reason string (null unless an application was refused; all of these are unique
         together), count long > 0, first_seq, last_seq long (of the event, or of the end), example_entity,
         example_error string (of the first occurrence: the error, or the diagnostics of the end; nullable).
    """
    ends = _with_diagnostics(_bad_ends(transitions), events)
    each = _failed_events(events).unionByName(ends, allowMissingColumns=True)
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
            F.coalesce("cause.seq", "ended.seq").alias("cause_seq"),
            "entity",
        )
    )


def _with_diagnostics(ends: DataFrame, events: DataFrame) -> DataFrame:
    """Add `error`, the diagnostics of the event that decided the end, and `reason`, the same if that event refused."""
    of_kinds = [
        (F.col("event_class") == event_class) & (F.col("event_type") == event_type) for event_class, event_type in _ENDS
    ]
    said = events.where(reduce(Column.__or__, of_kinds)).select(
        F.col("seq").alias("cause_seq"), F.from_json("payload", DIAGNOSTICS)["diagnostics"].alias("error")
    )
    # A left join on a unique seq: each end stays one row.
    joined = ends.where(F.col("subject") == "RMApp").join(said, "cause_seq", "left")
    refused = F.when(F.col("event_type") == "APP_REJECTED", F.col("error"))
    others = ends.where(F.col("subject") != "RMApp")
    return joined.withColumn("reason", refused).unionByName(others, allowMissingColumns=True).drop("cause_seq")
