"""Failures by cause, against literal rows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .at_hand import Rows, in_order, move, of_relations

pytestmark = pytest.mark.long

EVENT = ("seq", "event_class", "event_type", "entity", "outcome", "error", "payload")
APP_1, APP_2, APP_3 = (f"application_0_000{number}" for number in (1, 2, 3))


def found(events: list[tuple[Any, ...]], moves: list[tuple[int, str, str, str]]) -> Rows:
    rows = [move(seq, entity, what, machine=machine) for seq, machine, entity, what in moves]
    return of_relations(kept_event=[dict(zip(EVENT, event, strict=True)) for event in events], move=rows)["failures"]


def test_failed_events_are_grouped_by_type_and_error() -> None:
    events = [
        (4, "AType", "A", "x", "failed", "ValueError: second", None),
        (2, "AType", "A", None, "failed", "ValueError: first: of two", None),
        (3, "AType", "A", "y", "failed", "KeyError", None),
        (5, "BType", "B", None, "unregistered", None, None),
        (6, "AType", "A", "z", "handled", None, None),
    ]

    rows = [
        ("event", "failed", "AType", "A", None, "ValueError", None, 2, 2, 4, None, "ValueError: first: of two"),
        ("event", "failed", "AType", "A", None, "KeyError", None, 1, 3, 3, "y", "KeyError"),
        ("event", "unregistered", "BType", "B", None, None, None, 1, 5, 5, None, None),
    ]
    assert found(events, []) == in_order(rows)


def test_the_cause_of_an_end_is_the_event_that_decided_it_not_the_one_that_stored_it() -> None:
    moves = [
        (1, "RMApp", APP_1, "ACCEPTED ATTEMPT_REGISTERED RUNNING"),
        (2, "RMApp", APP_1, "RUNNING ATTEMPT_FAILED FINAL_SAVING"),
        (3, "RMApp", APP_1, "FINAL_SAVING APP_UPDATE_SAVED FAILED"),
        (4, "RMApp", APP_2, "RUNNING KILL KILLING"),
        (5, "RMApp", APP_2, "KILLING ATTEMPT_KILLED FINAL_SAVING"),
        (6, "RMApp", APP_2, "FINAL_SAVING APP_UPDATE_SAVED KILLED"),
        (7, "RMApp", APP_3, "RUNNING KILL KILLING"),
        (8, "RMApp", APP_3, "KILLING ATTEMPT_KILLED FINAL_SAVING"),
        (9, "RMApp", APP_3, "FINAL_SAVING APP_UPDATE_SAVED KILLED"),
        (10, "RMAppAttempt", "appattempt_0_0001_000001", "FINAL_SAVING ATTEMPT_UPDATE_SAVED FAILED"),
        (11, "RMApp", "application_0_0004", "NEW_SAVING APP_SAVE_FAILED FAILED"),
        (12, "RMApp", "application_0_0005", "FINISHING ATTEMPT_FINISHED FINISHED"),
        (13, "RMNode", "h1:1", "RUNNING EXPIRE LOST"),
    ]

    attempt = "appattempt_0_0001_000001"
    rows = [
        ("RMApp", "FAILED", None, "ATTEMPT_FAILED", "RUNNING", None, None, 1, 3, 3, APP_1, None),
        ("RMApp", "KILLED", None, "KILL", "RUNNING", None, None, 2, 6, 9, APP_2, None),
        ("RMAppAttempt", "FAILED", None, "ATTEMPT_UPDATE_SAVED", "FINAL_SAVING", None, None, 1, 10, 10, attempt, None),
        ("RMApp", "FAILED", None, "APP_SAVE_FAILED", "NEW_SAVING", None, None, 1, 11, 11, "application_0_0004", None),
    ]
    assert found([], moves) == in_order(rows)


def test_refused_applications_are_grouped_by_the_reason_and_other_ends_show_an_example_of_theirs() -> None:
    def event(seq: int, event_type: str, diagnostics: str | None) -> tuple[Any, ...]:
        payload = None if diagnostics is None else json.dumps({"diagnostics": diagnostics})
        return seq, "RMAppEventType", event_type, None, "handled", None, payload

    ends = {1: ("APP_REJECTED", "queue a does not exist"), 3: ("APP_REJECTED", "queue b does not exist")}
    ends |= {5: ("APP_REJECTED", "queue a does not exist"), 7: ("ATTEMPT_FAILED", "container_1 exited with 1")}
    ends |= {9: ("ATTEMPT_FAILED", "container_2 exited with 1"), 11: ("APP_REJECTED", None)}
    events = [event(seq, *end) for seq, end in ends.items()] + [event(12, "START", "not of an end")]
    moves = [(seq, "RMApp", f"app_{seq}", f"SUBMITTED {kind} FINAL_SAVING") for seq, (kind, _) in ends.items()]
    moves += [(seq + 1, "RMApp", f"app_{seq}", "FINAL_SAVING APP_UPDATE_SAVED FAILED") for seq in ends]

    app = ("RMApp", "FAILED", None)
    no_a, no_b = "queue a does not exist", "queue b does not exist"
    rows = [
        (*app, "APP_REJECTED", "SUBMITTED", None, no_a, 2, 2, 6, "app_1", no_a),
        (*app, "APP_REJECTED", "SUBMITTED", None, no_b, 1, 4, 4, "app_3", no_b),
        (*app, "APP_REJECTED", "SUBMITTED", None, None, 1, 12, 12, "app_11", None),
        (*app, "ATTEMPT_FAILED", "SUBMITTED", None, None, 2, 8, 10, "app_7", "container_1 exited with 1"),
    ]
    assert found(events, moves) == in_order(rows)
