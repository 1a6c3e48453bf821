"""The scheduler that the configuration asks for."""

from __future__ import annotations

from statemachines.resourcemanager.scheduler.capacity.capacity_scheduler import CapacityScheduler
from statemachines.resourcemanager.scheduler.core.books import SchedulerContext
from statemachines.resourcemanager.scheduler.fifo import FifoScheduler
from statemachines.resourcemanager.scheduler.resource_scheduler import ResourceScheduler


def make_scheduler(context: SchedulerContext, on_heartbeat: bool = False) -> ResourceScheduler:
    """`on_heartbeat`: assign containers on node heartbeats; otherwise as soon as a node has room.

    Raises:
        ConfigError: the configured queues do not form a valid tree; names the key.
    """
    kind = CapacityScheduler if context.config.scheduler.kind == "capacity" else FifoScheduler
    return kind(context, on_heartbeat=on_heartbeat)
