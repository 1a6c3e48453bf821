"""A cluster with the capacity scheduler; `check` includes the invariants of queues and limits."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

from statemachines.resourcemanager import ContainerRequest, QueueInfo, Resource, ResourceManagerConfig
from statemachines.resourcemanager.scheduler.capacity import limits
from statemachines.resourcemanager.scheduler.capacity.capacity_scheduler import CapacityPolicy, CapacityScheduler
from statemachines.resourcemanager.scheduler.capacity.queues import LeafQueue, QueueTree

from ..cluster import Cluster
from ..inner import RMContext, SchedulerNode, add, amounts_of

Used = dict[tuple[str, str], dict[str, int]]
"""Amounts by (queue, partition) or (leaf and user, partition)."""


def queue_config(name: str, capacity: float = 100, *children: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The configuration of a queue."""
    return {"name": name, "capacity": capacity, **({"queues": list(children)} if children else {}), **more}


def scheduler_config(**scheduler: Any) -> Any:
    return ResourceManagerConfig.model_validate({"scheduler": scheduler}).scheduler


def queue_tree(*queues: dict[str, Any], total: Resource | None = None, **more: Any) -> QueueTree:
    """A tree on its own. `total`: the size of the default partition."""
    built = QueueTree(scheduler_config(queues=queues, **more))
    if total is not None:
        built.grow("", amounts_of(total))
    return built


