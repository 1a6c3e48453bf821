"""What an administrator may do through the ops API: set a log level for a while, post dead letters again, and stop the
daemon."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from dispatcher.dead_letters import MOST_AT_ONCE, LettersElsewhereError
from dispatcher.ops.answers import Answer, Real, Whole
from dispatcher.ops.process import service_roots
from dispatcher.service import Service, ServiceState
from dispatcher.util.foreign import describe, tell
from dispatcher.util.terminal import one_line
from dispatcher.web.plain_answers import Refusal

if TYPE_CHECKING:
    from dispatcher.view import DispatcherView

log = logging.getLogger(__name__)

LONGEST_S: Final = 86_400.0
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class LogLevel(Answer):
    """The answer to `POST /log-level`."""

    logger: str
    level: str
    before: str
    for_s: Real


class RefusedLetter(Answer):
    """A dead letter that cannot be posted again."""

    letter: Whole
    reason: str


class Redelivered(Answer):
    """The answer to `POST /dispatchers/{name}/redeliver`. Letters in neither found no room."""

    posted: list[Whole]
    refused: list[RefusedLetter]


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


def redeliver_letters(view: DispatcherView, numbers: Sequence[int], journal_id: str) -> Redelivered:
    """Post dead letters again. Waits for the disk. Raises Refusal (409): the dispatcher has not these letters."""
    if view.dead_letters is None:
        raise Refusal(409, f"{view.name}: keeps no dead letters")
    try:
        found = view.dead_letters.redeliver(numbers, journal_id)
    except LettersElsewhereError as error:
        raise Refusal(409, str(error)) from error
    refused = [RefusedLetter(letter=number, reason=reason) for number, reason in found.refused.items()]
    return Redelivered(posted=list(found.posted), refused=refused)


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
