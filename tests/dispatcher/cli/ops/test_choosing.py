"""Which daemon a name, a process id or nothing means."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dispatcher.cli.ops.doors import choose
from dispatcher.cli.ops.errors import NoDaemonError
from dispatcher.web.doors import Door

Listen = Callable[..., Door]


@pytest.fixture
def listen(tmp_path: Path) -> Iterator[Listen]:
    """Makes a door, on which somebody listens unless the daemon is dead."""
    with contextlib.ExitStack() as stack:

        def door(name: str, pid: int, *, is_dead: bool = False) -> Door:
            made = Door(name, pid, tmp_path / f"{name}-{pid}.sock")
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(made.path))
            if is_dead:
                listener.close()
            else:
                listener.listen()
            return made

        yield door


def test_the_only_daemon_needs_no_name(listen: Listen) -> None:
    door = listen("rm", 12)

    assert choose(None, [door]) == door


def test_a_daemon_is_meant_by_its_name_or_its_process_id(listen: Listen) -> None:
    doors = [listen("node-manager", 7), listen("rm", 12)]

    assert choose("node-manager", doors) == doors[0]
    assert choose("12", doors) == doors[1]


def test_a_socket_that_a_killed_daemon_has_left_is_not_meant(listen: Listen) -> None:
    dead, living = listen("rm", 7, is_dead=True), listen("rm", 12)

    assert choose(None, [dead, living]) == living
    assert choose("rm", [dead, living]) == living


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (None, r"several daemons are running: rm \(7\), rm \(12\), web \(13\); give one's name or process id"),
        ("rm", r"several daemons are named 'rm': rm \(7\), rm \(12\); give"),
        ("am", r"no daemon 'am': running are rm \(7\), rm \(12\), web \(13\); give a name, a process id"),
    ],
)
def test_where_it_is_not_clear_the_message_lists_what_there_is(
    wanted: str | None, message: str, listen: Listen
) -> None:
    doors = [listen("rm", 7), listen("rm", 12), listen("web", 13)]

    with pytest.raises(NoDaemonError, match=message):
        choose(wanted, doors)


@pytest.mark.parametrize("wanted", [None, "rm", "12"])
def test_without_any_daemon_the_message_says_so(wanted: str | None) -> None:
    with pytest.raises(NoDaemonError, match="no running daemon found for this user"):
        choose(wanted, [])


def test_a_long_list_is_cut(listen: Listen) -> None:
    doors = [listen("d", number) for number in range(1, 31)]

    with pytest.raises(NoDaemonError, match=r"d \(10\), and 20 more; give"):
        choose(None, doors)
