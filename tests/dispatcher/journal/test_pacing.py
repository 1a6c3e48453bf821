"""Pauses in long work."""

from __future__ import annotations

import pytest

from dispatcher.journal.pacing import ReadingPace


def test_work_waits_after_each_piece_so_that_other_threads_run(monkeypatch: pytest.MonkeyPatch) -> None:
    time_s = [0.0]
    waits: list[float] = []
    for name in ("thread_time", "perf_counter"):
        monkeypatch.setattr(f"dispatcher.journal.pacing.time.{name}", lambda: time_s[0])
    monkeypatch.setattr("dispatcher.journal.pacing.time.sleep", lambda wait_s: waits.append(time_s[0]))
    pace = ReadingPace(0.001)

    for now_s in (0.0, 0.0009, 0.002, 0.0025, 0.005):
        time_s[0] = now_s
        pace.pause()

    assert waits == [0.002, 0.005]
    assert pace.longest_s == pytest.approx(0.003)
