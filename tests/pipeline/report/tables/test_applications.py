"""Tables of applications: each against literal rows."""

from __future__ import annotations

from typing import Any

import pytest

from ...journal_builder import SECOND
from .at_hand import Move, in_order, move, of_relations

pytestmark = pytest.mark.long

APP_1, APP_2 = "application_0_0001", "application_0_0002"


def test_waiting_is_summed_up_per_user_of_a_queue() -> None:
    rows = [
        ("a", "ann", 0, 1, 1.0),
        ("a", "bob", 0, 5, 5.0),
        ("b", "ann", 0, None, None),
        ("b", "ann", None, 7, None),
        (None, None, None, None, None),
    ]
    names = ("queue", "user", "submitted_at", "first_container_at", "wait_s")

    found = of_relations(applications=[dict(zip(names, row, strict=True)) for row in rows])["waiting_by_user"]

    assert found == in_order(
        [
            ("a", "ann", 1, 1.0, 1.0, 1.0, 0, 0),
            ("a", "bob", 1, 5.0, 5.0, 5.0, 0, 0),
            ("b", "ann", 2, None, None, None, 1, 1),
            (None, None, 1, None, None, None, 0, 1),
        ]
    )


def app(seq: int, entity: str, what: str, at: int) -> Move:
    return move(seq, entity, what, at, machine="RMApp")


ATTEMPT = "appattempt_0_0001_000001"
LIFE = [
    app(1, APP_1, "NEW START NEW_SAVING", 11),
    app(2, APP_1, "NEW_SAVING APP_NEW_SAVED SUBMITTED", 13),
    app(3, APP_1, "SUBMITTED APP_ACCEPTED ACCEPTED", 16),
    move(4, ATTEMPT, "NEW START SUBMITTED", 16, machine="RMAppAttempt"),
    move(5, ATTEMPT, "SUBMITTED ATTEMPT_ADDED SCHEDULED", 17, machine="RMAppAttempt"),
    move(6, ATTEMPT, "SCHEDULED CONTAINER_ALLOCATED ALLOCATED_SAVING", 26, machine="RMAppAttempt"),
    app(7, APP_1, "ACCEPTED ATTEMPT_LAUNCHED ACCEPTED", 29),
    app(8, APP_1, "ACCEPTED ATTEMPT_REGISTERED RUNNING", 31),
    app(9, APP_1, "RUNNING ATTEMPT_UNREGISTERED FINAL_SAVING", 51),
    app(10, APP_1, "FINAL_SAVING APP_UPDATE_SAVED FINISHING", 52),
    app(11, APP_1, "FINISHING ATTEMPT_FINISHED FINISHED", 53),
]


def applied(*rows: tuple[Any, ...]) -> list[dict[str, Any]]:
    names = ("id", "final_state", "is_final", "submitted_at", "ended_at")
    return [dict(zip(names, row, strict=True)) for row in rows]


def test_the_timeline_has_each_state_but_the_final_one() -> None:
    second = [app(20, APP_2, "NEW START NEW_SAVING", 60), app(21, APP_2, "NEW_SAVING START NEW_SAVING", 61)]

    found = of_relations(move=[*LIFE, *second])["application_timeline"]

    rows = [
        (APP_1, 1, "NEW_SAVING", 11, 13),
        (APP_1, 2, "SUBMITTED", 13, 16),
        (APP_1, 3, "ACCEPTED", 16, 31),
        (APP_1, 8, "RUNNING", 31, 51),
        (APP_1, 9, "FINAL_SAVING", 51, 52),
        (APP_1, 10, "FINISHING", 52, 53),
        (APP_2, 20, "NEW_SAVING", 60, None),
    ]
    assert found == in_order((*row[:3], row[3] * SECOND, None if row[4] is None else row[4] * SECOND) for row in rows)


def test_every_second_from_submission_to_end_is_in_one_phase() -> None:
    applications = applied((APP_1, "FINISHED", True, 10 * SECOND, 53 * SECOND))

    found = of_relations(move=LIFE, applications=applications, end_at=100 * SECOND)["critical_paths"]

    row = (APP_1, "FINISHED", True, 10 * SECOND, 53 * SECOND, 43.0, 3.0, 3.0, 10.0, 5.0, 20.0, 2.0, "running")
    assert found == [row]


def test_the_path_of_an_open_application_goes_to_the_journals_end() -> None:
    applications = applied(
        (APP_1, "ACCEPTED", False, 10 * SECOND, None),
        (APP_2, "NEW", False, 100 * SECOND, None),
        ("application_0_0003", "RUNNING", False, None, None),
    )

    found = of_relations(move=LIFE[:5], applications=applications, end_at=100 * SECOND)["critical_paths"]

    rows = [
        (APP_1, "ACCEPTED", False, 10 * SECOND, None, 90.0, 3.0, 3.0, 84.0, 0.0, 0.0, 0.0, "scheduling"),
        (APP_2, "NEW", False, 100 * SECOND, None, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, None),
    ]
    assert found == in_order(rows)
