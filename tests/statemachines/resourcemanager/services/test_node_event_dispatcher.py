"""Which events reach a node, in service or not."""

from __future__ import annotations

import pytest

from statemachines.resourcemanager import RMNodeEventType
from statemachines.resourcemanager.events.rmnode import RMNodeEvent
from statemachines.resourcemanager.services.nodes_list_manager import NodeEventDispatcher

from ..builders import Workshop, event_for


@pytest.mark.parametrize(
    ("state", "event", "is_handled"),
    [
        ("RUNNING", "CLEANUP_CONTAINER", True),
        ("UNHEALTHY", "STATUS_UPDATE", True),
        ("NEW", "STARTED", True),
        ("NEW", "CLEANUP_CONTAINER", False),
        ("NEW", "EXPIRE", False),
        ("NEW", "DECOMMISSION", False),
        ("NEW", "RESOURCE_UPDATE", False),
        ("LOST", "RESOURCE_UPDATE", True),
        ("LOST", "FINISHED_CONTAINERS_PULLED_BY_AM", True),
        ("LOST", "CLEANUP_CONTAINER", False),
        ("REBOOTED", "FINISHED_CONTAINERS_PULLED_BY_AM", False),
        ("DECOMMISSIONED", "CLEANUP_APP", False),
        ("SHUTDOWN", "STATUS_UPDATE", False),
    ],
)
def test_event_reaches_its_node_if_there_is_something_to_do(
    workshop: Workshop, state: str, event: str, is_handled: bool
) -> None:
    """YARN has no rows for clean-ups on a node that has left, and logs an error for each.

    An event for its predecessor took a node that had just registered out of service, though it was well, and sent it
    away; if it registered once more, it was started twice, which was an invalid transition.
    """
    node = workshop.node(state)

    NodeEventDispatcher(workshop.context).handle(event_for(node, event))

    stats = workshop.recorder.machines["RMNode"]
    assert (sum(stats.transitions.values()), stats.invalid) == (int(is_handled), 0)


def test_event_of_an_active_node_that_its_state_does_not_take_is_counted(workshop: Workshop) -> None:
    node = workshop.node("DECOMMISSIONING")

    NodeEventDispatcher(workshop.context).handle(event_for(node, "STARTED"))

    assert workshop.recorder.machines["RMNode"].invalid == 1


def test_event_for_an_unknown_node_is_dropped(workshop: Workshop) -> None:
    NodeEventDispatcher(workshop.context).handle(RMNodeEvent(RMNodeEventType.EXPIRE, "nowhere:1"))

    assert workshop.posted.events == []
