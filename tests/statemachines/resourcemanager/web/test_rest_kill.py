"""`kill -9` of the daemon at any moment, again and again, while clients submit: what was answered with 202 stays."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ....kit import tries
from ....kit.killed import forking
from ..stores import sqlite_store
from . import kill_daemon

pytestmark = pytest.mark.long

KILLS = tries(25)
CLIENTS = 4
LONGEST_LIFE_S = 0.6
PAUSE_S = 0.01
"""Between two applications of a client, so that each recovery stays small."""
END_S = 180.0
BASE = "/ws/v1/cluster"
REFUSED_BY_YARN = "no transition from FINAL_SAVING on REGISTERED"
"""A daemon that a busy machine holds up expires the container of a master that is about to register. The end of the
container may be ahead of the registration in the queue, and YARN's table has no row for that either."""
FINAL = {"FINISHED", "FAILED", "KILLED"}


class Client:
    """Repeats each request until it is answered, as the server's 503 tells it to."""

    def __init__(self, address: str, user: str, is_given_up: threading.Event) -> None:
        self.http = httpx.Client(base_url=address, params={"user.name": user}, timeout=20)
        self._is_given_up = is_given_up  # the test is over, or has failed, by whichever thread

    def ask(self, method: str, path: str, status: int = 200, body: Any = None) -> Any:
        while True:
            try:
                answer = self.http.request(method, BASE + path, json=body)
            except httpx.TransportError:
                answer = None
            if answer is not None and answer.status_code != 503:
                assert answer.status_code == status, answer.text
                return answer
            assert not self._is_given_up.wait(0.005), "given up"

    def states(self) -> dict[str, str]:
        return {app["id"]: app["state"] for app in self.ask("GET", "/apps").json()["apps"]["app"]}


class Submitter(threading.Thread):
    """One application after the other, and now and then a look at the states of all."""

    def __init__(self, number: int, address: str, is_given_up: threading.Event) -> None:
        super().__init__(name=f"client-{number}", daemon=True)
        self.ends = threading.Event()
        self._is_given_up = is_given_up
        self._client = Client(address, self.name, is_given_up)
        self.ids: list[str] = []  # all that it was given
        self.acknowledged: dict[str, str] = {}  # names by id
        self.seen_ended: dict[str, str] = {}  # states by id
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with self._client.http:
                while not self.ends.wait(PAUSE_S):
                    self._submit()
                    if len(self.acknowledged) % 10 == 0:
                        states = self._client.states()
                        self.seen_ended.update({id: state for id, state in states.items() if state in FINAL})
        except BaseException as error:
            self.failure = error
            self._is_given_up.set()

    def _submit(self) -> None:
        app_id = self._client.ask("POST", "/apps/new-application").json()["application-id"]
        self.ids.append(app_id)
        name = f"{self.name}-{len(self.acknowledged)}"
        spec = {
            "commands": {"command": f"run {name}"},
            "environment": {"entry": {"key": "NAME", "value": name}},
        }
        resource = {"memory": 1, "vCores": 1}
        body = {"application-id": app_id, "application-name": name, "resource": resource, "am-container-spec": spec}
        self._client.ask("POST", "/apps", 202, body)
        self.acknowledged[app_id] = name


@pytest.fixture
def is_given_up() -> Iterator[threading.Event]:
    """Set once the test is over: no client calls any longer."""
    is_given_up = threading.Event()
    yield is_given_up
    is_given_up.set()


def states_in_the_end(client: Client) -> dict[str, str]:
    """Of all applications, once all have ended."""
    deadline_s = time.monotonic() + END_S
    while not FINAL.issuperset((states := client.states()).values()):
        assert time.monotonic() < deadline_s, f"not all of these end: {states}"
        threading.Event().wait(0.05)
    return states


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_at_any_moment_what_was_answered_with_202_is_there_once_and_ends(
    is_given_up: threading.Event, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}, log in {tmp_path}")  # pytest shows it if the test fails
    moments = random.Random(seed)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    submitters = [Submitter(number, address, is_given_up) for number in range(CLIENTS)]
    for submitter in submitters:
        submitter.start()

    with forking(kill_daemon) as server:
        client = Client(address, "looker", is_given_up)
        for number in range(KILLS):
            server.start(tmp_path, port)
            if number % 2:  # half of the daemons get to their work, however busy the machine is
                client.ask("GET", "/info")
            if is_given_up.wait(moments.uniform(0, LONGEST_LIFE_S)):
                break
            server.kill()
        else:
            server.start(tmp_path, port)
        for submitter in submitters:
            submitter.ends.set()
            submitter.join(END_S)
        assert [submitter.failure for submitter in submitters] == [None] * CLIENTS
        states = states_in_the_end(client)
        client.http.close()
        (tmp_path / "stop").touch()
        assert server.said() == "stopped"
        server.await_end()

    store = sqlite_store(tmp_path / "state.db")
    stored = {id: (app.data.state, app.data.submission) for id, app in store.load_state().applications.items()}
    epoch = store.get_and_increment_epoch()
    store.stop()
    errors = [line for line in (tmp_path / "log").read_text().splitlines() if line.startswith(("ERROR", "CRITICAL"))]
    assert [line for line in errors if REFUSED_BY_YARN not in line] == []
    assert {id: state for id, (state, _) in stored.items()} == states
    assert epoch > KILLS // 2
    acknowledged = {id: name for submitter in submitters for id, name in submitter.acknowledged.items()}
    assert {id: submission.name for id, (_, submission) in stored.items()} == acknowledged
    assert len(set(acknowledged.values())) == len(acknowledged) >= CLIENTS
    assert set(Counter(id for submitter in submitters for id in submitter.ids).values()) == {1}  # none was given twice
    for submitter in submitters:
        assert submitter.seen_ended.items() <= states.items()
    for _, submission in stored.values():
        launch = submission.launch
        assert launch is not None
        assert (launch.commands, launch.environment) == ((f"run {submission.name}",), {"NAME": submission.name})
        assert submission.user == submission.name.rpartition("-")[0]
