"""A thread that a test holds in one function, so that everything else that it has to do waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from . import TIMEOUT_S


@contextmanager
def held(execute: Callable[..., Any], *more: Any) -> Iterator[threading.Event]:
    """The thread on which `execute(function, *more)` runs a function is busy with one, in the block.

    Setting the event lets it go on before the end of the block.
    """
    begun, goes_on = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        goes_on.wait(TIMEOUT_S)

    execute(hold, *more)
    assert begun.wait(TIMEOUT_S)
    try:
        yield goes_on
    finally:
        goes_on.set()
