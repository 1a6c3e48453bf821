"""What must hold of a resource manager: at any moment, at rest, and once all applications have ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from statemachines.resourcemanager import Resource

from ..inner import FINAL_STATES, RMContext, WaitCause, add, amounts_of, resource_of
from .daemons import Node

LIMITS = frozenset(
    {WaitCause.QUEUE_LIMIT, WaitCause.USER_LIMIT, WaitCause.AM_LIMIT, WaitCause.USER_AM_LIMIT, WaitCause.PARTITION}
)
NO_NODE = frozenset({WaitCause.NO_ROOM, WaitCause.NEVER_FITS, WaitCause.NO_NODES, WaitCause.RESERVED})


def wrong_books(context: RMContext) -> list[str]:
    """The scheduler's books of nodes and queues agree with its containers."""
    scheduler, wrong = context.scheduler, []
    live = [
        (app, container)
        for app in context.apps.values()
        for attempt in app.attempts
        for container in scheduler.live_containers(attempt.entity)
    ]
    nodes = {node.node_id: node for node in scheduler.nodes()}
    for node in nodes.values():
        there = [container for _, container in live if container.node == node.node_id]
        sizes = [container.request.resource for container in there]
        if {container.entity for container in there} != set(node.containers):
            wrong.append(f"{node.node_id} has {sorted(node.containers)}, attempts have {there} there")
        if _free(node.capacity, sizes) != (node.free_memory_mb, node.free_vcores_milli):
            wrong.append(f"{node.node_id} has {sizes} of {node.capacity} in use, and by its books {node.free()} free")
    wrong += [f"{container} is on a node that is gone" for _, container in live if container.node not in nodes]
    held = [(scheduler.queue_of(app.entity), container) for app, container in live]
    reserved = [node.reserved_container for node in nodes.values() if node.reserved_container is not None]
    held += [(scheduler.queue_of(container.application), container) for container in reserved]
    for info in scheduler.queues():
        used: dict[str, int] = {}
        count = 0
        for queue, container in held:
            if f"{queue}.".startswith(f"{info.path}."):
                add(used, amounts_of(container.request.resource))
                count += 1
        if (info.used, info.containers) != (resource_of(used), count):
            wrong.append(f"{info.path} uses {info.used} by its books, its {count} containers have {used}")
    return wrong


def _free(capacity: Resource, sizes: Sequence[Resource]) -> tuple[int, int]:
    memory_mb = capacity.memory_mb - sum(size.memory_mb for size in sizes)
    return memory_mb, capacity.vcores_milli - sum(size.vcores_milli for size in sizes)


def stuck(context: RMContext, endless: Iterable[str]) -> list[str]:
    """Applications that have not ended, and why there is no cause for that; to be asked once nothing changes."""
    waiting = context.scheduler.waiting()
    found = []
    for app in context.apps.values():
        attempt = app.current_attempt
        if app.state in FINAL_STATES:
            continue
        asks = [request for asker, request in waiting if attempt is not None and asker == attempt.entity]
        if attempt is None or not (asks or (app.entity in endless and attempt.state.name == "RUNNING")):
            found.append(f"{app} with {attempt} waits for nothing")
            continue
        # In a small cluster, what preemption takes of one queue may not be what another needs, and is given back.
        for request in asks if attempt.preempted.count == 0 else ():
            why = context.scheduler.why_waiting(attempt.entity, request)
            shunned = attempt.blacklist if attempt.state.name == "SCHEDULED" else set()  # by its master-to-be
            nodes = [node for node in context.scheduler.nodes() if node.host not in shunned]
            fitting = [node.node_id for node in nodes if node.fits(request.resource)]
            if why.cause not in LIMITS and (why.cause not in NO_NODE or fitting):
                found.append(f"{request} of {attempt} waits, fits on {fitting}: {why}")
    return found


def left_over(context: RMContext) -> list[str]:
    """What is still held when all applications have ended."""
    found = [f"{app} has not ended" for app in context.apps.values() if app.state not in FINAL_STATES]
    found += [f"{container} is still there" for container in context.containers.values()]
    found += [f"{request} of {attempt} still waits" for attempt, request in context.scheduler.waiting()]
    found += [
        f"{info} is in use"
        for info in context.scheduler.queues()
        if info.applications or info.containers or amounts_of(info.used) != amounts_of(resource_of({}))
    ]
    known = {node.entity: node for node in context.nodes.values()}
    scheduled = {node.node_id: node for node in context.scheduler.nodes()}
    found += [f"{node_id} is known to one of them only" for node_id in known.keys() ^ scheduled.keys()]
    for node_id in known.keys() & scheduled.keys():
        node, rmnode = scheduled[node_id], known[node_id]
        if node.reserved_container is not None:
            found.append(f"{node_id} is reserved for {node.reserved_container}")
        if (node.free_memory_mb, node.free_vcores_milli) != _free(rmnode.capacity, ()):
            found.append(f"{node_id} has only {node.free()} of {rmnode.capacity}")
        if rmnode.containers or rmnode.running_apps:
            found.append(f"{rmnode} is said to run {rmnode.containers} of {rmnode.running_apps}")
    found += [f"{attempt_id} has a session" for attempt_id in context.master_sessions]
    monitors = (
        context.am_liveliness_monitor,
        context.am_finishing_monitor,
        context.container_allocation_expirer,
        context.app_lifetime_monitor,
    )
    return found + [f"{len(monitor)} in {monitor.name}" for monitor in monitors if len(monitor)]


def running(nodes: Iterable[Node]) -> list[str]:
    return [f"{container_id} still runs" for node in nodes for container_id in node.running]
