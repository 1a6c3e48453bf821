"""Schedulers: which ask gets a container on which node."""

from statemachines.resourcemanager.scheduler.capacity import CapacityScheduler
from statemachines.resourcemanager.scheduler.core.node import SchedulerNode
from statemachines.resourcemanager.scheduler.factory import make_scheduler
from statemachines.resourcemanager.scheduler.fifo import FifoScheduler
from statemachines.resourcemanager.scheduler.queue_info import QueueInfo
from statemachines.resourcemanager.scheduler.resource_scheduler import ResourceScheduler

__all__ = ["CapacityScheduler", "FifoScheduler", "QueueInfo", "ResourceScheduler", "SchedulerNode", "make_scheduler"]
