"""`kill -9` of a daemon at any moment, again and again, while clients submit: what was acknowledged stays."""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

import pytest

from statemachines.resourcemanager import ApplicationSubmission, Resource

from ....kit import tries
from ..stores import sqlite_store
from .daemons import Daemons

pytestmark = pytest.mark.long

KILLS = tries(25)
CLIENTS = 6
LONGEST_LIFE_S = 0.3
PAUSE_S = 0.01
"""Between two applications of a client, so that each recovery stays small."""
ANSWER_S = 60.0
END_S = 180.0
REFUSED_BY_YARN = "no transition from FINAL_SAVING on REGISTERED"
"""A daemon that a busy machine holds up expires the container of a master that is about to register. The end of the
container may be ahead of the registration in the queue, and YARN's table has no row for that either."""
FINAL = {"FINISHED", "FAILED", "KILLED"}


class Caller:
    """Calls whichever daemon there is; again, if it was killed before it answered."""

    def __init__(self, folder: Path, is_given_up: threading.Event) -> None:
        self._address = str(folder / "socket")
        self._is_given_up = is_given_up
        self._connection: Connection | None = None

    def call(self, name: str, *arguments: Any) -> Any:
        while True:
            try:
                if self._connection is None:
                    self._connection = Client(self._address, "AF_UNIX")
                self._connection.send((name, *arguments))
                assert self._connection.poll(ANSWER_S), f"no answer to {name} in {ANSWER_S} s"
                is_good, answer = self._connection.recv()
            except (EOFError, OSError):
                self.close()
                assert not self._is_given_up.wait(0.002), "given up"
                continue
            assert is_good, answer
            return answer

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Submitter(threading.Thread):
    """A client: one application after the other, and now and then a look at the states of all."""

    def __init__(self, number: int, folder: Path, is_given_up: threading.Event) -> None:
        super().__init__(name=f"client-{number}", daemon=True)
        self.ends = threading.Event()
        self._is_given_up = is_given_up  # the test has failed, by whichever thread
        self.caller = Caller(folder, is_given_up)
        self.acknowledged: dict[str, str] = {}  # names by id
        self.seen_ended: dict[str, str] = {}  # states by id
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.ends.wait(PAUSE_S):
                name = f"{self.name}-{len(self.acknowledged)}"
                app_id = self.caller.call("new")
                submission = ApplicationSubmission(name, Resource(1, 1), application_id=app_id)
                assert self.caller.call("submit", submission) == app_id
                self.acknowledged[app_id] = name
                if len(self.acknowledged) % 10 == 0:
                    states = self.caller.call("states")
                    self.seen_ended.update({id: state for id, (_, state) in states.items() if state in FINAL})
        except BaseException as error:
            self.failure = error
            self._is_given_up.set()
        finally:
            self.caller.close()


@pytest.fixture
def daemons() -> Iterator[Daemons]:
    with tempfile.TemporaryDirectory(prefix="rm-") as folder:  # short: the path of a socket may not be long
        daemons = Daemons(Path(folder))
        try:
            yield daemons
        finally:
            daemons.close()
            print(daemons.log())  # pytest shows it if the test fails


@pytest.fixture
def is_given_up() -> Iterator[threading.Event]:
    """Set once the test is over: no client calls any longer."""
    is_given_up = threading.Event()
    yield is_given_up
    is_given_up.set()


def states_in_the_end(caller: Caller) -> dict[str, tuple[str, str]]:
    """Name and state of all applications, once all have ended."""
    deadline_s = time.monotonic() + END_S
    while True:
        states: dict[str, tuple[str, str]] = caller.call("states")
        going_on = {id: state for id, (_, state) in states.items() if state not in FINAL}
        if not going_on:
            return states
        assert time.monotonic() < deadline_s, f"these do not end: {going_on}"
        threading.Event().wait(0.05)


@pytest.mark.slow
def test_killed_at_any_moment_no_acknowledged_application_is_lost_or_doubled(
    daemons: Daemons, is_given_up: threading.Event
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # of the moments; pytest shows it if the test fails
    moments = random.Random(seed)
    submitters = [Submitter(number, daemons.folder, is_given_up) for number in range(CLIENTS)]
    for submitter in submitters:
        submitter.start()

    caller = Caller(daemons.folder, is_given_up)
    try:
        for number in range(KILLS):
            daemons.start()
            if number % 2:  # half of the daemons get to their work, however busy the machine is
                caller.call("states")
            if is_given_up.wait(moments.uniform(0, LONGEST_LIFE_S)):
                break
            daemons.kill()
        else:
            daemons.start()
    finally:
        for submitter in submitters:
            submitter.ends.set()
            submitter.join(END_S)
        assert [submitter.failure for submitter in submitters] == [None] * CLIENTS
    ended = states_in_the_end(caller)
    caller.call("stop")
    caller.close()
    exit_status = daemons.end()
    errors = [line for line in daemons.log().splitlines() if line.startswith(("ERROR", "CRITICAL"))]
    errors = [line for line in errors if REFUSED_BY_YARN not in line]

    names = {id: name for id, (name, _) in ended.items()}
    states = {id: state for id, (_, state) in ended.items()}
    acknowledged = {id: name for submitter in submitters for id, name in submitter.acknowledged.items()}
    assert names == acknowledged
    assert len(set(names.values())) == len(names) >= CLIENTS
    for submitter in submitters:
        assert submitter.seen_ended.items() <= states.items()
    store = sqlite_store(daemons.folder / "state.db")
    stored = {id: app.data.state for id, app in store.load_state().applications.items()}
    epoch = store.get_and_increment_epoch()
    store.stop()
    assert errors == []
    assert (exit_status, stored) == (0, states)
    assert epoch > KILLS // 2
