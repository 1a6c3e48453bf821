"""The process of a Python worker of Spark: its memory between tasks, and its end.

PySpark's workers exit by `os._exit`, which runs no exit handlers. They also reset their signal handlers before each
task, so a handler set once would miss the SIGHUP with which the daemon ends idle workers. So this module wraps both, in
worker processes only: `os._exit` calls back first, and when the worker restores the default action of SIGHUP or
SIGTERM, it gets a handler that calls back and then does the default action.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext

_SIGNALS: Final = (signal.SIGHUP, signal.SIGTERM)

_is_frozen = False  # of this process; the worker's main thread


def reuses_workers() -> bool:
    """Whether this worker gets another task after its task."""
    return bool(os.environ.get("SPARK_REUSE_WORKER"))


def freeze_modules() -> None:
    """Exempt what this worker has loaded so far from garbage collection, once. Main thread of a worker only.

    PySpark's daemon collects all garbage after each task, and looks at each object of pandas, PyArrow and this project:
    40 ms, where a task of a few rows takes 4. Nothing of the user's is loaded yet, so that no object of theirs is kept.
    """
    global _is_frozen
    if _is_frozen or not reuses_workers() or TaskContext.get() is None:
        return
    _is_frozen = True
    pa.array([0])  # PyArrow imports pandas, if it is there, when it makes its first array
    gc.collect()
    gc.freeze()


def leave_worker() -> None:
    """End this worker process, whose task has no reader left. Main thread of a worker only.

    PySpark would end it as well, after it had failed to send how the task went, and it would print that twice.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


def call_at_worker_end(callback: Callable[[], None], timeout: float) -> None:
    """Run `callback` once before this process ends, unless it is killed. Call once per process, from the main thread.

    The callback runs on its own thread, because the main thread may hold any lock at that moment, and is abandoned
    after `timeout` seconds. Forked children do not run it.
    """
    owner = os.getpid()
    is_called = threading.Event()
    set_handler, leave = signal.signal, os._exit

    def call_once() -> None:
        if os.getpid() == owner and not is_called.is_set():
            is_called.set()
            thread = threading.Thread(target=callback, name="worker end", daemon=True)
            thread.start()
            thread.join(timeout)

    def end_by_signal(number: int, frame: Any) -> None:
        set_handler(number, signal.SIG_DFL)
        call_once()
        os.kill(os.getpid(), number)

    def set_handler_or_ours(number: int, handler: Any) -> Any:
        is_default = handler == signal.SIG_DFL and number in _SIGNALS and os.getpid() == owner
        return set_handler(number, end_by_signal if is_default else handler)

    def call_and_leave(status: int) -> None:
        call_once()
        leave(status)

    atexit.register(call_once)
    signal.signal = set_handler_or_ours  # type: ignore[assignment]
    os._exit = call_and_leave  # type: ignore[assignment]
    for number in _SIGNALS:
        if signal.getsignal(number) == signal.SIG_DFL:
            set_handler(number, end_by_signal)
