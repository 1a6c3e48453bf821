"""Jobs over the lives of entities: how long each state lasts, who stays too long, what an application waits for."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from dispatcher.util.units import NS_PER_S
from pipeline.spark.report.digests.histograms import grouped, summed_up
from pipeline.spark.report.digests.transition_digest import Ends
from pipeline.spark.report.phases import PHASES
from pipeline.spark.report.tables.jobs import APPLICATION_END_STATES, has_moved

_STAY = ["machine", "entity", "state", "seq", "from_at", "stay_ns"]
_MASTER_IS_NOT_PLACED = ("SUBMITTED", "SCHEDULED")
_IS_ENDING = ("FINAL_SAVING", "FINISHING", "KILLING")


def stays(transitions: DataFrame) -> DataFrame:
    """One row per time that an entity was in a state, from entering it to leaving it.

    A transition that keeps its state ends no stay. Left out are stays that have not ended, and those whose
    beginning the journal does not hold: that in NEW, and those before the first transition of an entity.

    In:  journal transitions.
    Out: machine, entity, state string, seq long (of entering it; unique together with machine and entity), from_at
         long, stay_ns long >= 0.
    """
    before = Window.partitionBy("machine", "entity").orderBy("seq").rowsBetween(-1, -1)
    return (
        transitions.where(has_moved())
        .select(
            "machine",
            "entity",
            F.col("from_state").alias("state"),
            F.lag("to_state").over(before).alias("entered"),
            F.lag("seq").over(before).alias("seq"),
            F.lag("at").over(before).alias("from_at"),
            "at",
        )
        # A host that comes back is a new machine under the old id: its NEW was not entered by a transition.
        .where(F.col("entered") == F.col("state"))
        .select(*_STAY[:-1], F.greatest(F.lit(0), F.col("at") - F.col("from_at")).alias("stay_ns"))
    )


def stay_groups(stays: DataFrame) -> DataFrame:
    """Histograms of stays: what `time_in_state` is made of.

    In:  rows of `stays`.
    Out: machine, state string, log_bucket int (unique together), count long > 0, total, least, greatest long (ns).
    """
    return grouped(stays, ["machine", "state"], "stay_ns")


def time_in_state(groups: DataFrame) -> DataFrame:
    """One row per machine and state: how long its entities stayed there each time, until they left.

    In:  rows of `stay_groups`, of which several may be for the same.
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
    """One row per entity that moved: the first and the last move of its life.

    In:  journal transitions.
    Out: machine, entity string (unique together), from_state string, seq, at long (of the first move), to_state string,
         last_seq, last_at long (of the last one).
    """
    move = F.struct("seq", "at", "from_state", "to_state")
    return (
        transitions.where(has_moved())
        .groupBy("machine", "entity")
        .agg(F.min(move).alias("first"), F.max(move).alias("last"))
        .select(
            "machine",
            "entity",
            "first.from_state",
            "first.seq",
            "first.at",
            "last.to_state",
            F.col("last.seq").alias("last_seq"),
            F.col("last.at").alias("last_at"),
        )
    )


def crossing_stays(stretches: DataFrame, ends: Ends) -> DataFrame:
    """The stays between one stretch of an entity's life and the next, but for those in final states.

    In:  rows as of `stretches`, but several per entity, that follow one another.
    Out: as of `stays`.
    """
    before = Window.partitionBy("machine", "entity").orderBy("seq").rowsBetween(-1, -1)
    return (
        stretches.select(
            "machine",
            "entity",
            F.col("from_state").alias("state"),
            F.lag("to_state").over(before).alias("entered"),
            F.lag("last_seq").over(before).alias("entered_seq"),
            F.lag("last_at").over(before).alias("from_at"),
            "at",
        )
        .where((F.col("entered") == F.col("state")) & ~ends.is_final(F.col("machine"), F.col("state")))
        .select(
            "machine",
            "entity",
            "state",
            F.col("entered_seq").alias("seq"),
            "from_at",
            F.greatest(F.lit(0), F.col("at") - F.col("from_at")).alias("stay_ns"),
        )
    )


