"""Which daemon a name, a process id or nothing means."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from . import fake_daemon as fake
from .conftest import Run, Start

pytestmark = pytest.mark.long

Listen = Callable[[str], None]


@pytest.fixture
def listen(start: Start) -> Listen:
    """Starts daemons by their names and process ids; one that ends in `!` is gone, as after a kill."""

    def daemons(texts: str) -> None:
        for text in texts.split():
            name, _, pid = text.rstrip("!").partition(":")
            daemon = start(name, int(pid), fake.answers_of(pid=int(pid)))
            if text.endswith("!"):
                daemon.end()

    return daemons


@pytest.mark.parametrize(
    ("daemons", "wanted", "pid"),
    [
        ("rm:12", (), 12),
        ("node-manager:7 rm:12", ("node-manager",), 7),
        ("node-manager:7 rm:12", ("12",), 12),
        ("rm:7! rm:12", (), 12),
        ("rm:7! rm:12", ("rm",), 12),
    ],
)
def test_a_daemon_is_meant_by_its_name_or_process_id_or_as_the_only_one_that_answers(
    daemons: str, wanted: tuple[str, ...], pid: int, listen: Listen, run: Run
) -> None:
    listen(daemons)

    assert json.loads(run("status", "--json", *wanted).out)["process"]["pid"] == pid


@pytest.mark.parametrize(
    ("daemons", "wanted", "message"),
    [
        ("rm:7 rm:12 web:13", (), "several daemons are running: rm (7), rm (12), web (13); give one's name or"),
        ("rm:7 rm:12 web:13", ("rm",), "several daemons are named 'rm': rm (7), rm (12); give"),
        ("rm:7 rm:12 web:13", ("am",), "no daemon 'am': running are rm (7), rm (12), web (13); give a name, a process"),
        ("", (), "no running daemon found for this user"),
        ("", ("rm",), "no running daemon found for this user"),
        ("", ("12",), "no running daemon found for this user"),
        (" ".join(f"d:{number}" for number in range(1, 31)), (), "d (10), and 20 more; give"),
    ],
)
def test_where_it_is_not_clear_the_message_lists_what_there_is(
    daemons: str, wanted: tuple[str, ...], message: str, listen: Listen, run: Run
) -> None:
    listen(daemons)

    ended = run("status", *wanted)

    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err
