"""`kill -9` of the daemon while clients submit over HTTP: what was answered with 202 stays, once.

RM_KILLS in the environment: how many times it is killed, 10 by default.
"""

from __future__ import annotations

import os
import random
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ..daemon.daemons import Daemons
from ..stores import sqlite_store

pytestmark = pytest.mark.long

KILLS = int(os.environ.get("RM_KILLS", "10"))
CLIENTS = 4
LONGEST_LIFE_S = 1.0
PAUSE_S = 0.01
"""Between two applications of a client, so that each recovery stays small."""
END_S = 180.0
BASE = "/ws/v1/cluster"


class Submitter(threading.Thread):
    """A client that repeats each request until it is answered, as the server's 503 tells it to."""

    def __init__(self, number: int, address: str, is_given_up: threading.Event) -> None:
        super().__init__(name=f"client-{number}", daemon=True)
        self.ends = threading.Event()
        self._is_given_up = is_given_up  # the test has failed, by whichever thread
        self._address = address
        self.ids: list[str] = []  # all that it was given
        self.acknowledged: dict[str, str] = {}  # names by id
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with httpx.Client(base_url=self._address, params={"user.name": self.name}, timeout=20) as http:
                while not self.ends.wait(PAUSE_S):
                    self._submit(http)
        except BaseException as error:
            self.failure = error
            self._is_given_up.set()

    def _submit(self, http: Any) -> None:
        app_id = self._answer(http, f"{BASE}/apps/new-application", 200).json()["application-id"]
        self.ids.append(app_id)
        name = f"{self.name}-{len(self.acknowledged)}"
        spec = {
            "commands": {"command": f"run {name}"},
            "environment": {"entry": {"key": "NAME", "value": name}},
        }
        resource = {"memory": 1, "vCores": 1}
        body = {"application-id": app_id, "application-name": name, "resource": resource, "am-container-spec": spec}
        self._answer(http, f"{BASE}/apps", 202, body)
        self.acknowledged[app_id] = name

    def _answer(self, http: Any, path: str, status: int, body: Any = None) -> Any:
        while True:
            try:
                answer = http.post(path, json=body)
            except httpx.TransportError:
                answer = None
            if answer is not None and answer.status_code != 503:
                assert answer.status_code == status, answer.text
                return answer
            assert not self._is_given_up.wait(0.005), "given up"


@pytest.fixture
def daemons() -> Iterator[Daemons]:
    with tempfile.TemporaryDirectory(prefix="rm-") as folder:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            (Path(folder) / "port").write_text(str(found.getsockname()[1]))
        daemons = Daemons(Path(folder), "kill_web_daemon.py")
        try:
            yield daemons
        finally:
            daemons.close()
            print(daemons.log())  # pytest shows it if the test fails


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_at_any_moment_what_was_answered_with_202_is_there_once(daemons: Daemons) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # of the moments; pytest shows it if the test fails
    moments, is_given_up = random.Random(seed), threading.Event()
    address = f"http://127.0.0.1:{(daemons.folder / 'port').read_text()}"
    submitters = [Submitter(number, address, is_given_up) for number in range(CLIENTS)]
    for submitter in submitters:
        submitter.start()

    begin_s = time.monotonic()
    for _ in range(KILLS):
        daemons.start()
        if is_given_up.wait(moments.uniform(0, LONGEST_LIFE_S)):
            break
        daemons.kill()
    else:
        daemons.start()
    for submitter in submitters:
        submitter.ends.set()
        submitter.join(END_S)
    failures = [submitter.failure for submitter in submitters]
    is_given_up.set()
    (daemons.folder / "stop").touch()
    exit_status = daemons.end()
    errors = [line for line in daemons.log().splitlines() if line.startswith(("ERROR", "CRITICAL"))]

    assert failures == [None] * CLIENTS
    assert (exit_status, errors) == (0, [])
    store = sqlite_store(daemons.folder / "state.db")
    stored = {id: app.data.submission for id, app in store.load_state().applications.items()}
    epoch = store.get_and_increment_epoch()
    store.stop()
    acknowledged = {id: name for submitter in submitters for id, name in submitter.acknowledged.items()}
    given = Counter(id for submitter in submitters for id in submitter.ids)
    print(f"{KILLS} kills in {time.monotonic() - begin_s:.0f} s, {epoch} lives, {len(acknowledged)} applications")
    assert {id: submission.name for id, submission in stored.items()} == acknowledged
    assert set(given.values()) == {1}  # no id was given twice
    for submission in stored.values():
        launch = submission.launch
        assert launch is not None
        assert (launch.commands, launch.environment) == ((f"run {submission.name}",), {"NAME": submission.name})
        assert submission.user == submission.name.rpartition("-")[0]
