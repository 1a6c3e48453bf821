"""The capacity scheduler, after YARN's CapacityScheduler."""

from statemachines.resourcemanager.scheduler.capacity.capacity_scheduler import CapacityScheduler

__all__ = ["CapacityScheduler"]