class QueueCluster(Cluster):
    """`queues` are the children of the root."""

    def __init__(self, *queues: dict[str, Any], on_heartbeat: bool = False, **scheduler: Any) -> None:
        def make(context: RMContext) -> CapacityScheduler:
            return CapacityScheduler(context, on_heartbeat=on_heartbeat)

        scheduler = {"kind": "capacity", "queues": queues or ({"name": "default"},), **scheduler}
        super().__init__(make, scheduler=scheduler)
        self.on_heartbeat = on_heartbeat

    @property
    def capacity_scheduler(self) -> CapacityScheduler:
        return cast(CapacityScheduler, self.scheduler)

    @property
    def policy(self) -> CapacityPolicy:
        return cast(CapacityPolicy, self.scheduler._policy)

    @property
    def tree(self) -> QueueTree:
        return self.policy.tree

    def attempt_in(self, queue: str, user: str = "ann", **submission: Any) -> str:
        return self.new_attempt(queue=queue, user=user, **submission)

    def info(self, path: str) -> QueueInfo:
        return next(info for info in self.scheduler.queues() if info.path == path)

    def app_of(self, attempt: str) -> Any:
        return self.capacity_scheduler._books.attempts[attempt].app

    def move(self, attempt: str, queue: str) -> None:
        self.in_handler(lambda: self.scheduler.move_application(self.app_of(attempt).id, queue))

    def change_queues(self, *queues: dict[str, Any], **scheduler: Any) -> None:
        config = scheduler_config(kind="capacity", queues=queues, **scheduler)
        self.in_handler(lambda: self.scheduler.change_queues(config))

    def usage(self) -> Used:
        """The usage of all queues and of all users of leaves, counted from the live containers."""
        used: Used = {}
        nodes = {node.node_id: node for node in self.scheduler.nodes()}
        for container in self.context.containers.values():
            path = self.scheduler.queue_of(container.application)
            assert path is not None
            partition = nodes[container.node].partition
            names = path.split(".")
            user = self.context.apps[container.application].submission.user
            for name in (*(".".join(names[: i + 1]) for i in range(len(names))), f"{path} {user}"):
                add(used.setdefault((name, partition), {}), amounts_of(container.request.resource))
        return used

    def books(self) -> Used:
        """The same from the scheduler's books."""
        used: Used = {}
        for queue in self.tree.queues():
            for partition, share in queue.shares.items():
                used[queue.path, partition] = share.used
            if isinstance(queue, LeafQueue):
                for name, user in queue.users.items():
                    used |= {(f"{queue.path} {name}", partition): amounts for partition, amounts in user.used.items()}
        return {key: amounts for key, amounts in used.items() if amounts}

    def used(self) -> dict[tuple[str, str, str], int]:
        """Usage by (queue, partition, type)."""
        return {
            (queue.path, partition, type_): amount
            for queue in self.tree.queues()
            for partition, share in queue.shares.items()
            for type_, amount in share.used.items()
        }

    def beyond_maximum(self) -> list[tuple[str, str, str]]:
        """The keys of `used` under which a queue exceeds its maximum; where that is all, its containers alone."""
        return [
            (queue.path, partition, type_)
            for queue in self.tree.queues()
            for partition, share in queue.shares.items()
            for type_, amount in share.used.items()
            if amount - (share.reserved.get(type_, 0) if share.maximum == 1 else 0) > share.limit.get(type_, 0)
        ]

    def check(self) -> None:
        super().check()
        assert self.books() == self.usage()
        for info in self.scheduler.queues():
            inside = [
                container
                for container in self.context.containers.values()
                if f"{self.scheduler.queue_of(container.application)}.".startswith(f"{info.path}.")
            ]
            assert info.containers == len(inside)
        self.check_masters()

    def check_masters(self) -> None:
        """No application is pending while the share of masters has room for its master."""
        for activation in self.policy.activations.values():
            leaf = activation.leaf
            attempts = [a for a in self.capacity_scheduler._books.attempts.values() if not a.is_stopped]
            apps = [cast(Any, attempt.app) for attempt in attempts]
            mine = [app for app in apps if app.leaf is leaf]
            pending = [app for app in mine if not app.is_active]
            assert leaf.active == len(mine) - len(pending)
            assert leaf.pending == len(pending)
            for app in pending:
                need = app.master_partition, app.master_amounts
                assert not (
                    limits.has_room_for_master(leaf, *need) and limits.has_room_for_users_master(leaf, app.user, *need)
                )
                assert app in activation._pending[app.user, *need]

    def partition_of_node(self, node: SchedulerNode) -> str:
        return node.partition

    def check_waiting(self, nodes: dict[str, SchedulerNode]) -> None:
        """Each pending ask is held up by a limit or fits on no node, and `why_waiting` gives that reason."""
        asks: Counter[tuple[LeafQueue, str]] = Counter()
        for attempt, request in self.scheduler.waiting():
            app, why = self.app_of(attempt), self.scheduler.why_waiting(attempt, request).sentence
            if not app.is_active:
                assert "masters" in why
                continue
            asks[app.leaf, app.user] += 1
            limit = self.limit_on(app, request)
            if limit is not None:
                # A reservation made before the limit was reached waits for its node as well.
                assert limit in why or (self.on_heartbeat and "is reserved for it" in why)
                continue
            fitting = [node for node in nodes.values() if self.fits(attempt, request, node)]
            full = limits.full_queue(app.leaf, self.partition_of(app, request), amounts_of(request.resource), ())
            if fitting and full is not None:  # the containers of another node exceed its capacity
                assert f"queue {full.path} has used" in why or self.on_heartbeat
                continue
            assert "queue" not in why
            assert self.on_heartbeat or not fitting, f"{request} of {attempt} waits: {why}"
        for leaf in self.tree.leaves.values():
            active = {(leaf, name): user.asks for name, user in leaf.users.items() if user.asks}
            assert active == {key: count for key, count in asks.items() if key[0] is leaf}
            assert leaf.active_users == len(active)

    def limit_on(self, app: Any, request: ContainerRequest) -> str | None:
        """The expected words for the limit that holds up the request; None: no limit does."""
        leaf, partition, amounts = app.leaf, self.partition_of(app, request), amounts_of(request.resource)
        if not leaf.may_use(partition):
            return "may not use partition"
        shares = [(queue, queue.share(partition)) for queue in leaf.lineage]
        full = [
            queue
            for queue, share in shares
            if not share.has_room(amounts)
            and not (share.maximum == 1 and (share.has_room(()) or share.has_room_without((), ())))
        ]
        if full:
            return f"queue {full[0].path} has used"
        return f"user {app.user} has used" if self.is_user_full(app, partition, amounts) else None

    def is_user_full(self, app: Any, partition: str, amounts: Any, **more: Any) -> bool:
        """Whether its user may not have that much more in its queue."""
        return limits.is_user_full(app.leaf, app.user, partition, amounts, **more)

    def fits(self, attempt: str, request: ContainerRequest, node: SchedulerNode) -> bool:
        named, there = (request.rack, node.rack) if request.host is None else (request.host, node.host)
        if named not in (None, there) and not request.relax_locality:
            return False
        return (
            not node.is_draining
            and node.partition == self.partition_of(self.app_of(attempt), request)
            and node.host not in self.capacity_scheduler._books.attempts[attempt].blacklist
            and node.fits(request.resource, request.gpu_models)
        )

    def partition_of(self, app: Any, request: ContainerRequest) -> str:
        return app.default_partition if request.node_label is None else request.node_label
