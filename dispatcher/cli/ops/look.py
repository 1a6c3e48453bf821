"""Requests and texts that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dispatcher.cli.ops.client import Client
from dispatcher.cli.ops.errors import ErrorAnswerError
from dispatcher.ops.answers import Page
from dispatcher.ops.dispatchers import DispatcherNumbers, Failure, Queued, QueuedEntity
from dispatcher.ops.overview import Overview, Problem
from dispatcher.ops.process import Process, Reason
from dispatcher.ops.stacks import RunningHandler, RunningOrNull, StackLine
from dispatcher.util.figures import short_duration


@dataclass(frozen=True)
class DaemonSummary:
    """A daemon and its dispatchers."""

    process: Process
    dispatchers: Sequence[DispatcherNumbers]

    @property
    def reasons(self) -> Sequence[Reason]:
        """Why it is not ready; empty if it is."""
        return self.process.health.reasons

    @property
    def status(self) -> str:
        """`ok`, `degraded`, or the first reason."""
        return self.reasons[0].reason if self.reasons else self.process.health.status

    @property
    def verdict(self) -> str:
        """The answer of `/readyz` as one line."""
        if self.reasons:
            return "not ready: " + ", ".join(map(reason_text, self.reasons))
        warnings = self.process.health.warnings
        if not warnings:
            return "ready"
        shown = ", ".join(f"{each.warning} ({each.dispatcher}: {each.detail})" for each in warnings)
        return f"ready, degraded: {shown}" if self.is_degraded else f"ready, {shown}"

    @property
    def is_degraded(self) -> bool:
        """Whether it is ready, and shows signs of trouble."""
        return self.status == "degraded"

    def is_stuck(self, dispatcher: str | None) -> bool:
        """Whether the dispatcher's handler has been running for too long."""
        return any(each.reason == "stuck" and each.dispatcher == dispatcher for each in self.reasons)

    def needs_attention(self, problems: Sequence[Problem] = ()) -> str | None:
        """The name of the dispatcher to show first. None without dispatchers.

        A failed dispatcher comes before a stuck one, and that before the one with the gravest problem.
        """
        names = [each.name for each in self.dispatchers]
        failed = [each.name for each in self.dispatchers if each.failure is not None]
        troubled = [each.dispatcher for each in problems if each.dispatcher in names]
        return next(iter([*failed, *filter(self.is_stuck, names), *troubled, *names]), None)

    def as_json(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "reasons": [each.model_dump() for each in self.reasons],
            "warnings": [each.model_dump() for each in self.process.health.warnings],
            "process": self.process.model_dump(by_alias=True, exclude={"health", "gc"}),
            "dispatchers": [each.model_dump(by_alias=True) for each in self.dispatchers],
        }


def summary_of(client: Client) -> DaemonSummary:
    """Ask a daemon for its process and dispatchers: two requests."""
    process = client.get(Process, "process")
    dispatchers = client.get(Page[DispatcherNumbers], "dispatchers", limit=1000).items
    return DaemonSummary(process, dispatchers)


def problems_of(client: Client) -> Sequence[Problem]:
    """What is wrong with a daemon now, the gravest first; nothing if it is of a release without an overview."""
    try:
        return client.get(Overview, "overview").problems
    except ErrorAnswerError:
        return ()


def reason_text(reason: Reason) -> str:
    """`stuck (central, 61.2 s)`."""
    known = (reason.dispatcher, reason.service, short_duration(reason.seconds) if reason.seconds else None)
    details = [each for each in known if each]
    return f"{reason.reason} ({', '.join(details)})" if details else reason.reason


def running_of(client: Client, dispatcher: str) -> RunningHandler | None:
    """What a dispatcher runs now, with its stack."""
    return client.get(RunningOrNull, "dispatchers", dispatcher, "running").root


def failures_of(client: Client, dispatcher: str, limit: int) -> list[Failure]:
    """A dispatcher's last failures, newest first."""
    return client.get(Page[Failure], "dispatchers", dispatcher, "failures", limit=limit).items


def handler_frames(stack: Sequence[StackLine]) -> Sequence[StackLine]:
    """The frames below the dispatcher's first one, without the dispatcher's own: not those that started the thread."""
    first = next((number for number, frame in enumerate(stack) if frame.internal), 0)
    return [frame for frame in stack[first:] if not frame.internal]


def flooder_of(client: Client, dispatchers: Sequence[DispatcherNumbers]) -> QueuedEntity | None:
    """The entity with the most events in the longest queue of these dispatchers, and their number; None: none waits.

    Of a long queue it is an estimate.
    """
    longest = max(dispatchers, key=lambda each: each.queue.size, default=None)
    if longest is None or not longest.queue.size:
        return None
    try:
        queued = client.get(Queued[QueuedEntity], "dispatchers", longest.name, "queue", by="entity", limit=1)
    except ErrorAnswerError:  # the dispatcher has stopped since, or the daemon does not tell
        return None
    return next(iter(queued.items), None)


def frame_text(frame: StackLine) -> str:
    """`folder/file.py:12 in function: the line's code`."""
    where = short_path(frame.file) + (f":{frame.line}" if frame.line is not None else "")
    function = f" in {frame.function}" if frame.function else ""
    return f"{where}{function}" + (f": {frame.code.strip()}" if frame.code and frame.code.strip() else "")


def short_path(file: str) -> str:
    """The file with its folder."""
    return "/".join(file.rsplit("/", 2)[-2:])
