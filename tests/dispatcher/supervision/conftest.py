"""What tests of signals share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest


def signal_state() -> tuple[Any, ...]:
    """The handlers of the signals that end a daemon, and the descriptor that signals wake."""
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    return signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), wakeup


@pytest.fixture
def signals_are_restored() -> Iterator[tuple[Any, ...]]:
    """As they were before: that is its value."""
    before = signal_state()
    yield before
    assert signal_state() == before
