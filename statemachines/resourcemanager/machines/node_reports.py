"""What a node says of its containers, and what of it is news. Handler thread only (invariant 1)."""

from __future__ import annotations

import logging

from statemachines.resourcemanager.events.exit_status import EXIT_ABORTED
from statemachines.resourcemanager.events.records import ContainerStatus
from statemachines.resourcemanager.events.rmapp import RMAppEvent, RMAppEventType
from statemachines.resourcemanager.events.rmcontainer import RMContainerEventType, RMContainerResourceEvent
from statemachines.resourcemanager.events.rmnode import RMNodeStatusEvent
from statemachines.resourcemanager.events.scheduler import SchedulerEvent, SchedulerEventType
from statemachines.resourcemanager.ids import application_of, attempt_of
from statemachines.resourcemanager.machines.rmnode import Finished, Launched, Report, RMNode
from statemachines.resourcemanager.machines.states import FINAL_STATES

log = logging.getLogger(__name__)


def take_report(node: RMNode, event: RMNodeStatusEvent) -> None:
    """Of a healthy node. The scheduler gets one event for all reports that it has not fetched."""
    launched, finished = event.launched, event.finished
    if event.running is not None:
        launched, finished = all_changes(node, launched, finished, event.running)
    take_containers(node, launched, finished)
    post = node.context.post
    if node.next_heartbeat:
        node.next_heartbeat = False
        post(SchedulerEvent(SchedulerEventType.NODE_UPDATE, node.entity))
    for container_id, size in event.resized:
        post(RMContainerResourceEvent(RMContainerEventType.NM_DONE_CHANGE_RESOURCE, container_id, size))


def take_containers(node: RMNode, launched: Launched, finished: Finished) -> None:
    """Keep what started and ended, and queue what is news of it for the scheduler."""
    known = node.containers
    if node.to_clean or node.apps_to_clean or not known.isdisjoint(launched):
        launched, finished = _news(node, launched, finished)
    expirer = node.context.container_allocation_expirer
    for container_id in launched:
        known.add(container_id)
        _note_app(node, container_id)
        expirer.unregister(container_id)
    for status in finished:
        container_id = status.container
        if container_id in known:
            known.remove(container_id)
        else:
            _note_app(node, container_id)
        expirer.unregister(container_id)
    if launched or finished:
        node.updates.append((launched, finished))


def all_changes(node: RMNode, launched: Launched, finished: Finished, running: frozenset[str]) -> Report:
    """What has changed, by a report of all containers that the node has now: one that it lacks has been lost.

    One that the node has never reported is not missed: it may have been launched after the report was made.
    """
    known = node.containers
    if new := running - known:
        launched = tuple(dict.fromkeys((*launched, *sorted(new))))
    if gone := known - running:
        gone -= {status.container for status in finished}
        why = f"lost: {node.entity} does not report it any more"
        finished += tuple(ContainerStatus(container_id, EXIT_ABORTED, why) for container_id in sorted(gone))
    return launched, finished


def app_on_node(node: RMNode, app_id: str) -> None:
    """An application has containers here; one that is not known, or has ended, is to be cleaned up."""
    app = node.context.apps.get(app_id)
    # One that has ended may be forgotten before it hears of this node: nobody would clean up here.
    if app is not None and app.state not in FINAL_STATES:
        node.running_apps.add(app_id)
        node.context.post(RMAppEvent(RMAppEventType.APP_RUNNING_ON_NODE, app_id, node=node.entity))
    else:
        node.apps_to_clean.append(app_id)


def _note_app(node: RMNode, container_id: str) -> None:
    container = node.context.containers.get(container_id)
    if container is None:
        app_id = _app_of(node, container_id)
        if app_id is not None and app_id not in node.running_apps:
            app_on_node(node, app_id)
    elif container.application not in node.running_apps:
        # It may have ended all the same: the scheduler, on a thread of its own, is about to end its containers.
        app_on_node(node, container.application)


def _app_of(node: RMNode, container_id: str) -> str | None:
    """The application of a container; None if that is no container's id."""
    try:
        return application_of(attempt_of(container_id))
    except ValueError as error:
        log.warning("%s reports a container that cannot be: %s", node.entity, error)
        return None


def _news(node: RMNode, launched: Launched, finished: Finished) -> Report:
    """What the scheduler has not heard of, and has not given up: what is to be cleaned up is no news."""
    for status in finished:
        if not _is_wanted(node, status.container):
            node.containers.discard(status.container)
    news = (
        tuple(c for c in launched if c not in node.containers and _is_wanted(node, c)),
        tuple(status for status in finished if _is_wanted(node, status.container)),
    )
    node.to_clean.difference_update(status.container for status in finished)  # it has stopped by itself
    return news


def _is_wanted(node: RMNode, container_id: str) -> bool:
    if container_id in node.to_clean:
        return False
    return not node.apps_to_clean or _app_of(node, container_id) not in node.apps_to_clean
