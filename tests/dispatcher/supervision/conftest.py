"""What tests of signals share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest


def signal_state() -> tuple[Any, ...]:
    """The handlers of the signals that end a daemon, and the descriptor that signals wake."""
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    return signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), wakeup


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture
def signals_are_restored() -> Iterator[None]:
    before = signal_state()
    yield
    assert signal_state() == before
