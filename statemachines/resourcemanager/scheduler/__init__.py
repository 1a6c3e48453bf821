"""Who gets which room: schedulers behind one interface."""

from statemachines.resourcemanager.scheduler.capacity.capacity_scheduler import CapacityScheduler
from statemachines.resourcemanager.scheduler.core.node import SchedulerNode
from statemachines.resourcemanager.scheduler.factory import make_scheduler
from statemachines.resourcemanager.scheduler.fifo import FifoScheduler
from statemachines.resourcemanager.scheduler.interface import QueueInfo, ResourceScheduler

__all__ = [
    "CapacityScheduler",
    "FifoScheduler",
    "QueueInfo",
    "ResourceScheduler",
    "SchedulerNode",
    "make_scheduler",
]
