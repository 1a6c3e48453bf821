"""Runs: the event or mail that the handler thread is running, since when, and the runs that took too long.

While a handler yields to mail, its event remains the run.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, Final, Literal

from dispatcher.dispatching.progress import Progress
from dispatcher.mailbox.mail import Mail
from dispatcher.mailbox.processor import MailboxProcessor
from dispatcher.routes import Route
from dispatcher.util.foreign import class_name, cut_text, tell, text_of, type_name, type_of

log = logging.getLogger("dispatcher.async_dispatcher")

MAIL_TYPE: Final = ("(mail)", "")
"""Stands for the class and name of the event type, of a mail."""
_NEVER_NS: Final = 1 << 62
"""Longer than any run."""
_NAMES: Final = {"event": "a handler", "mail": "a mail"}


@dataclass(frozen=True, slots=True)
class Run:
    """One run. `subject` is the event or the Mail; `since_ns` is by perf_counter_ns, in a flood of the batch."""

    kind: Literal["event", "mail"]
    subject: Any
    since_ns: int

    def seconds(self) -> float:
        """How long it has run."""
        return max(0, perf_counter_ns() - self.since_ns) / 1e9

    def type_labels(self) -> tuple[str, str]:
        """The class and name of the event's type; `MAIL_TYPE` for a mail."""
        if self.kind == "mail":
            return MAIL_TYPE
        event_type = type_of(self.subject)
        return class_name(event_type), type_name(event_type)

    def what(self) -> str:
        """The event, or the mail's description, as text."""
        return mail_text(self.subject) if self.kind == "mail" else text_of(self.subject)


def mail_text(mail: Mail) -> str:
    """A mail's description; raises nothing."""
    return cut_text(lambda: mail.description)


def current_run(progress: Progress, processor: MailboxProcessor) -> Run | None:
    """What the handler thread is running; None: it waits, or is between two runs. Any thread."""
    running = processor.running()
    if running is not None:
        return Run("mail", *running)
    since_ns, event = progress.since_ns, progress.event()
    return Run("event", event, since_ns) if since_ns and event is not None else None


def duration(seconds: float) -> str:
    """`73.2 s`, with three digits or more."""
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"


class SlowRuns:
    """Runs longer than a limit (None: no run is). The handler thread reports them when they end.

    A run that was logged while it ran is logged again, with its duration, when it has ended: by the handler thread or
    by the thread that logged it, whichever comes later.
    """

    def __init__(self, name: str, limit_s: float | None) -> None:
        self._name = name
        self.limit_ns: Final = _NEVER_NS if limit_s is None else int(limit_s * 1e9)
        # Starts of runs that were logged and have not ended; any thread, in single steps.
        self._announced: deque[int] = deque(maxlen=4)
        self._ended: tuple[int, int, str] = (0, 0, "")  # the last slow run; the handler thread replaces it whole

    def event_ended(self, route: Route, event: Any, since_ns: int, ended_ns: int) -> None:
        """The run of an event that took longer than the limit has ended: count it. Handler thread."""
        route.slow += 1
        self._end(Run("event", event, since_ns), ended_ns)

    def mail_ended(self, mail: Mail, since_ns: int, ended_ns: int) -> None:
        """As `event_ended`, of a mail, which the mailbox counts."""
        self._end(Run("mail", mail, since_ns), ended_ns)

    def announced(self, since_ns: int) -> None:
        """The run that began then was logged. One thread besides the handler thread."""
        self._announced.append(since_ns)
        self._log_end()

    def _end(self, run: Run, ended_ns: int) -> None:
        self._ended = (run.since_ns, ended_ns - run.since_ns, f"{_NAMES[run.kind]} has ended: {run.what()}")
        self._log_end()

    def _log_end(self) -> None:
        """Log the end of a run that was announced and has ended; each of the two calls this after its part."""
        since_ns, took_ns, what = self._ended
        if since_ns in self._announced:
            try:
                self._announced.remove(since_ns)
            except ValueError:  # the other thread was faster
                return
            tell(log, logging.WARNING, "%s: %s took %s", self._name, what, duration(took_ns / 1e9))
