"""Hostile bodies, made up from a seed: each is taken and shown, or refused without a trace."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest

from ....kit import tries
from .front import BASE, Front, front, message
from .fuzzing import Made

pytestmark = pytest.mark.long

APP = "application_1_0001"
JSON = {"Content-Type": "application/json"}
PATHS = [
    ("POST", "/apps"),
    ("POST", "/apps/new-application"),
    *(("PUT", f"/apps/{{app}}/{what}") for what in ("state", "queue", "priority", "timeout")),
    ("POST", "/nodes/n1:45454/resource"),
    ("POST", "/nodes/{app}/resource"),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """A resource manager with an SQLite store, which has to store whatever it gets."""
    store = {"kind": "sqlite", "path": tmp_path_factory.mktemp("store") / "state.db"}
    with front(state_store=store) as made:
        yield made


def made_up(seed: str) -> Made:
    return Made(random.Random(seed), lambda _: APP)


def test_a_submission_is_taken_and_shown_or_refused(served: Front) -> None:
    taken = 0
    for number in range(tries(150)):
        content = made_up(f"submission {number}").submission(served.new_id())

        answer = served.http.post(f"{BASE}/apps", content=json.dumps(content), headers=JSON)

        if answer.status_code == 202:
            taken += 1
            app_id = content["application-id"]
            assert served.get(f"/apps/{app_id}").json()["app"]["id"] == app_id, content
        else:
            assert (answer.status_code, bool(message(answer))) == (400, True), content
    assert 20 < taken < tries(150) - 20


def test_a_refused_body_leaves_no_trace(served: Front) -> None:
    for number in range(tries(100)):
        made, before = made_up(f"body {number}"), served.apps()
        method, path = made.random.choice(PATHS)
        path, body = BASE + path.format(app=next(iter(before), APP)), made.body()

        answer = served.http.request(method, path, content=body, headers=JSON)

        if answer.status_code >= 300:
            assert (400 <= answer.status_code < 500, bool(message(answer))) == (True, True), (body, answer.text)
            assert served.apps() == before, body
