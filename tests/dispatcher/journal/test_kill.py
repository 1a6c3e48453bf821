"""A daemon in write-ahead mode that is killed at random moments loses no event that it accepted, and invents none."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher.journal import EVENTS, read_rows, recover, verify

from ...kit import tries
from ...kit.killed import Server, forking
from . import _daemon

KILLS = tries(12)


class Daemon:
    """Runs the daemon on one journal, again and again."""

    def __init__(self, server: Server, folder: Path, segment_bytes: int, retention_bytes: int) -> None:
        self.server = server
        self.folder = folder
        self.journal = folder / "journal"
        self._sizes = segment_bytes, retention_bytes
        self._run = 0

    def start(self, events: int = 0, partitions: int = 0) -> None:
        self._run += 1
        self.server.start(self.journal, self.folder, *self._sizes, self._run, events, partitions)

    def kill_after(self, wait_s: float, *, ready: bool, partitions: int = 0) -> None:
        """kill -9, `wait_s` after the start, or after the first event was accepted."""
        self.start(partitions=partitions)
        if ready:
            assert self.server.said() == "ready"
        time.sleep(wait_s)  # the moment of the kill is what is random
        self.server.kill()

    def handle_all(self, partitions: int = 0) -> None:
        """A last run, of three events from each producer."""
        self.start(events=3, partitions=partitions)
        assert [self.server.said() for _ in range(3)] == ["ready", "stopped None", "ended 0"]

    def accepted(self, producer: int) -> list[int]:
        path = self.folder / f"accepted-{producer}"
        return list(map(int, path.read_text().splitlines())) if path.exists() else []

    def handled(self) -> dict[int, list[tuple[int, bool]]]:
        """By producer, the numbers in the order of their handling, and whether they were redelivered."""
        handled: dict[int, list[tuple[int, bool]]] = defaultdict(list)
        for line in (self.folder / "handled").read_text().splitlines():
            producer, number, redelivered = map(int, line.split())
            handled[producer].append((number, bool(redelivered)))
        return handled


def assert_none_lost(daemon: Daemon, moments: object) -> dict[int, list[tuple[int, bool]]]:
    """Every accepted event was handled, first in the order of its producer, and again only if it was redelivered."""
    handled = daemon.handled()
    assert all(daemon.accepted(producer) for producer in _daemon.LATER)
    for producer in range(_daemon.PRODUCERS):
        accepted = daemon.accepted(producer)
        seen: set[int] = set()
        for number, redelivered in handled[producer]:
            assert redelivered or number not in seen, moments
            seen.add(number)
        firsts = list(dict.fromkeys(number for number, _ in handled[producer]))
        assert set(accepted) <= set(firsts), moments
        assert firsts == sorted(firsts), moments
        # An event whose post the kill cut short may be in the log although its post did not return: one of each run,
        # or as many as are in flight.
        most = _daemon.MOST_UNDER_WAY if producer in _daemon.LATER else 1
        greatest = {number // _daemon.EACH_RUN: number for number in accepted}
        for number in set(firsts) - set(accepted):
            run = number // _daemon.EACH_RUN
            assert 1 <= number - greatest.get(run, run * _daemon.EACH_RUN) <= most, moments
    return handled


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with forking(_daemon) as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "segment_bytes", "retention_bytes"),
    [(1, 1 << 26, 0), (2, 4096, 0), (3, 4096, 20_000), (4, 1024, 1)],
    ids=["one segment", "rolling", "rolling and removal", "all at once"],
)
def test_accepted_events_are_handled_after_a_kill_in_the_order_of_their_producer(
    server: Server, tmp_path: Path, seed: int, segment_bytes: int, retention_bytes: int
) -> None:
    rng = random.Random(seed)
    daemon = Daemon(server, tmp_path, segment_bytes, retention_bytes)
    moments = []
    for _ in range(KILLS):
        moments.append((rng.uniform(0.001, 0.06), rng.random() < 0.9))
        daemon.kill_after(moments[-1][0], ready=moments[-1][1])
        # A draft of the manifest alone, such as .journal.json.new, is no journal yet.
        has_begun = any(not path.name.startswith(".") for path in daemon.journal.glob("*journal*"))
        if rng.random() < 0.2 and has_begun:
            assert verify(daemon.journal).problems == (), moments

    daemon.handle_all()

    handled = assert_none_lost(daemon, moments)
    assert len(list((tmp_path / "handled").read_text().splitlines())) > KILLS
    assert any(redelivered for events in handled.values() for _, redelivered in events)
    assert verify(daemon.journal)[2:] == ((), (), ())
    if not retention_bytes:
        numbers = [row["accepted_seq"] for row in read_rows(daemon.journal, EVENTS)]
        assert set(numbers) == set(range(1, max(numbers) + 1))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_after_a_kill_another_number_of_partitions_handles_the_accepted_events_in_the_order_of_their_key(
    server: Server, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    daemon = Daemon(server, tmp_path, 4096, 0)
    moments = []
    for _ in range(KILLS):
        moments.append((rng.uniform(0.001, 0.06), rng.random() < 0.7, rng.randint(1, 4)))
        daemon.kill_after(moments[-1][0], ready=moments[-1][1], partitions=moments[-1][2])

    daemon.handle_all(partitions=2)

    handled = assert_none_lost(daemon, moments)
    assert any(redelivered for events in handled.values() for _, redelivered in events)
    assert [recover(path).accepted for path in sorted(daemon.journal.glob("partition-*"))] == [()] * 4
