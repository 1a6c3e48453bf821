"""MRTask: a map or reduce task, run in one or more attempts, after Hadoop's TaskImpl."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from statemachines.factory import StateMachineFactory
from statemachines.observation import as_observed


class TaskStateInternal(Enum):
    NEW = auto()
    SCHEDULED = auto()
    RUNNING = auto()
    SUCCEEDED = auto()
    FAILED = auto()
    KILL_WAIT = auto()
    KILLED = auto()


class TaskEventType(Enum):
    T_KILL = auto()
    T_SCHEDULE = auto()
    T_RECOVER = auto()
    T_ADD_SPEC_ATTEMPT = auto()
    T_ATTEMPT_LAUNCHED = auto()
    T_ATTEMPT_COMMIT_PENDING = auto()
    T_ATTEMPT_FAILED = auto()
    T_ATTEMPT_SUCCEEDED = auto()
    T_ATTEMPT_KILLED = auto()


S, E = TaskStateInternal, TaskEventType
# These keep a running task in its state.
_UPDATES = {E.T_ATTEMPT_LAUNCHED, E.T_ATTEMPT_COMMIT_PENDING, E.T_ADD_SPEC_ATTEMPT}

FACTORY = (
    StateMachineFactory[TaskStateInternal, Any](S.NEW, "MRTask")
    .add_transition(S.NEW, S.SCHEDULED, E.T_SCHEDULE)
    .add_transition(S.NEW, S.KILLED, E.T_KILL)
    .add_transition(S.NEW, {S.FAILED, S.KILLED, S.RUNNING, S.SUCCEEDED}, E.T_RECOVER, as_observed)
    .add_transition(S.SCHEDULED, S.RUNNING, E.T_ATTEMPT_LAUNCHED)
    .add_transition(S.SCHEDULED, S.KILL_WAIT, E.T_KILL)
    .add_transition(S.SCHEDULED, S.SCHEDULED, E.T_ATTEMPT_KILLED)
    .add_transition(S.SCHEDULED, {S.SCHEDULED, S.FAILED}, E.T_ATTEMPT_FAILED, as_observed)
    .add_transition(S.RUNNING, S.RUNNING, {*_UPDATES, E.T_ATTEMPT_KILLED})
    .add_transition(S.RUNNING, S.SUCCEEDED, E.T_ATTEMPT_SUCCEEDED)
    .add_transition(S.RUNNING, {S.RUNNING, S.FAILED}, E.T_ATTEMPT_FAILED, as_observed)
    .add_transition(S.RUNNING, S.KILL_WAIT, E.T_KILL)
    .add_transition(S.KILL_WAIT, S.KILL_WAIT, {*_UPDATES, E.T_KILL})
    .add_transition(
        S.KILL_WAIT,
        {S.KILL_WAIT, S.KILLED},
        {E.T_ATTEMPT_KILLED, E.T_ATTEMPT_SUCCEEDED, E.T_ATTEMPT_FAILED},
        as_observed,
    )
    # A map's output is lost with its node: a task that has succeeded runs again.
    .add_transition(S.SUCCEEDED, {S.SCHEDULED, S.SUCCEEDED, S.FAILED}, E.T_ATTEMPT_FAILED, as_observed)
    .add_transition(S.SUCCEEDED, {S.SCHEDULED, S.SUCCEEDED}, E.T_ATTEMPT_KILLED, as_observed)
    .add_transition(S.SUCCEEDED, S.SUCCEEDED, {*_UPDATES, E.T_ATTEMPT_SUCCEEDED, E.T_KILL})
    .add_transition(S.FAILED, S.FAILED, set(E) - {E.T_SCHEDULE, E.T_RECOVER})
    .add_transition(S.KILLED, S.KILLED, {E.T_KILL, E.T_SCHEDULE, E.T_ATTEMPT_KILLED, E.T_ADD_SPEC_ATTEMPT})
    .install_topology()
)
