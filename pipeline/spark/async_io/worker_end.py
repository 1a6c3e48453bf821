"""A callback for when a Spark Python worker ends.

PySpark's workers leave by `os._exit`, which calls nothing, and they reset their signal handlers before each task, so
that the SIGHUP by which the daemon ends them while they wait for one finds no handler. So both are wrapped, in worker
processes only: `os._exit` calls the callback first, and where the worker asks for the default action of SIGHUP or
SIGTERM it gets one that calls the callback and then does the default. A worker that is killed calls nothing.
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
    """Have `callback` called once before this process ends, if it ends in an orderly way. Once per process.

    For the main thread of a worker. The callback runs on a thread of its own and is left behind after `timeout`
    seconds: the main thread may hold any lock at that moment. Children that this process forks do not call it.
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
