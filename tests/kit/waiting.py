"""What tests of threads share: waits that end, and runs of several threads."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

TIMEOUT_S = 60.0
"""For waits that succeed at once unless something is broken."""


def until(condition: Callable[[], Any], what: str = "the condition") -> None:
    """Look again and again until `condition()` holds; fails the test if it never does.

    It looks less often as time passes: a thread that only looks takes the processor from those that it waits for.
    """
    deadline = time.monotonic() + TIMEOUT_S
    pause_s = 0.0
    while not condition():
        assert time.monotonic() < deadline, f"{what} has not come about in {TIMEOUT_S} s"
        time.sleep(pause_s)
        pause_s = min(0.02, pause_s + 0.0002)


def until_released(condition: Callable[[], Any], what: str) -> None:
    """As `until`, of objects that only references keep.

    Without a GIL, some objects wait for the garbage collector, and others until the thread that made them runs again.
    """
    is_free_threaded = not getattr(sys, "_is_gil_enabled", lambda: True)()
    until(lambda: condition() or (is_free_threaded and gc.collect() and condition()), what)


@contextmanager
def no_thread_is_left(*but: str) -> Iterator[None]:
    """Each thread that is started inside ends, unless its name is one of `but`.

    It is waited for: a thread that has done its work may not have ended yet.
    """
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name not in but:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive(), f"{thread.name} is left"


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
