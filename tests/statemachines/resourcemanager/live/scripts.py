"""What may happen in a LiveCluster, and courses of it by seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from statemachines.resourcemanager import Resource, RMApp

from ..builders import EVENT_TYPES
from ..machines.course import HOSTS, LEAVES
from .cluster import LiveCluster, Settings, Step
from .daemons import EXIT_FAILURE, EXIT_SUCCESS, Master, Node, Plan, Task

SMALLER = Resource(6, 6)


@dataclass(frozen=True)
class Submit:
    plan: Plan

    def __call__(self, cluster: LiveCluster) -> None:
        cluster.submit(self.plan)


@dataclass(frozen=True)
class To:
    """Something happens to one of those that there are."""

    what: str
    which: int = 0

    def __call__(self, cluster: LiveCluster) -> None:
        if self.what in TO_CLUSTERS:
            TO_CLUSTERS[self.what](cluster)
        elif self.what in TO_NODES:
            TO_NODES[self.what](cluster, list(cluster.nodes.values())[self.which % len(HOSTS)])
        else:
            apps = list(cluster.manager.context.apps.values())
            if apps:
                TO_APPLICATIONS[self.what](cluster, apps[self.which % len(apps)])


def _attempt(act: Callable[[LiveCluster, str], Any]) -> Callable[[LiveCluster, RMApp], Any]:
    """What happens to its present attempt, by its id."""
    return lambda cluster, app: act(cluster, app.attempts[-1].entity) if app.attempts else None


def _master(act: Callable[[Master], Any]) -> Callable[[LiveCluster, RMApp], Any]:
    def act_if_any(cluster: LiveCluster, app: RMApp) -> None:
        masters = [cluster.masters[each.entity] for each in app.attempts if each.entity in cluster.masters]
        if masters and not masters[-1].is_gone:
            act(masters[-1])

    return act_if_any


def _container(act: Callable[[LiveCluster, Master, str], Any]) -> Callable[[LiveCluster, RMApp], Any]:
    """What happens to the newest container that its master has."""

    def act_if_any(cluster: LiveCluster, app: RMApp) -> None:
        _master(lambda master: act(cluster, master, list(master.running)[-1]) if master.running else None)(cluster, app)

    return act_if_any


def _node_of(cluster: LiveCluster, container_id: str) -> Node | None:
    return next((node for node in cluster.nodes.values() if container_id in node.running), None)


def _on_its_node(act: Callable[[Node, str], Any]) -> Callable[[LiveCluster, RMApp], Any]:
    def act_if_any(cluster: LiveCluster, master: Master, container_id: str) -> None:
        node = _node_of(cluster, container_id)
        if node is not None:
            act(node, container_id)

    return _container(act_if_any)


def _resize(size: Resource) -> Callable[[LiveCluster, RMApp], Any]:
    return _container(
        lambda cluster, master, container_id: master.call(lambda: master.allocate(resizes=[(container_id, size)]))
    )


def _move_to(queue: str) -> Callable[[LiveCluster, RMApp], Any]:
    return lambda cluster, app: cluster.manager.clients.move_application_across_queues(app.entity, queue)


def _its_node(what: str) -> Callable[[LiveCluster, RMApp], Any]:
    """What happens to the node of its newest container."""

    def act(cluster: LiveCluster, app: RMApp) -> None:
        nodes = [each.node for each in cluster.manager.context.containers.values() if each.application == app.entity]
        if nodes:
            TO_NODES[what](cluster, cluster.nodes[nodes[-1]])

    return act


_ITS_NODE = (
    *("leave", "report ill", "decommission", "drain", "drain in a second", "recommission", "fall silent", "reboot"),
    *("register again", "shrink"),
)
TO_APPLICATIONS: Mapping[str, Callable[[LiveCluster, RMApp], Any]] = {
    "kill": lambda cluster, app: cluster.manager.clients.force_kill_application(app.entity),
    "fail the attempt": _attempt(lambda cluster, attempt: cluster.manager.clients.fail_application_attempt(attempt)),
    "fail the first attempt": lambda cluster, app: (
        cluster.manager.clients.fail_application_attempt(app.attempts[0].entity) if app.attempts else None
    ),
    "raise the priority": lambda cluster, app: cluster.manager.clients.update_application_priority(app.entity, 2),
    "limit the lifetime": lambda cluster, app: cluster.manager.clients.update_application_timeouts(
        app.entity, (cluster.now_ms() - app.submit_ms) // 1000 + 1
    ),
    "crash": _master(lambda master: master.exit(EXIT_FAILURE)),
    "exit": _master(lambda master: master.exit(EXIT_SUCCESS)),
    "register": _master(lambda master: master.call(master.register)),
    "allocate": _master(lambda master: master.call(master.allocate)),
    "finish": _master(lambda master: master.call(master.finish)),
    "release a container": _container(
        lambda cluster, master, container_id: master.call(lambda: master.allocate(releases=[container_id]))
    ),
    "grow a container": _resize(Resource(5, 5)),
    "shrink a container": _resize(Resource(1, 1)),
    "signal a container": _container(
        lambda cluster, master, id: cluster.manager.clients.signal_to_container(id, "FORCEFUL_SHUTDOWN")
    ),
    "a container fails": _on_its_node(lambda node, container_id: node.end(container_id, EXIT_FAILURE)),
    "a container does not start": _on_its_node(lambda node, container_id: node.fail_to_start(container_id)),
    **{f"move to {queue}": _move_to(queue) for queue in LEAVES},
    **{f"its node: {what}": _its_node(what) for what in _ITS_NODE},
}


def _register_as(**changes: Any) -> Callable[[LiveCluster, Node], None]:
    """It registers again with what it runs."""

    def act(cluster: LiveCluster, node: Node) -> None:
        node.spec = type(node.spec)(node.spec.host, changes.get("capacity", node.spec.capacity))
        node.register()

    return act


def _ill(cluster: LiveCluster, node: Node) -> None:
    node.is_well = False
    node.call()


def _well(cluster: LiveCluster, node: Node) -> None:
    node.is_well = True
    node.call()


def _silent(cluster: LiveCluster, node: Node) -> None:
    node.silent_until_ms = cluster.now_ms() + 2500


def _leave(cluster: LiveCluster, node: Node) -> None:
    cluster.manager.tracker.unregister_node(node.id)
    node.stop()


def _drain(timeout_s: int | None) -> Callable[[LiveCluster, Node], Any]:
    return lambda cluster, node: cluster.manager.admin.refresh_nodes(
        [node.spec.host], graceful=True, timeout_s=timeout_s
    )


TO_NODES: Mapping[str, Callable[[LiveCluster, Node], Any]] = {
    "fall silent": _silent,
    "stop": lambda cluster, node: node.stop(),
    "restart": lambda cluster, node: node.restart(),
    "restart with another port": lambda cluster, node: node.restart(http_port=node.spec.http_port + 1),
    "leave": _leave,
    "reboot": lambda cluster, node: node.call(out_of_turn=True) if node.is_registered else None,
    "register again": _register_as(),
    "register smaller": _register_as(capacity=SMALLER),
    "register larger": _register_as(capacity=Resource(12, 12)),
    "lose an answer": lambda cluster, node: setattr(node, "loses_answer", True),
    "refuse a launch": lambda cluster, node: setattr(node, "refusals", 1),
    "report": lambda cluster, node: node.call(),
    "report ill": _ill,
    "report well": _well,
    "decommission": lambda cluster, node: cluster.manager.admin.refresh_nodes([node.spec.host]),
    "drain": _drain(None),
    "drain in a second": _drain(1),
    "recommission": lambda cluster, node: cluster.manager.admin.recommission([node.spec.host]),
    "shrink": lambda cluster, node: cluster.manager.admin.update_node_resource(node.id, SMALLER),
    "include the others": lambda cluster, node: cluster.manager.admin.refresh_nodes(
        [], include=[*(set(HOSTS) - {node.spec.host}), "absent"]
    ),
}


def _look_for_expired(cluster: LiveCluster) -> None:
    """As a timer does in real time, whatever is queued."""
    for monitor in cluster.manager._monitors:
        monitor.expire_due()


TO_CLUSTERS: Mapping[str, Callable[[LiveCluster], Any]] = {
    "restart": lambda cluster: cluster.kill(),
    "restart without queue a": lambda cluster: cluster.kill(has_queue_a=False),
    "restart with queue a": lambda cluster: cluster.kill(has_queue_a=True),
    "restart, and give up what runs": lambda cluster: cluster.kill(work_preserving=False),
    "the store takes no more applications": lambda cluster: setattr(cluster.store, "refuses", True),
    "the store takes applications": lambda cluster: setattr(cluster.store, "refuses", False),
    "the store fails": lambda cluster: setattr(cluster.store, "fails", True),
    "exclude an absent host": lambda cluster: cluster.manager.admin.refresh_nodes(["absent"]),
    "look for what has expired": _look_for_expired,
    "admit all": lambda cluster: cluster.manager.admin.refresh_nodes([], include=[]),
}
RARE = ["restart without queue a", "restart with queue a", "restart, and give up what runs", "the store fails"]
EVENTS = sorted(
    {type.name for types in EVENT_TYPES.values() for type in types}
    | {"STORE_APP", "UPDATE_APP", "STORE_APP_ATTEMPT", "UPDATE_APP_ATTEMPT", "LAUNCH", "CLEANUP"}
    | {f"{each} written" for each in ("STORE_APP", "UPDATE_APP", "STORE_APP_ATTEMPT", "UPDATE_APP_ATTEMPT")}
    | {"APP_ADDED", "APP_ATTEMPT_ADDED", "APP_ATTEMPT_REMOVED", "NODE_ADDED", "NODE_REMOVED", "NODE_UPDATE"}
)


def any_course(seed: int) -> tuple[Settings, list[Step]]:
    """The same one for a seed."""
    any_of = random.Random(seed)
    settings = Settings(
        any_of.choice(["capacity", "capacity", "fifo"]),
        store_lag=any_of.choice([0, 0, 1, 3, 8]),
        store_ms=any_of.choice([0, 0, 0, 5, 150]),
        scheduler_lag=any_of.choice([0, 0, 1, 3, 8]),
        preemption=any_of.random() < 0.5,
        work_preserving=any_of.random() < 0.8,
    )
    names = [*TO_APPLICATIONS, *TO_APPLICATIONS, *TO_NODES, *(set(TO_CLUSTERS) - set(RARE))]
    names.sort()
    steps, at_ms = [], 0
    for _ in range(any_of.randrange(10, 35)):
        at_ms += any_of.choice([0, 0, 1, 50, 100, 300, any_of.randrange(900)])
        what: Callable[[LiveCluster], object]
        if any_of.random() < 0.3 or not steps:
            what = Submit(any_plan(any_of))
        elif any_of.random() < 0.03:
            what = To(any_of.choice(RARE))
        else:
            what = To(any_of.choice(names), any_of.randrange(12))
        steps.append(Step(at_ms, what, any_of.choice(EVENTS) if any_of.random() < 0.4 else None))
    return settings, steps


def any_plan(any_of: random.Random) -> Plan:
    sizes = [Resource(1, 1), Resource(1, 1), Resource(4, 2), Resource(2, 5), Resource(7, 7)]
    tasks = [
        Task(any_of.choice(sizes), any_of.choice([0, 100, 700, 2500, 6000]), any_of.choice([None, None, *HOSTS]))
        for _ in range(any_of.choice([0, 1, 2, 4, 8]))
    ]
    return Plan(
        any_of.choice([*LEAVES, *LEAVES, "nowhere"]),
        tuple(tasks),
        any_of.choice(["finish", "finish", "finish", "crash", "linger", "stay", "silent"]),
        any_of.choice([0, 100, 100, 100, 600, None]),
        any_of.choice([0, 0, 500, 2000]),
        any_of.choice([Resource(1, 1), Resource(1, 1), Resource(3, 3)]),
        any_of.choice(["ann", "bob"]),
        any_of.randrange(1, 4),
        any_of.randrange(2),
        any_of.choice([None, None, None, 1, 3]),
        keeps=any_of.random() < 0.3,
        unmanaged=any_of.random() < 0.15,
        forgets=any_of.random() < 0.2,
    )
