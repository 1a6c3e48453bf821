"""A callback at the end of a Spark Python worker.

PySpark's workers exit by `os._exit`, which runs no exit handlers. They also reset their signal handlers before each
task, so a handler set once would miss the SIGHUP with which the daemon ends idle workers. So this module wraps both, in
worker processes only: `os._exit` runs the callback first, and when the worker restores the default action of SIGHUP or
SIGTERM, it gets a handler that runs the callback and then the default action. A worker that is killed runs nothing.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Callable
from typing import Any, Final

_SIGNALS: Final = (signal.SIGHUP, signal.SIGTERM)


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
