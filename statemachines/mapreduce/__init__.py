"""MapReduce's application master as tables: what the log of a real one is checked against.

There are no hooks, as no work is done here. A machine follows a log when each of its events is an `Observation`.
"""

from statemachines.mapreduce import mrjob, mrtask, mrtaskattempt
from statemachines.mapreduce.mrjob import JobEventType, JobStateInternal
from statemachines.mapreduce.mrtask import TaskEventType, TaskStateInternal
from statemachines.mapreduce.mrtaskattempt import TaskAttemptEventType, TaskAttemptStateInternal
from statemachines.observation import Observation

FACTORIES = {"MRJob": mrjob.FACTORY, "MRTask": mrtask.FACTORY, "MRTaskAttempt": mrtaskattempt.FACTORY}
"""The tables, by the machine's name."""

__all__ = [
    "FACTORIES",
    "JobEventType",
    "JobStateInternal",
    "Observation",
    "TaskAttemptEventType",
    "TaskAttemptStateInternal",
    "TaskEventType",
    "TaskStateInternal",
]
