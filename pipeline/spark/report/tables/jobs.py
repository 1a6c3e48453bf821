"""Jobs over a resource manager's journal: its applications and the kinds of its transitions.

Times are Unix ns in the clock of the run; names of durations carry their unit. Only `seq` decides what happened first:
in virtual time many events share a nanosecond. An event changes a machine's state at most once, so `seq` orders the
transitions of an entity without ties.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from dispatcher.util.units import NS_PER_S
from pipeline.spark.source.journal import OWNER_AUDIT, OWNER_OPERATIONS, PAYLOADS

APPLICATION_END_STATES = ("FINISHED", "FAILED", "KILLED")
KIND = ["machine", "from_state", "event_type", "to_state"]
"""The columns that identify a kind of transition."""
_FIRST_STATE = "NEW"


def first_payload(events: DataFrame, event_class: str, event_type: str) -> DataFrame:
    """One row per entity: its first event of this type, with the parsed payload.

    In:  journal events; `PAYLOADS` has the type.
    Out: entity string (unique), enqueued_at long, payload struct as in `PAYLOADS`, null if the event lacks a payload.
    """
    earlier = F.lag("seq").over(Window.partitionBy("entity").orderBy("seq"))
    payload = F.from_json("payload", PAYLOADS[event_class, event_type])
    return (
        events.where((F.col("event_class") == event_class) & (F.col("event_type") == event_type))
        .select("entity", "seq", "enqueued_at", "payload")
        .select("*", earlier.alias("earlier"))
        .where(F.col("earlier").isNull())
        .select("entity", "enqueued_at", payload.alias("payload"))
    )


def has_moved() -> Column:
    """Whether a journal transition is valid and changes the state."""
    return F.col("valid") & (F.col("from_state") != F.col("to_state"))


def event_totals(events: DataFrame) -> DataFrame:
    """One row: count, failed, first_seq, last_seq long, first_at (of an arrival), last_at long (of an end)."""
    return events.agg(
        F.count("*").alias("count"),
        F.count_if(F.col("outcome") == "failed").alias("failed"),
        F.min("seq").alias("first_seq"),
        F.max("seq").alias("last_seq"),
        F.min("enqueued_at").alias("first_at"),
        F.max("finished_at").alias("last_at"),
    )


def transition_totals(transitions: DataFrame) -> DataFrame:
    """One row: count, first_at, last_at long."""
    return transitions.agg(F.count("*").alias("count"), F.min("at").alias("first_at"), F.max("at").alias("last_at"))


def run_totals(of_events: DataFrame, of_transitions: DataFrame) -> DataFrame:
    """One row: the journal's totals, and the time that it covers.

    In:  the rows of `event_totals`, without seq, and `transition_totals`.
    Out: events, failed_events, transitions long, first_at, last_at long: from the first arrival of an event to the last
         end of a handling, widened to include all transitions, whose segments close at other times; both null without
         rows.
    """
    # One row on either side.
    return (
        of_events.alias("e")
        .join(of_transitions.alias("t"), how="cross")
        .select(
            F.col("e.count").alias("events"),
            F.col("e.failed").alias("failed_events"),
            F.col("t.count").alias("transitions"),
            F.least("e.first_at", "t.first_at").alias("first_at"),
            F.greatest("e.last_at", "t.last_at").alias("last_at"),
        )
    )


def owners(events: DataFrame) -> DataFrame:
    """One row per application in the audit lines of a log: its owner and its queue.

    In:  journal events, of a log.
    Out: id string (unique), owner string, owner_queue string (null if no line names it).
    """
    payload = F.from_json("payload", PAYLOADS[OWNER_AUDIT, OWNER_OPERATIONS[0]])
    lines = (
        events.where((F.col("event_class") == OWNER_AUDIT) & F.col("event_type").isin(*OWNER_OPERATIONS))
        .select("seq", payload.alias("payload"))
        .select("seq", F.col("payload.APPID").alias("id"), "payload.USER", "payload.QUEUENAME")
        .where(F.col("id").isNotNull())
    )
    first = {
        name: F.min_by(column, F.when(F.col(column).isNotNull(), F.col("seq")))
        for name, column in (("owner", "USER"), ("owner_queue", "QUEUENAME"))
    }
    return lines.groupBy("id").agg(*(value.alias(name) for name, value in first.items()))


def applications(events: DataFrame, transitions: DataFrame, intervals: DataFrame) -> DataFrame:
    """One row per application that was submitted or changed its state.

    In:  the journal's tables; `intervals` as from `container_intervals`.
    Out: id string (unique), name string, user string, queue string, final_state string (the current one if it has
         not ended), is_final boolean, submitted_at long, first_container_at long (null if it never got one),
         ended_at long (null if it has not ended), wait_s double >= 0 (submission to first container, null if
         either is). The submission's columns are null if the journal lacks it, except that user and queue are
         then taken from audit lines.
    """
    submissions = first_payload(events, "RMAppEventType", "START").select(
        F.col("entity").alias("id"), F.col("enqueued_at").alias("submitted_at"), "payload"
    )
    has_ended = has_moved() & F.col("to_state").isin(*APPLICATION_END_STATES)
    states = (
        transitions.where((F.col("machine") == "RMApp") & F.col("valid"))
        .groupBy(F.col("entity").alias("id"))
        .agg(
            F.max_by("to_state", "seq").alias("last_state"),
            F.min(F.when(has_ended, F.col("at"))).alias("ended_at"),
        )
    )
    first_containers = intervals.groupBy(F.col("application").alias("id")).agg(
        F.min("started_at").alias("first_container_at")
    )
    final_state = F.coalesce("last_state", F.lit(_FIRST_STATE))
    return (
        submissions.join(states, on="id", how="full")  # 1:1, either may be absent
        .join(first_containers, on="id", how="left")  # n:0..1, one row per application on the right
        .join(owners(events), on="id", how="left")  # n:0..1, one row per application on the right
        .select(
            "id",
            "payload.name",
            F.coalesce("payload.user", "owner").alias("user"),
            F.coalesce("payload.queue", "owner_queue").alias("queue"),
            final_state.alias("final_state"),
            final_state.isin(*APPLICATION_END_STATES).alias("is_final"),
            "submitted_at",
            "first_container_at",
            "ended_at",
            ((F.col("first_container_at") - F.col("submitted_at")) / NS_PER_S).alias("wait_s"),
        )
    )


def applications_by_final_state(applications: DataFrame) -> DataFrame:
    """One row per state in which applications are at the end of the journal.

    In:  rows of `applications`.
    Out: final_state string (unique), is_final boolean, applications long > 0.
    """
    return applications.groupBy("final_state", "is_final").agg(F.count("*").alias("applications"))


def waiting(applications: DataFrame, *keys: str) -> DataFrame:
    """One row per combination of keys: how long applications waited for their first container.

    In:  rows of `applications`; the keys are queue for `waiting_by_queue`, queue and user for `waiting_by_user`.
    Out: the keys string (unique together; null: not in the journal), applications long > 0, p50_s, p95_s, max_s double
         (exact, over applications with a container; null without any), never_placed long, begun_earlier long:
         applications whose submission is not in the journal, which are not counted in never_placed.
    """
    is_begun_earlier = F.col("submitted_at").isNull()
    return (
        applications.groupBy(*keys)
        .agg(
            F.count("*").alias("applications"),
            F.percentile("wait_s", [0.5, 0.95]).alias("waits"),
            F.max("wait_s").alias("max_s"),
            F.count_if(F.col("first_container_at").isNull() & ~is_begun_earlier).alias("never_placed"),
            F.count_if(is_begun_earlier).alias("begun_earlier"),
        )
        .select(
            *keys,
            "applications",
            F.col("waits")[0].alias("p50_s"),
            F.col("waits")[1].alias("p95_s"),
            "max_s",
            "never_placed",
            "begun_earlier",
        )
    )


def transition_counts(counts: DataFrame, declared: DataFrame) -> DataFrame:
    """One row per kind of transition that was made or refused.

    In:  machine, from_state, event_type, to_state string, valid boolean, count long; several rows may have the same
         keys. `declared`: machine, from_state, event_type, to_state string, with one row per post state.
    Out: machine, from_state, event_type, to_state string, valid boolean (unique together), count long > 0,
         declared boolean.
    """
    known = declared.select(*KIND, F.lit(True).alias("declared")).distinct()
    return (
        counts.groupBy(*KIND, "valid")
        .agg(F.sum("count").alias("count"))
        .join(F.broadcast(known), on=KIND, how="left")  # n:0..1, the declared kinds are distinct
        .select(*KIND, "count", "valid", F.coalesce("declared", F.lit(False)).alias("declared"))
    )


def mined_graph(counts: DataFrame, declared: DataFrame) -> DataFrame:
    """The transitions of the journal, and the declared but never made transitions of its machines.

    In:  rows of `transition_counts`; `declared` as there.
    Out: as `transition_counts`, with count 0 and valid true for a transition that was never made.
    """
    made = counts.where("valid").select(*KIND)
    never = (
        declared.select(*KIND)
        .distinct()
        .join(counts.select("machine").distinct(), on="machine", how="left_semi")
        .join(made, on=KIND, how="left_anti")
        .select(*KIND, F.lit(0).cast("long").alias("count"), F.lit(True).alias("valid"), F.lit(True).alias("declared"))
    )
    return counts.select(*KIND, "count", "valid", "declared").unionAll(never)


def unknown_transitions(counts: DataFrame) -> DataFrame:
    """One row per kind of transition that no machine declares, or that a machine refused.

    In, out: rows of `transition_counts`.
    """
    return counts.where(~F.col("declared") | ~F.col("valid")).select(*counts.columns)
