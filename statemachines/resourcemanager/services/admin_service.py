"""The service for administrators, after YARN's AdminService.

Threading: any thread may call; the work is done on the handler thread (invariant 1) before the call returns. The events
that it posts are handled later. Each method `m` has a form `m_later` that returns a Future at once; the errors of a
stopped resource manager and of a `timeout` in seconds are ClientRMService's. A `caller` is the user on whose behalf a
method is called; each raises AccessDeniedError unless that is an administrator. None is this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Literal

from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.events.rmnode import RMNodeEvent, RMNodeEventType
from statemachines.resourcemanager.events.scheduler import NodeLabelsUpdateSchedulerEvent
from statemachines.resourcemanager.events.services import RMStateStoreEvent, RMStateStoreEventType
from statemachines.resourcemanager.machines.rmnode import RMNode
from statemachines.resourcemanager.records.acls import Caller
from statemachines.resourcemanager.records.config import SchedulerConfig
from statemachines.resourcemanager.records.errors import (
    ChangeNotStoredError,
    InvalidRequestError,
    NodeNotFoundError,
)
from statemachines.resourcemanager.records.resource import MOST, Resource
from statemachines.resourcemanager.records.stored_state import (
    NodeCapacity,
    NodeLabel,
    Origin,
    QueueChangeList,
    RMState,
)
from statemachines.resourcemanager.reports.admin_changes import ChangeReports, NodeChangeReport
from statemachines.resourcemanager.services.handler_calls import (
    HandlerThreadService,
    Stored,
    later,
    once_stored,
)
from statemachines.resourcemanager.services.nodes_list_manager import NodesListManager
from statemachines.resourcemanager.services.queue_changes import QueueChanges, QueueUpdate, Settings

_LONGEST_LABEL = 255  # YARN's
NodeSetting = Literal["capacity", "label"]


class AdminService(HandlerThreadService):
    """Decommissions, recommissions, resizes and labels nodes, and changes queues.

    One rule for all: a change holds until the next one. It has priority over the configuration and over what the node
    says. It holds when the node is lost, registers again or restarts, and when the resource manager restarts with a
    state store. A method returns once its change is stored, and raises ChangeNotStoredError if it can't be.
    """

    def __init__(self, context: RMContext, nodes_list_manager: NodesListManager) -> None:
        super().__init__(context)
        self._context = context
        self._acls = context.acls  # any thread
        self._nodes = nodes_list_manager
        self._queues = QueueChanges(context.config.scheduler)  # handler thread
        self._node_changes: dict[tuple[str, str], NodeChangeReport] = {}  # by node and key; handler thread
        self._host_changes: tuple[NodeChangeReport, ...] = ()  # handler thread
        # Replaced on the handler thread, read by any:
        self._reports = ChangeReports()
        self._config = context.config.scheduler

    @property
    def changes(self) -> ChangeReports:
        """All changes that are in effect, and those of queues that were set aside. Thread-safe."""
        return self._reports

    @property
    def scheduler_config(self) -> SchedulerConfig:
        """The scheduler's configuration with the changes of queues that are in effect. Thread-safe."""
        return self._config

    def restore(self, state: RMState) -> None:
        """Take the stored changes, on the handler thread, before applications are recovered and nodes register."""
        self._nodes.restore(state.host_lists)
        self._context.node_labels.update((node, each.label) for node, each in state.node_labels.items())
        self._context.node_capacities.update((node, each.capacity) for node, each in state.node_capacities.items())
        for node, label in state.node_labels.items():
            self._changed(node, "label", label.label, label.origin)
        for node, capacity in state.node_capacities.items():
            self._changed(node, "capacity", capacity.capacity, capacity.origin)
        if state.queue_changes.changes:
            self._configure(self._queues.restore(state.queue_changes.changes))
        self._report_queues()
        self._report_hosts()

    @once_stored
    def refresh_nodes(
        self,
        decommission: Iterable[str] = (),
        *,
        include: Iterable[str] | None = None,
        graceful: bool = False,
        timeout_s: int | None = None,
        caller: Caller | None = None,
        timeout: float | None = None,
    ) -> Callable[[], Stored[None]]:
        """Decommission the nodes of these hosts, which may not register again before `recommission`.

        `graceful` waits until their applications have ended, at most `timeout_s` (None: as configured). `include`: only
        these hosts may have nodes; empty: all hosts may; None: no change.
        """
        if timeout_s is None:
            timeout_s = self._context.config.decommission_timeout_s
        leaving, included = tuple(decommission), None if include is None else tuple(include)

        def refresh() -> Stored[None]:
            self._acls.check_administrator(caller, "refreshNodes")
            origin = self._origin(caller)
            if included is not None:
                self._nodes.include(included, origin)
            if leaving:
                self._nodes.exclude(leaving, origin, graceful=graceful, timeout_s=timeout_s)
            self._report_hosts()
            return self._store(RMStateStoreEventType.STORE_HOST_LISTS, "hosts", self._nodes.to_store())

        return refresh

    refresh_nodes_later: Final = later(refresh_nodes)

    @once_stored
    def recommission(
        self, hosts: Iterable[str], *, caller: Caller | None = None, timeout: float | None = None
    ) -> Callable[[], Stored[None]]:
        """Admit these hosts again: DECOMMISSIONING nodes stay in service, others must register."""
        returning = tuple(hosts)

        def readmit() -> Stored[None]:
            self._acls.check_administrator(caller, "refreshNodes")
            self._nodes.readmit(returning)
            self._report_hosts()
            return self._store(RMStateStoreEventType.STORE_HOST_LISTS, "hosts", self._nodes.to_store())

        return readmit

    recommission_later: Final = later(recommission)

    @once_stored
    def update_node_resource(
        self, node_id: str, capacity: Resource, *, caller: Caller | None = None, timeout: float | None = None
    ) -> Callable[[], Stored[None]]:
        """Change a node's capacity, whatever it registers with. Its containers run on, even if they exceed it.

        Raises:
            NodeNotFoundError: no such node is active.
            InvalidRequestError: no node can have this capacity.
        """
        if not capacity.is_possible():
            raise InvalidRequestError(f"node {node_id} cannot have {capacity}: amounts must be 0 to {MOST}")

        def update() -> Stored[None]:
            self._acls.check_administrator(caller, "updateNodeResource")
            node = self._node(node_id)
            origin = self._origin(caller)
            self._context.node_capacities[node.entity] = capacity
            self._context.post(RMNodeEvent(RMNodeEventType.RESOURCE_UPDATE, node.entity, capacity))
            self._changed(node.entity, "capacity", capacity, origin)
            self._report_nodes()
            stored = NodeCapacity(capacity, origin)
            return self._store(RMStateStoreEventType.STORE_NODE_CAPACITY, node.entity, stored)

        return update

    update_node_resource_later: Final = later(update_node_resource)

    @once_stored
    def replace_labels_on_node(
        self, node_id: str, partition: str, *, caller: Caller | None = None, timeout: float | None = None
    ) -> Callable[[], Stored[None]]:
        """Move a node into a partition, whatever it registers with; empty: the default one.

        Raises:
            NodeNotFoundError: no such node is active.
            InvalidRequestError: the label is too long, or not printable.
        """
        if len(partition) > _LONGEST_LABEL or not partition.isprintable():
            raise InvalidRequestError(
                f"{partition[:_LONGEST_LABEL]!a} cannot be a label: it must be printable, with at most "
                f"{_LONGEST_LABEL} characters"
            )

        def move() -> Stored[None]:
            self._acls.check_administrator(caller, "replaceLabelsOnNode")
            node = self._node(node_id)
            origin = self._origin(caller)
            self._context.node_labels[node_id] = partition
            self._label(node)
            self._changed(node_id, "label", partition, origin)
            self._report_nodes()
            return self._store(RMStateStoreEventType.STORE_NODE_LABEL, node_id, NodeLabel(partition, origin))

        return move

    replace_labels_on_node_later: Final = later(replace_labels_on_node)

    @once_stored
    def give_up_node_change(
        self, node_id: str, setting: NodeSetting, *, caller: Caller | None = None, timeout: float | None = None
    ) -> Callable[[], Stored[None]]:
        """Give a node back the capacity or the partition that it registered with.

        Raises:
            InvalidRequestError: no administrator has changed this setting of the node.
        """
        if setting not in ("capacity", "label"):
            raise InvalidRequestError(f"{setting!r:.100} is not a change of a node; expected capacity or label")

        def give_up() -> Stored[None]:
            context, is_capacity = self._context, setting == "capacity"
            self._acls.check_administrator(caller, "updateNodeResource" if is_capacity else "replaceLabelsOnNode")
            changed: dict[str, Resource] | dict[str, str]
            changed = context.node_capacities if is_capacity else context.node_labels
            if node_id not in changed:
                raise InvalidRequestError(f"node {node_id}: no administrator has changed its {setting}")
            del changed[node_id]
            self._node_changes.pop((node_id, setting), None)
            self._report_nodes()
            node = context.nodes.get(node_id)
            if is_capacity:
                if node is not None:
                    capacity = node.registered.capacity
                    context.post(RMNodeEvent(RMNodeEventType.RESOURCE_UPDATE, node_id, capacity))
                return self._store(RMStateStoreEventType.REMOVE_NODE_CAPACITY, node_id, None)
            if node is not None:
                self._label(node)
            return self._store(RMStateStoreEventType.REMOVE_NODE_LABEL, node_id, None)

        return give_up

    give_up_node_change_later: Final = later(give_up_node_change)

    @once_stored
    def update_queues(
        self,
        update: Settings | None = None,
        *,
        add: Settings | None = None,
        remove: Iterable[str] = (),
        caller: Caller | None = None,
        timeout: float | None = None,
    ) -> Callable[[], Stored[None]]:
        """Change, add and remove queues of the capacity scheduler, in this order, all or nothing.

        `update`, `add`: by queue, the values of its keys as in the configuration, such as `{"root.etl": {"capacity":
        60}}`. The value None gives up the change of a key. The shares of a partition have the keys
        `accessible_node_labels.LABEL.capacity` and `.maximum_capacity`. The root has the scheduler's own keys.
        `remove`: stopped queues without applications, with those below them.

        Raises:
            InvalidRequestError: a name or value is wrong, or the result is no valid tree of queues.
        """
        set_ = {name: dict(values) for name, values in (update or {}).items()}
        added = {name: dict(values) for name, values in (add or {}).items()}
        removed = tuple(remove)
        return self._queue_change(caller, lambda: self._queues.update(set_, added, removed, self._origin(caller)))

    update_queues_later: Final = later(update_queues)

    @once_stored
    def give_up_queue_changes(
        self, queues: Iterable[str] | None = None, *, caller: Caller | None = None, timeout: float | None = None
    ) -> Callable[[], Stored[None]]:
        """Give up the changes of these queues, or with None of all queues: the configuration counts again.

        Raises:
            InvalidRequestError: a queue has no changes, or the result is no valid tree of queues.
        """
        names = None if queues is None else tuple(queues)
        return self._queue_change(caller, lambda: self._queues.give_up(names))

    give_up_queue_changes_later: Final = later(give_up_queue_changes)

    def _queue_change(self, caller: Caller | None, check: Callable[[], QueueUpdate]) -> Callable[[], Stored[None]]:
        def change() -> Stored[None]:
            self._acls.check_administrator(caller, "updateSchedulerConfiguration")
            checked = check()
            self._configure(checked.config)
            self._queues.take(checked)
            self._report_queues()
            stored = QueueChangeList(self._queues.to_store())
            return self._store(RMStateStoreEventType.STORE_QUEUE_CHANGES, "queues", stored)

        return change

    def _configure(self, config: SchedulerConfig) -> None:
        if config.kind == "capacity":  # otherwise no change is in effect
            self._context.scheduler.change_queues(config)
            self._acls.configure(config)
            self._config = config

    def _label(self, node: RMNode) -> None:
        """Move the node into the partition of its label or, without a label, into the one that it registered with."""
        node.take_spec(node.registered)
        self._context.recorder.changed(node)
        self._context.post(NodeLabelsUpdateSchedulerEvent(node.entity, node.spec.partition))

    def _origin(self, caller: Caller | None) -> Origin:
        return Origin(self._context.now_ms(), "" if caller is None else caller.user)

    def _changed(self, node: str, key: NodeSetting, value: Resource | str, origin: Origin | None) -> None:
        self._node_changes[node, key] = NodeChangeReport(node, key, value, origin)

    def _report_hosts(self) -> None:
        """Publish which hosts may have nodes."""
        hosts, found = self._nodes, []
        for host in hosts.excluded:
            how = "gracefully" if host in hosts.drains else "at once"
            found.append(NodeChangeReport(host, "decommissioned", how, hosts.origins.get(host)))
        if hosts.included:
            found.append(NodeChangeReport("", "included", tuple(sorted(hosts.included)), hosts.included_by))
        self._host_changes = tuple(found)
        self._report_nodes()

    def _report_nodes(self) -> None:
        changes = sorted((*self._node_changes.values(), *self._host_changes), key=lambda each: each[:2])
        self._reports = self._reports._replace(nodes=tuple(changes))

    def _report_queues(self) -> None:
        self._reports = self._reports._replace(queues=self._queues.reports())

    def _store(self, type: RMStateStoreEventType, entity: str, state: object) -> Stored[None]:
        stored = Stored(None)

        def refuse(error: Exception) -> None:
            stored.refuse(ChangeNotStoredError(entity, error))

        self._context.post(
            RMStateStoreEvent(type, entity, state, notify=False, on_stored=stored.confirm, on_failed=refuse)
        )
        return stored

    def _node(self, node_id: str) -> RMNode:
        node = self._context.nodes.get(node_id)
        if node is None:
            raise NodeNotFoundError(node_id)
        return node
