"""What an administrator may do with the whole daemon through the ops API: set a log level for a while, and stop it."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from dispatcher.ops.answers import Answer, Real
from dispatcher.ops.process import service_roots
from dispatcher.service import Service, ServiceState
from dispatcher.util.foreign import describe, tell
from dispatcher.util.terminal import one_line
from dispatcher.web.plain_answers import Refusal

log: logging.Logger = logging.getLogger(__name__)

LONGEST_S: Final = 86_400.0
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class LogLevel(Answer):
    """The answer to `POST /log-level`."""

    logger: str
    level: str
    before: str
    for_s: Real


class Stopping(Answer):
    """The answer to `POST /stop`. `by`: SIGTERM, or services."""

    stopping: bool
    by: str


def log_level_request(body: Any) -> tuple[str, str, float]:
    """Logger, level and seconds of a request's body. Raises Refusal (400)."""
    if not isinstance(body, Mapping) or not body.keys() <= {"logger", "level", "for_s"}:
        raise Refusal(400, 'the body must be an object: {"logger": "dispatcher", "level": "DEBUG", "for_s": 60}')
    name, level, for_s = body.get("logger"), body.get("level"), body.get("for_s")
    if not isinstance(name, str) or len(name) > 500:
        raise Refusal(400, 'logger: expected the name of a logger; "" is the root logger')
    if not isinstance(level, str) or level.upper() not in LEVELS:
        raise Refusal(400, f"level: expected one of {', '.join(LEVELS)}")
    if isinstance(for_s, bool) or not isinstance(for_s, int | float) or not 0 < for_s <= LONGEST_S:
        raise Refusal(400, f"for_s: expected seconds, above 0 and at most {LONGEST_S:,.0f}")
    return name, level.upper(), float(for_s)


def stop_daemon(kill: Callable[[int, int], None] = os.kill) -> Stopping:
    """Begin the drain that SIGTERM makes; returns how. Any thread; it does not wait.

    Where no handler of SIGTERM is installed, the signal would end the process without a drain: then a thread stops the
    services, the last started first.
    """
    if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, signal.SIG_IGN, None):
        kill(os.getpid(), signal.SIGTERM)
        return Stopping(stopping=True, by="SIGTERM")
    threading.Thread(target=_stop_services, args=(service_roots(),), name="ops-stop").start()
    return Stopping(stopping=True, by="services")


def _stop_services(roots: list[Service]) -> None:
    doors: list[Service] = []
    others: list[Service] = []
    for root in roots:
        if root.in_state(ServiceState.STARTED):
            (doors if getattr(root, "is_door", False) else others).append(root)
    for root in (*others, *doors):  # a door stops last
        try:
            root.stop()
        except Exception as error:
            tell(log, logging.ERROR, "%s: could not be stopped: %s", one_line(root.name), describe(error))
