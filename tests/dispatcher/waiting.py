"""What tests of threads share: waits that end, and runs of several threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from .conftest import TIMEOUT_S


def until(condition: Callable[[], Any], what: str = "the condition") -> None:
    """Let other threads run until `condition()` holds; fails the test if it never does."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} has not come about in {TIMEOUT_S} s"
        time.sleep(0)


def in_threads(*actions: Callable[[], Any]) -> None:
    """Run the actions side by side, started at the same moment; the first error of one fails the test."""
    together = threading.Barrier(len(actions))
    errors: list[BaseException] = []

    def run(action: Callable[[], Any]) -> None:
        try:
            together.wait(TIMEOUT_S)
            action()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(action,), daemon=True) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive(), f"{thread.name} hangs"
    if errors:
        raise errors[0]
