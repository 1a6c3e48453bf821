"""Pauses in long work."""

from __future__ import annotations

import pytest

from dispatcher.journal.pacing import Pace


@pytest.fixture
def spent_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The thread's processor time, which a test sets; no other thread runs."""
    time_s = [0.0]
    monkeypatch.setattr("dispatcher.journal.pacing.time.thread_time", lambda: time_s[0])
    monkeypatch.setattr("dispatcher.journal.pacing.time.perf_counter", lambda: time_s[0])
    return time_s


def test_work_waits_in_proportion_once_a_piece_is_done(spent_s: list[float]) -> None:
    shares = iter([32.0, 1.0])
    waits: list[float] = []
    pace = Pace(0.001, lambda: next(shares), waits.append)

    for now_s in (0.0, 0.0009, 0.002, 0.0025, 0.005):
        spent_s[0] = now_s
        pace.pause()

    assert waits == pytest.approx([0.064, 0.003])
    assert pace.longest_s == pytest.approx(0.003)


def test_without_a_share_another_thread_still_gets_a_chance(spent_s: list[float]) -> None:
    waits: list[float] = []
    pace = Pace(0.001, wait=waits.append)

    spent_s[0] = 0.004
    pace.pause()

    assert [0 < wait < 0.001 for wait in waits] == [True]
