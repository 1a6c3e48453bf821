"""Requests and texts that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dispatcher.cli.ops.client import Client
from dispatcher.ops.answers import Page
from dispatcher.ops.dispatchers import DispatcherNumbers, Failure
from dispatcher.ops.process import Process, Reason
from dispatcher.ops.stacks import Frame, Running, RunningOrNull
from dispatcher.util.figures import short_duration


@dataclass(frozen=True)
class Summary:
    """A daemon and its dispatchers."""

    process: Process
    dispatchers: Sequence[DispatcherNumbers]

    @property
    def reasons(self) -> Sequence[Reason]:
        """Why it is not ready; empty if it is."""
        return self.process.health.reasons

    @property
    def status(self) -> str:
        """`ok`, or the first reason."""
        return self.reasons[0].reason if self.reasons else "ok"

    def is_stuck(self, dispatcher: str | None) -> bool:
        """Whether the dispatcher's handler has been running for too long."""
        return any(each.reason == "stuck" and each.dispatcher == dispatcher for each in self.reasons)

    def needs_attention(self) -> str | None:
        """The dispatcher to show first: a failed one, else a stuck one, else the first."""
        failed = [each.name for each in self.dispatchers if each.failure is not None]
        stuck = [each.name for each in self.dispatchers if self.is_stuck(each.name)]
        return next(iter([*failed, *stuck, *(each.name for each in self.dispatchers)]), None)

    def as_json(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "reasons": [each.model_dump() for each in self.reasons],
            "process": self.process.model_dump(by_alias=True, exclude={"health", "gc"}),
            "dispatchers": [each.model_dump(by_alias=True) for each in self.dispatchers],
        }


def summary_of(client: Client) -> Summary:
    """Ask a daemon for its process and dispatchers: two requests."""
    process = client.get(Process, "process")
    dispatchers = client.get(Page[DispatcherNumbers], "dispatchers", limit=1000).items
    return Summary(process, dispatchers)


def reason_text(reason: Reason) -> str:
    """`stuck (central, 61.2 s)`."""
    known = (reason.dispatcher, reason.service, short_duration(reason.seconds) if reason.seconds else None)
    details = [each for each in known if each]
    return f"{reason.reason} ({', '.join(details)})" if details else reason.reason


def running_of(client: Client, dispatcher: str) -> Running | None:
    """What a dispatcher runs now, with its stack."""
    return client.get(RunningOrNull, "dispatchers", dispatcher, "running").root


def failures_of(client: Client, dispatcher: str, limit: int) -> list[Failure]:
    """A dispatcher's last failures, newest first."""
    return client.get(Page[Failure], "dispatchers", dispatcher, "failures", limit=limit).items


def handler_frames(stack: Sequence[Frame]) -> Sequence[Frame]:
    """The frames below the dispatcher's first one, without the dispatcher's own: not those that started the thread."""
    first = next((number for number, frame in enumerate(stack) if frame.internal), 0)
    return [frame for frame in stack[first:] if not frame.internal]


def frame_text(frame: Frame) -> str:
    """`folder/file.py:12 in function: the line's code`."""
    where = short_path(frame.file) + (f":{frame.line}" if frame.line is not None else "")
    function = f" in {frame.function}" if frame.function else ""
    return f"{where}{function}" + (f": {frame.code.strip()}" if frame.code and frame.code.strip() else "")


def short_path(file: str) -> str:
    """The file with its folder."""
    return "/".join(file.rsplit("/", 2)[-2:])
