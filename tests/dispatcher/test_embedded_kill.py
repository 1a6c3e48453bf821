"""A daemon with partitions, asks, timers, retries, dead letters and entities that is killed at random loses nothing."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher import DeadLetters
from dispatcher.journal import recover

from ..kit import tries
from ..kit.killed import Server, forking
from . import _embedded_daemon
from ._embedded_daemon import ATTEMPTS, EACH_RUN, KINDS, fails_always, fails_once


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with forking(_embedded_daemon) as server:
        yield server


def kill_at_random(server: Server, folder: Path, rng: random.Random, kills: int) -> list[object]:
    """Kill the daemon so often, let it finish, and return what it was given."""
    moments: list[object] = []
    for run in range(1, kills + 1):
        partitions = rng.choice((1, 2, 3)) if run % 5 == 0 else 2
        server.start(folder, run, partitions, 1)
        if is_ready := rng.random() < 0.8:
            assert server.said() == "ready"
        wait_s = rng.random() * 0.05
        moments.append((partitions, is_ready, round(wait_s, 4)))
        time.sleep(wait_s)  # the moment of the kill is what is random
        server.kill()
    server.start(folder, kills + 1, 2, 0)
    server.await_end()
    return moments


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_what_was_promised_is_handled_or_a_dead_letter_whenever_it_is_killed(
    server: Server, tmp_path: Path, seed: int
) -> None:
    moments = kill_at_random(server, tmp_path, random.Random(seed), tries(12))

    handled: dict[str, Counter[int]] = defaultdict(Counter)
    attempts: dict[int, set[int]] = defaultdict(set)
    order: list[tuple[str, int]] = []
    for line in (tmp_path / "handled").read_text().splitlines():
        kind, number, attempt = line.split()
        handled[kind][int(number)] += 1
        attempts[int(number)].add(int(attempt))
        order.append((kind, int(number)))
    dead: dict[str, Counter[int]] = defaultdict(Counter)
    for letter in DeadLetters(tmp_path / "dead"):
        assert letter.event_class == "Job", moments
        dead[letter.event["kind"]][letter.event["number"]] += 1
        assert letter.attempts == ATTEMPTS
    for kind in KINDS:
        promised = list(map(int, (tmp_path / f"accepted-{kind}").read_text().split()))
        assert promised, moments
        for number in promised:
            assert (handled[kind][number] > 0) != (dead[kind][number] > 0), (kind, number, moments)
            assert (dead[kind][number] > 0) == fails_always(number)
        # One more of each run may be in the log although its promise was cut short.
        last = {number // EACH_RUN: number for number in promised}
        for number in {*handled[kind], *dead[kind]} - set(promised):
            assert number == last.get(number // EACH_RUN, number // EACH_RUN * EACH_RUN) + 1, (kind, number, moments)
        assert all(min(attempts[number]) > 1 for number in handled[kind] if fails_once(number))
    # An answer that was seen does not come again.
    answered = map(int, (tmp_path / "accepted-ask").read_text().split())
    assert all(handled["ask"][number] == 1 for number in answered if not fails_always(number)), moments
    assert_orders_went_their_way(tmp_path, moments)
    for partition in sorted((tmp_path / "journal").glob("partition-*")):
        assert not recover(partition).accepted


def assert_orders_went_their_way(folder: Path, moments: object) -> None:
    """Each made the transitions of its accepted events, in their order; those that have ended are forgotten."""
    accepted: dict[str, list[str]] = defaultdict(list)
    made: dict[str, list[str]] = defaultdict(list)
    for name, lines in (("accepted-order", accepted), ("transitions", made)):
        for line in (folder / name).read_text().splitlines():
            entity, event_type = line.split()
            lines[entity].append(event_type)
    left = set((folder / "left").read_text().split())
    for entity, event_types in accepted.items():
        firsts = list(dict.fromkeys(made[entity]))
        assert firsts[: len(event_types)] == event_types, (entity, moments)
        assert (entity in left) == (firsts[-1] != "SHIPPED"), (entity, moments)
