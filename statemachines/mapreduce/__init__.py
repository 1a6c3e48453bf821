"""The state machines of MapReduce's application master, as tables against which its logs are checked.

They have no hooks except to choose the observed state: a machine follows a log when its events are `Observation`s.
"""

from statemachines.mapreduce import mrjob, mrtask, mrtaskattempt
from statemachines.mapreduce.mrjob import JobEventType, JobStateInternal
from statemachines.mapreduce.mrtask import TaskEventType, TaskStateInternal
from statemachines.mapreduce.mrtaskattempt import TaskAttemptEventType, TaskAttemptStateInternal
from statemachines.observation import Observation

FACTORIES = {"MRJob": mrjob.FACTORY, "MRTask": mrtask.FACTORY, "MRTaskAttempt": mrtaskattempt.FACTORY}
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
