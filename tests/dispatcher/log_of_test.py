"""A logger that writes to a file of a test, as `configure_logging` leaves it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dispatcher.util.log_files import guard_handlers


@contextmanager
def log_on(
    path: Path | str,
    clock_ns: Callable[[], int] = time.monotonic_ns,
    *,
    kind: type[logging.FileHandler] = logging.FileHandler,
    mode: str = "a",
) -> Iterator[logging.Logger]:
    log, handler = logging.getLogger("of.a.test.with.a.file"), kind(path, mode)
    log.propagate = False
    log.addHandler(handler)
    guard_handlers(clock_ns)
    try:
        yield log
    finally:
        log.removeHandler(handler)
        handler.close()
        guard_handlers()
