"""Tables of a resource manager's applications: their ends, their waits, and the phases of their lives.

Times are Unix ns in the clock of the run; names of durations carry their unit. Only `seq` decides what happened first:
in virtual time many events share a nanosecond. An event changes a machine's state at most once, so `seq` orders the
transitions of an entity without ties.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.report.digests.run import ReportRun
from pipeline.report.payloads import OWNER_AUDIT, OWNER_OPERATIONS, fields_of, is_event
from pipeline.report.tables.containers import first_event
from pipeline.report.tables.sql import among

PHASES = ("saving", "admission", "scheduling", "launching", "running", "finishing")
"""The phases of an application's life, in chronological order."""
END_STATES = ("FINISHED", "FAILED", "KILLED")
_FIRST_STATE = "NEW"
_MASTER_IS_NOT_PLACED = ("SUBMITTED", "SCHEDULED")
_IS_ENDING = ("FINAL_SAVING", "FINISHING", "KILLING")


def _owners() -> str:
    """SQL: one row per application in the audit lines of a log: id, owner, owner_queue (null if no line names it)."""
    fields = fields_of(OWNER_AUDIT, OWNER_OPERATIONS[0])
    first = ", ".join(
        f"arg_min(fields.{field}, seq) FILTER (fields.{field} IS NOT NULL) AS {name}"
        for field, name in (("USER", "owner"), ("QUEUENAME", "owner_queue"))
    )
    return f"""
        SELECT fields.APPID AS id, {first}
        FROM (SELECT seq, {fields} AS fields FROM kept_event WHERE {is_event(OWNER_AUDIT, *OWNER_OPERATIONS)})
        WHERE id IS NOT NULL GROUP BY id
    """


def applications(run: ReportRun) -> str:
    """One row per application that was submitted or changed its state; from kept_event, move and containers.

    final_state is the last known state, in which the application may not have ended; wait_s is the time from submission
    to the first container. If the submission is not in the journal, its columns are null, except that user and queue
    are taken from audit lines.
    """
    submissions = first_event("RMAppEventType", "START", columns=", enqueued_at AS submitted_at")
    return f"""
        SELECT id, name, coalesce("user", owner) AS "user", coalesce(queue, owner_queue) AS queue,
            coalesce(last_state, '{_FIRST_STATE}') AS final_state, final_state IN {among(END_STATES)} AS is_final,
            submitted_at, first_container_at, ended_at, (first_container_at - submitted_at) / 1e9::DOUBLE AS wait_s
        FROM (SELECT * RENAME (entity AS id) FROM ({submissions}))
        FULL JOIN (
            SELECT entity AS id, arg_max(to_state, seq) AS last_state,
                min("at") FILTER (from_state <> to_state AND to_state IN {among(END_STATES)}) AS ended_at
            FROM move WHERE machine = 'RMApp' AND valid GROUP BY entity
        ) USING (id)
        LEFT JOIN (
            SELECT application AS id, min(started_at) AS first_container_at FROM containers GROUP BY application
        ) USING (id)
        LEFT JOIN ({_owners()}) USING (id)
    """


def applications_by_final_state(run: ReportRun) -> str:
    """One row per state that applications have at the end of the journal: how many; from applications."""
    return "SELECT final_state, is_final, count(*) AS applications FROM applications GROUP BY ALL"


def waiting_by_queue(run: ReportRun) -> str:
    """One row per queue: how long its applications waited for their first container; from applications."""
    return _waiting("queue")


def waiting_by_user(run: ReportRun) -> str:
    """One row per queue and user: as waiting_by_queue; from applications."""
    return _waiting('queue, "user"')


def _waiting(keys: str) -> str:
    return f"""
        SELECT {keys}, count(*) AS applications, quantile_cont(wait_s, 0.5) AS p50_s,
            quantile_cont(wait_s, 0.95) AS p95_s, max(wait_s) AS max_s,
            count_if(first_container_at IS NULL AND submitted_at IS NOT NULL) AS never_placed,
            count_if(submitted_at IS NULL) AS begun_earlier
        FROM applications GROUP BY {keys}
    """


def _visits(machine: str) -> str:
    """SQL: the stays of one machine's entities, except in final states: entity, seq, state, from_at, to_at."""
    return f"""
        SELECT entity, seq, to_state AS state, "at" AS from_at,
            CASE WHEN lead(from_state) OVER life = to_state THEN lead("at") OVER life END AS to_at
        FROM move WHERE machine = '{machine}' AND valid AND from_state <> to_state
        WINDOW life AS (PARTITION BY entity ORDER BY seq)
        QUALIFY to_state NOT IN {among(END_STATES)}
    """


def application_timeline(run: ReportRun) -> str:
    """One row per stay of an application in a state, except final ones; from move."""
    return f"SELECT entity AS application, seq, state, from_at, to_at FROM ({_visits('RMApp')})"


def critical_paths(run: ReportRun) -> str:
    """One row per application: its time from submission to the end, divided into phases that do not overlap.

    saving: until it is stored and can be admitted, including its START's time in the queue; admission: until the
    scheduler accepts it; scheduling: until its master has a container, launching: until the master registers, both over
    all attempts; running: while a master is registered; finishing: until its end is stored and its attempt has ended.
    The path of an application that has not ended goes to the end of the run.

    From move, applications and application_timeline. Omits applications without a START in the journal.
    """
    ns = f"(coalesce(to_at, {run.end_at}) - from_at)"
    sums = {"admission": ["SUBMITTED"], "accepted": ["ACCEPTED"], "running": ["RUNNING"], "finishing": _IS_ENDING}
    in_states = ", ".join(f"{_sum_in(ns, states)} AS {name}" for name, states in sums.items())
    counted = ", ".join(f"coalesce({name}, 0) AS {name}" for name in (*sums, "unplaced"))
    path = "application, final_state, is_final, submitted_at, ended_at"
    longest = "\n".join(f"WHEN {name} = greatest({', '.join(PHASES)}) THEN '{name}'" for name in PHASES)
    seconds = ", ".join(f"{name} / 1e9::DOUBLE AS {name}_s" for name in ("total", *PHASES))
    return f"""
        WITH known AS (
            SELECT * RENAME (id AS application), greatest(0, coalesce(ended_at, {run.end_at}) - submitted_at) AS total
            FROM applications WHERE submitted_at IS NOT NULL
        ), phases AS (
            SELECT {path}, total, {counted}
            FROM known
            LEFT JOIN (SELECT application, {in_states} FROM application_timeline GROUP BY application)
                USING (application)
            LEFT JOIN (
                SELECT regexp_replace(entity, '^appattempt_(.*)_[0-9]+$', 'application_\\1') AS application,
                    sum({ns}) FILTER (state IN {among(_MASTER_IS_NOT_PLACED)}) AS unplaced
                FROM ({_visits("RMAppAttempt")}) GROUP BY ALL
            ) USING (application)
        ), divided AS (
            -- While an application is accepted, its master waits for a container, or has one and is not registered.
            SELECT {path}, total, greatest(0, total - admission - accepted - running - finishing) AS saving, admission,
                least(unplaced, accepted) AS scheduling, accepted - least(unplaced, accepted) AS launching, running,
                finishing
            FROM phases
        )
        SELECT {path}, {seconds}, CASE WHEN total <= 0 THEN NULL {longest} END AS longest_phase FROM divided
    """


def _sum_in(ns: str, states: Sequence[str]) -> str:
    return f"sum({ns}) FILTER (state IN {among(states)})"
