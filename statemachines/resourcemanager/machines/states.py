"""The states of applications and of their attempts, under YARN's names."""

from __future__ import annotations

from enum import Enum, auto


class RMAppState(Enum):
    """The states of applications, as YARN's RMAppState."""

    NEW = auto()
    NEW_SAVING = auto()
    SUBMITTED = auto()
    ACCEPTED = auto()
    RUNNING = auto()
    FINAL_SAVING = auto()
    FINISHING = auto()
    FINISHED = auto()
    FAILED = auto()
    KILLING = auto()
    KILLED = auto()


class RMAppAttemptState(Enum):
    """The states of attempts, as YARN's RMAppAttemptState."""

    NEW = auto()
    SUBMITTED = auto()
    SCHEDULED = auto()
    ALLOCATED_SAVING = auto()
    LAUNCHED_UNMANAGED_SAVING = auto()
    ALLOCATED = auto()
    LAUNCHED = auto()
    RUNNING = auto()
    FINAL_SAVING = auto()
    FINISHING = auto()
    FINISHED = auto()
    FAILED = auto()
    KILLED = auto()


FINAL_STATES = frozenset({RMAppState.FINISHED, RMAppState.FAILED, RMAppState.KILLED})
"""States in which an application has ended."""
END_IS_STORED = FINAL_STATES | {RMAppState.FINISHING}
"""States of an application whose end cannot get lost."""
