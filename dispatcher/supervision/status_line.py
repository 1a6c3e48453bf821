"""The status of the process in one line, for people."""

from __future__ import annotations

from typing import Final

from dispatcher.health import Health
from dispatcher.service import ServiceState
from dispatcher.util.terminal import one_line
from dispatcher.view import DispatcherView

_LONGEST: Final = 500


def status_line(health: Health) -> str:
    """Such as `stuck (central); central: 12 queued, 345 handled, 1 failed, Job.SUBMITTED runs for 61.2 s`.

    At most about 500 characters, printable. Any thread; waits for no check.
    """
    answer = health.ready(waits_for_checks=False)
    first = [reason for reason in answer.reasons if reason.reason == answer.status]
    names = ", ".join(name for reason in first if (name := reason.dispatcher or reason.service))
    status = f"{answer.status} ({names})" if names else answer.status
    return one_line("; ".join([status, *map(_line_of, health.views())]), _LONGEST)


def _line_of(view: DispatcherView) -> str:
    stats = view.stats()
    counts = f"{view.name}: {stats.queue_size:,} queued, {stats.handled:,} handled, {stats.failed:,} failed"
    return f"{counts}, {_doing(view)}"


def _doing(view: DispatcherView) -> str:
    running = view.running()
    if running is not None:
        what = "a mail" if running.kind == "mail" else f"{running.event_class}.{running.event_type}"
        return f"{what} runs for {running.running_s:.1f} s"
    if view.is_draining():
        return "draining"
    return "idle" if view.state is ServiceState.STARTED else view.state.name.lower()
