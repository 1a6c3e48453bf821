"""Which daemon a name, a process id or nothing means."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dispatcher.cli.ops.doors import choose
from dispatcher.cli.ops.errors import NoDaemonError
from dispatcher.web.doors import Door

Listen = Callable[[str], list[Door]]


@pytest.fixture
def listen(tmp_path: Path) -> Iterator[Listen]:
    """Makes doors by their names and process ids; on one that ends in `!` nobody listens, as after a kill."""
    with contextlib.ExitStack() as stack:

        def doors(texts: str) -> list[Door]:
            made = []
            for text in texts.split():
                name, _, pid = text.rstrip("!").partition(":")
                door = Door(name, int(pid), tmp_path / f"{name}-{pid}.sock")
                listener = stack.enter_context(socket.socket(socket.AF_UNIX))
                listener.bind(str(door.path))
                if text.endswith("!"):
                    listener.close()
                else:
                    listener.listen()
                made.append(door)
            return made

        yield doors


@pytest.mark.parametrize(
    ("doors", "wanted", "pid"),
    [
        ("rm:12", None, 12),
        ("node-manager:7 rm:12", "node-manager", 7),
        ("node-manager:7 rm:12", "12", 12),
        ("rm:7! rm:12", None, 12),
        ("rm:7! rm:12", "rm", 12),
    ],
)
def test_a_daemon_is_meant_by_its_name_or_process_id_or_as_the_only_one_that_answers(
    doors: str, wanted: str | None, pid: int, listen: Listen
) -> None:
    assert choose(wanted, listen(doors)).pid == pid


@pytest.mark.parametrize(
    ("doors", "wanted", "message"),
    [
        ("rm:7 rm:12 web:13", None, "several daemons are running: rm (7), rm (12), web (13); give one's name or"),
        ("rm:7 rm:12 web:13", "rm", "several daemons are named 'rm': rm (7), rm (12); give"),
        ("rm:7 rm:12 web:13", "am", "no daemon 'am': running are rm (7), rm (12), web (13); give a name, a process id"),
        ("", None, "no running daemon found for this user"),
        ("", "rm", "no running daemon found for this user"),
        ("", "12", "no running daemon found for this user"),
        (" ".join(f"d:{number}" for number in range(1, 31)), None, "d (10), and 20 more; give"),
    ],
)
def test_where_it_is_not_clear_the_message_lists_what_there_is(
    doors: str, wanted: str | None, message: str, listen: Listen
) -> None:
    with pytest.raises(NoDaemonError, match=re.escape(message)):
        choose(wanted, listen(doors))
