"""The counts of the scheduler's operations, container by container."""

from __future__ import annotations

from statemachines.resourcemanager import ContainerStatus, Resource, RMContainer

from ..builders import Workshop
from ..inner import EXIT_PREEMPTED, operations

Done, Operation, Operations = operations.Done, operations.Operation, operations.Operations

SIZE = Resource(1024, 1000)  # of the workshop's containers
NOTHING_DONE = Done()


def test_a_reservation_counts_once_and_its_container_is_an_allocation() -> None:
    done, container = Operations(), Workshop().container("RESERVED")
    container.reserved_resource = SIZE
    here = Operation(container.entity, container.node, "a")

    for _ in range(2):
        done.take(container, "a", was_live=False, is_live=False, has_ended=False)
    reserved = done.run(1)
    done.take(_in_state(container, "ALLOCATED"), "a", was_live=False, is_live=True, has_ended=False)
    allocated = done.run(2)

    assert (reserved.reservations, reserved.allocations, reserved.last_reservation) == (
        Done(1, SIZE),
        NOTHING_DONE,
        here,
    )
    assert (allocated.reservations, allocated.allocations) == (NOTHING_DONE, Done(1, SIZE))
    assert (allocated.last_allocation, allocated.by_queue) == (here, {"a": (1, 0)})


def test_a_reservation_that_is_cancelled_was_neither_allocated_nor_released() -> None:
    done, container = Operations(), Workshop().container("RESERVED")
    container.reserved_resource = SIZE
    done.take(container, "a", was_live=False, is_live=False, has_ended=False)
    reserved = done.run(1)

    done.take(_in_state(container, "KILLED"), "a", was_live=False, is_live=False, has_ended=True)

    assert done.run(2) is reserved


def test_a_preempted_container_is_released_too() -> None:
    done, container = Operations(), Workshop().container("RUNNING")
    container.status = ContainerStatus(container.entity, EXIT_PREEMPTED)

    done.take(container, "a", was_live=True, is_live=False, has_ended=True)

    run, here = done.run(5), Operation(container.entity, container.node, "a")
    assert (run.at_ms, run.releases, run.last_release, run.last_preemption) == (5, Done(1, SIZE), here, here)


def _in_state(container: RMContainer, state: str) -> RMContainer:
    found = Workshop().container(state, container.entity)
    found.reserved_resource = container.reserved_resource
    return found
