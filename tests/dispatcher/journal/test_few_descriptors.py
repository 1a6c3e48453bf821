"""A journal goes on while clients, or files of the daemon itself, take every descriptor that the process may have."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from dispatcher.journal import verify

from ...kit import TIMEOUT_S
from ._few_descriptors import EVENTS

IDLE = 400


@contextmanager
def daemon(journal: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The process, and the port of its metrics."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.dispatcher.journal._few_descriptors", str(journal), *flags],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def check(process: subprocess.Popen[str], journal: Path) -> None:
    out, err = process.communicate("go\n", timeout=120)
    assert (out, err) == (f"{EVENTS} None\n", "")
    found = verify(journal)
    assert (found.events, found.problems) == (EVENTS, ())
    assert found.open_segments == ()
    assert len(list(journal.glob("segment-*"))) > 2


@pytest.mark.long
def test_400_idle_connections_to_the_metrics_take_neither_the_journals_descriptors_nor_a_scrapes(
    tmp_path: Path,
) -> None:
    """They were kept for ever; the journal could not open its next segment, and the daemon stopped."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < IDLE + 100:
        pytest.skip("this process may not open as many connections")
    with daemon(tmp_path / "journal") as (process, port), ExitStack() as clients:
        for _ in range(IDLE):
            clients.enter_context(socket.create_connection(("127.0.0.1", port), TIMEOUT_S))

        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT_S) as answer:
            assert answer.status == 200
        check(process, tmp_path / "journal")


@pytest.mark.long
def test_a_process_without_descriptors_goes_on_to_the_next_segment(tmp_path: Path) -> None:
    with daemon(tmp_path / "journal", "--take-all") as (process, _):
        check(process, tmp_path / "journal")
