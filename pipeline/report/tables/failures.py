"""Failures by cause: unhandled and failed events, and failed, refused or killed applications and attempts."""

from __future__ import annotations

from pipeline.report.digests.run import ReportRun
from pipeline.report.payloads import DIAGNOSTICS, PAYLOADS, fields_of
from pipeline.report.tables.sql import among

_CAUSE = "subject, result, event_class, event_type, from_state, error_class, reason"
_ENDS = tuple(kind for kind, fields in PAYLOADS.items() if fields == DIAGNOSTICS)
_BAD_ENDS = ("FAILED", "KILLED")
# In these states the end has been decided: a transition that leaves them is not the cause.
_IS_ENDING = ("FINAL_SAVING", "FINISHING", "KILLING")


def failures(run: ReportRun) -> str:
    """One row per cause: its count, its first and last occurrence, and an example; from kept_event and move.

    The cause of a failed event is its type and the class of the error. The cause of a failed or killed application or
    attempt is the event that decided its end, and the state in which it received that event. For an application that
    was refused, the scheduler's reason belongs to the cause; the diagnostics of other ends name single containers and
    do not. The example is the first occurrence: its entity, and its error or diagnostics.
    """
    said = " OR ".join(f"(event_class = '{of_class}' AND event_type = '{of_type}')" for of_class, of_type in _ENDS)
    return f"""
        WITH ended AS (
            SELECT machine, entity, max(seq) FILTER (to_state IN {among(_BAD_ENDS)}) AS seq,
                arg_max({{'to': to_state, 'from': from_state, 'event': event_type}}, seq)
                    FILTER (to_state IN {among(_BAD_ENDS)}) AS "end",
                arg_max({{'seq': seq, 'from': from_state, 'event': event_type}}, seq)
                    FILTER (from_state NOT IN {among(_IS_ENDING)}) AS cause
            FROM move WHERE machine IN ('RMApp', 'RMAppAttempt') AND valid AND from_state <> to_state
            GROUP BY machine, entity HAVING seq IS NOT NULL
        ), ends AS (
            SELECT machine AS subject, "end"."to" AS result, coalesce(cause.event, "end".event) AS event_type,
                coalesce(cause."from", "end"."from") AS from_state, seq, coalesce(cause.seq, seq) AS cause_seq, entity
            FROM ended
        ), diagnosed AS (
            SELECT ends.*, CASE WHEN subject = 'RMApp' THEN diagnostics END AS error,
                CASE WHEN event_type = 'APP_REJECTED' THEN error END AS reason
            FROM ends LEFT JOIN (
                SELECT seq AS cause_seq, {fields_of(*_ENDS[0])}.diagnostics AS diagnostics FROM kept_event WHERE {said}
            ) USING (cause_seq)
        ), each AS (
            SELECT 'event' AS subject, outcome AS result, event_class, event_type, NULL AS from_state,
                string_split(error, ':')[1] AS error_class, NULL AS reason, seq, entity, error
            FROM kept_event WHERE outcome <> 'handled'
            UNION ALL
            SELECT subject, result, NULL, event_type, from_state, NULL, reason, seq, entity, error FROM diagnosed
        )
        SELECT {_CAUSE}, count(*) AS "count", min(seq) AS first_seq, max(seq) AS last_seq,
            arg_min_null(entity, seq) AS example_entity, arg_min_null(error, seq) AS example_error
        FROM each GROUP BY {_CAUSE}
    """
