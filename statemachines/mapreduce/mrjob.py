"""MRJob: a MapReduce job, after Hadoop's JobImpl."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from statemachines.factory import StateMachineFactory
from statemachines.observation import as_observed


class JobStateInternal(Enum):
    NEW = auto()
    INITED = auto()
    SETUP = auto()
    RUNNING = auto()
    COMMITTING = auto()
    SUCCEEDED = auto()
    FAIL_WAIT = auto()
    FAIL_ABORT = auto()
    FAILED = auto()
    KILL_WAIT = auto()
    KILL_ABORT = auto()
    KILLED = auto()
    ERROR = auto()
    REBOOT = auto()


class JobEventType(Enum):
    JOB_KILL = auto()
    JOB_INIT = auto()
    JOB_INIT_FAILED = auto()
    JOB_START = auto()
    JOB_TASK_COMPLETED = auto()
    JOB_MAP_TASK_RESCHEDULED = auto()
    JOB_TASK_ATTEMPT_COMPLETED = auto()
    JOB_SETUP_COMPLETED = auto()
    JOB_SETUP_FAILED = auto()
    JOB_COMMIT_COMPLETED = auto()
    JOB_COMMIT_FAILED = auto()
    JOB_ABORT_COMPLETED = auto()
    JOB_COMPLETED = auto()
    JOB_FAIL_WAIT_TIMEDOUT = auto()
    JOB_DIAGNOSTIC_UPDATE = auto()
    INTERNAL_ERROR = auto()
    JOB_COUNTER_UPDATE = auto()
    JOB_TASK_ATTEMPT_FETCH_FAILURE = auto()
    JOB_UPDATED_NODES = auto()
    JOB_AM_REBOOT = auto()


S, E = JobStateInternal, JobEventType

# Events that only update or notify the job, by subject.
_UPDATES = {E.JOB_DIAGNOSTIC_UPDATE, E.JOB_COUNTER_UPDATE, E.JOB_UPDATED_NODES}
_ATTEMPTS = {E.JOB_TASK_ATTEMPT_COMPLETED, E.JOB_TASK_ATTEMPT_FETCH_FAILURE, E.JOB_MAP_TASK_RESCHEDULED}
_SETUP = {E.JOB_SETUP_COMPLETED, E.JOB_SETUP_FAILED}
_COMMIT = {E.JOB_COMMIT_COMPLETED, E.JOB_COMMIT_FAILED}
_AFTER_THE_END = {*_UPDATES, *_SETUP, *_COMMIT, E.JOB_ABORT_COMPLETED, E.JOB_TASK_ATTEMPT_FETCH_FAILURE, E.JOB_KILL}
_TO_THE_BROKEN = {*_AFTER_THE_END, *_ATTEMPTS, E.JOB_INIT, E.JOB_TASK_COMPLETED, E.INTERNAL_ERROR, E.JOB_AM_REBOOT}

_UNDER_WAY = (
    StateMachineFactory[JobStateInternal, Any](S.NEW, "MRJob")
    .add_transition(S.NEW, S.NEW, _UPDATES)
    .add_transition(S.NEW, {S.INITED, S.NEW}, E.JOB_INIT, as_observed)
    .add_transition(S.NEW, S.FAIL_ABORT, E.JOB_INIT_FAILED)
    .add_transition(S.NEW, S.KILLED, E.JOB_KILL)
    .add_transition(S.NEW, S.ERROR, E.INTERNAL_ERROR)
    .add_transition(S.NEW, S.REBOOT, E.JOB_AM_REBOOT)
    .add_transition(S.INITED, S.INITED, _UPDATES)
    .add_transition(S.INITED, S.SETUP, E.JOB_START)
    .add_transition(S.INITED, S.KILLED, E.JOB_KILL)
    .add_transition(S.INITED, S.ERROR, E.INTERNAL_ERROR)
    .add_transition(S.INITED, S.REBOOT, E.JOB_AM_REBOOT)
    .add_transition(S.SETUP, S.SETUP, _UPDATES)
    .add_transition(S.SETUP, S.RUNNING, E.JOB_SETUP_COMPLETED)
    .add_transition(S.SETUP, S.FAIL_ABORT, E.JOB_SETUP_FAILED)
    .add_transition(S.SETUP, S.KILL_ABORT, E.JOB_KILL)
    .add_transition(S.SETUP, S.ERROR, E.INTERNAL_ERROR)
    .add_transition(S.SETUP, S.REBOOT, E.JOB_AM_REBOOT)
    .add_transition(S.RUNNING, S.RUNNING, {*_UPDATES, *_ATTEMPTS})
    .add_transition(S.RUNNING, {S.RUNNING, S.COMMITTING, S.FAIL_WAIT, S.FAIL_ABORT}, E.JOB_TASK_COMPLETED, as_observed)
    .add_transition(S.RUNNING, {S.RUNNING, S.COMMITTING}, E.JOB_COMPLETED, as_observed)
    .add_transition(S.RUNNING, S.KILL_WAIT, E.JOB_KILL)
    .add_transition(S.RUNNING, S.ERROR, E.INTERNAL_ERROR)
    .add_transition(S.RUNNING, S.REBOOT, E.JOB_AM_REBOOT)
    .add_transition(S.COMMITTING, S.COMMITTING, {*_UPDATES, *_ATTEMPTS})
    .add_transition(S.COMMITTING, S.SUCCEEDED, E.JOB_COMMIT_COMPLETED)
    .add_transition(S.COMMITTING, S.FAIL_ABORT, E.JOB_COMMIT_FAILED)
    .add_transition(S.COMMITTING, S.KILL_ABORT, E.JOB_KILL)
    .add_transition(S.COMMITTING, S.ERROR, E.INTERNAL_ERROR)
    .add_transition(S.COMMITTING, S.REBOOT, E.JOB_AM_REBOOT)
)

# From here on JOB_AM_REBOOT is ignored: the job is already ending.
_ENDING = (
    _UNDER_WAY.add_transition(S.FAIL_WAIT, S.FAIL_WAIT, {*_UPDATES, *_ATTEMPTS, E.JOB_AM_REBOOT})
    .add_transition(S.FAIL_WAIT, {S.FAIL_WAIT, S.FAIL_ABORT}, E.JOB_TASK_COMPLETED, as_observed)
    .add_transition(S.FAIL_WAIT, S.FAIL_ABORT, E.JOB_FAIL_WAIT_TIMEDOUT)
    .add_transition(S.FAIL_WAIT, S.KILLED, E.JOB_KILL)
    .add_transition(S.FAIL_WAIT, S.ERROR, E.INTERNAL_ERROR)
    .add_transition(
        S.FAIL_ABORT,
        S.FAIL_ABORT,
        {*_UPDATES, *_ATTEMPTS, *_COMMIT, E.JOB_TASK_COMPLETED, E.JOB_FAIL_WAIT_TIMEDOUT, E.JOB_AM_REBOOT},
    )
    .add_transition(S.FAIL_ABORT, S.FAILED, E.JOB_ABORT_COMPLETED)
    .add_transition(S.FAIL_ABORT, S.KILLED, E.JOB_KILL)
    .add_transition(S.FAIL_ABORT, S.ERROR, E.INTERNAL_ERROR)
    .add_transition(S.KILL_WAIT, S.KILL_WAIT, {*_UPDATES, *_ATTEMPTS, E.JOB_KILL, E.JOB_AM_REBOOT})
    .add_transition(S.KILL_WAIT, {S.KILL_WAIT, S.KILL_ABORT}, E.JOB_TASK_COMPLETED, as_observed)
    .add_transition(S.KILL_WAIT, S.ERROR, E.INTERNAL_ERROR)
    .add_transition(
        S.KILL_ABORT,
        S.KILL_ABORT,
        {*_UPDATES, *_SETUP, *_COMMIT, E.JOB_TASK_ATTEMPT_FETCH_FAILURE, E.JOB_AM_REBOOT},
    )
    .add_transition(S.KILL_ABORT, S.KILLED, {E.JOB_ABORT_COMPLETED, E.JOB_KILL})
    .add_transition(S.KILL_ABORT, S.ERROR, E.INTERNAL_ERROR)
)

FACTORY = (
    _ENDING.add_transition(S.SUCCEEDED, S.SUCCEEDED, {*_UPDATES, *_ATTEMPTS, E.JOB_KILL, E.JOB_AM_REBOOT})
    .add_transition(S.FAILED, S.FAILED, {*_AFTER_THE_END, *_ATTEMPTS, E.JOB_TASK_COMPLETED, E.JOB_AM_REBOOT})
    .add_transition(S.KILLED, S.KILLED, {*_AFTER_THE_END, E.JOB_START, E.JOB_AM_REBOOT})
    .add_transition(S.SUCCEEDED, S.ERROR, E.INTERNAL_ERROR)
    .add_transition(S.FAILED, S.ERROR, E.INTERNAL_ERROR)
    .add_transition(S.KILLED, S.ERROR, E.INTERNAL_ERROR)
    .add_transition(S.ERROR, S.ERROR, _TO_THE_BROKEN)
    .add_transition(S.REBOOT, S.REBOOT, _TO_THE_BROKEN)
    .install_topology()
)
