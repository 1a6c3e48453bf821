"""MRCommitter: the commit of a job's output, as a table of its own."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from statemachines.factory import StateMachineFactory


class CommitterState(Enum):
    NEW = auto()
    COMMITTING = auto()
    COMMITTED = auto()
    ABORTED = auto()


class CommitterEventType(Enum):
    JOB_COMMIT = auto()
    JOB_COMMIT_COMPLETED = auto()
    JOB_ABORT = auto()


S, E = CommitterState, CommitterEventType

FACTORY = (
    StateMachineFactory[CommitterState, Any](S.NEW, "MRCommitter")
    .add_transition(S.NEW, S.COMMITTING, E.JOB_COMMIT)
    .add_transition(S.COMMITTING, S.COMMITTED, E.JOB_COMMIT_COMPLETED)
    .add_transition(S.NEW, S.ABORTED, E.JOB_ABORT)
    .add_transition(S.COMMITTING, S.ABORTED, E.JOB_ABORT)
    .install_topology()
)
