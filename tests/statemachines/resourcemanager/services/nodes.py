"""The lists of hosts and the service for nodes, as a stage for scenarios: events wait until the script settles them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest

from dispatcher import DispatcherError
from statemachines.resourcemanager import Resource, RMNode, RMNodeEventType

from ..builders import NODE, SPEC, TASK, Workshop, event_for
from ..inner import (
    AdminService,
    HostDrain,
    HostLists,
    NodeEventDispatcher,
    NodesListManager,
    NodesListManagerEvent,
    NodesListManagerEventType,
    ResourceTrackerService,
    RMNodeEvent,
    RMStateStoreEventType,
)

APP = "application_0_0001"


class Nodes:
    """Nodes are called by their hosts, or `host:port` if the port is another than that of all."""

    def __init__(self) -> None:
        self.workshop = Workshop()
        self.context = self.workshop.context
        self.lists = NodesListManager(self.context)
        self.tracker = ResourceTrackerService(self.context, self.lists)
        self._dispatcher = NodeEventDispatcher(self.context)
        self._settled, self._seen = 0, 0  # of the posted events
        self._begun = self.context.node_changes.latest
        self.admin = AdminService(self.context, self.lists)
        self._refusal: Exception | None = None

    # -- what happens --------------------------------------------------------------------------------------------------

    def play(self, verb: str, *words: str) -> None:
        lists = self.lists
        match verb:
            case "node" | "busy":
                self._node(*words, is_busy=verb == "busy")
            case "app":
                self.workshop.app("RUNNING")
                self._seen = self._settled = 0
            case "hear":
                lists.handle(NodesListManagerEvent(NodesListManagerEventType[words[0]], long_name(words[1])))
            case "post":
                self.workshop.posted.events.append(RMNodeEvent(RMNodeEventType[words[0]], NODE, int(words[1])))
            case "watch":
                lists.decommissioning_watcher.watch(NODE, int(words[0]))
            case "include" | "exclude" | "readmit":
                getattr(lists, verb)(words)
            case "drain":
                lists.exclude(words[1:], graceful=True, timeout_s=None if words[0] == "-" else int(words[0]))
            case "restore":
                lists.restore(HostLists(excluded=("node1",), drains={"node1": HostDrain(self.context.now_ms(), 60)}))
            case "refused":
                with pytest.raises(DispatcherError) as refusal:
                    self.play(*words)
                self._refusal = refusal.value
            case "list":
                lists.excluded = set(words)
            case "refresh":
                self.admin.refresh_nodes(words)
            case "refresh_gracefully":
                timeout_s = None if words[0] == "configured" else int(words[0])
                self.admin.refresh_nodes(words[1:], graceful=True, timeout_s=timeout_s)
            case "admit_only":
                self.admin.refresh_nodes(include=words)
            case "recommission":
                self.admin.recommission(words)
            case "resize":
                self.admin.update_node_resource(NODE, Resource(int(words[0]), 2))
            case "relabel":
                self.admin.replace_labels_on_node(NODE, words[0])
            case "register":
                self._register(*words)
            case "unregister":
                self.tracker.unregister_node(long_name(words[0]))
            case "beat":
                self.answer = self.tracker.heartbeat(NODE, response_id=int(words[0]) if words else None)
            case "clean":
                self.context.nodes[NODE].to_clean.add(TASK)
            case "send":
                node = self.context.nodes[NODE]
                node.handle(event_for(node, words[0]))
            case "tell":
                node = self._known()[NODE]
                self._dispatcher.handle(event_for(node, words[0]))
            case "expire_unknown":
                self._dispatcher.handle(RMNodeEvent(RMNodeEventType.EXPIRE, "nowhere:1"))
            case "settle":
                self._settle(*map(int, words))
            case "forget":
                self._seen = self._settled = len(self.workshop.posted.events)
            case _:
                self._pass(int(verb))

    def _node(self, state: str, host: str = "node1", *, is_busy: bool) -> None:
        """What was posted before is forgotten."""
        node = self.workshop.node(state, replace(SPEC, host=host))
        if is_busy:
            node.running_apps.add(APP)
        self._seen = self._settled = 0

    def _register(self, name: str, *apps: str) -> None:
        host, _, port = name.partition(":")
        spec = replace(SPEC, host=host, port=int(port or SPEC.port))
        self.tracker.register_node(spec, running_apps=apps)

    def _settle(self, at_most: int = 1000) -> None:
        """Nodes and lists handle all posted events, or the first of them."""
        events = self.workshop.posted.events
        while self._settled < len(events) and at_most:
            event = events[self._settled]
            self._settled, at_most = self._settled + 1, at_most - 1
            if isinstance(event, RMNodeEvent):
                self._dispatcher.handle(event)
            elif isinstance(event, NodesListManagerEvent):
                self.lists.handle(event)

    def _pass(self, ms: int) -> None:
        self.workshop.clock.advance(ms)
        for monitor in (*self.lists.monitors, self.context.nm_liveliness_monitor):
            monitor.expire_due()

    # -- what is seen --------------------------------------------------------------------------------------------------

    def look(self, what: str) -> Iterable[object]:
        context, lists = self.context, self.lists
        watch = lists.decommissioning_watcher
        known, stats = self._known(), self.workshop.recorder.machines.get("RMNode")
        looks = {
            "news": self._news,
            "waiting": lambda: self.workshop.posted.events[self._settled :],
            "changes": lambda: [f"{type.name} {short(node)}" for node, type in context.node_changes.since(self._begun)],
            "transitions": lambda: [sum(self.workshop.recorder.machines["RMApp"].transitions.values())],
            "unusable": lambda: map(short, sorted(lists.unusable)),
            "may": lambda: filter(lists.is_valid_node, ("node1", "node2")),
            "untracked": lambda: filter(lists.is_untracked, ("node1", "node2")),
            "since": lambda: [known[NODE].untracked_since_ms],
            "active": lambda: map(short, context.nodes),
            "inactive": lambda: [f"{short(id)} {node.state.name}" for id, node in context.inactive_nodes.items()],
            "forgotten": lambda: Counter(stats.forgotten).elements(),
            "made": lambda: [stats.created],
            "handled": lambda: [sum(stats.transitions.values()), stats.invalid],
            "state": lambda: [known[NODE].state.name],
            "timeout": lambda: [known[NODE].decommission_timeout_s],
            "may_go_on": lambda: [lists.may_go_on(known[NODE])],
            "watched": lambda: [NODE in watch],
            "deadline": lambda: [watch.monitor.deadline_ms(NODE)],
            "deadlines": lambda: [monitor.next_deadline_ms() for monitor in lists.monitors],
            "refusal": lambda: [str(self._refusal).partition(":")[0]],
            "stored": self._stored,
            "excluded": lambda: sorted(lists.excluded),
            "included": lambda: sorted(lists.included),
            "capacity": lambda: [known[NODE].capacity.memory_mb],
            "partition": lambda: [known[NODE].spec.partition],
            "heard": lambda: [short(id) for id in known if id in context.nm_liveliness_monitor],
            "action": lambda: [self.answer.action.name],
            "id": lambda: [self.answer.response_id],
            "to_clean": lambda: self.answer.containers_to_clean,
        }
        return looks[what]()

    def _stored(self) -> list[str]:
        return [each.type.name for each in self.workshop.posted.events if isinstance(each.type, RMStateStoreEventType)]

    def _known(self) -> dict[str, RMNode]:
        return {**self.context.nodes, **self.context.inactive_nodes}

    def _news(self) -> list[str]:
        """The events for nodes since the last look."""
        events, self._seen = self.workshop.posted.events[self._seen :], len(self.workshop.posted.events)
        return [f"{each.type.name} {short(each.entity)}" for each in events if isinstance(each, RMNodeEvent)]


def long_name(name: str) -> str:
    return name if ":" in name else f"{name}:{SPEC.port}"


def short(node_id: str) -> str:
    return node_id.removesuffix(f":{SPEC.port}")
