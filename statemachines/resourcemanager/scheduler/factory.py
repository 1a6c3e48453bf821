"""The scheduler that the configuration asks for."""

from __future__ import annotations

from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.scheduler.capacity.capacity_scheduler import CapacityScheduler
from statemachines.resourcemanager.scheduler.core.base import AbstractScheduler
from statemachines.resourcemanager.scheduler.fifo import FifoScheduler


def make_scheduler(context: RMContext, on_heartbeat: bool = False) -> AbstractScheduler:
    """`on_heartbeat`: nodes get containers when they report, else as soon as there is room.

    Raises:
        ConfigError: the configured queues make no tree; names the key.
    """
    kind = CapacityScheduler if context.config.scheduler.kind == "capacity" else FifoScheduler
    return kind(context, on_heartbeat=on_heartbeat)
