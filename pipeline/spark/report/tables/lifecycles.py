"""Jobs over the life cycles of entities: time in each state, outliers, and the phases of applications."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from dispatcher.util.units import NS_PER_S
from pipeline.spark.report.digests.buckets import grouped, summed_up
from pipeline.spark.report.digests.transition_digest import Ends
from pipeline.spark.report.phases import PHASES
from pipeline.spark.report.tables.jobs import APPLICATION_END_STATES, has_moved

STRETCH = ["machine", "entity", "from_state", "seq", "at", "to_state", "last_seq", "last_at"]
_STAY = ["machine", "entity", "state", "seq", "from_at", "stay_ns"]
_PATH = ["application", "final_state", "is_final", "submitted_at", "ended_at"]
_MASTER_IS_NOT_PLACED = ("SUBMITTED", "SCHEDULED")
_IS_ENDING = ("FINAL_SAVING", "FINISHING", "KILLING")


def stay_groups(stays: DataFrame) -> DataFrame:
    """Histograms of stays, the input of `time_in_state`.

    In:  rows of `crossing_stays`.
    Out: machine, state string, log_bucket int (unique together), count long > 0, total, least, greatest long (ns).
    """
    return grouped(stays, ["machine", "state"], "stay_ns")


def time_in_state(groups: DataFrame) -> DataFrame:
    """One row per machine and state: the durations of its completed stays.

    In:  rows of `stay_groups`; several rows may have the same keys.
    Out: machine string, state string (unique together), count long > 0, p50_s, p95_s, p99_s, max_s double
         >= 0; percentiles off by 1.6 % at most, max_s exact.
    """
    names = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99}
    return summed_up(groups, ["machine", "state"], names).select(
        "machine",
        "state",
        "count",
        *((F.col(name) / NS_PER_S).alias(name) for name in names),
        (F.col("greatest") / NS_PER_S).alias("max_s"),
    )


def stretches(transitions: DataFrame) -> DataFrame:
    """One row per change of state: the shortest stretch of an entity's life.

    In:  journal transitions.
    Out: machine, entity string, from_state string, seq, at long (of the stretch's first change), to_state string,
         last_seq, last_at long (of its last change).
    """
    return transitions.where(has_moved()).select(
        *STRETCH[:-2], F.col("seq").alias("last_seq"), F.col("at").alias("last_at")
    )


def joined_stretches(stretches: DataFrame) -> DataFrame:
    """One row per entity: from the first change of its stretches to the last. In, out: as of `stretches`."""
    first, last = F.struct("seq", "at", "from_state"), F.struct("last_seq", "last_at", "to_state")
    return (
        stretches.groupBy("machine", "entity")
        .agg(F.min(first).alias("first"), F.max(last).alias("last"))
        .select("machine", "entity", "first.*", "last.*")
        .select(*STRETCH)
    )


def crossing_stays(stretches: DataFrame, ends: Ends) -> DataFrame:
    """One row per stay between consecutive stretches of an entity's life, except in final states.

    In:  rows as of `stretches`, disjoint for each entity.
    Out: machine, entity, state string, seq long (of entering it; unique together with machine and entity), from_at
         long, stay_ns long >= 0. Omits stays whose beginning is not in the journal, such as the stay in NEW.
    """
    before = Window.partitionBy("machine", "entity").orderBy("seq").rowsBetween(-1, -1)
    return (
        stretches.select(
            "machine",
            "entity",
            F.col("from_state").alias("state"),
            F.lag("to_state").over(before).alias("entered"),
            F.lag("last_seq").over(before).alias("seq"),
            F.lag("last_at").over(before).alias("from_at"),
            "at",
        )
        # A host that registers again is a new machine with the old id: no transition led to its NEW.
        .where((F.col("entered") == F.col("state")) & ~ends.is_final(F.col("machine"), F.col("state")))
        .select(*_STAY[:-1], F.greatest(F.lit(0), F.col("at") - F.col("from_at")).alias("stay_ns"))
    )


def open_stays(stretches: DataFrame, ends: Ends, end_at: int) -> DataFrame:
    """One row per entity that is not in a final state at the end of the journal, `end_at` (Unix ns).

    In:  rows as of `stretches`, one or several per entity.
    Out: as of `crossing_stays`, with the stay until `end_at`.
    """
    last = F.max(F.struct("last_seq", "last_at", "to_state")).alias("last")
    return (
        stretches.groupBy("machine", "entity")
        .agg(last)
        .where(~ends.is_final(F.col("machine"), F.col("last.to_state")))
        .select(
            "machine",
            "entity",
            F.col("last.to_state").alias("state"),
            F.col("last.last_seq").alias("seq"),
            F.col("last.last_at").alias("from_at"),
            F.greatest(F.lit(0), F.lit(end_at) - F.col("last.last_at")).alias("stay_ns"),
        )
    )


def stuck_entities(ended: DataFrame, still_open: DataFrame, times: DataFrame, number: int = 100) -> DataFrame:
    """The `number` stays, completed or open, that exceed the 99th percentile of their state by the most time.

    A state without a completed stay has no percentile.

    In:  `ended`: rows as of `crossing_stays`, at least the longest of each state; `still_open`: rows of `open_stays`;
         `times`: rows of `time_in_state`.
    Out: machine, entity, state string, from_at long, stay_s, p99_s double, is_open boolean; at most `number` rows.
    """
    each = ended.select(*_STAY, F.lit(False).alias("is_open")).unionAll(
        still_open.select(*_STAY, F.lit(True).alias("is_open"))
    )
    limits = times.select("machine", "state", "p99_s")
    stay_s = (F.col("stay_ns") / NS_PER_S).alias("stay_s")
    return (
        each.join(F.broadcast(limits), on=["machine", "state"], how="inner")  # n:0..1, one limit per state
        .select("machine", "entity", "state", "seq", "from_at", stay_s, "p99_s", "is_open")
        .where(F.col("stay_s") > F.col("p99_s"))
        .orderBy(F.desc(F.col("stay_s") - F.col("p99_s")), "machine", "entity", "seq")
        .limit(number)
        .select("machine", "entity", "state", "from_at", "stay_s", "p99_s", "is_open")
    )


def _visits(transitions: DataFrame, machine: str, final: Sequence[str]) -> DataFrame:
    """The stays of one machine's entities, except in final states: entity, seq, state, from_at, to_at."""
    after = Window.partitionBy("entity").orderBy("seq").rowsBetween(1, 1)
    left_at = F.when(F.lead("from_state").over(after) == F.col("to_state"), F.lead("at").over(after))
    return (
        transitions.where((F.col("machine") == machine) & has_moved())
        .select("entity", "seq", F.col("to_state").alias("state"), F.col("at").alias("from_at"), left_at.alias("to_at"))
        .where(~F.col("state").isin(*final))
    )


def application_timeline(transitions: DataFrame) -> DataFrame:
    """One row per stay of an application in a state, except final ones.

    In:  journal transitions of any machines.
    Out: application string, seq long (of entering the state; unique), state string, from_at long, to_at long (null if
         the stay has not ended).
    """
    return _visits(transitions, "RMApp", APPLICATION_END_STATES).select(
        F.col("entity").alias("application"), "seq", "state", "from_at", "to_at"
    )


def critical_paths(transitions: DataFrame, applications: DataFrame, end_at: int) -> DataFrame:
    """One row per application: its time from submission to the end, divided into phases that do not overlap.

    saving: until it is stored and can be admitted, including its START's time in the queue; admission: until the
    scheduler accepts it; scheduling: until its master has a container, launching: until the master registers, both over
    all attempts; running: while a master is registered; finishing: until its end is stored and its attempt has ended.

    In:  journal transitions; `applications`: rows of the job of that name; `end_at`: end of the run, Unix ns.
    Out: application string (unique), final_state string, is_final boolean, submitted_at long, ended_at long (null if it
         has not ended: then its path goes to `end_at`), total_s, saving_s, admission_s, scheduling_s, launching_s,
         running_s, finishing_s double >= 0, longest_phase string (one of `PHASES`; null if total_s is 0). Omits
         applications without a START in the journal.
    """
    ns = F.coalesce("to_at", F.lit(end_at)) - F.col("from_at")
    in_states = (
        application_timeline(transitions)
        .groupBy("application")
        .agg(
            _sum_in(ns, "SUBMITTED").alias("admission"),
            _sum_in(ns, "ACCEPTED").alias("accepted"),
            _sum_in(ns, "RUNNING").alias("running"),
            _sum_in(ns, *_IS_ENDING).alias("finishing"),
        )
    )
    application = F.regexp_replace("entity", r"^appattempt_(.*)_\d+$", r"application_$1")
    waiting = (
        _visits(transitions, "RMAppAttempt", APPLICATION_END_STATES)
        .where(F.col("state").isin(*_MASTER_IS_NOT_PLACED))
        .groupBy(application.alias("application"))
        .agg(F.sum(ns).alias("unplaced"))
    )
    counted = ["admission", "accepted", "running", "finishing", "unplaced"]
    total = F.coalesce("ended_at", F.lit(end_at)) - F.col("submitted_at")
    known = (
        applications.where(F.col("submitted_at").isNotNull())
        .withColumnRenamed("id", "application")
        .join(in_states, on="application", how="left")  # 1:0..1
        .join(waiting, on="application", how="left")  # 1:0..1
        .fillna(0, counted)
        .select("*", F.greatest(F.lit(0), total).alias("total"))
    )
    # While an application is accepted, its master waits for a container, or has one and is not registered.
    scheduling = F.least("unplaced", "accepted")
    rest = F.col("total") - F.col("admission") - F.col("accepted") - F.col("running") - F.col("finishing")
    return _with_longest(
        known.select(
            *_PATH,
            "total",
            F.greatest(F.lit(0), rest).alias("saving"),
            "admission",
            scheduling.alias("scheduling"),
            (F.col("accepted") - scheduling).alias("launching"),
            "running",
            "finishing",
        )
    )


def _sum_in(ns: Column, *states: str) -> Column:
    return F.sum(F.when(F.col("state").isin(*states), ns))


def _with_longest(phases: DataFrame) -> DataFrame:
    most = F.greatest(*PHASES)
    first = F.coalesce(*(F.when(F.col(name) == most, F.lit(name)) for name in PHASES))
    return phases.select(
        *_PATH,
        *((F.col(name) / NS_PER_S).alias(f"{name}_s") for name in ("total", *PHASES)),
        F.when(F.col("total") > 0, first).alias("longest_phase"),
    )
