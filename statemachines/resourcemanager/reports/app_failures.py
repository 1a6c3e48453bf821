"""Why an application has failed, for clients: its diagnostics reduced to a cause that others share. Any thread."""

from __future__ import annotations

import signal
from enum import Enum
from typing import Final

from statemachines.resourcemanager.events import records
from statemachines.resourcemanager.events.rmappattempt import FAILED_BY_USER, LAUNCH_FAILED, MASTER_SILENT, QUEUE_GONE
from statemachines.resourcemanager.machines.rmappattempt import RMAppAttempt

_OF_YARN: Final = {
    records.EXIT_ABORTED: "aborted",
    records.EXIT_DISKS_FAILED: "disks failed",
    records.EXIT_PREEMPTED: "preempted",
    records.EXIT_KILLED_BY_RESOURCEMANAGER: "killed by the resource manager",
}
_BY_SIGNAL: Final = 128
"""Added to the number of the signal that has ended a process, as shells do."""


class FailureCause(Enum):
    """Why its last attempt failed. The value is the cause in words."""

    EXITED = "its master exited"
    SILENT = "its master was silent for too long"
    NOT_LAUNCHED = "its master could not be launched"
    REJECTED = "its queue rejected it"
    QUEUE_GONE = "its queue no longer exists"
    BY_USER = "its user failed it"
    OTHER = "for another reason"

    def sentence(self, exit_status: int | None) -> str:
        """
        >>> FailureCause.EXITED.sentence(137)
        'its master exited with 137 (SIGKILL)'
        """
        return f"{self.value} with {exit_text(exit_status)}" if self is FailureCause.EXITED else self.value


_BY_DIAGNOSTICS: Final = {
    LAUNCH_FAILED: FailureCause.NOT_LAUNCHED,  # first: what follows in them is foreign
    MASTER_SILENT: FailureCause.SILENT,
    FAILED_BY_USER: FailureCause.BY_USER,
    QUEUE_GONE: FailureCause.QUEUE_GONE,
}
"""By words in the diagnostics of an attempt without an exit status: they are the resource manager's own."""


def failure_cause(attempt: RMAppAttempt | None) -> FailureCause:
    """`attempt`: the application's last one, which is the same after a restart; None: it never had one."""
    if attempt is None:
        return FailureCause.REJECTED
    if attempt.exit_status is not None:
        return FailureCause.EXITED
    said = "; ".join(attempt.diagnostics)
    return next((cause for words, cause in _BY_DIAGNOSTICS.items() if words in said), FailureCause.OTHER)


def exit_text(exit_status: int | None) -> str:
    """The exit status of a container, and what it means if that is known.

    >>> [exit_text(each) for each in (1, 143, -102, None)]
    ['1', '143 (SIGTERM)', '-102 (preempted)', '']
    """
    if exit_status is None:
        return ""
    meaning = _OF_YARN.get(exit_status)
    if meaning is None:
        try:
            meaning = signal.Signals(exit_status - _BY_SIGNAL).name
        except ValueError:
            return str(exit_status)
    return f"{exit_status} ({meaning})"
