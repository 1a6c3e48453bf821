"""Mistakes in a request, and dispatchers whose handler hangs: each gets one line, or its answer."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from dispatcher import JournalConfig, JournalWriter
from dispatcher.metrics import MachineNow
from dispatcher.ops import ops_app

from ...kit.tables import paired
from .client import Client, Job, hanging
from .test_ops_entities import Things

MISTAKES = paired("""
/nothing
    404 /v1/nothing: no such path
/dispatchers/
    404 no dispatcher '' in this process; known: central
/dispatchers/other/types
    404 no dispatcher 'other' in this process; known: central
/dispatchers?limit=0
    400 limit=0: expected a whole number from 1 to 1000
/dispatchers?limit=1001
    400 limit=1001: expected a whole number from 1 to 1000
/dispatchers?limit=ten%0A
    400 limit=ten\\n: expected a whole number from 1 to 1000
/dispatchers?after=x
    400 after=x: expected a whole number from 0 to 1000000000
/dispatchers/central/types?sort=name
    400 sort=name: not one of queued, rate, time, failed
/dispatchers/central/queue?by=age
    400 by=age: not one of type, entity
/dispatchers/central/running?samples=101
    400 samples=101: expected a whole number from 1 to 100
/dispatchers/central/running?samples=100&interval_ms=11
    400 samples=100 times interval_ms=11 is more than 1000 ms
/machines/Thing/entities
    404 no state machine 'Thing' in this process; known: none
/entities/job_1
    404 no entity 'job_1' is in memory or in a journal of this process
/entities/job_1?machine=Thing
    404 no entity 'job_1' of machine 'Thing' is in memory or in a journal of this process
/journal/tail
    404 no dispatcher of this process has a journal
/journal/tail?dispatcher=central
    404 dispatcher 'central' has no journal; dispatchers with a journal: none
/journal/state?at=noon
    400 at=noon: expected a seq (12345), a time (2026-11-21T10:00:00Z) or @ and Unix seconds
""")


@pytest.mark.parametrize(("path", "said"), MISTAKES)
def test_a_mistake_is_explained_in_one_line(client: Client, path: str, said: str) -> None:
    with hanging("central"):
        answer = client.request("GET", path)

    assert f"{answer.status_code} {answer.json()['error']}" == said


def test_another_method_is_refused(client: Client) -> None:
    response = client.post("/dispatchers")

    assert response.status_code == 405
    assert response.json() == {"error": "/v1/dispatchers: POST is not possible here, but GET, HEAD"}
    assert response.headers["allow"] == "GET, HEAD"
    assert client.request("HEAD", "/dispatchers").status_code == 200


def test_answers_are_not_stored(client: Client) -> None:
    assert client.get("/dispatchers").headers["cache-control"] == "no-store"
    assert client.get("/nothing").headers["content-type"] == "application/json"


class Broken(Things):
    def machine_numbers(self) -> list[MachineNow]:
        raise RuntimeError("broken\nsource")


def test_an_error_of_a_source_is_logged_and_told_in_one_line(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    source = Broken("Job")

    with caplog.at_level(logging.ERROR, "dispatcher.ops"):
        status, message = client.error("/machines")

    assert (status, message) == (500, "RuntimeError: broken\\nsource; the log has its traceback")
    assert "GET /v1/machines failed" in caplog.text
    del source


def test_every_path_answers_while_a_handler_hangs(tmp_path: Path) -> None:
    app, journal = ops_app(), JournalWriter(tmp_path / "journal", JournalConfig(write_ahead=True))
    gets = [each.path for each in app.routes[0].routes if "GET" in each.methods]  # type: ignore[attr-defined]
    paths = [path.replace("{name:path}", "central") for path in gets if path != "/stream"]
    paths = [path for path in paths if "{" not in path]
    with hanging("central", journal=journal, dead_letters=tmp_path / "letters") as central:
        central.hang("job 1")
        central.post(Job.WAIT, "job 2")

        client = Client(app, role="admin")
        answers = {path: client.get(path).status_code for path in paths}

        assert answers == dict.fromkeys(paths, 200)
        assert len(answers) > 20
        assert not central.release.is_set()
