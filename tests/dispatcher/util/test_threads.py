"""A thread that starts at its first use."""

from __future__ import annotations

import threading

import pytest

from dispatcher.util.threads import LazyThread

from ...kit import TIMEOUT_S, no_thread_is_left
from ...kit.interrupting import INTERRUPTED_THREADS, Interrupt


@pytest.mark.parametrize("interrupted", INTERRUPTED_THREADS)
def test_one_thread_runs_after_a_start_that_was_interrupted(
    monkeypatch: pytest.MonkeyPatch, interrupted: type[threading.Thread]
) -> None:
    """One that had begun all the same ran beside the next: a journal in write-ahead mode had two writers."""
    lazy, runs = LazyThread("lazy"), threading.Semaphore(0)
    with no_thread_is_left():
        with monkeypatch.context() as patch:
            patch.setattr(threading, "Thread", interrupted)
            with pytest.raises(Interrupt):
                lazy.ensure(runs.release)
        assert lazy.thread is None

        assert lazy.ensure(runs.release)
        assert runs.acquire(timeout=TIMEOUT_S)

    assert not runs.acquire(blocking=False)