def open_stays(stretches: DataFrame, ends: Ends, end_at: int) -> DataFrame:
    """One row per entity that is in no final state at the end of the journal, `end_at` (Unix ns).

    In:  rows as of `stretches`, several per entity or one.
    Out: as of `stays`, with the stay until `end_at`.
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
    """The stays beyond the 99th percentile of their state, those that have gone on and the others: the worst of them.

    The worst are those that exceed the percentile by most time. States that nobody has ever left have no percentile.

    In:  `ended`: rows of `stays`, at least the longest of each state; `still_open`: of `open_stays`; `times`: of
         `time_in_state`.
    Out: machine, entity, state string, from_at long, stay_s, p99_s double, is_open boolean; at most `number` rows.
    """
    each = ended.select(*_STAY, F.lit(False).alias("is_open")).unionAll(
        still_open.select(*_STAY, F.lit(True).alias("is_open"))
    )
    limits = times.select("machine", "state", "p99_s")
    stay_s = (F.col("stay_ns") / NS_PER_S).alias("stay_s")
    return (
        each.join(F.broadcast(limits), on=["machine", "state"], how="inner")  # n:0..1, a limit per state
        .select("machine", "entity", "state", "seq", "from_at", stay_s, "p99_s", "is_open")
        .where(F.col("stay_s") > F.col("p99_s"))
        .orderBy(F.desc(F.col("stay_s") - F.col("p99_s")), "machine", "entity", "seq")
        .limit(number)
        .select("machine", "entity", "state", "from_at", "stay_s", "p99_s", "is_open")
    )


def _visits(transitions: DataFrame, machine: str, final: Sequence[str]) -> DataFrame:
    """Of one machine the states that its entities entered, but final ones: entity, seq, state, from_at, to_at."""
    after = Window.partitionBy("entity").orderBy("seq").rowsBetween(1, 1)
    left_at = F.when(F.lead("from_state").over(after) == F.col("to_state"), F.lead("at").over(after))
    return (
        transitions.where((F.col("machine") == machine) & has_moved())
        .select("entity", "seq", F.col("to_state").alias("state"), F.col("at").alias("from_at"), left_at.alias("to_at"))
        .where(~F.col("state").isin(*final))
    )


def application_timeline(transitions: DataFrame) -> DataFrame:
    """One row per time that an application was in a state, but for the final ones.

    In:  journal transitions; those of other machines are left out.
    Out: application string, seq long (of entering the state; unique), state string, from_at long, to_at long (null if
         it is there at the end of the journal).
    """
    return _visits(transitions, "RMApp", APPLICATION_END_STATES).select(
        F.col("entity").alias("application"), "seq", "state", "from_at", "to_at"
    )


def critical_paths(transitions: DataFrame, applications: DataFrame, end_at: int) -> DataFrame:
    """One row per application: where the time from its submission to its end went. Each moment is in one phase.

    saving: until it is stored and can be admitted, with what its START waited in the queue; admission: until the
    scheduler has it; scheduling: until its master has a container, launching: until that has registered, both of all
    attempts; running: while a master is registered; finishing: until its end is stored and its attempt has ended.

    In:  journal transitions; `applications`: rows of the job of that name; `end_at`: end of the run, Unix ns.
    Out: application string (unique), final_state string, is_final boolean, submitted_at long, ended_at long (null if it
         has not ended: then its path goes to `end_at`), total_s, saving_s, admission_s, scheduling_s, launching_s,
         running_s, finishing_s double >= 0, longest_phase string (one of `PHASES`; null if total_s is 0). Those without
         a START in the journal are left out.
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
    # While it is accepted, its master waits for a container, or has one and is not registered.
    scheduling = F.least("unplaced", "accepted")
    rest = F.col("total") - F.col("admission") - F.col("accepted") - F.col("running") - F.col("finishing")
    return _with_longest(
        known.select(
            "application",
            "final_state",
            "is_final",
            "submitted_at",
            "ended_at",
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
        "application",
        "final_state",
        "is_final",
        "submitted_at",
        "ended_at",
        *((F.col(name) / NS_PER_S).alias(f"{name}_s") for name in ("total", *PHASES)),
        F.when(F.col("total") > 0, first).alias("longest_phase"),
    )
