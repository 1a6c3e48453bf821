"""`dispatcher changes`, `nodes` and `queues` against a running resource manager."""

from __future__ import annotations

import getpass
import json
import re
from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any

import pytest

pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("uvicorn", reason="the extra web is not installed")
pytest.importorskip("jinja2", reason="the extra web is not installed")

from ..kit.commands import Ended, run_here
from .resourcemanager.web.front import NODE, NODE_ID, Front, front

QUEUES = [{"name": "a", "capacity": 60}, {"name": "b", "capacity": 40}]


class Desk:
    """The commands, over the Unix socket of one resource manager."""

    def __init__(self, made: Front) -> None:
        self.made = made
        self._to = f"unix:{made.door.socket_path}"

    def run(self, *words: str) -> Ended:
        return run_here(*words, self._to) if words[0] == "changes" else run_here(*words, "--to", self._to)

    def done(self, *words: str) -> list[str]:
        """The changes that a command lists, but for their times."""
        ended = self.run(*words)
        assert (ended.code or 0, ended.err) == (0, ""), ended
        return [re.sub(r" +", " ", re.sub(r" +\S+Z$", "", line)) for line in ended.out.splitlines()[1:]]


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    # The path of a socket has to be short, and tmp_path's may not be.
    with TemporaryDirectory() as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        with front(NODE, scheduler={"kind": "capacity", "queues": QUEUES}, web={"unix_socket": True}) as made:
            yield Desk(made)


def test_queues_are_stopped_resized_added_removed_and_given_up(desk: Desk) -> None:
    me = getpass.getuser()
    stopped = desk.done("queues", "stop", "root.a")
    changed = desk.done(
        *("queues", "change", "--set", "root.a:capacity=55", "--add", "root.c:capacity=5", "--add"),
        *("root.c:state=STOPPED", "--set", "root.a:acl_submit_applications=ann,bob etl"),
    )
    started = desk.done("queues", "start", "a")
    removed = desk.done("queues", "change", "--remove", "root.c", "--set", "root.a:capacity=60")
    ended = desk.run("queues", "give-up", "--all")

    assert stopped == [f"root.a state STOPPED RUNNING {me}"]
    assert changed == [
        f"root.a acl_submit_applications ann,bob etl - {me}",
        f"root.a capacity 55 60 {me}",
        f"root.a state STOPPED RUNNING {me}",
        f"root.c capacity 5 - {me}",
        f"root.c queue added - {me}",
        f"root.c state STOPPED - {me}",
    ]
    assert f"root.a state RUNNING RUNNING {me}" in started
    assert removed == [
        f"root.a acl_submit_applications ann,bob etl - {me}",
        f"root.a capacity 60 60 {me}",
        f"root.a state RUNNING RUNNING {me}",
    ]
    assert (ended.code or 0, ended.out) == (0, "no changes: the configuration counts\n")


def test_nodes_are_decommissioned_resized_labelled_and_given_up(desk: Desk) -> None:
    me = getpass.getuser()
    resized = desk.done("nodes", "resize", NODE_ID, "--memory", "1024", "--vcores", "1")
    labelled = desk.done("nodes", "label", NODE_ID, "gpu")
    desk.done("nodes", "give-up", NODE_ID, "capacity")
    unlabelled = desk.done("nodes", "label", NODE_ID)
    desk.done("nodes", "give-up", NODE_ID, "label")
    included = desk.done("nodes", "include", "n1", "n5")
    out = desk.done("nodes", "decommission", "n7", "--graceful", "--timeout", "5")
    desk.done("nodes", "include", "--all")
    back = desk.run("nodes", "recommission", "n7")

    assert resized == [f"{NODE_ID} capacity 1024 MB, 1 vcores 4096 MB, 4 vcores {me}"]
    assert labelled == [*resized, f"{NODE_ID} label gpu default {me}"]
    assert unlabelled == [f"{NODE_ID} label default default {me}"]
    assert included == [f"all hosts included n1,n5 - {me}"]
    assert out == [*included, f"n7 decommissioned gracefully - {me}"]
    assert back.out == "no changes: the configuration counts\n"


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (("queues", "stop", "nosuch"), 1, "HTTP 400: queue nosuch does not exist"),
        (("queues", "change", "--set", "root.a:capacity=50"), 1, "the queues below root: the capacities add up to 90"),
        (("queues", "change", "--set", "capacity=50"), 2, "capacity=50: expected QUEUE:KEY=VALUE"),
        (("queues", "change"), 1, "the request changes nothing"),
        (("queues", "give-up"), 2, "name the queues, or give --all"),
        (("queues", "give-up", "root.a"), 1, "queue root.a has no changes to give up"),
        (("nodes", "include"), 2, "name the hosts, or give --all"),
        (("nodes", "recommission", "n9"), 1, "host n9 is not decommissioned"),
        (("nodes", "label", "n9:1", "gpu"), 1, "n9:1"),
        (("nodes", "decommission", "a b"), 1, "is no name of a host"),
    ],
)
def test_mistake_is_one_line_and_changes_nothing(desk: Desk, words: tuple[str, ...], code: int, problem: str) -> None:
    ended = desk.run(*words)

    assert (ended.code, ended.out, ended.err.count("\n")) == (code, "", 1), ended
    assert problem in ended.err
    assert desk.run("changes").out == "no changes: the configuration counts\n"


def test_changes_are_listed_as_json_too(desk: Desk) -> None:
    desk.done("queues", "stop", "root.a")

    found: Any = json.loads(desk.run("changes", "--json").out)

    [change] = found["changes"]["queue"]
    assert (change["queue"], change["value"], change["inEffect"], found["changes"]["node"]) == (
        "root.a",
        "STOPPED",
        True,
        [],
    )
