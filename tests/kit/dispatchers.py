"""What tests do with dispatchers that run: hold one in an event, and stop one while they look."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dispatcher import AsyncDispatcher

from . import TIMEOUT_S, Gate, Numbered, until

Make = Callable[..., AsyncDispatcher]
"""The fixture `make`: takes the arguments of a dispatcher and, as `handler`, one for its events of Work."""


def hold(dispatcher: Any, gate: Gate, event: Any = None) -> None:
    """Post an event, and return once its handler, the gate, is in it."""
    assert dispatcher.post(Numbered() if event is None else event)
    assert gate.entered.wait(TIMEOUT_S)


@contextmanager
def stopping(service: Any) -> Iterator[None]:
    """Stop a dispatcher or a group in another thread. Inside, the stop has begun; afterwards, it has returned."""
    stop = threading.Thread(target=service.stop, daemon=True)
    stop.start()
    parts = getattr(service, "partitions", (service,))
    until(lambda: all(part.core.queue.phase for part in parts), "the stop has begun")
    yield
    stop.join(TIMEOUT_S)
    assert not stop.is_alive(), "the stop has not returned"
