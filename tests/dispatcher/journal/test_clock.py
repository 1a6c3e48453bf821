"""The times of a journal's rows, while the system clock is set forward and back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher import AsyncDispatcher, DispatcherConfig, JournalWriter
from dispatcher.journal import EVENTS, read_rows, verify

from ...kit import TIMEOUT_S, Numbered, Work
from ...kit.journals import read_summary, segments

pytestmark = pytest.mark.long

_NS_PER_S = 1_000_000_000
_SLOW_NS = 30 * _NS_PER_S
"""A busy machine is not slower than this between two looks at the clock; a step is longer."""
_BACK_NS = 10_000_000
"""How far rows may be ahead of the system clock after a small step back."""


class SystemClock:
    """Stands for the system clock, which the test sets."""

    def __init__(self) -> None:
        self.ahead_ns = 0
        self.looks_ns: list[int] = []

    def time_ns(self) -> int:
        return time.time_ns() + self.ahead_ns

    def handle(self, event: Numbered) -> None:
        """The handler: notes the time, then sets the clock by the number of seconds that the event tells."""
        self.looks_ns.append(self.time_ns())
        self.ahead_ns += int(event.number / 1000 * _NS_PER_S)


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> SystemClock:
    system = SystemClock()
    clocks = SimpleNamespace(time_ns=system.time_ns, perf_counter_ns=time.perf_counter_ns)
    monkeypatch.setattr("dispatcher.dispatching.journaled.time", clocks)
    # A look and a flush after each event, as after each that takes 10 ms.
    monkeypatch.setattr("dispatcher.dispatching.journaled._LOOK_EVERY_NS", 0)
    monkeypatch.setattr("dispatcher.journal.keeper.FLUSH_DELAY_MS", 0)
    return system


def rows_by_segment(journal: Path) -> Iterator[list[int]]:
    """The times at which the events of each segment began."""
    rows = {row["seq"]: row["started_at"] for row in read_rows(journal, EVENTS)}
    for segment in segments(journal):
        summary = read_summary(segment)
        assert summary is not None
        yield [rows[seq] for seq in range(summary.first_seq, summary.next_seq)]


def run(system: SystemClock, journal: Path, steps_ms: list[int], *, in_one_batch: bool) -> None:
    system.looks_ns.clear()
    dispatcher = AsyncDispatcher(DispatcherConfig(batch_size=100), journal=JournalWriter(journal))
    dispatcher.register(Work, system.handle)
    with dispatcher:
        if in_one_batch:  # the handler thread handles them once it has posted all
            post = dispatcher.event_handler.handle
            dispatcher.mailbox_executor.submit(lambda: [post(Numbered(step_ms)) for step_ms in steps_ms]).result(
                TIMEOUT_S
            )
            return
        for step_ms in steps_ms:
            assert dispatcher.event_handler.handle(Numbered(step_ms))
            assert dispatcher.await_drained(TIMEOUT_S)


steps = st.lists(st.sampled_from([-3_600_000, -60_000, -5, 0, 5, 60_000, 3_600_000]), max_size=8)


@pytest.mark.parametrize("in_one_batch", [False, True])
def test_rows_follow_the_system_clock_and_never_go_back_within_a_segment(
    system: SystemClock, in_one_batch: bool
) -> None:
    """After a step of the clock or a suspend, all rows were off until the restart."""

    @settings(max_examples=40)
    @given(steps)
    def check(steps_ms: list[int]) -> None:
        with TemporaryDirectory() as folder:
            journal = Path(folder)
            run(system, journal, [*steps_ms, 0], in_one_batch=in_one_batch)

            began = list(rows_by_segment(journal))
            assert verify(journal).problems == ()
        assert all(times == sorted(times) for times in began)
        for began_ns, looked_ns in zip(chain.from_iterable(began), system.looks_ns, strict=True):
            assert looked_ns - _SLOW_NS < began_ns <= looked_ns + _BACK_NS
        assert len(began) <= 1 + sum(step_ms < 0 for step_ms in steps_ms)

    check()


def test_durations_do_not_change_when_the_clock_is_set(system: SystemClock, tmp_path: Path) -> None:
    run(system, tmp_path, [-3_600_000, 3_600_000, 0], in_one_batch=False)

    for row in read_rows(tmp_path, EVENTS):
        assert 0 <= row["finished_at"] - row["started_at"] == row["handling_ns"] < _SLOW_NS
        assert 0 <= row["started_at"] - row["enqueued_at"] == row["queue_ns"] < _SLOW_NS
