"""The FIFO scheduler, after YARN's FifoScheduler."""

from statemachines.resourcemanager.scheduler.fifo.fifo_scheduler import FifoScheduler

__all__ = ["FifoScheduler"]
