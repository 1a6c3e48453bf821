"""MRTask: a map or reduce task, run in one or more attempts, after Hadoop's TaskImpl."""

from __future__ import annotations

from enum import Enum, auto

from statemachines.observation import as_observed
from statemachines.table import STAY, Row, from_table


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

_ROWS: tuple[Row[TaskStateInternal], ...] = (
    (S.NEW, S.SCHEDULED, E.T_SCHEDULE),
    (S.NEW, S.KILLED, E.T_KILL),
    (S.NEW, {S.FAILED, S.KILLED, S.RUNNING, S.SUCCEEDED}, E.T_RECOVER, as_observed),
    (S.SCHEDULED, S.RUNNING, E.T_ATTEMPT_LAUNCHED),
    ((S.SCHEDULED, S.RUNNING), S.KILL_WAIT, E.T_KILL),
    ((S.SCHEDULED, S.RUNNING), STAY, E.T_ATTEMPT_KILLED),
    (S.SCHEDULED, {S.SCHEDULED, S.FAILED}, E.T_ATTEMPT_FAILED, as_observed),
    ((S.RUNNING, S.KILL_WAIT, S.SUCCEEDED), STAY, _UPDATES),
    (S.RUNNING, S.SUCCEEDED, E.T_ATTEMPT_SUCCEEDED),
    (S.RUNNING, {S.RUNNING, S.FAILED}, E.T_ATTEMPT_FAILED, as_observed),
    (
        S.KILL_WAIT,
        {S.KILL_WAIT, S.KILLED},
        {E.T_ATTEMPT_KILLED, E.T_ATTEMPT_SUCCEEDED, E.T_ATTEMPT_FAILED},
        as_observed,
    ),
    # A map's output is lost with its node: a task that has succeeded runs again.
    (S.SUCCEEDED, {S.SCHEDULED, S.SUCCEEDED, S.FAILED}, E.T_ATTEMPT_FAILED, as_observed),
    (S.SUCCEEDED, {S.SCHEDULED, S.SUCCEEDED}, E.T_ATTEMPT_KILLED, as_observed),
    (S.SUCCEEDED, STAY, E.T_ATTEMPT_SUCCEEDED),
    ((S.KILL_WAIT, S.SUCCEEDED), STAY, E.T_KILL),
    (S.FAILED, STAY, set(E) - {E.T_SCHEDULE, E.T_RECOVER}),
    (S.KILLED, STAY, {E.T_KILL, E.T_SCHEDULE, E.T_ATTEMPT_KILLED, E.T_ADD_SPEC_ATTEMPT}),
)
FACTORY = from_table("MRTask", S, _ROWS)
