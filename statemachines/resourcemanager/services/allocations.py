"""The check of what clients and masters ask for against the maximum allocation, as YARN's SchedulerUtils does it.

Threading: any thread.
"""

from __future__ import annotations

from collections.abc import Iterable

from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.records.errors import InvalidResourceRequestError
from statemachines.resourcemanager.records.resource import Resource


def check_allocation(context: RMContext, queue: str, sizes: Iterable[Resource]) -> None:
    """
    Raises:
        InvalidResourceRequestError: one of these containers is larger than the maximum of the queue.
    """
    maximum = context.scheduler.maximum_allocation(queue)
    for size in sizes:
        if not maximum.takes(size):
            raise InvalidResourceRequestError(queue, size, maximum)
