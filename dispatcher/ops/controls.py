"""What an administrator may do through the ops API: set a log level for a while, post dead letters again, and stop the
daemon."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dispatcher.dead_letters import MOST_AT_ONCE, LettersElsewhereError
from dispatcher.errors import EventRefusedError
from dispatcher.ops.process import service_roots
from dispatcher.service import Service, ServiceState
from dispatcher.util.foreign import describe, tell
from dispatcher.util.terminal import one_line
from dispatcher.view import DispatcherView
from dispatcher.web.plain_answers import Refusal

log = logging.getLogger(__name__)

LONGEST_S: Final = 86_400.0
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class LogLevels:
    """Levels of loggers that go back by themselves. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _changed; logging's own lock may be taken under it
        # By logger: the level before the first change, and the timer that restores it; guarded by _lock.
        self._changed: dict[str, tuple[int, threading.Timer]] = {}

    def change(self, name: str, level: str, for_s: float) -> dict[str, Any]:
        """Set a level for so many seconds; a later change of the same logger replaces this one."""
        logger = logging.getLogger(name)
        timer = threading.Timer(for_s, lambda: self._restore(name, timer))
        timer.daemon = True
        timer.name = "ops-log-level"
        with self._lock:
            timer.start()  # first: without it the level would stay; it cannot restore before _lock is free
            before, earlier = self._changed.get(name, (logger.level, None))
            if earlier is not None:
                earlier.cancel()
            self._changed[name] = before, timer
            logger.setLevel(level)
        return {"logger": name, "level": level, "before": logging.getLevelName(before), "for_s": for_s}

    def restore_all(self) -> None:
        """Undo every change now."""
        with self._lock:
            changed = dict(self._changed)
        for name, (_, timer) in changed.items():
            timer.cancel()
            self._restore(name, timer)

    def _restore(self, name: str, timer: threading.Timer) -> None:
        with self._lock:
            before, latest = self._changed.get(name, (0, None))
            if latest is timer:
                del self._changed[name]
                logging.getLogger(name).setLevel(before)


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


def redelivery_request(body: Any) -> tuple[list[int], str]:
    """The numbers of dead letters, and the id of their folder's journal. Raises Refusal (400)."""
    if not isinstance(body, Mapping) or body.keys() != {"letters", "journal"}:
        raise Refusal(400, 'the body must be an object: {"letters": [3, 17], "journal": "the id in journal.json"}')
    letters, journal = body["letters"], body["journal"]
    if not isinstance(letters, list) or not all(type(each) is int for each in letters) or len(letters) > MOST_AT_ONCE:
        raise Refusal(400, f"letters: expected at most {MOST_AT_ONCE} numbers")
    if not isinstance(journal, str):
        raise Refusal(400, "journal: expected the id in the folder's journal.json")
    return letters, journal


def redeliver_letters(view: DispatcherView, numbers: Sequence[int], journal_id: str) -> dict[str, Any]:
    """Post dead letters again. Waits for the disk. Raises Refusal (409): the dispatcher has not these letters."""
    if view.dead_letters is None:
        raise Refusal(409, f"{view.name}: keeps no dead letters")
    try:
        found = view.dead_letters.redeliver(numbers, journal_id)
    except (LettersElsewhereError, EventRefusedError) as error:
        raise Refusal(409, str(error)) from error
    refused = [{"letter": number, "reason": reason} for number, reason in found.refused.items()]
    return {"posted": found.posted, "refused": refused}


def stop_daemon(kill: Callable[[int, int], None] = os.kill) -> str:
    """Begin the drain that SIGTERM makes; returns how. Any thread; it does not wait.

    Where no handler of SIGTERM is installed, the signal would end the process without a drain: then a thread stops the
    services, the last started first.
    """
    if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, signal.SIG_IGN, None):
        kill(os.getpid(), signal.SIGTERM)
        return "SIGTERM"
    threading.Thread(target=_stop_services, args=(service_roots(),), name="ops-stop").start()
    return "services"


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
